//! From nothing to a fleet that enforces, and back to nothing: helm, the plugin and the operator
//! against real control planes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod account;
mod audit;
#[path = "../compute_plans/client.rs"]
#[expect(dead_code, reason = "another test uses all of it")]
mod client;
mod everything;
mod fleet;
mod grants;
mod plans;
mod release;
mod world;
