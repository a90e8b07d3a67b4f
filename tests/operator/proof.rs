//! "Enforced" is said only after the API server was seen to refuse.

use std::collections::BTreeMap;
use std::time::Duration;

use boundary_operator::api::{BoundaryPolicy, BoundaryPolicyStatus, ClusterState};
use control_plane::{ControlPlane, Version};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use serde_json::{Value, json};

use crate::world::{OPERATOR, World, cluster, namespace, refusal, states};

const VERSIONS: [(&str, Version); 3] = [
    ("k130", Version::V1_30),
    ("k134", Version::V1_34),
    ("k137", Version::V1_37),
];

/// Deny, Warn and Audit; more policies in a boundary than a message has sentences; every rule; and
/// an exemption that covers the operator itself.
#[tokio::test(flavor = "multi_thread")]
async fn deny_and_warn_are_proven_on_every_version() {
    let world = World::start(Version::V1_34).await;
    let members: Vec<_> = VERSIONS
        .map(|(name, version)| (name, cluster(version)))
        .into();
    for (name, member) in &members {
        world.join(name, member).await;
    }
    let rules = "rules: {requiredLabels: {labels: {team: web}}, \
                 allowedRegistries: {registries: [ghcr.io/acme]}, disallowLatestTag: {}}";
    for number in 0..10 {
        world
            .policy(
                &format!("deny-{number}"),
                &format!("boundary: web, {rules}"),
            )
            .await;
    }
    world
        .policy("warn", &format!("boundary: web, action: Warn, {rules}"))
        .await;
    world
        .policy(
            "warn-other",
            &format!("boundary: Other_1, action: Warn, {rules}"),
        )
        .await;
    world
        .policy("audit", &format!("boundary: web, action: Audit, {rules}"))
        .await;
    let exempt = "exemptions: [{reason: all, rules: [DisallowLatestTag], users: [operator]}]";
    world
        .policy("exempt", &format!("boundary: db, {rules}, {exempt}"))
        .await;

    let mut expected: BTreeMap<String, (ClusterState, &str)> = (0..10)
        .map(|number| (format!("deny-{number}"), (ClusterState::Enforced, "Proven")))
        .collect();
    expected.insert("warn".to_owned(), (ClusterState::Enforced, "Proven"));
    expected.insert("warn-other".to_owned(), (ClusterState::Enforced, "Proven"));
    expected.insert("audit".to_owned(), (ClusterState::Installed, "Audit"));
    expected.insert(
        "exempt".to_owned(),
        (ClusterState::Installed, "ProbeExempt"),
    );
    for (policy, (state, reason)) in expected {
        for (cluster, _) in &members {
            let entry = world.state(&policy, cluster, state).await;
            assert_eq!(entry.reason, reason, "{policy} in {cluster}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_proving_nothing_is_called_enforced() {
    let world = World::start_with(Version::V1_34, |settings| settings.proof.enabled = false).await;
    world.join_local("hub").await;
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    let entry = world
        .state("no-latest", "hub", ClusterState::Installed)
        .await;
    assert_eq!(entry.reason, "ProvingOff");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_whose_plugin_is_off_is_not_enforcing() {
    let world = World::start_with(Version::V1_34, |settings| {
        settings.proof.timeout = Duration::from_secs(3);
        settings.proof.interval = Duration::from_secs(2);
    })
    .await;
    let mut blind = cluster(Version::V1_34);
    let off = "--disable-admission-plugins=ServiceAccount,ValidatingAdmissionPolicy";
    blind.restart_with([off]).unwrap();
    world.join("blind", &blind).await;
    for action in ["Deny", "Warn"] {
        let spec = format!("boundary: web, action: {action}, rules: {{disallowLatestTag: {{}}}}");
        world.policy(&action.to_lowercase(), &spec).await;
    }
    for policy in ["deny", "warn"] {
        let entry = world
            .state(policy, "blind", ClusterState::NotEnforced)
            .await;
        assert_eq!(entry.reason, "NotActing");
        assert!(
            entry.message.contains("without a word"),
            "{}",
            entry.message
        );
    }
    // And it heals by itself.
    blind.restart_with([] as [&str; 0]).unwrap();
    world.state("deny", "blind", ClusterState::Enforced).await;
    world.state("warn", "blind", ClusterState::Enforced).await;
}

/// What stands in the way of the probe is not taken for a policy that does not act.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_of_the_probe_is_named() {
    let world = World::start_with(Version::V1_34, |settings| {
        settings.proof.timeout = Duration::from_secs(2);
        settings.proof.interval = Duration::from_secs(2);
    })
    .await;
    let rewriting = cluster(Version::V1_37);
    world.join("rewriting", &rewriting).await;
    let limited = cluster(Version::V1_34);
    world.join("limited", &limited).await;
    let spec = "boundary: web, rules: {disallowLatestTag: {}}";
    world.policy("no-latest", spec).await;
    for cluster in ["rewriting", "limited"] {
        world
            .state("no-latest", cluster, ClusterState::Enforced)
            .await;
    }

    // Something that rewrites images.
    let client = rewriting.client().unwrap();
    let rewrite = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "rewrite"},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"],
            }]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
                "[JSONPatch{op: 'replace', path: '/spec/containers/0/image', value: 'mirror.example/nginx:1'}]"}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "rewrite"},
        "spec": {"policyName": "rewrite"},
    });
    create(&client, None, &rewrite).await;
    create(&client, None, &binding).await;
    let entry = world
        .state("no-latest", "rewriting", ClusterState::Pending)
        .await;
    assert_eq!(entry.reason, "ProbeBlocked");
    assert!(
        entry.message.contains("something changed the Pod"),
        "{}",
        entry.message
    );

    // Limits that no probe keeps.
    let client = limited.client().unwrap();
    let probe = Some("boundary-operator-probe");
    let limits = json!({
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "limits"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "1Mi"}, "min": {"memory": "2Ki"}},
                            {"type": "Pod", "min": {"example.com/x": "1"}}]},
    });
    create(&client, probe, &limits).await;
    let entry = world
        .state("no-latest", "limited", ClusterState::Pending)
        .await;
    assert_eq!(entry.reason, "ProbeBlocked");
    assert!(entry.message.contains("example.com/x"), "{}", entry.message);
}

/// A webhook that refuses every Pod; a quota is no obstacle, since it is looked at last.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_refuses_every_pod_is_named_and_a_quota_is_no_obstacle() {
    let world = World::start_with(Version::V1_34, |settings| {
        settings.proof.timeout = Duration::from_secs(2);
        settings.proof.interval = Duration::from_secs(2);
    })
    .await;
    world.join_local("hub").await;
    let spec = "boundary: web, rules: {disallowLatestTag: {}}";
    world.policy("no-latest", spec).await;
    world.policy("warn", &format!("action: Warn, {spec}")).await;
    world
        .state("no-latest", "hub", ClusterState::Enforced)
        .await;
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0", "requests.cpu": "0"}},
    });
    create(&world.client, Some("boundary-operator-probe"), &quota).await;
    world.policy("another", &spec.replace("web", "db")).await;
    world.state("another", "hub", ClusterState::Enforced).await;
    world
        .policy(
            "warn-other",
            &format!("action: Warn, {}", spec.replace("web", "db")),
        )
        .await;
    world
        .state("warn-other", "hub", ClusterState::Enforced)
        .await;

    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "gone"},
        "webhooks": [{
            "name": "gone.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                       "resources": ["pods"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
        }],
    });
    create(&world.client, None, &webhook).await;
    let entry = world.state("no-latest", "hub", ClusterState::Pending).await;
    assert_eq!(entry.reason, "ProbeBlocked");
    assert!(
        entry.message.contains("gone.example.com"),
        "{}",
        entry.message
    );
}

/// Each generation that is called enforced is one that the API server acts on by then.
#[tokio::test(flavor = "multi_thread")]
async fn no_generation_is_called_enforced_before_the_api_server_acts_on_it() {
    let world = World::start(Version::V1_34).await;
    let member: ControlPlane = cluster(Version::V1_34);
    let there = member.client().unwrap();
    world.join("eu-1", &member).await;
    namespace(&there, "shop", Some("web")).await;
    let spec = |number: usize| {
        format!("boundary: web, rules: {{requiredLabels: {{labels: {{number: \"{number}\"}}}}}}")
    };
    world.policy("numbered", &spec(1)).await;
    world
        .state("numbered", "eu-1", ClusterState::Enforced)
        .await;

    let api: Api<BoundaryPolicy> = Api::all(world.client.clone());
    let mut changes = watcher(api, watcher::Config::default()).boxed();
    let client = there.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let observer = tokio::spawn(async move {
        let mut enforced = 0;
        loop {
            let event = tokio::select! {
                event = changes.try_next() => event.unwrap().unwrap(),
                _ = &mut stopped => return enforced,
            };
            let watcher::Event::Apply(policy) = event else {
                continue;
            };
            let status: BoundaryPolicyStatus = policy.status.unwrap_or_default();
            let entry = status.clusters.first();
            let Some(entry) = entry.filter(|e| e.state == ClusterState::Enforced) else {
                continue;
            };
            let said = entry.generation.unwrap();
            let text = refusal(&client, "shop", "nginx:1").await.unwrap();
            let acted = text.split("number=").nth(1).unwrap();
            let acted: i64 = acted.split(',').next().unwrap().parse().unwrap();
            assert!(
                acted >= said,
                "generation {said} was called enforced: {text}"
            );
            enforced += 1;
        }
    });
    for number in 2..=200 {
        world.policy("numbered", &spec(number)).await;
        // Let some be proven, and overtake others.
        if number % 10 == 0 {
            world
                .state("numbered", "eu-1", ClusterState::Enforced)
                .await;
        }
    }
    let status = world
        .status("numbered", "the last is enforced", |status| {
            let last = status
                .clusters
                .first()
                .is_some_and(|c| c.generation == Some(200));
            last && states(status)["eu-1"] == ClusterState::Enforced
        })
        .await;
    assert_eq!(status.observed_generation, Some(200));
    stop.send(()).unwrap();
    let enforced = observer.await.unwrap();
    assert!(enforced >= 19, "{enforced} generations were seen enforced");
}

async fn create(client: &kube::Client, namespace: Option<&str>, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &object).await.unwrap();
}

#[test]
fn the_user_of_the_exemption_is_the_operator() {
    assert_eq!(OPERATOR, "operator");
}
