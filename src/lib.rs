//! Compiles `BoundaryPolicy` resources into the admission policies of every API server of a
//! fleet, and tells the truth about where they are enforced.
