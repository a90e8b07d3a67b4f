//! The controller: compiles `BoundaryPolicies` into every member cluster and reports where they are
//! enforced.

use std::hash::{BuildHasher as _, RandomState};
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use boundary_operator::api::BOUNDARY_LABEL;
use boundary_operator::controller::{self, Election, Settings};
use boundary_operator::fleet::ProofSettings;
use boundary_operator::plans::http::{PlanApi, PlanApiSettings, TlsFiles};
use boundary_operator::telemetry::{self, Telemetry, Traces};
use clap::{ArgAction, Parser, ValueEnum};
use http::Uri;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    version,
    about = "Compiles BoundaryPolicies into the admission policies of every member cluster, and \
             reports where they are enforced"
)]
struct Arguments {
    /// The kubeconfig of the hub. Default: the service account of the Pod, else as kubectl does.
    #[arg(long, env = "BOUNDARY_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,

    /// The namespace of the operator, in which the Secrets with kubeconfigs are.
    #[arg(long, env = "POD_NAMESPACE", default_value = "boundary-operator")]
    namespace: String,

    /// The key of the label that puts a namespace into a boundary.
    #[arg(long, env = "BOUNDARY_LABEL", default_value = BOUNDARY_LABEL)]
    boundary_label: String,

    /// How log lines are written. The environment variable `RUST_LOG` sets which.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// How often what is in a cluster is compared with what is wanted there.
    #[arg(long, env = "RESYNC_INTERVAL", default_value = "300s", value_parser = duration)]
    resync_interval: Duration,

    /// How often a cluster is asked for its version and APIs.
    #[arg(long, env = "CAPABILITIES_INTERVAL", default_value = "60s", value_parser = duration)]
    capabilities_interval: Duration,

    /// How long a request to an API server may take.
    #[arg(long, env = "REQUEST_TIMEOUT", default_value = "10s", value_parser = duration)]
    request_timeout: Duration,

    /// Whether it is shown by requests that API servers act on policies. If not, nothing is called
    /// Enforced.
    #[arg(long, env = "PROVE", default_value_t = true, action = clap::ArgAction::Set)]
    prove: bool,

    /// How often what was shown is shown again.
    #[arg(long, env = "PROOF_INTERVAL", default_value = "300s", value_parser = duration)]
    proof_interval: Duration,

    /// How long an API server may take to act on a change before it is called not enforced.
    #[arg(long, env = "PROOF_TIMEOUT", default_value = "10s", value_parser = duration)]
    proof_timeout: Duration,

    /// Over how many connections an API server is asked whether it acts on a change. Behind a shared
    /// address each may lead to another one.
    #[arg(long, env = "PROOF_CONNECTIONS", default_value_t = 3,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    proof_connections: u8,

    /// Writes to member clusters at the same time, all together.
    #[arg(long, env = "MAX_CONCURRENT_APPLIES", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..))]
    max_concurrent_applies: u16,

    /// Whether the boundary label is guarded in the member clusters: only those who have the verb
    /// `assign` on `boundaries.boundarypolicy.dev` may set, change or remove it.
    #[arg(long, env = "LABEL_GUARD", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    label_guard: bool,

    /// The namespace in which cluster Secrets of Argo CD are looked for; each gets a `MemberCluster`.
    /// It needs `config/rbac/argocd.yaml`. Default: none are looked for.
    #[arg(long, env = "ARGOCD_NAMESPACE")]
    argocd_namespace: Option<String>,

    /// Whether several instances elect one that works, while the others wait to take over.
    #[arg(long, env = "LEADER_ELECT", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: bool,

    /// How long the others wait to take over after they last saw the leader renew its Lease.
    #[arg(long, env = "LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_parser = duration)]
    leader_elect_lease_duration: Duration,

    /// How long the leader goes on without renewing its Lease; less than the lease duration.
    #[arg(long, env = "LEADER_ELECT_RENEW_DEADLINE", default_value = "10s", value_parser = duration)]
    leader_elect_renew_deadline: Duration,

    /// How often the leader renews its Lease, and the others look at it.
    #[arg(long, env = "LEADER_ELECT_RETRY_PERIOD", default_value = "2s", value_parser = duration)]
    leader_elect_retry_period: Duration,

    /// Where /metrics, /healthz and /readyz are served, without TLS.
    #[arg(long, env = "METRICS_ADDRESS", default_value = "0.0.0.0:8080")]
    metrics_address: SocketAddr,

    /// Where the HTTP API about compute plans is served, like `0.0.0.0:8443`. Default: it is not.
    #[arg(long, env = "PLAN_API_ADDRESS")]
    plan_api_address: Option<SocketAddr>,

    /// The certificate of that API, in PEM, with those that lead to its root. It is read again when
    /// it changes. Without it the address must be a loopback address, and plain HTTP is served.
    #[arg(
        long,
        env = "PLAN_API_TLS_CERT",
        requires = "plan_api_tls_key",
        value_name = "FILE"
    )]
    plan_api_tls_cert: Option<PathBuf>,

    /// The private key of that certificate, in PEM.
    #[arg(
        long,
        env = "PLAN_API_TLS_KEY",
        requires = "plan_api_tls_cert",
        value_name = "FILE"
    )]
    plan_api_tls_key: Option<PathBuf>,

    /// What the tokens of callers must be for; may be given several times. Default: for the API
    /// server of the hub.
    #[arg(
        long,
        env = "PLAN_API_AUDIENCE",
        value_name = "AUDIENCE",
        value_delimiter = ','
    )]
    plan_api_audience: Vec<String>,

    /// How long after the hub was last heard that API still answers from what it knows; at least 3s.
    #[arg(long, env = "PLAN_API_STALE_AFTER", default_value = "15s", value_parser = duration)]
    plan_api_stale_after: Duration,

    /// Connections to that API at the same time; further ones wait.
    #[arg(long, env = "PLAN_API_MAX_CONNECTIONS", default_value_t = 2_000,
          value_parser = clap::value_parser!(u16).range(1..))]
    plan_api_max_connections: u16,

    /// The OpenTelemetry collector that traces are sent to, by OTLP over HTTP, like
    /// `http://collector:4318`. Default: none are made.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = http_address)]
    otlp_endpoint: Option<Uri>,
}

/// When /healthz calls a loop stuck.
const STUCK_AFTER: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another TLS provider is installed already"))?;
    let traces = (arguments.otlp_endpoint.as_ref())
        .map(|endpoint| {
            let traces = Traces::to(endpoint);
            traces.with_context(|| format!("--otlp-endpoint {endpoint}"))
        })
        .transpose()?;
    log_as(arguments.log_format, traces.as_ref())?;
    anyhow::ensure!(
        boundary_operator::api::is_label_key(&arguments.boundary_label),
        "--boundary-label: {:?} is not the key of a label",
        arguments.boundary_label
    );
    let election = election(&arguments)?;
    let listener = TcpListener::bind(arguments.metrics_address)
        .await
        .with_context(|| format!("--metrics-address {}", arguments.metrics_address))?;
    let telemetry = Telemetry::default();
    let plan_api = plan_api(&arguments, &telemetry)?;
    let hub = hub(arguments.kubeconfig).await?;
    let plan_api = match plan_api {
        None => None,
        Some(settings) => {
            let started = PlanApi::start(settings, hub.clone()).await;
            Some(started.context("--plan-api-…")?)
        }
    };
    let settings = Settings {
        namespace: arguments.namespace,
        boundary_label: arguments.boundary_label,
        resync_interval: arguments.resync_interval,
        capabilities_interval: arguments.capabilities_interval,
        request_timeout: arguments.request_timeout,
        proof: ProofSettings {
            enabled: arguments.prove,
            interval: arguments.proof_interval,
            timeout: arguments.proof_timeout,
            connections: arguments.proof_connections.into(),
        },
        max_concurrent_applies: arguments.max_concurrent_applies.into(),
        label_guard: arguments.label_guard,
        argocd_namespace: arguments
            .argocd_namespace
            .filter(|namespace| !namespace.is_empty()),
        election,
        telemetry: telemetry.clone(),
    };
    let stop = stop()?;
    let (stop_plan_api, plan_api_stopped) = oneshot::channel::<()>();
    let plan_api = tokio::spawn(async move {
        if let Some(plan_api) = plan_api {
            // It stops too when the sender is gone.
            plan_api.run(async { drop(plan_api_stopped.await) }).await;
        }
    });
    // Longer than any one request of a loop takes.
    let stuck_after = STUCK_AFTER.max(arguments.request_timeout * 3);
    let ended = tokio::select! {
        ended = controller::run(settings, hub, stop) => ended.map_err(Into::into),
        served = telemetry::serve(listener, telemetry, stuck_after) => {
            served.context("/metrics can't be served any more")
        }
    };
    drop(stop_plan_api);
    plan_api.await.context("the plan API failed")?;
    if let Some(traces) = traces {
        tokio::task::spawn_blocking(move || traces.stop()).await?;
    }
    ended
}

/// How the API about compute plans is served, if it is.
fn plan_api(
    arguments: &Arguments,
    telemetry: &Telemetry,
) -> anyhow::Result<Option<PlanApiSettings>> {
    let Some(address) = arguments.plan_api_address else {
        return Ok(None);
    };
    anyhow::ensure!(
        arguments.plan_api_stale_after >= Duration::from_secs(3),
        "--plan-api-stale-after: it must be at least 3s"
    );
    let files = (arguments.plan_api_tls_cert.clone()).zip(arguments.plan_api_tls_key.clone());
    anyhow::ensure!(
        files.is_some() || address.ip().is_loopback(),
        "--plan-api-address {address} is not a loopback address, and plain HTTP is served on those \
         alone: give --plan-api-tls-cert and --plan-api-tls-key"
    );
    Ok(Some(PlanApiSettings {
        address,
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
        audiences: arguments.plan_api_audience.clone(),
        stale_after: arguments.plan_api_stale_after,
        max_connections: arguments.plan_api_max_connections.into(),
        request_timeout: arguments.request_timeout.min(Duration::from_secs(5)),
        metrics: telemetry.metrics.plans().clone(),
    }))
}

/// How this instance takes part in the election of a leader, if it does.
fn election(arguments: &Arguments) -> anyhow::Result<Option<Election>> {
    if !arguments.leader_elect {
        return Ok(None);
    }
    let host = std::env::var("HOSTNAME")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"))
        .unwrap_or_default();
    // The keys of the hasher are random.
    let random = RandomState::new().hash_one(std::process::id());
    let election = Election {
        identity: format!("{}_{random:016x}", host.trim()),
        lease_duration: arguments.leader_elect_lease_duration,
        renew_deadline: arguments.leader_elect_renew_deadline,
        retry_period: arguments.leader_elect_retry_period,
    };
    if let Some(problem) = election.problem() {
        anyhow::bail!("--leader-elect-…: {problem}");
    }
    Ok(Some(election))
}

async fn hub(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Config> {
    let Some(path) = kubeconfig else {
        return kube::Config::infer().await.context(
            "no way to the hub: give --kubeconfig, or run in a Pod with a service account",
        );
    };
    let load = async {
        let kubeconfig = kube::config::Kubeconfig::read_from(&path)?;
        kube::Config::from_custom_kubeconfig(
            kubeconfig,
            &kube::config::KubeConfigOptions::default(),
        )
        .await
    };
    load.await
        .with_context(|| format!("--kubeconfig {} can't be used", path.display()))
}

fn log_as(format: LogFormat, traces: Option<&Traces>) -> anyhow::Result<()> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(filter) => EnvFilter::try_new(filter).context("RUST_LOG can't be read")?,
        // The client's own lines say less of what the operator says of a failure anyway.
        Err(_) => EnvFilter::new("info,kube_client=off"),
    };
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .with(traces.map(Traces::layer))
        .init();
    Ok(())
}

/// Ends on SIGTERM or SIGINT.
fn stop() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be listened to")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be listened to")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Reads an address like `http://collector:4318`.
fn http_address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    if matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none() {
        return Ok(uri);
    }
    Err("write it like http://collector:4318".to_owned())
}

/// Reads `500ms`, `10s`, `5m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("write it like 500ms, 10s, 5m or 1h".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "it has no number that can be read".to_owned())?;
    match number.checked_mul(milliseconds) {
        Some(total @ 1..) => Ok(Duration::from_millis(total)),
        _ => Err("it must be more than nothing, and not too long".to_owned()),
    }
}
