//! The Pod Security rule against the plugin that every API server has for the same standards.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by a panic, and tells what it counted"
)]

mod checks;
mod cluster;
mod generate;
mod limits;
mod parity;
#[path = "../support/mod.rs"]
mod support;
mod templates;
