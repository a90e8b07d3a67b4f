//! A fleet that is small enough for a test. `benches/scale.rs` measures a large one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use boundary_operator::api::{BoundaryPolicy, ClusterState, MemberCluster};
use boundary_operator::compile::GUARD;
use control_plane::{Version, eventually};
use futures::future::join_all;
use kube::api::{Api, ListParams};

use crate::hub::{SOON, World, cluster};
use crate::simulator::{Fleet, Resource, Settings};

const POLICIES: usize = 10;

async fn fleet(clusters: usize) -> Fleet {
    let settings = Settings {
        clusters,
        delay: Duration::from_millis(300),
        namespaces: (2, 5),
    };
    Fleet::start(settings).await.unwrap()
}

/// Makes every cluster a member.
async fn join(world: &World, fleet: &Fleet) {
    for members in fleet.clusters().chunks(16) {
        join_all(members.iter().map(|member| {
            let by = fleet.kubeconfig(member);
            async move { world.join_by(&member.name, &by).await }
        }))
        .await;
    }
}

/// Policies, two to a boundary.
async fn write(world: &World, registry: &str, policies: impl IntoIterator<Item = usize>) {
    for index in policies {
        let spec = format!(
            "boundary: b{:02}, rules: {{disallowLatestTag: {{}}, \
             allowedRegistries: {{registries: [{registry}]}}}}",
            index / 2
        );
        world.policy(&format!("p{index:02}"), &spec).await;
    }
}

/// Waits until every cluster of `reachable` has the generation of the policy.
async fn applied(fleet: &Fleet, policy: usize, generation: i64, reachable: &[usize]) {
    let name = format!("p{policy:02}");
    eventually(
        &format!("{name} {generation} is applied"),
        SOON,
        async || {
            let clusters = reachable.iter().copied();
            fleet.applied.since(&name, generation, clusters)
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_reaches_every_cluster_that_answers_and_a_restart_writes_nothing() {
    let fleet = fleet(20).await;
    let mut world = World::prepare(cluster(Version::V1_34)).await;
    // Nothing but what happens is to be written.
    world.settings.resync_interval = Duration::from_mins(5);
    world.settings.capabilities_interval = Duration::from_mins(1);
    join(&world, &fleet).await;
    write(&world, "ghcr.io/acme", 0..POLICIES).await;
    world.start_operator();

    let all: Vec<usize> = (0..20).collect();
    for policy in 0..POLICIES {
        applied(&fleet, policy, 1, &all).await;
        let enforced = |of: &boundary_operator::api::Summary| of.enforced == 20;
        let name = format!("p{policy:02}");
        let all = |status: &boundary_operator::api::BoundaryPolicyStatus| {
            status.summary.as_ref().is_some_and(enforced)
        };
        world
            .status(&name, &format!("{name} is enforced"), all)
            .await;
    }
    let objects: BTreeSet<_> = fleet.clusters()[7]
        .names(Resource::Policies)
        .into_iter()
        .collect();
    let mut expected: BTreeSet<_> = (0..POLICIES / 2)
        .map(|boundary| format!("b{boundary:02}.boundarypolicy.dev"))
        .collect();
    expected.insert(GUARD.to_owned());
    assert_eq!(objects, expected);

    // Two clusters stop to answer; what changes reaches the others all the same.
    let (dead, reachable) = ([3, 11], (0..20).filter(|c| ![3, 11].contains(c)));
    let reachable: Vec<usize> = reachable.collect();
    for cluster in dead {
        fleet.clusters()[cluster].blackhole(true);
    }
    let started = Instant::now();
    write(&world, "ghcr.io/other", [0, 9]).await;
    for policy in [0, 9] {
        applied(&fleet, policy, 2, &reachable).await;
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    for policy in 0..POLICIES {
        let name = format!("p{policy:02}");
        let status = world
            .status(
                &name,
                &format!("{name} is enforced where it can be"),
                |status| {
                    let summary = status.summary.as_ref();
                    summary.is_some_and(|s| (s.enforced, s.unreachable) == (18, 2))
                },
            )
            .await;
        // The worst come first.
        let names: Vec<_> = status.clusters.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names[..2], ["c003", "c011"]);
        assert_eq!(status.summary.unwrap().enforced_of, "18/20");
    }
    assert!(
        fleet.applied.since("p00", 2, dead).is_none(),
        "a cluster that does not answer got the change"
    );

    restart(&mut world, &fleet, &reachable).await;

    // One that answers again catches up.
    fleet.clusters()[3].blackhole(false);
    applied(&fleet, 9, 2, &[3]).await;
    world.stop_operator().await;
}

/// Restarts the operator, which changes nothing anywhere.
async fn restart(world: &mut World, fleet: &Fleet, reachable: &[usize]) {
    world.stop_operator().await;
    let (writes, hub) = (fleet.writes().policies, world.versions(&[]).await);
    let lists: Vec<_> = fleet.clusters().iter().map(|c| c.lists()).collect();
    world.start_operator();
    eventually(
        "every cluster that answers was compared",
        SOON,
        async || {
            let compared = |cluster: &usize| fleet.clusters()[*cluster].lists() > lists[*cluster];
            reachable.iter().all(compared).then_some(())
        },
    )
    .await;
    let members: Api<MemberCluster> = Api::all(world.client.clone());
    eventually(
        "the dead are known to be unreachable again",
        SOON,
        async || {
            let members = members.list(&ListParams::default()).await.ok()?;
            let ready = |member: &&MemberCluster| {
                let conditions = member.status.iter().flat_map(|s| &s.conditions);
                conditions
                    .clone()
                    .any(|c| c.type_ == "Ready" && c.status == "True")
            };
            (members.iter().filter(ready).count() == reachable.len()).then_some(())
        },
    )
    .await;
    // The probe namespace moves while all is shown anew; it is what tells that this happened.
    let probed = fleet.writes().namespaces;
    eventually("something is shown anew", SOON, async || {
        (fleet.writes().namespaces > probed).then_some(())
    })
    .await;
    assert_eq!(fleet.writes().policies, writes);
    assert_eq!(world.versions(&[]).await, hub);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_more_than_a_hundred_clusters_the_worst_are_listed_and_all_are_counted() {
    let fleet = fleet(120).await;
    let mut world = World::prepare(cluster(Version::V1_34)).await;
    world.settings.resync_interval = Duration::from_mins(5);
    world.settings.capabilities_interval = Duration::from_secs(5);
    let dead = [17, 64, 119];
    for cluster in dead {
        fleet.clusters()[cluster].blackhole(true);
    }
    join(&world, &fleet).await;
    write(&world, "ghcr.io/acme", [0]).await;
    world.start_operator();
    let status = world
        .status("p00", "it is known of all", |status| {
            let summary = status.summary.as_ref();
            summary.is_some_and(|s| (s.clusters, s.enforced, s.unreachable) == (120, 117, 3))
        })
        .await;
    assert_eq!(status.clusters.len(), 100);
    let first: Vec<_> = status.clusters[..4]
        .iter()
        .map(|entry| (entry.name.as_str(), entry.state))
        .collect();
    assert_eq!(
        first,
        [
            ("c017", ClusterState::Unreachable),
            ("c064", ClusterState::Unreachable),
            ("c119", ClusterState::Unreachable),
            ("c000", ClusterState::Enforced),
        ]
    );
    let summary = status.summary.unwrap();
    assert_eq!(summary.enforced_of, "117/120");
    // Every cluster has 2 namespaces in the boundary; what is not reached is not counted.
    assert_eq!(summary.namespaces, 117 * 2);

    // What is not listed is not written again and again.
    let policies: Api<BoundaryPolicy> = Api::all(world.client.clone());
    let version = async || {
        let policy = policies.get("p00").await.unwrap();
        policy.metadata.resource_version.unwrap()
    };
    let before = version().await;
    let requests = fleet.requests();
    eventually(
        "a quarter of the fleet was asked again",
        SOON * 3,
        async || (fleet.requests() > requests + 30).then_some(()),
    )
    .await;
    assert_eq!(version().await, before);
    world.stop_operator().await;
}
