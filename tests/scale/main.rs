//! The operator and a fleet of many clusters, which are simulated; and that the simulated ones behave
//! as a real one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod fleet;
#[path = "../operator/world.rs"]
#[allow(dead_code, reason = "not everything is used here")]
mod hub;
#[allow(dead_code, reason = "not everything is used here")]
mod simulator;
mod true_to_life;
