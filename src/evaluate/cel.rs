//! The CEL of the API server, as far as the emitter uses it, on top of the `cel` crate.

use std::collections::HashMap;
use std::sync::Arc;

use cel::extensions;
use cel::extractors::This;
use cel::objects::{Key, Map};
use cel::{Context, Env, ExecutionError, Value};
use serde_json::json;

use super::request::{ObjectRequest, defaulted};

/// The standard library, optionals, and the libraries of Kubernetes 1.30 that the emitter uses.
pub(super) fn environment() -> Result<Env, cel::DeclarationError> {
    let mut env = Env::stdlib().with_optional_support(true);
    env.add_extension(extensions::strings)?;
    Ok(env)
}

/// Adds `sum` of whole numbers, from the list library of Kubernetes.
pub(super) fn add_functions(context: &mut Context<'_, '_>) -> Result<(), cel::DeclarationError> {
    context.add_function("sum", |This(list): This<Arc<Vec<Value>>>| {
        list.iter().try_fold(0_i64, |sum, item| match item {
            Value::Int(int) => sum
                .checked_add(*int)
                .ok_or_else(|| ExecutionError::function_error("sum", "overflow")),
            other => Err(ExecutionError::function_error(
                "sum",
                format!("{other:?} is no int"),
            )),
        })
    })
}

/// What an expression can read.
pub(super) fn bindings(request: &ObjectRequest<'_>) -> [(&'static str, Value); 4] {
    let namespace = json!({
        "metadata": {"name": request.namespace, "labels": request.namespace_labels},
    });
    let user = json!({"username": request.user, "groups": request.groups});
    let asked = json!({
        "operation": request.operation.as_str(),
        "namespace": request.namespace,
        "name": request.object.pointer("/metadata/name"),
        "subResource": request.sub_resource,
        "resource": {
            "group": request.group,
            "version": request.version,
            "resource": request.resource,
        },
        "userInfo": user,
    });
    let judged = |object| value(&defaulted(request, object));
    [
        ("object", judged(request.object)),
        ("oldObject", request.old_object.map_or(Value::Null, judged)),
        ("namespaceObject", value(&namespace)),
        ("request", value(&asked)),
    ]
}

/// JSON as the API server shows it to CEL: whole numbers are `int`, and a field that is `null` is
/// not there.
fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::List(Arc::new(items.iter().map(value).collect())),
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, field)| !field.is_null());
            let map: HashMap<Key, Value> = fields
                .map(|(key, field)| (Key::String(Arc::new(key.clone())), value(field)))
                .collect();
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}

/// The variables of a policy, as far as they are evaluated.
#[derive(Default)]
pub(super) struct Variables {
    values: HashMap<Key, Value>,
}

impl Variables {
    pub(super) fn insert(&mut self, name: &str, value: Value) {
        self.values
            .insert(Key::String(Arc::new(name.to_owned())), value);
    }

    pub(super) fn as_value(&self) -> Value {
        Value::Map(Map {
            map: Arc::new(self.values.clone()),
        })
    }
}
