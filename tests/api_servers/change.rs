//! A change of one policy leaves no moment in which another isn't enforced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use boundary_operator::api::BoundaryPolicy;
use boundary_operator::compile::AdmissionObject;
use control_plane::{ControlPlane, Version};
use serde_json::json;

use crate::cases::rules;
use crate::server::Server;
use crate::support;
use crate::workload::pod;

const WATCHERS: usize = 4;

fn unchanged(boundary: &str) -> BoundaryPolicy {
    support::policy(
        "unchanged",
        boundary,
        rules(json!({"disallowLatestTag": {}})),
    )
}

fn other(boundary: &str, registry: &str) -> BoundaryPolicy {
    let registries = json!({"allowedRegistries": {"registries": [registry]}});
    support::policy("other", boundary, rules(registries))
}

/// Asks without a pause, until it is told to stop, for what the unchanged policy refuses; returns
/// how often, and the answers without it.
async fn watch(
    version: Version,
    namespace: &'static str,
    stop: Arc<AtomicBool>,
) -> (usize, Vec<String>) {
    let server = Server::of(version).await;
    let object = pod("x", "a/nginx:latest");
    let (mut asked, mut gaps) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let answer = server.create(namespace, &object).await;
        asked += 1;
        let refusal = answer.refusal();
        if !refusal
            .as_ref()
            .is_some_and(|m| m.contains("Policy 'unchanged' "))
        {
            gaps.push(format!("request {asked}: {refusal:?}"));
        }
    }
    (asked, gaps)
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_gap(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let install = async |policies: &[BoundaryPolicy]| -> Vec<AdmissionObject> {
        server.install(policies).await
    };
    install(&[unchanged("gap"), other("gap", "a")]).await;
    server.namespace("gap", Some("gap")).await;

    let stop = Arc::new(AtomicBool::new(false));
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| tokio::spawn(watch(v, "gap", Arc::clone(&stop))))
        .collect();
    // Each waits until the change acts: the loop goes on over every one of them.
    for round in 0..3 {
        install(&[unchanged("gap"), other("gap", &format!("b{round}"))]).await;
        install(&[unchanged("gap")]).await;
        install(&[unchanged("gap"), other("gap", "a")]).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.store(true, Ordering::Relaxed);
    let mut asked = 0;
    for watcher in watchers {
        let (count, gaps) = watcher.await.unwrap();
        assert_eq!(gaps, [""; 0], "{v}");
        asked += count;
    }
    assert!(asked >= 300, "{v}: only {asked} requests");
}

/// Policies are written while requests are judged: API servers before 1.36 end when both touch the
/// types of variables at once.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn survives_changes(#[values(Version::V1_30, Version::V1_34)] v: Version) {
    const BOUNDARIES: usize = 12;
    let start = move || ControlPlane::builder(v).start().unwrap();
    let plane = tokio::task::spawn_blocking(start).await.unwrap();
    let server = Server::at(&plane);
    server.install(&[unchanged("busy")]).await;
    server.namespace("busy", Some("busy")).await;

    let stop = AtomicBool::new(false);
    let ask = async || {
        let asking = Server::at(&plane);
        let object = pod("x", "a/nginx:latest");
        let mut asked = 0;
        while !stop.load(Ordering::Relaxed) {
            let refusal = asking.create("busy", &object).await.refusal();
            assert!(refusal.is_some(), "{v}: request {asked} was admitted");
            asked += 1;
        }
        asked
    };
    let write = async || {
        for round in 0..6 {
            let registry = format!("r{round}");
            let policies: Vec<_> = (0..BOUNDARIES)
                .map(|n| {
                    let mut policy = other(&format!("other-{n}"), &registry);
                    policy.metadata.name = Some(format!("other-{n}"));
                    policy
                })
                .collect();
            server.install(&policies).await;
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (asked, ()) = tokio::join!(
        futures::future::join_all((0..2 * WATCHERS).map(|_| ask())),
        write()
    );
    let asked: usize = asked.iter().sum();
    assert!(asked >= 300, "{v}: only {asked} requests");
}
