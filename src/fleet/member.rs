//! The task of one member cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::apply::{Outcome, apply};
use super::backoff::{Backoff, jitter};
use super::discover::{Discovered, discover, identity};
use super::drift::{Drift, NAMESPACE};
use super::failure::{Failure, Verdict, limited};
use super::permissions::{Access, in_member};
use super::plan::{Known, Versions};
use super::prove::Prover;
use super::report::{PolicyReport, Repair, Report, Wanted};
use super::target::Target;
use super::{FleetSettings, Source};
use crate::api::{Action, BoundaryPolicy, ClusterState, ObjectRef};
use crate::compile::{
    AdmissionObject, Compilation, GUARD, Mutating, Options, PROBE_NAMESPACE, compile, next_expiry,
};
use crate::rules::RuleName;
use crate::telemetry::{Attempt, Proof as ProofOutcome};

/// The reason while an object that was found as it is wanted was not proven since the operator
/// started. What was known of it before stands until then.
pub(crate) const RESTARTED: &str = "Restarted";

/// The longest wait between two attempts to reach a cluster.
const LONGEST_BACKOFF: Duration = Duration::from_mins(1);

/// The longest wait for the end of a watch, a little more than it is asked for.
const WATCH_TIMEOUT: Duration = Duration::from_mins(5);

/// The wait until what was not proven is tried again.
const PROVE_AGAIN: Duration = Duration::from_secs(5);

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
    let (target, watching) = match connect(source, &task.settings).await {
        Ok(connected) => connected,
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
    let config = target.config.as_ref();
    report.insecure = config.is_some_and(|config| config.accept_invalid_certs);
    let mut member = Member::new(target, task.settings.clone(), report);
    let longest = LONGEST_BACKOFF.min(task.settings.capabilities_interval);
    let mut backoff = Backoff::new(longest);
    let mut seen: Option<watch::Receiver<Option<Versions>>> = None;
    loop {
        let wanted = task.wanted.borrow_and_update().clone();
        // What is seen from here on may be newer than what is read.
        if let Some(seen) = &mut seen
            && seen.has_changed().unwrap_or_default()
            && differs(
                seen.borrow_and_update().as_ref(),
                &member.known.versions,
                member.probing,
            )
        {
            member.settled = None;
        }
        let look = tracing::info_span!(parent: None, "reconcile", cluster = member.report.cluster);
        let wait = match member.cycle(&wanted).instrument(look).await {
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
        if task.reports.send(member.tell()).is_err() {
            return;
        }
        if member.drift.is_none() && member.can_watch() {
            let drift = Drift::watch(&watching);
            seen = Some(drift.seen.clone());
            member.drift = Some(drift);
        }
        let until = Instant::now() + wait;
        // One proof at least, however much else is due; and none that began is broken off for it.
        loop {
            let (versions, member_probing) = (member.known.versions.clone(), member.probing);
            let next = member.next_proof();
            let due = next.as_ref().map_or(until, |(due, _)| (*due).min(until));
            let proof = async {
                tokio::time::sleep_until(due).await;
                match &next {
                    Some((due, object)) if *due <= Instant::now() => {
                        Some(member.prove(object, &wanted).await)
                    }
                    _ => None,
                }
            };
            let proven = tokio::select! {
                changed = task.wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                () = drifted(versions, member_probing, seen.as_mut()) => {
                    member.settled = None;
                    break;
                }
                proven = proof => proven,
            };
            let Some(proven) = proven else { break };
            if let Err(failure) = &proven {
                member.failed(failure, &wanted);
            }
            if task.reports.send(member.tell()).is_err() {
                return;
            }
            if proven.is_err() {
                tokio::select! {
                    changed = task.wanted.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(backoff.next()) => {}
                }
                break;
            }
            if Instant::now() >= until {
                break;
            }
        }
    }
}

/// A client for requests, and one whose answers may take as long as a watch.
async fn connect(source: &Source, settings: &FleetSettings) -> Result<(Target, Client), Verdict> {
    let config = source.config(settings).await?;
    let mut watching = config.clone();
    watching.read_timeout = Some(WATCH_TIMEOUT);
    let client = settings.fence.client(config.clone());
    let client = client.map_err(|_| unusable_client())?;
    let watching = Client::try_from(watching).map_err(|_| unusable_client())?;
    let target = Target {
        client,
        timeout: settings.request_timeout,
        config: Some(config),
        fence: settings.fence.clone(),
        permits: settings.permits.clone(),
    };
    Ok((target, watching))
}

/// Ends when something of ours is not as it was when it was last read.
async fn drifted(
    known: Versions,
    probing: bool,
    seen: Option<&mut watch::Receiver<Option<Versions>>>,
) {
    let Some(seen) = seen else {
        return std::future::pending().await;
    };
    // Only what is newly seen counts: a watch that lags behind what was read is no drift.
    while seen.changed().await.is_ok() {
        if differs(seen.borrow_and_update().as_ref(), &known, probing) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Whether what was seen is not what is `known`.
fn differs(seen: Option<&Versions>, known: &Versions, probing: bool) -> bool {
    let Some(seen) = seen else { return false };
    let gone = probing && !seen.contains_key(&(NAMESPACE, PROBE_NAMESPACE.to_owned()));
    let ours = seen.iter().filter(|((kind, _), _)| *kind != NAMESPACE);
    gone || !ours.eq(known.iter())
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
    /// What of ours was there when it was last read.
    known: Known,
    /// What there is to be, as it was last compiled.
    compilation: Arc<Compilation>,
    /// Objects that are there as they are wanted.
    whole: BTreeSet<String>,
    prover: Prover,
    /// Whether the probe namespace is there for all that is known.
    probing: bool,
    proofs: BTreeMap<String, Proof>,
    /// Objects that were written since the operator started.
    written: BTreeSet<String>,
    /// What was shown of each policy last, and at which generation. An update of an object takes
    /// effect at once and whole, so it stands for the policies that did not change.
    standing: BTreeMap<InObject, (i64, Verdict)>,
    /// When each policy was last seen to act, and at which generation.
    proven: BTreeMap<InObject, (i64, Timestamp)>,
    /// What is wrong with each policy, whatever is shown of it.
    troubles: BTreeMap<String, Verdict>,
    /// The watch on what is ours, once the cluster is known to serve it.
    drift: Option<Drift>,
    /// Policies that the API server refuses as they are.
    refused: BTreeMap<String, (Arc<BoundaryPolicy>, Failure)>,
    access: Access,
}

/// A policy in an object: the names of the object and the policy.
type InObject = (String, String);

/// What was shown of an object.
struct Proof {
    revision: String,
    verdicts: BTreeMap<String, Verdict>,
    /// When it is shown again.
    due: Instant,
}

impl Member {
    fn new(target: Target, settings: Arc<FleetSettings>, report: Report) -> Self {
        let label = settings.boundary_label.clone();
        Self {
            prover: Prover::new(target.clone(), settings.proof.clone(), label),
            target,
            settings,
            report,
            discovered: None,
            next_discovery: Instant::now(),
            next_resync: Instant::now(),
            settled: None,
            failures: 0,
            known: Known::default(),
            compilation: Arc::default(),
            whole: BTreeSet::new(),
            probing: false,
            proofs: BTreeMap::new(),
            written: BTreeSet::new(),
            standing: BTreeMap::new(),
            proven: BTreeMap::new(),
            troubles: BTreeMap::new(),
            drift: None,
            refused: BTreeMap::new(),
            access: Access::default(),
        }
    }

    /// Does what is due. Says whether everything is as it should be until something is due again.
    async fn cycle(&mut self, wanted: &Wanted) -> Result<bool, Failure> {
        let reconnected = self.failures > 0;
        let settled = self.bring(wanted).await;
        self.look_at_permissions(&settled, reconnected).await;
        Ok(settled? && self.access.suffices())
    }

    /// Asks what the credentials lack, after contact and where there is reason to.
    async fn look_at_permissions(&mut self, settled: &Result<bool, Failure>, reconnected: bool) {
        if !self.can_watch() {
            self.access.forget();
            return;
        }
        let policies = self.report.policies.values().map(|told| &told.verdict);
        let mut verdicts = policies.chain(&self.report.guard);
        let refused = matches!(settled, Err(Failure::Forbidden(_)))
            || verdicts.any(|verdict| verdict.state == ClusterState::Forbidden);
        let answers = matches!(settled, Ok(_) | Err(Failure::Forbidden(_)));
        if answers {
            let needed = in_member(self.settings.proof.enabled, self.settings.label_guard);
            let interval = self.settings.resync_interval;
            let reason = refused || reconnected;
            (self.access.look(&self.target, needed, interval, reason)).await;
        }
    }

    /// Brings the cluster to what is wanted, if that is due. Says whether nothing remains to be done.
    async fn bring(&mut self, wanted: &Wanted) -> Result<bool, Failure> {
        let discovered = self.discover().await?;
        if !self.is_settled(wanted) {
            self.settled = None;
            let expiry = next_expiry(wanted.iter().map(AsRef::as_ref), Timestamp::now());
            let settled = if let Some(problem) = discovered.unsupported() {
                self.report.policies.clear();
                self.report.leftovers.clear();
                self.report.guard = None;
                self.report.problem = Some(problem);
                self.whole.clear();
                self.proofs.clear();
                self.standing.clear();
                self.drift = None;
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
        if self.failures > 0 {
            // Whatever happened there in the meantime.
            for proof in self.proofs.values_mut() {
                proof.due = Instant::now();
            }
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
    #[tracing::instrument(skip_all)]
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
        if self.report.identity.is_none() || self.failures > 0 {
            let (client, timeout) = (&self.target.client, self.target.timeout);
            let identity = identity(client, timeout).await;
            self.report.identity = identity.or(self.report.identity.take());
        }
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
        let options = self.options(discovered, wanted);
        // Each round leaves out at least one policy more.
        loop {
            let accepted: Wanted = (wanted.iter())
                .filter(|policy| !self.refused.contains_key(&policy.name_any()))
                .cloned()
                .collect();
            let compilation = self.settings.compiler.compile(&accepted, &options);
            let objects = &compilation.objects;
            let outcome = apply(&self.target, Some(&mut self.prover), objects).await?;
            for failure in outcome.failed.values() {
                self.settings.metrics.error(failure.class());
            }
            self.note_repairs(&compilation, &outcome);
            let mut refused = outcome.refused();
            refused.remove(GUARD);
            let refused: BTreeSet<String> = refused.into_iter().map(Into::into).collect();
            if refused.is_empty() {
                let settled = outcome.failed.is_empty() && outcome.remaining.steps.is_empty();
                self.compilation = compilation;
                self.assess(wanted, &outcome);
                return Ok(settled);
            }
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

    /// Those of `policies` without which the API server takes the rest.
    async fn culprits(
        &self,
        policies: &[Arc<BoundaryPolicy>],
        options: &Options,
    ) -> Result<Vec<(Arc<BoundaryPolicy>, Failure)>, Failure> {
        let options = &Options {
            label_guard: false,
            ..options.clone()
        };
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

    /// Takes note of what another had done to objects that were as they are wanted.
    fn note_repairs(&mut self, compilation: &Compilation, outcome: &Outcome) {
        for object in &compilation.objects {
            let Some(whole) = outcome.differed.get(&object.name) else {
                continue;
            };
            let before = self.compilation.objects.iter();
            let unchanged = self.whole.contains(&object.name)
                && before
                    .clone()
                    .any(|o| o.name == object.name && o.revision == object.revision);
            if unchanged && !outcome.differs(&object.name) {
                tracing::warn!(
                    object = object.name,
                    deleted = !whole,
                    "something else changed an object; it was put right"
                );
                self.standing.retain(|(name, _), _| *name != object.name);
                self.settings.metrics.drift_repaired();
                self.report.repairs.push(Repair {
                    object: object.name.clone(),
                    policies: object.policies.keys().cloned().collect(),
                    deleted: !whole,
                });
            }
        }
        // What was written is to be shown anew.
        for name in outcome.differed.keys() {
            self.proofs.remove(name);
            self.prover.forget(name);
            self.written.insert(name.clone());
        }
    }

    /// Takes note of what became of each object, and says it of each policy.
    fn assess(&mut self, wanted: &Wanted, outcome: &Outcome) {
        self.known = outcome.existing.summary();
        let compilation = self.compilation.clone();
        self.whole.clear();
        self.report.guard = None;
        let mut troubles = BTreeMap::new();
        for object in &compilation.objects {
            let trouble = trouble(object, outcome);
            if object.name == GUARD {
                let installed = || Verdict::new(ClusterState::Installed, "Installed", "");
                self.report.guard = Some(trouble.clone().unwrap_or_else(installed));
            }
            if let Some(verdict) = trouble {
                for policy in object.policies.keys() {
                    worsen(&mut troubles, policy, &verdict);
                }
            } else {
                self.whole.insert(object.name.clone());
            }
        }
        for problem in &compilation.problems {
            let texts: Vec<_> = problem.errors.iter().map(ToString::to_string).collect();
            let text = texts.join("; ");
            let verdict = Verdict::new(ClusterState::NotEnforced, "InvalidPolicy", text);
            worsen(&mut troubles, &problem.policy, &verdict);
        }
        for (policy, rules) in &compilation.not_enforced {
            worsen(
                &mut troubles,
                policy,
                &no_mutation(&compilation, policy, rules),
            );
        }
        for (name, (_, failure)) in &self.refused {
            worsen(&mut troubles, name, &failure.verdict());
        }
        self.troubles = troubles;
        self.proofs.retain(|name, proof| {
            let mut objects = compilation.objects.iter();
            objects.any(|object| object.name == *name && object.revision == proof.revision)
        });
        self.report.problem = None;
        self.report.policies = wanted
            .iter()
            .map(|policy| {
                let name = policy.name_any();
                let report = PolicyReport {
                    wanted: policy.metadata.generation.unwrap_or_default(),
                    generation: self.known.generations.get(&name).copied(),
                    verdict: Verdict::new(ClusterState::Pending, "Applying", ""),
                    proven: None,
                };
                (name, report)
            })
            .collect();
        self.say_proven();
        let names: BTreeSet<_> = compilation
            .objects
            .iter()
            .map(|o| o.name.as_str())
            .collect();
        self.report.leftovers = leftovers(&self.known, &names);
    }

    /// Says of each policy the worst that is known of it in any object.
    fn say_proven(&mut self) {
        let mut verdicts = self.troubles.clone();
        let mut proven: BTreeMap<&str, (i64, Timestamp)> = BTreeMap::new();
        for object in &self.compilation.objects {
            let whole = self.whole.contains(&object.name);
            let proof = self.proofs.get(&object.name);
            for policy in object.policies.keys().filter(|_| whole) {
                let inside = (object.name.clone(), policy.clone());
                let standing = self.standing.get(&inside);
                let standing = standing.filter(|(g, _)| object.policies.get(policy) == Some(g));
                let verdict = match proof {
                    Some(proof) => proof.verdicts.get(policy).cloned(),
                    None => standing.map(|(_, verdict)| verdict.clone()),
                }
                .unwrap_or_else(|| {
                    let reason = if self.written.contains(&object.name) {
                        "Proving"
                    } else {
                        RESTARTED
                    };
                    let text = "the objects are there; whether the API server acts on them is \
                                being looked at";
                    Verdict::new(ClusterState::Pending, reason, text)
                });
                worsen(&mut verdicts, policy, &verdict);
                if let Some(shown) = self.proven.get(&inside) {
                    let least = proven.entry(policy).or_insert(*shown);
                    *least = (*shown).min(*least);
                }
            }
        }
        for (name, report) in &mut self.report.policies {
            report.proven = proven.get(name.as_str()).copied();
            if let Some(verdict) = verdicts.remove(name) {
                report.verdict = verdict;
            }
        }
    }

    /// The object that is to be shown next, and when.
    fn next_proof(&self) -> Option<(Instant, AdmissionObject)> {
        let now = Instant::now();
        let objects = self.compilation.objects.iter();
        objects
            .filter(|object| self.whole.contains(&object.name) && !object.policies.is_empty())
            .map(|object| (self.proofs.get(&object.name).map(|proof| proof.due), object))
            .min_by_key(|(due, _)| *due)
            .map(|(due, object)| (due.unwrap_or(now), object.clone()))
    }

    /// Shows whether the API server acts on an object.
    #[tracing::instrument(
        parent = None, skip_all, fields(cluster = self.report.cluster, object = object.name)
    )]
    async fn prove(&mut self, object: &AdmissionObject, wanted: &Wanted) -> Result<(), Failure> {
        let started = Instant::now();
        let verdicts = self.prover.prove(object, wanted).await;
        if let Some(outcome) = ProofOutcome::of(&verdicts) {
            self.settings.metrics.proof(started.elapsed(), outcome);
        }
        let verdicts = verdicts?;
        self.probing |= self.prover.settings().enabled && object.action != Action::Audit;
        let good = |verdict: &Verdict| {
            matches!(
                verdict.state,
                ClusterState::Enforced | ClusterState::Installed
            )
        };
        let interval = self.prover.settings().interval;
        let wait = if verdicts.values().all(good) {
            interval
        } else {
            PROVE_AGAIN.min(interval)
        };
        let now = Timestamp::now();
        for (policy, verdict) in &verdicts {
            let generation = object.policies.get(policy).copied().unwrap_or_default();
            let inside = (object.name.clone(), policy.clone());
            if verdict.state == ClusterState::Enforced {
                self.proven.insert(inside.clone(), (generation, now));
            }
            if good(verdict) {
                self.standing.insert(inside, (generation, verdict.clone()));
            } else {
                self.standing.remove(&inside);
            }
        }
        let proof = Proof {
            revision: object.revision.clone(),
            verdicts,
            due: Instant::now() + jitter(wait),
        };
        self.proofs.insert(object.name.clone(), proof);
        self.report.last_contact = Some(now);
        self.say_proven();
        Ok(())
    }

    /// Whether the cluster serves what is to be watched.
    fn can_watch(&self) -> bool {
        let discovered = self.discovered.as_ref();
        discovered.is_some_and(|discovered| discovered.capabilities.validating)
    }

    /// The report, with what happened since the one before.
    fn tell(&mut self) -> Report {
        let mut report = self.report.clone();
        self.report.repairs.clear();
        let forbidden = |problem: &Verdict| problem.reason == "Forbidden";
        if report.problem.as_ref().is_none_or(forbidden)
            && let Some(lacking) = self.access.verdict()
        {
            report.problem = Some(lacking);
        }
        report
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
        // The probe namespace goes from boundary to boundary.
        let mut params = ListParams::default()
            .labels(label)
            .fields(&format!("metadata.name!={PROBE_NAMESPACE}"))
            .limit(PAGE);
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
        let verdict = failure.of_cluster();
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
            let options = self.options(discovered, wanted);
            let compilation = self.settings.compiler.compile(wanted, &options);
            let names = compilation
                .objects
                .iter()
                .map(|o| o.name.as_str())
                .collect();
            self.report.leftovers = leftovers(&self.known, &names);
        }
    }

    fn options(&self, discovered: &Discovered, wanted: &Wanted) -> Options {
        Options {
            capabilities: discovered.capabilities,
            boundary_label: self.settings.boundary_label.clone(),
            label_guard: self.settings.label_guard,
            now: Timestamp::now(),
            catalog: wanted.catalog.clone(),
            mutation: Mutating::NotActing,
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

/// The verdict on a policy of which `rules` are not enforced, since the cluster does not change Pods.
fn no_mutation(compilation: &Compilation, policy: &str, rules: &BTreeSet<RuleName>) -> Verdict {
    let rules: Vec<_> = rules.iter().map(|rule| rule.as_str()).collect();
    let rules = rules.join(", ");
    let mut objects = compilation.objects.iter();
    let state = if objects.any(|object| object.policies.contains_key(policy)) {
        ClusterState::PartlyEnforced
    } else {
        ClusterState::Unsupported
    };
    let text = format!(
        "Pods are not changed in this cluster, so nothing enforces {rules}; set \
         whenMutationUnsupported: Deny to refuse Pods that don't keep them"
    );
    Verdict::new(state, "MutationUnsupported", text)
}

/// Takes note of a verdict on a policy, if none that is worse is known.
fn worsen(verdicts: &mut BTreeMap<String, Verdict>, policy: &str, verdict: &Verdict) {
    match verdicts.get(policy) {
        Some(known) if known.state <= verdict.state => {}
        _ => {
            verdicts.insert(policy.to_owned(), verdict.clone());
        }
    }
}

/// Why an object is not there as it is wanted, if it isn't.
fn trouble(object: &AdmissionObject, outcome: &Outcome) -> Option<Verdict> {
    if outcome.remaining.taken.contains(&object.name) {
        return Some(Verdict::new(
            ClusterState::NotEnforced,
            "NameTaken",
            format!(
                "a ValidatingAdmissionPolicy or binding {} is there that is not the operator's: \
                 delete or rename it",
                object.name
            ),
        ));
    }
    if let Some(failure) = outcome.failed.get(&object.name) {
        return Some(failure.verdict());
    }
    if outcome.differs(&object.name) {
        return Some(Verdict::new(
            ClusterState::Pending,
            "Changed",
            format!(
                "{} is not there as it was written: something changes it",
                object.name
            ),
        ));
    }
    None
}

/// Objects of ours that are not among `wanted`.
fn leftovers(known: &Known, wanted: &BTreeSet<&str>) -> BTreeSet<ObjectRef> {
    let ours: BTreeSet<_> = known
        .versions
        .keys()
        .map(|(_, name)| name.as_str())
        .collect();
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
            proof: crate::fleet::ProofSettings {
                enabled: false,
                ..Default::default()
            },
            compiler: Arc::default(),
        };
        let target = Target {
            client: server.client(),
            timeout: settings.request_timeout,
            config: None,
            fence: crate::fleet::Fence::open(),
            permits,
        };
        Member::new(target, Arc::new(settings), Report::default())
    }

    /// A cycle, and what can be said after it.
    async fn settle(member: &mut Member, wanted: &Wanted) -> Result<bool, Failure> {
        let settled = member.cycle(wanted).await?;
        while member.compilation.objects.iter().any(|object| {
            // What holds no policy, as the guard, is not shown.
            !object.policies.is_empty()
                && member.whole.contains(&object.name)
                && !member.proofs.contains_key(&object.name)
        }) {
            let (_, object) = member.next_proof().unwrap();
            member.prove(&object, wanted).await?;
        }
        Ok(settled)
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
        assert!(settle(&mut member, &wanted).await.unwrap());
        assert_eq!(
            states(&member),
            [
                ("a", ClusterState::Installed, "ProvingOff"),
                ("bad", ClusterState::NotEnforced, "Refused"),
                ("c", ClusterState::Installed, "ProvingOff"),
            ]
        );
        let message = &member.report.policies["bad"].verdict.message;
        assert_eq!(message, "spec.validations[0]: it is refused");
        assert_eq!(server.writes().len(), 2);

        // A new generation of it is tried again.
        server.set(|state| state.refuses = None);
        let mut changed = wanted.clone();
        Arc::make_mut(&mut changed.policies[1]).metadata.generation = Some(2);
        assert!(settle(&mut member, &changed).await.unwrap());
        assert_eq!(states(&member)[1].1, ClusterState::Installed);
    }

    #[tokio::test]
    async fn nothing_changed_writes_nothing() {
        let server = FakeServer::default();
        let wanted = policies(&["a"]);
        settle(&mut member(&server), &wanted).await.unwrap();
        assert_eq!(
            server.writes(),
            [
                "POST validatingadmissionpolicies web.boundarypolicy.dev",
                "POST validatingadmissionpolicybindings web.boundarypolicy.dev",
            ]
        );
        // As after a restart of the operator.
        let mut member = member(&server);
        settle(&mut member, &wanted).await.unwrap();
        assert_eq!(
            states(&member),
            [("a", ClusterState::Installed, "ProvingOff")]
        );
        assert_eq!(server.writes(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_permission_that_is_missing_is_named() {
        let server = FakeServer::default();
        server.set(|state| state.forbids = Some(http::Method::POST));
        let mut member = member(&server);
        assert!(!settle(&mut member, &policies(&["a"])).await.unwrap());
        assert_eq!(
            states(&member),
            [("a", ClusterState::Forbidden, "Forbidden")]
        );
        let message = &member.report.policies["a"].verdict.message;
        assert!(message.contains("cannot create resource"), "{message}");
        // All that is lacking is told, not only what was refused first.
        let problem = member.tell().problem.unwrap();
        assert_eq!(problem.state, ClusterState::Forbidden);
        assert_eq!(
            problem.message,
            "the credentials lack permissions: create validatingadmissionpolicies, create \
             validatingadmissionpolicybindings; apply config/rbac/member.yaml in the cluster"
        );

        server.set(|state| state.forbids = None);
        assert!(settle(&mut member, &policies(&["a"])).await.unwrap());
        assert_eq!(member.tell().problem, None);
        assert_eq!(
            states(&member),
            [("a", ClusterState::Installed, "ProvingOff")]
        );
    }

    #[tokio::test]
    async fn what_was_known_stays_known_while_the_api_server_fails() {
        let server = FakeServer::default();
        let mut member = member(&server);
        let wanted = policies(&["a"]);
        settle(&mut member, &wanted).await.unwrap();
        server.set(|state| state.fails = Some(500));
        member.failures = 1;
        let failure = settle(&mut member, &wanted).await.unwrap_err();
        member.failed(&failure, &wanted);
        assert_eq!(member.report.version.as_deref(), Some("v1.34.4"));
        let problem = member.report.problem.as_ref().unwrap();
        assert_eq!(
            (problem.state, problem.reason.as_str()),
            (ClusterState::Unreachable, "ServerError")
        );
        assert_eq!(member.report.policies["a"].generation, Some(1));

        member.failed(&failure, &Wanted::default());
        assert_eq!(member.report.leftovers.len(), 1);

        server.set(|state| state.fails = None);
        assert!(settle(&mut member, &wanted).await.unwrap());
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
        assert!(member.whole.contains("web.boundarypolicy.dev"));
        assert_eq!(member.report.guard.as_ref().unwrap().reason, "Refused");

        server.set(|state| state.refuses = None);
        assert!(settle(&mut member, &wanted).await.unwrap());
        assert_eq!(member.report.guard.as_ref().unwrap().reason, "Installed");
        assert_eq!(member.report.leftovers.len(), 0);
    }
}
