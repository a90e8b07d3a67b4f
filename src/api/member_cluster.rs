//! `MemberCluster`: a cluster of the fleet.

#![allow(
    clippy::duplicated_attributes,
    reason = "the columns of kube's derive look like duplicates"
)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A cluster of the fleet and how to reach it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "boundarypolicy.dev",
    version = "v1alpha1",
    kind = "MemberCluster",
    plural = "memberclusters",
    shortname = "mcl",
    category = "boundary",
    doc = "MemberCluster is a cluster in which BoundaryPolicies are enforced: the one that the operator runs in, or another that it reaches with a kubeconfig from a Secret.",
    status = "MemberClusterStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        description = "The version of the API server."
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether policies can be enforced in the cluster."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why it is ready or not."
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        json_path = ".status.policies.enforcedOf",
        description = "Policies enforced there, of those in whose scope the cluster is."
    ),
    printcolumn(
        name = "Last contact",
        type_ = "date",
        json_path = ".status.lastContactTime",
        description = "Time since the API server last answered.",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.local) ? 1 : 0) + (has(self.kubeconfigSecretRef) ? 1 : 0) + (has(self.argocdSecretRef) ? 1 : 0) == 1",
    "message": "set exactly one of kubeconfigSecretRef, argocdSecretRef and local"
}]))]
pub struct MemberClusterSpec {
    /// The Secret with a kubeconfig for the cluster, in the namespace of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<SecretKeyRef>,

    /// The cluster Secret of Argo CD that tells how the cluster is reached. The operator must be
    /// started with `--argocd-namespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argocd_secret_ref: Option<ArgocdSecretRef>,

    /// Set it to `{}` for the cluster that the operator runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalCluster>,

    /// What becomes of the operator's objects in the cluster when this `MemberCluster` is deleted:
    /// `Delete` (default), in one attempt, or `Retain`.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// What becomes of the operator's objects in a cluster that leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They are deleted, in one attempt: a cluster that does not answer keeps them.
    #[default]
    Delete,
    /// They stay, and go on being enforced by the API server.
    Retain,
}

/// A cluster Secret of Argo CD, in the namespace that the operator looks for them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArgocdSecretRef {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The cluster that the operator runs in. It has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalCluster {}

/// A key of a Secret in the namespace of the operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key whose value is the kubeconfig. `value` by default, as Cluster API and Flux write it.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_key() -> String {
    "value".to_owned()
}

/// What is known of a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The version of the API server, as it states it, for example `v1.30.14`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// The admission policy APIs that it serves, for example
    /// `validatingadmissionpolicies.admissionregistration.k8s.io/v1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apis: Vec<String>,

    /// `Ready`: policies can be enforced there. `Reachable`: the API server answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// Policies in whose scope the cluster is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicyCounts>,

    /// When the API server last answered. It is written when something else changes, and at least
    /// every few minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub last_contact_time: Option<Timestamp>,

    /// Which kubeconfig the API server last answered to: the first half of its SHA-256, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,

    /// Objects that are no longer wanted in the cluster and could not be removed yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub leftovers: Vec<ObjectRef>,
}

/// How many policies are in the scope of a cluster and enforced there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyCounts {
    /// Policies in whose scope the cluster is.
    pub in_scope: u32,
    /// Of them, those in state Enforced.
    pub enforced: u32,
    /// Both, for example `2/3`.
    pub enforced_of: String,
}

/// An object in a member cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// For example `ValidatingAdmissionPolicy`.
    pub kind: String,
    /// The name of the object.
    pub name: String,
}
