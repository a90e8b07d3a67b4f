//! Several instances of the operator: one works, and another takes over when it stops, for whatever
//! reason.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use boundary_operator::api::ClusterState;
use boundary_operator::controller::{self, Election, Error, LEASE, Settings};
use control_plane::{ControlPlane, Version, eventually};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use kube::api::Api;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::world::{NAMESPACE, SOON, World, grant_to};

const HUB: &str = include_str!("../../config/rbac/hub.yaml");
const MEMBER: &str = include_str!("../../config/rbac/member.yaml");

const LEASE_DURATION: Duration = Duration::from_secs(8);
const RENEW_DEADLINE: Duration = Duration::from_secs(6);
const RETRY_PERIOD: Duration = Duration::from_millis(500);

/// Every instance is a user of its own, so that the audit log tells who wrote.
const USERS: [&str; 3] = ["operator-a", "operator-b", "operator-c"];

struct Hub {
    world: World,
    folder: tempfile::TempDir,
}

/// A write that the API server was asked for.
#[derive(Debug)]
#[expect(dead_code, reason = "shown where a test fails")]
struct Write {
    at: Timestamp,
    resource: String,
}

struct Instance {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
    settings: Settings,
}

impl Hub {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("audit.yaml");
        let text = format!(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
             - level: Metadata\n  users: [{}]\n  verbs: [create, update, patch, delete]\n\
             - level: None\n",
            USERS.join(", ")
        );
        std::fs::write(&policy, text).unwrap();
        let mut builder = ControlPlane::builder(Version::V1_34)
            .user(crate::world::OPERATOR, &[])
            .api_server_arg(format!("--audit-policy-file={}", policy.display()))
            .api_server_arg(format!("--audit-log-path={}", log(folder.path()).display()));
        for user in USERS {
            builder = builder.user(user, &["operators"]);
        }
        let world = World::prepare(builder.start().unwrap()).await;
        let hub = Self { world, folder };
        for manifest in [HUB, MEMBER] {
            grant_to(&hub.client(), manifest, &[("Group", "operators")]).await;
        }
        hub.world.join_local("hub").await;
        hub
    }

    fn client(&self) -> Client {
        self.world.client.clone()
    }

    fn instance(&self, user: &str) -> Instance {
        let settings = Settings {
            election: Some(Election {
                identity: user.to_owned(),
                lease_duration: LEASE_DURATION,
                renew_deadline: RENEW_DEADLINE,
                retry_period: RETRY_PERIOD,
            }),
            ..World::settings()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let config = self.world.hub.config_for(user).unwrap();
        let run = controller::run(settings.clone(), config, async move {
            let _ = stopped.await;
        });
        Instance {
            stop,
            task: tokio::spawn(run),
            settings,
        }
    }

    /// The Lease, once the holder's name starts like that.
    async fn held_by(&self, holder: &str) -> LeaseSpec {
        let api: Api<Lease> = Api::namespaced(self.client(), NAMESPACE);
        eventually(&format!("{holder} leads"), SOON, async || {
            let spec = api.get(LEASE).await.ok()?.spec?;
            let held = spec.holder_identity.as_deref()?.starts_with(holder);
            held.then_some(spec)
        })
        .await
    }

    /// Writes a policy and waits until it is enforced.
    async fn enforced(&self, name: &str) {
        self.policy(name, name).await;
        let world = &self.world;
        world.state(name, "hub", ClusterState::Enforced).await;
    }

    async fn policy(&self, name: &str, value: &str) {
        let spec = format!("boundary: web, rules: {{requiredLabels: {{labels: {{x: {value}}}}}}}");
        self.world.policy(name, &spec).await;
    }

    /// What the user was let or not let write after a time.
    fn writes(&self, user: &str, after: Timestamp) -> Vec<Write> {
        let text = std::fs::read_to_string(log(self.folder.path())).unwrap();
        let of = |event: Value| {
            let at: Timestamp = event["requestReceivedTimestamp"].as_str()?.parse().ok()?;
            (event["user"]["username"] == user && at > after).then(|| Write {
                at,
                resource: format!("{} {}", event["verb"], event["objectRef"]["resource"]),
            })
        };
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
        events.filter_map(of).collect()
    }
}

fn log(folder: &Path) -> PathBuf {
    folder.join("audit.log")
}

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_takes_over() {
    let hub = Hub::start().await;
    let [first, second, third] = USERS;
    let a = hub.instance(first);
    hub.held_by(first).await;
    let b = hub.instance(second);
    hub.enforced("one").await;
    eventually("the second is ready to take over", SOON, async || {
        b.settings.telemetry.health.is_ready().then_some(())
    })
    .await;
    assert!(!hub.writes(first, Timestamp::MIN).is_empty());
    let written = hub.writes(second, Timestamp::MIN);
    assert!(written.is_empty(), "it does not lead: {written:?}");

    // Stopped as it should be: nobody waits for the Lease to run out.
    let stopped = Instant::now();
    a.stop.send(()).unwrap();
    a.task.await.unwrap().unwrap();
    let spec = hub.held_by(second).await;
    let took = stopped.elapsed();
    assert!(took < LEASE_DURATION.mul_f64(0.8), "{took:?}");
    let acquired = spec.acquire_time.unwrap().0;
    hub.enforced("two").await;
    let late = hub.writes(first, acquired);
    assert!(late.is_empty(), "{late:?}");

    // Kept from renewing, while there is work: it stops by itself, before another starts.
    let c = hub.instance(third);
    let leader = HUB
        .split("\n---\n")
        .find(|text| text.contains("kind: RoleBinding") && text.contains("operator-leader"))
        .unwrap();
    grant_to(&hub.client(), leader, &[("User", third), ("User", first)]).await;
    let mut round = 0;
    while !b.task.is_finished() {
        round += 1;
        hub.policy("two", &format!("r{round}")).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let ended = Timestamp::now();
    let error = b.task.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::LeadershipLost), "{error}");
    let acquired = hub.held_by(third).await.acquire_time.unwrap().0;
    assert!(ended < acquired, "{ended} {acquired}");
    hub.enforced("three").await;
    let late = hub.writes(second, acquired);
    assert!(late.is_empty(), "{late:?}");
    assert!(!hub.writes(second, acquired - LEASE_DURATION).is_empty());

    // Gone without a word.
    let a = hub.instance(first);
    let gone = Instant::now();
    c.task.abort();
    let _ = c.task.await;
    hub.held_by(first).await;
    let took = gone.elapsed();
    let most = LEASE_DURATION + RETRY_PERIOD + Duration::from_secs(5);
    assert!(took < most, "{took:?}");
    hub.enforced("four").await;
    a.stop.send(()).unwrap();
    a.task.await.unwrap().unwrap();
}

/// A process that is killed in any case.
struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_wakes_after_it_lost_the_lease_writes_nothing() {
    let hub = Hub::start().await;
    let [first, second, _] = USERS;
    let kubeconfig = hub.folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, hub.world.hub.kubeconfig_for(first).unwrap()).unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_boundary-operator"))
        .env("HOSTNAME", first)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .arg(format!("--namespace={NAMESPACE}"))
        .arg("--metrics-address=127.0.0.1:0")
        .args(["--resync-interval=2s", "--capabilities-interval=1s"])
        .arg(format!(
            "--leader-elect-lease-duration={}s",
            LEASE_DURATION.as_secs()
        ))
        .arg(format!(
            "--leader-elect-renew-deadline={}s",
            RENEW_DEADLINE.as_secs()
        ))
        .arg(format!(
            "--leader-elect-retry-period={}ms",
            RETRY_PERIOD.as_millis()
        ))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut process = Process(process);
    hub.held_by(first).await;
    hub.enforced("one").await;
    let b = hub.instance(second);

    process.signal("-STOP");
    let acquired = hub.held_by(second).await.acquire_time.unwrap().0;
    hub.enforced("two").await;
    // What it wakes to: policies it does not know, and statuses that look wrong to it.
    for round in 0..20 {
        hub.policy("one", &format!("r{round}")).await;
        hub.policy(&format!("more-{round}"), "x").await;
    }
    process.signal("-CONT");
    let status = eventually("it ends", SOON, async || process.0.try_wait().unwrap()).await;
    assert!(!status.success(), "{status}");
    hub.enforced("three").await;
    let late = hub.writes(first, acquired);
    assert!(late.is_empty(), "{late:?}");
    b.stop.send(()).unwrap();
    b.task.await.unwrap().unwrap();
}
