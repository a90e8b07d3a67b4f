//! What a member cluster's task tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::failure::Verdict;
use crate::api::{BoundaryPolicy, ObjectRef};

/// The policies wanted in a cluster: valid, in its scope, and nothing of them but what the output
/// depends on, so that equal means nothing to do.
pub type Wanted = Vec<Arc<BoundaryPolicy>>;

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The name of its `MemberCluster`.
    pub cluster: String,
    /// Which of the tasks of that name tells it; counted up.
    pub incarnation: u64,
    /// The version of its API server.
    pub version: Option<String>,
    /// What tells it from every other cluster: the uid of its namespace `kube-system`.
    pub identity: Option<String>,
    /// The admission policy APIs that it serves.
    pub apis: Vec<String>,
    /// When it last answered.
    pub last_contact: Option<Timestamp>,
    /// Whether its certificate is not verified.
    pub insecure: bool,
    /// What holds for every policy there, whatever else is known of it.
    pub problem: Option<Verdict>,
    /// What became of each policy.
    pub policies: BTreeMap<String, PolicyReport>,
    /// Namespaces by boundary, where they could be counted.
    pub namespaces: Option<BTreeMap<String, u32>>,
    /// What became of the guard on the boundary label, where it is wanted.
    pub guard: Option<Verdict>,
    /// Objects of ours that are there and no longer wanted.
    pub leftovers: BTreeSet<ObjectRef>,
    /// What was put right since the report before.
    pub repairs: Vec<Repair>,
}

/// Something that another had done to an object of ours, and that was undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The name of the object.
    pub object: String,
    /// The policies inside.
    pub policies: Vec<String>,
    /// Whether it was gone rather than changed.
    pub deleted: bool,
}

/// What became of a policy in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyReport {
    /// The generation that the task was asked for.
    pub wanted: i64,
    /// The generation that is there.
    pub generation: Option<i64>,
    /// What became of it.
    pub verdict: Verdict,
    /// The generation that was last seen to act, and when.
    pub proven: Option<(i64, Timestamp)>,
}
