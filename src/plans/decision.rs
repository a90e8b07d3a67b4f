//! Whether a boundary may use a plan. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;

use crate::api::{Action, BoundaryPolicy, ComputeResourceTypeSpec};
use crate::rules::AllowedComputePlans;

/// Why a plan can't be had, in words for people.
pub const REASON: &str = "a boundary policy disallows it";

/// A plan in a message is cut after so many characters.
const MAX_SHOWN: usize = 300;

/// What one policy says of compute plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanPolicy {
    /// Its name.
    pub name: String,
    /// What becomes of what it doesn't allow.
    pub action: Action,
    /// What it allows.
    pub rule: AllowedComputePlans,
}

/// What the policies say of compute plans, by boundary. Their cluster scope does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundaryPlans {
    boundaries: BTreeMap<String, Vec<Arc<PlanPolicy>>>,
}

/// What the policies of a boundary and an action make of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The plans that every policy allows which says something about the type, in the order of the
    /// type.
    pub allowed: Vec<String>,
    /// The policies that say something about the type, by name, and the plans of it that each allows.
    pub policies: Vec<(String, Vec<String>)>,
}

/// A plan and where it stands in a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// What tells this part of the resource from its others, such as the name of a component. Absent
    /// for a resource of one part.
    pub key: Option<String>,
    /// The plan. Absent: nothing to check.
    pub plan: Option<String>,
}

/// What is asked: the plans that a resource is to have, and those that it has.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// As it is to be.
    pub wanted: &'a [Slot],
    /// As it is. Empty where it is created.
    pub held: &'a [Slot],
}

/// A plan that can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The part of the resource, where it has several.
    pub key: Option<String>,
    /// The plan.
    pub plan: String,
    /// The plans that could be had instead, in the order of the type.
    pub allowed: Vec<String>,
    /// The policies that don't allow it, by name.
    pub policies: Vec<String>,
}

impl PlanPolicy {
    /// What `policy` says of compute plans, if anything.
    #[must_use]
    pub fn of(policy: &BoundaryPolicy) -> Option<Self> {
        let rule = policy.spec.rules.allowed_compute_plans.clone()?;
        Some(Self {
            name: policy.name_any(),
            action: policy.spec.action,
            rule,
        })
    }

    /// The plans of a type that the policy allows, in the order of the type. None: it says nothing
    /// about the type.
    fn allows(&self, name: &str, spec: &ComputeResourceTypeSpec) -> Option<Vec<String>> {
        let entries = self.rule.entries();
        let listed: Vec<_> = entries
            .filter(|(of, _)| of.is_none_or(|of| of == name))
            .map(|(_, plan)| plan)
            .collect();
        let allowed = || spec.plans.iter().map(|plan| plan.name.clone());
        (!listed.is_empty()).then(|| allowed().filter(|p| listed.contains(&p.as_str())).collect())
    }
}

impl BoundaryPlans {
    /// Of policies and their boundaries, in any order.
    #[must_use]
    pub fn new(policies: impl IntoIterator<Item = (String, Arc<PlanPolicy>)>) -> Self {
        let mut boundaries: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (boundary, policy) in policies {
            boundaries.entry(boundary).or_default().push(policy);
        }
        for policies in boundaries.values_mut() {
            policies.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Self { boundaries }
    }

    /// Of those of `policies` that say something of compute plans.
    #[must_use]
    pub fn of<'p>(policies: impl IntoIterator<Item = &'p BoundaryPolicy>) -> Self {
        let policies = policies.into_iter().filter_map(|policy| {
            let plans = PlanPolicy::of(policy)?;
            Some((policy.spec.boundary.clone(), Arc::new(plans)))
        });
        Self::new(policies)
    }

    /// The boundaries of which some policy says something.
    pub fn boundaries(&self) -> impl Iterator<Item = &str> {
        self.boundaries.keys().map(String::as_str)
    }

    /// What the policies of `boundary` with `action` make of a type. None: none says anything about
    /// it, and all its plans are allowed.
    #[must_use]
    pub fn restriction(
        &self,
        boundary: &str,
        action: Action,
        name: &str,
        spec: &ComputeResourceTypeSpec,
    ) -> Option<Restriction> {
        let policies = self.boundaries.get(boundary).into_iter().flatten();
        let policies: Vec<_> = policies
            .filter(|policy| policy.action == action)
            .filter_map(|policy| Some((policy.name.clone(), policy.allows(name, spec)?)))
            .collect();
        if policies.is_empty() {
            return None;
        }
        let all = spec.plans.iter().map(|plan| plan.name.clone());
        let allowed = all
            .filter(|plan| policies.iter().all(|(_, allows)| allows.contains(plan)))
            .collect();
        Some(Restriction { allowed, policies })
    }
}

impl Restriction {
    /// The policies that don't allow `plan`, by name. None: it is allowed.
    #[must_use]
    pub fn refusing(&self, plan: &str) -> Vec<String> {
        let policies = self.policies.iter();
        policies
            .filter(|(_, allows)| !allows.iter().any(|allowed| allowed == plan))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The plans that can't be had, in the order of `asked`. None: all can.
    #[must_use]
    pub fn refusals(&self, asked: Asked<'_>) -> Vec<Refusal> {
        asked
            .moved()
            .filter_map(|slot| {
                let plan = slot.plan.as_deref()?;
                let policies = self.refusing(plan);
                (!policies.is_empty()).then(|| Refusal {
                    key: slot.key.clone(),
                    plan: plan.to_owned(),
                    allowed: self.allowed.clone(),
                    policies,
                })
            })
            .collect()
    }
}

impl Asked<'_> {
    /// Whether nothing in it depends on policies: every plan is one that the resource has.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.moved().next().is_none()
    }

    /// The plans to be checked. A part of a resource keeps its plan if its key is like no other's.
    fn moved(&self) -> impl Iterator<Item = &Slot> {
        let mut parts: BTreeMap<Option<&str>, u32> = BTreeMap::new();
        for slot in self.wanted {
            *parts.entry(slot.key.as_deref()).or_default() += 1;
        }
        let mut held: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
        for slot in self.held {
            let plans = held.entry(slot.key.as_deref()).or_default();
            plans.extend(slot.plan.as_deref());
        }
        self.wanted.iter().filter(move |slot| {
            let key = slot.key.as_deref();
            slot.plan.as_deref().is_some_and(|plan| {
                let unique = parts.get(&key) == Some(&1);
                !(unique && held.get(&key).is_some_and(|held| held.contains(&plan)))
            })
        })
    }
}

impl Refusal {
    /// What is said of it.
    #[must_use]
    pub fn message(&self) -> String {
        message(&self.plan, &self.allowed)
    }
}

/// What is said of a plan that can't be had.
#[must_use]
pub fn message(plan: &str, allowed: &[String]) -> String {
    let shown = match plan.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &plan[..end]),
        None => plan.to_owned(),
    };
    let shown = shown.replace(['\n', '\r'], " ");
    let allowed = if allowed.is_empty() {
        "none".to_owned()
    } else {
        allowed.join(", ")
    };
    format!(
        "Compute plan '{shown}' is not allowed in this boundary: {REASON}. Allowed plans: {allowed}."
    )
}
