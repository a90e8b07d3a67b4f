//! A cluster that is too old, and that heals by itself.

use boundary_operator::api::ClusterState;
use control_plane::{ControlPlane, Version, eventually};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};

use crate::world::{OPERATOR, SOON, World, condition, namespace, objects, refused};

const BETA: &str = "admissionregistration.k8s.io/v1beta1=true";

#[tokio::test(flavor = "multi_thread")]
async fn an_old_cluster_is_told_of_and_enforces_once_it_is_upgraded() {
    let world = World::start(Version::V1_34).await;
    // It serves admission policies, but not in v1.
    let old = ControlPlane::builder(Version::V1_29)
        .user(OPERATOR, &[])
        .feature_gate("ValidatingAdmissionPolicy", true)
        .runtime_config(BETA);
    let mut old = old.start().unwrap();
    namespace(&old.client().unwrap(), "shop", Some("web")).await;
    world.join("eu-old", &old).await;
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;

    let entry = world
        .state("no-latest", "eu-old", ClusterState::Unsupported)
        .await;
    assert_eq!(entry.reason, "KubernetesTooOld");
    assert_eq!(entry.version.as_deref(), Some("v1.29.15"));
    assert_eq!(
        entry.message,
        "Kubernetes v1.29.15 does not serve ValidatingAdmissionPolicy v1, which needs 1.30 or \
         later: nothing is enforced"
    );
    assert_eq!(entry.namespaces, Some(1));
    let status = world.status("no-latest", "counted", |_| true).await;
    let summary = status.summary.as_ref().unwrap();
    assert_eq!(summary.enforced_of, "0/1");
    assert_eq!(summary.not_enforced_in, "eu-old (Kubernetes v1.29.15)");
    let (ready, reason, _) = condition(&status, "Ready");
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "Unsupported"));
    world.member("eu-old", "KubernetesTooOld").await;

    eventually("an Event tells of it", SOON, async || {
        let api: Api<Event> = Api::namespaced(world.client.clone(), "default");
        let events = api.list(&ListParams::default()).await.ok()?;
        events.into_iter().find(|event| {
            let regarding = event
                .regarding
                .as_ref()
                .and_then(|object| object.name.as_deref());
            regarding == Some("no-latest")
                && event.reason.as_deref() == Some("Unsupported")
                && event
                    .note
                    .as_ref()
                    .is_some_and(|note| note.contains("v1.29.15"))
        })
    })
    .await;

    for resource in [
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        let path = format!("/apis/admissionregistration.k8s.io/v1beta1/{resource}");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let list: serde_json::Value = old.client().unwrap().request(request).await.unwrap();
        assert_eq!(list["items"], serde_json::json!([]), "{resource}");
    }

    old.restart_as(Version::V1_30).unwrap();
    let client = old.client().unwrap();
    let entry = world
        .state("no-latest", "eu-old", ClusterState::Enforced)
        .await;
    assert_eq!(entry.version.as_deref(), Some("v1.30.14"));
    assert_eq!(objects(&client).await, ["web.boundarypolicy.dev"]);
    refused(&client, "shop", "nginx:latest", Some("no-latest")).await;
    let status = world
        .status("no-latest", "ready", |s| condition(s, "Ready").0 == "True")
        .await;
    assert_eq!(status.summary.unwrap().not_enforced_in, "");
}
