//! The service account of the chart suffices, and every rule of its roles is needed.

use std::collections::BTreeSet;

use boundary_operator::api::{BoundaryPolicy, ClusterState, ClusterStatus, MemberCluster};
use control_plane::{Version, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::audit::Audited;
use crate::grants::{Grant, Roles};
use crate::plans::{Portal, VALUES, apply_example, valkey};
use crate::world::{
    Contexts, NAMESPACE, Operator, SOON, apply, install_with, plane, refusal, token,
};

const SHOP: &str = "apiVersion: v1\nkind: Namespace\n\
    metadata: {name: shop, labels: {boundarypolicy.dev/boundary: web}}";
const LABELS: &str = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
    metadata: {name: owned}\nspec: {boundary: web, rules: {requiredLabels: {labels: {team: web}}}}";
const REGISTRIES: &str = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
    metadata: {name: trusted}\n\
    spec: {boundary: web, rules: {allowedRegistries: {registries: [ghcr.io/acme]}}}";
const DEFAULTS: &str = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
    metadata: {name: defaults}\nspec: {boundary: web, rules: {alwaysPullImages: {}}}";
const HUB: &str = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: MemberCluster\n\
    metadata: {name: hub}\nspec: {local: {}}";

/// Waits until the policy is in that state in the cluster.
async fn state(hub: &Client, policy: &str, cluster: &str, state: ClusterState) -> ClusterStatus {
    let api: Api<BoundaryPolicy> = Api::all(hub.clone());
    let what = format!("{policy} is {state} in {cluster}");
    eventually(&what, SOON, async || {
        let status = api.get(policy).await.ok()?.status?;
        let mut clusters = status.clusters.into_iter();
        clusters.find(|entry| entry.name == cluster && entry.state == state)
    })
    .await
}

/// What the operator was refused must be nothing.
fn nothing_was_refused(audited: &mut Audited) {
    let requests = audited.requests();
    assert!(requests.len() > 20, "{}", requests.len());
    let refused: Vec<_> = requests.iter().filter(|r| r.is_forbidden()).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_account_alone_enforces_two_policies_and_tells_of_an_old_cluster() {
    let old = std::thread::spawn(|| plane(Version::V1_29));
    let mut hub = Audited::start(Version::V1_34);
    let old = old.join().unwrap();
    let new = plane(Version::V1_37);
    install_with(&hub.plane, &[]);
    let client = hub.plane.client().unwrap();
    let operator = Operator::start(&hub.plane, &[]).await;
    let contexts = Contexts::new(&[("hub", &hub.plane), ("new", &new), ("old", &old)]);
    for (plane, context, name) in [(&new, "new", "eu-new"), (&old, "old", "eu-old")] {
        apply(&plane.client().unwrap(), SHOP).await;
        contexts.fine(&["register", context, "--name", name]);
    }
    apply(&client, LABELS).await;
    apply(&client, REGISTRIES).await;
    for policy in ["owned", "trusted"] {
        state(&client, policy, "eu-new", ClusterState::Enforced).await;
        let entry = state(&client, policy, "eu-old", ClusterState::Unsupported).await;
        assert!(entry.message.contains("v1.29"), "{}", entry.message);
        assert_eq!(entry.version.as_deref(), Some("v1.29.15"));
    }
    let refused = refusal(&new.client().unwrap(), "shop", "nginx:1.27").await;
    let refused = refused.unwrap();
    for sentence in [
        "Policy 'owned' (RequiredLabels) requires label team=web, found <unset>.",
        "Policy 'trusted' (AllowedRegistries) denied image nginx:1.27: it is not under ghcr.io/acme.",
    ] {
        assert!(refused.contains(sentence), "{refused}");
    }
    let there = refusal(&old.client().unwrap(), "shop", "nginx:1.27").await;
    assert_eq!(there, None, "nothing is enforced before 1.30");
    let shown = contexts.boundary(&["status"]);
    assert_eq!(shown.status, Some(1), "{}", shown.output);
    assert!(shown.output.contains("Unsupported"), "{}", shown.output);
    assert!(!operator.log().contains("forbidden"), "{}", operator.log());
    nothing_was_refused(&mut hub);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_account_alone_answers_for_compute_plans_and_has_them_refused() {
    let mut hub = Audited::start(Version::V1_37);
    let client = hub.plane.client().unwrap();
    install_with(&hub.plane, &VALUES);
    let portal = Portal::new(&client).await;
    apply(&client, SHOP).await;
    apply_example(&client, "crds.yaml").await;
    apply_example(&client, "types.yaml").await;
    apply_example(&client, "policy.yaml").await;
    let operator = Operator::start(&hub.plane, &[]).await;
    let contexts = Contexts::new(&[("hub", &hub.plane)]);
    contexts.fine(&["register", "--local", "--name", "hub"]);

    // Over TLS, with a token for the audience in the values.
    let refused = eventually("it refuses", SOON, async || {
        let reply = portal.ask(&operator, "medium").await.ok()?;
        (reply.status == 422).then_some(reply)
    })
    .await;
    assert_eq!(refused.code(), "compute_plan_not_allowed");
    let message = "Compute plan 'medium' is not allowed in this boundary: a boundary policy \
                   disallows it. Allowed plans: small.";
    assert_eq!(refused.detail(), message);
    assert_eq!(portal.ask(&operator, "small").await.unwrap().status, 200);
    let other = token(&client, "default", "portal", &[]).await;
    let reply = portal.ask_as(&operator, &other, "small").await.unwrap();
    assert_eq!(reply.status, 401, "a token for another audience");

    // At admission.
    for policy in ["modest-plans", "small-valkeys"] {
        state(&client, policy, "hub", ClusterState::Installed).await;
    }
    let (code, refused) = valkey(&client, "medium").await.unwrap_err();
    assert_eq!(code, 422, "{refused}");
    assert!(refused.contains(message), "{refused}");
    valkey(&client, "small").await.unwrap();
    nothing_was_refused(&mut hub);
}

/// A hub that is its own member, with the chart's roles.
struct World {
    hub: Audited,
    client: Client,
    portal: Portal,
    roles: Roles,
}

impl World {
    async fn start() -> Self {
        let hub = Audited::start(Version::V1_37);
        let client = hub.plane.client().unwrap();
        install_with(&hub.plane, &VALUES);
        apply(&client, SHOP).await;
        apply_example(&client, "types.yaml").await;
        Self {
            portal: Portal::new(&client).await,
            roles: Roles::installed(&client).await,
            client,
            hub,
        }
    }

    async fn operator(&self) -> Operator {
        Operator::start(&self.hub.plane, &[]).await
    }

    /// Takes away what makes the operator write, so that it has to again.
    async fn clear(&self) {
        let policies: Api<BoundaryPolicy> = Api::all(self.client.clone());
        let members: Api<MemberCluster> = Api::all(self.client.clone());
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = ListParams::default();
        for policy in policies.list(&all).await.unwrap() {
            let name = policy.name_any();
            let deleted = policies.delete(&name, &DeleteParams::default()).await;
            deleted.unwrap();
        }
        let free: Patch<Value> = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for member in members.list(&all).await.unwrap() {
            let name = member.name_any();
            let params = PatchParams::default();
            members.patch(&name, &params, &free).await.unwrap();
            members
                .delete(&name, &DeleteParams::default())
                .await
                .unwrap();
        }
        let lease = DeleteParams::default();
        let _ = leases.delete("boundary-operator", &lease).await;
    }
}

/// Goes through everything that the operator does on a hub that is its own member.
async fn everything_once(world: &World, operator: &Operator) {
    let client = &world.client;
    for policy in [LABELS, DEFAULTS, HUB] {
        apply(client, policy).await;
    }
    state(client, "owned", "hub", ClusterState::Enforced).await;
    eventually("the API about compute plans answers", SOON, async || {
        let reply = world.portal.ask(operator, "large").await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await;
    // A change.
    let more = LABELS.replace("{team: web}", "{team: shop}");
    apply(client, &more).await;
    eventually("the change is enforced", SOON, async || {
        let refused = refusal(client, "shop", "nginx:1").await?;
        refused.contains("team=shop").then_some(())
    })
    .await;
    // One that is stored and can't be read.
    loosen(client, true).await;
    let bad = json!({"apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
                     "metadata": {"name": "bad"}, "spec": {"boundary": 5}});
    apply(client, &bad.to_string()).await;
    eventually("it is told", SOON, async || {
        operator.log().contains("can't be read").then_some(())
    })
    .await;
    let policies: Api<BoundaryPolicy> = Api::all(client.clone());
    policies
        .delete("bad", &DeleteParams::default())
        .await
        .unwrap();
    loosen(client, false).await;
    let members: Api<MemberCluster> = Api::all(client.clone());
    members
        .delete("hub", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the member is let go", SOON, async || {
        members
            .get_opt("hub")
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

/// Lets anything be stored as a policy, or not.
async fn loosen(client: &Client, loose: bool) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = "boundarypolicies.boundarypolicy.dev";
    let mut schema = json!({"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    if !loose {
        let crds = boundary_operator::api::crds();
        let crd = crds.iter().find(|crd| crd.name_any() == name).unwrap();
        schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
    }
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/schema", "value": schema}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    let params = PatchParams::default();
    api.patch(name, &params, &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_of_the_roles_is_used_and_nothing_else_is_asked_for() {
    let mut world = World::start().await;
    let operator = world.operator().await;
    everything_once(&world, &operator).await;
    let mut requests = world.hub.requests();
    eventually("the Lease is renewed", SOON, async || {
        requests.extend(world.hub.requests());
        let mut requests = requests.iter();
        let renewed = requests.any(|r| r.verb == "update" && r.object_ref.resource == "leases");
        renewed.then_some(())
    })
    .await;
    let refused: Vec<_> = requests.iter().filter(|r| r.is_forbidden()).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let used = |grant: &Grant| {
        let mut requests = requests.iter();
        requests.any(|request| request.is_allowed() && grant.is_for(request))
    };
    let grants = world.roles.grants(|_| true);
    assert!(grants.len() > 30, "{grants:?}");
    let unused: BTreeSet<_> = grants
        .iter()
        .filter(|grant| !used(grant))
        .map(ToString::to_string)
        .collect();
    // No request is made for the first: the guard on the label asks whether it is there.
    let unasked = ["assign boundaries", "create namespaces"].map(ToOwned::to_owned);
    assert_eq!(unused, unasked.into());
}

/// Whether a role of that name is for the hub, and not for a member.
fn is_for_hub(role: &str) -> bool {
    !role.ends_with("-member") && !role.ends_with("-probe")
}

/// Each rule for the hub is taken away alone: the operator is refused, and says what it can't do.
#[tokio::test(flavor = "multi_thread")]
async fn without_any_one_rule_for_the_hub_the_operator_says_what_it_lacks() {
    let mut world = World::start().await;
    let grants = world.roles.grants(is_for_hub);
    assert!(grants.len() >= 15, "{grants:?}");
    for grant in grants {
        // Looked at only where a stored policy can't be read; the test before this one does.
        if (grant.verb.as_str(), grant.resource.as_str()) == ("get", "boundarypolicies") {
            continue;
        }
        world.clear().await;
        world.roles.without(&grant).await;
        world.hub.requests();
        let operator = world.operator().await;
        for object in [LABELS, HUB] {
            apply(&world.client, object).await;
        }
        let told = format!("cannot {} resource \"{}\"", grant.verb, grant.resource);
        let mut refused = false;
        eventually(&format!("{grant} is missed"), SOON, async || {
            let _ = world.portal.ask(&operator, "large").await;
            let mut requests = world.hub.requests().into_iter();
            refused |= requests.any(|request| request.is_forbidden() && grant.is_for(&request));
            (refused && operator.log().replace('\\', "").contains(&told)).then_some(())
        })
        .await;
        println!("without {grant}: the operator is refused and says so");
        drop(operator);
        world.roles.whole(&grant).await;
    }
}

/// Each rule for a member is taken away alone: the member is Forbidden, and the rule is named.
#[tokio::test(flavor = "multi_thread")]
async fn without_any_one_rule_for_a_member_it_is_forbidden_and_the_rule_is_named() {
    let world = World::start().await;
    let _operator = world.operator().await;
    for object in [LABELS, HUB] {
        apply(&world.client, object).await;
    }
    state(&world.client, "owned", "hub", ClusterState::Enforced).await;
    let grants = world.roles.grants(|role| !is_for_hub(role));
    assert!(grants.len() >= 15, "{grants:?}");
    for grant in grants {
        world.roles.without(&grant).await;
        let named = grant.to_string();
        eventually(&format!("{named} is missed"), SOON, async || {
            let entry = state(&world.client, "owned", "hub", ClusterState::Forbidden).await;
            entry.message.contains(&named).then_some(())
        })
        .await;
        println!("without {named}: the member is Forbidden and it is named");
        world.roles.whole(&grant).await;
    }
    state(&world.client, "owned", "hub", ClusterState::Enforced).await;
}
