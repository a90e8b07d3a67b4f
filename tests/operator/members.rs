//! Clusters that come and go: by the cluster Secrets of Argo CD, and with what is left behind.

use boundary_operator::api::{ClusterState, MemberCluster};
use control_plane::{ControlPlane, Version, eventually};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::world::{
    OPERATOR, SOON, World, all_objects, cluster, event, grant, namespace, objects, refused, states,
};

/// The namespace of Argo CD.
const ARGOCD: &str = "argocd";

async fn argocd_secret(client: &Client, name: &str, region: &str, data: [(&str, String); 3]) {
    let data = data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    let mut secret: Secret = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": ARGOCD, "labels": {
            "argocd.argoproj.io/secret-type": "cluster", "region": region,
        }},
    }))
    .unwrap();
    secret.data = Some(data.into());
    let api: Api<Secret> = Api::namespaced(client.clone(), ARGOCD);
    let params = PatchParams::apply("test").force();
    api.patch(name, &params, &Patch::Apply(&secret))
        .await
        .unwrap();
}

/// What Argo CD would have of a cluster.
fn data(name: &str, cluster: &ControlPlane) -> [(&'static str, String); 3] {
    let kubeconfig: serde_json::Value =
        serde_saphyr::from_str(&cluster.kubeconfig_for(OPERATOR).unwrap()).unwrap();
    let of = |path: &str| kubeconfig.pointer(path).unwrap().clone();
    let config = json!({
        "bearerToken": of("/users/0/user/token"),
        "tlsClientConfig": {"caData": of("/clusters/0/cluster/certificate-authority-data")},
    });
    [
        ("name", name.to_owned()),
        ("server", cluster.url()),
        ("config", config.to_string()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cluster_secret_of_argo_cd_is_a_member_or_told_of() {
    let mut world = World::prepare(cluster(Version::V1_34)).await;
    namespace(&world.client, ARGOCD, None).await;
    grant(&world.client, include_str!("../../config/rbac/argocd.yaml")).await;
    world.settings.argocd_namespace = Some(ARGOCD.to_owned());
    world.start_operator();
    let member = cluster(Version::V1_37);
    let there = member.client().unwrap();
    grant(&there, include_str!("../../config/rbac/member.yaml")).await;
    namespace(&there, "shop", Some("web")).await;
    world
        .policy(
            "no-latest",
            "boundary: web, clusters: {selector: {matchLabels: {region: eu}}}, \
             rules: {disallowLatestTag: {}}",
        )
        .await;

    let here = &world.client;
    argocd_secret(here, "cluster-eu-1", "eu", data("eu-1", &member)).await;
    world
        .state("no-latest", "eu-1", ClusterState::Enforced)
        .await;
    refused(&there, "shop", "nginx:latest", Some("no-latest")).await;

    // What can't be used is a member all the same, and says why.
    let mut aws = data("aws", &member);
    aws[2].1 = json!({"awsAuthConfig": {"clusterName": "aws"}}).to_string();
    argocd_secret(here, "cluster-aws", "eu", aws).await;
    let entry = world
        .state("no-latest", "aws", ClusterState::Unreachable)
        .await;
    assert_eq!(entry.reason, "UnsupportedAuth");
    assert!(entry.message.contains("awsAuthConfig"), "{}", entry.message);
    world.member("aws", "UnsupportedAuth").await;

    // A name that is taken is told of there.
    world.join_local("hub").await;
    argocd_secret(here, "cluster-hub", "eu", data("hub", &member)).await;
    event(&world, "MemberCluster", "hub", "NameTaken").await;

    // Its labels are those of the Secret.
    let clusters: Api<MemberCluster> = Api::all(here.clone());
    argocd_secret(here, "cluster-eu-1", "us", data("eu-1", &member)).await;
    eventually("the new label is there", SOON, async || {
        let cluster = clusters.get("eu-1").await.ok()?;
        (cluster.labels().get("region")? == "us").then_some(())
    })
    .await;
    world
        .status("no-latest", "out of scope", |status| {
            !states(status).contains_key("eu-1")
        })
        .await;

    // With its Secret the member goes, and what was there with it, by the credentials that were
    // known.
    argocd_secret(here, "cluster-eu-1", "eu", data("eu-1", &member)).await;
    world
        .state("no-latest", "eu-1", ClusterState::Enforced)
        .await;
    let secrets: Api<Secret> = Api::namespaced(here.clone(), ARGOCD);
    let params = DeleteParams::default();
    secrets.delete("cluster-eu-1", &params).await.unwrap();
    eventually("the member has gone", SOON, async || {
        clusters.get_opt("eu-1").await.ok()?.is_none().then_some(())
    })
    .await;
    event(&world, "MemberCluster", "eu-1", "Removed").await;
    assert_eq!(all_objects(&there).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_leaves_is_left_as_it_asks_or_it_is_told() {
    let world = World::start(Version::V1_34).await;
    let (stays, dead) = (cluster(Version::V1_30), cluster(Version::V1_30));
    let mut names = Vec::new();
    for (name, member) in [("stays", &stays), ("dead", &dead)] {
        namespace(&member.client().unwrap(), "shop", Some("web")).await;
        world.join(name, member).await;
        names.push(name);
    }
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    for name in names {
        world.state("no-latest", name, ClusterState::Enforced).await;
    }

    let clusters: Api<MemberCluster> = Api::all(world.client.clone());
    let retain = json!({"spec": {"deletionPolicy": "Retain"}});
    let params = PatchParams::default();
    let patch = Patch::Merge(&retain);
    clusters.patch("stays", &params, &patch).await.unwrap();
    dead.pause().unwrap();
    world.delete::<MemberCluster>("stays").await;
    world.delete::<MemberCluster>("dead").await;
    // An outage holds nothing up.
    for (name, reason) in [("stays", "Retained"), ("dead", "LeftBehind")] {
        eventually(&format!("{name} has left"), SOON, async || {
            clusters.get_opt(name).await.ok()?.is_none().then_some(())
        })
        .await;
        event(&world, "MemberCluster", name, reason).await;
    }
    let there = stays.client().unwrap();
    assert_eq!(objects(&there).await, ["web.boundarypolicy.dev"]);
    refused(&there, "shop", "nginx:latest", Some("no-latest")).await;
    dead.resume().unwrap();
    assert_eq!(
        objects(&dead.client().unwrap()).await,
        ["web.boundarypolicy.dev"]
    );
}
