//! While policies of a boundary are changed and deleted, the others stay enforced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use boundary_operator::api::{BoundaryPolicy, ClusterState};
use control_plane::Version;
use kube::Client;

use crate::world::{World, namespace, refusal, refused};

/// Asks without a pause, until it is told to stop, for what `unchanged` refuses; returns how often,
/// and the answers that don't name it.
async fn watch(client: Client, stop: Arc<AtomicBool>) -> (usize, Vec<Option<String>>) {
    let (mut asked, mut gaps) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let answer = refusal(&client, "shop", "a/nginx:latest").await;
        asked += 1;
        let named = |message: &String| message.contains("Policy 'unchanged' ");
        if !answer.as_ref().is_some_and(named) {
            gaps.push(answer);
        }
    }
    (asked, gaps)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unchanged_policy_is_enforced_all_along() {
    let world = World::start(Version::V1_34).await;
    let client = world.client.clone();
    namespace(&client, "shop", Some("web")).await;
    world.join_local("hub").await;
    world
        .policy("unchanged", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    let other = "boundary: web, rules: {allowedRegistries: {registries: [ghcr.io]}}";
    world.policy("other", other).await;
    refused(&client, "shop", "a/nginx:latest", Some("unchanged")).await;
    refused(&client, "shop", "a/nginx:1", Some("other")).await;

    let stop = Arc::new(AtomicBool::new(false));
    let watcher = tokio::spawn(watch(client.clone(), Arc::clone(&stop)));
    for _ in 0..3 {
        let changed = other.replace("ghcr.io", "b");
        world.policy("other", &changed).await;
        refused(&client, "shop", "ghcr.io/nginx:1", Some("other")).await;
        // Another action is another object.
        world
            .policy("other", &format!("action: Warn, {changed}"))
            .await;
        refused(&client, "shop", "a/nginx:1", None).await;
        world.policy("other", other).await;
        refused(&client, "shop", "a/nginx:1", Some("other")).await;
        world.delete::<BoundaryPolicy>("other").await;
        refused(&client, "shop", "a/nginx:1", None).await;
        world.policy("other", other).await;
        refused(&client, "shop", "a/nginx:1", Some("other")).await;
    }
    stop.store(true, Ordering::Relaxed);
    let (asked, gaps) = watcher.await.unwrap();
    assert_eq!(gaps, [] as [Option<String>; 0]);
    assert!(asked >= 100, "only {asked} requests");
    world
        .state("unchanged", "hub", ClusterState::Enforced)
        .await;
}
