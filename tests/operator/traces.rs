//! The operator as a process, and a collector that its traces are sent to.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use boundary_operator::api::ClusterState;
use control_plane::{Version, eventually};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use tokio::net::TcpListener;

use crate::world::{OPERATOR, SOON, World, cluster};

/// The names of the spans that came, each with the value of its attribute `cluster`.
type Spans = Arc<Mutex<BTreeSet<(String, String)>>>;

async fn collector() -> (String, Spans) {
    let spans = Spans::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let taken = spans.clone();
    let take = post(move |body: Bytes| async move {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        let scopes = (request.resource_spans.into_iter()).flat_map(|spans| spans.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let cluster = span.attributes.iter().find(|a| a.key == "cluster");
            let cluster = cluster.map(|attribute| format!("{:?}", attribute.value));
            taken
                .lock()
                .unwrap()
                .insert((span.name, cluster.unwrap_or_default()));
        }
    });
    let router = Router::new().route("/v1/traces", take);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, spans)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_cluster_is_a_trace() {
    let world = World::prepare(cluster(Version::V1_34)).await;
    world.join_local("here").await;
    world
        .policy("trusted", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    let (address, spans) = collector().await;
    let kubeconfig = world.hub.folder().join("operator.kubeconfig");
    std::fs::write(&kubeconfig, world.hub.kubeconfig_for(OPERATOR).unwrap()).unwrap();
    let mut operator = Command::new(env!("CARGO_BIN_EXE_boundary-operator"))
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .args([
            "--metrics-address",
            "127.0.0.1:0",
            "--otlp-endpoint",
            &address,
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    world.state("trusted", "here", ClusterState::Enforced).await;
    let seen = eventually("the traces are there", SOON, async || {
        let spans = spans.lock().unwrap().clone();
        let has = |name: &str| spans.iter().any(|(span, _)| span == name);
        ["reconcile", "discover", "apply", "prove"]
            .iter()
            .all(|name| has(name))
            .then_some(spans)
    })
    .await;
    operator.kill().unwrap();
    operator.wait().unwrap();
    let of_here =
        |(span, cluster): &(String, String)| span == "reconcile" && cluster.contains("here");
    assert!(seen.iter().any(of_here), "{seen:?}");
}
