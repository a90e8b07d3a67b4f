//! The controller: observe what is on the hub, decide what each cluster is asked for, let the fleet
//! act, and report what became of it.

mod argocd;
mod hub;
mod identity;
mod leader;
mod member_status;
mod policy_status;
mod scope;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use leader::{Election, LEASE};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{
    BOUNDARY_LABEL, BoundaryPolicy, BoundaryPolicyStatus, ClusterState, DeletionPolicy,
    MemberCluster, MemberClusterStatus,
};
use crate::compile::MANAGED_BY;
use crate::fleet::{Fence, Fleet, FleetSettings, ProofSettings, Repair, Report, Source, Verdict};
use crate::plans::Catalog;
use crate::telemetry::{Loop, Telemetry};
use argocd::Change;
use hub::{Hub, Member};
use identity::Identities;
use leader::Elector;
use member_status::{member_status, member_transitions, to_seconds};
use policy_status::{InScope, Transition, policy_status, repaired, transitions};
use scope::{Observed, wanted};
use write::{FINALIZER, Memory, WriteError, Writer};

/// How long changes are collected before they are acted on together.
const COLLECT: Duration = Duration::from_millis(50);

/// How often it is looked whether time alone changed something.
const TICK: Duration = Duration::from_secs(5);

/// Statuses that are written at the same time.
const CONCURRENT_WRITES: usize = 8;

/// How the operator works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the operator, in which the Secrets with kubeconfigs are.
    pub namespace: String,
    /// The key of the label that puts a namespace into a boundary.
    pub boundary_label: String,
    /// How often what is in a cluster is compared with what is wanted there.
    pub resync_interval: Duration,
    /// How often a cluster is asked for its version and APIs.
    pub capabilities_interval: Duration,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// What is shown by requests.
    pub proof: ProofSettings,
    /// Writes to member clusters at the same time, all together.
    pub max_concurrent_applies: usize,
    /// Whether the label that puts a namespace into a boundary is guarded in the member clusters.
    pub label_guard: bool,
    /// The namespace in which cluster Secrets of Argo CD are looked for. Absent: they are not.
    pub argocd_namespace: Option<String>,
    /// How the leader of several instances is elected. Absent: this is the only one.
    pub election: Option<Election>,
    /// What this instance tells of itself.
    pub telemetry: Telemetry,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: "boundary-operator".to_owned(),
            boundary_label: BOUNDARY_LABEL.to_owned(),
            resync_interval: Duration::from_mins(5),
            capabilities_interval: Duration::from_mins(1),
            request_timeout: Duration::from_secs(10),
            proof: ProofSettings::default(),
            max_concurrent_applies: 16,
            label_guard: true,
            argocd_namespace: None,
            election: None,
            telemetry: Telemetry::default(),
        }
    }
}

/// Why the operator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client can be made for the hub.
    #[error("no client can be made for the hub: {0}")]
    Client(#[source] kube::Error),
    /// Another instance may lead by now. Nothing is written any more; start anew.
    #[error("the Lease could not be renewed in time: this instance leads no more")]
    LeadershipLost,
}

/// Runs the operator against the hub until `shutdown`. Whatever goes wrong on the way is tried again.
///
/// Of several instances with an [`Election`] one works and the others wait. When it returns, nothing
/// of it writes any more.
///
/// # Errors
/// No client can be made from `hub`, or the leadership was lost.
pub async fn run(
    settings: Settings,
    hub: kube::Config,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let client = Client::try_from(hub.clone()).map_err(Error::Client)?;
    let watched = Hub::watch(
        &client,
        &settings.namespace,
        settings.argocd_namespace.as_deref(),
        settings.request_timeout,
    );
    let telemetry = settings.telemetry.clone();
    let ended = Ended(telemetry.clone());
    let mut shutdown = std::pin::pin!(shutdown);
    let fence = if settings.election.is_some() {
        Fence::closed()
    } else {
        Fence::open()
    };
    let elector = |election| {
        Elector::new(
            election,
            client.clone(),
            &settings.namespace,
            settings.request_timeout,
            fence.clone(),
            telemetry.clone(),
        )
    };
    let mut waiting = settings.election.clone().map(elector);
    if let Some(elector) = &mut waiting {
        let ready = async {
            watched.ready().await;
            telemetry.health.ready();
            std::future::pending::<()>().await;
        };
        let acquired = tokio::select! {
            () = elector.acquire() => true,
            () = ready => false,
            () = &mut shutdown => false,
        };
        if !acquired {
            tracing::info!("the operator stops; it did not lead");
            // It may have just got the Lease.
            if let Some(elector) = waiting {
                elector.release().await;
            }
            return Ok(());
        }
    }
    telemetry.metrics.leads(true);

    let (mut operator, mut reports) = Operator::new(&settings, hub, watched, &fence)?;
    tracing::info!(namespace = settings.namespace, "the operator starts");
    let mut keeping = JoinSet::new();
    if let Some(mut elector) = waiting {
        keeping.spawn(async move {
            elector.keep().await;
        });
    }
    let lost = tokio::select! {
        () = operator.work(&mut reports) => false,
        Some(_) = keeping.join_next() => true,
        () = shutdown => false,
    };
    // Nothing renews the Lease any more when the fence closes and it is given back.
    keeping.shutdown().await;
    fence.close();
    drop(operator);
    drop(ended);
    if lost {
        return Err(Error::LeadershipLost);
    }
    tracing::info!("the operator stops; what is enforced stays enforced");
    if let Some(election) = settings.election.clone() {
        elector(election).release().await;
    }
    Ok(())
}

/// Says that an instance does not lead and that none of its loops run, when it is dropped.
struct Ended(Telemetry);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.metrics.leads(false);
        self.0.health.ended(Loop::Election);
        self.0.health.ended(Loop::Reconcile);
    }
}

struct Operator {
    hub: Hub,
    writer: Writer,
    fleet: Fleet,
    reports: BTreeMap<String, Report>,
    /// Since when clusters have not reported at all.
    waiting: BTreeMap<String, Instant>,
    /// How long they are waited for.
    patience: Duration,
    policy_statuses: Memory<BoundaryPolicyStatus>,
    member_statuses: Memory<MemberClusterStatus>,
    identities: Identities,
    /// How each cluster was last reached, should its Secret go before it does.
    sources: BTreeMap<String, Source>,
    /// Cluster Secrets of Argo CD of which it was told that there is no room for them.
    told_taken: BTreeSet<String>,
    /// What was put right and is not told yet, with the cluster.
    repairs: Vec<(String, Repair)>,
    /// Clusters that are being left, by uid.
    removals: JoinSet<String>,
    removing: BTreeSet<String>,
    telemetry: Telemetry,
}

impl Operator {
    fn new(
        settings: &Settings,
        config: kube::Config,
        hub: Hub,
        fence: &Fence,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Report>), Error> {
        let metrics = settings.telemetry.metrics.clone();
        let (fleet, reports) = Fleet::new(FleetSettings {
            local: config.clone(),
            boundary_label: settings.boundary_label.clone(),
            resync_interval: settings.resync_interval,
            capabilities_interval: settings.capabilities_interval,
            request_timeout: settings.request_timeout,
            permits: Arc::new(Semaphore::new(settings.max_concurrent_applies.max(1))),
            proof: settings.proof.clone(),
            compiler: Arc::default(),
            label_guard: settings.label_guard,
            fence: fence.clone(),
            metrics: metrics.clone(),
        });
        let operator = Self {
            hub,
            writer: Writer {
                client: fence.client(config).map_err(Error::Client)?,
                timeout: settings.request_timeout,
                instance: std::env::var("HOSTNAME")
                    .unwrap_or_else(|_| "boundary-operator".to_owned()),
                telemetry: settings.telemetry.clone(),
            },
            fleet,
            reports: BTreeMap::new(),
            waiting: BTreeMap::new(),
            patience: settings.request_timeout * 2 + Duration::from_secs(1),
            policy_statuses: Memory::new(),
            member_statuses: Memory::new(),
            identities: Identities::default(),
            sources: BTreeMap::new(),
            told_taken: BTreeSet::new(),
            repairs: Vec::new(),
            removals: JoinSet::new(),
            removing: BTreeSet::new(),
            telemetry: settings.telemetry.clone(),
        };
        Ok((operator, reports))
    }

    /// Never ends.
    async fn work(&mut self, reports: &mut mpsc::UnboundedReceiver<Report>) {
        self.hub.ready().await;
        self.telemetry.health.ready();
        tracing::info!("everything on the hub was listed");
        let changed = self.hub.changed.clone();
        loop {
            self.telemetry.health.beat(Loop::Reconcile);
            let started = Instant::now();
            self.pass().await;
            self.telemetry.metrics.reconciled(started.elapsed());
            self.telemetry.health.beat(Loop::Reconcile);
            let removed = async {
                match self.removals.join_next().await {
                    Some(removed) => removed,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed.notified() => {}
                Some(report) = reports.recv() => self.take(report),
                removed = removed => if let Ok(uid) = removed { self.removing.remove(&uid); },
                () = tokio::time::sleep(TICK) => {}
            }
            tokio::time::sleep(COLLECT).await;
            while let Ok(report) = reports.try_recv() {
                self.take(report);
            }
        }
    }

    fn take(&mut self, mut report: Report) {
        if self.fleet.is_current(&report) {
            if let Some(identity) = &report.identity {
                self.identities.learn(&report.cluster, identity);
            }
            let repairs = std::mem::take(&mut report.repairs);
            let cluster = report.cluster.clone();
            self.repairs
                .extend(repairs.into_iter().map(|repair| (cluster.clone(), repair)));
            self.waiting.remove(&report.cluster);
            if let Some(known) = self.reports.remove(&cluster) {
                report.follow(known);
            }
            self.reports.insert(cluster, report);
        }
    }

    async fn pass(&mut self) {
        let mut members = Vec::new();
        let mut leaving = Vec::new();
        let all = self.hub.members();
        self.follow_argocd(&all).await;
        for member in all {
            if member.object.metadata.deletion_timestamp.is_some() {
                leaving.push(member);
            } else if self.hold(&member).await {
                members.push(member);
            }
        }
        for Member { object, source } in &members {
            if !matches!(source, Source::Unusable(_)) {
                self.sources.insert(object.name_any(), source.clone());
            }
        }
        let names: BTreeSet<_> = (members.iter().chain(&leaving))
            .map(|member| member.object.name_any())
            .collect();
        self.sources.retain(|name, _| names.contains(name));
        self.identities.refuse_doubles(&mut members);
        let policies = self.hub.policies().await.clone();
        let catalog = self.hub.catalog();
        let desired = members.iter().map(|Member { object, source }| {
            (
                object.name_any(),
                (source.clone(), wanted(&policies, &catalog, object)),
            )
        });
        self.fleet.set(desired.collect());
        for member in leaving {
            self.remove(member);
        }

        let names: BTreeSet<_> = members
            .iter()
            .map(|member| member.object.name_any())
            .collect();
        self.reports.retain(|name, _| names.contains(name));
        self.waiting.retain(|name, _| names.contains(name));
        for name in names
            .iter()
            .filter(|name| !self.reports.contains_key(*name))
        {
            self.waiting
                .entry(name.clone())
                .or_insert_with(Instant::now);
        }
        self.policy_statuses
            .retain(|name| policies.contains_key(name));
        self.member_statuses.retain(|name| names.contains(name));

        self.tell_repairs(&policies).await;
        let now = to_seconds(Timestamp::now()).unwrap_or_default();
        self.measure(&members);
        let counts = self
            .report_policies(&policies, &catalog, &members, now)
            .await;
        self.report_members(&members, &counts, now).await;
    }

    /// Counts the clusters by state, and tells when they last answered.
    fn measure(&self, members: &[Member]) {
        let mut states = Vec::new();
        let mut contacts = BTreeMap::new();
        for Member { object, .. } in members {
            let name = object.name_any();
            let report = self.reports.get(&name);
            states.push(match report {
                Some(report) => report.problem.as_ref().map(|problem| problem.state),
                None => Some(ClusterState::Pending),
            });
            let stored = object.status.as_ref().and_then(|s| s.last_contact_time);
            let contact = report.and_then(|report| report.last_contact).or(stored);
            contacts.extend(contact.map(|time| (name, time)));
        }
        let metrics = &self.telemetry.metrics;
        metrics.clusters(states);
        metrics.contacts(&contacts);
    }

    /// Makes sure that a cluster can't go before what is ours was removed from it.
    async fn hold(&self, member: &Member) -> bool {
        let metadata = &member.object.metadata;
        if metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == FINALIZER)
        {
            return true;
        }
        match self.writer.finalizer(metadata, true).await {
            Ok(()) => true,
            Err(error) => {
                let cluster = member.object.name_any();
                tracing::warn!(cluster, %error, "the finalizer can't be set; it is tried again");
                false
            }
        }
    }

    /// Removes what is ours from a cluster, in one attempt, and lets its `MemberCluster` go.
    fn remove(&mut self, member: Member) {
        let metadata = member.object.metadata.clone();
        let held = metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == FINALIZER);
        let uid = metadata.uid.clone().unwrap_or_default();
        if !held || !self.removing.insert(uid.clone()) {
            return;
        }
        let name = member.object.name_any();
        // The Secret may have been deleted together with it.
        let known = self.sources.get(&name).cloned();
        let source = match member.source {
            Source::Unusable(problem) => known.unwrap_or(Source::Unusable(problem)),
            usable => usable,
        };
        // What is there is another's, or it is not known what would be taken away from another.
        let shared = self.identities.shares(&name);
        let source = shared.map_or(source, Source::Unusable);
        let retain = member.object.spec.deletion_policy == DeletionPolicy::Retain;
        let removal = (!retain).then(|| self.fleet.remove(source));
        let writer = self.writer.clone();
        self.removals.spawn(async move {
            let cluster = metadata.name.as_deref().unwrap_or_default();
            let left = match removal {
                Some(removal) => left(removal.await),
                None => Transition::of("Retained", true, RETAINED),
            };
            tell::<MemberCluster>(&writer, &metadata, vec![left]).await;
            if let Err(error) = writer.finalizer(&metadata, false).await {
                tracing::warn!(cluster, %error, "the finalizer can't be removed; it is tried again");
            }
            uid
        });
    }

    /// Sees to it that there is a `MemberCluster` for each cluster Secret of Argo CD.
    async fn follow_argocd(&mut self, members: &[Member]) {
        let changes = self.hub.argocd_changes(members);
        let mut taken = BTreeSet::new();
        for change in changes {
            let (name, done) = match change {
                Change::Create(member) => (member.name_any(), self.writer.create(&member).await),
                Change::Label(name, labels) => {
                    let done = self.writer.label(&name, &labels).await;
                    (name, done)
                }
                Change::Delete(name) => {
                    let done = self.writer.delete(&name).await;
                    (name, done)
                }
                Change::Taken { by, secret } => {
                    if !self.told_taken.contains(&secret) {
                        let note = format!(
                            "the cluster Secret {secret} of Argo CD is for a cluster of this name, \
                             and this MemberCluster is not made from it: rename one of them"
                        );
                        let told = Transition::of("NameTaken", false, &note);
                        tell::<MemberCluster>(&self.writer, &by, vec![told]).await;
                    }
                    taken.insert(secret);
                    continue;
                }
            };
            match done {
                Ok(()) => tracing::info!(cluster = name, "followed the Secrets of Argo CD"),
                Err(error) => tracing::warn!(
                    cluster = name,
                    %error,
                    "the Secrets of Argo CD can't be followed; it is tried again"
                ),
            }
        }
        self.told_taken = taken;
    }

    /// Tells of what was put right in an Event at each policy that it concerns.
    async fn tell_repairs(&mut self, policies: &BTreeMap<String, Observed>) {
        for (cluster, repair) in std::mem::take(&mut self.repairs) {
            let told = repaired(&cluster, &repair);
            for observed in repair.policies.iter().filter_map(|name| policies.get(name)) {
                let told = vec![told.clone()];
                tell::<BoundaryPolicy>(&self.writer, &observed.metadata, told).await;
            }
        }
    }

    /// Writes the statuses that changed. Returns for each cluster how many policies are for it, and
    /// how many are enforced.
    async fn report_policies(
        &mut self,
        policies: &BTreeMap<String, Observed>,
        catalog: &Catalog,
        members: &[Member],
        now: Timestamp,
    ) -> BTreeMap<String, (u32, u32)> {
        let names: Vec<_> = members
            .iter()
            .map(|member| member.object.name_any())
            .collect();
        let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        let mut changes = Vec::new();
        let (mut words, mut states) = (Vec::new(), Vec::new());
        for observed in policies.values() {
            if observed.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let scope: Vec<_> = members
                .iter()
                .zip(&names)
                .filter(|(member, _)| observed.is_for(&member.object, catalog))
                .map(|(_, name)| InScope {
                    name,
                    report: self.reports.get(name),
                    overdue: self.is_overdue(name),
                })
                .collect();
            let stored = self
                .policy_statuses
                .latest(&observed.metadata, observed.stored.as_ref());
            let computed = policy_status(observed, stored.as_ref(), &scope, catalog, now);
            words.push(computed.word);
            states.extend(computed.states.values().copied());
            for cluster in &scope {
                let count = counts.entry(cluster.name.to_owned()).or_default();
                count.0 += 1;
                count.1 +=
                    u32::from(computed.states.get(cluster.name) == Some(&ClusterState::Enforced));
            }
            if stored.as_ref() != Some(&computed.status) {
                let told = transitions(stored.as_ref(), &computed.status);
                changes.push((observed.metadata.clone(), computed.status, told));
            }
        }
        self.telemetry.metrics.policies(words);
        self.telemetry.metrics.policy_clusters(states);
        let writer = self.writer.clone();
        let mut written = stream::iter(changes)
            .map(move |(metadata, status, told)| {
                let writer = writer.clone();
                async move { write_policy(&writer, metadata, status, told).await }
            })
            .buffer_unordered(CONCURRENT_WRITES);
        while let Some(written) = written.next().await {
            if let Some((metadata, status)) = written {
                self.policy_statuses.written(&metadata, status);
            }
        }
        counts
    }

    async fn report_members(
        &mut self,
        members: &[Member],
        counts: &BTreeMap<String, (u32, u32)>,
        now: Timestamp,
    ) {
        let changes = members.iter().filter_map(|Member { object, .. }| {
            let name = object.name_any();
            let stored = self
                .member_statuses
                .latest(&object.metadata, object.status.as_ref());
            let status = member_status(
                object.metadata.generation,
                stored.as_ref(),
                self.reports.get(&name),
                self.is_overdue(&name),
                counts.get(&name).copied().unwrap_or_default(),
                now,
            );
            (stored.as_ref() != Some(&status)).then(|| {
                let told = member_transitions(stored.as_ref(), &status);
                (object.metadata.clone(), status, told)
            })
        });
        let changes: Vec<_> = changes.collect();
        let writer = self.writer.clone();
        let mut written = stream::iter(changes)
            .map(move |(metadata, status, told)| {
                let writer = writer.clone();
                async move {
                    let written = writer.status::<MemberCluster>(&metadata, &status).await;
                    if !is_written(&metadata, &written) {
                        return None;
                    }
                    tell::<MemberCluster>(&writer, &metadata, told).await;
                    Some((metadata, status))
                }
            })
            .buffer_unordered(CONCURRENT_WRITES);
        while let Some(written) = written.next().await {
            if let Some((metadata, status)) = written {
                self.member_statuses.written(&metadata, status);
            }
        }
    }

    fn is_overdue(&self, cluster: &str) -> bool {
        let since = self.waiting.get(cluster);
        since.is_some_and(|since| since.elapsed() >= self.patience)
    }
}

/// What is told where the objects of a cluster stay.
const RETAINED: &str = "the operator's objects stay in the cluster, as spec.deletionPolicy asks";

/// What is told of a cluster that leaves.
fn left(removed: Result<(), Verdict>) -> Transition {
    match removed {
        Ok(()) => Transition::of("Removed", true, "the operator's objects were removed"),
        Err(verdict) => {
            let note = format!(
                "the operator's objects stay in the cluster, since they could not be removed: {} ({}); \
                 delete there what is labelled {}={}",
                verdict.message, verdict.reason, MANAGED_BY.0, MANAGED_BY.1
            );
            Transition::of("LeftBehind", false, &note)
        }
    }
}

/// Writes the status of a policy and tells of the changes. Gives it back unless it is to be tried
/// again.
async fn write_policy(
    writer: &Writer,
    metadata: ObjectMeta,
    status: BoundaryPolicyStatus,
    mut told: Vec<Transition>,
) -> Option<(ObjectMeta, BoundaryPolicyStatus)> {
    let written = writer.status::<BoundaryPolicy>(&metadata, &status).await;
    if written.as_ref().is_err_and(WriteError::is_final) {
        // The object does not fit the schema, so not even its status can be changed.
        told = vec![Transition::invalid(&status)];
    } else if !is_written(&metadata, &written) {
        return None;
    }
    tell::<BoundaryPolicy>(writer, &metadata, told).await;
    Some((metadata, status))
}

/// Tells of the changes of an object, in the log and in Events.
async fn tell<K>(writer: &Writer, metadata: &ObjectMeta, told: Vec<Transition>)
where
    K: Resource<DynamicType = ()>,
{
    let (kind, name) = (K::kind(&()), metadata.name.as_deref().unwrap_or_default());
    for transition in told {
        tracing::info!(%kind, name, note = transition.note, "a state changed");
        if let Err(error) = writer.event::<K>(metadata, &transition).await {
            tracing::warn!(%kind, name, %error, "an Event can't be written");
        }
    }
}

fn is_written(metadata: &ObjectMeta, written: &Result<(), WriteError>) -> bool {
    if let Err(error) = written {
        let name = metadata.name.as_deref().unwrap_or_default();
        tracing::warn!(name, %error, "a status can't be written; it is tried again");
    }
    written.is_ok()
}
