//! Compute plans: the decision, the HTTP API, and the admission of real API servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod decision;
mod offline;
mod world;
