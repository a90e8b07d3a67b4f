//! The HTTP API of the operator as it runs: the program, over real TLS, with a hub of its own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use boundary_operator::api::Action;
use control_plane::{ControlPlane, Version, eventually};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::{certificate, furnish, token};
use crate::client::{Caller, Reply, check, request};
use crate::hub::{OPERATOR, World, apply};
use crate::server::SOON;
use crate::world::policy;

/// How long after the hub was last heard the API answers.
const STALE_AFTER: Duration = Duration::from_secs(4);

pub(crate) struct Hub {
    pub(crate) world: World,
    folder: tempfile::TempDir,
    pub(crate) portal: String,
    stranger: String,
}

/// A replica of the operator, which is killed in any case.
pub(crate) struct Replica {
    process: Child,
    pub(crate) caller: Caller,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Replica {
    pub(crate) async fn ask(&self, token: &str, body: &Value) -> Reply {
        let text = check("web", token, body);
        self.caller.send(&text).await.unwrap()
    }

    pub(crate) async fn refuses(&self, token: &str) {
        eventually("it refuses", SOON, async || {
            let reply = self.caller.send(&check("web", token, &large())).await;
            (reply.ok()?.status == 422).then_some(())
        })
        .await;
    }

    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

pub(crate) fn large() -> Value {
    json!({"type": "valkey", "wanted": [{"plan": "large"}]})
}

fn kept() -> Value {
    json!({"type": "valkey", "wanted": [{"plan": "large"}], "held": [{"plan": "large"}]})
}

fn function() -> Value {
    json!({"type": "function", "wanted": [{"plan": "large"}]})
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Hub {
    pub(crate) async fn start() -> Self {
        let plane = ControlPlane::builder(Version::V1_34).user(OPERATOR, &[]);
        let world = World::prepare(plane.start().unwrap()).await;
        furnish(&world.client).await;
        apply(&world.client, &policy("modest", Action::Deny, &["small"])).await;
        let hub = Self {
            portal: token(&world.client, "portal", &[]).await,
            stranger: token(&world.client, "stranger", &[]).await,
            world,
            folder: tempfile::tempdir().unwrap(),
        };
        let kubeconfig = hub.world.hub.kubeconfig_for(OPERATOR).unwrap();
        std::fs::write(hub.path("kubeconfig"), kubeconfig).unwrap();
        hub
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a certificate, and puts it in place as the kubelet does: the files are links through
    /// a link that is swapped.
    pub(crate) fn rotate(&self, version: &str) -> String {
        let (certificate, key) = certificate();
        let folder = self.path(version);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("tls.crt"), &certificate).unwrap();
        std::fs::write(folder.join("tls.key"), key).unwrap();
        let (next, data) = (self.path("..next"), self.path("..data"));
        std::os::unix::fs::symlink(&folder, &next).unwrap();
        std::fs::rename(next, data).unwrap();
        for file in ["tls.crt", "tls.key"] {
            let link = self.path(file);
            if !link.exists() {
                std::os::unix::fs::symlink(format!("..data/{file}"), link).unwrap();
            }
        }
        certificate
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_boundary-operator"));
        command
            .env("RUST_LOG", "debug")
            .arg("--kubeconfig")
            .arg(self.path("kubeconfig"))
            .env("METRICS_ADDRESS", "127.0.0.1:0")
            // One that leads ends when it can't renew its Lease, and nothing here starts it again.
            .arg("--leader-elect-lease-duration=5m")
            .arg("--leader-elect-renew-deadline=4m")
            .arg(format!("--plan-api-stale-after={}s", STALE_AFTER.as_secs()));
        command
    }

    pub(crate) fn replica(&self, certificate: &str, log: &str) -> Replica {
        self.replica_with(certificate, log, &[])
    }

    fn replica_with(&self, certificate: &str, log: &str, arguments: &[&str]) -> Replica {
        let port = free_port();
        let process = self
            .command()
            .arg(format!("--plan-api-address=127.0.0.1:{port}"))
            .arg("--plan-api-tls-cert")
            .arg(self.path("tls.crt"))
            .arg("--plan-api-tls-key")
            .arg(self.path("tls.key"))
            .args(arguments)
            .stderr(std::fs::File::create(self.path(log)).unwrap())
            .spawn()
            .unwrap();
        let address = format!("127.0.0.1:{port}").parse().unwrap();
        Replica {
            process,
            caller: Caller::trusting(address, certificate),
        }
    }
}

#[track_caller]
fn unavailable(reply: &Reply) {
    let told = (reply.status, reply.code());
    assert_eq!(told, (503, "compute_plan_policy_unavailable"), "{reply:?}");
    let after: u32 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!(after > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_answers_and_none_says_yes_when_the_hub_is_not_heard() {
    let mut hub = Hub::start().await;
    let certificate = hub.rotate("one");
    let replicas = ["a", "b"].map(|log| hub.replica(&certificate, log));
    for replica in &replicas {
        replica.refuses(&hub.portal).await;
        assert_eq!(replica.ask(&hub.stranger, &large()).await.status, 403);
    }
    for hang in [true, false] {
        if hang {
            hub.world.hub.pause().unwrap();
        } else {
            hub.world.hub.kill_api_server().unwrap();
        }
        let lost = Instant::now();
        let [first, second] = &replicas;
        // Until it is noticed an answer is a refusal, and never a yes.
        loop {
            let reply = first.ask(&hub.portal, &large()).await;
            let took = lost.elapsed();
            if reply.status == 503 {
                println!("hub gone (hangs: {hang}): 503 after {took:?}");
                unavailable(&reply);
                break;
            }
            assert_eq!(reply.status, 422, "{reply:?}");
            assert!(took < STALE_AFTER + Duration::from_secs(1), "{took:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep_until((lost + STALE_AFTER + Duration::from_secs(1)).into()).await;
        for replica in [first, second] {
            unavailable(&replica.ask(&hub.portal, &large()).await);
            let changed = json!({"type": "valkey", "wanted": [{"plan": "small"}],
                                 "held": [{"plan": "large"}]});
            unavailable(&replica.ask(&hub.portal, &changed).await);
            let path = "/v1/boundaries/web/compute-plans?type=valkey";
            let picker = request("GET", path, Some(&hub.portal), None);
            unavailable(&replica.caller.send(&picker).await.unwrap());
            assert_eq!(replica.ask(&hub.portal, &kept()).await.status, 200);
            assert_eq!(replica.ask(&hub.portal, &function()).await.status, 200);
            let text = request(
                "POST",
                "/v1/boundaries/web/compute-plans:check",
                None,
                Some("{}"),
            );
            assert_eq!(replica.caller.send(&text).await.unwrap().status, 401);
        }
        if hang {
            hub.world.hub.resume().unwrap();
        } else {
            hub.world.hub.start_api_server().unwrap();
        }
        let back = Instant::now();
        for replica in &replicas {
            replica.refuses(&hub.portal).await;
        }
        println!("hub back: refused again after {:?}", back.elapsed());
    }
    // A replica that never saw the hub knows nothing.
    hub.world.hub.kill_api_server().unwrap();
    let late = hub.replica(&certificate, "late");
    eventually("it listens", SOON, async || {
        late.caller.connect().await.ok()
    })
    .await;
    unavailable(&late.ask(&hub.portal, &large()).await);
    unavailable(&late.ask(&hub.portal, &function()).await);
    assert_eq!(late.ask(&hub.portal, &kept()).await.status, 200);
    for log in ["a", "b", "late"] {
        let text = std::fs::read_to_string(hub.path(log)).unwrap();
        assert!(!text.contains(&hub.portal), "{log} has a token");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_is_taken_anew_without_a_restart() {
    let hub = Hub::start().await;
    let first = hub.rotate("one");
    let mut replica = hub.replica(&first, "log");
    replica.refuses(&hub.portal).await;
    let second = hub.rotate("two");
    let caller = Caller::trusting(replica.caller.address, &second);
    eventually("the new certificate is used", SOON, async || {
        caller.send(&check("web", &hub.portal, &large())).await.ok()
    })
    .await;
    assert!(replica.caller.connect().await.is_err());
    // What is no certificate leaves the one in use.
    std::fs::write(hub.path("two").join("tls.crt"), "nothing").unwrap();
    eventually("it is told", SOON, async || {
        let log = std::fs::read_to_string(hub.path("log")).unwrap();
        log.contains("keeps its certificate").then_some(())
    })
    .await;
    caller
        .send(&check("web", &hub.portal, &large()))
        .await
        .unwrap();

    // It stops in good order: what was asked before is answered.
    let mut asked = caller.connect().await.unwrap();
    let text = check("web", &hub.portal, &large());
    let (head, tail) = text.split_at(text.len() - 3);
    asked.write(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let id = replica.process.id().to_string();
    assert!(Command::new("kill").arg(&id).status().unwrap().success());
    eventually("it takes no more connections", SOON, async || {
        caller.connect().await.is_err().then_some(())
    })
    .await;
    asked.write(tail.as_bytes()).await.unwrap();
    assert_eq!(asked.reply().await.unwrap().status, 422);
    let status = eventually("it ends", SOON, async || {
        replica.process.try_wait().unwrap()
    })
    .await;
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_have_an_audience_and_permissions_and_policies_may_change() {
    let hub = Hub::start().await;
    let certificate = hub.rotate("one");
    let metrics = free_port();
    let arguments = [
        "--plan-api-audience=plans,others",
        &format!("--metrics-address=127.0.0.1:{metrics}"),
    ];
    let replica = hub.replica_with(&certificate, "log", &arguments);
    let meant = token(&hub.world.client, "portal", &["plans"]).await;
    replica.refuses(&meant).await;
    let reply = replica.ask(&hub.portal, &large()).await;
    assert_eq!((reply.status, reply.code()), (401, "unauthenticated"));

    // A permission counts, and stops to count, without a restart.
    let stranger = token(&hub.world.client, "stranger", &["plans"]).await;
    assert_eq!(replica.ask(&stranger, &large()).await.status, 403);
    for (may, status) in [(true, 422), (false, 403)] {
        let names: &[&str] = if may { &["web"] } else { &["other"] };
        let manifest = format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: one}}\n\
             rules:\n- apiGroups: [boundarypolicy.dev]\n  resources: [boundaries/computeplans]\n  \
             verbs: [get]\n  resourceNames: {names:?}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
             metadata: {{name: one}}\nroleRef: {{apiGroup: rbac.authorization.k8s.io, kind: \
             ClusterRole, name: one}}\nsubjects: []"
        );
        let user = "system:serviceaccount:default:stranger";
        crate::hub::grant_to(&hub.world.client, &manifest, &[("User", user)]).await;
        eventually("the permission is as it was made", SOON, async || {
            let reply = replica.ask(&stranger, &large()).await;
            (reply.status == status).then_some(())
        })
        .await;
    }

    // A policy that can't be read says nothing that could be allowed.
    crate::hub::loosen(&hub.world.client, true).await;
    let bad = crate::hub::object(json!({
        "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
        "metadata": {"name": "bad"},
        "spec": {"boundary": "web", "rules": {"allowedComputePlans": {"plans": 5}}},
    }));
    let api = crate::hub::dynamic(&hub.world.client);
    eventually("it can be stored", SOON, async || {
        api.create(&kube::api::PostParams::default(), &bad)
            .await
            .ok()
    })
    .await;
    eventually("the policy is known", SOON, async || {
        let reply = replica.ask(&meant, &large()).await;
        (reply.status == 503 && reply.detail().contains("bad")).then_some(())
    })
    .await;
    let elsewhere = check("other", &meant, &large());
    assert_eq!(replica.caller.send(&elsewhere).await.unwrap().status, 200);
    hub.world
        .delete::<boundary_operator::api::BoundaryPolicy>("bad")
        .await;
    replica.refuses(&meant).await;

    let metrics = Caller::plain(format!("127.0.0.1:{metrics}").parse().unwrap());
    let mut connection = metrics.connect().await.unwrap();
    let text = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.write(text.as_bytes()).await.unwrap();
    let text = connection.rest().await.unwrap();
    let value = |series: &str| -> f64 {
        let series = format!("boundary_operator_plan_api_{series} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("no {series} in {text}"))
            .parse()
            .unwrap()
    };
    for code in [
        "compute_plan_not_allowed",
        "compute_plan_policy_unavailable",
        "unauthenticated",
        "forbidden",
        "ok",
    ] {
        let series = format!("requests_total{{call=\"check\",code=\"{code}\"}}");
        assert!(value(&series) >= 1.0, "{code}");
    }
    assert!(value("request_duration_seconds_count{call=\"check\"}") >= 5.0);
    let now = jiff::Timestamp::now().as_second();
    #[expect(clippy::cast_precision_loss, reason = "seconds are few")]
    let since = now as f64 - value("hub_last_heard_timestamp_seconds");
    assert!(since <= 5.0, "{since}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_start_with_what_would_not_be_safe() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("tls.crt");
    let missing = missing.to_str().unwrap();
    for (arguments, says) in [
        (
            vec!["--plan-api-address=0.0.0.0:0"],
            "not a loopback address",
        ),
        (vec!["--plan-api-address=[::]:0"], "not a loopback address"),
        (
            vec!["--plan-api-address=127.0.0.1:0", "--plan-api-tls-cert=x"],
            "--plan-api-tls-key",
        ),
        (
            vec![
                "--plan-api-address=127.0.0.1:0",
                "--plan-api-stale-after=1s",
            ],
            "at least 3s",
        ),
        (
            vec![
                "--plan-api-address=0.0.0.0:0",
                "--plan-api-tls-cert",
                missing,
                "--plan-api-tls-key",
                missing,
            ],
            "tls.crt",
        ),
    ] {
        let kubeconfig = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_boundary-operator"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--metrics-address=127.0.0.1:0")
            .args(&arguments)
            .stdout(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connections_and_slow_callers_do_no_harm() {
    let hub = Hub::start().await;
    let certificate = hub.rotate("one");
    let replica = hub.replica(&certificate, "log");
    replica.refuses(&hub.portal).await;
    let before = replica.memory();

    // Callers that say nothing, half a head, or half a body.
    let text = check("web", &hub.portal, &large());
    let mut slow = Vec::new();
    for length in [0, 40, text.len() - 5] {
        for _ in 0..50 {
            let mut connection = replica.caller.connect().await.unwrap();
            connection.write(&text.as_bytes()[..length]).await.unwrap();
            slow.push((length, Instant::now(), connection));
        }
    }

    // A thousand at once, all open before the first asks.
    let connections = join_all((0..1_000).map(|_| replica.caller.connect())).await;
    let connections: Vec<_> = connections.into_iter().map(Result::unwrap).collect();
    let started = Instant::now();
    let ask = async |mut connection: crate::client::Connection| {
        connection.write(text.as_bytes()).await.unwrap();
        let reply = timeout(SOON, connection.reply()).await.unwrap().unwrap();
        (connection, reply.status)
    };
    let answered = join_all(connections.into_iter().map(ask)).await;
    assert!(answered.iter().all(|(_, status)| *status == 422));
    let during = replica.memory();
    println!(
        "1,000 connections: answered in {:?}; memory {before} KiB, then {during} KiB",
        started.elapsed()
    );
    assert!(
        during - before < 200 * 1024,
        "{before} KiB, then {during} KiB"
    );
    drop(answered);

    // As many tokens that nobody knows.
    let foreign = join_all((0..200).map(|n| {
        let text = check("web", &format!("foreign-{n}"), &large());
        let caller = &replica.caller;
        async move { caller.send(&text).await.unwrap().status }
    }))
    .await;
    assert!(foreign.iter().all(|status| *status == 401), "{foreign:?}");

    // The slow ones were sent away.
    for (length, since, mut connection) in slow {
        if length > 40 {
            let reply = timeout(SOON, connection.reply()).await.unwrap().unwrap();
            assert_eq!((reply.status, reply.code()), (408, "request_timeout"));
        } else {
            let _ = timeout(SOON, connection.rest()).await.unwrap();
        }
        assert!(since.elapsed() < SOON);
    }
    assert_eq!(replica.ask(&hub.portal, &large()).await.status, 422);
}
