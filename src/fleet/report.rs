//! What a member cluster's task tells.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;

use super::failure::Verdict;
use crate::api::{BoundaryPolicy, ObjectRef};
use crate::plans::Catalog;

/// What is wanted in a cluster. Equal means nothing to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The policies: valid, in the scope of the cluster, and nothing of them but what the output
    /// depends on. Of those that it is not in the scope of, the rule that knows no scope.
    pub policies: Vec<Arc<BoundaryPolicy>>,
    /// The types of resources.
    pub catalog: Arc<Catalog>,
}

impl Deref for Wanted {
    type Target = [Arc<BoundaryPolicy>];

    fn deref(&self) -> &Self::Target {
        &self.policies
    }
}

impl FromIterator<Arc<BoundaryPolicy>> for Wanted {
    /// Without types of resources.
    fn from_iter<I: IntoIterator<Item = Arc<BoundaryPolicy>>>(policies: I) -> Self {
        Self {
            policies: policies.into_iter().collect(),
            catalog: Arc::default(),
        }
    }
}

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The name of its `MemberCluster`.
    pub cluster: String,
    /// Which of the tasks of that name tells it; counted up.
    pub incarnation: u64,
    /// What tells the kubeconfig of the task from others.
    pub credentials: Option<String>,
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
    /// What was last seen to act of each policy, and when, by the tasks before, which knew the
    /// cluster by another kubeconfig.
    pub before: BTreeMap<String, (i64, Timestamp)>,
}

impl Report {
    /// Takes over what a report before this one knows and no task since has seen for itself.
    pub(crate) fn follow(&mut self, mut known: Self) {
        let differs = |(a, b)| a != b;
        if (self.identity.as_ref().zip(known.identity.as_ref())).is_some_and(differs) {
            return;
        }
        self.before = std::mem::take(&mut known.before);
        if self.incarnation != known.incarnation {
            let policies = known.policies.into_iter();
            self.before
                .extend(policies.filter_map(|(name, told)| Some((name, told.proven?))));
        }
    }

    /// When a policy was last seen to act, and at which generation.
    pub(crate) fn proven(&self, policy: &str) -> Option<(i64, Timestamp)> {
        let told = self.policies.get(policy).and_then(|told| told.proven);
        told.or_else(|| self.before.get(policy).copied())
    }
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
