//! Controllers go on working on objects that broke a rule before it came.

use boundary_operator::compile::AdmissionObject;
use boundary_operator::evaluate::Kind;
use control_plane::{Version, eventually, shared_with_controller_manager};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cases::rules;
use crate::server::{Place, SOON, Server};
use crate::support;
use crate::workload::{pod, with_image, with_labels, workload};

async fn server() -> Server {
    let start = || shared_with_controller_manager(Version::V1_34);
    Server::at(tokio::task::spawn_blocking(start).await.unwrap())
}

/// A policy comes to a namespace with something in it.
async fn enforce(server: &Server, boundary: &str) -> Vec<AdmissionObject> {
    let json = json!({"disallowLatestTag": {}, "requiredLabels": {"labels": {"team": ""}}});
    let policy = support::policy("strict", boundary, rules(json));
    let objects = server.install(&[policy]).await;
    server.relabel(boundary, Some(boundary)).await;
    eventually("the namespace is in its boundary", SOON, async || {
        let answer = server.create(boundary, &pod("x", "nginx")).await;
        answer.denied().then_some(())
    })
    .await;
    objects
}

async fn list(server: &Server, namespace: &str, kind: Kind) -> Vec<Value> {
    let path = crate::server::collection(namespace, kind);
    let answer = server.admin(Method::GET, &path, None).await;
    answer.accepted()["items"].as_array().unwrap().clone()
}

/// Does what a kubelet would: Pods run, or have run. Nothing else is there to do it.
async fn kubelet(server: &Server, namespace: &str, phase: &str) {
    for pod in list(server, namespace, Kind::Pod).await {
        let name = pod["metadata"]["name"].as_str().unwrap();
        if pod["status"]["phase"] == phase {
            continue;
        }
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({"status": {
            "phase": phase,
            "conditions": [{
                "type": "Ready", "status": ready, "lastTransitionTime": "2026-11-30T00:00:00Z",
            }],
        }});
        let path = format!(
            "{}/{name}/status",
            crate::server::collection(namespace, Kind::Pod)
        );
        // It may be gone by now.
        server.admin(Method::PATCH, &path, Some(&status)).await;
    }
}

async fn get(server: &Server, namespace: &str, kind: Kind, name: &str) -> Option<Value> {
    let place = Place {
        namespace,
        kind,
        name,
        sub_resource: "",
    };
    let answer = server.admin(Method::GET, &place.path(), None).await;
    (answer.status != StatusCode::NOT_FOUND).then(|| answer.accepted())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_mends_a_deployment_completes() {
    let server = server().await;
    server.namespace("rollout", None).await;
    let mut deployment = workload(Kind::Deployment, "web", "nginx");
    deployment["spec"]["replicas"] = json!(2);
    server.store("rollout", &deployment).await;
    eventually("the deployment is available", SOON, async || {
        kubelet(&server, "rollout", "Running").await;
        let stored = get(&server, "rollout", Kind::Deployment, "web").await?;
        (stored["status"]["availableReplicas"] == 2).then_some(())
    })
    .await;
    let objects = enforce(&server, "rollout").await;

    let mended = eventually("the deployment is mended", SOON, async || {
        let stored = get(&server, "rollout", Kind::Deployment, "web").await?;
        let mut mended = with_labels(&with_image(&stored, "nginx:1"), json!({"team": "web"}));
        mended["spec"]["template"]["metadata"]["labels"]["team"] = json!("web");
        let path = Place::of("rollout", &mended).path();
        // The controller may write at the same time.
        let answer = server.admin(Method::PUT, &path, Some(&mended)).await;
        (answer.status != StatusCode::CONFLICT).then(|| answer.accepted())
    })
    .await;
    let generation = mended["metadata"]["generation"].as_i64().unwrap();
    eventually("the rollout is complete", SOON, async || {
        kubelet(&server, "rollout", "Running").await;
        let stored = get(&server, "rollout", Kind::Deployment, "web").await?;
        let status = &stored["status"];
        let complete = status["observedGeneration"].as_i64()? >= generation
            && status["updatedReplicas"] == 2
            && status["availableReplicas"] == 2
            && status["replicas"] == 2;
        complete.then_some(())
    })
    .await;
    let mut sizes: Vec<_> = list(&server, "rollout", Kind::ReplicaSet)
        .await
        .iter()
        .map(|set| {
            let image = set["spec"]["template"]["spec"]["containers"][0]["image"].clone();
            (
                image,
                set["spec"]["replicas"].clone(),
                set["status"]["replicas"].clone(),
            )
        })
        .collect();
    sizes.sort_by_key(|(image, ..)| image.to_string());
    assert_eq!(
        sizes,
        [
            (json!("nginx"), json!(0), json!(0)),
            (json!("nginx:1"), json!(2), json!(2))
        ]
    );

    // The controller manager checks the types of what is emitted.
    for object in objects {
        let path = format!(
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{}",
            object.name
        );
        let status = eventually("the types are checked", SOON, async || {
            let stored = server.admin(Method::GET, &path, None).await.accepted();
            let current =
                stored["status"]["observedGeneration"] == stored["metadata"]["generation"];
            current.then(|| stored["status"].clone())
        })
        .await;
        assert_eq!(status["typeChecking"], json!({}), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_breaks_a_rule_completes_and_is_deleted() {
    let server = server().await;
    server.namespace("job", None).await;
    server
        .store("job", &workload(Kind::Job, "job", "busybox"))
        .await;
    eventually("the job has a Pod", SOON, async || {
        (list(&server, "job", Kind::Pod).await.len() == 1).then_some(())
    })
    .await;
    enforce(&server, "job").await;
    eventually("the job completes", SOON, async || {
        kubelet(&server, "job", "Succeeded").await;
        let job = get(&server, "job", Kind::Job, "job").await?;
        let mut conditions = job["status"]["conditions"].as_array()?.iter();
        conditions
            .find(|c| c["type"] == "Complete" && c["status"] == "True")
            .map(|_| ())
    })
    .await;
    let pods = list(&server, "job", Kind::Pod).await;
    assert!(
        pods.iter()
            .all(|pod| pod["metadata"]["finalizers"].is_null()),
        "{pods:?}"
    );
    delete_in_foreground(&server, "job", Kind::Job, "job").await;
    assert_eq!(list(&server, "job", Kind::Pod).await, [] as [Value; 0]);
}

async fn delete_in_foreground(server: &Server, namespace: &str, kind: Kind, name: &str) {
    let place = Place {
        namespace,
        kind,
        name,
        sub_resource: "",
    };
    let options = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
    });
    let answer = server
        .admin(Method::DELETE, &place.path(), Some(&options))
        .await;
    answer.accepted();
    eventually(&format!("{name} is gone"), SOON, async || {
        // Pods that were never on a node are deleted at once.
        get(server, namespace, kind, name)
            .await
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_breaks_a_rule_can_be_deleted_in_the_foreground() {
    let server = server().await;
    server.namespace("delete", None).await;
    for kind in Kind::ALL {
        server
            .store("delete", &workload(kind, "old", "nginx"))
            .await;
    }
    eventually("the controllers have made Pods", SOON, async || {
        let sets = list(&server, "delete", Kind::ReplicaSet).await;
        let pods = list(&server, "delete", Kind::Pod).await;
        // Without nodes a DaemonSet has none.
        (sets.len() == 2 && pods.len() == 5).then_some(())
    })
    .await;
    enforce(&server, "delete").await;
    for kind in Kind::ALL {
        delete_in_foreground(&server, "delete", kind, "old").await;
    }
    assert_eq!(
        list(&server, "delete", Kind::ReplicaSet).await,
        [] as [Value; 0]
    );
    assert_eq!(list(&server, "delete", Kind::Pod).await, [] as [Value; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_why_a_pod_is_refused() {
    let server = server().await;
    server.namespace("events", None).await;
    enforce(&server, "events").await;
    // Only its Pods break the rule: they lack the label.
    let set = workload(Kind::ReplicaSet, "web", "nginx:1");
    server
        .store("events", &with_labels(&set, json!({"team": "web"})))
        .await;
    let expected = "is forbidden: ValidatingAdmissionPolicy 'events.boundarypolicy.dev' with \
                    binding 'events.boundarypolicy.dev' denied request: Policy 'strict' \
                    (RequiredLabels) requires the label team.";
    eventually("the refusal is in an Event of the set", SOON, async || {
        let path = "/api/v1/namespaces/events/events";
        let events = server.admin(Method::GET, path, None).await.accepted();
        let mut events = events["items"].as_array()?.iter();
        let event = events.find(|event| event["involvedObject"]["kind"] == "ReplicaSet")?;
        event["message"].as_str()?.contains(expected).then_some(())
    })
    .await;
    assert_eq!(list(&server, "events", Kind::Pod).await, [] as [Value; 0]);
}
