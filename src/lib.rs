//! Compiles `BoundaryPolicy` resources into the admission policies of every API server of a
//! fleet, and tells the truth about where they are enforced.
//!
//! - [`api`]: the resources that users write.
//! - [`compile`](mod@compile): policies in, objects for an API server out.
//! - [`evaluate`]: verdicts offline, from exactly the CEL that is emitted.
//! - [`plans`]: which compute plans a boundary may use.
//! - [`rules`]: the rules of a policy, one file each.

pub mod api;
pub mod cli;
pub mod compile;
pub mod controller;
pub mod evaluate;
pub mod fleet;
pub mod plans;
pub mod rules;
pub mod telemetry;
