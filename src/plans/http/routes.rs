//! The calls of the API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::access::{Access, Doorkeeper, RESOURCE, SUB_RESOURCE};
use super::answer::{Allowed, Check, MAX_PARTS, Part, Plan, Plans, Problem, Refused};
use super::known::{Known, Policies, Types, Unknown};
use super::openapi;
use crate::api::{Action, ComputeResourceTypeSpec, GROUP, is_label_value};
use crate::plans::{Asked, REASON, Refusal, Slot};
use crate::telemetry::{PlanCall, PlanMetrics, PlanOutcome};

/// The largest body, in bytes.
pub(super) const MAX_BODY: usize = 128 * 1024;

/// How long a request may take, its body included.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Bodies that are read and judged at the same time.
const CONCURRENT: usize = 256;

/// What the calls need.
pub(super) struct Service {
    pub(super) known: Arc<Known>,
    pub(super) doorkeeper: Doorkeeper,
    pub(super) metrics: PlanMetrics,
    permits: Semaphore,
}

impl Service {
    pub(super) fn new(known: Arc<Known>, doorkeeper: Doorkeeper, metrics: PlanMetrics) -> Self {
        Self {
            known,
            doorkeeper,
            metrics,
            permits: Semaphore::new(CONCURRENT),
        }
    }
}

/// The calls.
pub(super) fn router(service: Service) -> Router {
    let plans = "/v1/boundaries/{boundary}/compute-plans";
    Router::new()
        .route(&format!("{plans}:check"), post(check))
        .route(plans, get(picker))
        .route("/openapi.json", get(document))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Arc::new(service))
}

type Answered = Result<Response, Problem>;

async fn check(
    State(service): State<Arc<Service>>,
    boundary: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let answer = Box::pin(service.check(boundary, request));
    service.answer(PlanCall::Check, answer).await
}

async fn picker(
    State(service): State<Arc<Service>>,
    boundary: Result<Path<String>, PathRejection>,
    query: Result<Query<OfType>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let answer = Box::pin(service.picker(boundary, query, &headers));
    service.answer(PlanCall::Plans, answer).await
}

async fn document(State(service): State<Arc<Service>>) -> Response {
    let answer = async { Ok(Json(openapi::document()).into_response()) };
    service.answer(PlanCall::Other, answer).await
}

async fn not_found(State(service): State<Arc<Service>>) -> Response {
    let text = "the calls are in /openapi.json";
    let answer = async { Err(Problem::new(PlanOutcome::NotFound, text)) };
    service.answer(PlanCall::Other, answer).await
}

async fn method_not_allowed(State(service): State<Arc<Service>>) -> Response {
    let text = "the calls and their methods are in /openapi.json";
    let answer = async { Err(Problem::new(PlanOutcome::MethodNotAllowed, text)) };
    service.answer(PlanCall::Other, answer).await
}

/// The parameters of the picker.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfType {
    #[serde(rename = "type")]
    resource_type: String,
}

impl Service {
    /// Gives an answer its time, and counts it.
    async fn answer(&self, call: PlanCall, answer: impl Future<Output = Answered>) -> Response {
        let started = Instant::now();
        let answered = tokio::time::timeout(REQUEST_TIME, answer).await;
        let answered = answered.unwrap_or_else(|_| {
            let text = format!("a request has {} seconds", REQUEST_TIME.as_secs());
            Err(Problem::new(PlanOutcome::RequestTimeout, text))
        });
        let (outcome, mut response) = match answered {
            Ok(response) => (PlanOutcome::Ok, response),
            Err(problem) => (problem.outcome, problem.into_response()),
        };
        if call != PlanCall::Other {
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        self.metrics.answered(call, outcome, started.elapsed());
        response
    }

    async fn check(
        &self,
        boundary: Result<Path<String>, PathRejection>,
        request: Request,
    ) -> Answered {
        let (boundary, known) = self.enter(boundary, request.headers()).await?;
        let check = self.question(request).await?;
        let (wanted, held) = (slots(check.wanted), slots(check.held));
        let asked = Asked {
            wanted: &wanted,
            held: &held,
        };
        if asked.keeps() {
            return Ok(allowed(Vec::new()));
        }
        let (policies, types) = match known {
            Ok(known) => known,
            Err(problem) => {
                let types = self.known.types();
                let last = types.catalog.get(&check.resource_type);
                // Whatever policies say, such a type is never refused.
                return match last {
                    Some(spec) if !spec.checked && problem.types_known => Ok(allowed(Vec::new())),
                    _ => Err(problem.problem),
                };
            }
        };
        let spec = spec(&types, &check.resource_type)?;
        if !spec.checked {
            return Ok(allowed(Vec::new()));
        }
        readable(&policies, &boundary)?;
        let of = |action| {
            let plans = &policies.plans;
            let restriction = plans.restriction(&boundary, action, &check.resource_type, spec)?;
            let refusals = restriction.refusals(asked);
            (!refusals.is_empty()).then_some((restriction.allowed, refusals))
        };
        if let Some((allowed, refusals)) = of(Action::Deny) {
            let detail = refusals.first().map(Refusal::message).unwrap_or_default();
            return Err(Problem {
                allowed_plans: Some(allowed),
                refusals: refusals.into_iter().map(refused).collect(),
                ..Problem::new(PlanOutcome::NotAllowed, detail)
            });
        }
        let warnings = of(Action::Warn).map(|(_, warnings)| warnings);
        let warnings = warnings.into_iter().flatten().map(refused);
        Ok(allowed(warnings.collect()))
    }

    async fn picker(
        &self,
        boundary: Result<Path<String>, PathRejection>,
        query: Result<Query<OfType>, QueryRejection>,
        headers: &HeaderMap,
    ) -> Answered {
        let (boundary, known) = self.enter(boundary, headers).await?;
        let Query(OfType { resource_type }) = query.map_err(|rejection| {
            let text = format!(
                "the query: {}; write it like ?type=valkey",
                rejection.body_text()
            );
            Problem::new(PlanOutcome::InvalidRequest, text)
        })?;
        let (policies, types) = known.map_err(|problem| problem.problem)?;
        let spec = spec(&types, &resource_type)?;
        readable(&policies, &boundary)?;
        let plans = &policies.plans;
        let restriction = plans.restriction(&boundary, Action::Deny, &resource_type, spec);
        let plan = |plan: &crate::api::ComputePlan| {
            let policies = restriction.as_ref().map(|r| r.refusing(&plan.name));
            let policies = policies.unwrap_or_default();
            Plan {
                name: plan.name.clone(),
                display_name: plan
                    .display_name
                    .clone()
                    .unwrap_or_else(|| plan.name.clone()),
                description: plan.description.clone(),
                allowed: policies.is_empty(),
                reason: (!policies.is_empty()).then(|| REASON.to_owned()),
                policies,
            }
        };
        let plans = Plans {
            boundary,
            display_name: spec
                .display_name
                .clone()
                .unwrap_or_else(|| resource_type.clone()),
            resource_type,
            checked: spec.checked,
            plans: spec.plans.iter().map(plan).collect(),
        };
        Ok(Json(plans).into_response())
    }

    /// The boundary, and what is known, where the caller may ask about it. Where the hub can't be
    /// asked who calls, nothing is known: what is answered then depends on no boundary.
    async fn enter(
        &self,
        boundary: Result<Path<String>, PathRejection>,
        headers: &HeaderMap,
    ) -> Result<(String, Result<(Arc<Policies>, Arc<Types>), NotKnown>), Problem> {
        let token = token(headers).ok_or_else(|| {
            let text = "send a Kubernetes token of the hub: Authorization: Bearer TOKEN";
            Problem::new(PlanOutcome::Unauthenticated, text)
        })?;
        let boundary = boundary.ok().map(|Path(boundary)| boundary);
        let boundary = boundary.filter(|boundary| is_label_value(boundary));
        let boundary = boundary.ok_or_else(|| {
            let text = "boundary: it must be 1 to 63 letters, digits, '-', '_' and '.', with a \
                        letter or digit at both ends";
            Problem::new(PlanOutcome::InvalidRequest, text)
        })?;
        let known = self.known.current();
        let access = self.doorkeeper.access(token, &boundary, known.is_ok());
        match access.await {
            // It is looked at again, since asking may have taken its time.
            Access::Granted => Ok((boundary, self.known.current().map_err(NotKnown::policies))),
            Access::Unauthenticated => {
                let text = "the hub does not know the token, or it is for another audience";
                Err(Problem::new(PlanOutcome::Unauthenticated, text))
            }
            Access::Forbidden(user) => {
                let text = format!(
                    "{user} may not get {RESOURCE}/{SUB_RESOURCE} {boundary} in {GROUP}: bind a \
                     ClusterRole with that to it"
                );
                Err(Problem::new(PlanOutcome::Forbidden, text))
            }
            Access::Unavailable => Ok((boundary, Err(NotKnown::caller(known.err())))),
        }
    }

    async fn question(&self, request: Request) -> Result<Check, Problem> {
        let json = request.headers().get(CONTENT_TYPE);
        let json = json.and_then(|value| value.to_str().ok());
        let json = json.and_then(|value| value.split(';').next());
        if !json.is_some_and(|json| json.trim().eq_ignore_ascii_case("application/json")) {
            let text = "send JSON, with Content-Type: application/json";
            return Err(Problem::new(PlanOutcome::UnsupportedMediaType, text));
        }
        let waited = self.permits.acquire();
        let waited = tokio::time::timeout(REQUEST_TIME / 2, waited).await;
        let Ok(Ok(_permit)) = waited else {
            let text = "too many requests are being answered; try again";
            return Err(Problem::new(PlanOutcome::Overloaded, text));
        };
        let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| {
            if error.downcast_ref::<LengthLimitError>().is_some() {
                let text = format!("the body is larger than {MAX_BODY} bytes");
                return Problem::new(PlanOutcome::RequestTooLarge, text);
            }
            let text = "the body can't be read to its end";
            Problem::new(PlanOutcome::InvalidRequest, text)
        })?;
        let check: Check = serde_json::from_slice(&body.to_bytes()).map_err(|error| {
            Problem::new(PlanOutcome::InvalidRequest, format!("the body: {error}"))
        })?;
        for (field, parts) in [("wanted", &check.wanted), ("held", &check.held)] {
            if parts.len() > MAX_PARTS {
                let text = format!(
                    "{field}: it may have {MAX_PARTS} items, and has {}",
                    parts.len()
                );
                return Err(Problem::new(PlanOutcome::InvalidRequest, text));
            }
        }
        Ok(check)
    }
}

/// Why nothing is known that an answer needs.
struct NotKnown {
    problem: Problem,
    /// The types were read once.
    types_known: bool,
}

impl NotKnown {
    fn policies(unknown: Unknown) -> Self {
        let text = match unknown {
            Unknown::NotSynced => "the policies were not read from the hub yet".to_owned(),
            Unknown::Stale(since) => {
                format!("the hub was last heard {} seconds ago", since.as_secs())
            }
        };
        Self {
            problem: Problem::new(PlanOutcome::PolicyUnavailable, text),
            types_known: unknown != Unknown::NotSynced,
        }
    }

    fn caller(unknown: Option<Unknown>) -> Self {
        if let Some(unknown) = unknown {
            return Self::policies(unknown);
        }
        let text = "the hub gives no answer about the token";
        Self {
            problem: Problem::new(PlanOutcome::PolicyUnavailable, text),
            types_known: false,
        }
    }
}

/// The token that the caller sent.
fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn spec<'t>(types: &'t Types, name: &str) -> Result<&'t ComputeResourceTypeSpec, Problem> {
    types.catalog.get(name).ok_or_else(|| {
        if types.unusable.contains(name) {
            let text = format!("ComputeResourceType {name} can't be used as it is on the hub");
            return Problem::new(PlanOutcome::PolicyUnavailable, text);
        }
        let names: Vec<_> = types.catalog.iter().map(|(name, _)| name).collect();
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        let text =
            format!("type: there is no ComputeResourceType of that name; there are: {names}");
        Problem::new(PlanOutcome::UnknownType, text)
    })
}

fn readable(policies: &Policies, boundary: &str) -> Result<(), Problem> {
    let Some(names) = policies.unreadable.get(boundary) else {
        return Ok(());
    };
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let text = format!("policies can't be read: {}", names.join(", "));
    Err(Problem::new(PlanOutcome::PolicyUnavailable, text))
}

fn slots(parts: Vec<Part>) -> Vec<Slot> {
    let slot = |part: Part| Slot {
        key: part.component,
        plan: part.plan.filter(|plan| !plan.is_empty()),
    };
    parts.into_iter().map(slot).collect()
}

fn refused(refusal: Refusal) -> Refused {
    Refused {
        message: refusal.message(),
        component: refusal.key,
        plan: refusal.plan,
        policies: refusal.policies,
    }
}

fn allowed(warnings: Vec<Refused>) -> Response {
    let allowed = Allowed {
        allowed: true,
        warnings,
    };
    Json(allowed).into_response()
}
