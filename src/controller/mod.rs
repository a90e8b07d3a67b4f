//! The controller: observe what is on the hub, decide what each cluster is asked for, let the fleet
//! act, and report what became of it.

mod hub;
mod identity;
mod member_status;
mod policy_status;
mod scope;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::{Client, ResourceExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{
    BOUNDARY_LABEL, BoundaryPolicy, BoundaryPolicyStatus, ClusterState, MemberCluster,
    MemberClusterStatus,
};
use crate::fleet::{Fleet, FleetSettings, ProofSettings, Repair, Report, Source};
use hub::{Hub, Member};
use identity::Identities;
use member_status::{member_status, to_seconds};
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
        }
    }
}

/// Why the operator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client can be made for the hub.
    #[error("no client can be made for the hub: {0}")]
    Client(#[source] kube::Error),
}

/// Runs the operator against the hub until `shutdown`. Whatever goes wrong on the way is tried again.
///
/// # Errors
/// No client can be made from `hub`.
pub async fn run(
    settings: Settings,
    hub: kube::Config,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let watching = Client::try_from(hub.clone()).map_err(Error::Client)?;
    let (fleet, mut reports) = Fleet::new(FleetSettings {
        local: hub.clone(),
        boundary_label: settings.boundary_label.clone(),
        resync_interval: settings.resync_interval,
        capabilities_interval: settings.capabilities_interval,
        request_timeout: settings.request_timeout,
        proof: settings.proof.clone(),
        compiler: Arc::default(),
        permits: Arc::new(Semaphore::new(settings.max_concurrent_applies.max(1))),
    });
    let mut operator = Operator {
        hub: Hub::watch(&watching, &settings.namespace, settings.request_timeout),
        writer: Writer {
            client: Client::try_from(hub).map_err(Error::Client)?,
            timeout: settings.request_timeout,
            instance: std::env::var("HOSTNAME").unwrap_or_else(|_| "boundary-operator".to_owned()),
        },
        fleet,
        reports: BTreeMap::new(),
        waiting: BTreeMap::new(),
        patience: settings.request_timeout * 2 + Duration::from_secs(1),
        policy_statuses: Memory::new(),
        member_statuses: Memory::new(),
        identities: Identities::default(),
        repairs: Vec::new(),
        removals: JoinSet::new(),
        removing: BTreeSet::new(),
    };
    tracing::info!(namespace = settings.namespace, "the operator starts");
    tokio::select! {
        () = operator.work(&mut reports) => {}
        () = shutdown => tracing::info!("the operator stops; what is enforced stays enforced"),
    }
    Ok(())
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
    /// What was put right and is not told yet, with the cluster.
    repairs: Vec<(String, Repair)>,
    /// Clusters that are being left, by uid.
    removals: JoinSet<String>,
    removing: BTreeSet<String>,
}

impl Operator {
    /// Never ends.
    async fn work(&mut self, reports: &mut mpsc::UnboundedReceiver<Report>) {
        self.hub.ready().await;
        tracing::info!("everything on the hub was listed");
        let changed = self.hub.changed.clone();
        loop {
            self.pass().await;
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
            self.reports.insert(report.cluster.clone(), report);
        }
    }

    async fn pass(&mut self) {
        let mut members = Vec::new();
        let mut leaving = Vec::new();
        for member in self.hub.members() {
            if member.object.metadata.deletion_timestamp.is_some() {
                leaving.push(member);
            } else if self.hold(&member).await {
                members.push(member);
            }
        }
        self.identities.refuse_doubles(&mut members);
        let policies = self.hub.policies().await.clone();
        let desired = members.iter().map(|Member { object, source }| {
            (
                object.name_any(),
                (source.clone(), wanted(&policies, object)),
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
        let counts = self.report_policies(&policies, &members, now).await;
        self.report_members(&members, &counts, now).await;
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
        // What is there is another's, or it is not known what would be taken away from another.
        let shared = self.identities.shares(&member.object.name_any());
        let source = shared.map_or(member.source, Source::Unusable);
        let removal = self.fleet.remove(source);
        let writer = self.writer.clone();
        self.removals.spawn(async move {
            let cluster = metadata.name.as_deref().unwrap_or_default();
            match removal.await {
                Ok(()) => tracing::info!(cluster, "removed everything from a cluster that leaves"),
                Err(verdict) => tracing::warn!(
                    cluster,
                    reason = verdict.reason,
                    message = verdict.message,
                    "a cluster leaves with the operator's objects in it"
                ),
            }
            if let Err(error) = writer.finalizer(&metadata, false).await {
                tracing::warn!(cluster, %error, "the finalizer can't be removed; it is tried again");
            }
            uid
        });
    }

    /// Tells of what was put right in an Event at each policy that it concerns.
    async fn tell_repairs(&mut self, policies: &BTreeMap<String, Observed>) {
        for (cluster, repair) in std::mem::take(&mut self.repairs) {
            let told = repaired(&cluster, &repair);
            for observed in repair.policies.iter().filter_map(|name| policies.get(name)) {
                if let Err(error) = self.writer.event(&observed.metadata, &told).await {
                    tracing::warn!(policy = observed.name(), %error, "an Event can't be written");
                }
            }
        }
    }

    /// Writes the statuses that changed. Returns for each cluster how many policies are for it, and
    /// how many are enforced.
    async fn report_policies(
        &mut self,
        policies: &BTreeMap<String, Observed>,
        members: &[Member],
        now: Timestamp,
    ) -> BTreeMap<String, (u32, u32)> {
        let names: Vec<_> = members
            .iter()
            .map(|member| member.object.name_any())
            .collect();
        let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        let mut changes = Vec::new();
        for observed in policies.values() {
            if observed.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let scope: Vec<_> = members
                .iter()
                .zip(&names)
                .filter(|(member, _)| observed.is_for(&member.object))
                .map(|(_, name)| InScope {
                    name,
                    report: self.reports.get(name),
                    overdue: self.is_overdue(name),
                })
                .collect();
            let stored = self
                .policy_statuses
                .latest(&observed.metadata, observed.stored.as_ref());
            let computed = policy_status(observed, stored.as_ref(), &scope, now);
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
            (stored.as_ref() != Some(&status)).then(|| (object.metadata.clone(), status))
        });
        let changes: Vec<_> = changes.collect();
        let writer = self.writer.clone();
        let mut written = stream::iter(changes)
            .map(move |(metadata, status)| {
                let writer = writer.clone();
                async move {
                    let written = writer.status::<MemberCluster>(&metadata, &status).await;
                    is_written(&metadata, &written).then_some((metadata, status))
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
    for transition in told {
        let policy = metadata.name.as_deref().unwrap_or_default();
        tracing::info!(policy, note = transition.note, "a policy changed its state");
        if let Err(error) = writer.event(&metadata, &transition).await {
            tracing::warn!(policy, %error, "an Event can't be written");
        }
    }
    Some((metadata, status))
}

fn is_written(metadata: &ObjectMeta, written: &Result<(), WriteError>) -> bool {
    if let Err(error) = written {
        let name = metadata.name.as_deref().unwrap_or_default();
        tracing::warn!(name, %error, "a status can't be written; it is tried again");
    }
    written.is_ok()
}
