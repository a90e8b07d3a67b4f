//! What the API server fills in, as far as a rule sees it.

use serde_json::{Value, json};

use crate::rules::Quantity;

/// The defaults of a Pod that rules look at. Source: `SetDefaults_Pod`, `SetDefaults_Container` and
/// `SetDefaults_Volume` of k8s.io/kubernetes.
pub(super) fn default_pod(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let Some(container) = container.as_object_mut() else {
                continue;
            };
            default_pull_policy(container, "image", "imagePullPolicy");
            let resources = container.entry("resources").or_insert_with(|| json!({}));
            if resources.is_null() {
                *resources = json!({});
            }
            default_requests(resources);
        }
    }
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
            default_pull_policy(image, "reference", "pullPolicy");
        }
    }
}

/// Without a policy, an image that is tagged `latest` or not at all is always pulled.
fn default_pull_policy(fields: &mut serde_json::Map<String, Value>, image: &str, policy: &str) {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    if !text(policy).is_empty() {
        return;
    }
    let image = text(image);
    let (name, digest) = image
        .split_once('@')
        .map_or((image, false), |(name, _)| (name, true));
    let last = name.rsplit('/').next().unwrap_or_default();
    let latest = last
        .split_once(':')
        .map_or(!digest, |(_, tag)| tag == "latest");
    let default = if latest { "Always" } else { "IfNotPresent" };
    fields.insert(policy.to_owned(), default.into());
}

/// Where there is a limit and no request, the request is the limit.
fn default_requests(resources: &mut Value) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
        return;
    };
    let Some(resources) = resources.as_object_mut() else {
        return;
    };
    let requests = resources.entry("requests").or_insert(Value::Null);
    if requests.is_null() {
        *requests = json!({});
    }
    if let Some(requests) = requests.as_object_mut() {
        for (resource, limit) in limits {
            requests.entry(resource).or_insert(limit);
        }
        if requests.is_empty() {
            resources.remove("requests");
        }
    }
}

/// What the API server fills in for a Pod as a whole, after it was changed and before it is judged,
/// where that has requests or limits. Source: `DefaultPodLevelResources` of k8s.io/kubernetes 1.37;
/// before, requests were filled in before a Pod is changed, and limits not at all.
pub(super) fn default_pod_level(pod: &mut Value) {
    let Some(spec) = pod.get("spec").and_then(Value::as_object) else {
        return;
    };
    let part = |name: &str| {
        let part = spec
            .get("resources")
            .and_then(|resources| resources.get(name));
        part.and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (mut requests, mut limits) = (part("requests"), part("limits"));
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    for resource in ["cpu", "memory"] {
        if let Some(amount) = together(spec, "requests", resource) {
            let amount = || Value::from(amount.to_string());
            requests.entry(resource).or_insert_with(amount);
        }
    }
    for (resource, limit) in &limits {
        requests.entry(resource).or_insert_with(|| limit.clone());
    }
    for resource in ["cpu", "memory"] {
        let limited = |container: &Value| container["resources"]["limits"].get(resource).is_some();
        let request = requests.get(resource).and_then(quantity);
        if let Some(request) = request
            && !limits.contains_key(resource)
            && containers(spec).all(limited)
            && let Some(amount) = together(spec, "limits", resource)
        {
            let limit = amount.max(request).to_string();
            limits.insert(resource.to_owned(), limit.into());
        }
    }
    let resources = &mut pod["spec"]["resources"];
    resources["requests"] = requests.into();
    if !limits.is_empty() {
        resources["limits"] = limits.into();
    }
}

/// Containers and init containers.
fn containers(spec: &serde_json::Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = ["containers", "initContainers"].into_iter();
    lists
        .filter_map(|list| spec.get(list).and_then(Value::as_array))
        .flatten()
}

fn quantity(amount: &Value) -> Option<Quantity> {
    let text = amount
        .as_str()
        .map_or_else(|| amount.to_string(), str::to_owned);
    text.parse().ok()
}

/// What the containers of a Pod have of a resource together: the containers and sidecars, or an init
/// container with the sidecars before it, whichever is more. None where none has any.
fn together(spec: &serde_json::Map<String, Value>, part: &str, resource: &str) -> Option<Quantity> {
    let list = |name: &str| {
        spec.get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let amount =
        |container: &Value| quantity(container.get("resources")?.get(part)?.get(resource)?);
    let sum = |sum: Option<Quantity>, more: Option<Quantity>| match (sum, more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (sum, more) => sum.or(more),
    };
    let mut running = list("containers").map(amount).fold(None, sum);
    let (mut sidecars, mut starting) = (None, None);
    for container in list("initContainers") {
        let own = amount(container);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            running = sum(running, own);
            sidecars = sum(sidecars, own);
            starting = starting.max(sidecars);
        } else {
            starting = starting.max(sum(sidecars, own));
        }
    }
    running.max(starting)
}
