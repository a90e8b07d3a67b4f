//! Member clusters: one supervised task each, which connects, finds out what the cluster can do,
//! applies and reports. What goes wrong in one touches no other.

mod apply;
mod backoff;
mod discover;
mod drift;
mod failure;
#[cfg(test)]
mod fake;
mod fence;
pub mod kubeconfig;
mod measure;
mod member;
pub(crate) mod permissions;
mod plan;
mod prove;
mod report;
mod shared;
mod target;

pub(crate) use backoff::jitter;
pub use failure::Verdict;
pub use fence::Fence;
pub(crate) use member::RESTARTED;
pub use prove::ProofSettings;
pub use report::{PolicyReport, Repair, Report, Wanted};
pub use shared::Compiler;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use crate::api::ClusterState;
use crate::telemetry::Metrics;
use apply::remove_all;
use backoff::Backoff;
use member::Task;
use target::Target;

/// What holds for all clusters.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// How the cluster that the operator runs in is reached.
    pub local: kube::Config,
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
    /// Writes to all clusters together.
    pub permits: Arc<Semaphore>,
    /// Whether the label that puts a namespace into a boundary is guarded.
    pub label_guard: bool,
    /// Until when the clusters may be written to.
    pub fence: Fence,
    /// What is told of the clusters.
    pub metrics: Metrics,
    /// What compiles for all of them.
    pub compiler: Arc<Compiler>,
}

/// How a cluster is reached.
#[derive(Clone, PartialEq)]
pub enum Source {
    /// It is the cluster that the operator runs in.
    Local,
    /// By this kubeconfig.
    Kubeconfig(Vec<u8>),
    /// There is no way, for this reason.
    Unusable(Verdict),
}

/// What tells one kubeconfig from another without telling what is in it: the first half of its
/// SHA-256, in hex.
#[must_use]
pub(crate) fn fingerprint(kubeconfig: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(kubeconfig);
    digest
        .iter()
        .take(16)
        .fold(String::new(), |mut text, byte| {
            // Writing to a String can't fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

impl Source {
    /// What tells its credentials from others, where it has some of its own.
    fn credentials(&self) -> Option<String> {
        match self {
            Self::Kubeconfig(bytes) => Some(fingerprint(bytes)),
            Self::Local | Self::Unusable(_) => None,
        }
    }

    async fn config(&self, settings: &FleetSettings) -> Result<kube::Config, Verdict> {
        let mut config = match self {
            Self::Local => settings.local.clone(),
            Self::Kubeconfig(bytes) => kubeconfig::load(bytes).await.map_err(|error| {
                let text = format!("the kubeconfig is not used: {error}");
                Verdict::new(ClusterState::Unreachable, "InvalidKubeconfig", text)
            })?,
            Self::Unusable(problem) => return Err(problem.clone()),
        };
        // A little longer than a request may take, so that it is the request that times out; these
        // close the connection.
        let timeout = settings.request_timeout + Duration::from_secs(1);
        config.connect_timeout = Some(timeout);
        config.read_timeout = Some(timeout);
        config.write_timeout = Some(timeout);
        config.reset_reader_on_write = true;
        // The task of the cluster tries again by itself, and tells why it has to. The client would
        // go on until the request times out.
        config.default_retry = false;
        Ok(config)
    }
}

/// The tasks of all member clusters.
pub struct Fleet {
    settings: Arc<FleetSettings>,
    reports: mpsc::UnboundedSender<Report>,
    members: BTreeMap<String, Handle>,
    incarnations: u64,
}

struct Handle {
    source: Source,
    incarnation: u64,
    wanted: watch::Sender<Wanted>,
    task: JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fleet {
    /// No clusters yet. Reports come out of the receiver.
    #[must_use]
    pub fn new(settings: FleetSettings) -> (Self, mpsc::UnboundedReceiver<Report>) {
        let (reports, receiver) = mpsc::unbounded_channel();
        let settings = Arc::new(settings);
        (
            Self {
                settings,
                reports,
                members: BTreeMap::new(),
                incarnations: 0,
            },
            receiver,
        )
    }

    /// Makes the tasks those of `desired`: starts, restarts where the source changed, stops, and
    /// tells each what is wanted.
    pub fn set(&mut self, desired: BTreeMap<String, (Source, Wanted)>) {
        self.members.retain(|name, _| desired.contains_key(name));
        for (name, (source, wanted)) in desired {
            match self.members.get(&name) {
                Some(member) if member.source == source => {
                    member.wanted.send_if_modified(|current| {
                        let changed = *current != wanted;
                        *current = wanted;
                        changed
                    });
                }
                _ => {
                    let member = self.start(&name, source, wanted);
                    self.members.insert(name, member);
                }
            }
        }
    }

    /// Whether the report is of a task that is running, not of one that it replaced.
    #[must_use]
    pub fn is_current(&self, report: &Report) -> bool {
        let member = self.members.get(&report.cluster);
        member.is_some_and(|member| member.incarnation == report.incarnation)
    }

    /// Removes everything of ours from a cluster, in one attempt that ends in any case.
    ///
    /// # Errors
    /// It could not be removed; the verdict says why.
    pub fn remove(&self, source: Source) -> impl Future<Output = Result<(), Verdict>> + use<> {
        let settings = self.settings.clone();
        async move {
            let config = source.config(&settings).await?;
            let client = settings.fence.client(config);
            let client = client.map_err(|_| member::unusable_client())?;
            let timeout = settings.request_timeout;
            let target = Target {
                client,
                timeout,
                config: None,
                fence: settings.fence.clone(),
                permits: settings.permits.clone(),
            };
            let removed = tokio::time::timeout(timeout * 3, remove_all(&target)).await;
            removed.map_or_else(
                |_| {
                    let text = format!("no end within {:?}", timeout * 3);
                    Err(Verdict::new(ClusterState::Unreachable, "Timeout", text))
                },
                |removed| removed.map_err(|failure| failure.verdict()),
            )
        }
    }

    fn start(&mut self, name: &str, source: Source, wanted: Wanted) -> Handle {
        tracing::info!(cluster = name, "starting the task of a cluster");
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let (sender, receiver) = watch::channel(wanted);
        let report = Report {
            cluster: name.to_owned(),
            incarnation,
            credentials: source.credentials(),
            ..Report::default()
        };
        let task = Task {
            settings: self.settings.clone(),
            wanted: receiver,
            reports: self.reports.clone(),
        };
        let span = tracing::info_span!("cluster", name);
        let task = tokio::spawn(supervise(source.clone(), task, report).instrument(span));
        Handle {
            source,
            incarnation,
            wanted: sender,
            task,
        }
    }
}

/// Runs the task of a cluster, and starts it again should it panic.
async fn supervise(source: Source, mut task: Task, report: Report) {
    let mut backoff = Backoff::new(Duration::from_mins(1));
    loop {
        let run = Box::pin(member::run(&source, &mut task, report.clone()));
        if AssertUnwindSafe(run).catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!("the task of a cluster panicked; it starts anew");
        let text = "the operator has a defect that shows with this cluster; see its log";
        let problem = Verdict::new(ClusterState::Pending, "InternalError", text);
        let _ = task.reports.send(Report {
            problem: Some(problem),
            ..report.clone()
        });
        tokio::time::sleep(backoff.next()).await;
    }
}
