//! Mutations at admission: for each boundary one `MutatingAdmissionPolicy` and its binding.
//!
//! The mutations are JSON Patches: an apply configuration fails on Pods with two environment
//! variables of one name. Every one of them leaves alone what is right already, so that applying
//! them again changes nothing. There are no match conditions, since some versions refuse those
//! beside variables when a policy is made; what isn't to be changed is left out by the variables.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{
    JSONPatch, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
    MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec, Mutation as Step,
    NamedRuleWithOperations, Variable,
};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use serde_json::Value;

use super::emit::{asks_another, matching, namespace_selector};
use super::untyped::untyped;
use super::{
    MANAGED_BY, MutatingApi, Options, POLICIES_ANNOTATION, PROBE_LABEL, PROBE_NAMESPACE, cel,
    names, object_name,
};
use crate::api::{Action, BOUNDARY_LABEL, BoundaryPolicy, Exemption};
use crate::rules::{Mutation, RuleName, patches};

/// How the names of these objects end.
pub const MUTATION: &str = ".mutation";

/// The annotation that the API server sets on a Pod that asks for the revision of a mutation: the
/// hash of what it acts on.
pub const MUTATION_REVISION_ANNOTATION: &str = "boundarypolicy.dev/mutation-revision";

/// Whether a Pod is left alone: the image of a static Pod, which its node makes.
pub(super) const IS_MIRROR: &str = "'system:nodes' in request.userInfo.?groups.orValue([]) && \
     'kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({})";

/// The largest object, in bytes of JSON: half of what the API server stores.
const MAX_BYTES: usize = 700 * 1024;

/// A `MutatingAdmissionPolicy` and its binding, which have the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct MutationObject {
    /// The name of both.
    pub name: String,
    /// The boundaries whose Pods they change. One, until boundaries are grouped.
    pub boundaries: BTreeSet<String>,
    /// The policies inside, each with its generation (0 where it has none, as in a file).
    pub policies: BTreeMap<String, i64>,
    /// The hash of both specs, which the API server answers to a probe. 16 hexadecimal digits.
    pub revision: String,
    /// The version of the API that the cluster serves them in.
    pub api: MutatingApi,
    /// The policy. Its spec is the same in every version of the API.
    pub policy: MutatingAdmissionPolicy,
    /// The binding.
    pub binding: MutatingAdmissionPolicyBinding,
}

impl MutationObject {
    /// The policy and the binding as they are sent, in the version of the API that the cluster
    /// serves.
    #[must_use]
    pub fn documents(&self) -> [Value; 2] {
        let in_version = |mut object: Value| {
            object["apiVersion"] = self.api.api_version().into();
            object
        };
        // Serializing these types can't fail: their maps have strings as keys.
        [
            in_version(serde_json::to_value(&self.policy).unwrap_or_default()),
            in_version(serde_json::to_value(&self.binding).unwrap_or_default()),
        ]
    }

    /// The labels and annotations of a Pod in the probe namespace that this object answers with its
    /// revision, and that no other object of ours looks at.
    #[must_use]
    pub fn asking_for_revision(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        (
            [(PROBE_LABEL.to_owned(), "revision".to_owned())].into(),
            [(super::PROBE_OBJECT_ANNOTATION.to_owned(), self.name.clone())].into(),
        )
    }
}

/// A policy with what it changes.
struct Changing<'p> {
    policy: &'p BoundaryPolicy,
    mutations: Vec<(RuleName, Mutation)>,
}

/// Emits the objects for `policies` that deny, in the API that the cluster serves; none if it serves
/// none. The policies that are left out, since an object can't hold them too, come after.
pub(super) fn emit(
    policies: &[&BoundaryPolicy],
    options: &Options,
) -> (Vec<MutationObject>, BTreeSet<String>) {
    let mut left_out = BTreeSet::new();
    let Some(api) = options.capabilities.mutating else {
        return (Vec::new(), left_out);
    };
    let mut boundaries: BTreeMap<&str, Vec<Changing<'_>>> = BTreeMap::new();
    for policy in policies {
        let mutations = policy.spec.rules.mutations();
        // A policy that only warns, or only audits, changes nothing.
        if policy.spec.action == Action::Deny && !mutations.is_empty() {
            let boundary = boundaries.entry(&policy.spec.boundary).or_default();
            boundary.push(Changing { policy, mutations });
        }
    }
    let mut objects = Vec::new();
    for (boundary, mut changing) in boundaries {
        changing.sort_by_key(|changing| changing.policy.name_any());
        while !changing.is_empty() {
            let object = object(boundary, &changing, api, options);
            let size: usize = object.documents().iter().map(|d| d.to_string().len()).sum();
            if size <= MAX_BYTES {
                objects.push(object);
                break;
            }
            if let Some(last) = changing.pop() {
                left_out.insert(last.policy.name_any());
            }
        }
    }
    (objects, left_out)
}

fn object(
    boundary: &str,
    changing: &[Changing<'_>],
    api: MutatingApi,
    options: &Options,
) -> MutationObject {
    let name = object_name(boundary, Action::Deny, 1) + MUTATION;
    let boundaries = BTreeSet::from([boundary.to_owned()]);
    let selector = namespace_selector(&boundaries, &options.boundary_label);
    let (variables, steps) = Content::of(changing, options).emit(&name);
    let mut policy = MutatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(MatchResources {
            resource_rules: Some(vec![created_pods()]),
            ..matching(selector.clone())
        }),
        mutations: Some(steps),
        reinvocation_policy: Some("IfNeeded".to_owned()),
        variables: Some(variables),
        ..MutatingAdmissionPolicySpec::default()
    };
    let binding = MutatingAdmissionPolicyBindingSpec {
        policy_name: Some(name.clone()),
        match_resources: Some(matching(selector)),
        ..MutatingAdmissionPolicyBindingSpec::default()
    };
    let bytes = serde_json::to_vec(&(&policy, &binding)).unwrap_or_default();
    let revision = names::hash(&bytes);
    if let Some(steps) = &mut policy.mutations {
        steps.insert(0, step(&answer(&name, &revision)));
    }
    let generation = |c: &Changing<'_>| c.policy.metadata.generation.unwrap_or_default();
    let policies: BTreeMap<_, _> = changing
        .iter()
        .map(|c| (c.policy.name_any(), generation(c)))
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
    MutationObject {
        name,
        boundaries,
        policies,
        revision,
        api,
        policy: MutatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(policy),
        },
        binding: MutatingAdmissionPolicyBinding {
            metadata,
            spec: Some(binding),
        },
    }
}

fn created_pods() -> NamedRuleWithOperations {
    let one = |item: &str| Some(vec![item.to_owned()]);
    NamedRuleWithOperations {
        api_groups: one(""),
        api_versions: one("v1"),
        operations: one("CREATE"),
        resources: one("pods"),
        scope: Some("Namespaced".to_owned()),
        ..NamedRuleWithOperations::default()
    }
}

/// Annotates the probe with the revision that the API server acts on.
fn answer(name: &str, revision: &str) -> String {
    let annotation = cel::string(MUTATION_REVISION_ANNOTATION);
    let path = MUTATION_REVISION_ANNOTATION.replace('/', "~1");
    let revision = cel::string(revision);
    format!(
        "request.namespace == {probes} && \
         object.metadata.?labels[?{label}].orValue('') == 'revision' && \
         !{another} && object.metadata.?annotations[?{annotation}].orValue('') != {revision} ? \
         (object.metadata.?annotations.hasValue() ? [] : \
         [JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{}}}}]) + \
         [JSONPatch{{op: 'add', path: '/metadata/annotations/{path}', value: {revision}}}] : []",
        probes = cel::string(PROBE_NAMESPACE),
        label = cel::string(PROBE_LABEL),
        another = asks_another(name),
    )
}

fn step(expression: &str) -> Step {
    Step {
        patch_type: "JSONPatch".to_owned(),
        json_patch: Some(JSONPatch {
            expression: Some(untyped(expression)),
        }),
        apply_configuration: None,
    }
}

/// What the policies of a boundary change, by rule.
#[derive(Default)]
struct Content {
    /// The expressions of exemptions, each a variable.
    exemptions: Vec<String>,
    /// Whether a policy applies, as an expression, for each policy with the rule, by policy name.
    pull_always: Vec<String>,
    memory_limit: Vec<String>,
    /// For each resource the defaults: whether one applies, and the amount, by policy name.
    requests: BTreeMap<String, Vec<(String, String)>>,
    limits: BTreeMap<String, Vec<(String, String)>>,
}

const ALWAYS: &str = "true";

impl Content {
    fn of(changing: &[Changing<'_>], options: &Options) -> Self {
        let mut content = Self::default();
        for Changing { policy, mutations } in changing {
            let exemptions = policy.spec.exemptions.iter();
            let holding: Vec<_> = exemptions
                .filter(|e| e.expires.is_none_or(|expires| expires > options.now))
                .filter(|e| mutations.iter().any(|(rule, _)| e.rules.contains(rule)))
                .map(|e| {
                    content.exemptions.push(exempts(e));
                    (e, format!("variables.exempt{}", content.exemptions.len()))
                })
                .collect();
            for (rule, mutation) in mutations {
                let exempt = holding.iter().filter(|(e, _)| e.rules.contains(rule));
                let exempt: Vec<_> = exempt.map(|(_, name)| format!("!{name}")).collect();
                let applies = match exempt.as_slice() {
                    [] => ALWAYS.to_owned(),
                    exempt => exempt.join(" && "),
                };
                content.add(mutation, &applies);
            }
        }
        content
    }

    fn add(&mut self, mutation: &Mutation, applies: &str) {
        match mutation {
            Mutation::PullAlways => self.pull_always.push(applies.to_owned()),
            Mutation::MemoryLimit => self.memory_limit.push(applies.to_owned()),
            Mutation::Defaults { requests, limits } => {
                for (all, own) in [(&mut self.requests, requests), (&mut self.limits, limits)] {
                    for (resource, amount) in own {
                        let defaults = all.entry(resource.clone()).or_default();
                        defaults.push((applies.to_owned(), amount.clone()));
                    }
                }
            }
        }
    }

    /// The variables, and the mutations in their order.
    fn emit(&self, name: &str) -> (Vec<Variable>, Vec<Step>) {
        let mut variables = Vec::new();
        let mut add = |name: &str, expression: &str| {
            variables.push(Variable {
                name: name.to_owned(),
                expression: untyped(expression),
            });
        };
        add(
            "mutates",
            &format!("!({IS_MIRROR}) && !{}", asks_another(name)),
        );
        add("spec", "dyn(object).spec");
        for list in ["containers", "initContainers", "volumes"] {
            if list == "volumes" && self.pull_always.is_empty() {
                continue;
            }
            let expression = format!("variables.mutates ? variables.spec.?{list}.orValue([]) : []");
            add(list, &expression);
        }
        for (index, exemption) in self.exemptions.iter().enumerate() {
            add(&format!("exempt{}", index + 1), exemption);
        }
        let mut steps = Vec::new();
        if !self.pull_always.is_empty() {
            add("pullsAlways", &any(&self.pull_always));
            steps.push(step(&patches::pull_always("variables.pullsAlways")));
        }
        if !self.requests.is_empty() || !self.limits.is_empty() {
            add(
                "setForPod",
                "[variables.spec.?resources.?requests.orValue({}), \
                 variables.spec.?resources.?limits.orValue({})]",
            );
        }
        if !self.requests.is_empty() {
            add("requests", &defaults(&self.requests));
            steps.push(step(&patches::requests(&keys(&self.requests))));
        }
        if !self.limits.is_empty() {
            add("limits", &defaults(&self.limits));
            steps.push(step(&patches::limits(&keys(&self.limits))));
        }
        if !self.memory_limit.is_empty() {
            let applies = format!("variables.mutates && {}", any(&self.memory_limit));
            add("limitsMemory", &applies);
            steps.push(step(&patches::memory_limit("variables.limitsMemory")));
        }
        (variables, steps)
    }
}

/// Whether one of several policies applies.
fn any(applies: &[String]) -> String {
    if applies.iter().any(|applies| applies == ALWAYS) {
        return ALWAYS.to_owned();
    }
    let applies: Vec<_> = applies
        .iter()
        .map(|applies| format!("({applies})"))
        .collect();
    format!("({})", applies.join(" || "))
}

/// The amount for each resource: that of the first policy that applies, and an empty text where
/// none does or the amount is set for the Pod as a whole.
fn defaults(defaults: &BTreeMap<String, Vec<(String, String)>>) -> String {
    cel::map(defaults.iter().map(|(resource, all)| {
        // What stands after a default that always applies never does.
        let end = all.iter().position(|(applies, _)| applies == ALWAYS);
        let (last, before) = match end {
            Some(end) => (cel::string(&all[end].1), &all[..end]),
            None => (cel::string(""), &all[..]),
        };
        let chain = before.iter().rev().fold(last, |rest, (applies, amount)| {
            format!("{applies} ? {} : {rest}", cel::string(amount))
        });
        let key = cel::string(resource);
        let amount = format!("variables.setForPod.exists(m, {key} in m) ? '' : ({chain})");
        (resource.clone(), amount)
    }))
}

fn keys<T>(defaults: &BTreeMap<String, T>) -> Vec<&str> {
    defaults.keys().map(String::as_str).collect()
}

/// Whether an exemption holds for the request.
fn exempts(exemption: &Exemption) -> String {
    let listed = |list: &Option<Vec<String>>| cel::strings(list.iter().flatten());
    let mut conditions = Vec::new();
    if exemption.namespaces.is_some() {
        let namespaces = listed(&exemption.namespaces);
        conditions.push(format!("request.namespace in {namespaces}"));
    }
    if exemption.users.is_some() || exemption.groups.is_some() {
        conditions.push(format!(
            "(request.userInfo.username in {} || \
             request.userInfo.?groups.orValue([]).exists(g, g in {}))",
            listed(&exemption.users),
            listed(&exemption.groups)
        ));
    }
    conditions.join(" && ")
}
