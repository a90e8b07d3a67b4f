//! Whether an API server acts on what it has.

use super::failure::Verdict;
use crate::api::{Action, ClusterState};
use crate::compile::AdmissionObject;

/// What is known of an object that was read back and is exactly as it was wanted.
///
/// That it was accepted and stored is all that is looked at so far.
pub(crate) fn prove(object: &AdmissionObject) -> Verdict {
    match object.action {
        Action::Deny | Action::Warn => Verdict::new(ClusterState::Enforced, "Applied", ""),
        Action::Audit => Verdict::new(
            ClusterState::Installed,
            "Audit",
            "what breaks the policy is admitted and written to the audit log",
        ),
    }
}
