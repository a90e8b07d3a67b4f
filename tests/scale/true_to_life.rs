//! A simulated cluster and a real one are asked the same.

use std::time::Duration;

use boundary_operator::api::ClusterState;
use boundary_operator::controller::Settings;
use boundary_operator::fleet::kubeconfig;
use control_plane::{Version, eventually};
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::hub::{SOON, World, cluster, refusal};
use crate::simulator;

const OBJECT: &str = "web.boundarypolicy.dev";

/// Waits until both answer the same, and that is a refusal or not.
async fn both(clients: &[Client; 2], refused: bool, when: &str) {
    let what = format!("both refuse ({refused}) {when}");
    let [real, simulated] = eventually(&what, SOON, async || {
        let [real, simulated] = clients;
        let answers = [
            refusal(real, "tenant", "nginx:latest").await,
            refusal(simulated, "tenant", "nginx:latest").await,
        ];
        let as_meant = answers.iter().all(|answer| answer.is_some() == refused);
        as_meant.then_some(answers)
    })
    .await;
    assert_eq!(real, simulated, "{when}");
}

async fn change_binding(
    clients: &[Client; 2],
    change: impl Fn(&mut ValidatingAdmissionPolicyBinding),
) {
    for client in clients {
        let api: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
        let mut binding = api.get(OBJECT).await.unwrap();
        change(&mut binding);
        let params = PostParams::default();
        api.replace(OBJECT, &params, &binding).await.unwrap();
    }
}

async fn change_policy(clients: &[Client; 2], change: impl Fn(&mut ValidatingAdmissionPolicy)) {
    for client in clients {
        let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        let mut policy = api.get(OBJECT).await.unwrap();
        change(&mut policy);
        let params = PostParams::default();
        api.replace(OBJECT, &params, &policy).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_cluster_answers_as_a_real_one() {
    let fleet = simulator::Fleet::start(simulator::Settings {
        clusters: 1,
        delay: Duration::from_millis(400),
        namespaces: (0, 0),
    })
    .await
    .unwrap();
    let member = &fleet.clusters()[0];
    let by = fleet.kubeconfig(member);
    let config = kubeconfig::load(by.as_bytes()).await.unwrap();
    let mut real = cluster(Version::V1_34);
    let often = |settings: &mut Settings| {
        settings.proof.interval = Duration::from_secs(2);
        settings.proof.timeout = Duration::from_secs(3);
    };
    let mut world = World::start_with(Version::V1_34, often).await;
    let clients = [real.client().unwrap(), Client::try_from(config).unwrap()];
    for client in &clients {
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": "tenant", "labels": {"boundarypolicy.dev/boundary": "web"}},
        }))
        .unwrap();
        let api: Api<Namespace> = Api::all(client.clone());
        api.create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }
    both(&clients, false, "without a policy").await;

    world.join("real", &real).await;
    world.join_by("simulated", &by).await;
    world
        .policy(
            "strict",
            "boundary: web, rules: {disallowLatestTag: {}, allowedRegistries: {registries: [ghcr.io/acme]}}",
        )
        .await;
    world
        .policy(
            "gentle",
            "boundary: web, action: Warn, rules: {requiredLabels: {labels: {team: web}}}",
        )
        .await;
    for policy in ["strict", "gentle"] {
        for cluster in ["real", "simulated"] {
            let entry = world.state(policy, cluster, ClusterState::Enforced).await;
            assert_eq!(entry.reason, "Proven");
        }
    }
    both(&clients, true, "with the policy").await;

    // Behind the back of an operator that does not run.
    world.stop_operator().await;
    change_binding(&clients, |binding| {
        let spec = &mut binding.spec;
        let rules: Vec<NamedRuleWithOperations> = serde_json::from_value(json!([{
            "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"],
        }]))
        .unwrap();
        let resources = spec.match_resources.as_mut().unwrap();
        resources.exclude_resource_rules = Some(rules);
    })
    .await;
    both(&clients, false, "with an inert binding").await;
    change_binding(&clients, |binding| {
        let spec = &mut binding.spec;
        spec.match_resources
            .as_mut()
            .unwrap()
            .exclude_resource_rules = None;
        spec.validation_actions = vec!["Audit".to_owned()];
    })
    .await;
    both(&clients, false, "with a binding that only audits").await;
    change_binding(&clients, |binding| {
        binding.spec.validation_actions = vec!["Deny".to_owned()];
    })
    .await;
    both(&clients, true, "with the binding as it was").await;
    change_policy(&clients, |policy| {
        policy.spec.as_mut().unwrap().match_conditions = Some(vec![MatchCondition {
            name: "off".to_owned(),
            expression: "false".to_owned(),
        }]);
    })
    .await;
    both(&clients, false, "with a condition that never holds").await;

    // The operator puts it right.
    world.start_operator();
    both(&clients, true, "with the operator running again").await;

    // An API server that stores everything and acts on nothing.
    let off = "--disable-admission-plugins=ServiceAccount,ValidatingAdmissionPolicy";
    real.restart_with([off]).unwrap();
    member.blind(true);
    let mut reasons = Vec::new();
    for cluster in ["real", "simulated"] {
        let state = world.state("strict", cluster, ClusterState::NotEnforced);
        reasons.push(state.await.reason);
    }
    assert_eq!(reasons, ["NotActing"; 2]);
    world.stop_operator().await;
}
