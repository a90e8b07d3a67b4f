//! The HTTP API over real TLS, with a real API server as the hub: each case of the rule.

use std::sync::OnceLock;
use std::time::Duration;

use boundary_operator::api::{Action, BoundaryPolicy, crds};
use boundary_operator::plans::http::{PlanApi, PlanApiSettings, TlsFiles};
use boundary_operator::telemetry::PlanMetrics;
use control_plane::{Version, eventually, shared};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::client::{Caller, Reply, check, request};
use crate::hub::{apply, object};
use crate::server::SOON;
use crate::world::{policy, types};

/// Who may ask about every boundary, and who about none.
const PORTAL: &str = "portal";
const STRANGER: &str = "stranger";

/// One that all tests of this program share, with what may ask and what may not.
pub(crate) struct Shared {
    pub(crate) caller: Caller,
    pub(crate) portal: String,
    pub(crate) stranger: String,
}

/// A certificate for `localhost` and its key, in PEM.
pub(crate) fn certificate() -> (String, String) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// The CRDs and types of the examples, and who may ask.
pub(crate) async fn furnish(client: &Client) {
    for crd in crds() {
        apply(client, &crd).await;
    }
    eventually("the CRDs are served", SOON, async || {
        let all = ListParams::default();
        let policies = Api::<BoundaryPolicy>::all(client.clone());
        policies.list(&all).await.ok()?;
        let types = Api::<boundary_operator::api::ComputeResourceType>::all(client.clone());
        types.list(&all).await.ok()
    })
    .await;
    for of in types() {
        apply(client, &of).await;
    }
    for name in [PORTAL, STRANGER] {
        let account = object(json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": "default"},
        }));
        let api: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        api.patch(
            name,
            &PatchParams::apply("test").force(),
            &Patch::Apply(&account),
        )
        .await
        .unwrap();
    }
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n\
                metadata: {name: compute-plans-reader}\nrules:\n\
                - apiGroups: [boundarypolicy.dev]\n  resources: [boundaries/computeplans]\n  \
                verbs: [get]\n---\n\
                apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
                metadata: {name: compute-plans-reader}\n\
                roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \
                compute-plans-reader}\nsubjects: []";
    let user = format!("system:serviceaccount:default:{PORTAL}");
    crate::hub::grant_to(client, role, &[("User", &user)]).await;
}

/// A token of a service account, for an audience.
pub(crate) async fn token(client: &Client, account: &str, audiences: &[&str]) -> String {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audiences.iter().map(|&a| a.to_owned()).collect()),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let made = api
        .create_token_request(account, &PostParams::default(), &request)
        .await;
    made.unwrap().status.unwrap().token.unwrap()
}

/// An API with the API server that all tests share as its hub. It ends with this program.
pub(crate) fn api() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let plane = shared(Version::V1_37);
                let client = plane.client().unwrap();
                furnish(&client).await;
                let folder = tempfile::tempdir().unwrap();
                let (certificate, key) = certificate();
                let files = TlsFiles {
                    certificate: folder.path().join("tls.crt"),
                    key: folder.path().join("tls.key"),
                };
                std::fs::write(&files.certificate, &certificate).unwrap();
                std::fs::write(&files.key, key).unwrap();
                let settings = PlanApiSettings {
                    address: "127.0.0.1:0".parse().unwrap(),
                    tls: Some(files),
                    audiences: Vec::new(),
                    stale_after: Duration::from_secs(15),
                    max_connections: 2_000,
                    request_timeout: Duration::from_secs(5),
                    metrics: PlanMetrics::default(),
                };
                let api = PlanApi::start(settings, plane.config().unwrap());
                let api = api.await.unwrap();
                let shared = Shared {
                    caller: Caller::trusting(api.address(), &certificate),
                    portal: token(&client, PORTAL, &[]).await,
                    stranger: token(&client, STRANGER, &[]).await,
                };
                send.send(shared).unwrap();
                api.run(std::future::pending()).await;
            });
        });
        receive.recv().unwrap()
    })
}

/// A boundary whose policies the API knows.
pub(crate) struct Known {
    pub(crate) api: &'static Shared,
    pub(crate) name: String,
}

impl Known {
    /// Stores the policies in a boundary of that name, and waits until the API goes by them.
    pub(crate) async fn new(name: &str, policies: &[BoundaryPolicy]) -> Self {
        let api = tokio::task::spawn_blocking(api).await.unwrap();
        let client = shared(Version::V1_37).client().unwrap();
        let known = Self {
            api,
            name: name.to_owned(),
        };
        for policy in policies {
            known.store(&client, policy).await;
        }
        // Events come in order: when the last policy is known, all are.
        let last = policy("last", Action::Deny, &["marker/none"]);
        let marker = boundary_operator::api::ComputeResourceType::new(
            "marker",
            serde_json::from_value(json!({"plans": [{"name": "marked"}]})).unwrap(),
        );
        apply(&client, &marker).await;
        known.store(&client, &last).await;
        eventually(&format!("{name} is known"), SOON, async || {
            let reply = known.check("marker", &["marked"], &[]).await;
            (reply.status == 422).then_some(())
        })
        .await;
        known
    }

    async fn store(&self, client: &Client, policy: &BoundaryPolicy) {
        let mut policy = policy.clone();
        policy.metadata.name = Some(format!("{}-{}", self.name, policy.name_any()));
        policy.metadata.generation = None;
        policy.spec.boundary.clone_from(&self.name);
        apply(client, &policy).await;
    }

    pub(crate) async fn ask(&self, body: &Value) -> Reply {
        let text = check(&self.name, &self.api.portal, body);
        self.api.caller.send(&text).await.unwrap()
    }

    pub(crate) async fn check(&self, of: &str, wanted: &[&str], held: &[&str]) -> Reply {
        self.ask(&json!({"type": of, "wanted": parts(wanted), "held": parts(held)}))
            .await
    }

    async fn plans(&self, of: &str) -> Reply {
        let path = format!("/v1/boundaries/{}/compute-plans?type={of}", self.name);
        let text = request("GET", &path, Some(&self.api.portal), None);
        self.api.caller.send(&text).await.unwrap()
    }
}

/// `web=small` is a component, `small` a resource of one part.
fn parts(parts: &[&str]) -> Vec<Value> {
    let part = |part: &&str| match part.split_once('=') {
        Some((component, plan)) => json!({"component": component, "plan": plan}),
        None => json!({"plan": part}),
    };
    parts.iter().map(part).collect()
}

#[track_caller]
fn allowed(reply: &Reply) {
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body, json!({"allowed": true}));
}

#[track_caller]
fn refused(reply: &Reply, plan: &str, plans: &str) {
    assert_eq!(reply.status, 422, "{reply:?}");
    assert_eq!(reply.code(), "compute_plan_not_allowed");
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json")
    );
    let message = format!(
        "Compute plan '{plan}' is not allowed in this boundary: a boundary policy disallows it. \
         Allowed plans: {plans}."
    );
    assert_eq!(reply.detail(), message);
}

fn deny(name: &str, plans: &[&str]) -> BoundaryPolicy {
    policy(name, Action::Deny, plans)
}

const CHECKED: [(&str, &str); 6] = [
    ("app", "small, medium"),
    ("container-instance", "small, medium"),
    ("postgresql", "small, medium"),
    ("sql-server", "medium"),
    ("qdrant", "small"),
    ("valkey", "small, medium"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_type_but_functions_is_checked_when_created() {
    let known = Known::new("api-created", &[deny("a", &["medium", "small"])]).await;
    for (of, plans) in CHECKED {
        refused(&known.check(of, &["large"], &[]).await, "large", plans);
        let first = plans.split(", ").next().unwrap();
        allowed(&known.check(of, &[first], &[]).await);
    }
    allowed(&known.check("function", &["large"], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_keeps_its_plan_and_a_move_is_checked() {
    let known = Known::new("api-kept", &[deny("a", &["medium", "small"])]).await;
    for (of, plans) in CHECKED {
        allowed(&known.check(of, &["large"], &["large"]).await);
        refused(
            &known.check(of, &["large"], &["medium"]).await,
            "large",
            plans,
        );
        let first = plans.split(", ").next().unwrap();
        allowed(&known.check(of, &[first], &["large"]).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_of_every_component_is_checked() {
    let known = Known::new("api-components", &[deny("a", &["small"])]).await;
    let of = "container-instance";
    let held = ["web=large", "worker=small"];
    allowed(&known.check(of, &["worker=small", "web=large"], &held).await);
    let reply = known
        .check(of, &["web=small", "worker=large", "new=medium"], &held)
        .await;
    refused(&reply, "large", "small");
    let refusals = reply.body["refusals"].as_array().unwrap();
    let of_it: Vec<_> = refusals
        .iter()
        .map(|r| (&r["component"], &r["plan"]))
        .collect();
    let expected = [
        (json!("worker"), json!("large")),
        (json!("new"), json!("medium")),
    ];
    assert_eq!(
        of_it,
        expected.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );
    assert_eq!(refusals[0]["policies"], json!(["api-components-a"]));
    assert_eq!(reply.body["allowedPlans"], json!(["small"]));
    // Only if its key is unique.
    refused(
        &known.check(of, &["web=large", "web=large"], &held).await,
        "large",
        "small",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_plan_is_not_checked() {
    let known = Known::new("api-absent", &[deny("a", &["small"])]).await;
    for part in [json!({}), json!({"plan": null}), json!({"plan": ""})] {
        allowed(
            &known
                .ask(&json!({"type": "valkey", "wanted": [part]}))
                .await,
        );
    }
    allowed(&known.ask(&json!({"type": "valkey", "wanted": []})).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_applies_to_every_type_and_with_a_type_to_that_alone() {
    let known = Known::new("api-typed", &[deny("a", &["small", "valkey/medium"])]).await;
    refused(
        &known.check("valkey", &["large"], &[]).await,
        "large",
        "small, medium",
    );
    refused(
        &known.check("app", &["medium"], &[]).await,
        "medium",
        "small",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_policy_about_the_type_must_allow_the_plan() {
    let policies = [
        deny("p1", &["small", "medium"]),
        deny("p2", &["valkey/small", "valkey/large"]),
    ];
    let known = Known::new("api-together", &policies).await;
    let reply = known.check("valkey", &["large"], &[]).await;
    refused(&reply, "large", "small");
    assert_eq!(
        reply.body["refusals"][0]["policies"],
        json!(["api-together-p1"])
    );
    refused(
        &known.check("valkey", &["medium"], &[]).await,
        "medium",
        "small",
    );
    refused(
        &known.check("app", &["large"], &[]).await,
        "large",
        "small, medium",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_whose_names_match_no_plan_allows_nothing() {
    let known = Known::new("api-nothing", &[deny("a", &["qdrant/no-such-plan"])]).await;
    refused(
        &known.check("qdrant", &["small"], &[]).await,
        "small",
        "none",
    );
    allowed(&known.check("valkey", &["large"], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_scope_of_a_policy_does_not_count() {
    let mut scoped = deny("a", &["small"]);
    scoped.spec.clusters = serde_json::from_value(json!({"names": ["elsewhere"]})).unwrap();
    let known = Known::new("api-scope", &[scoped]).await;
    refused(
        &known.check("valkey", &["large"], &[]).await,
        "large",
        "small",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_about_the_type_everything_is_allowed() {
    let known = Known::new("api-free", &[]).await;
    allowed(&known.check("valkey", &["large"], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_that_warn_or_audit_refuse_nothing() {
    let policies = [
        policy("w", Action::Warn, &["small"]),
        policy("a", Action::Audit, &["medium"]),
    ];
    let known = Known::new("api-warned", &policies).await;
    let reply = known.check("valkey", &["large"], &[]).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let warnings = reply.body["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        warnings[0]["message"],
        "Compute plan 'large' is not allowed in this boundary: a boundary policy disallows it. \
         Allowed plans: small."
    );
    assert_eq!(warnings[0]["policies"], json!(["api-warned-w"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_picker_has_every_plan_with_its_reason() {
    let known = Known::new("api-picker", &[deny("a", &["small"])]).await;
    let reply = known.plans("valkey").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body["checked"], true);
    let plans = reply.body["plans"].as_array().unwrap();
    let names: Vec<_> = plans.iter().map(|p| (&p["name"], &p["allowed"])).collect();
    let expected = [("small", true), ("medium", false), ("large", false)];
    let expected: Vec<_> = expected.map(|(n, a)| (json!(n), json!(a))).to_vec();
    assert_eq!(
        names,
        expected.iter().map(|(n, a)| (n, a)).collect::<Vec<_>>()
    );
    assert!(plans[0].get("reason").is_none());
    assert_eq!(plans[1]["reason"], "a boundary policy disallows it");
    assert_eq!(plans[1]["policies"], json!(["api-picker-a"]));
    // Functions are greyed out, though never refused.
    let reply = known.plans("function").await;
    assert_eq!(reply.body["checked"], false);
    let greyed = reply.body["plans"].as_array().unwrap();
    assert!(
        greyed.iter().any(|plan| plan["allowed"] == false),
        "{reply:?}"
    );
    let reply = known.plans("valky").await;
    assert_eq!(
        (reply.status, reply.code()),
        (404, "compute_resource_type_unknown")
    );
    assert!(reply.detail().contains("valkey"), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_ask_is_told_so() {
    let known = Known::new("api-access", &[deny("a", &["small"])]).await;
    let body = json!({"type": "valkey", "wanted": [{"plan": "large"}]}).to_string();
    let path = "/v1/boundaries/api-access/compute-plans:check";
    let send = async |token: Option<&str>| {
        let text = request("POST", path, token, Some(&body));
        known.api.caller.send(&text).await.unwrap()
    };
    assert_eq!(send(Some(&known.api.portal)).await.status, 422);
    let client = shared(Version::V1_37).client().unwrap();
    let elsewhere = token(&client, PORTAL, &["another"]).await;
    for unknown in [None, Some("nonsense"), Some(elsewhere.as_str())] {
        let reply = send(unknown).await;
        assert_eq!(
            (reply.status, reply.code()),
            (401, "unauthenticated"),
            "{unknown:?}"
        );
        assert_eq!(reply.header("www-authenticate"), Some("bearer"));
    }
    let reply = send(Some(&known.api.stranger)).await;
    assert_eq!((reply.status, reply.code()), (403, "forbidden"));
    assert!(
        reply
            .detail()
            .contains("boundaries/computeplans api-access"),
        "{reply:?}"
    );
    assert!(
        reply
            .detail()
            .contains("system:serviceaccount:default:stranger")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_right_are_told_what_is_wrong() {
    let known = Known::new("api-wrong", &[]).await;
    let path = "/v1/boundaries/api-wrong/compute-plans:check";
    let token = Some(known.api.portal.as_str());
    let send = async |text: String| known.api.caller.send(&text).await.unwrap();
    let huge = format!("{{\"type\": \"{}\"}}", "x".repeat(200_000));
    let many = json!({"type": "valkey", "wanted": vec![json!({}); 1_001]}).to_string();
    for (body, status, says) in [
        ("", 400, "the body"),
        ("{", 400, "the body"),
        ("[]", 400, "the body"),
        ("\u{fffd}", 400, "the body"),
        (r#"{"type": "valkey"}"#, 400, "wanted"),
        (r#"{"wanted": []}"#, 400, "type"),
        (r#"{"type": 5, "wanted": []}"#, 400, "string"),
        (
            r#"{"type": "valkey", "wanted": [], "helds": []}"#,
            400,
            "helds",
        ),
        (
            r#"{"type": "valkey", "wanted": [{"plans": "x"}]}"#,
            400,
            "plans",
        ),
        (
            r#"{"type": "valky", "wanted": [{"plan": "x"}]}"#,
            404,
            "valkey",
        ),
        (&many, 400, "wanted: it may have 1000 items, and has 1001"),
        (&huge, 413, "131072"),
    ] {
        let reply = send(request("POST", path, token, Some(body))).await;
        assert_eq!(reply.status, status, "{body:.80} {reply:?}");
        assert!(reply.detail().contains(says), "{body:.80} {reply:?}");
    }
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", path, 405),
        ("DELETE", "/v1/boundaries/api-wrong/compute-plans", 405),
        ("GET", "/v1/boundaries/api-wrong/compute-plans", 400),
        ("GET", "/v1/boundaries/-x/compute-plans?type=valkey", 400),
        ("GET", "/v1/boundaries/a%2fb/compute-plans?type=valkey", 400),
        ("GET", "/v1/boundaries/%ff/compute-plans?type=valkey", 400),
        ("GET", "/openapi.json", 200),
    ] {
        let reply = send(request(method, path, token, None)).await;
        assert_eq!(reply.status, status, "{method} {path} {reply:?}");
    }
    let text = request("POST", path, token, Some("{}")).replace("application/json", "text/plain");
    assert_eq!(send(text).await.status, 415);
    let large_head = request("GET", "/openapi.json", Some(&"x".repeat(100_000)), None);
    let mut connection = known.api.caller.connect().await.unwrap();
    let _ = connection.write(large_head.as_bytes()).await;
    // The server may close the connection while the rest is still sent.
    if let Ok(reply) = connection.reply().await {
        assert_eq!(reply.status, 431);
    }
}
