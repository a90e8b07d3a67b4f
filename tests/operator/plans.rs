//! Compute plans at admission, put into clusters by the operator.

use boundary_operator::api::{BoundaryPolicy, ClusterState, ComputeResourceType};
use control_plane::{Version, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;

use crate::world::{
    SOON, World, apply, cluster, condition, namespace, object, objects, states, yaml,
};

const OBJECT: &str = "web.boundarypolicy.dev.compute-plans";

/// Why a Valkey with this plan is refused, if it is. Nothing is stored.
async fn refusal(client: &Client, plan: &str) -> Option<String> {
    let kind = GroupVersionKind::gvk("platform.example.com", "v1", "Valkey");
    let resource = ApiResource::from_gvk_with_plural(&kind, "valkeys");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "shop", &resource);
    let valkey = object(json!({
        "apiVersion": "platform.example.com/v1", "kind": "Valkey",
        "metadata": {"name": "cache"}, "spec": {"plan": plan},
    }));
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&params, &valkey).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) if status.code == 422 => Some(status.message),
        Err(error) => panic!("{error}"),
    }
}

async fn refused(client: &Client, plan: &str, end: Option<&str>) {
    eventually(&format!("{plan}: {end:?}"), SOON, async || {
        match (refusal(client, plan).await, end) {
            (None, None) => Some(()),
            (Some(message), Some(end)) => message.ends_with(end).then_some(()),
            _ => None,
        }
    })
    .await;
}

fn of(name: &str, spec: &str) -> ComputeResourceType {
    yaml(&format!(
        "apiVersion: boundarypolicy.dev/v1alpha1\nkind: ComputeResourceType\n\
         metadata: {{name: {name}}}\nspec: {{{spec}}}"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn compute_plans_are_checked_in_every_cluster_of_the_boundary() {
    let mut world = World::start(Version::V1_37).await;
    let member = cluster(Version::V1_30);
    let there = member.client().unwrap();
    let crds = include_str!("../../examples/compute-plans/crds.yaml");
    let crd: CustomResourceDefinition = crds
        .split("\n---\n")
        .map(yaml::<CustomResourceDefinition>)
        .find(|crd| crd.spec.names.kind == "Valkey")
        .unwrap();
    apply(&there, &crd).await;
    namespace(&there, "shop", Some("web")).await;
    world.join("eu-1", &member).await;
    apply(
        &world.client,
        &of("valkey", "plans: [{name: small}, {name: large}]"),
    )
    .await;

    // Nothing is checked in clusters as long as the type has no objects there.
    let plans = "boundary: web, clusters: {names: [elsewhere]}, \
                 rules: {allowedComputePlans: {plans: [small, tiny]}}";
    world.policy("plans", plans).await;
    world.start_operator();
    let status = world
        .status("plans", "there is nothing to check", |s| {
            condition(s, "Ready").1 == "NothingAtAdmission"
        })
        .await;
    assert_eq!(status.clusters, []);
    let (holds, reason, message) = condition(&status, "PlansKnown");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "UnknownPlans"));
    assert!(
        message.contains("no ComputeResourceType has a plan tiny"),
        "{message}"
    );

    // The cluster scope does not count.
    let targets = "plans: [{name: small}, {name: large}], targets: [{group: platform.example.com, \
                   versions: ['*'], resource: valkeys, kind: Valkey, planFields: [{path: spec.plan}]}]";
    apply(&world.client, &of("valkey", targets)).await;
    let entry = world.state("plans", "eu-1", ClusterState::Installed).await;
    assert_eq!(
        (entry.reason.as_str(), entry.generation),
        ("NotTried", Some(1))
    );
    assert_eq!(objects(&there).await, [OBJECT]);
    refused(&there, "small", None).await;
    refused(
        &there,
        "large",
        Some("Compute plan 'large' is not allowed in this boundary: a boundary policy disallows it. Allowed plans: small."),
    )
    .await;

    // A rule about Pods in the same policy keeps to its scope, and a change of the types is a change.
    let both = "boundary: web, clusters: {names: [elsewhere]}, \
                rules: {disallowLatestTag: {}, allowedComputePlans: {plans: [small, large]}}";
    world.policy("plans", both).await;
    let status = world
        .status("plans", "all plans are known", |s| {
            condition(s, "PlansKnown").0 == "True"
        })
        .await;
    assert_eq!(states(&status).into_keys().collect::<Vec<_>>(), ["eu-1"]);
    refused(&there, "large", None).await;
    let more = targets.replace("{name: large}", "{name: huge}, {name: large}");
    apply(&world.client, &of("valkey", &more)).await;
    refused(&there, "huge", Some("Allowed plans: small, large.")).await;
    assert_eq!(objects(&there).await, [OBJECT]);

    world.delete::<BoundaryPolicy>("plans").await;
    refused(&there, "huge", None).await;
    eventually("nothing is left", SOON, async || {
        objects(&there).await.is_empty().then_some(())
    })
    .await;
    world.stop_operator().await;
}
