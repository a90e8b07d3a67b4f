//! What policies compile to, as a reviewer reads it and as the evaluation offline judges it.
