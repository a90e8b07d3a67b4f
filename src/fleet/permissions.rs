//! What the operator may do in a cluster: what its credentials need, and what of it they lack.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::Instant;

use super::backoff::jitter;
use super::failure::{Failure, Verdict, limited};
use super::target::Target;
use crate::api::{ClusterState, GROUP};
use crate::compile::{GUARDED_RESOURCE, GUARDED_VERB, PROBE_NAMESPACE};

/// Questions to one API server at the same time.
const CONCURRENT: usize = 4;

/// The API group of admission policies.
const ADMISSION: &str = "admissionregistration.k8s.io";

/// A verb on a resource, as RBAC grants it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Permission {
    pub(crate) verb: Cow<'static, str>,
    pub(crate) group: Cow<'static, str>,
    /// With its subresource, as `pods/status`.
    pub(crate) resource: Cow<'static, str>,
    /// Empty: in the whole cluster.
    pub(crate) namespace: Cow<'static, str>,
    /// Empty: every one.
    pub(crate) name: Cow<'static, str>,
}

impl Permission {
    /// A verb on every object of a resource, in the whole cluster.
    pub(crate) fn new(verb: &'static str, group: &'static str, resource: &'static str) -> Self {
        Self {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            ..Self::default()
        }
    }

    /// The same on the object of that name.
    pub(crate) fn on(self, name: &'static str) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// The same in a namespace.
    pub(crate) fn within(self, namespace: impl Into<Cow<'static, str>>) -> Self {
        Self {
            namespace: namespace.into(),
            ..self
        }
    }

    fn review(&self) -> SelfSubjectAccessReview {
        let set = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
        let (resource, subresource) = (self.resource.split_once('/'))
            .map_or((self.resource.as_ref(), ""), |(resource, sub)| {
                (resource, sub)
            });
        SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: set(&self.verb),
                    group: set(&self.group),
                    resource: set(resource),
                    subresource: set(subresource),
                    namespace: set(&self.namespace),
                    name: set(&self.name),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        }
    }
}

/// `create pods in namespace boundary-operator-probe`, `get namespaces kube-system`.
impl fmt::Display for Permission {
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

/// What the operator needs in a member cluster: what `config/rbac/member.yaml` grants, without what
/// is for proofs where there are none, and without what the guard asks for where there is none.
pub(crate) fn in_member(proving: bool, guarding: bool) -> Vec<Permission> {
    let mut needed = Vec::new();
    for resource in [
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        for verb in ["list", "watch", "create", "update", "delete"] {
            needed.push(Permission::new(verb, ADMISSION, resource));
        }
    }
    needed.push(Permission::new("list", "", "namespaces"));
    needed.push(Permission::new("get", "", "namespaces").on("kube-system"));
    for verb in ["get", "watch", "delete"] {
        needed.push(Permission::new(verb, "", "namespaces").on(PROBE_NAMESPACE));
    }
    if proving {
        needed.push(Permission::new("create", "", "namespaces"));
        needed.push(Permission::new("patch", "", "namespaces").on(PROBE_NAMESPACE));
        needed.push(Permission::new("create", "", "pods").within(PROBE_NAMESPACE));
        if guarding {
            needed.push(Permission::new(GUARDED_VERB, GROUP, GUARDED_RESOURCE));
        }
    }
    needed
}

/// Those of `needed` that whoever `client` is does not have.
///
/// # Errors
/// It can't be asked.
pub(crate) async fn lacking(
    client: &Client,
    timeout: Duration,
    needed: Vec<Permission>,
) -> Result<Vec<Permission>, Failure> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let params = PostParams::default();
    let asked = needed.into_iter().map(|permission| {
        let (api, params) = (&api, &params);
        async move {
            let review = permission.review();
            let answer = limited(timeout, api.create(params, &review)).await?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            Ok::<_, Failure>((!allowed).then_some(permission))
        }
    });
    let answers: Vec<_> = stream::iter(asked)
        .buffered(CONCURRENT)
        .try_collect()
        .await?;
    Ok(answers.into_iter().flatten().collect())
}

/// What the credentials for a cluster lack, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Access {
    lacking: Vec<Permission>,
    /// When it is asked again without a reason. Absent: it was not asked yet.
    next: Option<Instant>,
}

impl Access {
    /// Asks what is lacking: if there is a `reason` to, if something was, or if it is time, which is
    /// once in `interval`. What can't be asked stays as it was.
    pub(crate) async fn look(
        &mut self,
        target: &Target,
        needed: Vec<Permission>,
        interval: Duration,
        reason: bool,
    ) {
        let now = Instant::now();
        let due = self.next.is_none_or(|next| next <= now);
        if !(reason || due || !self.lacking.is_empty()) {
            return;
        }
        match lacking(&target.client, target.timeout, needed).await {
            Ok(lacking) => {
                if lacking != self.lacking {
                    tracing::info!(
                        lacking = named(&lacking),
                        "what the credentials lack changed"
                    );
                }
                self.lacking = lacking;
                self.next = Some(now + jitter(interval));
            }
            Err(failure) => tracing::debug!(%failure, "what the credentials lack can't be asked"),
        }
    }

    /// Takes for known that nothing is lacking.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether everything is there that is needed, as far as it is known.
    pub(crate) fn suffices(&self) -> bool {
        self.lacking.is_empty()
    }

    /// What it means for every policy that something is lacking, if it is.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        verdict(&self.lacking)
    }
}

fn verdict(lacking: &[Permission]) -> Option<Verdict> {
    if lacking.is_empty() {
        return None;
    }
    let text = format!(
        "the credentials lack permissions: {}; apply config/rbac/member.yaml in the cluster",
        named(lacking)
    );
    Some(Verdict::new(ClusterState::Forbidden, "Forbidden", text))
}

/// All of them, in one line.
pub(crate) fn named(permissions: &[Permission]) -> String {
    let names: Vec<_> = permissions.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// What the rules of the roles in a manifest grant.
#[cfg(test)]
pub(crate) fn granted(manifest: &str) -> std::collections::BTreeSet<Permission> {
    use serde_json::Value;

    let texts = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = std::collections::BTreeSet::new();
    for document in manifest.split("\n---\n") {
        let role: Value = serde_saphyr::from_str(document).unwrap();
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().into_iter().flatten() {
            let mut names = texts(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for verb in texts(&rule["verbs"]) {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for name in &names {
                            let new = granted.insert(Permission {
                                verb: verb.clone().into(),
                                group: group.clone().into(),
                                resource: resource.clone().into(),
                                namespace: namespace.to_owned().into(),
                                name: name.clone().into(),
                            });
                            assert!(new, "{verb} {resource} is granted twice");
                        }
                    }
                }
            }
        }
    }
    granted
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_role_grants_what_is_needed_and_nothing_more() {
        let needed: BTreeSet<_> = in_member(true, true).into_iter().collect();
        let granted = granted(include_str!("../../config/rbac/member.yaml"));
        assert_eq!(needed, granted);
    }

    #[test]
    fn every_missing_permission_is_named_where_all_are() {
        let all = in_member(true, true);
        let message = verdict(&all).unwrap().message;
        for permission in &all {
            assert!(message.contains(&permission.to_string()), "{permission}");
        }
        assert!(message.ends_with("apply config/rbac/member.yaml in the cluster"));
        assert_eq!(verdict(&[]), None);
    }

    #[test]
    fn less_is_needed_without_proofs_and_guard() {
        let named = named(&in_member(false, true));
        assert!(
            !named.contains("pods") && !named.contains("assign"),
            "{named}"
        );
        assert!(!super::named(&in_member(true, false)).contains("assign"));
    }
}
