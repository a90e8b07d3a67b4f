//! The same validation as the schema's, for policies that come from files or that were stored
//! before the schema was what it is.

use std::collections::BTreeMap;
use std::fmt;

use super::boundary_policy::{BoundaryPolicy, Exemption};
use super::patterns::{is_dns_label, is_dns_subdomain, is_image_prefix, is_label_value};
use super::scope::selects;
use crate::rules::RuleName;

/// A field that can't be compiled, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FieldError {
    /// The path of the field, for example `spec.rules.allowedRegistries.registries[2]`.
    pub path: String,
    /// What is wrong with it and what it must be.
    pub message: String,
}

impl FieldError {
    pub(crate) fn new(path: &str, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            message: message.into(),
        }
    }

    pub(crate) fn quoting(path: &str, value: &str, message: &str) -> Self {
        let shown: String = value.chars().take(100).collect();
        Self::new(path, format!("{shown:?} {message}"))
    }

    pub(crate) fn image_prefix(path: &str, prefix: &str) -> Self {
        let message = "is not an image prefix: write it like ghcr.io/acme, at most 8 segments and \
                       253 characters, no scheme, no wildcard, no empty segment";
        Self::quoting(path, prefix, message)
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Everything in `policy` that can't be compiled. Empty: it can.
#[must_use]
pub fn validate(policy: &BoundaryPolicy) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    if !is_dns_subdomain(name) {
        let message = "is not a name: it must be a DNS subdomain, like no-latest";
        errors.push(FieldError::quoting("metadata.name", name, message));
    }
    let spec = &policy.spec;
    if !is_label_value(&spec.boundary) {
        let message = "is not a boundary: it must be a label value of 1 to 63 letters, digits, \
                       '-', '_' and '.', with a letter or digit at both ends";
        errors.push(FieldError::quoting(
            "spec.boundary",
            &spec.boundary,
            message,
        ));
    }
    if let Some(scope) = &spec.clusters
        && scope.names.is_none()
        && scope.selector.is_none()
    {
        let message =
            "set names, selector or both; leave clusters out to mean every member cluster";
        errors.push(FieldError::new("spec.clusters", message));
    }
    if let Err(error) = selects(spec.clusters.as_ref(), "", &BTreeMap::new()) {
        errors.push(error);
    }
    spec.rules.validate("spec.rules", &mut errors);
    if spec.exemptions.len() > 16 {
        errors.push(FieldError::new(
            "spec.exemptions",
            "must have at most 16 items",
        ));
    }
    for (index, exemption) in spec.exemptions.iter().enumerate() {
        validate_exemption(exemption, &format!("spec.exemptions[{index}]"), &mut errors);
    }
    errors
}

fn validate_exemption(exemption: &Exemption, path: &str, errors: &mut Vec<FieldError>) {
    let Exemption {
        reason,
        rules,
        namespaces,
        users,
        groups,
        images,
        expires: _,
    } = exemption;
    if reason.is_empty() || reason.chars().count() > 512 {
        let message = "must say why, in 1 to 512 characters";
        errors.push(FieldError::new(&format!("{path}.reason"), message));
    }
    if rules.is_empty() || rules.len() > 16 {
        errors.push(FieldError::new(
            &format!("{path}.rules"),
            "must have 1 to 16 rules",
        ));
    }
    let lists = [
        ("namespaces", namespaces, 32),
        ("users", users, 16),
        ("groups", groups, 16),
        ("images", images, 16),
    ];
    if lists.iter().all(|(_, list, _)| list.is_none()) {
        let message = "set at least one of namespaces, users, groups and images; an exemption \
                       from everything is to leave the rule out";
        errors.push(FieldError::new(path, message));
    }
    for (field, list, max) in lists {
        let path = format!("{path}.{field}");
        let Some(list) = list else { continue };
        if list.is_empty() || list.len() > max {
            errors.push(FieldError::new(
                &path,
                format!("must have 1 to {max} items"),
            ));
        }
        for (index, item) in list.iter().enumerate() {
            let path = format!("{path}[{index}]");
            match field {
                "namespaces" if !is_dns_label(item) => {
                    errors.push(FieldError::quoting(
                        &path,
                        item,
                        "is not the name of a namespace",
                    ));
                }
                "images" if !is_image_prefix(item) => {
                    errors.push(FieldError::image_prefix(&path, item));
                }
                "users" | "groups" if item.is_empty() || item.chars().count() > 340 => {
                    errors.push(FieldError::quoting(
                        &path,
                        item,
                        "must have 1 to 340 characters",
                    ));
                }
                _ => {}
            }
        }
    }
    let image_rules = [RuleName::AllowedRegistries, RuleName::DisallowLatestTag];
    if images.is_some() && rules.iter().any(|rule| !image_rules.contains(rule)) {
        let message = "can be set only where every rule is about images: AllowedRegistries, \
                       DisallowLatestTag";
        errors.push(FieldError::new(&format!("{path}.images"), message));
    }
}
