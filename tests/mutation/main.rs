//! The rules that change Pods, on real API servers and offline.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by a panic, and tells what it counted"
)]

mod boundary;
mod cases;
mod examples;
mod generate;
mod parity;
#[allow(dead_code, reason = "it is shared with other tests")]
#[path = "../api_servers/server.rs"]
mod server;
mod servers;
#[path = "../support/mod.rs"]
mod support;
mod webhook;
#[allow(dead_code, reason = "it is shared with other tests")]
#[path = "../api_servers/workload.rs"]
mod workload;
