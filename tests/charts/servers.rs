//! What API servers say of what the charts render.

use control_plane::{Version, shared};
use kube::Client;
use rstest::rstest;
use serde_json::{Value, json};

use crate::helm::{EVERYTHING, MEMBER, OPERATOR, of_kind, template};

/// Kinds whose CRDs come with other projects.
const FOREIGN: [&str; 4] = ["ServiceMonitor", "PrometheusRule", "Certificate", "Issuer"];

/// What an API server answers when it is asked to create it, with every unknown field refused.
async fn dry_run(client: &Client, object: &Value) -> Result<(), String> {
    let kind = object["kind"].as_str().unwrap();
    let version = object["apiVersion"].as_str().unwrap();
    let plural = match kind {
        "NetworkPolicy" => "networkpolicies".to_owned(),
        kind => kind.to_lowercase() + "s",
    };
    let base = if version == "v1" {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{version}")
    };
    let namespace = object["metadata"]["namespace"].as_str();
    let path = match namespace {
        // The namespaces of the release are not there; any will do.
        Some(_) => format!("{base}/namespaces/default/{plural}"),
        None => format!("{base}/{plural}"),
    };
    let mut object = object.clone();
    if namespace.is_some() {
        object["metadata"]["namespace"] = json!("default");
    }
    let request = http::Request::post(format!("{path}?dryRun=All&fieldValidation=Strict"))
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&object).unwrap())
        .unwrap();
    let answer = client.request_text(request).await;
    answer.map(drop).map_err(|error| format!("{kind}: {error}"))
}

#[rstest]
#[case(Version::V1_30)]
#[case(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_takes_every_object(#[case] version: Version) {
    let client = shared(version).client().unwrap();
    let everything = template(OPERATOR, &EVERYTHING);
    let objects = [everything, template(MEMBER, &[])].concat();
    let mut taken = 0;
    for object in &objects {
        if !FOREIGN.contains(&object["kind"].as_str().unwrap()) {
            dry_run(&client, object).await.unwrap();
            taken += 1;
        }
    }
    assert!(taken >= 25, "{taken}");
    let mut wrong = of_kind(&objects, "Deployment")[0].clone();
    wrong["spec"]["template"]["spec"]["nodeSelektor"] = json!({});
    let refused = dry_run(&client, &wrong).await.unwrap_err();
    assert!(refused.contains("nodeSelektor"), "{refused}");
}

#[rstest]
#[case(Version::V1_30)]
#[case(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_the_operator_conform_to_pod_security_restricted(#[case] version: Version) {
    let client = shared(version).client().unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let request = http::Request::post("/api/v1/namespaces")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&namespace).unwrap())
        .unwrap();
    client.request_text(request).await.unwrap();
    let create = async |values: &[&str]| {
        let objects = template(OPERATOR, values);
        let template = &of_kind(&objects, "Deployment")[0]["spec"]["template"];
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}});
        pod["spec"] = template["spec"].clone();
        let request = http::Request::post("/api/v1/namespaces/restricted/pods?dryRun=All")
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&pod).unwrap())
            .unwrap();
        client
            .request_text(request)
            .await
            .map_err(|e| e.to_string())
    };
    create(&[]).await.unwrap();
    create(&EVERYTHING).await.unwrap();
    let refused = create(&["securityContext.allowPrivilegeEscalation=true"]).await;
    assert!(refused.unwrap_err().contains("allowPrivilegeEscalation"));
}
