//! What is asked and answered, as JSON.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::PlanOutcome;

/// The most parts of a resource in one question, as wanted or as held.
pub(super) const MAX_PARTS: usize = 1_000;

/// After how many seconds to ask again.
pub(super) const RETRY_SECONDS: u8 = 5;

/// The media type of problems.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// A question: may a resource have these plans?
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// The name of the ComputeResourceType, such as `valkey`.
    #[serde(rename = "type")]
    pub(super) resource_type: String,
    /// The plans that the resource is to have.
    #[schemars(length(max = MAX_PARTS))]
    pub(super) wanted: Vec<Part>,
    /// The plans that the resource has. Absent where it is created.
    #[serde(default)]
    #[schemars(length(max = MAX_PARTS))]
    pub(super) held: Vec<Part>,
}

/// A plan in a resource.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// What tells this part of the resource from its others. Absent for a resource of one part.
    #[serde(default)]
    pub(super) component: Option<String>,
    /// The plan. Absent, null or empty: this part has none, and is not checked.
    #[serde(default)]
    pub(super) plan: Option<String>,
}

/// The plans may be had.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Allowed {
    /// Always `true`; a refusal is a problem.
    pub(super) allowed: bool,
    /// What policies with the action Warn say of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<Refused>,
}

/// A plan that a policy does not allow.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Refused {
    /// The part of the resource, where it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) component: Option<String>,
    /// The plan.
    pub(super) plan: String,
    /// What to tell people.
    pub(super) message: String,
    /// The policies that don't allow it, by name.
    pub(super) policies: Vec<String>,
}

/// The plans of a type, in the order in which they are shown.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names are those of the API")]
pub(super) struct Plans {
    /// The boundary.
    pub(super) boundary: String,
    /// The name of the type.
    #[serde(rename = "type")]
    pub(super) resource_type: String,
    /// How people call the type.
    pub(super) display_name: String,
    /// Whether a resource of the type is refused for its plan. If not, plans are greyed out, and that
    /// is all.
    pub(super) checked: bool,
    /// Its plans.
    pub(super) plans: Vec<Plan>,
}

/// A plan, and whether it may be had.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    /// Its name.
    pub(super) name: String,
    /// How people call it.
    pub(super) display_name: String,
    /// What one gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    /// Whether it may be had.
    pub(super) allowed: bool,
    /// Why not, where it may not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The policies that don't allow it, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) policies: Vec<String>,
}

/// Why there is no other answer (RFC 9457).
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Problem {
    /// The HTTP status.
    pub(super) status: u16,
    /// The kind of problem, for people.
    pub(super) title: &'static str,
    /// The kind of problem, for programs.
    #[schemars(schema_with = "codes")]
    pub(super) code: &'static str,
    /// What is the matter. Of a plan that is not allowed: what to tell people, of the first one.
    pub(super) detail: String,
    /// The plans that may be had, in order, where a plan is not allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allowed_plans: Option<Vec<String>>,
    /// Every plan that is not allowed, in the order of `wanted`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refusals: Vec<Refused>,
    #[serde(skip)]
    pub(super) outcome: PlanOutcome,
}

fn codes(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let problems = PlanOutcome::ALL.iter().filter(|o| o.status() != 200);
    let codes: Vec<_> = problems.map(|outcome| outcome.as_str()).collect();
    schemars::json_schema!({"type": "string", "enum": codes})
}

impl Problem {
    /// A problem of a kind.
    pub(super) fn new(outcome: PlanOutcome, detail: impl Into<String>) -> Self {
        Self {
            status: outcome.status(),
            title: title(outcome),
            code: outcome.as_str(),
            detail: detail.into(),
            allowed_plans: None,
            refusals: Vec::new(),
            outcome,
        }
    }
}

fn title(outcome: PlanOutcome) -> &'static str {
    match outcome {
        PlanOutcome::Ok => "All is well",
        PlanOutcome::NotAllowed => "The compute plan is not allowed",
        PlanOutcome::PolicyUnavailable => "The policies are not known now",
        PlanOutcome::InvalidRequest => "The request is not valid",
        PlanOutcome::Unauthenticated => "The caller is not known",
        PlanOutcome::Forbidden => "The caller may not ask this",
        PlanOutcome::UnknownType => "There is no such type",
        PlanOutcome::NotFound => "There is nothing here",
        PlanOutcome::MethodNotAllowed => "This can not be done here",
        PlanOutcome::RequestTimeout => "The request took too long",
        PlanOutcome::RequestTooLarge => "The request is too large",
        PlanOutcome::UnsupportedMediaType => "The body is not JSON",
        PlanOutcome::Overloaded => "There are too many requests",
        PlanOutcome::Internal => "Something went wrong",
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let outcome = self.outcome;
        let status = StatusCode::from_u16(self.status);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status.unwrap_or_default(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        match outcome {
            PlanOutcome::PolicyUnavailable | PlanOutcome::Overloaded => {
                headers.insert(RETRY_AFTER, HeaderValue::from(u16::from(RETRY_SECONDS)));
            }
            PlanOutcome::Unauthenticated => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
