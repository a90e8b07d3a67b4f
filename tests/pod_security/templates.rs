//! Workloads are refused at their own creation, and debug containers are checked.

use control_plane::Version;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Asked, Cluster, Verdict, verdict};

/// The workload of `kind` with the template `template`.
fn workload(kind: &str, template: &Value) -> Value {
    let mut template = template.clone();
    template["metadata"]["labels"] = json!({"app": "web"});
    let selector = json!({"matchLabels": {"app": "web"}});
    if matches!(kind, "Job" | "CronJob") {
        template["spec"]["restartPolicy"] = json!("Never");
    }
    let (api_version, spec) = match kind {
        "Job" => ("batch/v1", json!({"template": template})),
        "CronJob" => (
            "batch/v1",
            json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}),
        ),
        "StatefulSet" => (
            "apps/v1",
            json!({"selector": selector, "serviceName": "web", "template": template}),
        ),
        _ => (
            "apps/v1",
            json!({"selector": selector, "template": template}),
        ),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec})
}

#[rstest::rstest]
#[case(Version::V1_30)]
#[case(Version::V1_37)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads(#[case] version: Version) {
    let cluster = Cluster::start(version).await;
    // A version of its own, since other tests make the usual ones on the same control plane.
    let asked = Asked {
        level: "baseline",
        version: Some("v1.29"),
    };
    cluster.enforce(asked).await;
    let namespace = asked.rule_namespace();
    let breaking = json!({
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/web": "unconfined"}},
        "spec": {
            "hostPID": true,
            "containers": [{"name": "web", "image": "i", "securityContext": {"privileged": true}}],
        },
    });
    let keeping = json!({"spec": {"containers": [{"name": "web", "image": "i"}]}});
    let start = "Policy 'baseline-v1-29' (PodSecurity) denied";
    let expected = format!(
        "{start} hostPID: true is not allowed. \
         {start} securityContext.privileged of container web: true is not allowed. \
         {start} securityContext.appArmorProfile.type of container web: Unconfined, here or in the annotation, \
         is not allowed, only RuntimeDefault or Localhost."
    );
    for kind in [
        "Deployment",
        "ReplicaSet",
        "StatefulSet",
        "DaemonSet",
        "Job",
        "CronJob",
    ] {
        let object = workload(kind, &breaking);
        let denied = Verdict::Denied(expected.clone());
        assert_eq!(cluster.create(&namespace, &object).await, denied, "{kind}");
        let object = workload(kind, &keeping);
        assert_eq!(
            cluster.create(&namespace, &object).await,
            Verdict::Admitted,
            "{kind}"
        );
    }
}

#[rstest::rstest]
#[case(Version::V1_30)]
#[case(Version::V1_37)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debug_containers(#[case] version: Version) {
    let cluster = Cluster::start(version).await;
    let asked = Asked {
        level: "restricted",
        version: Some("v1.29"),
    };
    cluster.enforce(asked).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &asked.rule_namespace());
    let context = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "debugged"},
        "spec": {"containers": [{"name": "web", "image": "i", "securityContext": context}]},
    }))
    .unwrap();
    let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let add = async |context: Value| {
        let mut pod = serde_json::to_value(&pod).unwrap();
        pod["spec"]["ephemeralContainers"] =
            json!([{"name": "shell", "image": "i", "securityContext": context}]);
        let request = http::Request::put(format!(
            "/api/v1/namespaces/{}/pods/debugged/ephemeralcontainers?dryRun=All",
            asked.rule_namespace()
        ))
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&pod).unwrap())
        .unwrap();
        verdict(cluster.client().request::<Value>(request).await)
    };
    assert!(add(context.clone()).await.is_ok());
    let mut root = context;
    root["capabilities"]["add"] = json!(["SYS_PTRACE"]);
    assert_eq!(
        add(root).await.unwrap_err(),
        Verdict::Denied(
            "Policy 'restricted-v1-29' (PodSecurity) denied securityContext.capabilities.add of \
             container shell: SYS_PTRACE may not be added, only NET_BIND_SERVICE."
                .to_owned()
        )
    );
}
