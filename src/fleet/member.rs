//! The task of one member cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::apply::{Outcome, Target, apply};
use super::backoff::{Backoff, jitter};
use super::discover::{Discovered, discover};
use super::failure::{Failure, Verdict, limited};
use super::guard;
use super::plan::Existing;
use super::prove::prove;
use super::report::{PolicyReport, Report, Wanted};
use super::{FleetSettings, Source};
use crate::api::{BoundaryPolicy, ClusterState, ObjectRef};
use crate::compile::{
    AdmissionObject, Compilation, GUARD, Options, compile, label_guard, next_expiry,
};
use crate::telemetry::Attempt;

/// The longest wait between two attempts to reach a cluster.
const LONGEST_BACKOFF: Duration = Duration::from_mins(1);

/// Namespaces that are asked for at once.
const PAGE: u32 = 500;

/// What a task has besides its cluster.
pub(crate) struct Task {
    pub(crate) settings: Arc<FleetSettings>,
    pub(crate) wanted: watch::Receiver<Wanted>,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
}

/// Keeps a cluster as it is wanted, until it is dropped.
pub(crate) async fn run(source: &Source, task: &mut Task, mut report: Report) {
    let connected = source.config(&task.settings).await.and_then(|config| {
        report.insecure = config.accept_invalid_certs;
        let client = task.settings.fence.client(config);
        client.map_err(|_| unusable_client())
    });
    let client = match connected {
        Ok(client) => client,
        Err(problem) => {
            tracing::warn!(
                reason = problem.reason,
                message = problem.message,
                "no way there"
            );
            report.problem = Some(problem);
            let _ = task.reports.send(report);
            return std::future::pending().await;
        }
    };
    let target = Target {
        client,
        timeout: task.settings.request_timeout,
        permits: task.settings.permits.clone(),
    };
    let mut member = Member::new(target, task.settings.clone(), report);
    let longest = LONGEST_BACKOFF.min(task.settings.capabilities_interval);
    let mut backoff = Backoff::new(longest);
    loop {
        let wanted = task.wanted.borrow_and_update().clone();
        let wait = match member.cycle(&wanted).await {
            Ok(true) => {
                backoff.reset();
                member.until_due()
            }
            Ok(false) => backoff.next(),
            Err(failure) => {
                task.settings.metrics.error(failure.class());
                member.failed(&failure, &wanted);
                backoff.next()
            }
        };
        if task.reports.send(member.report.clone()).is_err() {
            return;
        }
        tokio::select! {
            changed = task.wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Why no client can be made. The cause is left out: it may quote a key.
pub(crate) fn unusable_client() -> Verdict {
    Verdict::new(
        ClusterState::Unreachable,
        "InvalidKubeconfig",
        "no TLS client can be made from certificate-authority-data, client-certificate-data and \
         client-key-data: they must be certificates and a key in PEM, encoded in base64",
    )
}

struct Member {
    target: Target,
    settings: Arc<FleetSettings>,
    report: Report,
    discovered: Option<Discovered>,
    next_discovery: Instant,
    next_resync: Instant,
    /// What the cluster is settled for, and until when, if it is.
    settled: Option<(Wanted, Option<Timestamp>)>,
    failures: u32,
    /// What was there when it was last read.
    existing: Existing,
    /// Policies that the API server refuses as they are.
    refused: BTreeMap<String, (Arc<BoundaryPolicy>, Failure)>,
}

impl Member {
    fn new(target: Target, settings: Arc<FleetSettings>, report: Report) -> Self {
        Self {
            target,
            settings,
            report,
            discovered: None,
            next_discovery: Instant::now(),
            next_resync: Instant::now(),
            settled: None,
            failures: 0,
            existing: Existing::default(),
            refused: BTreeMap::new(),
        }
    }

    /// Does what is due. Says whether everything is as it should be until something is due again.
    async fn cycle(&mut self, wanted: &Wanted) -> Result<bool, Failure> {
        let discovered = self.discover().await?;
        if !self.is_settled(wanted) {
            self.settled = None;
            let expiry = next_expiry(wanted.iter().map(AsRef::as_ref), Timestamp::now());
            let settled = if let Some(problem) = discovered.unsupported() {
                self.report.policies.clear();
                self.report.leftovers.clear();
                self.report.guard = None;
                self.report.problem = Some(problem);
                true
            } else {
                let started = Instant::now();
                let enforced = self.enforce(wanted, &discovered).await;
                let metrics = &self.settings.metrics;
                metrics.applied(started.elapsed(), Attempt::of(&enforced));
                enforced?
            };
            self.count_namespaces(wanted).await;
            self.next_resync = Instant::now() + jitter(self.settings.resync_interval);
            self.settled = settled.then(|| (wanted.clone(), expiry));
        }
        self.failures = 0;
        self.report.last_contact = Some(Timestamp::now());
        Ok(self.settled.is_some())
    }

    fn is_settled(&self, wanted: &Wanted) -> bool {
        let Some((settled, expiry)) = &self.settled else {
            return false;
        };
        let expired = expiry.is_some_and(|expiry| expiry <= Timestamp::now());
        !expired && Instant::now() < self.next_resync && settled == wanted
    }

    /// What the cluster can do, asked again when it is time or contact was lost.
    async fn discover(&mut self) -> Result<Discovered, Failure> {
        let known = self.discovered.take();
        if let Some(known) = &known
            && self.failures == 0
            && Instant::now() < self.next_discovery
        {
            self.discovered = Some(known.clone());
            return Ok(known.clone());
        }
        let discovered = match discover(&self.target.client, self.target.timeout).await {
            Ok(discovered) => discovered,
            Err(failure) => {
                self.discovered = known;
                return Err(failure);
            }
        };
        if known.as_ref() != Some(&discovered) {
            tracing::info!(
                version = discovered.version,
                validating = discovered.capabilities.validating,
                "read what the cluster can do"
            );
            self.refused.clear();
            self.settled = None;
        }
        self.next_discovery = Instant::now() + jitter(self.settings.capabilities_interval);
        self.report.version = Some(discovered.version.clone());
        self.report.apis.clone_from(&discovered.apis);
        self.discovered = Some(discovered.clone());
        Ok(discovered)
    }

    async fn enforce(&mut self, wanted: &Wanted, discovered: &Discovered) -> Result<bool, Failure> {
        self.refused
            .retain(|_, (refused, _)| wanted.contains(refused));
        let options = self.options(discovered);
        // Each round leaves out at least one policy more.
        loop {
            let accepted = || {
                wanted
                    .iter()
                    .filter(|p| !self.refused.contains_key(&p.name_any()))
            };
            let Compilation {
                mut objects,
                problems,
            } = compile(accepted().map(AsRef::as_ref), &options);
            objects.extend(self.guard());
            let outcome = apply(&self.target, &objects).await?;
            self.report.guard = self.tell(&outcome);
            let mut refused = outcome.refused();
            refused.remove(GUARD);
            let refused: BTreeSet<String> = refused.into_iter().map(Into::into).collect();
            if refused.is_empty() {
                let invalid = problems.into_iter().map(|problem| {
                    let texts: Vec<_> = problem.errors.iter().map(ToString::to_string).collect();
                    let state = ClusterState::NotEnforced;
                    (
                        problem.policy,
                        Verdict::new(state, "InvalidPolicy", texts.join("; ")),
                    )
                });
                let settled = outcome.failed.is_empty() && outcome.remaining.steps.is_empty();
                self.assess(wanted, &objects, invalid.collect(), outcome);
                return Ok(settled);
            }
            let accepted: Vec<_> = accepted().cloned().collect();
            for object in objects
                .iter()
                .filter(|object| refused.contains(&object.name))
            {
                let inside = accepted
                    .iter()
                    .filter(|p| object.policies.contains_key(&p.name_any()));
                let inside: Vec<_> = inside.cloned().collect();
                let mut culprits = self.culprits(&inside, &options).await?;
                if culprits.is_empty() {
                    let failure = &outcome.failed[&object.name];
                    culprits = inside.into_iter().map(|p| (p, failure.clone())).collect();
                }
                for (policy, failure) in culprits {
                    tracing::warn!(
                        policy = policy.name_any(),
                        %failure,
                        "the API server refuses a policy; it is left out"
                    );
                    self.refused.insert(policy.name_any(), (policy, failure));
                }
            }
        }
    }

    /// The guard on the boundary label, if it is wanted.
    fn guard(&self) -> Option<AdmissionObject> {
        let wanted = self.settings.label_guard;
        wanted.then(|| label_guard(&self.settings.boundary_label))
    }

    /// Counts what failed, and says what became of the guard.
    fn tell(&self, outcome: &Outcome) -> Option<Verdict> {
        for failure in outcome.failed.values() {
            self.settings.metrics.error(failure.class());
        }
        let guarded = self.settings.label_guard;
        guarded.then(|| guard::verdict(outcome))
    }

    /// Those of `policies` without which the API server takes the rest.
    async fn culprits(
        &self,
        policies: &[Arc<BoundaryPolicy>],
        options: &Options,
    ) -> Result<Vec<(Arc<BoundaryPolicy>, Failure)>, Failure> {
        let mut kept: Vec<Arc<BoundaryPolicy>> = Vec::new();
        let mut culprits = Vec::new();
        'policies: for policy in policies {
            kept.push(policy.clone());
            for object in compile(kept.iter().map(AsRef::as_ref), options).objects {
                match self.target.try_out(&object).await {
                    Ok(()) => {}
                    Err(failure @ Failure::Refused(_)) => {
                        kept.pop();
                        culprits.push((policy.clone(), failure));
                        continue 'policies;
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(culprits)
    }

    /// Says of each policy what became of it.
    fn assess(
        &mut self,
        wanted: &Wanted,
        objects: &[AdmissionObject],
        mut invalid: BTreeMap<String, Verdict>,
        outcome: Outcome,
    ) {
        let there = outcome.existing.generations();
        let mut verdicts: BTreeMap<&str, Verdict> = BTreeMap::new();
        for object in objects {
            let verdict = verdict(object, &outcome);
            for policy in object.policies.keys() {
                verdicts.insert(policy, verdict.clone());
            }
        }
        self.report.problem = None;
        self.report.policies = wanted
            .iter()
            .map(|policy| {
                let name = policy.name_any();
                let verdict = invalid
                    .remove(&name)
                    .or_else(|| {
                        self.refused
                            .get(&name)
                            .map(|(_, failure)| failure.verdict())
                    })
                    .or_else(|| verdicts.get(name.as_str()).cloned())
                    .unwrap_or_else(|| Verdict::new(ClusterState::Pending, "Applying", ""));
                let wanted = policy.metadata.generation.unwrap_or_default();
                let generation = there.get(&name).copied();
                (
                    name,
                    PolicyReport {
                        wanted,
                        generation,
                        verdict,
                    },
                )
            })
            .collect();
        self.existing = outcome.existing;
        let names: BTreeSet<_> = objects.iter().map(|object| object.name.as_str()).collect();
        self.report.leftovers = leftovers(&self.existing, &names);
    }

    /// Counts the namespaces of each boundary. What can't be counted takes nothing away from what
    /// is enforced.
    async fn count_namespaces(&mut self, wanted: &Wanted) {
        if wanted.is_empty() {
            self.report.namespaces = None;
            return;
        }
        let label = &self.settings.boundary_label;
        let api: Api<Namespace> = Api::all(self.target.client.clone());
        let mut params = ListParams::default().labels(label).limit(PAGE);
        let mut counts = BTreeMap::new();
        loop {
            let page = match limited(self.target.timeout, api.list_metadata(&params)).await {
                Ok(page) => page,
                Err(failure) => {
                    tracing::warn!(
                        %failure,
                        "namespaces can't be counted"
                    );
                    self.report.namespaces = None;
                    return;
                }
            };
            for namespace in &page.items {
                if let Some(boundary) = namespace.labels().get(label) {
                    *counts.entry(boundary.clone()).or_default() += 1;
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        self.report.namespaces = Some(counts);
    }

    /// Takes note of a failure of the whole cluster. One failure after contact is not told yet: it
    /// is tried again at once.
    fn failed(&mut self, failure: &Failure, wanted: &Wanted) {
        self.failures = self.failures.saturating_add(1);
        self.settled = None;
        let verdict = failure.verdict();
        tracing::warn!(
            failures = self.failures,
            %failure,
            "the cluster could not be brought up to date"
        );
        if self.failures == 1 && self.report.last_contact.is_some() {
            return;
        }
        // The text of the first failure of a kind stays, so that retries write no status.
        let told = self.report.problem.as_ref();
        if told.is_none_or(|told| (told.state, &told.reason) != (verdict.state, &verdict.reason)) {
            self.report.problem = Some(verdict);
        }
        if let Some(discovered) = &self.discovered {
            let options = self.options(discovered);
            let mut objects = compile(wanted.iter().map(AsRef::as_ref), &options).objects;
            objects.extend(self.guard());
            let names = objects.iter().map(|object| object.name.as_str()).collect();
            self.report.leftovers = leftovers(&self.existing, &names);
        }
    }

    fn options(&self, discovered: &Discovered) -> Options {
        Options {
            capabilities: discovered.capabilities,
            boundary_label: self.settings.boundary_label.clone(),
            now: Timestamp::now(),
        }
    }

    /// How long there is nothing to do.
    fn until_due(&self) -> Duration {
        let due = self.next_discovery.min(self.next_resync);
        let wait = due.saturating_duration_since(Instant::now());
        match self.settled.as_ref().and_then(|(_, expiry)| *expiry) {
            Some(expiry) => {
                let until = expiry.duration_since(Timestamp::now());
                let until = Duration::try_from(until).unwrap_or_default();
                wait.min(until + Duration::from_millis(10))
            }
            None => wait,
        }
    }
}

fn verdict(object: &AdmissionObject, outcome: &Outcome) -> Verdict {
    if outcome.remaining.taken.contains(&object.name) {
        return Verdict::new(
            ClusterState::NotEnforced,
            "NameTaken",
            format!(
                "a ValidatingAdmissionPolicy or binding {} is there that is not the operator's: \
                 delete or rename it",
                object.name
            ),
        );
    }
    if let Some(failure) = outcome.failed.get(&object.name) {
        return failure.verdict();
    }
    if outcome.differs(&object.name) {
        return Verdict::new(
            ClusterState::Pending,
            "Changed",
            format!(
                "{} is not there as it was written: something changes it",
                object.name
            ),
        );
    }
    prove(object)
}

/// Objects of ours that are not among `wanted`.
fn leftovers(existing: &Existing, wanted: &BTreeSet<&str>) -> BTreeSet<ObjectRef> {
    let ours = existing.ours();
    let left = ours.into_iter().filter(|name| !wanted.contains(name));
    left.map(|name| ObjectRef {
        kind: "ValidatingAdmissionPolicy".to_owned(),
        name: name.to_owned(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;
    use crate::fleet::fake::FakeServer;

    fn member(server: &FakeServer) -> Member {
        let permits = Arc::new(Semaphore::new(1));
        let settings = FleetSettings {
            local: kube::Config::new(http::Uri::from_static("http://localhost")),
            boundary_label: crate::api::BOUNDARY_LABEL.to_owned(),
            resync_interval: Duration::from_mins(5),
            capabilities_interval: Duration::from_mins(1),
            request_timeout: Duration::from_secs(5),
            permits: permits.clone(),
            label_guard: false,
            fence: crate::fleet::Fence::open(),
            metrics: crate::telemetry::Metrics::default(),
        };
        let target = Target {
            client: server.client(),
            timeout: settings.request_timeout,
            permits,
        };
        Member::new(target, Arc::new(settings), Report::default())
    }

    fn policies(names: &[&str]) -> Wanted {
        let policy = |name: &&str| {
            serde_saphyr::from_str(&format!(
                "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
                 metadata: {{name: {name}, generation: 1}}\n\
                 spec: {{boundary: web, rules: {{requiredLabels: {{labels: {{{name}: x}}}}}}}}"
            ))
            .unwrap()
        };
        names.iter().map(policy).map(Arc::new).collect()
    }

    fn states(member: &Member) -> Vec<(&str, ClusterState, &str)> {
        let reports = member.report.policies.iter();
        reports
            .map(|(name, told)| {
                let verdict = &told.verdict;
                (name.as_str(), verdict.state, verdict.reason.as_str())
            })
            .collect()
    }

    #[tokio::test]
    async fn a_policy_that_is_refused_is_left_out_and_the_others_are_enforced() {
        let server = FakeServer::default();
        server.set(|state| state.refuses = Some("'bad'".to_owned()));
        let mut member = member(&server);
        let wanted = policies(&["a", "bad", "c"]);
        assert!(member.cycle(&wanted).await.unwrap());
        assert_eq!(
            states(&member),
            [
                ("a", ClusterState::Enforced, "Applied"),
                ("bad", ClusterState::NotEnforced, "Refused"),
                ("c", ClusterState::Enforced, "Applied"),
            ]
        );
        let message = &member.report.policies["bad"].verdict.message;
        assert_eq!(message, "spec.validations[0]: it is refused");
        assert_eq!(server.writes().len(), 2);

        // A new generation of it is tried again.
        server.set(|state| state.refuses = None);
        let mut changed = wanted.clone();
        Arc::make_mut(&mut changed[1]).metadata.generation = Some(2);
        assert!(member.cycle(&changed).await.unwrap());
        assert_eq!(states(&member)[1].1, ClusterState::Enforced);
    }

    #[tokio::test]
    async fn nothing_changed_writes_nothing() {
        let server = FakeServer::default();
        let wanted = policies(&["a"]);
        member(&server).cycle(&wanted).await.unwrap();
        assert_eq!(
            server.writes(),
            [
                "POST validatingadmissionpolicies web.boundarypolicy.dev",
                "POST validatingadmissionpolicybindings web.boundarypolicy.dev",
            ]
        );
        // As after a restart of the operator.
        let mut member = member(&server);
        member.cycle(&wanted).await.unwrap();
        assert_eq!(states(&member), [("a", ClusterState::Enforced, "Applied")]);
        assert_eq!(server.writes(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_permission_that_is_missing_is_named() {
        let server = FakeServer::default();
        server.set(|state| state.forbids = Some(http::Method::POST));
        let mut member = member(&server);
        assert!(!member.cycle(&policies(&["a"])).await.unwrap());
        assert_eq!(
            states(&member),
            [("a", ClusterState::Forbidden, "Forbidden")]
        );
        let message = &member.report.policies["a"].verdict.message;
        assert!(message.contains("cannot create resource"), "{message}");

        server.set(|state| state.forbids = None);
        assert!(member.cycle(&policies(&["a"])).await.unwrap());
        assert_eq!(states(&member), [("a", ClusterState::Enforced, "Applied")]);
    }

    #[tokio::test]
    async fn what_was_known_stays_known_while_the_api_server_fails() {
        let server = FakeServer::default();
        let mut member = member(&server);
        let wanted = policies(&["a"]);
        member.cycle(&wanted).await.unwrap();
        server.set(|state| state.fails = Some(500));
        member.failures = 1;
        let failure = member.cycle(&wanted).await.unwrap_err();
        member.failed(&failure, &wanted);
        assert_eq!(member.report.version.as_deref(), Some("v1.34.4"));
        let problem = member.report.problem.as_ref().unwrap();
        assert_eq!(
            (problem.state, problem.reason.as_str()),
            (ClusterState::Pending, "ServerError")
        );
        assert_eq!(member.report.policies["a"].generation, Some(1));

        member.failed(&failure, &Wanted::new());
        assert_eq!(member.report.leftovers.len(), 1);

        server.set(|state| state.fails = None);
        assert!(member.cycle(&wanted).await.unwrap());
        assert_eq!(member.report.problem, None);
    }

    #[tokio::test]
    async fn a_guard_that_is_refused_takes_nothing_from_the_policies() {
        let server = FakeServer::default();
        server.set(|state| state.refuses = Some(GUARD.to_owned()));
        let mut member = member(&server);
        Arc::get_mut(&mut member.settings).unwrap().label_guard = true;
        let wanted = policies(&["a"]);
        assert!(!member.cycle(&wanted).await.unwrap());
        assert_eq!(states(&member), [("a", ClusterState::Enforced, "Applied")]);
        assert_eq!(member.report.guard.as_ref().unwrap().reason, "Refused");

        server.set(|state| state.refuses = None);
        assert!(member.cycle(&wanted).await.unwrap());
        assert_eq!(member.report.guard.as_ref().unwrap().reason, "Installed");
        assert_eq!(member.report.leftovers.len(), 0);
    }
}
