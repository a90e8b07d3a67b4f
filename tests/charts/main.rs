//! The charts: rendered by helm, and taken by real API servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod copies;
mod helm;
mod render;
mod servers;
mod values;
