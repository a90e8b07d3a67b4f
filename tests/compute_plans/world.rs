//! Policies, types and objects of the tests.

use std::collections::BTreeMap;

use boundary_operator::api::{Action, BoundaryPolicy, ComputeResourceType};
use boundary_operator::plans::{Asked, BoundaryPlans, Catalog, Refusal, Slot};
use serde::de::DeserializeOwned;

/// The folder with the types and CRDs that users are shown.
pub(crate) const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/compute-plans");

/// The documents of a file of the examples.
pub(crate) fn documents<T: DeserializeOwned>(file: &str) -> Vec<T> {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/{file}")).unwrap();
    text.split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

/// The types of the examples.
pub(crate) fn types() -> Vec<ComputeResourceType> {
    documents("types.yaml")
}

pub(crate) fn catalog() -> Catalog {
    let (catalog, invalid) = Catalog::of(&types());
    assert_eq!(invalid, BTreeMap::new());
    catalog
}

/// A policy of the boundary `web` with this rule alone.
pub(crate) fn policy(name: &str, action: Action, plans: &[&str]) -> BoundaryPolicy {
    let mut policy: BoundaryPolicy = serde_json::from_value(serde_json::json!({
        "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
        "metadata": {"name": name},
        "spec": {
            "boundary": "web", "action": action.as_str(),
            "rules": {"allowedComputePlans": {"plans": plans}},
        },
    }))
    .unwrap();
    policy.metadata.generation = Some(1);
    policy
}

/// Policies `p1`, `p2`, … that deny.
pub(crate) fn policies(plans: &[&[&str]]) -> Vec<BoundaryPolicy> {
    let plans = plans.iter().zip(1..);
    plans
        .map(|(plans, n)| policy(&format!("p{n}"), Action::Deny, plans))
        .collect()
}

/// A part of a resource.
pub(crate) fn slot(key: Option<&str>, plan: Option<&str>) -> Slot {
    Slot {
        key: key.map(str::to_owned),
        plan: plan.map(str::to_owned),
    }
}

/// A resource of one part.
pub(crate) fn one(plan: &str) -> Vec<Slot> {
    vec![slot(None, Some(plan))]
}

/// The plans that the policies, which deny, don't allow.
pub(crate) fn refusals(
    policies: &[BoundaryPolicy],
    of: &str,
    wanted: &[Slot],
    held: &[Slot],
) -> Vec<Refusal> {
    let catalog = catalog();
    let spec = catalog.get(of).unwrap();
    let plans = BoundaryPlans::of(policies);
    if !spec.checked {
        return Vec::new();
    }
    let restriction = plans.restriction("web", Action::Deny, of, spec);
    restriction.map_or_else(Vec::new, |restriction| {
        restriction.refusals(Asked { wanted, held })
    })
}

/// What is said of the first plan that is not allowed.
pub(crate) fn said(
    policies: &[BoundaryPolicy],
    of: &str,
    wanted: &[Slot],
    held: &[Slot],
) -> Option<String> {
    let refusals = refusals(policies, of, wanted, held);
    refusals.first().map(Refusal::message)
}
