//! Compares a document with a schema field by field: what the API server would drop or refuse.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::input::{Diagnostics, Document};
use crate::api::crds;
use crate::api::patterns::is_time;

/// The schema of a type, with no references in it.
pub(super) fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().into()
}

/// The schema of a resource of ours.
pub(super) fn resource(kind: &str) -> Value {
    let crds = crds();
    let schema = (crds.iter().find(|crd| crd.spec.names.kind == kind))
        .and_then(|crd| crd.spec.versions.first()?.schema.as_ref())
        .and_then(|schema| serde_json::to_value(&schema.open_api_v3_schema).ok());
    let mut schema = schema.unwrap_or_default();
    let text = serde_json::json!({"type": "string"});
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert("apiVersion".to_owned(), text.clone());
        properties.insert("kind".to_owned(), text);
        properties.insert("metadata".to_owned(), of::<ObjectMeta>());
        // What it holds is the operator's, and is not read.
        properties.insert("status".to_owned(), serde_json::json!({}));
    }
    schema
}

/// Adds to `problems` what in `document` does not fit `schema`: fields that don't exist, fields
/// that are missing, and values of another type.
pub(super) fn check(document: &Document, schema: &Value, problems: &mut Diagnostics) {
    compare("", &document.value, schema, &mut |path, message| {
        problems.field(document, path, message);
    });
}

fn compare(path: &str, value: &Value, schema: &Value, report: &mut dyn FnMut(&str, &str)) {
    let types = match schema.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = types.contains(&found)
        || (found == "integer" && types.contains(&"number"))
        || (found == "null" && schema.get("nullable") == Some(&Value::Bool(true)));
    if !fits {
        let types: Vec<_> = types.into_iter().filter(|t| *t != "null").collect();
        let quote = if types == ["string"] {
            "; quote it"
        } else {
            ""
        };
        let quote = if value.is_number() || value.is_boolean() {
            quote
        } else {
            ""
        };
        return report(
            path,
            &format!("must be {}, is {found}{quote}", types.join(" or ")),
        );
    }
    match value {
        Value::Object(fields) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let additional = schema.get("additionalProperties");
            for required in schema
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let required = required.as_str().unwrap_or_default();
                if fields.get(required).is_none_or(Value::is_null) {
                    report(path, &format!("{required} is missing"));
                }
            }
            for (key, field) in fields {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match (properties.and_then(|all| all.get(key)), additional) {
                    // The API server takes a field that is null for one that is not there.
                    (Some(_), _) if field.is_null() => {}
                    (Some(schema), _) => compare(&path, field, schema, report),
                    (None, Some(schema)) if schema.is_object() => {
                        compare(&path, field, schema, report);
                    }
                    (None, Some(Value::Bool(true))) => {}
                    (None, _) => {
                        let known = properties.into_iter().flat_map(|all| all.keys());
                        report(&path, &unknown(known.map(String::as_str)));
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    compare(&format!("{path}[{index}]"), item, schema, report);
                }
            }
        }
        Value::String(text) => {
            let allowed = schema.get("enum").and_then(Value::as_array);
            if allowed.is_some_and(|allowed| !allowed.contains(value)) {
                let allowed = allowed.into_iter().flatten().filter_map(Value::as_str);
                let allowed: Vec<_> = allowed.collect();
                let shown: String = text.chars().take(100).collect();
                report(
                    path,
                    &format!("{shown:?} must be one of {}", allowed.join(", ")),
                );
            }
            if schema.get("format").and_then(Value::as_str) == Some("date-time") && !is_time(text) {
                let example = "2027-01-31T00:00:00Z";
                report(path, &format!("is not a time like {example}"));
            }
        }
        _ => {}
    }
}

fn unknown<'k>(known: impl Iterator<Item = &'k str>) -> String {
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        "there is no such field; none can be set here".to_owned()
    } else {
        format!("there is no such field; known are {}", known.join(", "))
    }
}
