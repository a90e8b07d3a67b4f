//! `ComputeResourceType`: a type of resource that a platform offers, and its compute plans.

#![allow(
    clippy::duplicated_attributes,
    reason = "the columns of kube's derive look like duplicates"
)]

use std::collections::BTreeSet;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FieldError;
use super::patterns::{
    FIELD_NAME, FIELD_PATH, FIELD_PATH_MAX, LABEL_VALUE, is_dns_label, is_dns_subdomain,
    is_field_name, is_field_path, is_label_value,
};

/// The most plans of a type. All of their names have room in one message.
const MAX_PLANS: usize = 50;

/// The most kinds of objects that are of one type.
const MAX_TARGETS: usize = 8;

/// The most fields of a kind that hold plans.
const MAX_FIELDS: usize = 4;

const MAX_VERSIONS: usize = 16;
const MAX_DISPLAY_NAME: usize = 128;
const MAX_DESCRIPTION: usize = 512;

const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const DNS_SUBDOMAIN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const KIND: &str = "^[A-Za-z][A-Za-z0-9]*$";
const API_VERSION: &str = r"^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$";

/// A type of resource that a platform offers, and its compute plans.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "boundarypolicy.dev",
    version = "v1alpha1",
    kind = "ComputeResourceType",
    plural = "computeresourcetypes",
    shortname = "crt",
    category = "boundary",
    doc = "ComputeResourceType is a type of resource that a platform offers, such as valkey, with the compute plans that it comes in. The rule allowedComputePlans of a BoundaryPolicy names them.",
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("the name of a type must be a DNS label: at most 63 lower case letters, digits and '-', with a letter or digit at both ends"),
    printcolumn(
        name = "Display name",
        type_ = "string",
        json_path = ".spec.displayName",
        description = "How people call the type."
    ),
    printcolumn(
        name = "Plans",
        type_ = "string",
        json_path = ".spec.plans[*].name",
        description = "Its compute plans."
    ),
    printcolumn(
        name = "Checked",
        type_ = "boolean",
        json_path = ".spec.checked",
        description = "Whether resources of the type are refused for their plan."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ComputeResourceTypeSpec {
    /// How people call the type. Absent: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_DISPLAY_NAME))]
    pub display_name: Option<String>,

    /// Its plans, in the order in which they are shown.
    #[schemars(
        length(min = 1, max = MAX_PLANS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub plans: Vec<ComputePlan>,

    /// Whether resources of the type are refused for their plan. If not, a plan picker greys plans
    /// out and nothing else happens; `targets` are not looked at.
    #[serde(default = "yes")]
    pub checked: bool,

    /// The kinds of objects that are resources of the type. In the namespaces of a boundary the API
    /// server checks their plans itself. None: the type is known to the platform only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_TARGETS))]
    pub targets: Vec<PlanTarget>,
}

fn yes() -> bool {
    true
}

/// A compute plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputePlan {
    /// The name of the plan, as resources and policies write it.
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub name: String,
    /// How people call the plan. Absent: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_DISPLAY_NAME))]
    pub display_name: Option<String>,
    /// What one gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_DESCRIPTION))]
    pub description: Option<String>,
}

/// A kind of namespaced objects, and the fields of it that hold plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanTarget {
    /// The API group, for example `platform.example.com`.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub group: String,
    /// Versions in which the fields below are where they are said to be, or `*` for all. What is
    /// written in another version is looked at in one of these.
    #[schemars(
        length(min = 1, max = MAX_VERSIONS),
        inner(length(min = 1, max = 63), regex(pattern = API_VERSION)),
        extend("x-kubernetes-validations" = [{
            "rule": "self.size() == 1 || !('*' in self)",
            "message": "'*' must stand alone"
        }])
    )]
    pub versions: Vec<String>,
    /// The resource: the plural in paths, for example `valkeys`.
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    pub resource: String,
    /// The kind, for example `Valkey`.
    #[schemars(length(min = 1, max = 63), regex(pattern = KIND))]
    pub kind: String,
    /// The fields that hold plans.
    #[schemars(length(min = 1, max = MAX_FIELDS))]
    pub plan_fields: Vec<PlanField>,
}

/// A field that holds a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.path.contains('[*]') == has(self.key)",
        "message": "key must be set where path goes through a list ([*]), and only there"
    },
    {
        "rule": "self.path.split('.').size() <= 8",
        "message": "path must have at most 8 names"
    }
]))]
pub struct PlanField {
    /// The path of the field, for example `spec.plan`. `[*]` after the name of a list stands for each
    /// of its items: `spec.components[*].plan`; one list at most, and not at the end. At most 8
    /// names.
    #[schemars(length(min = 1, max = FIELD_PATH_MAX), regex(pattern = FIELD_PATH))]
    pub path: String,
    /// The field that tells the items of the list from each other, for example `name`. An item keeps
    /// its plan only if no other has the same value there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = FIELD_NAME))]
    pub key: Option<String>,
}

/// Everything in `resource_type` that can't be used. Empty: it can.
#[must_use]
pub fn validate_resource_type(resource_type: &ComputeResourceType) -> Vec<FieldError> {
    let mut errors = Errors(Vec::new());
    let name = resource_type.metadata.name.as_deref().unwrap_or_default();
    errors.must(is_dns_label(name), "metadata.name", name, "is not the name of a type: it must be a DNS label, at most 63 lower case letters, digits and '-'");
    let ComputeResourceTypeSpec {
        display_name,
        plans,
        checked: _,
        targets,
    } = &resource_type.spec;
    errors.text(
        "spec.displayName",
        display_name.as_deref(),
        MAX_DISPLAY_NAME,
    );
    errors.count("spec.plans", plans.len(), 1, MAX_PLANS);
    let mut names = BTreeSet::new();
    for (index, plan) in plans.iter().enumerate() {
        let path = format!("spec.plans[{index}]");
        let at = format!("{path}.name");
        errors.must(is_label_value(&plan.name), &at, &plan.name, "is not the name of a plan: it must have 1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends");
        errors.must(
            names.insert(&plan.name),
            &at,
            &plan.name,
            "is the name of another plan",
        );
        errors.text(
            &format!("{path}.displayName"),
            plan.display_name.as_deref(),
            MAX_DISPLAY_NAME,
        );
        errors.text(
            &format!("{path}.description"),
            plan.description.as_deref(),
            MAX_DESCRIPTION,
        );
    }
    errors.count("spec.targets", targets.len(), 0, MAX_TARGETS);
    for (index, target) in targets.iter().enumerate() {
        errors.target(&format!("spec.targets[{index}]"), target);
    }
    errors.0
}

struct Errors(Vec<FieldError>);

impl Errors {
    fn must(&mut self, holds: bool, path: &str, value: &str, message: &str) {
        if !holds {
            self.0.push(FieldError::quoting(path, value, message));
        }
    }

    fn count(&mut self, path: &str, count: usize, min: usize, max: usize) {
        if !(min..=max).contains(&count) {
            let message = format!("must have {min} to {max} items");
            self.0.push(FieldError::new(path, message));
        }
    }

    fn text(&mut self, path: &str, text: Option<&str>, max: usize) {
        if let Some(text) = text
            && !(1..=max).contains(&text.chars().count())
        {
            let message = format!("must have 1 to {max} characters");
            self.0.push(FieldError::new(path, message));
        }
    }

    fn target(&mut self, path: &str, target: &PlanTarget) {
        let PlanTarget {
            group,
            versions,
            resource,
            kind,
            plan_fields,
        } = target;
        self.must(
            is_dns_subdomain(group),
            &format!("{path}.group"),
            group,
            "is not an API group, like platform.example.com",
        );
        let at = format!("{path}.versions");
        self.count(&at, versions.len(), 1, MAX_VERSIONS);
        for version in versions {
            let valid = is_dns_label(version) || (version == "*" && versions.len() == 1);
            self.must(
                valid,
                &at,
                version,
                "is not a version: write it like v1; '*' must stand alone",
            );
        }
        self.must(
            is_dns_label(resource),
            &format!("{path}.resource"),
            resource,
            "is not a resource: write its plural, like valkeys",
        );
        let letters = kind.starts_with(|c: char| c.is_ascii_alphabetic())
            && kind.len() <= 63
            && kind.bytes().all(|b| b.is_ascii_alphanumeric());
        self.must(
            letters,
            &format!("{path}.kind"),
            kind,
            "is not a kind, like Valkey",
        );
        self.count(
            &format!("{path}.planFields"),
            plan_fields.len(),
            1,
            MAX_FIELDS,
        );
        for (index, field) in plan_fields.iter().enumerate() {
            let path = format!("{path}.planFields[{index}]");
            self.must(is_field_path(&field.path), &format!("{path}.path"), &field.path, "is not the path of a field: write it like spec.plan or spec.components[*].plan, at most 8 names and 256 characters, one list at most and not at the end");
            if field.path.contains("[*]") != field.key.is_some() {
                let message =
                    "key must be set where path goes through a list ([*]), and only there";
                self.0.push(FieldError::new(&path, message));
            }
            if let Some(key) = &field.key {
                let valid = is_field_name(key) && key.len() <= 63;
                self.must(
                    valid,
                    &format!("{path}.key"),
                    key,
                    "is not the name of a field, like name",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(spec: &str) -> Vec<String> {
        let text = format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: ComputeResourceType\n\
             metadata: {{name: valkey}}\nspec: {{{spec}}}"
        );
        let resource_type: ComputeResourceType = serde_saphyr::from_str(&text).unwrap();
        let errors = validate_resource_type(&resource_type);
        errors.iter().map(ToString::to_string).collect()
    }

    const PLANS: &str = "plans: [{name: small}]";

    #[rstest::rstest]
    #[case::smallest("", "")]
    #[case::target(
        "targets: [{group: a.b, versions: ['*'], resource: rs, kind: R, planFields: [{path: spec.plan}]}]",
        ""
    )]
    #[case::version(
        "targets: [{group: a.b, versions: [v1, '*'], resource: rs, kind: R, planFields: [{path: spec.plan}]}]",
        "spec.targets[0].versions: \"*\" is not a version: write it like v1; '*' must stand alone"
    )]
    #[case::no_key(
        "targets: [{group: a.b, versions: [v1], resource: rs, kind: R, planFields: [{path: 'spec.a[*].plan'}]}]",
        "spec.targets[0].planFields[0]: key must be set where path goes through a list ([*]), and only there"
    )]
    #[case::no_list(
        "targets: [{group: a.b, versions: [v1], resource: rs, kind: R, planFields: [{path: spec.plan, key: name}]}]",
        "spec.targets[0].planFields[0]: key must be set where path goes through a list ([*]), and only there"
    )]
    #[case::core_group(
        "targets: [{group: '', versions: [v1], resource: rs, kind: R, planFields: [{path: spec.plan}]}]",
        "spec.targets[0].group: \"\" is not an API group, like platform.example.com"
    )]
    fn targets(#[case] more: &str, #[case] error: &str) {
        let expected: Vec<_> = (!error.is_empty())
            .then(|| error.to_owned())
            .into_iter()
            .collect();
        assert_eq!(errors(&format!("{PLANS}, {more}")), expected);
    }

    #[test]
    fn plans_are_named_once_and_have_a_name() {
        assert_eq!(
            errors("plans: [{name: small}, {name: small}, {name: \"a'b\"}]"),
            [
                "spec.plans[1].name: \"small\" is the name of another plan",
                "spec.plans[2].name: \"a'b\" is not the name of a plan: it must have 1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
            ]
        );
        assert_eq!(errors("plans: []"), ["spec.plans: must have 1 to 50 items"]);
    }
}
