//! Pods of a size at which a rule could cost the API server more than it allows.

use boundary_operator::rules::Rules;
use control_plane::Version;
use serde_json::{Value, json};

use crate::cluster::{Asked, Cluster, Verdict};

/// As many containers as rules are promised to hold for.
const CONTAINERS: usize = 250;

/// What a Pod of a request of 3 MB, the most that an API server takes, can have.
const MOST_CONTAINERS: usize = 1_000;

/// A Pod of which every container breaks every check that a container can, with long values.
fn breaking(containers: usize) -> Value {
    let long = "x".repeat(200);
    let handler = |kind: &str| json!({kind: {"host": long, "port": 80}});
    let container = |n: usize| {
        json!({
            "name": format!("{n}-{}", "n".repeat(58)), "image": "i",
            "ports": [{"containerPort": 1000 + n, "hostPort": 1000 + n}],
            "livenessProbe": handler("httpGet"),
            "readinessProbe": handler("tcpSocket"),
            "startupProbe": handler("httpGet"),
            "lifecycle": {"postStart": handler("httpGet"), "preStop": handler("tcpSocket")},
            "securityContext": {
                "privileged": true,
                "runAsNonRoot": false,
                "runAsUser": 0,
                "capabilities": {"add": [long, "SYS_ADMIN"]},
                "seLinuxOptions": {"type": long, "user": long, "role": long},
                "seccompProfile": {"type": "Unconfined"},
                "appArmorProfile": {"type": "Unconfined"},
            },
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large"},
        "spec": {
            "hostPID": true,
            "containers": (0..containers).map(container).collect::<Vec<_>>(),
        },
    })
}

/// A Pod that keeps every check, with all that is looked at.
fn keeping(containers: usize) -> Value {
    let handler = json!({"httpGet": {"port": 80}});
    let container = |n: usize| {
        json!({
            "name": format!("c{n}"), "image": "i",
            "ports": [{"containerPort": 1000 + n}],
            "livenessProbe": handler, "readinessProbe": handler, "startupProbe": handler,
            "lifecycle": {"postStart": handler, "preStop": handler},
            "securityContext": {
                "privileged": false, "allowPrivilegeEscalation": false,
                "runAsNonRoot": true, "runAsUser": 1000,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                "seLinuxOptions": {"type": "container_t"},
                "seccompProfile": {"type": "RuntimeDefault"},
                "appArmorProfile": {"type": "RuntimeDefault"},
            },
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large"},
        "spec": {"containers": (0..containers).map(container).collect::<Vec<_>>()},
    })
}

#[rstest::rstest]
#[case(Version::V1_30)]
#[case(Version::V1_37)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_containers(#[case] version: Version) {
    let cluster = Cluster::start(version).await;
    let asked = Asked {
        level: "restricted",
        version: Some("v1.35"),
    };
    cluster.enforce(asked).await;
    let namespace = asked.rule_namespace();
    let admitted = cluster.create(&namespace, &keeping(MOST_CONTAINERS)).await;
    assert_eq!(admitted, Verdict::Admitted);
    let message = denied(cluster.create(&namespace, &breaking(MOST_CONTAINERS)).await);
    let start = "Policy 'restricted-v1-35' (PodSecurity) denied hostPID";
    assert!(message.starts_with(start), "{message}");
    assert!(message.ends_with(" more."), "{message}");
}

fn denied(verdict: Verdict) -> String {
    match verdict {
        Verdict::Denied(message) => message,
        other => panic!("{other:?}"),
    }
}

/// As many policies as go into one object, and more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_policies() {
    let cluster = Cluster::start(Version::V1_30).await;
    let rules = |n: usize| -> Rules {
        let level = ["baseline", "restricted"][n % 2];
        let version = format!("v1.{}", 18 + n % 13);
        let rule = json!({
            "podSecurity": {"level": level, "version": version},
            "disallowControlPlaneTolerations": {},
        });
        serde_json::from_value(rule).unwrap()
    };
    let objects = cluster
        .enforce_all("many", (0..120).map(rules).collect())
        .await;
    assert!(objects > 1, "{objects}");
    let mut keeping = keeping(CONTAINERS);
    assert_eq!(
        cluster.create("rule-many", &keeping).await,
        Verdict::Admitted
    );
    keeping["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let message = denied(cluster.create("rule-many", &keeping).await);
    assert!(
        message.contains("(DisallowControlPlaneTolerations) denied toleration *: "),
        "{message}"
    );
    let message = denied(cluster.create("rule-many", &breaking(CONTAINERS)).await);
    assert!(message.ends_with(" more."), "{message}");
}
