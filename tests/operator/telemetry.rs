//! What a running operator tells of itself.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use boundary_operator::api::ClusterState;
use boundary_operator::controller::Settings;
use boundary_operator::telemetry::{Loop, Telemetry, serve};
use control_plane::{Version, eventually};
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::world::{SOON, World, cluster, event};

const STUCK_AFTER: Duration = Duration::from_secs(20);

/// The code and the body of an answer.
async fn get(address: SocketAddr, path: &'static str) -> (u16, String) {
    let get = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = tokio::task::spawn_blocking(get).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    if path == "/metrics" {
        let kind = "content-type: text/plain; version=0.0.4; charset=utf-8";
        assert!(head.contains(kind), "{head}");
    }
    (code, body.to_owned())
}

/// The value of a series.
fn value(metrics: &str, series: &str) -> Option<f64> {
    let name = format!("boundary_operator_{series} ");
    let line = metrics.lines().find(|line| line.starts_with(&name))?;
    line[name.len()..].parse().ok()
}

/// Waits until the series have these values.
async fn shows(address: SocketAddr, series: &[(&str, f64)]) -> String {
    eventually(&format!("{series:?}"), SOON, async || {
        let (_, metrics) = get(address, "/metrics").await;
        let equal = |(name, wanted): &(&str, f64)| {
            value(&metrics, name).is_some_and(|value| (value - wanted).abs() < 0.5)
        };
        series.iter().all(equal).then_some(metrics)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_in_metrics_and_every_change_is_in_an_event() {
    let mut world = World::prepare(cluster(Version::V1_34)).await;
    let telemetry = Telemetry::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, telemetry.clone(), STUCK_AFTER));
    assert_eq!(get(address, "/readyz").await.0, 503);
    assert_eq!(get(address, "/healthz").await, (200, "ok\n".to_owned()));

    world.start_operator_with(Settings {
        telemetry: telemetry.clone(),
        ..World::settings()
    });
    eventually("ready", SOON, async || {
        (get(address, "/readyz").await.0 == 200).then_some(())
    })
    .await;
    world.join_local("hub").await;
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    world
        .state("no-latest", "hub", ClusterState::Enforced)
        .await;
    let metrics = shows(
        address,
        &[
            ("leader", 1.0),
            ("clusters{state=\"Ready\"}", 1.0),
            ("clusters{state=\"Unreachable\"}", 0.0),
            ("policies{state=\"Enforced\"}", 1.0),
            ("policy_clusters{state=\"Enforced\"}", 1.0),
        ],
    )
    .await;
    for series in [
        "reconcile_duration_seconds_count",
        "apply_duration_seconds_count{outcome=\"applied\"}",
    ] {
        assert!(value(&metrics, series).unwrap() > 0.0, "{series}");
    }
    let contact = "cluster_last_contact_timestamp_seconds{cluster=\"hub\"}";
    let contact = value(&metrics, contact).unwrap();
    let now = Timestamp::now().as_duration().as_secs_f64();
    assert!((0.0..60.0).contains(&(now - contact)), "{contact} {now}");
    let version = format!("build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&metrics, &version), Some(1.0));
    event(&world, "MemberCluster", "hub", "Ready").await;
    event(&world, "BoundaryPolicy", "no-latest", "Enforced").await;

    world
        .join_by("broken", "apiVersion: v1\nkind: Config\n")
        .await;
    world
        .policy(
            "nowhere",
            "boundary: web, clusters: {names: [none]}, rules: {disallowLatestTag: {}}",
        )
        .await;
    shows(
        address,
        &[
            ("clusters{state=\"Ready\"}", 1.0),
            ("clusters{state=\"Unreachable\"}", 1.0),
            ("policies{state=\"Enforced\"}", 0.0),
            ("policies{state=\"Unreachable\"}", 1.0),
            ("policies{state=\"NoClusterInScope\"}", 1.0),
            ("policy_clusters{state=\"Enforced\"}", 1.0),
            ("policy_clusters{state=\"Unreachable\"}", 1.0),
        ],
    )
    .await;
    event(&world, "MemberCluster", "broken", "InvalidKubeconfig").await;
    event(&world, "BoundaryPolicy", "no-latest", "Unreachable").await;
    event(&world, "BoundaryPolicy", "nowhere", "NoClusterInScope").await;
    assert_eq!(get(address, "/healthz").await.0, 200);

    world.stop_operator().await;
    let (_, metrics) = get(address, "/metrics").await;
    assert_eq!(value(&metrics, "leader"), Some(0.0));
    assert_eq!(value(&metrics, "clusters{state=\"Ready\"}"), None);

    // A loop that no longer comes round.
    telemetry.health.beat(Loop::Reconcile);
    eventually("unhealthy", STUCK_AFTER * 2, async || {
        (get(address, "/healthz").await == (503, "the loop reconcile is stuck\n".to_owned()))
            .then_some(())
    })
    .await;
    server.abort();
}
