//! The description of the API for programs, made from the types that are sent and read.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};

use super::answer::{Allowed, Check, PROBLEM_JSON, Plans, Problem};
use super::routes::MAX_BODY;
use crate::telemetry::PlanOutcome;

/// The document, in version 3.0 of `OpenAPI`.
#[must_use]
pub fn document() -> Value {
    let settings = SchemaSettings::openapi3();
    let mut generator = settings.into_generator();
    let check = of::<Check>(&mut generator);
    let allowed = of::<Allowed>(&mut generator);
    let plans = of::<Plans>(&mut generator);
    let problem = of::<Problem>(&mut generator);
    let schemas = generator.take_definitions(true);
    let boundary = json!({
        "name": "boundary", "in": "path", "required": true,
        "description": "The name of the boundary.",
        "schema": {
            "type": "string", "maxLength": 63,
            "pattern": "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        },
    });
    let answers = |text: &str, schema: &Value, outcomes: &[PlanOutcome]| {
        let mut answers = json!({"200": {
            "description": text,
            "content": {"application/json": {"schema": schema}},
        }});
        for outcome in outcomes {
            let status = outcome.status().to_string();
            let code = format!("`{}`", outcome.as_str());
            let text = match answers[&status]["description"].as_str() {
                Some(codes) => format!("{codes}, {code}"),
                None => code,
            };
            answers[&status] = json!({
                "description": text,
                "content": {PROBLEM_JSON: {"schema": problem}},
            });
            if status == "503" {
                answers[&status]["headers"] = json!({"Retry-After": {
                    "description": "After how many seconds to ask again.",
                    "schema": {"type": "integer"},
                }});
            }
        }
        answers
    };
    let both = [
        PlanOutcome::InvalidRequest,
        PlanOutcome::Unauthenticated,
        PlanOutcome::Forbidden,
        PlanOutcome::UnknownType,
        PlanOutcome::RequestTimeout,
        PlanOutcome::PolicyUnavailable,
    ];
    let mut checked = both.to_vec();
    checked.extend([
        PlanOutcome::Overloaded,
        PlanOutcome::NotAllowed,
        PlanOutcome::RequestTooLarge,
        PlanOutcome::UnsupportedMediaType,
    ]);
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Compute plans",
            "version": "v1",
            "description": "Which compute plans a boundary may use.",
            "license": {"name": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": {
            "/v1/boundaries/{boundary}/compute-plans:check": {"post": {
                "operationId": "checkComputePlans",
                "summary": "Whether a resource may have the plans that it is to have.",
                "parameters": [boundary],
                "requestBody": {
                    "required": true,
                    "description": format!("At most {MAX_BODY} bytes."),
                    "content": {"application/json": {"schema": check}},
                },
                "responses": answers("The plans may be had.", &allowed, &checked),
            }},
            "/v1/boundaries/{boundary}/compute-plans": {"get": {
                "operationId": "listComputePlans",
                "summary": "Every plan of a type, and whether it may be had.",
                "parameters": [boundary, {
                    "name": "type", "in": "query", "required": true,
                    "description": "The name of the ComputeResourceType.",
                    "schema": {"type": "string"},
                }],
                "responses": answers("The plans, in the order in which they are shown.", &plans, &both),
            }},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {
                "type": "http", "scheme": "bearer",
                "description": "A token of the hub cluster, such as of a service account.",
            }},
        },
    })
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}
