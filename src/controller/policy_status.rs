//! The status of a policy from what the clusters report. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::member_status::to_seconds;
use super::scope::Observed;
use crate::api::{
    BoundaryPolicyStatus, ClusterState, ClusterStatus, ConditionStatus, Summary, condition,
    set_condition,
};
use crate::fleet::{RESTARTED, Repair, Report, Verdict};
use crate::plans::{Catalog, unknown_entries};

/// The most clusters that are listed.
const MAX_CLUSTERS: usize = 100;

/// The longest note of an Event; the API server takes 1,024 bytes.
pub(super) const MAX_NOTE: usize = 500;

/// The most clusters that are named in one line.
const MAX_NAMED: usize = 3;

/// Reasons of a policy that has no state in any cluster.
const INVALID: &str = "InvalidPolicy";
const NO_CLUSTER: &str = "NoClusterInScope";

/// The reason of a policy that no cluster has anything to do with.
const NOTHING: &str = "NothingAtAdmission";

/// The condition that every compute plan that a policy names is one.
const PLANS_KNOWN: &str = "PlansKnown";

/// Reasons to be Pending for a moment, as after every change.
const TRANSIENT: [&str; 4] = ["Applying", "Connecting", "Proving", RESTARTED];

/// A cluster in the scope of a policy.
pub(crate) struct InScope<'a> {
    pub(crate) name: &'a str,
    /// What its task last reported. Absent: nothing yet.
    pub(crate) report: Option<&'a Report>,
    /// Whether its task has had the time to report.
    pub(crate) overdue: bool,
}

/// The status of a policy.
pub(crate) struct Computed {
    pub(crate) status: BoundaryPolicyStatus,
    /// The state in each cluster in scope, also in those that are not listed.
    pub(crate) states: BTreeMap<String, ClusterState>,
    /// Its worst state, or why it has none.
    pub(crate) word: &'static str,
}

/// The status of `observed` at `now`, where `stored` is what it was.
pub(crate) fn policy_status(
    observed: &Observed,
    stored: Option<&BoundaryPolicyStatus>,
    scope: &[InScope<'_>],
    catalog: &Catalog,
    now: Timestamp,
) -> Computed {
    let generation = observed.metadata.generation;
    let conditions = stored.map(|s| s.conditions.clone()).unwrap_or_default();
    let mut status = BoundaryPolicyStatus {
        observed_generation: generation,
        conditions,
        ..BoundaryPolicyStatus::default()
    };
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        let holds = ConditionStatus::from(holds);
        let new = condition(kind, holds, reason, message, generation, now);
        set_condition(&mut status.conditions, new);
    };

    let policy = match &observed.policy {
        Ok(policy) => policy,
        Err(errors) => {
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let message = format!(
                "the policy can't be compiled and is enforced nowhere: {}",
                texts.join("; ")
            );
            set("Ready", false, "InvalidPolicy", &message);
            set("Reconciling", false, "InvalidPolicy", "");
            set("Stalled", true, "InvalidPolicy", &message);
            status.conditions.retain(|c| c.type_ != PLANS_KNOWN);
            return Computed {
                status,
                states: BTreeMap::new(),
                word: INVALID,
            };
        }
    };

    let rule = policy.spec.rules.allowed_compute_plans.as_ref();
    if let Some(rule) = rule {
        let unknown = unknown_entries(rule, catalog);
        let reason = if unknown.is_empty() {
            "AllKnown"
        } else {
            "UnknownPlans"
        };
        set(PLANS_KNOWN, unknown.is_empty(), reason, &unknown.join("; "));
    }
    let nothing =
        rule.is_some() && policy.spec.rules.names().is_empty() && !observed.checks_objects(catalog);

    let mut clusters: Vec<_> = scope
        .iter()
        .map(|cluster| entry(cluster, observed, &policy.spec.boundary, stored, now))
        .collect();
    clusters.sort_by(|a, b| (a.state, &a.name).cmp(&(b.state, &b.name)));

    let rules = policy.spec.rules.titles();
    let summary = summary(&clusters, rules.join(", "));
    let pending = clusters.iter().any(|c| c.state == ClusterState::Pending);
    match clusters.first() {
        None if nothing => {
            let message = "the types of resources that the policy is about have no objects in \
                           clusters, so there is nothing to check at admission";
            set("Ready", true, NOTHING, message);
        }
        None => {
            let message = "no member cluster is in the scope of the policy: see spec.clusters and \
                           kubectl get memberclusters --show-labels";
            set("Ready", false, NO_CLUSTER, message);
        }
        Some(worst) => {
            let ready = matches!(
                worst.state,
                ClusterState::Enforced | ClusterState::Installed
            );
            let message = if ready {
                format!("enforced in {} clusters", summary.enforced_of)
            } else {
                format!(
                    "enforced in {} clusters; not in {}",
                    summary.enforced_of, summary.not_enforced_in
                )
            };
            set("Ready", ready, worst.state.as_str(), &message);
        }
    }
    let progress = if pending { "Progressing" } else { "Settled" };
    set("Reconciling", pending, progress, "");
    set("Stalled", false, "NotStalled", "");
    status.summary = Some(summary);
    if rule.is_none() {
        status.conditions.retain(|c| c.type_ != PLANS_KNOWN);
    }
    let worst = clusters.first().map(|cluster| cluster.state.as_str());
    let all = clusters.iter().map(|c| (c.name.clone(), c.state)).collect();
    clusters.truncate(MAX_CLUSTERS);
    status.clusters = clusters;
    Computed {
        status,
        states: all,
        word: worst.unwrap_or(if nothing { NOTHING } else { NO_CLUSTER }),
    }
}

/// What became of the policy in one cluster.
fn entry(
    cluster: &InScope<'_>,
    observed: &Observed,
    boundary: &str,
    stored: Option<&BoundaryPolicyStatus>,
    now: Timestamp,
) -> ClusterStatus {
    let before = stored.and_then(|s| s.clusters.iter().find(|entry| entry.name == cluster.name));
    let wanted = observed.metadata.generation.unwrap_or_default();
    let Some(report) = cluster.report else {
        // Right after a start, what was last known stands until the cluster had time to answer.
        let known = stored.and_then(|s| s.observed_generation) == observed.metadata.generation;
        if let Some(before) = before
            && known
            && !cluster.overdue
        {
            return before.clone();
        }
        let verdict = Verdict::new(
            ClusterState::Pending,
            "Connecting",
            "the cluster is being connected to",
        );
        return written(cluster.name, before, verdict, now);
    };

    let told = report.policies.get(observed.name());
    let verdict = match (&report.problem, told) {
        (Some(problem), _) => problem.clone(),
        (None, Some(told)) if told.wanted == wanted => told.verdict.clone(),
        _ => Verdict::new(ClusterState::Pending, "Applying", ""),
    };
    if let Some(before) = before
        && verdict.reason == RESTARTED
        && before.generation == Some(wanted)
        && before.version == report.version
    {
        return before.clone();
    }
    let counted = report.namespaces.as_ref();
    let mut entry = written(cluster.name, before, verdict, now);
    entry.version.clone_from(&report.version);
    entry.generation = told.and_then(|told| told.generation);
    entry.namespaces = counted.map(|counts| counts.get(boundary).copied().unwrap_or_default());
    if entry.state == ClusterState::Unreachable || entry.reason == "Unauthorized" {
        // What is known from before the operator started is still the last that is known.
        if report.last_contact.is_none() {
            if let Some(before) = before
                && (before.state, &before.reason) == (entry.state, &entry.reason)
                && report.before.is_empty()
            {
                return before.clone();
            }
            let before = before.cloned();
            let (version, generation, namespaces) = before.map_or((None, None, None), |b| {
                (b.version, b.generation, b.namespaces)
            });
            entry.version = entry.version.or(version);
            entry.generation = entry.generation.or(generation);
            entry.namespaces = entry.namespaces.or(namespaces);
        }
        let holds = match (report.proven(observed.name()), entry.generation) {
            (Some((proven, at)), Some(generation)) if proven == generation => format!(
                "generation {generation} holds there as it was, last seen to act at {}",
                to_seconds(at).unwrap_or(at)
            ),
            (_, Some(generation)) => {
                format!("generation {generation} holds there as it was, unverified since then")
            }
            (_, None) => "nothing was seen there".to_owned(),
        };
        let since = entry.last_transition_time;
        entry.message = format!("no contact since {since}: {}; {holds}", entry.message);
    }
    entry
}

/// An entry whose time is that of the last change of its state.
fn written(
    name: &str,
    before: Option<&ClusterStatus>,
    verdict: Verdict,
    now: Timestamp,
) -> ClusterStatus {
    let since = before
        .filter(|before| before.state == verdict.state)
        .map_or(now, |before| before.last_transition_time);
    ClusterStatus {
        name: name.to_owned(),
        version: None,
        state: verdict.state,
        reason: verdict.reason,
        message: verdict.message,
        generation: None,
        namespaces: None,
        last_transition_time: since,
    }
}

fn summary(clusters: &[ClusterStatus], rules: String) -> Summary {
    let count = |state| to_u32(clusters.iter().filter(|c| c.state == state).count());
    let enforced = count(ClusterState::Enforced);
    let all = to_u32(clusters.len());
    let not_enforced: Vec<_> = clusters
        .iter()
        .filter(|cluster| cluster.state != ClusterState::Enforced)
        .map(|cluster| format!("{} ({})", cluster.name, why(cluster)))
        .collect();
    Summary {
        clusters: all,
        enforced,
        installed: count(ClusterState::Installed),
        pending: count(ClusterState::Pending),
        partly_enforced: count(ClusterState::PartlyEnforced),
        unsupported: count(ClusterState::Unsupported),
        not_enforced: count(ClusterState::NotEnforced),
        unreachable: count(ClusterState::Unreachable),
        forbidden: count(ClusterState::Forbidden),
        enforced_of: format!("{enforced}/{all}"),
        not_enforced_in: some_of(&not_enforced),
        rules,
        namespaces: clusters
            .iter()
            .filter_map(|cluster| cluster.namespaces)
            .fold(0, u32::saturating_add),
    }
}

/// In a few words, for a table.
fn why(cluster: &ClusterStatus) -> String {
    match (&cluster.version, cluster.state) {
        (Some(version), ClusterState::Unsupported) => format!("Kubernetes {version}"),
        (_, ClusterState::NotEnforced) => cluster.reason.clone(),
        (_, ClusterState::Unreachable) if is_configuration(&cluster.reason) => {
            cluster.reason.clone()
        }
        (_, state) => state.to_string(),
    }
}

/// Whether a cluster is not reached for something that is written on the hub.
fn is_configuration(reason: &str) -> bool {
    ["Secret", "Invalid", "Unsupported", "Argocd"]
        .iter()
        .any(|prefix| reason.starts_with(prefix))
}

/// The first few of `items`, and how many more.
pub(crate) fn some_of(items: &[String]) -> String {
    let named = items.iter().take(MAX_NAMED).map(String::as_str);
    let named = named.collect::<Vec<_>>().join(", ");
    match items.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// A change to tell in an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    /// What it changed to, in one word.
    pub(crate) reason: String,
    /// Whether all is as it should be.
    pub(crate) good: bool,
    pub(crate) note: String,
}

impl Transition {
    /// A change that is told with `note`.
    pub(crate) fn of(reason: &str, good: bool, note: &str) -> Self {
        Self {
            reason: reason.to_owned(),
            good,
            note: note.chars().take(MAX_NOTE).collect(),
        }
    }

    /// A policy is now invalid, and its status can't say so.
    pub(crate) fn invalid(status: &BoundaryPolicyStatus) -> Self {
        let stalled = status.conditions.iter().find(|c| c.type_ == "Stalled");
        let note = stalled.map(|c| c.message.as_str()).unwrap_or_default();
        Self {
            reason: "InvalidPolicy".to_owned(),
            good: false,
            note: note.chars().take(MAX_NOTE).collect(),
        }
    }
}

/// What to tell of what was put right in a cluster, of each policy that it concerns.
pub(crate) fn repaired(cluster: &str, repair: &Repair) -> Transition {
    let what = if repair.deleted { "deleted" } else { "changed" };
    Transition {
        reason: "DriftRepaired".to_owned(),
        good: false,
        note: format!(
            "something else {what} the ValidatingAdmissionPolicy or binding {} in {cluster}; the \
             operator put it right",
            repair.object
        ),
    }
}

/// What to tell of the change from `before` to `after`: one line a state.
pub(crate) fn transitions(
    before: Option<&BoundaryPolicyStatus>,
    after: &BoundaryPolicyStatus,
) -> Vec<Transition> {
    let states: BTreeMap<_, _> = before
        .iter()
        .flat_map(|status| &status.clusters)
        .map(|cluster| (&cluster.name, shown(cluster)))
        .collect();
    let mut told = Vec::new();
    let unknown = |status: &BoundaryPolicyStatus| {
        let mut conditions = status.conditions.iter();
        let condition = conditions.find(|c| c.type_ == PLANS_KNOWN && c.status == "False")?;
        Some(condition.message.clone())
    };
    if let Some(message) = unknown(after)
        && before.and_then(unknown).as_ref() != Some(&message)
    {
        told.push(Transition {
            reason: "UnknownPlans".to_owned(),
            good: false,
            note: message.chars().take(MAX_NOTE).collect(),
        });
    }
    if let Some(reason) = without_state(after)
        && before.and_then(without_state).map(|c| &c.reason) != Some(&reason.reason)
    {
        told.push(Transition {
            reason: reason.reason.clone(),
            good: false,
            note: reason.message.chars().take(MAX_NOTE).collect(),
        });
    }
    let mut changed: BTreeMap<ClusterState, Vec<&ClusterStatus>> = BTreeMap::new();
    for cluster in &after.clusters {
        let same = states.get(&cluster.name) == Some(&shown(cluster));
        let transient =
            cluster.state == ClusterState::Pending && TRANSIENT.contains(&cluster.reason.as_str());
        if !same && !transient {
            changed.entry(cluster.state).or_default().push(cluster);
        }
    }
    let changed = changed.into_iter().map(|(state, clusters)| {
        let names: Vec<_> = clusters
            .iter()
            .map(|cluster| cluster.name.clone())
            .collect();
        let mut note = format!("{state} in {}", some_of(&names));
        if let Some(first) = clusters.first().filter(|first| !first.message.is_empty()) {
            note = format!("{note}: {}", first.message);
        }
        Transition {
            reason: state.to_string(),
            good: matches!(state, ClusterState::Enforced | ClusterState::Installed),
            note: note.chars().take(MAX_NOTE).collect(),
        }
    });
    told.extend(changed);
    told
}

/// A state, and why it is pending: a policy may be that for one reason after another.
fn shown(cluster: &ClusterStatus) -> (ClusterState, Option<&str>) {
    let pending = cluster.state == ClusterState::Pending;
    (cluster.state, pending.then_some(cluster.reason.as_str()))
}

/// Why the policy has no state in any cluster, if so.
fn without_state(status: &BoundaryPolicyStatus) -> Option<&Condition> {
    let mut conditions = status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    [INVALID, NO_CLUSTER]
        .contains(&ready.reason.as_str())
        .then_some(ready)
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::BoundaryPolicy;
    use crate::fleet::PolicyReport;

    fn observed(rules: &str) -> Observed {
        let policy: BoundaryPolicy = serde_saphyr::from_str(&format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
             metadata: {{name: trusted, generation: 2}}\n\
             spec: {{boundary: web, rules: {{{rules}}}}}"
        ))
        .unwrap();
        Observed::read(&policy)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(state: ClusterState, reason: &str, message: &str) -> Report {
        let verdict = Verdict::new(state, reason, message);
        let told = PolicyReport {
            wanted: 2,
            generation: Some(2),
            proven: None,
            verdict,
        };
        Report {
            version: Some("v1.30.14".to_owned()),
            last_contact: Some(at(1)),
            policies: [("trusted".to_owned(), told)].into(),
            namespaces: Some([("web".to_owned(), 2)].into()),
            ..Report::default()
        }
    }

    fn problem(state: ClusterState, reason: &str, message: &str) -> Report {
        Report {
            version: Some("v1.29.15".to_owned()),
            problem: Some(Verdict::new(state, reason, message)),
            ..Report::default()
        }
    }

    fn status(
        reports: &[(&str, Report)],
        stored: Option<&BoundaryPolicyStatus>,
        now: i64,
    ) -> BoundaryPolicyStatus {
        let scope: Vec<_> = reports
            .iter()
            .map(|(name, report)| InScope {
                name,
                report: Some(report),
                overdue: false,
            })
            .collect();
        policy_status(
            &observed("disallowLatestTag: {}"),
            stored,
            &scope,
            &Catalog::default(),
            at(now),
        )
        .status
    }

    fn condition_of(status: &BoundaryPolicyStatus, kind: &str) -> (String, String, String) {
        let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
        (
            found.status.clone(),
            found.reason.clone(),
            found.message.clone(),
        )
    }

    #[test]
    fn the_worst_state_comes_first_and_names_the_reason() {
        let status = status(
            &[
                ("eu-1", report(ClusterState::Enforced, "Applied", "")),
                (
                    "eu-old",
                    problem(ClusterState::Unsupported, "KubernetesTooOld", "too old"),
                ),
                ("hub", report(ClusterState::Enforced, "Applied", "")),
            ],
            None,
            10,
        );
        let summary = status.summary.as_ref().unwrap();
        assert_eq!(summary.enforced_of, "2/3");
        assert_eq!(summary.not_enforced_in, "eu-old (Kubernetes v1.29.15)");
        assert_eq!(summary.namespaces, 4);
        assert_eq!(summary.rules, "DisallowLatestTag");
        assert_eq!(status.clusters[0].name, "eu-old");
        let (ready, reason, message) = condition_of(&status, "Ready");
        assert_eq!((ready.as_str(), reason.as_str()), ("False", "Unsupported"));
        assert_eq!(
            message,
            "enforced in 2/3 clusters; not in eu-old (Kubernetes v1.29.15)"
        );
    }

    #[test]
    fn many_clusters_are_counted_and_the_first_hundred_listed() {
        let reports: Vec<_> = (0..150)
            .map(|i| {
                let message = "connection refused";
                (
                    format!("c{i:03}"),
                    problem(ClusterState::Unreachable, "ConnectionFailed", message),
                )
            })
            .collect();
        let reports: Vec<_> = reports
            .iter()
            .map(|(n, r)| (n.as_str(), r.clone()))
            .collect();
        let status = status(&reports, None, 10);
        let summary = status.summary.unwrap();
        assert_eq!((summary.clusters, summary.unreachable), (150, 150));
        assert_eq!(status.clusters.len(), 100);
        assert_eq!(
            summary.not_enforced_in,
            "c000 (Unreachable), c001 (Unreachable), c002 (Unreachable) and 147 more"
        );
    }

    #[test]
    fn times_are_those_of_the_last_change_and_nothing_changed_is_the_same_status() {
        let enforced = [("a", report(ClusterState::Enforced, "Applied", ""))];
        let first = status(&enforced, None, 10);
        assert_eq!(status(&enforced, Some(&first), 20), first);
        let lost = [(
            "a",
            Report {
                problem: Some(Verdict::new(
                    ClusterState::Unreachable,
                    "Timeout",
                    "no answer within 10s",
                )),
                ..enforced[0].1.clone()
            },
        )];
        let second = status(&lost, Some(&first), 30);
        assert_eq!(second.clusters[0].last_transition_time, at(30));
        assert_eq!(
            second.clusters[0].message,
            "no contact since 1970-01-01T00:00:30Z: no answer within 10s; generation 2 holds there as it was, unverified since then"
        );
        assert_eq!(status(&lost, Some(&second), 40), second);
        assert_eq!(transitions(Some(&first), &second)[0].reason, "Unreachable");
        assert_eq!(transitions(Some(&second), &second), []);
    }

    #[test]
    fn no_cluster_in_scope_is_not_ready() {
        let (ready, reason, _) = condition_of(&status(&[], None, 10), "Ready");
        assert_eq!(
            (ready.as_str(), reason.as_str()),
            ("False", "NoClusterInScope")
        );
    }

    #[test]
    fn what_can_not_be_compiled_is_stalled_and_the_field_named() {
        let status = policy_status(&observed(""), None, &[], &Catalog::default(), at(10)).status;
        let (stalled, reason, message) = condition_of(&status, "Stalled");
        assert_eq!(
            (stalled.as_str(), reason.as_str()),
            ("True", "InvalidPolicy")
        );
        assert!(message.contains("spec.rules"), "{message}");
        assert_eq!(condition_of(&status, "Ready").1, "InvalidPolicy");
    }

    #[test]
    fn another_generation_than_the_current_is_pending() {
        let mut old = report(ClusterState::Enforced, "Applied", "");
        let told = old.policies.get_mut("trusted").unwrap();
        (told.wanted, told.generation) = (1, Some(1));
        let status = status(&[("a", old)], None, 10);
        assert_eq!(status.clusters[0].state, ClusterState::Pending);
        assert_eq!(status.clusters[0].generation, Some(1));
        assert_eq!(condition_of(&status, "Reconciling").0, "True");
    }

    #[rstest::rstest]
    #[case::in_time(false, ClusterState::Enforced)]
    #[case::overdue(true, ClusterState::Pending)]
    fn before_the_first_report_the_stored_state_stands_for_a_while(
        #[case] overdue: bool,
        #[case] expected: ClusterState,
    ) {
        let stored = status(
            &[("a", report(ClusterState::Enforced, "Applied", ""))],
            None,
            10,
        );
        let scope = [InScope {
            name: "a",
            report: None,
            overdue,
        }];
        let observed = observed("disallowLatestTag: {}");
        let status = policy_status(
            &observed,
            Some(&stored),
            &scope,
            &Catalog::default(),
            at(20),
        )
        .status;
        assert_eq!(status.clusters[0].state, expected);
    }

    #[test]
    fn a_policy_with_nothing_to_check_at_admission_is_ready() {
        let plans = observed("allowedComputePlans: {plans: [small, tiny]}");
        let valkey = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: ComputeResourceType\n\
                      metadata: {name: valkey}\nspec: {plans: [{name: small}]}";
        let catalog = Catalog::of(&[serde_saphyr::from_str(valkey).unwrap()]).0;
        let computed = policy_status(&plans, None, &[], &catalog, at(10));
        assert_eq!(computed.word, "NothingAtAdmission");
        let (ready, reason, _) = condition_of(&computed.status, "Ready");
        assert_eq!(
            (ready.as_str(), reason.as_str()),
            ("True", "NothingAtAdmission")
        );
        assert_eq!(
            condition_of(&computed.status, PLANS_KNOWN),
            (
                "False".to_owned(),
                "UnknownPlans".to_owned(),
                "spec.rules.allowedComputePlans.plans[1] (tiny): no ComputeResourceType has a plan tiny"
                    .to_owned()
            )
        );
        let told = transitions(None, &computed.status);
        assert_eq!(
            told.iter().map(|t| t.reason.as_str()).collect::<Vec<_>>(),
            ["UnknownPlans"]
        );
        assert_eq!(transitions(Some(&computed.status), &computed.status), []);

        let other = observed("disallowLatestTag: {}");
        let after = policy_status(&other, Some(&computed.status), &[], &catalog, at(20)).status;
        assert!(after.conditions.iter().all(|c| c.type_ != PLANS_KNOWN));
    }
}
