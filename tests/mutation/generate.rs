//! Pods with everything that the rules look at, in all the ways to write it.

use fastrand::Rng;
use serde_json::{Value, json};

const IMAGES: &[&str] = &[
    "nginx",
    "nginx:latest",
    "nginx:1.27",
    "registry:5000/team/api",
    "registry:5000/team/api:2",
    "nginx@sha256:0123456789012345678901234567890123456789012345678901234567890123",
    "nginx:latest@sha256:0123456789012345678901234567890123456789012345678901234567890123",
];
const CPU: &[&str] = &["100m", "0.1", "1", ".5", "1500m", "2e-1", "0", "50000000n"];
const MEMORY: &[&str] = &[
    "128Mi",
    "0.25Gi",
    "1e8",
    "134217728",
    "100M",
    "131072Ki",
    "200Mi",
    "1Gi",
    "128974848000m",
    "0",
    "209715200",
    "1.5Gi",
    "100e6",
    "0.1G",
    "123456789",
];
const STORAGE: &[&str] = &[
    "500Mi",
    "1Gi",
    "2Gi",
    "2048Mi",
    "3G",
    "3221225472",
    "0.5Ti",
    "2147483648",
];

fn pick<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.usize(..of.len())]
}

fn resources(rng: &mut Rng, with_storage: bool) -> Value {
    let mut resources = json!({});
    for part in ["requests", "limits"] {
        if rng.u8(..3) == 0 {
            continue;
        }
        for (resource, amounts) in [
            ("cpu", CPU),
            ("memory", MEMORY),
            ("ephemeral-storage", STORAGE),
        ] {
            if rng.bool() && (with_storage || resource != "ephemeral-storage") {
                let amount = pick(rng, amounts);
                // Whole numbers may be written as numbers too.
                resources[part][resource] = match amount.parse::<i64>() {
                    Ok(number) if rng.bool() => json!(number),
                    _ => json!(amount),
                };
            }
        }
    }
    resources
}

fn container(rng: &mut Rng, name: &str) -> Value {
    let mut container = json!({"name": name, "image": pick(rng, IMAGES)});
    if rng.bool() {
        container["imagePullPolicy"] = json!(pick(rng, &["Always", "IfNotPresent", "Never"]));
    }
    match rng.u8(..6) {
        0 => {}
        1 => container["resources"] = json!({}),
        2 => container["resources"] = json!({"requests": {}, "limits": {}}),
        _ => container["resources"] = resources(rng, true),
    }
    if rng.u8(..8) == 0 {
        container["env"] = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    }
    container
}

/// A Pod. Not each is valid.
pub(crate) fn pod(rng: &mut Rng) -> Value {
    let containers: Vec<_> = (0..rng.usize(1..5))
        .map(|n| container(rng, &format!("c{n}")))
        .collect();
    let mut init: Vec<_> = (0..rng.usize(..4))
        .map(|n| container(rng, &format!("i{n}")))
        .collect();
    for container in &mut init {
        if rng.bool() {
            container["restartPolicy"] = json!("Always");
        }
    }
    let mut spec = json!({"containers": containers});
    if !init.is_empty() {
        spec["initContainers"] = json!(init);
    }
    if rng.u8(..4) == 0 {
        spec["resources"] = resources(rng, false);
    }
    if rng.u8(..3) == 0 {
        let mut volumes = vec![json!({"name": "tmp", "emptyDir": {}})];
        for n in 0..rng.usize(..3) {
            let mut image = json!({"reference": pick(rng, IMAGES)});
            if rng.bool() {
                image["pullPolicy"] = json!(pick(rng, &["Always", "IfNotPresent", "Never"]));
            }
            volumes.push(json!({"name": format!("v{n}"), "image": image}));
        }
        spec["volumes"] = json!(volumes);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}
