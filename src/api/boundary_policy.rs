//! `BoundaryPolicy`: what a platform team asks of everything in a boundary.

#![allow(
    clippy::duplicated_attributes,
    reason = "the columns of kube's derive look like duplicates"
)]

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::patterns::{IMAGE_PREFIX, LABEL_VALUE, TIME};
use super::scope::{MAX_NAMES, bound_selector};
use crate::rules::{RuleName, Rules};

/// What everything in the namespaces of one boundary must look like.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "boundarypolicy.dev",
    version = "v1alpha1",
    kind = "BoundaryPolicy",
    plural = "boundarypolicies",
    shortname = "bpol",
    category = "boundary",
    doc = "BoundaryPolicy holds the rules for everything in the namespaces of one boundary. It is compiled into the admission policies of the API server of every member cluster in its scope; status.clusters says where it is enforced, and where not and why.",
    status = "BoundaryPolicyStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Boundary",
        type_ = "string",
        json_path = ".spec.boundary",
        description = "The boundary whose namespaces are checked."
    ),
    printcolumn(
        name = "Action",
        type_ = "string",
        json_path = ".spec.action",
        description = "What happens to an object that breaks a rule."
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        json_path = ".status.summary.enforcedOf",
        description = "Clusters that enforce the policy, of those in its scope."
    ),
    printcolumn(
        name = "Not enforced in",
        type_ = "string",
        json_path = ".status.summary.notEnforcedIn",
        description = "Clusters in scope that do not enforce the policy, and why."
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether every cluster in scope enforces the policy."
    ),
    printcolumn(
        name = "Rules",
        type_ = "string",
        json_path = ".status.summary.rules",
        description = "The rules of the policy.",
        priority = 1
    ),
    printcolumn(
        name = "Namespaces",
        type_ = "integer",
        json_path = ".status.summary.namespaces",
        description = "Namespaces of the boundary, over all clusters in scope that were counted.",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BoundaryPolicySpec {
    /// The boundary: the value of the label `boundarypolicy.dev/boundary` on its namespaces.
    /// It can't be changed: make another policy for another boundary.
    #[schemars(
        regex(pattern = LABEL_VALUE),
        length(min = 1, max = 63),
        extend("x-kubernetes-validations" = [{
            "rule": "self == oldSelf",
            "message": "boundary can't be changed; create another BoundaryPolicy for the other boundary"
        }])
    )]
    pub boundary: String,

    /// What happens to an object that breaks a rule. `Deny` refuses it. `Warn` admits it and sends
    /// the message as a warning, which kubectl prints. `Audit` admits it and writes the message to
    /// the audit log of the API server.
    #[serde(default)]
    pub action: Action,

    /// The member clusters that the policy is for. Absent: every member cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<ClusterScope>,

    /// The rules. At least one; each at most once.
    pub rules: Rules,

    /// What the rules don't apply to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub exemptions: Vec<Exemption>,

    /// What a cluster does that can't change Pods, about the rules that change them
    /// (`AlwaysPullImages`, `DefaultResources`, `MemoryLimitEqualsRequest`). `Report`: it does nothing
    /// about those rules, and the status says so. `Deny`: it refuses Pods that don't keep them, with
    /// what to set.
    #[serde(default)]
    pub when_mutation_unsupported: WhenMutationUnsupported,
}

/// What a cluster does that can't change Pods, about the rules that change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WhenMutationUnsupported {
    /// Nothing; the status says so.
    #[default]
    Report,
    /// It refuses Pods that don't keep them.
    Deny,
}

// By hand: a derived enum schema with documented variants is a `oneOf`, which is not structural.
impl JsonSchema for WhenMutationUnsupported {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WhenMutationUnsupported".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "enum": ["Report", "Deny"]})
    }
}

/// What happens to an object that breaks a rule.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Action {
    /// The object is refused.
    #[default]
    Deny,
    /// The object is admitted, with a warning.
    Warn,
    /// The object is admitted, with an entry in the audit log.
    Audit,
}

// By hand: a derived enum schema with documented variants is a `oneOf`, which is not structural.
impl JsonSchema for Action {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Action".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "enum": ["Deny", "Warn", "Audit"]})
    }
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 3] = [Self::Deny, Self::Warn, Self::Audit];

    /// The word that stands in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "Deny",
            Self::Warn => "Warn",
            Self::Audit => "Audit",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The member clusters that a policy is for: those named and those selected. At least one of
/// `names` and `selector` is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.names) || has(self.selector)",
    "message": "set names, selector or both; leave clusters out to mean every member cluster"
}]))]
pub struct ClusterScope {
    /// Names of MemberClusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_NAMES), inner(length(min = 1, max = 253)))]
    pub names: Option<Vec<String>>,

    /// Selects MemberClusters by their labels, in addition to those named. An empty selector
    /// selects every member cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = bound_selector)]
    pub selector: Option<LabelSelector>,
}

/// What some rules of a policy don't apply to. An exemption holds for a request when everything
/// that it sets matches; of `users` and `groups`, one is enough.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.namespaces) || has(self.users) || has(self.groups) || has(self.images)",
        "message": "set at least one of namespaces, users, groups and images; an exemption from everything is to leave the rule out"
    },
    {
        "rule": "!has(self.images) || self.rules.all(r, r in ['AllowedRegistries', 'DisallowLatestTag'])",
        "message": "images can be set only where every rule is about images: AllowedRegistries, DisallowLatestTag"
    }
]))]
pub struct Exemption {
    /// Why. For those who read the policy later.
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,

    /// The rules that don't apply.
    #[schemars(length(min = 1, max = 16))]
    pub rules: Vec<RuleName>,

    /// Names of namespaces whose objects are exempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        inner(
            length(min = 1, max = 63),
            regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
        )
    )]
    pub namespaces: Option<Vec<String>>,

    /// Users whose own requests are exempt, as the API server names them
    /// (`system:serviceaccount:NAMESPACE:NAME` for a service account). Pods that a controller makes
    /// for such a user are not exempt: the controller makes that request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 340)))]
    pub users: Option<Vec<String>>,

    /// Groups whose members' own requests are exempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 340)))]
    pub groups: Option<Vec<String>>,

    /// Image prefixes that are exempt: an image that equals one, or continues one after a `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 253), regex(pattern = IMAGE_PREFIX)))]
    pub images: Option<Vec<String>>,

    /// When the exemption ends, in RFC 3339 (`2027-01-31T00:00:00Z`). Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME), extend("format" = "date-time"))]
    pub expires: Option<Timestamp>,
}

/// What became of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BoundaryPolicyStatus {
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`: every cluster in scope enforces the policy. `Reconciling`: a change is on its way.
    /// `Stalled`: nothing more happens until someone changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// Counts over all clusters in scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// What became of the policy in each cluster in scope: at most 100 of them, worst first, then
    /// by name. The counts in `summary` are of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub clusters: Vec<ClusterStatus>,
}

/// How many clusters in scope are in which state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// Clusters in scope.
    pub clusters: u32,
    /// Clusters in state Enforced.
    pub enforced: u32,
    /// Clusters in state Installed.
    pub installed: u32,
    /// Clusters in state Pending.
    pub pending: u32,
    /// Clusters in state PartlyEnforced.
    pub partly_enforced: u32,
    /// Clusters in state Unsupported.
    pub unsupported: u32,
    /// Clusters in state NotEnforced.
    pub not_enforced: u32,
    /// Clusters in state Unreachable.
    pub unreachable: u32,
    /// Clusters in state Forbidden.
    pub forbidden: u32,
    /// Enforced clusters of those in scope, for example `2/3`.
    pub enforced_of: String,
    /// Clusters that don't enforce the policy, each with why, for example
    /// `eu-old (Kubernetes v1.29.15)`; the first few of many.
    pub not_enforced_in: String,
    /// The rules of the policy, for example `RequiredLabels, DisallowLatestTag`.
    pub rules: String,
    /// Namespaces of the boundary, over all clusters in scope where they could be counted.
    pub namespaces: u32,
}

/// What became of a policy in one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The name of the MemberCluster.
    pub name: String,
    /// The version of its API server, as it states it, for example `v1.30.14`. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What became of the policy there.
    pub state: ClusterState,
    /// Why, in one word for programs.
    pub reason: String,
    /// Why, in words for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The generation of the policy that the objects in the cluster are made from. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Namespaces of the boundary there. Absent: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<u32>,
    /// When `state` last changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Timestamp,
}

/// What became of a policy in a cluster. The order is from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ClusterState {
    /// The objects are there, and a request that breaks the policy went through; or the API server
    /// refused the objects.
    NotEnforced,
    /// Kubernetes before 1.30, or `ValidatingAdmissionPolicy` v1 isn't served: nothing is enforced.
    Unsupported,
    /// The credentials lack a permission; the message names it.
    Forbidden,
    /// No contact. What was there last still holds there, unverified since the time given.
    Unreachable,
    /// Some rules can't be enforced there; the message names them.
    PartlyEnforced,
    /// The objects are being applied, or were not yet seen to act.
    Pending,
    /// The objects are there; nothing more can be shown.
    Installed,
    /// The objects are there, and the API server acts on them.
    Enforced,
}

impl ClusterState {
    /// Every state, worst first.
    pub const ALL: [Self; 8] = [
        Self::NotEnforced,
        Self::Unsupported,
        Self::Forbidden,
        Self::Unreachable,
        Self::PartlyEnforced,
        Self::Pending,
        Self::Installed,
        Self::Enforced,
    ];

    /// The word that stands in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotEnforced => "NotEnforced",
            Self::Unsupported => "Unsupported",
            Self::Forbidden => "Forbidden",
            Self::Unreachable => "Unreachable",
            Self::PartlyEnforced => "PartlyEnforced",
            Self::Pending => "Pending",
            Self::Installed => "Installed",
            Self::Enforced => "Enforced",
        }
    }
}

impl fmt::Display for ClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// By hand: a derived enum schema with documented variants is a `oneOf`, which is not structural.
impl JsonSchema for ClusterState {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ClusterState".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let states = Self::ALL.map(Self::as_str);
        schemars::json_schema!({"type": "string", "enum": states})
    }
}
