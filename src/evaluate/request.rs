//! What the API server would be asked.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::defaults::{default_pod, default_pod_level};

/// A kind whose objects are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "they are the kinds of Kubernetes")]
pub enum Kind {
    Pod,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Pod,
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Job,
        Self::CronJob,
    ];

    /// The kind of an object, if it is checked.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let api_version = object.get("apiVersion")?.as_str()?;
        let kind = object.get("kind")?.as_str()?;
        Self::ALL
            .into_iter()
            .find(|candidate| candidate.as_str() == kind && candidate.api_version() == api_version)
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
        }
    }

    /// Its resource.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Deployment => "deployments",
            Self::ReplicaSet => "replicasets",
            Self::StatefulSet => "statefulsets",
            Self::DaemonSet => "daemonsets",
            Self::Job => "jobs",
            Self::CronJob => "cronjobs",
        }
    }

    /// Its API group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::Pod => "",
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet | Self::DaemonSet => "apps",
            Self::Job | Self::CronJob => "batch",
        }
    }

    /// Its API group and version.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self.group() {
            "" => "v1",
            "apps" => "apps/v1",
            _ => "batch/v1",
        }
    }
}

/// What is done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
}

impl Operation {
    /// The word of the admission API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
        }
    }
}

/// A request, as an API server would judge it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The kind of the object.
    pub kind: Kind,
    /// The subresource, for example `ephemeralcontainers`; empty: none.
    pub sub_resource: &'a str,
    /// What is done to the object.
    pub operation: Operation,
    /// The object as it is to be.
    pub object: &'a Value,
    /// The object as it was; on an update only.
    pub old_object: Option<&'a Value>,
    /// The namespace of the object.
    pub namespace: &'a str,
    /// The labels of the namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Who asks.
    pub user: &'a str,
    /// The groups of who asks.
    pub groups: &'a [String],
}

/// A request about an object of any kind, as an API server would judge it.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRequest<'a> {
    /// The API group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The resource, for example `valkeys`.
    pub resource: &'a str,
    /// The subresource; empty: none.
    pub sub_resource: &'a str,
    /// What is done to the object.
    pub operation: Operation,
    /// The object as it is to be.
    pub object: &'a Value,
    /// The object as it was; on an update only.
    pub old_object: Option<&'a Value>,
    /// The namespace of the object.
    pub namespace: &'a str,
    /// The labels of the namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Who asks.
    pub user: &'a str,
    /// The groups of who asks.
    pub groups: &'a [String],
}

impl<'a> From<&Request<'a>> for ObjectRequest<'a> {
    fn from(request: &Request<'a>) -> Self {
        Self {
            group: request.kind.group(),
            version: "v1",
            resource: request.kind.plural(),
            sub_resource: request.sub_resource,
            operation: request.operation,
            object: request.object,
            old_object: request.old_object,
            namespace: request.namespace,
            namespace_labels: request.namespace_labels,
            user: request.user,
            groups: request.groups,
        }
    }
}

impl ObjectRequest<'_> {
    /// The resource and subresource, as rules name them.
    pub(super) fn rule_resource(&self) -> String {
        match self.sub_resource {
            "" => self.resource.to_owned(),
            sub_resource => format!("{}/{sub_resource}", self.resource),
        }
    }
}

/// `object` with what the API server adds to it before it is judged, as far as a rule sees it: a
/// Job without labels gets those of its template, and a Pod the defaults of its containers.
pub(super) fn defaulted<'v>(request: &ObjectRequest<'_>, object: &'v Value) -> Cow<'v, Value> {
    if (request.group, request.resource) == ("", "pods") {
        let mut pod = object.clone();
        default_pod(&mut pod);
        default_pod_level(&mut pod);
        return Cow::Owned(pod);
    }
    let job = (request.group, request.resource) == ("batch", "jobs");
    let empty = |labels: &Value| labels.as_object().is_none_or(serde_json::Map::is_empty);
    let labels = object.pointer("/metadata/labels");
    let template = object.pointer("/spec/template/metadata/labels");
    match template {
        Some(template) if job && labels.is_none_or(empty) && !empty(template) => {
            let mut labelled = object.clone();
            labelled["metadata"]["labels"] = template.clone();
            Cow::Owned(labelled)
        }
        _ => Cow::Borrowed(object),
    }
}
