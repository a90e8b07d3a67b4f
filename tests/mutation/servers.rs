//! Real API servers that change Pods, and some that don't.

use boundary_operator::api::{Action, BoundaryPolicy, WhenMutationUnsupported};
use boundary_operator::compile::{Compilation, Mutating, MutatingApi, PROBE_NAMESPACE};
use boundary_operator::evaluate::Kind;
use control_plane::{ControlPlane, Version, eventually, shared_with_controller_manager};
use http::Method;
use serde_json::{Value, json};

use crate::boundary::{Offline, compiled, reporting, seed};
use crate::cases::of;
use crate::server::{SOON, Server, collection};
use crate::support::longest_exemptions;
use crate::workload::workload;

/// What `policies` compile to for an API server that acts on mutations.
pub(crate) fn acting(server: &Server, policies: &[BoundaryPolicy]) -> Compilation {
    let (minor, api) = match server.version {
        Version::V1_34 => (34, MutatingApi::V1beta1),
        _ => (37, MutatingApi::V1),
    };
    compiled(policies, minor, Some(api), Mutating::Acting)
}

/// An API server of 1.34 with the gate on.
pub(crate) fn gated(controller_manager: bool) -> ControlPlane {
    let builder = ControlPlane::builder(Version::V1_34)
        .feature_gate("MutatingAdmissionPolicy", true)
        .runtime_config("admissionregistration.k8s.io/v1beta1=true");
    let builder = if controller_manager {
        builder.controller_manager()
    } else {
        builder
    };
    builder.start().unwrap()
}

/// What a Pod with one container `nginx:alpine` and no resources runs with.
fn the_example() -> Value {
    json!({
        "requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
        "limits": {"memory": "200Mi", "ephemeral-storage": "2Gi"},
    })
}

async fn started(plane: impl FnOnce() -> ControlPlane + Send + 'static) -> (ControlPlane, Server) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plane = tokio::task::spawn_blocking(plane).await.unwrap();
    let server = Server::at(&plane);
    (plane, server)
}

/// The examples of the document, and what makes mutations go wrong.
async fn everything(server: &Server) {
    let name = "everything";
    let policies = [reporting("defaults", name, &seed())];
    server.enforce(name, &acting(server, &policies)).await;

    let pod = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let stored = server.create(name, &pod).await.accepted();
    let container = &stored["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["resources"], the_example());

    let memory = json!({"requests": {"memory": "300Mi"}, "limits": {"memory": "500Mi"}});
    let pod =
        of(&json!({"containers": [{"name": "web", "image": "nginx:alpine", "resources": memory}]}));
    let stored = server.create(name, &pod).await.accepted();
    let resources = &stored["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"]["memory"], "300Mi");
    assert_eq!(resources["limits"]["memory"], "300Mi");

    // Odd units, all the ways to write the same.
    for (request, limit, expected) in [
        ("0.5Gi", "512Mi", "512Mi"),
        ("1e9", "1Gi", "1e9"),
        ("128974848", "129M", "128974848"),
        ("128974848000m", "123Mi", "123Mi"),
        ("1048577", "1Mi", "1048577"),
        ("0", "1Gi", "0"),
    ] {
        let memory = json!({"requests": {"memory": request}, "limits": {"memory": limit}});
        let pod = of(
            &json!({"containers": [{"name": "web", "image": "nginx:alpine", "resources": memory}]}),
        );
        let answer = server.create(name, &pod).await;
        let stored = answer.accepted();
        let resources = &stored["spec"]["containers"][0]["resources"];
        let found = resources["limits"]["memory"].as_str().unwrap();
        assert_eq!(found, expected, "{request} {limit}");
    }

    // Two environment variables of one name, and no limit on the number of containers but its own.
    let containers: Vec<_> = (0..300)
        .map(|n| {
            json!({
                "name": format!("c{n}"), "image": "nginx:alpine",
                "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
            })
        })
        .collect();
    let init: Vec<_> = (0..300)
        .map(|n| json!({"name": format!("i{n}"), "image": "busybox:1", "restartPolicy": "Always"}))
        .collect();
    let pod = of(&json!({"containers": containers, "initContainers": init}));
    let stored = server.create(name, &pod).await.accepted();
    for list in ["containers", "initContainers"] {
        let list = stored["spec"][list].as_array().unwrap();
        assert_eq!(list.len(), 300);
        for container in list {
            assert_eq!(container["imagePullPolicy"], "Always");
            assert_eq!(container["resources"], the_example());
        }
    }

    for pod in [
        of(&json!({
            "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            "containers": [{"name": "web", "image": "nginx:alpine"}, {"name": "b", "image": "b:1"}],
        })),
        of(&json!({
            "resources": {"limits": {"cpu": "2"}},
            "containers": [{"name": "web", "image": "nginx:alpine"}, {"name": "b", "image": "b:1"}],
        })),
        of(&json!({
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}},
            "containers": [{"name": "web", "image": "nginx:alpine", "resources": {"limits": {"memory": "1Gi"}}}],
            "initContainers": [{"name": "i", "image": "i:1"}],
        })),
    ] {
        let stored = server.create(name, &pod).await.accepted();
        // What is filled in for a Pod as a whole depends on the version; offline it is the newest.
        if server.version == Version::V1_37 {
            let offline = Offline::new(&policies, name).mutate(&pod);
            crate::parity::same(&offline, &stored);
        }
        for rule in policies[0].spec.rules.names() {
            let stored = serde_json::from_value(stored.clone()).unwrap();
            let kept = policies[0].spec.rules.is_kept_by(rule, &stored);
            assert_eq!(kept, Some(true), "{rule} {pod} {stored:?}");
        }
        // Twice is once.
        let again = of(&stored["spec"]);
        let stored_again = server.create(name, &again).await.accepted();
        assert_eq!(stored_again["spec"], stored["spec"]);
        assert_eq!(
            Offline::new(&policies, name).judge(&of(&stored["spec"])),
            [""; 0]
        );
    }
}

#[tokio::test]
async fn the_examples_on_1_37() {
    everything(&Server::of(Version::V1_37).await).await;
}

#[tokio::test]
async fn the_examples_on_1_34_with_the_gate_on() {
    let (_plane, server) = started(|| gated(false)).await;
    everything(&server).await;
}

/// The namespace of the policies, and the Pod of the example in it, made by a controller.
async fn a_deployment(server: &Server) {
    let name = "deployed";
    let policies = [reporting("defaults", name, &seed())];
    server.enforce(name, &acting(server, &policies)).await;
    let mut deployment = workload(Kind::Deployment, "web", "nginx:alpine");
    deployment["spec"]["template"]["spec"] =
        json!({"containers": [{"name": "web", "image": "nginx:alpine"}]});
    let stored = server.store(name, &deployment).await;
    // It is stored as it was submitted.
    let container = &stored["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    assert_eq!(container["resources"], json!({}));
    let pods = collection(name, Kind::Pod);
    let pod = eventually("the controllers make a Pod", SOON, async || {
        let list = server.admin(Method::GET, &pods, None).await.accepted();
        list["items"].as_array().unwrap().first().cloned()
    })
    .await;
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["resources"], the_example());
}

#[tokio::test]
async fn a_deployment_on_1_37() {
    let start = || shared_with_controller_manager(Version::V1_37);
    let server = Server::at(tokio::task::spawn_blocking(start).await.unwrap());
    a_deployment(&server).await;
}

#[tokio::test]
async fn a_deployment_on_1_34_with_the_gate_on() {
    let (_plane, server) = started(|| gated(true)).await;
    a_deployment(&server).await;
}

#[tokio::test]
async fn a_limit_range_comes_first() {
    let server = Server::of(Version::V1_37).await;
    let name = "limit-range";
    server
        .enforce(
            name,
            &acting(&server, &[reporting("defaults", name, &seed())]),
        )
        .await;
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults"},
        "spec": {"limits": [{
            "type": "Container",
            "default": {"cpu": "500m", "memory": "128Mi"},
            "defaultRequest": {"memory": "64Mi"},
        }]},
    });
    let path = format!("/api/v1/namespaces/{name}/limitranges");
    server
        .admin(Method::POST, &path, Some(&range))
        .await
        .accepted();
    let pod = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let stored = eventually("the API server knows of the LimitRange", SOON, async || {
        let stored = server.create(name, &pod).await.accepted();
        let limits = &stored["spec"]["containers"][0]["resources"]["limits"];
        (limits["cpu"] == "500m").then_some(stored)
    })
    .await;
    assert_eq!(
        stored["spec"]["containers"][0]["resources"],
        json!({
            "requests": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "2Gi"},
        })
    );
}

/// A policy as it is where Pods are not changed.
async fn without_mutation(server: &Server, name: &str, api: Option<MutatingApi>) {
    let minor = server.version.minor();
    let report = reporting("defaults", name, &seed());
    let mut deny = report.clone();
    deny.spec.when_mutation_unsupported = WhenMutationUnsupported::Deny;
    let compiled = |policy| compiled(&[policy], minor, api, Mutating::NotActing);

    let pod = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let reported = compiled(report);
    assert_eq!(reported.objects, []);
    assert_eq!(reported.mutations.len(), usize::from(api.is_some()));
    assert_eq!(reported.not_enforced["defaults"].len(), 3);
    server.namespace(name, Some(name)).await;
    let stored = server.create(name, &pod).await.accepted();
    assert_eq!(stored["spec"]["containers"][0]["resources"], json!({}));

    let denied = compiled(deny);
    assert_eq!(denied.not_enforced.len(), 0);
    server.put(&denied.objects).await;
    server.wait(&denied.objects).await;
    assert_eq!(
        server.create(name, &pod).await.refusal().unwrap(),
        "Policy 'defaults' (AlwaysPullImages) denied container web: set imagePullPolicy to Always. \
         Policy 'defaults' (DefaultResources) denied container web: set resources.requests.cpu. \
         Policy 'defaults' (DefaultResources) denied container web: set resources.requests.ephemeral-storage. \
         Policy 'defaults' (DefaultResources) denied container web: set resources.requests.memory. \
         Policy 'defaults' (DefaultResources) denied container web: set resources.limits.ephemeral-storage."
    );
    let mut conforming = pod;
    let container = &mut conforming["spec"]["containers"][0];
    container["imagePullPolicy"] = json!("Always");
    container["resources"] = the_example();
    server.create(name, &conforming).await.accepted();
    let memory = json!("512Mi");
    conforming["spec"]["containers"][0]["resources"]["limits"]["memory"] = memory;
    assert_eq!(
        server.create(name, &conforming).await.refusal().unwrap(),
        "Policy 'defaults' (MemoryLimitEqualsRequest) denied container web: set \
         resources.limits.memory to resources.requests.memory."
    );
}

#[tokio::test]
async fn not_on_1_30() {
    without_mutation(&Server::of(Version::V1_30).await, "not-on-1-30", None).await;
}

#[tokio::test]
async fn not_on_1_34() {
    without_mutation(&Server::of(Version::V1_34).await, "not-on-1-34", None).await;
}

/// The API is served, the objects are taken, and nothing happens.
async fn served_and_not_acting(server: &Server, api: MutatingApi) {
    let name = "not-acting";
    let policy = reporting("defaults", name, &seed());
    let compiled = compiled(
        &[policy],
        server.version.minor(),
        Some(api),
        Mutating::NotActing,
    );
    let object = &compiled.mutations[0];
    server.put_mutations(&compiled.mutations).await;
    without_mutation(server, name, Some(api)).await;
    server.make_probe_namespace().await;
    server.relabel(PROBE_NAMESPACE, Some(name)).await;
    assert_eq!(server.revision_of(object).await, None);
}

#[tokio::test]
async fn served_by_1_34_with_the_gate_off() {
    let plane = || {
        let builder = ControlPlane::builder(Version::V1_34);
        let builder = builder.runtime_config("admissionregistration.k8s.io/v1beta1=true");
        builder.start().unwrap()
    };
    let (_plane, server) = started(plane).await;
    served_and_not_acting(&server, MutatingApi::V1beta1).await;
}

#[tokio::test]
async fn turned_off_on_1_37() {
    let start = || ControlPlane::builder(Version::V1_37).start().unwrap();
    let (mut plane, server) = started(start).await;
    let name = "turned-off";
    let compiled = acting(&server, &[reporting("defaults", name, &seed())]);
    server.enforce(name, &compiled).await;
    let (plane, server) = tokio::task::spawn_blocking(move || {
        plane
            .restart_with(["--feature-gates=MutatingAdmissionPolicy=false"])
            .unwrap();
        let server = Server::at(&plane);
        (plane, server)
    })
    .await
    .unwrap();
    // Until the operator sees it, what is not changed is refused.
    let pod = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let refusal = eventually("the check acts", SOON, async || {
        server.create(name, &pod).await.refusal()
    })
    .await;
    assert!(refusal.contains("set resources.requests.cpu"));
    drop(plane);
}

#[tokio::test]
async fn policies_that_warn_change_nothing() {
    let server = Server::of(Version::V1_37).await;
    let name = "warning";
    let mut policy = reporting("defaults", name, &json!({"alwaysPullImages": {}}));
    policy.spec.action = Action::Warn;
    server.enforce(name, &acting(&server, &[policy])).await;
    let pod = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let answer = server.create(name, &pod).await;
    assert_eq!(
        answer.warning_messages(),
        [
            "Policy 'defaults' (AlwaysPullImages) denied container web: set imagePullPolicy to Always."
        ]
    );
    let stored = answer.accepted();
    assert_eq!(
        stored["spec"]["containers"][0]["imagePullPolicy"],
        "IfNotPresent"
    );
}

#[tokio::test]
async fn pods_that_were_there_before_and_pods_that_are_resized() {
    let server = Server::of(Version::V1_37).await;
    let name = "later";
    server.namespace(name, None).await;
    let old = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let mut old = server.store(name, &old).await;
    let policies = [reporting("defaults", name, &seed())];
    let compiled = acting(&server, &policies);
    server.mutate(&compiled.mutations).await;
    server.put(&compiled.objects).await;
    server.wait(&compiled.objects).await;
    server.relabel(name, Some(name)).await;
    let new = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}, "spec": {
        "containers": [{"name": "web", "image": "nginx:alpine"}],
    }});
    let new = eventually("the namespace is in its boundary", SOON, async || {
        let pod = server.create(name, &new).await.accepted();
        (pod["spec"]["containers"][0]["imagePullPolicy"] == "Always").then_some(())
    });
    new.await;

    // Labels of a Pod that doesn't keep the rules can be moved, and its image can't be changed.
    old["metadata"]["labels"] = json!({"role": "master"});
    server.update(name, &old).await.accepted();
    old["spec"]["containers"][0]["image"] = json!("nginx:1.27");
    let refusal = server.update(name, &old).await.refusal().unwrap();
    assert!(refusal.contains("set resources.requests.cpu"), "{refusal}");

    let resized = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "resized"}, "spec": {
        "containers": [{"name": "web", "image": "nginx:alpine"}],
    }});
    server.store(name, &resized).await;
    let resize = format!("{}/resized/resize?dryRun=All", collection(name, Kind::Pod));
    let resize = async |request: &str, limit: &str| {
        let memory = json!({"requests": {"memory": request}, "limits": {"memory": limit}});
        let patch = json!({"spec": {"containers": [{"name": "web", "resources": memory}]}});
        let request = http::Request::patch(&resize)
            .header("content-type", "application/strategic-merge-patch+json")
            .body(serde_json::to_vec(&patch).unwrap())
            .unwrap();
        server.client.request::<Value>(request).await
    };
    let stored = resize("300Mi", "300Mi").await.unwrap();
    assert_eq!(
        stored["spec"]["containers"][0]["resources"]["limits"]["memory"],
        "300Mi"
    );
    let refused = resize("300Mi", "500Mi").await.unwrap_err().to_string();
    assert!(
        refused.contains("set resources.limits.memory to resources.requests.memory"),
        "{refused}"
    );
}

#[tokio::test]
async fn bad_defaults_are_refused_by_the_schema() {
    let server = Server::of(Version::V1_37).await;
    for crd in boundary_operator::api::crds() {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let crd = serde_json::to_value(crd).unwrap();
        server
            .admin(Method::POST, path, Some(&crd))
            .await
            .accepted();
    }
    let path = "/apis/boundarypolicy.dev/v1alpha1/boundarypolicies?dryRun=All";
    let policy = |rule: &Value| {
        json!({
            "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
            "metadata": {"name": "defaults"},
            "spec": {"boundary": "web", "rules": {"defaultResources": rule}},
        })
    };
    let fine = policy(&seed()["defaultResources"]);
    let stored = eventually("policies are served", SOON, async || {
        let answer = server.admin(Method::POST, path, Some(&fine)).await;
        answer.status.is_success().then_some(answer.body)
    })
    .await;
    assert_eq!(stored["spec"]["whenMutationUnsupported"], "Report");
    for (rule, field, says) in [
        (
            json!({"limits": {"cpu": "1"}}),
            "limits",
            "a CPU limit can't be a default",
        ),
        (
            json!({"requests": {"memory": "200mi"}}),
            "requests.memory",
            "should match",
        ),
        (
            json!({"requests": {"memory": "200m"}}),
            "requests",
            "whole bytes",
        ),
        (
            json!({"requests": {"cpu": "-1"}}),
            "requests.cpu",
            "should match",
        ),
        (
            json!({"requests": {"gpu": "1"}}),
            "requests",
            "only cpu, memory, ephemeral-storage",
        ),
        (
            json!({"limits": {"example.com/gpu": "1"}}),
            "limits",
            "only cpu, memory, ephemeral-storage",
        ),
        (json!({"requests": {}}), "requests", "at least 1"),
        (json!({}), "defaultResources", "at least 1"),
    ] {
        let answer = server.admin(Method::POST, path, Some(&policy(&rule))).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert_eq!(answer.status, 422, "{rule}");
        assert!(
            message.contains(field) && message.contains(says),
            "{rule}: {message}"
        );
        let policy = serde_json::from_value(policy(&rule)).unwrap();
        let errors = boundary_operator::api::validate(&policy);
        assert!(
            errors.iter().any(|e| e.path.contains("defaultResources")),
            "{rule}: {errors:?}"
        );
    }
}

/// Twenty policies, half of them with all the exemptions that the API takes.
fn many(boundary: &str) -> Vec<BoundaryPolicy> {
    (0..20)
        .map(|n| {
            let mut policy = reporting(&format!("p{n:02}"), boundary, &seed());
            policy.spec.when_mutation_unsupported = WhenMutationUnsupported::Deny;
            if n < 10 {
                let mut exemptions = longest_exemptions();
                for exemption in &mut exemptions {
                    exemption.images = None;
                    exemption.rules = policy.spec.rules.names();
                }
                policy.spec.exemptions = exemptions;
            }
            policy
        })
        .collect()
}

fn three_hundred(container: &Value) -> Value {
    let containers = (0..300).map(|n| {
        let mut container = container.clone();
        container["name"] = json!(format!("c{n}"));
        container
    });
    of(&json!({"containers": containers.collect::<Vec<_>>()}))
}

/// A Pod with 300 containers under many policies is changed, or checked, within the cost that the API
/// server allows.
async fn many_policies(server: &Server, compiled: &Compilation, name: &str) {
    let inside: usize = compiled
        .objects
        .iter()
        .map(|object| object.policies.len())
        .sum();
    assert_eq!(inside, 20);
    server.enforce(name, compiled).await;
    let plain = json!({"image": "nginx:alpine"});
    let conforming =
        json!({"image": "nginx:alpine", "imagePullPolicy": "Always", "resources": the_example()});
    let stored = server
        .create(name, &three_hundred(&conforming))
        .await
        .accepted();
    assert_eq!(
        stored["spec"]["containers"][299]["resources"],
        the_example()
    );
    let answer = server.create(name, &three_hundred(&plain)).await;
    if compiled.mutations.is_empty() {
        let refusal = answer.refusal().unwrap();
        assert!(refusal.starts_with("Policy 'p"), "{refusal}");
        assert!(refusal.ends_with(" more."), "{refusal}");
    } else {
        let stored = answer.accepted();
        for container in stored["spec"]["containers"].as_array().unwrap() {
            assert_eq!(container["resources"], the_example());
        }
    }
}

#[tokio::test]
async fn many_policies_on_1_37() {
    let server = Server::of(Version::V1_37).await;
    let compiled = acting(&server, &many("many-policies"));
    many_policies(&server, &compiled, "many-policies").await;
}

#[tokio::test]
async fn many_policies_on_1_34_with_the_gate_on() {
    let (_plane, server) = started(|| gated(false)).await;
    let compiled = acting(&server, &many("many-policies"));
    many_policies(&server, &compiled, "many-policies").await;
}

#[tokio::test]
async fn many_policies_on_1_30() {
    let server = Server::of(Version::V1_30).await;
    let compiled = compiled(&many("many-policies"), 30, None, Mutating::NotActing);
    many_policies(&server, &compiled, "many-policies").await;
}
