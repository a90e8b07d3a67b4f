//! What the operator tells of itself: metrics, and whether it is alive and ready.

mod health;
mod http;
mod metrics;
mod plans;
mod traces;

pub use health::{Health, Loop};
pub use http::{router, serve};
pub use metrics::{Attempt, ErrorClass, Metrics, Proof};
pub use plans::{PlanCall, PlanMetrics, PlanOutcome};
pub use traces::{Traces, TracesError};

/// What one instance of the operator tells. All clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// Its metrics.
    pub metrics: Metrics,
    /// Whether it is alive and ready.
    pub health: Health,
}
