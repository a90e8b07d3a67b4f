//! How many checks per second the HTTP API answers, and how long the slowest take, beside a handler
//! that does nothing, in one run. `cargo bench --bench plan_api`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark prints, and fails by a panic"
)]

#[path = "../tests/compute_plans/client.rs"]
#[allow(dead_code, reason = "not everything is used here")]
mod client;
#[path = "../tests/operator/world.rs"]
#[allow(dead_code, reason = "not everything is used here")]
mod hub;

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use boundary_operator::plans::http::{PlanApi, PlanApiSettings, TlsFiles};
use boundary_operator::telemetry::PlanMetrics;
use client::{Caller, check};
use control_plane::{ControlPlane, Version, eventually};
use futures::future::join_all;
use hub::{OPERATOR, World, apply, object, yaml};
use k8s_openapi::api::authentication::v1::TokenRequest;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

const CALLERS: usize = 16;
const REQUESTS: usize = 4_000;
const ROUNDS: usize = 3;

/// What was measured of one kind of server.
struct Measured {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

/// Callers that each ask over one connection, one request after the other.
async fn measure(caller: &Caller, text: &str, status: u16) -> Measured {
    let ask = async |count: usize| {
        let mut connection = caller.connect().await.unwrap();
        let mut took = Vec::with_capacity(count);
        for _ in 0..count {
            let started = Instant::now();
            connection.write(text.as_bytes()).await.unwrap();
            assert_eq!(connection.reply().await.unwrap().status, status);
            took.push(started.elapsed());
        }
        took
    };
    Box::pin(ask(200)).await;
    let started = Instant::now();
    let took = join_all((0..CALLERS).map(|_| ask(REQUESTS))).await;
    let elapsed = started.elapsed();
    let mut took: Vec<_> = took.into_iter().flatten().collect();
    took.sort_unstable();
    let count = u32::try_from(took.len()).unwrap();
    Measured {
        per_second: f64::from(count) / elapsed.as_secs_f64(),
        p50: took[took.len() / 2],
        p99: took[took.len() * 99 / 100],
    }
}

async fn start(plane: &ControlPlane, tls: Option<TlsFiles>) -> std::net::SocketAddr {
    let settings = PlanApiSettings {
        address: "127.0.0.1:0".parse().unwrap(),
        tls,
        audiences: Vec::new(),
        stale_after: Duration::from_secs(15),
        max_connections: 2_000,
        request_timeout: Duration::from_secs(5),
        metrics: PlanMetrics::default(),
    };
    let config = plane.config_for(OPERATOR).unwrap();
    let api = PlanApi::start(settings, config).await.unwrap();
    let address = api.address();
    tokio::spawn(api.run(std::future::pending()));
    address
}

/// A hub with 100 policies, in 50 boundaries, and a token that may ask.
async fn furnish() -> (World, String) {
    let plane = ControlPlane::builder(Version::V1_37).user(OPERATOR, &[]);
    let world = World::prepare(plane.start().unwrap()).await;
    let of = std::fs::read_to_string("examples/compute-plans/types.yaml").unwrap();
    let types: Api<boundary_operator::api::ComputeResourceType> = Api::all(world.client.clone());
    let params = PatchParams::apply("test").force();
    for document in of.split("\n---\n") {
        let value: Value = yaml(document);
        let name = value["metadata"]["name"].as_str().unwrap();
        types
            .patch(name, &params, &Patch::Apply(&value))
            .await
            .unwrap();
    }
    for n in 0..100 {
        let policy: boundary_operator::api::BoundaryPolicy = serde_json::from_value(json!({
            "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
            "metadata": {"name": format!("p{n}")},
            "spec": {"boundary": format!("b{}", n / 2), "rules": {"allowedComputePlans": {
                "plans": ["small", "medium", "valkey/small"],
            }}},
        }))
        .unwrap();
        apply(&world.client, &policy).await;
    }
    let account = object(json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "portal", "namespace": "default"},
    }));
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(world.client.clone(), "default");
    accounts
        .patch("portal", &params, &Patch::Apply(&account))
        .await
        .unwrap();
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n\
                metadata: {name: reader}\nrules:\n- apiGroups: [boundarypolicy.dev]\n  \
                resources: [boundaries/computeplans]\n  verbs: [get]\n---\n\
                apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
                metadata: {name: reader}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: \
                ClusterRole, name: reader}\nsubjects: []";
    let user = "system:serviceaccount:default:portal";
    hub::grant_to(&world.client, role, &[("User", user)]).await;
    let made = accounts
        .create_token_request(
            "portal",
            &kube::api::PostParams::default(),
            &TokenRequest::default(),
        )
        .await
        .unwrap();
    let token = made.status.unwrap().token.unwrap();
    (world, token)
}

#[tokio::main]
async fn main() {
    let (world, token) = furnish().await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles {
        certificate: folder.path().join("tls.crt"),
        key: folder.path().join("tls.key"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let over_tls = Caller::trusting(start(&world.hub, Some(files)).await, &made.cert.pem());
    let plain = Caller::plain(start(&world.hub, None).await);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bare = Caller::plain(listener.local_addr().unwrap());
    let answer = || async { axum::Json(json!({"allowed": true})) };
    let router = Router::new().route(
        "/v1/boundaries/{boundary}/compute-plans:check",
        post(answer),
    );
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });

    let ask = |plan: &str| {
        check(
            "b7",
            &token,
            &json!({"type": "valkey", "wanted": [{"plan": plan}]}),
        )
    };
    let (small, large) = (ask("small"), ask("large"));
    for caller in [&plain, &over_tls] {
        eventually(
            "the API knows the policies",
            Duration::from_secs(30),
            async || {
                let reply = caller.send(&large).await.ok()?;
                (reply.status == 422).then_some(())
            },
        )
        .await;
    }
    let rows = [
        ("bare axum handler, HTTP", &bare, &small, 200),
        ("check, allowed, HTTP", &plain, &small, 200),
        ("check, refused, HTTP", &plain, &large, 422),
        ("check, allowed, TLS", &over_tls, &small, 200),
    ];
    let cores = std::thread::available_parallelism().unwrap();
    println!("{CALLERS} callers, {REQUESTS} requests each, best of {ROUNDS}; {cores} cores");
    println!("{:<26} {:>8} {:>9} {:>9}", "", "per s", "p50", "p99");
    // The rounds are mixed, so that a busy moment does not hit one row alone.
    let mut best: Vec<Option<Measured>> = rows.iter().map(|_| None).collect();
    for _ in 0..ROUNDS {
        for (best, (_, caller, text, status)) in best.iter_mut().zip(rows) {
            let measured = Box::pin(measure(caller, text, status)).await;
            let better = |best: &Measured| measured.per_second > best.per_second;
            if best.as_ref().is_none_or(better) {
                *best = Some(measured);
            }
        }
    }
    for ((name, ..), measured) in rows.iter().zip(best) {
        let Measured {
            per_second,
            p50,
            p99,
        } = measured.unwrap();
        println!("{name:<26} {per_second:>8.0} {p50:>9.1?} {p99:>9.1?}");
    }
    std::process::exit(0);
}
