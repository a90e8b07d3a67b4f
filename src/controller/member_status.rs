//! The status of a member cluster from what its task reports. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::policy_status::{MAX_NOTE, Transition};
use crate::api::{
    ClusterState, ConditionStatus, MemberClusterStatus, PolicyCounts, condition, set_condition,
};
use crate::fleet::Report;

/// How old the stored time of the last contact may get while nothing else changes.
const CONTACT_AGE: SignedDuration = SignedDuration::from_mins(5);

/// The most objects that are listed.
const MAX_LEFTOVERS: usize = 1000;

/// The status of a member cluster at `now`, where `stored` is what it was.
pub(crate) fn member_status(
    generation: Option<i64>,
    stored: Option<&MemberClusterStatus>,
    report: Option<&Report>,
    overdue: bool,
    policies: (u32, u32),
    now: Timestamp,
) -> MemberClusterStatus {
    let before = stored.cloned().unwrap_or_default();
    let known = before.observed_generation == generation && stored.is_some();
    if report.is_none() && known && !overdue {
        return before;
    }
    let (in_scope, enforced) = policies;
    let mut status = MemberClusterStatus {
        observed_generation: generation,
        policies: Some(PolicyCounts {
            in_scope,
            enforced,
            enforced_of: format!("{enforced}/{in_scope}"),
        }),
        ..before.clone()
    };
    let mut set = |kind: &str, holds: ConditionStatus, reason: &str, message: &str| {
        let new = condition(kind, holds, reason, message, generation, now);
        set_condition(&mut status.conditions, new);
    };
    let Some(report) = report else {
        let message = "the cluster is being connected to";
        set("Ready", ConditionStatus::Unknown, "Connecting", message);
        set("Reachable", ConditionStatus::Unknown, "Connecting", message);
        return status;
    };

    let insecure = if report.insecure {
        "its certificate is not verified: the kubeconfig has insecure-skip-tls-verify"
    } else {
        ""
    };
    match &report.problem {
        None => {
            set("Ready", ConditionStatus::True, "Ready", insecure);
            set("Reachable", ConditionStatus::True, "Reachable", insecure);
        }
        Some(problem) => {
            let (reason, message) = (problem.reason.as_str(), problem.message.as_str());
            set("Ready", ConditionStatus::False, reason, message);
            if problem.state == ClusterState::Unreachable {
                set("Reachable", ConditionStatus::False, reason, message);
            } else {
                set("Reachable", ConditionStatus::True, "Reachable", insecure);
            }
        }
    }
    if let Some(guard) = &report.guard {
        let (reason, message) = (guard.reason.as_str(), guard.message.as_str());
        let installed = ConditionStatus::from(guard.state == ClusterState::Installed);
        set("LabelGuarded", installed, reason, message);
    } else if report.problem.is_none() {
        let message = "anyone who may edit a namespace may move it to another boundary";
        set(
            "LabelGuarded",
            ConditionStatus::False,
            "SwitchedOff",
            message,
        );
    }
    if report.version.is_some() {
        status.version.clone_from(&report.version);
        status.apis.clone_from(&report.apis);
    }
    let answers = report.last_contact.is_some();
    if answers {
        status.credentials.clone_from(&report.credentials);
        let leftovers = report.leftovers.iter().take(MAX_LEFTOVERS);
        status.leftovers = leftovers.cloned().collect();
    }
    if let Some(contact) = report.last_contact.and_then(to_seconds) {
        let due = before
            .last_contact_time
            .is_none_or(|stored| contact.duration_since(stored) >= CONTACT_AGE);
        if due || status != before {
            status.last_contact_time = Some(contact);
        }
    }
    status
}

/// What to tell of the change from `before` to `after`.
pub(crate) fn member_transitions(
    before: Option<&MemberClusterStatus>,
    after: &MemberClusterStatus,
) -> Vec<Transition> {
    let before = before.map_or(&[][..], |status| &status.conditions);
    let mut told = Vec::new();
    for kind in ["Ready", "LabelGuarded"] {
        let of = |conditions: &'_ [Condition]| {
            let mut conditions = conditions.iter();
            conditions
                .find(|condition| condition.type_ == kind)
                .cloned()
        };
        let Some(now) = of(&after.conditions) else {
            continue;
        };
        let same = of(before).is_some_and(|was| {
            was.status == now.status && (was.reason == now.reason || is_outage(&was, &now))
        });
        if same || now.reason == "Connecting" {
            continue;
        }
        let good = now.status == ConditionStatus::True.as_str();
        let (what, because) = (if good { "is" } else { "is not" }, now.message);
        let note = if because.is_empty() {
            format!("{what} {kind}")
        } else {
            format!("{what} {kind}: {because}")
        };
        told.push(Transition {
            reason: now.reason,
            good,
            note: note.chars().take(MAX_NOTE).collect(),
        });
    }
    told
}

/// Whether both say that there is no connection: one outage shows in several ways.
fn is_outage(one: &Condition, other: &Condition) -> bool {
    let outage = |c: &Condition| ["ConnectionFailed", "Timeout"].contains(&c.reason.as_str());
    outage(one) && outage(other)
}

/// The API keeps seconds.
pub(crate) fn to_seconds(time: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(time.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Verdict;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(
        stored: Option<&MemberClusterStatus>,
        contact: i64,
        problem: Option<Verdict>,
    ) -> MemberClusterStatus {
        let report = Report {
            version: Some("v1.30.14".to_owned()),
            last_contact: Some(at(contact)),
            problem,
            ..Report::default()
        };
        member_status(Some(1), stored, Some(&report), false, (3, 2), at(contact))
    }

    #[test]
    fn contact_alone_is_written_every_few_minutes() {
        let first = status(None, 1000, None);
        assert_eq!(first.policies.as_ref().unwrap().enforced_of, "2/3");
        assert_eq!(status(Some(&first), 1100, None), first);
        let later = status(Some(&first), 1300, None);
        assert_eq!(later.last_contact_time, Some(at(1300)));
    }

    #[test]
    fn an_unreachable_cluster_is_not_ready_for_that_reason() {
        let verdict = Verdict::new(ClusterState::Unreachable, "SecretNotFound", "no Secret");
        let status = status(None, 1000, Some(verdict));
        for kind in ["Ready", "Reachable"] {
            let condition = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
            assert_eq!(
                (condition.status.as_str(), condition.reason.as_str()),
                ("False", "SecretNotFound")
            );
        }
    }

    #[test]
    fn an_unsupported_cluster_is_reachable_and_not_ready() {
        let verdict = Verdict::new(ClusterState::Unsupported, "KubernetesTooOld", "old");
        let status = status(None, 1000, Some(verdict));
        let of = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind).unwrap();
        assert_eq!(of("Ready").status, "False");
        assert_eq!(of("Reachable").status, "True");
    }

    #[test]
    fn right_after_a_start_the_stored_status_stands() {
        let first = status(None, 1000, None);
        let again = member_status(Some(1), Some(&first), None, false, (3, 2), at(2000));
        assert_eq!(again, first);
        let overdue = member_status(Some(1), Some(&first), None, true, (3, 2), at(2000));
        let mut conditions = overdue.conditions.iter();
        let ready = conditions.find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "Unknown");
    }

    #[test]
    fn each_change_is_told_once() {
        let told = |before: Option<&MemberClusterStatus>, after: &MemberClusterStatus| {
            let told = member_transitions(before, after);
            told.into_iter()
                .map(|told| (told.reason, told.good, told.note))
                .collect::<Vec<_>>()
        };
        let unreachable = |reason| Verdict::new(ClusterState::Unreachable, reason, "no answer");
        let ready = status(None, 1000, None);
        let text = |text: &str| text.to_owned();
        assert!(told(None, &ready).contains(&(text("Ready"), true, text("is Ready"))));
        assert_eq!(told(Some(&ready), &ready), []);
        let down = status(Some(&ready), 1000, Some(unreachable("Timeout")));
        let expected = (text("Timeout"), false, text("is not Ready: no answer"));
        assert_eq!(told(Some(&ready), &down), [expected]);
        let still = status(Some(&down), 1000, Some(unreachable("ConnectionFailed")));
        assert_eq!(told(Some(&down), &still), []);
        let other = status(Some(&down), 1000, Some(unreachable("SecretNotFound")));
        assert_eq!(told(Some(&down), &other).len(), 1);
    }
}
