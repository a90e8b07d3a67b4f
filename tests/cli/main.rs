//! The kubectl plugin, run as users run it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod compile;
mod errors;
mod suite;
mod support;
mod verdicts;
