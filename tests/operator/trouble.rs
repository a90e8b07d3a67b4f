//! What goes wrong in one place and must stay there.

use boundary_operator::api::{BoundaryPolicy, ClusterState, MemberCluster};
use control_plane::{Version, eventually};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{
    NOBODY, SOON, World, cluster, condition, dynamic, loosen, namespace, object, objects, refused,
};

#[tokio::test(flavor = "multi_thread")]
#[expect(
    clippy::too_many_lines,
    reason = "the steps share control planes, which take seconds to start"
)]
async fn trouble_stays_where_it_is() {
    let world = World::start(Version::V1_37).await;
    let member = cluster(Version::V1_30);
    let (here, there) = (world.client.clone(), member.client().unwrap());
    namespace(&here, "shop", Some("web")).await;
    world.join_local("hub").await;
    world.join("eu-1", &member).await;
    world
        .policy("first", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    world.state("first", "eu-1", ClusterState::Enforced).await;

    // A name that is taken is not overwritten.
    let taken: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": "db.boundarypolicy.dev"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["configmaps"],
            }]},
            "validations": [{"expression": "true"}],
        },
    }))
    .unwrap();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(there.clone());
    let taken = policies
        .create(&PostParams::default(), &taken)
        .await
        .unwrap();
    world
        .policy("db", "boundary: db, rules: {disallowLatestTag: {}}")
        .await;
    world.state("db", "hub", ClusterState::Enforced).await;
    let entry = world.state("db", "eu-1", ClusterState::NotEnforced).await;
    assert_eq!(entry.reason, "NameTaken");
    let still = policies.get("db.boundarypolicy.dev").await.unwrap();
    assert_eq!(
        still.metadata.resource_version,
        taken.metadata.resource_version
    );

    // What someone changes is put back.
    let off = json!({"spec": {"matchConditions": [{"name": "off", "expression": "false"}]}});
    let name = "web.boundarypolicy.dev";
    policies
        .patch(name, &PatchParams::default(), &Patch::Merge(&off))
        .await
        .unwrap();
    eventually("the change is undone", SOON, async || {
        let conditions = policies.get(name).await.ok()?.spec?.match_conditions?;
        conditions
            .iter()
            .all(|condition| condition.name != "off")
            .then_some(())
    })
    .await;

    // A kubeconfig that is refused says why, and takes effect once it is mended.
    let bad = member
        .kubeconfig()
        .replace("https://", "http://example.org/");
    world.join_by("broken", &bad).await;
    let status = world.member("broken", "InvalidKubeconfig").await;
    let message = &status.conditions[0].message;
    assert!(
        message.contains("server must begin with https://"),
        "{message}"
    );
    world.kubeconfig("broken", &world.hub.kubeconfig()).await;
    // It is a cluster that another leads to already, which keeps it.
    let status = world.member("broken", "DuplicateCluster").await;
    let ready = status
        .conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .unwrap();
    assert!(
        ready.message.contains("MemberCluster hub"),
        "{}",
        ready.message
    );
    world.delete::<MemberCluster>("broken").await;

    // A permission that is missing is named.
    let barred = member.kubeconfig_for(NOBODY).unwrap();
    world.join_by("barred", &barred).await;
    let entry = world
        .state("first", "barred", ClusterState::Forbidden)
        .await;
    let named = "list validatingadmissionpolicies,";
    assert!(entry.message.contains(named), "{}", entry.message);
    world.delete::<MemberCluster>("barred").await;

    // Policies that can't be read stop no other, and say so: in their status where the API server
    // lets it be changed, else in an Event.
    loosen(&here, true).await;
    let malformed = |name: &str, spec: Value| {
        object(json!({
            "apiVersion": "boundarypolicy.dev/v1alpha1",
            "kind": "BoundaryPolicy",
            "metadata": {"name": name},
            "spec": spec,
        }))
    };
    let stalled = malformed(
        "malformed",
        json!({"boundary": "web", "action": 5, "rules": {}}),
    );
    let silent = malformed("silent", json!({"boundary": 5, "rules": []}));
    for policy in [stalled, silent] {
        eventually("the loose schema is in force", SOON, async || {
            let api = dynamic(&here);
            api.create(&PostParams::default(), &policy).await.ok()
        })
        .await;
    }
    loosen(&here, false).await;
    eventually("the malformed policy is stalled", SOON, async || {
        let stored = dynamic(&here).get("malformed").await.ok()?;
        let conditions = stored.data.get("status")?.get("conditions")?;
        let mut conditions = conditions.as_array()?.iter();
        let stalled = conditions.find(|c| c["type"] == "Stalled")?;
        (stalled["status"] == "True" && stalled["reason"] == "InvalidPolicy").then_some(())
    })
    .await;
    eventually("an Event tells of the other", SOON, async || {
        let api: Api<Event> = Api::namespaced(here.clone(), "default");
        let events = api.list(&ListParams::default()).await.ok()?;
        events.into_iter().find(|event| {
            let regarding = event.regarding.as_ref();
            regarding.and_then(|object| object.name.as_deref()) == Some("silent")
                && event.reason.as_deref() == Some("InvalidPolicy")
        })
    })
    .await;
    let settled = dynamic(&here).get("malformed").await.unwrap();
    let settled = settled.metadata.resource_version;
    world
        .policy("second", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    world.state("second", "eu-1", ClusterState::Enforced).await;

    // A cluster that does not answer delays no other.
    member.pause().unwrap();
    world
        .policy(
            "third",
            "boundary: web, clusters: {names: [hub, eu-1]}, \
                           rules: {allowedRegistries: {registries: [ghcr.io/acme]}}",
        )
        .await;
    world.state("third", "hub", ClusterState::Enforced).await;
    refused(&here, "shop", "nginx:1", Some("third")).await;
    let entry = world
        .state("first", "eu-1", ClusterState::Unreachable)
        .await;
    assert_eq!(entry.generation, Some(1));
    assert!(
        entry.message.starts_with("no contact since 20"),
        "{}",
        entry.message
    );
    let status = world
        .status("third", "told", |s| {
            condition(s, "Ready").1 == "Unreachable"
        })
        .await;
    assert_eq!(status.summary.unwrap().enforced_of, "1/2");

    // A policy can be deleted meanwhile; what is left is removed when the cluster answers again.
    world.delete::<BoundaryPolicy>("first").await;
    world.delete::<BoundaryPolicy>("second").await;
    member.resume().unwrap();
    world.state("third", "eu-1", ClusterState::Enforced).await;
    eventually("the leftovers are removed", SOON, async || {
        let object = policies.get("web.boundarypolicy.dev").await.ok()?;
        let inside = object
            .metadata
            .annotations?
            .remove("boundarypolicy.dev/policies")?;
        (inside == r#"{"third":1}"#).then_some(())
    })
    .await;
    assert!(
        objects(&there)
            .await
            .contains(&"db.boundarypolicy.dev".to_owned())
    );
    let now = dynamic(&here)
        .get("malformed")
        .await
        .unwrap()
        .metadata
        .resource_version;
    assert_eq!(now, settled);
}
