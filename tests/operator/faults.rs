//! What each fault of a member looks like in status, when it is over, and what it costs the others.
//!
//! The member is reached through a proxy that does what the fault says, or by itself where the
//! fault is one of its API server. Meanwhile another policy is changed again and again, and it is
//! measured how long the clusters without a fault take to be Enforced at each new generation.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use boundary_operator::api::{
    BoundaryPolicy, ClusterState, ClusterStatus, MemberCluster, MemberClusterStatus,
};
use control_plane::{ControlPlane, Version, eventually};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::proxy::{Mode, Proxy};
use crate::world::{
    NAMESPACE, OPERATOR, SOON, World, all_objects, cluster, event, grant, namespace, objects,
    refused, yaml,
};

/// How often the member is asked for its version, and how long a request may take.
const CAPABILITIES: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(2);

/// When a fault is shown: two requests in a row failed, which were due. See `docs/states.md`.
const SHOWN: Duration = Duration::from_secs(5 + 1 + 2 * 2);

/// How much longer things may take on a busy machine.
const BUSY: Duration = Duration::from_secs(10);

/// When it is seen to be over: after the longest wait between two attempts, one that still hangs,
/// and one that shows all anew.
const HEALED: Duration = SHOWN;

/// What a fault may cost the others at least, in the few changes that are made during it: an API
/// server alone takes a second to act on a change. Over all faults there is no such allowance.
const FLOOR: Duration = Duration::from_secs(3);

/// Changes during each fault.
const ROUNDS: usize = 3;

const VICTIM: &str = "eu-1";

/// The clusters without a fault: the hub itself, and another.
const HEALTHY: [&str; 2] = ["hub", "eu-2"];

/// A fault as it was seen.
struct Row {
    fault: &'static str,
    /// Of the `MemberCluster`.
    reason: String,
    /// Of the policy there.
    state: String,
    shown: Option<Duration>,
    healed: Option<Duration>,
    /// The median of the others meanwhile.
    healthy: Option<Duration>,
}

struct Suite {
    world: World,
    victim: Option<ControlPlane>,
    _healthy: ControlPlane,
    proxy: Proxy,
    changes: u32,
    undisturbed: Vec<Duration>,
    disturbed: Vec<Duration>,
    rows: Vec<Row>,
}

impl Suite {
    async fn start() -> Self {
        let world = World::start_with(Version::V1_34, |settings| {
            settings.capabilities_interval = CAPABILITIES;
            settings.request_timeout = TIMEOUT;
        })
        .await;
        let (victim, healthy) = (cluster(Version::V1_30), cluster(Version::V1_37));
        let proxy = Proxy::to(&victim).await;
        grant(
            &victim.client().unwrap(),
            include_str!("../../config/rbac/member.yaml"),
        )
        .await;
        let direct = victim.kubeconfig_for(OPERATOR).unwrap();
        world.join_by(VICTIM, &proxy.kubeconfig(&direct)).await;
        world.join("eu-2", &healthy).await;
        world.join_local("hub").await;
        world
            .policy("fixed", "boundary: web, rules: {disallowLatestTag: {}}")
            .await;
        let mut suite = Self {
            world,
            victim: Some(victim),
            _healthy: healthy,
            proxy,
            changes: 0,
            undisturbed: Vec::new(),
            disturbed: Vec::new(),
            rows: Vec::new(),
        };
        suite.change(&[VICTIM, HEALTHY[0], HEALTHY[1]]).await;
        for _ in 0..4 {
            let took = suite.change(&HEALTHY).await;
            suite.undisturbed.push(took);
        }
        suite.heals(Instant::now()).await;
        suite
    }

    fn victim(&self) -> &ControlPlane {
        self.victim.as_ref().unwrap()
    }

    /// Does something to the victim that takes a while, and something else meanwhile.
    async fn while_it<T>(
        &mut self,
        does: impl FnOnce(&mut ControlPlane) + Send + 'static,
        meanwhile: impl AsyncFnOnce(&mut Self) -> T,
    ) -> T {
        let mut victim = self.victim.take().unwrap();
        let done = spawn_blocking(move || {
            does(&mut victim);
            victim
        });
        let result = meanwhile(self).await;
        self.victim = Some(done.await.unwrap());
        result
    }

    /// As [`Suite::while_it`], and nothing else.
    async fn at(&mut self, does: impl FnOnce(&mut ControlPlane) + Send + 'static) {
        self.while_it(does, async |_| ()).await;
    }

    /// How the victim is reached without the proxy.
    fn direct(&self) -> String {
        self.victim().kubeconfig_for(OPERATOR).unwrap()
    }

    async fn policy(&self, name: &str) -> Option<BoundaryPolicy> {
        let api: Api<BoundaryPolicy> = Api::all(self.world.client.clone());
        api.get(name).await.ok()
    }

    async fn entry(&self) -> Option<ClusterStatus> {
        entry(&self.world.client).await
    }

    async fn member(&self) -> Option<MemberClusterStatus> {
        member(&self.world.client).await
    }

    /// Changes a policy. Returns how long it takes until `clusters` are Enforced at that generation.
    async fn change(&mut self, clusters: &[&str]) -> Duration {
        self.changes += 1;
        let policy = yaml::<BoundaryPolicy>(&format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
             metadata: {{name: moving}}\n\
             spec: {{boundary: web, rules: {{requiredLabels: {{labels: {{round: r{}}}}}}}}}",
            self.changes
        ));
        let api: Api<BoundaryPolicy> = Api::all(self.world.client.clone());
        let params = PatchParams::apply("test").force();
        let started = Instant::now();
        let patch = Patch::Apply(&policy);
        let written = api.patch("moving", &params, &patch).await.unwrap();
        let generation = written.metadata.generation;
        eventually(&format!("{clusters:?} are Enforced"), SOON, async || {
            let status = api.get("moving").await.ok()?.status?;
            let enforced = |name: &&str| {
                status.clusters.iter().any(|c| {
                    c.name == **name
                        && c.state == ClusterState::Enforced
                        && c.generation == generation
                })
            };
            (status.observed_generation == generation && clusters.iter().all(enforced))
                .then_some(())
        })
        .await;
        started.elapsed()
    }

    /// The median of some changes in the clusters without a fault, during one elsewhere.
    async fn changes(&mut self) -> Duration {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            took.push(self.change(&HEALTHY).await);
        }
        self.disturbed.extend(&took);
        median(&mut took)
    }

    /// Waits until status shows a fault that began, and measures the others meanwhile.
    async fn shows(
        &mut self,
        fault: &'static str,
        began: Instant,
        (state, reason): (ClusterState, &str),
    ) -> ClusterStatus {
        let limit = (SHOWN + BUSY).saturating_sub(began.elapsed());
        let client = self.world.client.clone();
        let sees = async {
            let seen = sees(client, fault, state, reason, limit).await;
            (seen, began.elapsed())
        };
        let (((entry, status), shown), healthy) = tokio::join!(sees, self.changes());
        let reachable = status.conditions.iter().find(|c| c.type_ == "Reachable");
        let answers = state != ClusterState::Unreachable;
        assert_eq!(
            reachable.unwrap().status,
            if answers { "True" } else { "False" },
            "{fault}"
        );
        assert!(status.last_contact_time.is_some(), "{fault}");
        self.rows.push(Row {
            fault,
            reason: reason.to_owned(),
            state: format!("{state}"),
            shown: Some(shown),
            healed: None,
            healthy: Some(healthy),
        });
        entry
    }

    /// Waits until all is Enforced again, at the generation of now, after a fault that ended.
    async fn heals(&mut self, ended: Instant) -> Duration {
        let limit = HEALED + BUSY;
        for name in ["fixed", "moving"] {
            eventually(&format!("{name} is enforced again"), limit, async || {
                let policy = self.policy(name).await?;
                let status = policy.status?;
                let entry = status.clusters.iter().find(|c| c.name == VICTIM)?;
                let enforced = entry.state == ClusterState::Enforced
                    && entry.generation == policy.metadata.generation;
                enforced.then_some(())
            })
            .await;
        }
        eventually("the member is ready again", limit, async || {
            let status = self.member().await?;
            let mut conditions = status.conditions.iter();
            conditions
                .any(|c| c.type_ == "Ready" && c.status == "True")
                .then_some(())
        })
        .await;
        ended.elapsed()
    }

    /// As [`Suite::heals`], for the fault that was shown last; then a change without a fault.
    async fn healed(&mut self, ended: Instant) {
        let took = self.heals(ended).await;
        self.rows.last_mut().unwrap().healed = Some(took);
        let took = self.change(&HEALTHY).await;
        self.undisturbed.push(took);
    }

    /// A fault of the way there.
    async fn on_the_way(
        &mut self,
        fault: &'static str,
        mode: Mode,
        expected: (ClusterState, &str),
    ) {
        let began = Instant::now();
        let before = Timestamp::now();
        self.proxy.set(mode).await;
        let entry = self.shows(fault, began, expected).await;
        says_what_was_proven(fault, &entry, before);
        let ended = Instant::now();
        self.proxy.set(Mode::Pass).await;
        self.healed(ended).await;
    }

    /// Writes the Secret of the victim.
    async fn secret(&self, kubeconfig: &str) {
        self.world.kubeconfig(VICTIM, kubeconfig).await;
    }

    fn table(&mut self) -> (String, Duration) {
        let undisturbed = median(&mut self.undisturbed);
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| {
                format!("{:.1} s", time.as_secs_f64())
            })
        };
        let mut table = format!(
            "| Fault | Policy there | Reason | Shown after | Healed after | Others meanwhile |\n\
             |---|---|---|---|---|---|\n\
             | none | Enforced | | - | - | {} |\n",
            seconds(Some(undisturbed))
        );
        for row in &self.rows {
            let _ = writeln!(
                table,
                "| {} | {} | `{}` | {} | {} | {} |",
                row.fault,
                row.state,
                row.reason,
                seconds(row.shown),
                seconds(row.healed),
                seconds(row.healthy),
            );
        }
        (table, undisturbed)
    }
}

/// What is said of the unchanged policy in the victim.
async fn entry(client: &Client) -> Option<ClusterStatus> {
    let api: Api<BoundaryPolicy> = Api::all(client.clone());
    let status = api.get("fixed").await.ok()?.status?;
    status.clusters.into_iter().find(|c| c.name == VICTIM)
}

async fn member(client: &Client) -> Option<MemberClusterStatus> {
    let api: Api<MemberCluster> = Api::all(client.clone());
    api.get(VICTIM).await.ok()?.status
}

/// Waits until both statuses show a fault.
async fn sees(
    client: Client,
    fault: &str,
    state: ClusterState,
    reason: &str,
    limit: Duration,
) -> (ClusterStatus, MemberClusterStatus) {
    let what = format!("{fault}: the policy is {state} for {reason}");
    let entry = eventually(&what, limit, async || {
        let entry = entry(&client).await?;
        (entry.state == state && entry.reason == reason).then_some(entry)
    })
    .await;
    let what = format!("{fault}: the member is not ready for {reason}");
    let status = eventually(&what, limit, async || {
        let status = member(&client).await?;
        let mut conditions = status.conditions.iter();
        let ready = conditions.find(|c| c.type_ == "Ready")?;
        (ready.status == "False" && ready.reason == reason).then_some(status)
    })
    .await;
    (entry, status)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The last proven generation and when, which was before the fault.
fn says_what_was_proven(fault: &str, entry: &ClusterStatus, before: Timestamp) {
    let message = &entry.message;
    assert_eq!(entry.generation, Some(1), "{fault}: {message}");
    let words = "; generation 1 holds there as it was, last seen to act at ";
    let (_, at) = message.split_once(words).expect(message);
    let at: Timestamp = at.parse().expect(message);
    assert!(at <= before, "{fault}: {message}");
}

const ANSWER_500: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\n\
                          content-length: 6\r\n\r\nbroken";
const ANSWER_429: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\
                          content-type: text/plain\r\ncontent-length: 4\r\n\r\nbusy";
const NO_JSON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                       content-length: 9\r\n\r\n{\"a\": [1}";
const NO_HTTP: &str = "SSH-2.0-OpenSSH_9.6\r\n";

/// Faults of the way to a member. They share its control plane, one after another.
#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_told_heals_and_costs_the_others_nothing() {
    let mut suite = Suite::start().await;
    let unreachable = |reason| (ClusterState::Unreachable, reason);
    let faults = [
        ("connect is never answered", Mode::NeverAccepts, "Timeout"),
        ("accepts, then hangs", Mode::ReadsNothing, "Timeout"),
        (
            "reads requests, never answers",
            Mode::NeverAnswers,
            "Timeout",
        ),
        ("refuses connections", Mode::Refuses, "ConnectionFailed"),
        ("answers 500", Mode::Answers(ANSWER_500), "ServerError"),
        ("answers 429", Mode::Answers(ANSWER_429), "ServerError"),
        ("answers no JSON", Mode::Answers(NO_JSON), "ServerError"),
        ("speaks no HTTP", Mode::Answers(NO_HTTP), "ConnectionFailed"),
        ("cuts its answers", Mode::Truncates, "ConnectionFailed"),
        (
            "30 s per answer",
            Mode::Slow(Duration::from_secs(30)),
            "Timeout",
        ),
        ("certificate expired", Mode::Expired, "InvalidCertificate"),
        (
            "certificate of another CA",
            Mode::OtherAuthority,
            "InvalidCertificate",
        ),
    ];
    for (fault, mode, reason) in faults {
        suite.on_the_way(fault, mode, unreachable(reason)).await;
    }
    suite.closed_watches().await;
    suite.deletions().await;
    suite.secrets().await;
    suite.api_server().await;
    suite.versions().await;

    let (table, undisturbed) = suite.table();
    println!("{table}");
    let disturbed = median(&mut suite.disturbed);
    assert!(
        disturbed <= undisturbed * 2,
        "the others took {disturbed:?}, undisturbed {undisturbed:?}"
    );
    let most = (undisturbed * 2).max(FLOOR);
    for row in &suite.rows {
        let healthy = row.healthy.unwrap_or_default();
        assert!(
            healthy <= most,
            "{}: the others took {healthy:?}, undisturbed {undisturbed:?}",
            row.fault
        );
    }
}

impl Suite {
    /// Watches that are closed at once are no outage: what another changes is put right all the same.
    async fn closed_watches(&mut self) {
        let before = self.entry().await.unwrap();
        let (began, since) = (Instant::now(), Timestamp::now());
        self.proxy.set(Mode::ClosesWatches).await;
        let healthy = self.changes().await;
        self.change(&[VICTIM]).await;
        let there = self.victim().client().unwrap();
        let api: Api<ValidatingAdmissionPolicy> = Api::all(there);
        let name = "web.boundarypolicy.dev";
        let off = json!({"spec": {"matchConditions": [{"name": "off", "expression": "false"}]}});
        let patch = Patch::Merge(&off);
        api.patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
        let changed = Instant::now();
        eventually("the change is undone", SHOWN + BUSY, async || {
            let conditions = api.get(name).await.ok()?.spec?.match_conditions?;
            let undone = conditions.iter().all(|condition| condition.name != "off");
            undone.then_some(())
        })
        .await;
        let repaired = changed.elapsed();
        // It is shown anew after that, and was never called anything else than what it is.
        self.heals(began).await;
        let after = self.entry().await.unwrap();
        assert_eq!(before.reason, after.reason);
        let member = self.member().await.unwrap();
        let reachable = member.conditions.iter().find(|c| c.type_ == "Reachable");
        let changed = reachable.unwrap().last_transition_time.0;
        assert!(changed < since, "it was called unreachable");
        self.proxy.set(Mode::Pass).await;
        self.rows.push(Row {
            fault: "closes watches; drift meanwhile",
            reason: after.reason,
            state: format!("{}", after.state),
            shown: None,
            healed: Some(repaired),
            healthy: Some(healthy),
        });
    }

    /// Nothing on the hub waits for a cluster that can't be reached.
    async fn deletions(&mut self) {
        let client = self.world.client.clone();
        let there = self.victim().client().unwrap();
        let spec = "boundary: db, clusters: {names: [eu-1]}, rules: {disallowLatestTag: {}}";
        self.world.policy("left", spec).await;
        self.world
            .state("left", VICTIM, ClusterState::Enforced)
            .await;

        let began = Instant::now();
        self.proxy.set(Mode::NeverAccepts).await;
        let unreachable = (ClusterState::Unreachable, "Timeout");
        self.shows("policy deleted meanwhile", began, unreachable)
            .await;
        let deleted = Instant::now();
        self.world.delete::<BoundaryPolicy>("left").await;
        eventually("the policy is gone", BUSY, async || {
            self.policy("left").await.is_none().then_some(())
        })
        .await;
        let left = "db.boundarypolicy.dev";
        eventually("what is left is remembered", SHOWN + BUSY, async || {
            let leftovers = self.member().await?.leftovers;
            leftovers
                .iter()
                .any(|object| object.name == left)
                .then_some(())
        })
        .await;
        self.rows.last_mut().unwrap().shown = Some(deleted.elapsed());
        assert!(objects(&there).await.contains(&left.to_owned()));
        let ended = Instant::now();
        self.proxy.set(Mode::Pass).await;
        eventually("what was left is removed", HEALED + BUSY, async || {
            let gone = !objects(&there).await.contains(&left.to_owned());
            (gone && self.member().await?.leftovers.is_empty()).then_some(())
        })
        .await;
        self.healed(ended).await;

        let began = Instant::now();
        self.proxy.set(Mode::NeverAccepts).await;
        self.shows("MemberCluster deleted meanwhile", began, unreachable)
            .await;
        let deleted = Instant::now();
        self.world.delete::<MemberCluster>(VICTIM).await;
        let members: Api<MemberCluster> = Api::all(client);
        eventually("the member is gone", TIMEOUT * 3 + BUSY, async || {
            let found = members.get_opt(VICTIM).await.ok()?;
            found.is_none().then_some(())
        })
        .await;
        self.rows.last_mut().unwrap().shown = Some(deleted.elapsed());
        event(&self.world, "MemberCluster", VICTIM, "LeftBehind").await;
        assert!(!all_objects(&there).await.is_empty());
        let ended = Instant::now();
        self.proxy.set(Mode::Pass).await;
        let kubeconfig = self.proxy.kubeconfig(&self.direct());
        self.world.join_by(VICTIM, &kubeconfig).await;
        self.healed(ended).await;
    }

    /// Faults of the Secret, each mended in it.
    async fn secrets(&mut self) {
        let unreachable = |reason| (ClusterState::Unreachable, reason);
        let secrets: Api<Secret> = Api::namespaced(self.world.client.clone(), NAMESPACE);
        let good = self.proxy.kubeconfig(&self.direct());

        let began = Instant::now();
        secrets
            .delete(VICTIM, &DeleteParams::default())
            .await
            .unwrap();
        let before = Timestamp::now();
        let missing = unreachable("SecretNotFound");
        let entry = self.shows("Secret missing", began, missing).await;
        says_what_was_proven("Secret missing", &entry, before);
        let ended = Instant::now();
        self.secret(&good).await;
        self.healed(ended).await;

        let began = Instant::now();
        let moved = json!({"data": {"value": null}, "stringData": {"config": good}});
        let patch = Patch::Merge(&moved);
        secrets
            .patch(VICTIM, &PatchParams::default(), &patch)
            .await
            .unwrap();
        let entry = self
            .shows(
                "wrong key in the Secret",
                began,
                unreachable("SecretKeyMissing"),
            )
            .await;
        assert!(entry.message.contains("no key value"), "{}", entry.message);
        let ended = Instant::now();
        self.secret(&good).await;
        self.healed(ended).await;

        // The API server gets a certificate of another authority, and the Secret is told of it.
        let began = Instant::now();
        self.proxy.set(Mode::OtherAuthority).await;
        let fault = "CA changed, then in the Secret";
        self.shows(fault, began, unreachable("InvalidCertificate"))
            .await;
        let other = self.proxy.other_authority().to_owned();
        let ended = Instant::now();
        self.secret(&self.proxy.kubeconfig_trusting(&self.direct(), &other))
            .await;
        self.healed(ended).await;

        // The token is another from now on, and the Secret is told of it.
        self.secret(&self.direct()).await;
        self.heals(Instant::now()).await;
        let file = self.victim().folder().join("tokens.csv");
        let tokens = std::fs::read_to_string(file).unwrap();
        let old = token(&self.direct());
        let new = old.chars().rev().collect::<String>();
        let rotated = self.victim().folder().join("rotated.csv");
        std::fs::write(&rotated, tokens.replace(&old, &new)).unwrap();
        let argument = format!("--token-auth-file={}", rotated.display());
        self.at(|victim| victim.restart_with([argument]).unwrap())
            .await;
        let began = Instant::now();
        let fault = "token changed, then in the Secret";
        let before = Timestamp::now();
        let entry = self
            .shows(fault, began, (ClusterState::Forbidden, "Unauthorized"))
            .await;
        says_what_was_proven(fault, &entry, before);
        let ended = Instant::now();
        self.secret(&self.direct().replace(&old, &new)).await;
        self.healed(ended).await;
    }

    /// Faults of the API server itself, which is reached without the proxy.
    async fn api_server(&mut self) {
        let began = Instant::now();
        self.victim().pause().unwrap();
        let unreachable = (ClusterState::Unreachable, "Timeout");
        self.shows("paused (SIGSTOP)", began, unreachable).await;
        let ended = Instant::now();
        self.victim().resume().unwrap();
        self.healed(ended).await;

        let began = Instant::now();
        self.at(|victim| victim.kill_api_server().unwrap()).await;
        let unreachable = (ClusterState::Unreachable, "ConnectionFailed");
        self.shows("killed (SIGKILL)", began, unreachable).await;
        self.at(|victim| victim.start_api_server().unwrap()).await;
        self.healed(Instant::now()).await;

        let restart = |victim: &mut ControlPlane| {
            victim.stop_api_server().unwrap();
            victim.start_api_server().unwrap();
        };
        let began = Instant::now();
        let shows = async |suite: &mut Self| {
            suite.shows("restarted (SIGTERM)", began, unreachable).await;
        };
        self.while_it(restart, shows).await;
        self.healed(Instant::now()).await;
    }

    /// An older version, and back.
    async fn versions(&mut self) {
        let there = self.victim().client().unwrap();
        namespace(&there, "shop", Some("web")).await;
        self.at(|victim| victim.restart_as(Version::V1_29).unwrap())
            .await;
        let began = Instant::now();
        let old = (ClusterState::Unsupported, "KubernetesTooOld");
        let entry = self.shows("downgraded to 1.29", began, old).await;
        assert_eq!(entry.version.as_deref(), Some("v1.29.15"));
        refused(&there, "shop", "nginx:latest", None).await;
        self.at(|victim| victim.restart_as(Version::V1_30).unwrap())
            .await;
        self.healed(Instant::now()).await;
        refused(&there, "shop", "nginx:latest", Some("fixed")).await;

        self.at(|victim| victim.restart_as(Version::V1_34).unwrap())
            .await;
        let began = Instant::now();
        eventually("the new version is told", SHOWN + BUSY, async || {
            (self.member().await?.version.as_deref() == Some("v1.34.4")).then_some(())
        })
        .await;
        self.rows.push(Row {
            fault: "upgraded to 1.34",
            reason: String::new(),
            state: "Enforced".to_owned(),
            shown: Some(began.elapsed()),
            healed: None,
            healthy: None,
        });
        self.healed(began).await;
    }
}

fn token(kubeconfig: &str) -> String {
    let kubeconfig: serde_json::Value = serde_saphyr::from_str(kubeconfig).unwrap();
    let token = kubeconfig.pointer("/users/0/user/token").unwrap();
    token.as_str().unwrap().to_owned()
}
