//! Policies in, objects for a cluster's API server out. A pure function: no clock, no network, the
//! same input gives the same bytes.

mod capabilities;
mod cel;
mod emit;
mod guard;
mod link;
mod mutate;
mod names;
mod plans;
mod untyped;

pub use capabilities::{Capabilities, MutatingApi, ParseVersionError, Version};
pub use guard::{GUARD, GUARDED_RESOURCE, GUARDED_VERB, label_guard};
pub use mutate::{MUTATION, MUTATION_REVISION_ANNOTATION, MutationObject};
pub(crate) use names::hash;
pub use names::object_name;
pub use plans::COMPUTE_PLANS;

pub(crate) use emit::first;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::ResourceExt as _;

use crate::api::{Action, BOUNDARY_LABEL, BoundaryPolicy, FieldError, validate};
use crate::plans::Catalog;
use crate::rules::RuleName;

/// The label that marks the objects that are ours, and its value.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "boundary-operator");

/// The annotation that says which policies, at which generation, an object is made from: a JSON
/// object from name to generation.
pub const POLICIES_ANNOTATION: &str = "boundarypolicy.dev/policies";

/// The namespace that the operator owns in every member cluster, for proving.
pub const PROBE_NAMESPACE: &str = "boundary-operator-probe";

/// The label of a Pod in the probe namespace that asks for something other than a verdict.
pub const PROBE_LABEL: &str = "boundarypolicy.dev/probe";

/// The annotation of a Pod in the probe namespace that names the one object that is asked. Without
/// it all of a boundary answer, and of several that refuse, the API server shows only one.
pub const PROBE_OBJECT_ANNOTATION: &str = "boundarypolicy.dev/probe-object";

/// The annotation of a Pod in the probe namespace that is judged by one rule of one policy alone,
/// `POLICY/RULE`.
pub const PROBE_RULE_ANNOTATION: &str = "boundarypolicy.dev/probe-rule";

/// What the output depends on besides the policies.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the API server can do.
    pub capabilities: Capabilities,
    /// The key of the label that puts a namespace into a boundary.
    pub boundary_label: String,
    /// Whether the label is guarded.
    pub label_guard: bool,
    /// Exemptions that ended by now are left out.
    pub now: Timestamp,
    /// The types of resources and their compute plans.
    pub catalog: Arc<Catalog>,
    /// Whether the API server acts on mutations.
    pub mutation: Mutating,
}

/// Whether an API server acts on mutations. It may serve `MutatingAdmissionPolicy`, take the objects,
/// and change nothing; only a request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutating {
    /// It does: Pods are changed, and that they keep the rules is checked afterwards.
    Acting,
    /// It doesn't, or that was not yet seen: what Pods would be changed to is checked only for
    /// policies that say so.
    NotActing,
}

impl Options {
    /// The usual label, not guarded, and no types of resources, for an API server with `capabilities`
    /// at the time `now`. It acts on mutations if it serves them.
    #[must_use]
    pub fn new(capabilities: Capabilities, now: Timestamp) -> Self {
        Self {
            mutation: match capabilities.mutating {
                Some(_) => Mutating::Acting,
                None => Mutating::NotActing,
            },
            capabilities,
            boundary_label: BOUNDARY_LABEL.to_owned(),
            label_guard: false,
            now,
            catalog: Arc::default(),
        }
    }
}

/// What policies compile to.
#[derive(Clone, Debug, Default)]
pub struct Compilation {
    /// The objects, sorted by name. Empty where the API server can't enforce anything.
    pub objects: Vec<AdmissionObject>,
    /// The objects that change Pods, sorted by name, whether the API server acts on them or not.
    /// Empty where it serves no `MutatingAdmissionPolicy`.
    pub mutations: Vec<MutationObject>,
    /// The rules that nothing enforces there, by policy: those that change Pods, where the API
    /// server doesn't act on mutations and the policy doesn't ask for Pods to be refused instead.
    /// Of the policies with a rule here, those that are in no object have nothing enforced at all.
    pub not_enforced: BTreeMap<String, BTreeSet<RuleName>>,
    /// Policies that can't be compiled and are left out, sorted by name.
    pub problems: Vec<Problem>,
}

/// A policy that can't be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The name of the policy.
    pub policy: String,
    /// What is wrong with it; not empty.
    pub errors: Vec<FieldError>,
}

/// A `ValidatingAdmissionPolicy` and its binding, which have the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionObject {
    /// The name of both.
    pub name: String,
    /// The boundaries whose namespaces they match. One, until boundaries are grouped.
    pub boundaries: BTreeSet<String>,
    /// What they do with an object that breaks a rule.
    pub action: Action,
    /// The policies inside, each with its generation (0 where it has none, as in a file).
    pub policies: BTreeMap<String, i64>,
    /// The rules about Pods that are checked, by policy. Of the rules that change Pods only those
    /// whose result is checked.
    pub rules: BTreeMap<String, BTreeSet<RuleName>>,
    /// The hash of both specs, which the API server answers to a probe. 16 hexadecimal digits.
    pub revision: String,
    /// The policy.
    pub policy: ValidatingAdmissionPolicy,
    /// The binding.
    pub binding: ValidatingAdmissionPolicyBinding,
}

impl AdmissionObject {
    /// Whether it checks compute plans rather than Pods.
    #[must_use]
    pub fn checks_plans(&self) -> bool {
        self.name.ends_with(COMPUTE_PLANS)
    }
}

/// Compiles `policies`, which must have distinct names, for one API server.
///
/// Their cluster scope is not looked at: pass those in whose scope the cluster is, see
/// [`selects`](crate::api::selects), and of the others the rule about compute plans, which knows no
/// scope.
#[must_use]
pub fn compile<'p>(
    policies: impl IntoIterator<Item = &'p BoundaryPolicy>,
    options: &Options,
) -> Compilation {
    let mut problems = Vec::new();
    let mut valid = Vec::new();
    for policy in policies {
        let errors = validate(policy);
        if errors.is_empty() {
            valid.push(policy);
        } else {
            let policy = policy.metadata.name.clone().unwrap_or_default();
            problems.push(Problem { policy, errors });
        }
    }
    problems.sort_by(|a, b| a.policy.cmp(&b.policy));
    if !options.capabilities.validating {
        return Compilation {
            problems,
            ..Compilation::default()
        };
    }
    let (mutations, left_out) = mutate::emit(&valid, options);
    let mut not_enforced = BTreeMap::new();
    for policy in &valid {
        let name = policy.name_any();
        let changes_pods = options.mutation == Mutating::Acting && !left_out.contains(&name);
        let rules = link::not_enforced(policy, changes_pods);
        if !rules.is_empty() {
            not_enforced.insert(name, rules);
        }
    }
    let mut objects: Vec<_> = link::link(&valid, &not_enforced, options)
        .iter()
        .map(|linked| emit::emit(linked, options))
        .collect();
    objects.extend(plans::emit(&valid, options));
    let guard = options.label_guard;
    objects.extend(guard.then(|| label_guard(&options.boundary_label)));
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    Compilation {
        objects,
        mutations,
        not_enforced,
        problems,
    }
}

/// When the first exemption of `policies` that holds at `now` ends; what they compile to changes
/// then.
#[must_use]
pub fn next_expiry<'p>(
    policies: impl IntoIterator<Item = &'p BoundaryPolicy>,
    now: Timestamp,
) -> Option<Timestamp> {
    policies
        .into_iter()
        .flat_map(|policy| &policy.spec.exemptions)
        .filter_map(|exemption| exemption.expires)
        .filter(|expires| *expires > now)
        .min()
}
