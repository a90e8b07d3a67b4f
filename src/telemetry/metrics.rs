//! Metrics. Their labels are bounded: `&'static str` of this crate, and the names of the member
//! clusters, of which there are as many series as there are clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::plans::PlanMetrics;
use crate::api::ClusterState;

/// What every name begins with.
const PREFIX: &str = "boundary_operator";

/// In seconds.
const BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// A label with values that are written in the code.
type Label = [(&'static str, &'static str); 1];

/// The name of a member cluster.
type ClusterLabel = [(&'static str, String); 1];

type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// How an attempt to bring a cluster up to date ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Everything is there as it is wanted.
    Applied,
    /// Something is not yet there, or was refused.
    Incomplete,
    /// The cluster could not be read or did not answer.
    Failed,
}

/// How a proof ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The API server was seen to act on the policy.
    Proven,
    /// A request that breaks the policy went through.
    NotEnforced,
    /// Something else is in the way of the requests.
    Blocked,
    /// The requests failed.
    Failed,
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A cluster did not answer.
    Unreachable,
    /// A cluster does not know the credentials.
    Unauthorized,
    /// The credentials lack a permission.
    Forbidden,
    /// A cluster does not take an object.
    Refused,
    /// An object was not what it was when it was read.
    Conflict,
    /// A cluster failed.
    Server,
    /// A write to the hub failed.
    Hub,
    /// The Lease could not be read or written.
    Lease,
}

macro_rules! words {
    ($type:ty { $($variant:ident: $word:literal),* $(,)? }) => {
        impl $type {
            const ALL: &[Self] = &[$(Self::$variant),*];

            /// As in the label.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    };
}

words!(Attempt {
    Applied: "applied",
    Incomplete: "incomplete",
    Failed: "failed"
});
words!(Proof {
    Proven: "proven",
    NotEnforced: "not_enforced",
    Blocked: "blocked",
    Failed: "failed",
});
words!(ErrorClass {
    Unreachable: "unreachable",
    Unauthorized: "unauthorized",
    Forbidden: "forbidden",
    Refused: "refused",
    Conflict: "conflict",
    Server: "server",
    Hub: "hub",
    Lease: "lease",
});

/// The metrics of one instance of the operator. All clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    clusters: Family<Label, Gauge>,
    policies: Family<Label, Gauge>,
    policy_clusters: Family<Label, Gauge>,
    reconcile: Histogram,
    applies: Histograms,
    proofs: Histograms,
    drift_repairs: Counter,
    errors: Family<Label, Counter>,
    contacts: Family<ClusterLabel, Gauge>,
    contacted: Mutex<BTreeSet<String>>,
    leader: Gauge,
    plans: PlanMetrics,
}

fn seconds() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let clusters = Family::default();
        registry.register(
            "clusters",
            "Member clusters by state; Ready where policies can be enforced",
            clusters.clone(),
        );
        let policies = Family::default();
        registry.register(
            "policies",
            "BoundaryPolicies by their worst state in any cluster in their scope",
            policies.clone(),
        );
        let policy_clusters = Family::default();
        registry.register(
            "policy_clusters",
            "Pairs of a BoundaryPolicy and a cluster in its scope, by state",
            policy_clusters.clone(),
        );
        let reconcile = seconds();
        registry.register(
            "reconcile_duration_seconds",
            "How long a pass over everything on the hub took",
            reconcile.clone(),
        );
        let applies = Histograms::new_with_constructor(seconds);
        registry.register(
            "apply_duration_seconds",
            "How long an attempt to bring a cluster up to date took, by how it ended",
            applies.clone(),
        );
        let proofs = Histograms::new_with_constructor(seconds);
        registry.register(
            "proof_duration_seconds",
            "How long a proof that a cluster enforces a policy took, by how it ended",
            proofs.clone(),
        );
        let drift_repairs = Counter::default();
        registry.register(
            "drift_repairs",
            "Objects of the operator that someone else changed or deleted and that were repaired",
            drift_repairs.clone(),
        );
        let errors = Family::<Label, Counter>::default();
        registry.register("errors", "What went wrong, by class", errors.clone());
        let contacts = Family::default();
        registry.register(
            "cluster_last_contact_timestamp_seconds",
            "When a member cluster last answered, as Unix time",
            contacts.clone(),
        );
        let leader = Gauge::default();
        registry.register(
            "leader",
            "Whether this instance leads: 1, else 0",
            leader.clone(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        let plans = PlanMetrics::default();
        plans.register(&mut registry);
        registry.register("build", "The build of the operator", build);

        // Rates and alerts need series that begin at 0.
        for class in ErrorClass::ALL {
            let _ = errors.get_or_create(&[("class", class.as_str())]);
        }
        for attempt in Attempt::ALL {
            let _ = applies.get_or_create(&[("outcome", attempt.as_str())]);
        }
        for proof in Proof::ALL {
            let _ = proofs.get_or_create(&[("outcome", proof.as_str())]);
        }
        Self(Arc::new(Inner {
            registry,
            clusters,
            policies,
            policy_clusters,
            reconcile,
            applies,
            proofs,
            drift_repairs,
            errors,
            contacts,
            contacted: Mutex::default(),
            leader,
            plans,
        }))
    }
}

impl Metrics {
    /// All of them.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Those of the API about compute plans.
    #[must_use]
    pub fn plans(&self) -> &PlanMetrics {
        &self.0.plans
    }

    /// Whether this instance leads. One that does not has nothing to say of the fleet.
    pub fn leads(&self, leads: bool) {
        self.0.leader.set(leads.into());
        if !leads {
            self.0.clusters.clear();
            self.0.policies.clear();
            self.0.policy_clusters.clear();
            self.contacts(&BTreeMap::new());
        }
    }

    /// The state of each member cluster; `None` where all is well.
    pub fn clusters(&self, states: impl IntoIterator<Item = Option<ClusterState>>) {
        let words = states
            .into_iter()
            .map(|state| state.map_or("Ready", ClusterState::as_str));
        count(&self.0.clusters, &["Ready"], words);
    }

    /// The state of each policy: its worst in any cluster, or why it has none.
    pub fn policies(&self, words: impl IntoIterator<Item = &'static str>) {
        let more = ["NothingAtAdmission", "InvalidPolicy", "NoClusterInScope"];
        count(&self.0.policies, &more, words);
    }

    /// The state of each policy in each cluster in its scope.
    pub fn policy_clusters(&self, states: impl IntoIterator<Item = ClusterState>) {
        let words = states.into_iter().map(ClusterState::as_str);
        count(&self.0.policy_clusters, &[], words);
    }

    /// A pass over everything on the hub was done.
    pub fn reconciled(&self, took: Duration) {
        self.0.reconcile.observe(took.as_secs_f64());
    }

    /// An attempt to bring a cluster up to date ended.
    pub fn applied(&self, took: Duration, attempt: Attempt) {
        let label = [("outcome", attempt.as_str())];
        let histogram = self.0.applies.get_or_create(&label);
        histogram.observe(took.as_secs_f64());
    }

    /// A proof ended.
    pub fn proof(&self, took: Duration, proof: Proof) {
        let histogram = self.0.proofs.get_or_create(&[("outcome", proof.as_str())]);
        histogram.observe(took.as_secs_f64());
    }

    /// An object that someone else changed or deleted is as it was.
    pub fn drift_repaired(&self) {
        self.0.drift_repairs.inc();
    }

    /// Something went wrong.
    pub fn error(&self, class: ErrorClass) {
        let label = [("class", class.as_str())];
        self.0.errors.get_or_create(&label).inc();
    }

    /// When each member cluster last answered. Clusters that are not named are forgotten.
    pub fn contacts(&self, times: &BTreeMap<String, Timestamp>) {
        let known = self.0.contacted.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        for gone in known.iter().filter(|name| !times.contains_key(*name)) {
            self.0.contacts.remove(&[("cluster", gone.clone())]);
        }
        *known = times.keys().cloned().collect();
        for (name, time) in times {
            let gauge = self.0.contacts.get_or_create(&[("cluster", name.clone())]);
            gauge.set(time.as_second());
        }
    }
}

/// Sets how often each state occurs among `words`, and 0 for those that don't.
fn count(
    family: &Family<Label, Gauge>,
    more: &[&'static str],
    words: impl IntoIterator<Item = &'static str>,
) {
    let states = ClusterState::ALL.iter().map(|state| state.as_str());
    let mut counts: BTreeMap<_, _> = states
        .chain(more.iter().copied())
        .map(|state| (state, 0))
        .collect();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    for (state, count) in counts {
        family.get_or_create(&[("state", state)]).set(count);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::prometheus_text;

    use super::*;

    fn lines(metrics: &Metrics, of: &str) -> Vec<String> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, metrics.registry()).unwrap();
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with(&format!("{PREFIX}_{of}")))
            .map(ToOwned::to_owned)
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_state_that_is_left_goes_back_to_0() {
        let metrics = Metrics::default();
        let state = |state| format!("boundary_operator_clusters{{state=\"{state}\"}}");
        metrics.clusters([None, Some(ClusterState::Unreachable)]);
        let shown = lines(&metrics, "clusters");
        assert!(
            shown.contains(&format!("{} 1", state("Ready"))),
            "{shown:?}"
        );
        assert!(shown.contains(&format!("{} 1", state("Unreachable"))));
        metrics.clusters([None, None]);
        let shown = lines(&metrics, "clusters");
        assert!(shown.contains(&format!("{} 2", state("Ready"))));
        assert!(shown.contains(&format!("{} 0", state("Unreachable"))));
        metrics.leads(false);
        assert_eq!(lines(&metrics, "clusters"), Vec::<String>::new());
    }

    #[test]
    fn a_cluster_that_left_is_forgotten() {
        let metrics = Metrics::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let times = [("a".to_owned(), at(5)), ("b".to_owned(), at(6))];
        metrics.contacts(&times.into());
        metrics.contacts(&[("b".to_owned(), at(7))].into());
        assert_eq!(
            lines(&metrics, "cluster_last_contact"),
            ["boundary_operator_cluster_last_contact_timestamp_seconds{cluster=\"b\"} 7"]
        );
    }
}
