//! The operator against real API servers.

mod lifecycle;
mod trouble;
mod upgrade;
mod world;
