//! From nothing to a fleet that enforces, and back to nothing: helm, the plugin and the operator
//! against real control planes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod everything;
mod fleet;
mod release;
mod world;
