//! Compute plans: which of them a boundary may use.
//!
//! The decision is pure, and the same for everyone who asks: the HTTP API, the admission policies that
//! are compiled for API servers, and the status of a policy.

mod catalog;
mod decision;
pub mod http;

pub use catalog::{Catalog, unknown_entries};
pub use decision::{Asked, BoundaryPlans, PlanPolicy, REASON, Refusal, Restriction, Slot, message};
