//! What Pods are changed to, by evaluating exactly the CEL that is emitted and applying the patches
//! that it gives.

use std::sync::Arc;

use ::cel::{Context, Env, Program};
use json_patch::Patch;
use k8s_openapi::api::admissionregistration::v1::{MatchResources, MutatingAdmissionPolicySpec};
use kube::core::Selector;
use serde_json::Value;

use super::defaults::{default_pod, default_pod_level};
use super::{ObjectRequest, Request, Unsupported, add_variables, cel, matches};
use crate::compile::MutationObject;

/// Objects, ready to change Pods.
pub struct Mutator {
    env: Arc<Env>,
    objects: Vec<Prepared>,
}

/// A Pod as it is after the mutations.
#[derive(Clone, Debug, PartialEq)]
pub struct Mutated {
    /// The Pod before, with the defaults of the API server that rules look at.
    pub before: Value,
    /// The Pod after.
    pub after: Value,
}

impl Mutated {
    /// What changes the one into the other.
    #[must_use]
    pub fn patch(&self) -> Patch {
        json_patch::diff(&self.before, &self.after)
    }
}

/// An object with its expressions parsed.
struct Prepared {
    name: String,
    constraints: MatchResources,
    namespaces: Selector,
    variables: Vec<(String, Program)>,
    mutations: Vec<Program>,
}

impl Mutator {
    /// Makes `objects` ready.
    ///
    /// # Errors
    /// One of them has an expression that can't be parsed, or something that is never emitted.
    pub fn new(objects: &[MutationObject]) -> Result<Self, Unsupported> {
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

    /// What the object of `request` is changed to. None: no object looks at it.
    ///
    /// # Errors
    /// An object has an expression that can't be evaluated, or gives a patch that can't be applied.
    pub fn mutate(&self, request: &Request<'_>) -> Result<Option<Mutated>, Unsupported> {
        self.mutate_object(&request.into())
    }

    /// The same for an object of any kind.
    ///
    /// # Errors
    /// An object has an expression that can't be evaluated, or gives a patch that can't be applied.
    pub fn mutate_object(
        &self,
        request: &ObjectRequest<'_>,
    ) -> Result<Option<Mutated>, Unsupported> {
        let mut objects = self
            .objects
            .iter()
            .filter(|o| o.matches(request))
            .peekable();
        if objects.peek().is_none() {
            return Ok(None);
        }
        let mut before = request.object.clone();
        default_pod(&mut before);
        let mut after = before.clone();
        for object in objects {
            object.mutate(request, &mut after, &self.env)?;
        }
        default_pod_level(&mut before);
        default_pod_level(&mut after);
        Ok(Some(Mutated { before, after }))
    }
}

impl Prepared {
    fn new(object: &MutationObject, env: &Env) -> Result<Self, Unsupported> {
        let MutatingAdmissionPolicySpec {
            match_constraints,
            match_conditions,
            mutations,
            variables,
            ..
        } = object.policy.spec.clone().unwrap_or_default();
        let unsupported = |what: &str, cause: String| Unsupported {
            object: object.name.clone(),
            what: what.to_owned(),
            cause,
        };
        if match_conditions.is_some_and(|conditions| !conditions.is_empty()) {
            return Err(unsupported(
                "matchConditions",
                "they are not known here".to_owned(),
            ));
        }
        let parse = |what: &str, expression: &str| {
            env.compile(expression)
                .map_err(|cause| unsupported(what, cause.to_string()))
        };
        let constraints = match_constraints.unwrap_or_default();
        let namespaces = constraints.namespace_selector.clone().unwrap_or_default();
        let namespaces = Selector::try_from(namespaces)
            .map_err(|cause| unsupported("namespaceSelector", cause.to_string()))?;
        Ok(Self {
            name: object.name.clone(),
            constraints,
            namespaces,
            variables: (variables.unwrap_or_default().into_iter())
                .map(|v| {
                    Ok((
                        v.name.clone(),
                        parse(&format!("variable {}", v.name), &v.expression)?,
                    ))
                })
                .collect::<Result<_, _>>()?,
            mutations: (mutations.unwrap_or_default().iter().enumerate())
                .map(|(index, mutation)| {
                    let patch = mutation
                        .json_patch
                        .as_ref()
                        .and_then(|p| p.expression.as_deref());
                    let what = format!("mutation {index}");
                    match patch {
                        Some(expression) => parse(&what, expression),
                        None => Err(unsupported(&what, "it is no JSON Patch".to_owned())),
                    }
                })
                .collect::<Result<_, _>>()?,
        })
    }

    fn matches(&self, request: &ObjectRequest<'_>) -> bool {
        matches(&self.constraints, &self.namespaces, request)
    }

    /// Applies the mutations one after the other; each sees what the one before did.
    fn mutate(
        &self,
        request: &ObjectRequest<'_>,
        object: &mut Value,
        env: &Arc<Env>,
    ) -> Result<(), Unsupported> {
        for (index, mutation) in self.mutations.iter().enumerate() {
            let unsupported = |what: &str, cause: String| Unsupported {
                object: self.name.clone(),
                what: what.to_owned(),
                cause,
            };
            let what = format!("mutation {index}");
            let mut context = Context::with_env(Arc::clone(env));
            cel::add_functions(&mut context)
                .map_err(|cause| unsupported("the environment", cause.to_string()))?;
            for (name, value) in cel::bindings_to_change(request, object) {
                context.add_variable_from_value(name, value);
            }
            add_variables(&mut context, &self.variables)
                .map_err(|(name, cause)| unsupported(&format!("variable {name}"), cause))?;
            let patch = mutation
                .execute(&context)
                .map_err(|cause| unsupported(&what, cause.to_string()))?;
            let patch = cel::json(&patch)
                .and_then(|patch| serde_json::from_value::<Patch>(patch).ok())
                .ok_or_else(|| unsupported(&what, "it gives no JSON Patch".to_owned()))?;
            json_patch::patch(object, &patch).map_err(|cause| {
                unsupported(&what, format!("its patch can't be applied: {cause}"))
            })?;
            default_pod(object);
        }
        Ok(())
    }
}
