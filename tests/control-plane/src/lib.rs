//! Real control planes for tests and for trying out.
