//! From the creation of a policy to its deletion, in the hub itself and in another cluster.

use boundary_operator::api::{BoundaryPolicy, ClusterState, MemberCluster};
use control_plane::{Version, eventually};
use jiff::{SignedDuration, Timestamp};
use kube::api::Api;

use crate::world::{
    Requests, SOON, World, all_objects, cluster, condition, namespace, objects, refused, states,
};

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_applied_changed_and_removed() {
    let mut world = World::start(Version::V1_34).await;
    let member = cluster(Version::V1_37);
    let there = member.client().unwrap();
    let here = world.client.clone();
    for client in [&here, &there] {
        namespace(client, "shop", Some("web")).await;
    }
    world.join_local("hub").await;
    world.join("eu-1", &member).await;

    // Created.
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    let trusted = "boundary: web, clusters: {selector: {matchLabels: {region: eu}}}, \
                   rules: {allowedRegistries: {registries: [ghcr.io/acme]}}";
    world.policy("trusted", trusted).await;
    let status = world
        .status("no-latest", "enforced in both", |s| {
            condition(s, "Ready").0 == "True"
        })
        .await;
    let expected = [
        ("eu-1", ClusterState::Enforced),
        ("hub", ClusterState::Enforced),
    ];
    assert_eq!(states(&status), expected.into());
    assert_eq!(status.summary.as_ref().unwrap().namespaces, 2);
    let entry = world.state("trusted", "eu-1", ClusterState::Enforced).await;
    assert_eq!(entry.generation, Some(1));
    refused(&here, "shop", "nginx:latest", Some("no-latest")).await;
    refused(&here, "shop", "nginx:1", None).await;
    refused(&there, "shop", "nginx:1", Some("trusted")).await;

    // Nothing changed writes nothing, also after a restart of the operator.
    let idle = async || {
        let before = Requests::count(&there).await.comparisons;
        eventually("it compared twice", SOON, async || {
            let now = Requests::count(&there).await.comparisons;
            (now >= before + 2).then_some(())
        })
        .await;
    };
    idle().await;
    let before = world.versions(&[&here, &there]).await;
    let (hub, member) = (
        Requests::count(&here).await.writes,
        Requests::count(&there).await.writes,
    );
    idle().await;
    world.stop_operator().await;
    world.start_operator();
    idle().await;
    assert_eq!(world.versions(&[&here, &there]).await, before);
    assert_eq!(Requests::count(&there).await.writes, member);
    assert_eq!(Requests::count(&here).await.writes, hub);

    // Changed.
    world
        .policy("trusted", &trusted.replace("ghcr.io/acme", "docker.io"))
        .await;
    let entry = world.state("trusted", "eu-1", ClusterState::Enforced).await;
    assert_eq!(entry.generation, Some(2));
    refused(&there, "shop", "docker.io/nginx:1", None).await;
    refused(&there, "shop", "ghcr.io/acme/web:1", Some("trusted")).await;

    // Another action.
    world
        .policy("trusted", &format!("action: Audit, {trusted}"))
        .await;
    world
        .state("trusted", "eu-1", ClusterState::Installed)
        .await;
    refused(&there, "shop", "nginx:1", None).await;
    refused(&there, "shop", "nginx:latest", Some("no-latest")).await;
    let both = ["web.boundarypolicy.dev", "web.boundarypolicy.dev.audit"];
    assert_eq!(objects(&there).await, both);

    // An exemption that runs out.
    let expires = Timestamp::now() + SignedDuration::from_secs(6);
    let exemption = "exemptions: [{reason: test, rules: [DisallowLatestTag], namespaces: [shop], \
                     expires: \"EXPIRES\"}]"
        .replace("EXPIRES", &expires.to_string());
    let spec = format!("boundary: web, rules: {{disallowLatestTag: {{}}}}, {exemption}");
    world.policy("no-latest", &spec).await;
    refused(&here, "shop", "nginx:latest", None).await;
    refused(&here, "shop", "nginx:latest", Some("no-latest")).await;
    assert!(Timestamp::now() >= expires);

    // Deleted.
    world.delete::<BoundaryPolicy>("trusted").await;
    eventually("trusted is removed", SOON, async || {
        (objects(&there).await == ["web.boundarypolicy.dev"]).then_some(())
    })
    .await;
    refused(&there, "shop", "nginx:latest", Some("no-latest")).await;

    // A cluster that leaves is left clean.
    world.delete::<MemberCluster>("eu-1").await;
    let clusters: Api<MemberCluster> = Api::all(here.clone());
    eventually("the cluster has left", SOON, async || {
        clusters.get_opt("eu-1").await.ok()?.is_none().then_some(())
    })
    .await;
    assert_eq!(all_objects(&there).await, Vec::<String>::new());
    let status = world
        .status("no-latest", "one cluster is left", |s| {
            s.clusters.len() == 1
        })
        .await;
    assert_eq!(status.summary.unwrap().enforced_of, "1/1");
}
