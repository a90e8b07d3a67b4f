//! What others do to the operator's objects is seen and undone.

use std::time::Duration;

use boundary_operator::api::ClusterState;
use control_plane::{Version, eventually};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::{SOON, World, namespace, refused};

const OBJECT: &str = "web.boundarypolicy.dev";

#[tokio::test(flavor = "multi_thread")]
async fn what_another_does_to_an_object_is_undone_and_told() {
    // Seen by watch alone.
    let world = World::start_with(Version::V1_34, |settings| {
        settings.resync_interval = Duration::from_hours(1);
        settings.proof.interval = Duration::from_hours(1);
    })
    .await;
    let client = world.client.clone();
    namespace(&client, "shop", Some("web")).await;
    world.join_local("hub").await;
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    world
        .state("no-latest", "hub", ClusterState::Enforced)
        .await;

    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let policy = policies.get(OBJECT).await.unwrap().spec;
    let binding = bindings.get(OBJECT).await.unwrap().spec;
    let rule = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
                       "resources": ["pods"]}]);
    let selector = json!({"matchLabels": {"no": "one"}});
    let changes: [(&str, bool, Value); 6] = [
        (
            "a match condition",
            true,
            json!({"matchConditions": [{"name": "off", "expression": "false"}]}),
        ),
        (
            "an excluded resource",
            true,
            json!({"matchConstraints": {"excludeResourceRules": rule}}),
        ),
        (
            "a selector of objects",
            true,
            json!({"matchConstraints": {"objectSelector": selector}}),
        ),
        (
            "another action",
            false,
            json!({"validationActions": ["Audit"]}),
        ),
        (
            "a selector in the binding",
            false,
            json!({"matchResources": {"objectSelector": selector}}),
        ),
        (
            "an exclusion in the binding",
            false,
            json!({"matchResources": {"excludeResourceRules": rule}}),
        ),
    ];
    let params = PatchParams::default();
    let mut told = 0;
    for (what, on_policy, spec) in changes {
        let patch = Patch::Merge(json!({"spec": spec}));
        if on_policy {
            policies.patch(OBJECT, &params, &patch).await.unwrap();
        } else {
            bindings.patch(OBJECT, &params, &patch).await.unwrap();
        }
        eventually(&format!("{what} is undone"), SOON, async || {
            let undone = policies.get(OBJECT).await.ok()?.spec == policy
                && bindings.get(OBJECT).await.ok()?.spec == binding;
            undone.then_some(())
        })
        .await;
        told += 1;
        wait_for_events(&world, told).await;
    }

    // Something that is not ours may stand beside what is ours.
    let metadata = Patch::Merge(json!({"metadata": {"labels": {"theirs": "1"}}}));
    policies.patch(OBJECT, &params, &metadata).await.unwrap();

    let delete = DeleteParams::default();
    bindings.delete(OBJECT, &delete).await.unwrap();
    eventually("the binding is back", SOON, async || {
        bindings.get(OBJECT).await.ok()
    })
    .await;
    wait_for_events(&world, told + 1).await;
    policies.delete(OBJECT, &delete).await.unwrap();
    eventually("the policy is back", SOON, async || {
        policies.get(OBJECT).await.ok()
    })
    .await;
    wait_for_events(&world, told + 2).await;
    world
        .state("no-latest", "hub", ClusterState::Enforced)
        .await;
    refused(&client, "shop", "nginx:latest", Some("no-latest")).await;

    // Who takes the label away takes the object: it is left alone and reported.
    let label = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    policies
        .patch(OBJECT, &params, &Patch::Merge(label))
        .await
        .unwrap();
    let entry = world
        .state("no-latest", "hub", ClusterState::NotEnforced)
        .await;
    assert_eq!(entry.reason, "NameTaken");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_namespace_is_made_again() {
    let world = World::start_with(Version::V1_37, |settings| {
        settings.proof.interval = Duration::from_secs(2);
    })
    .await;
    let client = world.client.clone();
    world.join_local("hub").await;
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    world
        .state("no-latest", "hub", ClusterState::Enforced)
        .await;
    let namespaces: Api<Namespace> = Api::all(client);
    let probe = "boundary-operator-probe";
    let before = namespaces.get(probe).await.unwrap().metadata.uid;
    namespaces
        .delete(probe, &DeleteParams::default())
        .await
        .unwrap();
    // As kube-controller-manager does.
    let mut terminating = namespaces.get(probe).await.unwrap();
    terminating.spec.as_mut().unwrap().finalizers = Some(Vec::new());
    let body = serde_json::to_vec(&terminating).unwrap();
    let request = http::Request::put(format!("/api/v1/namespaces/{probe}/finalize"))
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    world.client.request::<Value>(request).await.unwrap();
    eventually("the probe namespace is back", SOON, async || {
        let namespace = namespaces.get(probe).await.ok()?;
        (namespace.metadata.uid != before).then_some(())
    })
    .await;
    world
        .state("no-latest", "hub", ClusterState::Enforced)
        .await;
}

/// Waits until so many repairs were told.
async fn wait_for_events(world: &World, count: usize) {
    eventually(&format!("{count} repairs are told"), SOON, async || {
        let api: Api<Event> = Api::namespaced(world.client.clone(), "default");
        let events = api.list(&ListParams::default()).await.ok()?;
        let told = events.iter().filter(|event| {
            event.reason.as_deref() == Some("DriftRepaired")
                && event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some("no-latest")
                && event
                    .note
                    .as_ref()
                    .is_some_and(|note| note.contains(OBJECT))
        });
        (told.count() >= count).then_some(())
    })
    .await;
}
