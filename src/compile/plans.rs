//! Compute plans at admission: objects that check the plans of the kinds which are targets of a
//! `ComputeResourceType`.
//!
//! What a boundary may use of a type is worked out here, so the CEL holds only the result, and the
//! places where objects of that kind have their plans. Whatever shape an object has, the CEL comes to
//! a verdict: where a path does not lead to a field, there is no plan.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation, Variable,
};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use super::emit::{
    asks_another, matching, namespace_selector, revision, revision_validation, shortening,
};
use super::untyped::untype;
use super::{
    AdmissionObject, MANAGED_BY, Options, POLICIES_ANNOTATION, PROBE_NAMESPACE, cel, object_name,
};
use crate::api::{Action, BOUNDARY_LABEL, BoundaryPolicy, PlanField, PlanTarget};
use crate::plans::{BoundaryPlans, REASON, Restriction};

/// How the names of these objects end, so that a client can tell a refusal by its compute plan.
pub const COMPUTE_PLANS: &str = ".compute-plans";

/// What of a type stands in one table, in bytes: far below the 100,000 characters that the API server
/// takes in an expression.
const MAX_TABLE: usize = 50_000;

/// All of an object, in bytes, and not many less.
const MAX_BYTES: usize = 400_000;

/// Kinds in one object. They are told apart one after the other.
const MAX_KINDS: usize = 50;

/// What stands for a plan that is no string. No plan has that name.
const NOT_A_STRING: &str = "<not a string>";

/// A type of which policies say something, with the kinds that are of it.
#[derive(Clone)]
struct Checked<'c> {
    name: &'c str,
    targets: &'c [PlanTarget],
    restriction: Restriction,
}

/// Emits the objects for `policies`, whose cluster scope does not count.
pub(super) fn emit(policies: &[&BoundaryPolicy], options: &Options) -> Vec<AdmissionObject> {
    let plans = BoundaryPlans::of(policies.iter().copied());
    let generations: BTreeMap<String, i64> = policies
        .iter()
        .map(|policy| {
            (
                policy.name_any(),
                policy.metadata.generation.unwrap_or_default(),
            )
        })
        .collect();
    let mut objects = Vec::new();
    for boundary in plans.boundaries() {
        for action in Action::ALL {
            let types = options.catalog.iter();
            let types = types.filter(|(_, spec)| spec.checked && !spec.targets.is_empty());
            let checked: Vec<_> = types
                .filter_map(|(name, spec)| {
                    let restriction = plans.restriction(boundary, action, name, spec)?;
                    let targets = &spec.targets;
                    Some(Checked {
                        name,
                        targets,
                        restriction,
                    })
                })
                .collect();
            for (index, part) in split(checked).into_iter().enumerate() {
                let name = object_name(boundary, action, index + 1) + COMPUTE_PLANS;
                objects.push(object(name, boundary, action, &part, &generations, options));
            }
        }
    }
    objects
}

/// Spreads types over as few objects as hold them.
fn split(types: Vec<Checked<'_>>) -> Vec<Vec<Checked<'_>>> {
    let mut parts: Vec<Vec<Checked<'_>>> = Vec::new();
    let mut load = Load::default();
    for checked in types {
        let with = load.with(&checked);
        match parts.last_mut() {
            Some(part) if with.fits() => {
                part.push(checked);
                load = with;
            }
            _ => {
                load = Load::default().with(&checked);
                parts.push(vec![checked]);
            }
        }
    }
    parts
}

/// What types weigh in an object.
#[derive(Clone, Copy, Default)]
struct Load {
    table: usize,
    bytes: usize,
    kinds: usize,
}

impl Load {
    fn with(self, checked: &Checked<'_>) -> Self {
        let allowed = &checked.restriction.allowed;
        let names: usize = allowed.iter().map(|plan| plan.len() + 4).sum();
        let (mut table, mut bytes) = (names + checked.name.len() + 8, 0);
        for target in checked.targets {
            table += kind_of(target).len() + 64 + target.plan_fields.len() * 24;
            let fields = target.plan_fields.iter();
            bytes += fields.map(|f| field(checked.name, f).len()).sum::<usize>() + 512;
        }
        Self {
            table: self.table + table,
            bytes: self.bytes + table + bytes,
            kinds: self.kinds + checked.targets.len(),
        }
    }

    fn fits(self) -> bool {
        self.table <= MAX_TABLE && self.bytes <= MAX_BYTES && self.kinds <= MAX_KINDS
    }
}

fn object(
    name: String,
    boundary: &str,
    action: Action,
    types: &[Checked<'_>],
    generations: &BTreeMap<String, i64>,
    options: &Options,
) -> AdmissionObject {
    let boundaries = BTreeSet::from([boundary.to_owned()]);
    let selector = namespace_selector(&boundaries, &options.boundary_label);
    let mut policy = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(MatchResources {
            resource_rules: Some(resources(types)),
            ..matching(selector.clone())
        }),
        // Pods are looked at in one namespace only, to answer which revision acts.
        match_conditions: Some(vec![MatchCondition {
            name: "no-pods-but-probes".to_owned(),
            expression: format!(
                "request.resource.group != '' || request.namespace == {}",
                cel::string(PROBE_NAMESPACE)
            ),
        }]),
        variables: Some(variables(types)),
        validations: Some(vec![Validation {
            expression: format!("variables.refused.size() == 0 || {}", asks_another(&name)),
            message: Some(format!(
                "This compute plan is not allowed in this boundary: {REASON}."
            )),
            message_expression: Some(message()),
            reason: Some("Invalid".to_owned()),
        }]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    let binding = ValidatingAdmissionPolicyBindingSpec {
        policy_name: name.clone(),
        validation_actions: vec![action.as_str().to_owned()],
        match_resources: Some(matching(selector)),
        ..ValidatingAdmissionPolicyBindingSpec::default()
    };
    untype(&mut policy);
    let revision = revision(&policy, &binding);
    if let Some(validations) = &mut policy.validations {
        // Only the first validation that fails is shown, so this one must stand first.
        validations.insert(0, revision_validation(&name, boundary, &revision));
    }
    let policies: BTreeMap<String, i64> = types
        .iter()
        .flat_map(|checked| &checked.restriction.policies)
        .map(|(policy, _)| {
            (
                policy.clone(),
                generations.get(policy).copied().unwrap_or_default(),
            )
        })
        .collect();
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        labels: Some(
            [
                (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned()),
                (BOUNDARY_LABEL.to_owned(), boundary.to_owned()),
            ]
            .into(),
        ),
        annotations: Some(
            [(
                POLICIES_ANNOTATION.to_owned(),
                serde_json::to_string(&policies).unwrap_or_default(),
            )]
            .into(),
        ),
        ..ObjectMeta::default()
    };
    AdmissionObject {
        rules: BTreeMap::new(),
        name,
        boundaries,
        action,
        policies,
        revision,
        policy: ValidatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(policy),
            status: None,
        },
        binding: ValidatingAdmissionPolicyBinding {
            metadata,
            spec: binding,
        },
    }
}

/// The kinds of the types, and Pods.
fn resources(types: &[Checked<'_>]) -> Vec<NamedRuleWithOperations> {
    let mut rules: BTreeMap<(&str, Vec<&str>), BTreeSet<&str>> = BTreeMap::new();
    for target in types.iter().flat_map(|checked| checked.targets) {
        let versions: BTreeSet<_> = target.versions.iter().map(String::as_str).collect();
        let key = (target.group.as_str(), versions.into_iter().collect());
        rules.entry(key).or_default().insert(&target.resource);
    }
    let owned = |items: &mut dyn Iterator<Item = &str>| Some(items.map(str::to_owned).collect());
    let rule = |group: &str, versions: &[&str], operations: &[&str], resources: &BTreeSet<&str>| {
        NamedRuleWithOperations {
            api_groups: Some(vec![group.to_owned()]),
            api_versions: owned(&mut versions.iter().copied()),
            operations: owned(&mut operations.iter().copied()),
            resources: owned(&mut resources.iter().copied()),
            scope: Some("Namespaced".to_owned()),
            ..NamedRuleWithOperations::default()
        }
    };
    let pods = rule("", &["v1"], &["CREATE"], &BTreeSet::from(["pods"]));
    let mut rules: Vec<_> = rules
        .iter()
        .map(|((group, versions), resources)| {
            rule(group, versions, &["CREATE", "UPDATE"], resources)
        })
        .collect();
    rules.push(pods);
    rules
}

/// How a kind is told from the others: `GROUP/RESOURCE`.
fn kind_of(target: &PlanTarget) -> String {
    format!("{}/{}", target.group, target.resource)
}

fn variables(types: &[Checked<'_>]) -> Vec<Variable> {
    let variable = |name: &str, expression: String| Variable {
        name: name.to_owned(),
        expression,
    };
    let allowed = types.iter().map(|checked| {
        let allowed = cel::strings(&checked.restriction.allowed);
        (checked.name.to_owned(), allowed)
    });
    let mut variables = vec![
        variable(
            "kind",
            "request.resource.group + '/' + request.resource.resource".to_owned(),
        ),
        variable("allowed", cel::map(allowed)),
    ];
    // In each variable the plans of one field that can't be had, each with its type. A variable is
    // worked out only for the kind that has the field.
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for checked in types {
        for target in checked.targets {
            for plan_field in &target.plan_fields {
                let name = format!("field{}", variables.len() - 1);
                variables.push(variable(&name, field(checked.name, plan_field)));
                let kind = kinds.entry(kind_of(target)).or_default();
                kind.push(format!("variables.{name}"));
            }
        }
    }
    let refused = kinds
        .iter()
        .rev()
        .fold("[]".to_owned(), |rest, (kind, fields)| {
            format!(
                "variables.kind == {} ? {} : {rest}",
                cel::string(kind),
                fields.join(" + ")
            )
        });
    variables.push(variable("refused", refused));
    variables
}

/// The plans in a field of the object that can't be had, as `[type, plan]`.
fn field(of: &str, plan_field: &PlanField) -> String {
    let of = cel::string(of);
    let shown = |plan: &str| {
        format!(
            "(type({plan}) == string ? string({plan}) : {})",
            cel::string(NOT_A_STRING)
        )
    };
    let refused = |plan: &str| {
        format!(
            "{plan} != null && {plan} != '' && !({} in variables.allowed[{of}])",
            shown(plan)
        )
    };
    let Some((list, item)) = plan_field.path.split_once("[*].") else {
        return format!(
            "[[{}, {}]].filter(p, {} && p[0] != p[1]).map(p, [{of}, {}])",
            at("dyn(object)", &plan_field.path),
            at("dyn(oldObject)", &plan_field.path),
            refused("p[0]"),
            shown("p[0]"),
        );
    };
    // Each item as its key and its plan.
    let items = |object: &str| {
        format!(
            "[{}].map(l, type(l) == list ? l : [])[0].map(c, [{}, {}])",
            at(object, list),
            at("c", plan_field.key.as_deref().unwrap_or_default()),
            at("c", item),
        )
    };
    // Whether an item keeps its plan is asked last: it takes the time of all items.
    format!(
        "[[{}, {}]].map(s, s[0].filter(p, {} && \
         !(s[1].exists(h, h[0] == p[0] && h[1] == p[1]) && s[0].filter(o, o[0] == p[0]).size() == 1))\
         .map(p, [{of}, {}]))[0]",
        items("dyn(object)"),
        items("dyn(oldObject)"),
        refused("p[1]"),
        shown("p[1]"),
    )
}

/// What is at `path` in `value`; `null` where nothing is.
fn at(value: &str, path: &str) -> String {
    path.split('.').fold(value.to_owned(), |value, name| {
        let name = cel::string(name);
        format!("[{value}].map(v, type(v) == map && {name} in v ? v[{name}] : null)[0]")
    })
}

/// The message, as [`crate::plans::message`] has it.
fn message() -> String {
    let sentence = format!(
        "\"Compute plan '\" + SHORT(r[1]) + {} + (variables.allowed[r[0]].size() == 0 ? 'none' : \
         variables.allowed[r[0]].join(', ')) + '.'",
        cel::string(&format!(
            "' is not allowed in this boundary: {REASON}. Allowed plans: "
        )),
    );
    format!(
        "variables.refused.size() == 0 ? '' : [variables.refused[0]].map(r, {})[0]",
        shortening(&sentence)
    )
}
