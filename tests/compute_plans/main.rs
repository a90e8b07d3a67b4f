//! Compute plans: the decision, the HTTP API, and the admission of real API servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod admission;
mod api;
#[allow(dead_code, reason = "not everything is used everywhere")]
mod client;
mod decision;
#[path = "../operator/world.rs"]
#[allow(dead_code, reason = "not everything is used here")]
mod hub;
mod offline;
mod openapi;
mod parity;
mod picker;
mod process;
#[path = "../api_servers/server.rs"]
#[allow(dead_code, reason = "not everything is used here")]
mod server;
#[path = "../support/mod.rs"]
mod support;
#[path = "../api_servers/workload.rs"]
#[allow(dead_code, reason = "not everything is used here")]
mod workload;
mod world;
