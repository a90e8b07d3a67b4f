//! The whole of it on one machine: a hub, three member clusters of different Kubernetes versions
//! and the operator.
//!
//! `cargo run --example fleet` starts real API servers, installs what `crds/` and `config/rbac`
//! hold, applies the policies of `examples/`, and shows what `kubectl get` shows on the hub and
//! what becomes of `examples/workloads` in each member. It fails when a member does otherwise than
//! it reports. It needs neither a cluster nor kubectl, but Go where the API servers were not built
//! yet.
#![allow(clippy::print_stdout, reason = "what it prints is the point of it")]

mod cluster;
mod members;
mod show;
mod table;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use boundary_operator::api::{BoundaryPolicy, MemberCluster, crds};
use boundary_operator::controller::{self, Settings};
use clap::Parser;
use control_plane::{Binary, ControlPlane, Version, binaries};
use kube::Config;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use cluster::Cluster;

/// Starts a hub, three member clusters and the operator, and shows what is enforced where.
#[derive(Parser)]
#[command(name = "fleet")]
struct Arguments {
    /// Leaves everything running until Ctrl-C, and writes the paths of the kubeconfigs.
    #[arg(long)]
    keep: bool,
}

/// The namespace of the operator, on the hub and in the members, as `config/rbac` has it.
const NAMESPACE: &str = "boundary-operator";

/// The version of the hub: one of those that a member needs too, so that there is less to build.
const HUB: Version = Version::V1_37;

/// The members of `member-clusters.yaml`.
const MEMBERS: [(&str, Version); 3] = [
    ("eu-old", Version::V1_29),
    ("eu-1", Version::V1_30),
    ("us-1", Version::V1_37),
];

/// How long anything may take on a busy machine.
const SOON: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(&arguments));
            // A build that was interrupted is not waited for.
            runtime.shutdown_background();
            result
        });
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

async fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    // Before anything runs, so that no Ctrl-C is missed.
    let mut stop = Stop::listen()?;
    tokio::select! {
        result = Box::pin(fleet(arguments)) => result.map(|()| ExitCode::SUCCESS),
        () = stop.asked() => {
            progress("stopping");
            Ok(if arguments.keep { ExitCode::SUCCESS } else { ExitCode::from(130) })
        }
    }
}

async fn fleet(arguments: &Arguments) -> anyhow::Result<()> {
    let begun = Instant::now();
    build().await?;
    let (hub, members) = start().await?;

    let log = hub.plane.folder().join("operator.log");
    log_to(&log)?;
    progress("installing crds/ and config/rbac, and starting the operator");
    let operator = install(&hub).await?;
    progress("registering the members, and applying examples/policies");
    register(&hub, &members).await?;
    let shown = async {
        members::settled(&hub).await?;
        progress(&format!("settled after {} s", begun.elapsed().as_secs()));
        println!();
        show::tables(&hub).await?;
        show::acting(&hub, &members).await?;
        show::workloads(&hub, &members).await
    };
    if let Err(error) = shown.await {
        eprintln!("the end of the operator's log:\n{}", last_lines(&log));
        return Err(error);
    }

    if arguments.keep {
        keep(&hub, &members, &log);
        std::future::pending::<()>().await;
    }
    progress("stopping");
    operator.stop().await
}

/// Builds what is not there yet, one after the other, as each build uses the whole machine.
async fn build() -> anyhow::Result<()> {
    let build = || {
        binaries::ensure(Binary::Etcd, HUB)?;
        for version in MEMBERS.map(|(_, version)| version).into_iter().chain([HUB]) {
            binaries::ensure(Binary::KubeApiserver, version)?;
        }
        Ok::<_, control_plane::Error>(())
    };
    Ok(tokio::task::spawn_blocking(build).await??)
}

/// Starts the control planes, all at once.
async fn start() -> anyhow::Result<(Cluster, Vec<Cluster>)> {
    let named = MEMBERS.map(|(name, version)| format!("{name} ({version})"));
    progress(&format!(
        "starting the API servers: hub ({HUB}), {}",
        named.join(", ")
    ));
    let start =
        |version| tokio::task::spawn_blocking(move || ControlPlane::builder(version).start());
    let hub = start(HUB);
    let members = MEMBERS.map(|(name, version)| (name, start(version)));
    let hub = Cluster::new("hub", hub.await??)?;
    let mut started = Vec::new();
    for (name, plane) in members {
        started.push(Cluster::new(name, plane.await??)?);
    }
    Ok((hub, started))
}

/// The operator, running in this process.
struct Operator {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), controller::Error>>,
}

impl Operator {
    /// Runs it as the service account of `config/rbac`, with no more than its permissions.
    async fn start(hub: &Cluster) -> anyhow::Result<Self> {
        let mut config: Config = hub.plane.config()?;
        config.auth_info.token = Some(hub.token(NAMESPACE, "boundary-operator").await?.into());
        let settings = Settings {
            namespace: NAMESPACE.to_owned(),
            ..Settings::default()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let run = controller::run(settings, config, async {
            let _ = stopped.await;
        });
        let task = tokio::spawn(run);
        Ok(Self { stop, task })
    }

    async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}

/// What installing comes to today: the CRDs, the permissions, the operator.
async fn install(hub: &Cluster) -> anyhow::Result<Operator> {
    for crd in crds() {
        hub.apply(&serde_json::to_value(crd)?).await?;
    }
    hub.apply_file(&root("config/rbac/hub.yaml")).await?;
    hub.served::<BoundaryPolicy>().await?;
    hub.served::<MemberCluster>().await?;
    Operator::start(hub).await
}

/// Makes the clusters members, with kubeconfigs of the service account of `config/rbac`, and
/// applies the policies.
async fn register(hub: &Cluster, members: &[Cluster]) -> anyhow::Result<()> {
    for member in members {
        member.apply_file(&root("config/rbac/member.yaml")).await?;
        members::namespaces(member).await?;
        members::secret(hub, member).await?;
    }
    let clusters = root("examples/fleet/member-clusters.yaml");
    hub.apply_file(&clusters).await?;
    for policy in cluster::documents(&root("examples/policies"))? {
        if policy["kind"] == "BoundaryPolicy" {
            hub.apply(&policy).await?;
        }
    }
    Ok(())
}

/// Says how to look at what is left running.
fn keep(hub: &Cluster, members: &[Cluster], log: &Path) {
    println!("Everything is left running. Kubeconfigs, of an administrator each:\n");
    for cluster in std::iter::once(hub).chain(members) {
        let path = cluster.plane.kubeconfig_path();
        println!(
            "  {:<8} {:<10} {}",
            cluster.name,
            cluster.plane.version(),
            path.display()
        );
    }
    println!("\nThe operator logs to {}\n\nTry:\n", log.display());
    let hub = hub.plane.kubeconfig_path();
    println!("  export KUBECONFIG={}", hub.display());
    println!("  kubectl get boundarypolicies,memberclusters");
    println!("  kubectl describe boundarypolicy no-latest");
    println!("\nCtrl-C ends it all, and removes these files.");
}

/// Writes what the operator logs into a file; `RUST_LOG` sets how much.
fn log_to(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::create(path)
        .with_context(|| format!("{} can't be written", path.display()))?;
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(Mutex::new(Arc::new(file)))
        .init();
    Ok(())
}

fn last_lines(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// A line about what is being done, apart from what is shown.
fn progress(text: &str) {
    let _ = std::io::stdout().flush();
    eprintln!("{text}");
}

/// A path in the repository.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// SIGINT (Ctrl-C) and SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
