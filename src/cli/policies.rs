//! Documents into policies, types of resources and the boundaries of namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::input::{Diagnostics, Document};
use super::schema;
use crate::api::{BoundaryPolicy, FieldError, GROUP, validate, validate_resource_type};
use crate::plans::Catalog;

/// Labels of namespaces, by name.
pub(super) type Namespaces = BTreeMap<String, BTreeMap<String, String>>;

/// The policies in `documents`, each of them valid, sorted by name.
pub(super) fn policies(
    documents: &[Document],
    problems: &mut Diagnostics,
) -> BTreeMap<String, BoundaryPolicy> {
    let schema = schema::resource("BoundaryPolicy");
    let mut policies = BTreeMap::new();
    let mut seen: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for document in documents {
        match (document.text("/kind"), document.text("/apiVersion")) {
            ("BoundaryPolicy", "boundarypolicy.dev/v1alpha1") => {}
            ("BoundaryPolicy", _) => {
                let message = format!("a BoundaryPolicy is of {GROUP}/v1alpha1");
                problems.field(document, "apiVersion", &message);
                continue;
            }
            // They stand beside policies, and say nothing about what policies compile to.
            ("Namespace", "v1")
            | ("MemberCluster" | "ComputeResourceType", "boundarypolicy.dev/v1alpha1") => continue,
            (kind, api_version) => {
                let message = format!(
                    "{kind} of {api_version} is not a BoundaryPolicy or ComputeResourceType \
                     ({GROUP}/v1alpha1) or a Namespace (v1)"
                );
                problems.field(document, "kind", &message);
                continue;
            }
        }
        if let Some(policy) = read(document, &schema, validate, problems)
            && named_once(document, "policy", &mut seen, problems)
        {
            policies.insert(policy.name_any(), policy);
        }
    }
    if policies.is_empty() && problems.0.is_empty() {
        problems.file("", "no BoundaryPolicy was found in the policies given");
    }
    policies
}

/// The types of resources in `documents`, each of them valid.
pub(super) fn catalog(documents: &[Document], problems: &mut Diagnostics) -> Arc<Catalog> {
    let schema = schema::resource("ComputeResourceType");
    let mut types = Vec::new();
    let mut seen = BTreeMap::new();
    for document in documents {
        let kind = (document.text("/kind"), document.text("/apiVersion"));
        if kind == ("ComputeResourceType", "boundarypolicy.dev/v1alpha1")
            && let Some(of) = read(document, &schema, validate_resource_type, problems)
            && named_once(document, "ComputeResourceType", &mut seen, problems)
        {
            types.push(of);
        }
    }
    Arc::new(Catalog::of(&types).0)
}

/// Whether no document before has the name of this one.
fn named_once<'d>(
    document: &'d Document,
    what: &str,
    seen: &mut BTreeMap<String, (&'d str, usize)>,
    problems: &mut Diagnostics,
) -> bool {
    let name = document.text("/metadata/name");
    if let Some((file, number)) = seen.get(name) {
        let message = format!("{name:?} is the name of another {what}: {file}, document {number}");
        problems.field(document, "metadata.name", &message);
        return false;
    }
    seen.insert(name.to_owned(), (&document.file, document.number));
    true
}

/// A resource of ours in a document, if it is valid.
fn read<K: DeserializeOwned>(
    document: &Document,
    schema: &Value,
    validate: impl Fn(&K) -> Vec<FieldError>,
    problems: &mut Diagnostics,
) -> Option<K> {
    let before = problems.0.len();
    schema::check(document, schema, problems);
    // What an operator wrote there is not read.
    let mut value = document.value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    drop_nulls(&mut value);
    match serde_json::from_value(value) {
        Ok(resource) => {
            for error in validate(&resource) {
                problems.field(document, &error.path, &error.message);
            }
            (problems.0.len() == before).then_some(resource)
        }
        Err(error) => {
            if problems.0.len() == before {
                problems.field(document, "", &error.to_string());
            }
            None
        }
    }
}

/// Removes fields that are null, as the API server does.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The namespaces in `documents`.
pub(super) fn namespaces<'d>(
    documents: impl IntoIterator<Item = &'d Document>,
    problems: &mut Diagnostics,
) -> Namespaces {
    let mut namespaces = Namespaces::new();
    for document in documents {
        if (document.text("/apiVersion"), document.text("/kind")) != ("v1", "Namespace") {
            continue;
        }
        let name = document.text("/metadata/name");
        if name.is_empty() {
            problems.field(document, "metadata", "a Namespace must have a name");
            continue;
        }
        let mut labels = BTreeMap::new();
        let given = document.value.pointer("/metadata/labels");
        match given {
            None | Some(Value::Null) => {}
            Some(Value::Object(given)) => {
                for (key, value) in given {
                    if let Some(value) = value.as_str() {
                        labels.insert(key.clone(), value.to_owned());
                    } else {
                        let path = format!("metadata.labels[{key}]");
                        problems.field(document, &path, "must be text; quote it");
                    }
                }
            }
            Some(_) => problems.field(document, "metadata.labels", "must be an object"),
        }
        match namespaces.get(name) {
            Some(other) if *other != labels => {
                let message = format!("{name:?} is given twice, with different labels");
                problems.field(document, "metadata.name", &message);
            }
            _ => {
                namespaces.insert(name.to_owned(), labels);
            }
        }
    }
    namespaces
}
