//! Objects of every kind that is checked.

use boundary_operator::evaluate::Kind;
use serde_json::{Value, json};

/// A Pod with one container.
pub(crate) fn pod(name: &str, image: &str) -> Value {
    workload(Kind::Pod, name, image)
}

/// An object of `kind` that runs one container.
pub(crate) fn workload(kind: Kind, name: &str, image: &str) -> Value {
    with_pod_spec(kind, name, &containers([image]))
}

/// A pod spec with a container for each image.
pub(crate) fn containers<'i>(images: impl IntoIterator<Item = &'i str>) -> Value {
    let containers = images.into_iter().enumerate();
    let container = |(n, image)| json!({"name": format!("c{n}"), "image": image});
    json!({"containers": containers.map(container).collect::<Vec<_>>()})
}

/// An object of `kind` with this pod spec.
pub(crate) fn with_pod_spec(kind: Kind, name: &str, pod_spec: &Value) -> Value {
    let mut pod_spec = pod_spec.clone();
    if matches!(kind, Kind::Job | Kind::CronJob) {
        pod_spec["restartPolicy"] = json!("Never");
    }
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": pod_spec});
    let selector = json!({"matchLabels": {"app": name}});
    let spec = match kind {
        Kind::Pod => pod_spec,
        Kind::Deployment | Kind::ReplicaSet | Kind::DaemonSet => {
            json!({"selector": selector, "template": template})
        }
        Kind::StatefulSet => {
            json!({"selector": selector, "serviceName": name, "template": template})
        }
        Kind::Job => json!({"template": template}),
        Kind::CronJob => {
            json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}})
        }
    };
    json!({
        "apiVersion": kind.api_version(),
        "kind": kind.as_str(),
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// The pod spec of an object of any kind.
pub(crate) fn pod_spec(object: &mut Value) -> &mut Value {
    let pointer = match Kind::of(object).unwrap() {
        Kind::Pod => "/spec",
        Kind::CronJob => "/spec/jobTemplate/spec/template/spec",
        _ => "/spec/template/spec",
    };
    object.pointer_mut(pointer).unwrap()
}

/// The same object with another image in its first container.
pub(crate) fn with_image(object: &Value, image: &str) -> Value {
    let mut object = object.clone();
    pod_spec(&mut object)["containers"][0]["image"] = json!(image);
    object
}

/// The same object with other labels.
pub(crate) fn with_labels(object: &Value, labels: Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["labels"] = labels;
    object
}
