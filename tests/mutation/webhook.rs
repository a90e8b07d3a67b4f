//! A webhook that puts a sidecar into every Pod, after the rules have changed it.

use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use control_plane::{Version, eventually};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::boundary::{reporting, seed};
use crate::cases::of;
use crate::server::{SOON, Server};
use crate::servers::acting;

/// What the webhook answers: a sidecar, if the Pod has none yet.
fn answer(review: &Value) -> Value {
    let request = &review["request"];
    let containers = request["object"]["spec"]["containers"].as_array().unwrap();
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if containers
        .iter()
        .all(|container| container["name"] != "injected")
    {
        let sidecar = json!({"name": "injected", "image": "proxy:1", "imagePullPolicy": "Never"});
        let patch = json!([{"op": "add", "path": "/spec/containers/-", "value": sidecar}]);
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(BASE64_STANDARD.encode(patch.to_string()));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

async fn handle(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let answer = answer(&serde_json::from_slice(&body).unwrap());
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::from(answer.to_string())).unwrap())
}

/// Serves the webhook over TLS. Returns its address and its certificate.
async fn serve() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let stream = TokioIo::new(stream);
                    let connection = hyper::server::conn::http1::Builder::new();
                    // The API server may close it at any time.
                    let _ = connection
                        .serve_connection(stream, service_fn(handle))
                        .await;
                }
            });
        }
    });
    (format!("https://{address}/"), made.cert.pem())
}

#[tokio::test]
async fn what_a_webhook_injects_is_changed_too() {
    let server = Server::of(Version::V1_37).await;
    let name = "webhook";
    let (url, certificate) = serve().await;
    server
        .enforce(
            name,
            &acting(&server, &[reporting("defaults", name, &seed())]),
        )
        .await;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "inject"},
        "webhooks": [{
            "name": "inject.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
            "clientConfig": {"url": url, "caBundle": BASE64_STANDARD.encode(certificate)},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"],
            }],
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    server
        .admin(Method::POST, path, Some(&configuration))
        .await
        .accepted();

    let pod = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let stored = eventually("the webhook is asked", SOON, async || {
        let stored = server.create(name, &pod).await.accepted();
        (stored["spec"]["containers"].as_array().unwrap().len() == 2).then_some(stored)
    })
    .await;
    for container in stored["spec"]["containers"].as_array().unwrap() {
        assert_eq!(container["imagePullPolicy"], "Always", "{container}");
        assert_eq!(
            container["resources"],
            json!({
                "requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
                "limits": {"memory": "200Mi", "ephemeral-storage": "2Gi"},
            })
        );
    }
}
