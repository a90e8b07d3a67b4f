//! The operator against real API servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod access;
mod change;
mod drift;
mod faults;
mod guard;
mod leader;
mod lifecycle;
mod members;
mod plans;
mod proof;
mod proxy;
mod roles;
mod telemetry;
mod traces;
mod trouble;
mod upgrade;
mod world;
