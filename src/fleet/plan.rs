//! From what is in a cluster and what is wanted there to the steps between, in an order that leaves
//! no gap. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::ObjectMeta;
use serde_json::Value;

use crate::compile::{AdmissionObject, MANAGED_BY, POLICIES_ANNOTATION};

/// Every admission policy and binding in a cluster, ours or not, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Existing {
    /// The policies.
    pub(crate) policies: BTreeMap<String, ValidatingAdmissionPolicy>,
    /// The bindings.
    pub(crate) bindings: BTreeMap<String, ValidatingAdmissionPolicyBinding>,
}

impl Existing {
    /// Names of the objects that are ours.
    #[must_use]
    pub(crate) fn ours(&self) -> BTreeSet<&str> {
        let policies = self
            .policies
            .iter()
            .map(|(name, object)| (name, &object.metadata));
        let bindings = self
            .bindings
            .iter()
            .map(|(name, object)| (name, &object.metadata));
        policies
            .chain(bindings)
            .filter(|(_, metadata)| is_ours(metadata))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// What is worth remembering of it.
    #[must_use]
    pub(crate) fn summary(&self) -> Known {
        Known {
            versions: self.versions(),
            generations: self.generations(),
        }
    }

    /// The resource version of each object of ours.
    #[must_use]
    fn versions(&self) -> Versions {
        let entry = |kind, name: &String, metadata: &ObjectMeta| {
            let version = metadata.resource_version.clone().unwrap_or_default();
            is_ours(metadata).then(|| ((kind, name.clone()), version))
        };
        let policies = self.policies.iter();
        let bindings = self.bindings.iter();
        policies
            .filter_map(|(name, object)| entry(POLICY, name, &object.metadata))
            .chain(bindings.filter_map(|(name, object)| entry(BINDING, name, &object.metadata)))
            .collect()
    }

    /// The generation of each policy that is inside our objects; of several the oldest.
    #[must_use]
    fn generations(&self) -> BTreeMap<String, i64> {
        let ours = self
            .policies
            .values()
            .filter(|object| is_ours(&object.metadata));
        let mut generations = BTreeMap::new();
        for (name, generation) in ours.flat_map(|object| inside(&object.metadata)) {
            let least = generations.entry(name).or_insert(generation);
            *least = generation.min(*least);
        }
        generations
    }
}

/// What is remembered of what is ours in a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// The resource version of each object.
    pub(crate) versions: Versions,
    /// The generation of each policy that is inside.
    pub(crate) generations: BTreeMap<String, i64>,
}

/// The resource version of each object, by kind and name.
pub(crate) type Versions = BTreeMap<(&'static str, String), String>;

/// The kinds of objects, in [`Versions`].
pub(crate) const POLICY: &str = "ValidatingAdmissionPolicy";
pub(crate) const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Creates a policy, or replaces it if it has a resource version.
    PutPolicy(Box<ValidatingAdmissionPolicy>),
    /// Creates a binding, or replaces it if it has a resource version.
    PutBinding(Box<ValidatingAdmissionPolicyBinding>),
    /// Waits until the API server acts on the objects that policies moved to, before they are taken
    /// from where they were.
    Settle(BTreeSet<String>),
    /// Deletes a binding.
    DeleteBinding(String),
    /// Deletes a policy.
    DeletePolicy(String),
}

impl Step {
    /// The name of the object that is written.
    #[must_use]
    pub(crate) fn object(&self) -> Option<&str> {
        match self {
            Self::PutPolicy(object) => object.metadata.name.as_deref(),
            Self::PutBinding(object) => object.metadata.name.as_deref(),
            Self::DeleteBinding(name) | Self::DeletePolicy(name) => Some(name),
            Self::Settle(_) => None,
        }
    }
}

/// What there is to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The writes, in order.
    pub(crate) steps: Vec<Step>,
    /// Wanted names that an object has which is not ours.
    pub(crate) taken: BTreeSet<String>,
}

/// Plans the way from `existing` to `wanted`.
///
/// A policy is created before its binding and deleted after it. An object that gains a
/// `BoundaryPolicy` is written before the one that loses it.
#[must_use]
pub(crate) fn plan(existing: &Existing, wanted: &[AdmissionObject]) -> Plan {
    let mut plan = Plan::default();
    let mut writes = Vec::new();
    for object in wanted {
        let policy = existing.policies.get(&object.name);
        let binding = existing.bindings.get(&object.name);
        let foreign = [
            policy.is_some_and(|policy| !is_ours(&policy.metadata)),
            binding.is_some_and(|binding| !is_ours(&binding.metadata)),
        ];
        if foreign.contains(&true) {
            plan.taken.insert(object.name.clone());
            continue;
        }
        let steps: Vec<_> = [put_policy(policy, object), put_binding(binding, object)]
            .into_iter()
            .flatten()
            .collect();
        if !steps.is_empty() {
            let before = policy
                .map(|policy| inside(&policy.metadata))
                .unwrap_or_default();
            let has = |set: &BTreeMap<String, i64>, name: &String| set.contains_key(name);
            writes.push(Write {
                gains: object
                    .policies
                    .keys()
                    .filter(|name| !has(&before, name))
                    .cloned()
                    .collect(),
                loses: before
                    .keys()
                    .filter(|name| !has(&object.policies, name))
                    .cloned()
                    .collect(),
                steps,
            });
        }
    }

    let kept: BTreeSet<_> = wanted.iter().map(|object| object.name.as_str()).collect();
    let unwanted: Vec<_> = existing
        .ours()
        .into_iter()
        .filter(|name| !kept.contains(name))
        .collect();
    let deleted: BTreeSet<String> = unwanted
        .iter()
        .filter_map(|&name| existing.policies.get(name))
        .flat_map(|policy| inside(&policy.metadata).into_keys())
        .collect();

    // Where each policy is to be. What loses it waits for that.
    let holders = |lost: &BTreeSet<String>| -> BTreeSet<String> {
        let holds =
            |object: &&AdmissionObject| lost.iter().any(|p| object.policies.contains_key(p));
        let holding = wanted.iter().filter(holds);
        holding.map(|object| object.name.clone()).collect()
    };
    for write in ordered(writes) {
        let holders = holders(&write.loses);
        if !holders.is_empty() {
            plan.steps.push(Step::Settle(holders));
        }
        plan.steps.extend(write.steps);
    }
    let holders = holders(&deleted);
    if !holders.is_empty() {
        plan.steps.push(Step::Settle(holders));
    }
    for name in unwanted {
        if existing
            .bindings
            .get(name)
            .is_some_and(|binding| is_ours(&binding.metadata))
        {
            plan.steps.push(Step::DeleteBinding(name.to_owned()));
        }
        if existing
            .policies
            .get(name)
            .is_some_and(|policy| is_ours(&policy.metadata))
        {
            plan.steps.push(Step::DeletePolicy(name.to_owned()));
        }
    }
    plan
}

/// The writes of one object.
struct Write {
    gains: BTreeSet<String>,
    loses: BTreeSet<String>,
    steps: Vec<Step>,
}

/// Puts each write after those that gain what it loses. Where they wait for each other, the first
/// goes first.
fn ordered(mut writes: Vec<Write>) -> Vec<Write> {
    let mut ordered = Vec::with_capacity(writes.len());
    while !writes.is_empty() {
        let free = writes.iter().enumerate().position(|(index, write)| {
            let mut others = writes
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index);
            write.loses.is_empty() || others.all(|(_, other)| write.loses.is_disjoint(&other.gains))
        });
        ordered.push(writes.remove(free.unwrap_or(0)));
    }
    ordered
}

fn put_policy(
    existing: Option<&ValidatingAdmissionPolicy>,
    wanted: &AdmissionObject,
) -> Option<Step> {
    let policy = &wanted.policy;
    let metadata = match existing {
        Some(existing)
            if same(&existing.spec, &policy.spec)
                && carries(&existing.metadata, &policy.metadata) =>
        {
            return None;
        }
        Some(existing) => merged(&existing.metadata, &policy.metadata),
        None => policy.metadata.clone(),
    };
    Some(Step::PutPolicy(Box::new(ValidatingAdmissionPolicy {
        metadata,
        spec: policy.spec.clone(),
        status: None,
    })))
}

fn put_binding(
    existing: Option<&ValidatingAdmissionPolicyBinding>,
    wanted: &AdmissionObject,
) -> Option<Step> {
    let binding = &wanted.binding;
    let metadata = match existing {
        Some(existing)
            if same(&existing.spec, &binding.spec)
                && carries(&existing.metadata, &binding.metadata) =>
        {
            return None;
        }
        Some(existing) => merged(&existing.metadata, &binding.metadata),
        None => binding.metadata.clone(),
    };
    Some(Step::PutBinding(Box::new(
        ValidatingAdmissionPolicyBinding {
            metadata,
            spec: binding.spec.clone(),
        },
    )))
}

/// Whether two specs are the same in everything.
fn same(a: &impl serde::Serialize, b: &impl serde::Serialize) -> bool {
    let (Ok(a), Ok(b)) = (serde_json::to_value(a), serde_json::to_value(b)) else {
        return false;
    };
    canonical(a) == canonical(b)
}

/// Without nulls and empty lists, which the API server may leave out or write.
fn canonical(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, canonical(value)))
            .filter(|(_, value)| !value.is_null() && value.as_array().is_none_or(|v| !v.is_empty()))
            .collect(),
        Value::Array(items) => items.into_iter().map(canonical).collect(),
        value => value,
    }
}

/// Whether `existing` has our labels and annotations. Those of others are theirs.
fn carries(existing: &ObjectMeta, ours: &ObjectMeta) -> bool {
    let within = |ours: &Option<BTreeMap<String, String>>,
                  all: &Option<BTreeMap<String, String>>| {
        let mut ours = ours.iter().flatten();
        ours.all(|(key, value)| all.as_ref().and_then(|all| all.get(key)) == Some(value))
    };
    within(&ours.labels, &existing.labels) && within(&ours.annotations, &existing.annotations)
}

fn merged(existing: &ObjectMeta, ours: &ObjectMeta) -> ObjectMeta {
    let mut metadata = existing.clone();
    metadata.managed_fields = None;
    metadata
        .labels
        .get_or_insert_default()
        .extend(ours.labels.clone().unwrap_or_default());
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.extend(ours.annotations.clone().unwrap_or_default());
    metadata
}

fn is_ours(metadata: &ObjectMeta) -> bool {
    let (key, value) = MANAGED_BY;
    metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(key))
        .is_some_and(|v| v == value)
}

/// The policies that are inside an object of ours, with their generations.
fn inside(metadata: &ObjectMeta) -> BTreeMap<String, i64> {
    metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(POLICIES_ANNOTATION))
        .and_then(|policies| serde_json::from_str(policies).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::BoundaryPolicy;
    use crate::compile::{Capabilities, Options, Version, compile};

    fn objects(policies: &[(&str, &str, &str)]) -> Vec<AdmissionObject> {
        let policies: Vec<BoundaryPolicy> = policies
            .iter()
            .map(|(name, boundary, action)| {
                serde_saphyr::from_str(&format!(
                    "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
                     metadata: {{name: {name}, generation: 1}}\n\
                     spec: {{boundary: {boundary}, action: {action}, rules: {{disallowLatestTag: {{}}}}}}"
                ))
                .unwrap()
            })
            .collect();
        let capabilities = Capabilities::of(Version {
            major: 1,
            minor: 34,
        });
        let now = jiff::Timestamp::UNIX_EPOCH;
        compile(&policies, &Options::new(capabilities, now)).objects
    }

    /// What a cluster has after `wanted` was applied.
    fn applied(wanted: &[AdmissionObject]) -> Existing {
        let mut existing = Existing::default();
        for object in wanted {
            let (mut policy, mut binding) = (object.policy.clone(), object.binding.clone());
            policy.metadata.resource_version = Some("1".to_owned());
            binding.metadata.resource_version = Some("2".to_owned());
            existing.policies.insert(object.name.clone(), policy);
            existing.bindings.insert(object.name.clone(), binding);
        }
        existing
    }

    fn shown(plan: &Plan) -> Vec<String> {
        plan.steps
            .iter()
            .map(|step| {
                let verb = match step {
                    Step::Settle(objects) => {
                        let objects: Vec<_> = objects.iter().cloned().collect();
                        return format!("wait for {}", objects.join(", "));
                    }
                    Step::PutPolicy(p) if p.metadata.resource_version.is_some() => "replace policy",
                    Step::PutBinding(b) if b.metadata.resource_version.is_some() => {
                        "replace binding"
                    }
                    Step::PutPolicy(_) => "create policy",
                    Step::PutBinding(_) => "create binding",
                    Step::DeleteBinding(_) => "delete binding",
                    Step::DeletePolicy(_) => "delete policy",
                };
                format!("{verb} {}", step.object().unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn the_policy_is_created_before_its_binding() {
        let plan = plan(&Existing::default(), &objects(&[("a", "web", "Deny")]));
        assert_eq!(
            shown(&plan),
            [
                "create policy web.boundarypolicy.dev",
                "create binding web.boundarypolicy.dev"
            ]
        );
    }

    #[test]
    fn the_binding_is_deleted_before_its_policy() {
        let plan = plan(&applied(&objects(&[("a", "web", "Deny")])), &[]);
        assert_eq!(
            shown(&plan),
            [
                "delete binding web.boundarypolicy.dev",
                "delete policy web.boundarypolicy.dev"
            ]
        );
    }

    #[test]
    fn unchanged_is_nothing_to_do() {
        let wanted = objects(&[("a", "web", "Deny"), ("b", "db", "Warn")]);
        assert_eq!(plan(&applied(&wanted), &wanted), Plan::default());
    }

    #[test]
    fn what_gains_a_policy_is_written_before_what_loses_it() {
        let before = objects(&[
            ("a", "web", "Deny"),
            ("b", "web", "Deny"),
            ("c", "web", "Warn"),
        ]);
        let after = objects(&[
            ("a", "web", "Warn"),
            ("b", "web", "Deny"),
            ("c", "web", "Warn"),
        ]);
        assert_eq!(
            shown(&plan(&applied(&before), &after)),
            [
                "replace policy web.boundarypolicy.dev.warn",
                "replace binding web.boundarypolicy.dev.warn",
                "wait for web.boundarypolicy.dev.warn",
                "replace policy web.boundarypolicy.dev",
                "replace binding web.boundarypolicy.dev",
            ]
        );
    }

    #[test]
    fn a_change_of_action_deletes_last() {
        let before = objects(&[("a", "web", "Warn")]);
        let after = objects(&[("a", "web", "Deny")]);
        assert_eq!(
            shown(&plan(&applied(&before), &after)),
            [
                "create policy web.boundarypolicy.dev",
                "create binding web.boundarypolicy.dev",
                "wait for web.boundarypolicy.dev",
                "delete binding web.boundarypolicy.dev.warn",
                "delete policy web.boundarypolicy.dev.warn",
            ]
        );
    }

    #[test]
    fn an_object_of_others_is_left_alone() {
        let wanted = objects(&[("a", "web", "Deny"), ("b", "db", "Deny")]);
        let mut existing = applied(&wanted);
        let object = existing.policies.get_mut("web.boundarypolicy.dev").unwrap();
        object.metadata.labels = None;
        let plan = plan(&existing, &wanted);
        assert_eq!(plan.steps, []);
        assert!(plan.taken.contains("web.boundarypolicy.dev"));
    }

    #[test]
    fn what_someone_put_into_the_spec_is_taken_out_and_what_is_theirs_stays() {
        let wanted = objects(&[("a", "web", "Deny")]);
        let mut existing = applied(&wanted);
        let object = existing.policies.get_mut("web.boundarypolicy.dev").unwrap();
        let conditions = &mut object.spec.as_mut().unwrap().match_conditions;
        conditions.as_mut().unwrap()[0].expression = "false".to_owned();
        object
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("theirs".to_owned(), "1".to_owned());
        let plan = plan(&existing, &wanted);
        let [Step::PutPolicy(put)] = plan.steps.as_slice() else {
            panic!("{:?}", plan.steps)
        };
        assert_eq!(put.spec, wanted[0].policy.spec);
        assert_eq!(put.metadata.labels.as_ref().unwrap()["theirs"], "1");
        assert_eq!(put.metadata.resource_version.as_deref(), Some("1"));
    }
}
