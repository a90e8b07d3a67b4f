//! The types of resources and their plans.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;

use crate::api::{
    ComputeResourceType, ComputeResourceTypeSpec, FieldError, validate_resource_type,
};
use crate::rules::AllowedComputePlans;

/// The types of resources, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    types: BTreeMap<String, Arc<ComputeResourceTypeSpec>>,
}

impl Catalog {
    /// The valid ones of `types`. The second part says of each other what is wrong with it.
    #[must_use]
    pub fn of<'t>(
        types: impl IntoIterator<Item = &'t ComputeResourceType>,
    ) -> (Self, BTreeMap<String, Vec<FieldError>>) {
        let mut catalog = Self::default();
        let mut invalid = BTreeMap::new();
        for resource_type in types {
            let name = resource_type.name_any();
            let errors = validate_resource_type(resource_type);
            if errors.is_empty() {
                let spec = Arc::new(resource_type.spec.clone());
                catalog.types.insert(name, spec);
            } else {
                invalid.insert(name, errors);
            }
        }
        (catalog, invalid)
    }

    /// The type of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ComputeResourceTypeSpec> {
        self.types.get(name).map(AsRef::as_ref)
    }

    /// Every type, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ComputeResourceTypeSpec)> {
        let types = self.types.iter();
        types.map(|(name, spec)| (name.as_str(), spec.as_ref()))
    }

    /// Whether `rule` is about a type with kinds of objects that are checked at admission.
    #[must_use]
    pub fn checks_objects(&self, rule: &AllowedComputePlans) -> bool {
        self.iter()
            .filter(|(_, spec)| spec.checked && !spec.targets.is_empty())
            .any(|(name, _)| rule.is_about(name))
    }
}

/// What is said of the entries of `rule` that name a type or a plan that `catalog` doesn't have, in
/// the order of the entries. They count all the same.
#[must_use]
pub fn unknown_entries(rule: &AllowedComputePlans, catalog: &Catalog) -> Vec<String> {
    let has = |spec: &ComputeResourceTypeSpec, name| spec.plans.iter().any(|p| p.name == name);
    let entries = rule.entries().zip(&rule.plans).enumerate();
    entries
        .filter_map(|(index, ((of, plan), entry))| {
            let problem = match of {
                Some(of) => match catalog.get(of) {
                    None => format!("there is no ComputeResourceType {of}"),
                    Some(spec) if !has(spec, plan) => {
                        format!("ComputeResourceType {of} has no plan {plan}")
                    }
                    Some(_) => return None,
                },
                None if catalog.iter().any(|(_, spec)| has(spec, plan)) => return None,
                None => format!("no ComputeResourceType has a plan {plan}"),
            };
            Some(format!(
                "spec.rules.allowedComputePlans.plans[{index}] ({entry}): {problem}"
            ))
        })
        .collect()
}
