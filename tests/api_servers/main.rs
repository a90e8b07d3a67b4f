//! What policies compile to, on real API servers of several versions.
//!
//! The objects are applied as they are compiled, without the operator, which has its own tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod cases;
mod change;
mod controllers;
mod cost;
mod hostile;
mod parity;
mod scope;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod workload;
