use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::FieldError;
use crate::api::patterns::{COMPUTE_PLAN, is_compute_plan};

/// Allows only listed compute plans. Unlike the other rules it is not about Pods: it is asked by the
/// platform over HTTP, and at the admission of the objects that are targets of a
/// ComputeResourceType. It holds in every cluster of the boundary, whatever `clusters` says, and has
/// no exemptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AllowedComputePlans {
    /// Names of plans. `small` applies to every type of resource, `valkey/small` to the type valkey
    /// only. The rule is about a type if it lists a name without a type, or one with that type; of
    /// that type it then allows the listed plans and no other. A name that no ComputeResourceType
    /// has allows nothing, and still counts.
    #[schemars(
        length(min = 1, max = MAX_ENTRIES),
        inner(length(min = 1, max = 127), regex(pattern = COMPUTE_PLAN))
    )]
    pub plans: Vec<String>,
}

const MAX_ENTRIES: usize = 100;

impl AllowedComputePlans {
    /// The name of the rule, as messages write it.
    pub const NAME: &str = "AllowedComputePlans";

    /// The entries: the type, where one is named, and the plan.
    pub fn entries(&self) -> impl Iterator<Item = (Option<&str>, &str)> {
        self.plans.iter().map(|entry| match entry.split_once('/') {
            Some((kind, plan)) => (Some(kind), plan),
            None => (None, entry.as_str()),
        })
    }

    /// Whether the rule says anything of a type.
    #[must_use]
    pub fn is_about(&self, name: &str) -> bool {
        self.entries().any(|(of, _)| of.is_none_or(|of| of == name))
    }

    pub(super) fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        let path = format!("{path}.plans");
        if self.plans.is_empty() || self.plans.len() > MAX_ENTRIES {
            let message = format!("must have 1 to {MAX_ENTRIES} plans");
            errors.push(FieldError::new(&path, message));
        }
        for (index, entry) in self.plans.iter().enumerate() {
            if !is_compute_plan(entry) {
                let message = "is not a plan: write it like small, or valkey/small for one type \
                               alone, names of at most 63 characters";
                let path = format!("{path}[{index}]");
                errors.push(FieldError::quoting(&path, entry, message));
            }
        }
    }
}
