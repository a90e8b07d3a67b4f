//! What became of the guard on the boundary label.

use super::apply::Outcome;
use super::failure::{Failure, Verdict};
use crate::api::ClusterState;
use crate::compile::GUARD;
use crate::telemetry::Attempt;

/// What became of the guard.
pub(crate) fn verdict(outcome: &Outcome) -> Verdict {
    if outcome.remaining.taken.contains(GUARD) {
        let text = format!(
            "a ValidatingAdmissionPolicy or binding {GUARD} is there that is not the operator's: \
             delete or rename it"
        );
        return Verdict::new(ClusterState::NotEnforced, "NameTaken", text);
    }
    if let Some(failure) = outcome.failed.get(GUARD) {
        return failure.verdict();
    }
    if outcome.differs(GUARD) {
        let text = format!("{GUARD} is not there as it was written: something changes it");
        return Verdict::new(ClusterState::Pending, "Changed", text);
    }
    Verdict::new(ClusterState::Installed, "Installed", "")
}

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
