//! Judges objects offline, by evaluating exactly the CEL that is emitted.
//!
//! What can't be evaluated here is [`Unsupported`], never passed.

mod cel;
mod defaults;
mod mutate;
mod request;

pub use mutate::{Mutated, Mutator};
pub use request::{Kind, ObjectRequest, Operation, Request};

use std::sync::Arc;

use ::cel::{Context, Env, Program, Value};
use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, ValidatingAdmissionPolicySpec, Validation,
};
use kube::core::{Selector, SelectorExt as _};

use crate::api::Action;
use crate::compile::AdmissionObject;

/// The longest message of a denial that the API server shows, in bytes. Source: KEP-3488.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// What can't be evaluated offline, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {what} can't be evaluated: {cause}")]
pub struct Unsupported {
    /// The name of the `ValidatingAdmissionPolicy`.
    pub object: String,
    /// The part of it, for example `variable images`.
    pub what: String,
    /// What the evaluation said.
    pub cause: String,
}

/// What one `ValidatingAdmissionPolicy` says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its name.
    pub object: String,
    /// What it does with what breaks it.
    pub action: Action,
    /// Its message.
    pub message: String,
}

/// Objects, ready to judge requests.
pub struct Evaluator {
    env: Arc<Env>,
    objects: Vec<Prepared>,
}

/// An object with its expressions parsed.
#[derive(Debug)]
struct Prepared {
    name: String,
    action: Action,
    constraints: MatchResources,
    namespaces: Selector,
    conditions: Vec<(String, Program)>,
    variables: Vec<(String, Program)>,
    validations: Vec<PreparedValidation>,
}

#[derive(Debug)]
struct PreparedValidation {
    expression: Program,
    message_expression: Option<Program>,
    message: String,
}

impl Evaluator {
    /// Makes `objects` ready.
    ///
    /// # Errors
    /// One of them has an expression that can't be parsed.
    pub fn new(objects: &[AdmissionObject]) -> Result<Self, Unsupported> {
        let env = Arc::new(cel::environment().map_err(|cause| Unsupported {
            object: "CEL".to_owned(),
            what: "the environment".to_owned(),
            cause: cause.to_string(),
        })?);
        let objects = objects
            .iter()
            .map(|object| Prepared::new(object, &env))
            .collect::<Result<_, _>>()?;
        Ok(Self { env, objects })
    }

    /// Whether any object looks at the kind of `request` at all.
    #[must_use]
    pub fn checks(&self, request: &Request<'_>) -> bool {
        let request = request.into();
        self.objects.iter().any(|object| object.matches(&request))
    }

    /// What each object says of `request`; one that finds nothing says nothing.
    ///
    /// # Errors
    /// An object has an expression that can't be evaluated.
    pub fn judge(&self, request: &Request<'_>) -> Result<Vec<Finding>, Unsupported> {
        self.judge_object(&request.into())
    }

    /// The same for an object of any kind.
    ///
    /// # Errors
    /// An object has an expression that can't be evaluated.
    pub fn judge_object(&self, request: &ObjectRequest<'_>) -> Result<Vec<Finding>, Unsupported> {
        let mut findings = Vec::new();
        for object in self.objects.iter().filter(|object| object.matches(request)) {
            findings.extend(object.judge(request, &self.env)?);
        }
        Ok(findings)
    }
}

impl Prepared {
    fn new(object: &AdmissionObject, env: &Env) -> Result<Self, Unsupported> {
        let spec = object.policy.spec.clone().unwrap_or_default();
        let ValidatingAdmissionPolicySpec {
            match_conditions,
            match_constraints,
            validations,
            variables,
            ..
        } = spec;
        let parse = |what: String, expression: &str| {
            env.compile(expression).map_err(|cause| Unsupported {
                object: object.name.clone(),
                what,
                cause: cause.to_string(),
            })
        };
        let constraints = match_constraints.unwrap_or_default();
        let namespaces = constraints.namespace_selector.clone().unwrap_or_default();
        let namespaces = Selector::try_from(namespaces).map_err(|cause| Unsupported {
            object: object.name.clone(),
            what: "namespaceSelector".to_owned(),
            cause: cause.to_string(),
        })?;
        Ok(Self {
            name: object.name.clone(),
            action: object.action,
            constraints,
            namespaces,
            conditions: (match_conditions.unwrap_or_default().into_iter())
                .map(|c| {
                    Ok((
                        c.name.clone(),
                        parse(format!("condition {}", c.name), &c.expression)?,
                    ))
                })
                .collect::<Result<_, _>>()?,
            variables: (variables.unwrap_or_default().into_iter())
                .map(|v| {
                    Ok((
                        v.name.clone(),
                        parse(format!("variable {}", v.name), &v.expression)?,
                    ))
                })
                .collect::<Result<_, _>>()?,
            validations: (validations.unwrap_or_default().into_iter())
                .map(|v| PreparedValidation::new(v, &parse))
                .collect::<Result<_, _>>()?,
        })
    }

    fn matches(&self, request: &ObjectRequest<'_>) -> bool {
        matches(&self.constraints, &self.namespaces, request)
    }

    fn judge(
        &self,
        request: &ObjectRequest<'_>,
        env: &Arc<Env>,
    ) -> Result<Option<Finding>, Unsupported> {
        let unsupported = |what: &str, cause: String| Unsupported {
            object: self.name.clone(),
            what: what.to_owned(),
            cause,
        };
        let mut context = Context::with_env(Arc::clone(env));
        cel::add_functions(&mut context)
            .map_err(|cause| unsupported("the environment", cause.to_string()))?;
        for (name, value) in cel::bindings(request) {
            context.add_variable_from_value(name, value);
        }
        for (name, condition) in &self.conditions {
            match condition.execute(&context) {
                Ok(Value::Bool(true)) => {}
                Ok(Value::Bool(false)) => return Ok(None),
                Ok(other) => return Err(unsupported(name, format!("it gives {other:?}"))),
                Err(cause) => return Err(unsupported(name, cause.to_string())),
            }
        }
        add_variables(&mut context, &self.variables)
            .map_err(|(name, cause)| unsupported(&format!("variable {name}"), cause))?;
        for validation in &self.validations {
            match validation.expression.execute(&context) {
                Ok(Value::Bool(true)) => {}
                Ok(Value::Bool(false)) => {
                    return Ok(Some(Finding {
                        object: self.name.clone(),
                        action: self.action,
                        message: validation.message(&context),
                    }));
                }
                Ok(other) => return Err(unsupported("validation", format!("it gives {other:?}"))),
                Err(cause) => return Err(unsupported("validation", cause.to_string())),
            }
        }
        Ok(None)
    }
}

/// Whether a policy with these constraints looks at `request`.
fn matches(
    constraints: &MatchResources,
    namespaces: &Selector,
    request: &ObjectRequest<'_>,
) -> bool {
    let mut rules = constraints.resource_rules.iter().flatten();
    let has = |list: &Option<Vec<String>>, item: &str| list.iter().flatten().any(|i| i == item);
    let resource = request.rule_resource();
    namespaces.matches(request.namespace_labels)
        && rules.any(|rule| {
            has(&rule.api_groups, request.group)
                && (has(&rule.api_versions, request.version) || has(&rule.api_versions, "*"))
                && has(&rule.operations, request.operation.as_str())
                && has(&rule.resources, &resource)
        })
}

/// Evaluates variables, each of which reads those before it. What fails is named, with the cause.
fn add_variables(
    context: &mut Context<'_, '_>,
    programs: &[(String, Program)],
) -> Result<(), (String, String)> {
    let mut variables = cel::Variables::default();
    for (name, program) in programs {
        context.add_variable_from_value("variables", variables.as_value());
        let value = program
            .execute(context)
            .map_err(|cause| (name.clone(), cause.to_string()))?;
        variables.insert(name, value);
    }
    context.add_variable_from_value("variables", variables.as_value());
    Ok(())
}

impl PreparedValidation {
    fn new(
        validation: Validation,
        parse: &impl Fn(String, &str) -> Result<Program, Unsupported>,
    ) -> Result<Self, Unsupported> {
        Ok(Self {
            expression: parse("validation".to_owned(), &validation.expression)?,
            message_expression: validation
                .message_expression
                .map(|expression| parse("messageExpression".to_owned(), &expression))
                .transpose()?,
            message: validation.message.unwrap_or_default(),
        })
    }

    /// The message, as the API server chooses it.
    fn message(&self, context: &Context<'_, '_>) -> String {
        let message = self.message_expression.as_ref().map(|e| e.execute(context));
        match message {
            Some(Ok(Value::String(message)))
                if !message.trim().is_empty()
                    && !message.contains('\n')
                    && message.len() <= MAX_MESSAGE_BYTES =>
            {
                message.trim().to_owned()
            }
            _ => self.message.clone(),
        }
    }
}
