//! How what a task does is counted.

use std::collections::BTreeMap;

use super::failure::{Failure, Verdict};
use crate::api::ClusterState;
use crate::telemetry::{Attempt, Proof};

impl Attempt {
    /// How an attempt ended that says whether everything is as it should be.
    pub(super) fn of(applied: &Result<bool, Failure>) -> Self {
        match applied {
            Ok(true) => Self::Applied,
            Ok(false) => Self::Incomplete,
            Err(_) => Self::Failed,
        }
    }
}

impl Proof {
    /// How the proof of an object ended, by the worst of its policies. Nothing where nothing was
    /// asked.
    pub(super) fn of(proven: &Result<BTreeMap<String, Verdict>, Failure>) -> Option<Self> {
        let Ok(verdicts) = proven else {
            return Some(Self::Failed);
        };
        let any = |state| verdicts.values().any(|verdict| verdict.state == state);
        if any(ClusterState::NotEnforced) || any(ClusterState::PartlyEnforced) {
            Some(Self::NotEnforced)
        } else if any(ClusterState::Pending) {
            Some(Self::Blocked)
        } else if any(ClusterState::Enforced) {
            Some(Self::Proven)
        } else {
            None
        }
    }
}
