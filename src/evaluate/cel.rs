//! The CEL of the API server, as far as the emitter uses it, on top of the `cel` crate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators,
};
use cel::common::types::{CelMap, Type};
use cel::common::value::{CowVal, Val};
use cel::extractors::This;
use cel::objects::{Key, Map, Opaque};
use cel::parser::{Macro, MacroExprHelper};
use cel::{Context, Env, ExecutionError, ParseError, StructType, Value, extensions};

use super::request::{ObjectRequest, defaulted};
use crate::rules::Quantity;

/// The standard library, optionals, and the libraries of Kubernetes 1.30 that the emitter uses.
pub(super) fn environment() -> Result<Env, cel::DeclarationError> {
    let mut env = Env::stdlib().with_optional_support(true);
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    env.add_macro(Macro::receiver("transformList", 4, transform_list))?;
    let patch = JsonPatch(Type::new_struct("JSONPatch".to_owned()));
    env.add_type(patch)?;
    Ok(env)
}

/// Writes `list.transformList(index, item, condition, value)` as comprehensions over the indexes and,
/// for each, over the one item that has it.
fn transform_list(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    const RESULT: &str = "@transformed";
    const OF_ITEM: &str = "@transformedItem";
    let (Some(list), [index, item, condition, value]) = (target.take(), args.as_mut_slice()) else {
        return Ok(None);
    };
    let [Expr::Ident(index_name), Expr::Ident(item_name)] = [&index.expr, &item.expr] else {
        return Err(helper.new_error(index.id, "the first two arguments must be simple names"));
    };
    let (index_name, item_name) = (index_name.clone(), item_name.clone());
    let (condition, value) = (std::mem::take(condition), std::mem::take(value));
    let call = |helper: &mut MacroExprHelper<'_>, name: &str, args: Vec<IdedExpr>| {
        helper.next_expr(Expr::Call(CallExpr {
            func_name: name.to_owned(),
            target: None,
            args,
        }))
    };
    let ident = |helper: &mut MacroExprHelper<'_>, name: &str| {
        helper.next_expr(Expr::Ident(name.to_owned()))
    };
    let list_of = |helper: &mut MacroExprHelper<'_>, items: Vec<IdedExpr>| {
        helper.next_expr(Expr::List(ListExpr::new(items)))
    };
    let always = |helper: &mut MacroExprHelper<'_>| {
        helper.next_expr(Expr::Literal(LiteralValue::Boolean(true.into())))
    };

    let values = list_of(helper, vec![value]);
    let so_far = ident(helper, OF_ITEM);
    let longer = call(helper, operators::ADD, vec![so_far, values]);
    let so_far = ident(helper, OF_ITEM);
    let step = call(
        helper,
        operators::CONDITIONAL,
        vec![condition, longer, so_far],
    );
    let position = ident(helper, &index_name);
    let at = call(helper, operators::INDEX, vec![list.clone(), position]);
    let of_item = ComprehensionExpr {
        iter_range: list_of(helper, vec![at]),
        iter_var: item_name,
        iter_var2: None,
        accu_var: OF_ITEM.to_owned(),
        accu_init: ident(helper, RESULT),
        loop_cond: always(helper),
        loop_step: step,
        result: ident(helper, OF_ITEM),
    };
    let size = call(helper, "size", vec![list]);
    let lists = ident(helper, "lists");
    let indexes = helper.next_expr(Expr::Call(CallExpr {
        func_name: "range".to_owned(),
        target: Some(Box::new(lists)),
        args: vec![size],
    }));
    let of_all = ComprehensionExpr {
        iter_range: indexes,
        iter_var: index_name,
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init: list_of(helper, Vec::new()),
        loop_cond: always(helper),
        loop_step: helper.next_expr(Expr::Comprehension(Box::new(of_item))),
        result: ident(helper, RESULT),
    };
    Ok(Some(
        helper.next_expr(Expr::Comprehension(Box::new(of_all))),
    ))
}

/// The type `JSONPatch`. Its values are maps, in which `value` can be anything.
struct JsonPatch(Type);

impl StructType for JsonPatch {
    fn get_type(&self) -> &Type {
        &self.0
    }

    fn new_value<'b, 'v>(
        &self,
        fields: BTreeMap<String, CowVal<'b, 'v>>,
    ) -> Result<Box<dyn Val + 'v>, ExecutionError> {
        let known = ["op", "path", "from", "value"];
        if let Some(field) = fields.keys().find(|field| !known.contains(&field.as_str())) {
            return Err(ExecutionError::function_error(
                "JSONPatch",
                format!("it has no field {field}"),
            ));
        }
        let fields: HashMap<_, _> = fields
            .into_iter()
            .map(|(name, value)| (name.into(), value.into_owned()))
            .collect();
        Ok(Box::new(CelMap::from(fields)))
    }
}

impl Opaque for Quantity {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }
}

/// Adds quantities, and `sum` of whole numbers from the list library of Kubernetes.
pub(super) fn add_functions(context: &mut Context<'_, '_>) -> Result<(), cel::DeclarationError> {
    let compare = |one: &Arc<dyn Opaque>, other: &Arc<dyn Opaque>| {
        let both = [one, other].map(|opaque| opaque.downcast_ref::<Quantity>());
        match both {
            [Some(one), Some(other)] => Ok(one.cmp(other)),
            _ => Err(ExecutionError::function_error(
                "compare",
                "one is no quantity",
            )),
        }
    };
    context.add_function("quantity", |text: Arc<String>| {
        let quantity: Quantity = text.parse().map_err(|error| {
            ExecutionError::function_error("quantity", format!("{text:?} {error}"))
        })?;
        Ok::<Arc<dyn Opaque>, ExecutionError>(Arc::new(quantity))
    })?;
    context.add_function(
        "isGreaterThan",
        move |This(one): This<Arc<dyn Opaque>>, other: Arc<dyn Opaque>| {
            compare(&one, &other).map(std::cmp::Ordering::is_gt)
        },
    )?;
    context.add_function(
        "compareTo",
        move |This(one): This<Arc<dyn Opaque>>, other: Arc<dyn Opaque>| {
            compare(&one, &other).map(|ordering| ordering as i64)
        },
    )?;
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

/// What an expression that judges can read.
pub(super) fn bindings(request: &ObjectRequest<'_>) -> [(&'static str, Value); 4] {
    let judged = |object| value(&defaulted(request, object));
    let object = judged(request.object);
    let old_object = request.old_object.map_or(Value::Null, judged);
    bindings_of(request, object, old_object)
}

/// What an expression that changes `object` can read.
pub(super) fn bindings_to_change(
    request: &ObjectRequest<'_>,
    object: &serde_json::Value,
) -> [(&'static str, Value); 4] {
    bindings_of(request, value(object), Value::Null)
}

fn bindings_of(
    request: &ObjectRequest<'_>,
    object: Value,
    old_object: Value,
) -> [(&'static str, Value); 4] {
    let namespace = serde_json::json!({
        "metadata": {"name": request.namespace, "labels": request.namespace_labels},
    });
    let user = serde_json::json!({"username": request.user, "groups": request.groups});
    let asked = serde_json::json!({
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
    [
        ("object", object),
        ("oldObject", old_object),
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

/// What CEL gave, as JSON. None: it has no form in JSON.
pub(super) fn json(value: &Value) -> Option<serde_json::Value> {
    Some(match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(b) => (*b).into(),
        Value::Int(int) => (*int).into(),
        Value::UInt(int) => (*int).into(),
        Value::Float(float) => serde_json::Number::from_f64(*float)?.into(),
        Value::String(text) => text.as_str().into(),
        Value::List(items) => items.iter().map(json).collect::<Option<Vec<_>>>()?.into(),
        Value::Map(map) => {
            let mut fields = serde_json::Map::new();
            for (key, value) in map.map.iter() {
                let Key::String(key) = key else { return None };
                fields.insert(key.to_string(), json(value)?);
            }
            fields.into()
        }
        _ => return None,
    })
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
