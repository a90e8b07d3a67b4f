//! The metrics of the API about compute plans. Every label has values of this file.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// In seconds.
const BUCKETS: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0,
];

type CallLabel = [(&'static str, &'static str); 1];
type AnswerLabels = [(&'static str, &'static str); 2];

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanCall {
    /// Whether plans may be had.
    Check,
    /// The plans of a type.
    Plans,
    /// Anything else.
    Other,
}

/// How it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanOutcome {
    /// As it was asked.
    Ok,
    /// A plan is not allowed.
    NotAllowed,
    /// The policies are not known.
    PolicyUnavailable,
    /// The request has something wrong.
    InvalidRequest,
    /// The caller is not known.
    Unauthenticated,
    /// The caller may not ask.
    Forbidden,
    /// There is no such type.
    UnknownType,
    /// There is no such path.
    NotFound,
    /// The path has no such method.
    MethodNotAllowed,
    /// The request took too long.
    RequestTimeout,
    /// The body is too large.
    RequestTooLarge,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// There are too many requests.
    Overloaded,
    /// A fault of the operator.
    Internal,
}

impl PlanCall {
    const ALL: [Self; 3] = [Self::Check, Self::Plans, Self::Other];

    /// As in the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Plans => "plans",
            Self::Other => "other",
        }
    }
}

impl PlanOutcome {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Ok,
        Self::NotAllowed,
        Self::PolicyUnavailable,
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::UnknownType,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::RequestTooLarge,
        Self::UnsupportedMediaType,
        Self::Overloaded,
        Self::Internal,
    ];

    /// As in the label, and the `code` of a problem.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotAllowed => "compute_plan_not_allowed",
            Self::PolicyUnavailable => "compute_plan_policy_unavailable",
            Self::InvalidRequest => "invalid_request",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::UnknownType => "compute_resource_type_unknown",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::RequestTimeout => "request_timeout",
            Self::RequestTooLarge => "request_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::Overloaded => "overloaded",
            Self::Internal => "internal",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::NotAllowed => 422,
            Self::PolicyUnavailable | Self::Overloaded => 503,
            Self::InvalidRequest => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::UnknownType | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::RequestTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Internal => 500,
        }
    }
}

/// The metrics of the API. All clones are the same.
#[derive(Clone, Debug)]
pub struct PlanMetrics {
    requests: Family<AnswerLabels, Counter>,
    durations: Family<CallLabel, Histogram, fn() -> Histogram>,
    connections: Gauge,
    heard: Gauge,
}

impl Default for PlanMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            connections: Gauge::default(),
            heard: Gauge::default(),
        }
    }
}

/// A connection, while it is open.
pub(crate) struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl PlanMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "plan_api_requests",
            "Requests to the API about compute plans, by call and by how they were answered",
            self.requests.clone(),
        );
        registry.register(
            "plan_api_request_duration_seconds",
            "How long an answer of the API about compute plans took",
            self.durations.clone(),
        );
        registry.register(
            "plan_api_connections",
            "Open connections to the API about compute plans",
            self.connections.clone(),
        );
        registry.register(
            "plan_api_hub_last_heard_timestamp_seconds",
            "When the API about compute plans last heard the hub, as Unix time; 0: never",
            self.heard.clone(),
        );
        // Rates and alerts need series that begin at 0.
        for call in PlanCall::ALL {
            let _ = self.durations.get_or_create(&[("call", call.as_str())]);
            for outcome in PlanOutcome::ALL {
                let _ = self.requests.get_or_create(&labels(call, outcome));
            }
        }
    }

    /// A request was answered.
    pub fn answered(&self, call: PlanCall, outcome: PlanOutcome, took: Duration) {
        self.requests.get_or_create(&labels(call, outcome)).inc();
        let duration = self.durations.get_or_create(&[("call", call.as_str())]);
        duration.observe(took.as_secs_f64());
    }

    /// The hub was heard, at a Unix time.
    pub fn heard(&self, at: i64) {
        self.heard.set(at);
    }

    /// A connection was opened; it is closed when what is returned is dropped.
    pub(crate) fn connected(&self) -> Connected {
        self.connections.inc();
        Connected(self.connections.clone())
    }
}

fn labels(call: PlanCall, outcome: PlanOutcome) -> AnswerLabels {
    [("call", call.as_str()), ("code", outcome.as_str())]
}
