//! Conditions after the conventions of the Kubernetes API and kstatus.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The longest message that the API server stores in a condition, in characters.
const MESSAGE_MAX: usize = 32_768;

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It can't be said.
    Unknown,
}

impl ConditionStatus {
    /// The word that stands in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition of `kind` that changed at `now`.
#[must_use]
pub fn condition(
    kind: &str,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(MESSAGE_MAX).collect(),
        observed_generation: generation,
        last_transition_time: Time(now),
    }
}

/// Puts `new` in its place in `conditions`, which are sorted by type.
///
/// The time of the last transition is kept where the status stays what it was.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition) {
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
}
