//! What is changed offline against what an API server changes.

use std::collections::BTreeMap;

use boundary_operator::api::BoundaryPolicy;
use control_plane::Version;
use fastrand::Rng;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::boundary::{Offline, reporting, seed};
use crate::generate::pod;
use crate::server::Server;
use crate::servers::acting;

/// What rules look at in a Pod, with amounts in one unit.
pub(crate) fn seen(pod: &Value) -> BTreeMap<String, String> {
    let spec = &pod["spec"];
    let mut seen = BTreeMap::new();
    resources(&mut seen, "pod", &spec["resources"]);
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap();
            let policy = container["imagePullPolicy"].to_string();
            seen.insert(format!("{name} imagePullPolicy"), policy);
            resources(&mut seen, name, &container["resources"]);
        }
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        if let Some(image) = volume.get("image") {
            seen.insert(volume["name"].to_string(), image["pullPolicy"].to_string());
        }
    }
    seen
}

fn resources(seen: &mut BTreeMap<String, String>, of: &str, resources: &Value) {
    for part in ["requests", "limits"] {
        for (resource, amount) in resources[part].as_object().into_iter().flatten() {
            let text = amount
                .as_str()
                .map_or_else(|| amount.to_string(), str::to_owned);
            seen.insert(format!("{of} {part}.{resource}"), billionths(&text));
        }
    }
}

/// An amount in billionths, worked out by its digits.
fn billionths(text: &str) -> String {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale: i128 = match suffix {
        "" => 1_000_000_000,
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "k" => 1_000_000_000_000,
        "M" => 1_000_000_000_000_000,
        "G" => 1_000_000_000_000_000_000,
        "Ki" => 1024 * 1_000_000_000,
        "Mi" => 1024 * 1024 * 1_000_000_000,
        "Gi" => 1024 * 1024 * 1024 * 1_000_000_000,
        "Ti" => 1024 * 1024 * 1024 * 1024 * 1_000_000_000,
        exponent => 10_i128.pow((9 + exponent[1..].parse::<i32>().unwrap()).unsigned_abs()),
    };
    let digits: i128 = format!("{whole}{fraction}").parse().unwrap();
    let divisor = 10_i128.pow(u32::try_from(fraction.len()).unwrap());
    let product = digits * scale;
    (product / divisor + i128::from(product % divisor != 0)).to_string()
}

/// Both Pods are the same, as far as rules look at them.
#[track_caller]
pub(crate) fn same(offline: &Value, online: &Value) {
    assert_eq!(seen(offline), seen(online), "{offline:#}");
}

/// Pods of each boundary.
const PODS: usize = 700;

fn boundaries() -> Vec<(&'static str, Vec<BoundaryPolicy>)> {
    let of = |boundary: &str, name: &str, rules: Value| reporting(name, boundary, &rules);
    let memory = json!({"memoryLimitEqualsRequest": {}});
    let defaults = |requests: Value, limits: Value| json!({"defaultResources": {"requests": requests, "limits": limits}});
    let mut exempt = of(
        "parity-many",
        "a",
        defaults(json!({"cpu": "2"}), json!({"memory": "2Gi"})),
    );
    exempt.spec.exemptions = serde_json::from_value(json!([{
        "reason": "builds", "rules": ["DefaultResources"], "namespaces": ["parity-many"],
    }]))
    .unwrap();
    vec![
        ("parity-seed", vec![of("parity-seed", "seed", seed())]),
        ("parity-memory", vec![of("parity-memory", "memory", memory)]),
        (
            "parity-limits",
            vec![of(
                "parity-limits",
                "limits",
                defaults(
                    json!({"cpu": "0.25"}),
                    json!({"memory": "0.2Gi", "ephemeral-storage": "1e9"}),
                ),
            )],
        ),
        (
            "parity-many",
            vec![
                exempt,
                of(
                    "parity-many",
                    "b",
                    defaults(
                        json!({"cpu": "50m", "memory": "1e8"}),
                        json!({"memory": "100M"}),
                    ),
                ),
                of(
                    "parity-many",
                    "c",
                    json!({"alwaysPullImages": {}, "memoryLimitEqualsRequest": {}}),
                ),
            ],
        ),
    ]
}

#[tokio::test]
async fn offline_and_the_api_server_agree() {
    let server = &Server::of(Version::V1_37).await;
    server.namespace("parity-unchanged", None).await;
    let (mut compared, mut refused, mut invalid) = (0, 0, 0);
    for (boundary, policies) in boundaries() {
        server.enforce(boundary, &acting(server, &policies)).await;
        let mut offline = Offline::new(&policies, boundary);
        offline.namespace = boundary;
        let mut rng = Rng::with_seed(7);
        let pods: Vec<_> = (0..PODS).map(|_| pod(&mut rng)).collect();
        let answers = stream::iter(&pods)
            .map(|pod| server.create(boundary, pod))
            .buffered(16)
            .collect::<Vec<_>>()
            .await;
        for (pod, answer) in pods.iter().zip(answers) {
            let mutated = offline.mutate(pod);
            let messages = offline.judge(&mutated);
            if answer.status.is_success() {
                compared += 1;
                assert_eq!(messages, [""; 0], "{pod}");
                assert_eq!(offline.mutate(&mutated), mutated, "twice is once");
                same(&mutated, &answer.body);
            } else if answer.denied() {
                refused += 1;
                assert_eq!(messages, [answer.refusal().unwrap()], "{pod}");
            } else {
                assert_eq!(answer.status, 422, "{answer:?}");
                // The Pod itself is to blame, and not what it was changed to.
                let unchanged = server.create("parity-unchanged", pod).await;
                assert_eq!(unchanged.status, 422, "{pod} {}", answer.body["message"]);
                invalid += 1;
            }
        }
    }
    println!("{compared} Pods changed alike, {refused} refused alike, {invalid} not valid");
    assert!(compared >= 2_000, "{compared}");
}
