//! The roles in `config/rbac`, verb by verb.

use std::fmt;

use kube::Client;
use serde_json::{Value, json};

use crate::world::grant;

pub(crate) const MEMBER: &str = include_str!("../../config/rbac/member.yaml");

/// One verb on one resource, as a role grants it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) verb: String,
    pub(crate) group: String,
    /// With its subresource.
    pub(crate) resource: String,
    /// Empty: every one.
    pub(crate) name: String,
    /// Empty: in the whole cluster.
    pub(crate) namespace: String,
}

/// As the operator names it.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in namespace {}", self.namespace)?;
        }
        Ok(())
    }
}

/// Everything that the roles in a manifest grant, a verb at a time.
pub(crate) fn grants(manifest: &str) -> Vec<Grant> {
    let documents = documents(manifest);
    documents.iter().flat_map(grants_of).collect()
}

fn documents(manifest: &str) -> Vec<Value> {
    let documents = manifest.split("\n---\n");
    documents
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

fn grants_of(role: &Value) -> Vec<Grant> {
    let texts = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut grants = Vec::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let mut names = texts(&rule["resourceNames"]);
        if names.is_empty() {
            names.push(String::new());
        }
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    for name in &names {
                        grants.push(Grant {
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                            namespace: namespace.to_owned(),
                        });
                    }
                }
            }
        }
    }
    grants
}

/// Gives the operator what the manifest grants, without `taken`.
pub(crate) async fn grant_without(client: &Client, manifest: &str, taken: &[Grant]) {
    let mut documents = documents(manifest);
    documents.retain(|document| document.get("rules").is_some());
    for role in &mut documents {
        let kept = grants_of(role).into_iter().filter(|g| !taken.contains(g));
        let rules = kept.map(|grant| {
            let mut rule = json!({
                "apiGroups": [grant.group],
                "resources": [grant.resource],
                "verbs": [grant.verb],
            });
            if !grant.name.is_empty() {
                rule["resourceNames"] = json!([grant.name]);
            }
            rule
        });
        role["rules"] = rules.collect();
        grant(client, &role.to_string()).await;
    }
}
