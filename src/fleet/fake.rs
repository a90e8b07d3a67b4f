//! An API server in memory, for tests of what real ones do only in bad moments.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// What it holds and does.
#[derive(Default)]
pub(crate) struct State {
    /// Policies and bindings by resource and name.
    pub(crate) objects: BTreeMap<(String, String), Value>,
    /// Writes that were made, as `POST validatingadmissionpolicies NAME`.
    pub(crate) writes: Vec<String>,
    /// A policy that has this text is refused.
    pub(crate) refuses: Option<String>,
    /// Requests with this method are forbidden.
    pub(crate) forbids: Option<Method>,
    /// Every request fails like this.
    pub(crate) fails: Option<u16>,
    version: u64,
}

/// An API server of 1.34.
#[derive(Clone, Default)]
pub(crate) struct FakeServer(Arc<Mutex<State>>);

impl FakeServer {
    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap());
    }

    pub(crate) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().writes)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let dry_run = head
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"));
        let (code, answer) =
            self.0
                .lock()
                .unwrap()
                .handle(&head.method, head.uri.path(), body, dry_run);
        Response::builder()
            .status(code)
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(&answer).unwrap()))
            .unwrap()
    }
}

impl State {
    fn handle(&mut self, method: &Method, path: &str, mut body: Value, dry: bool) -> (u16, Value) {
        if let Some(code) = self.fails {
            return failure(code, "down");
        }
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
            let forbidden = self.forbids.as_ref().is_some_and(|method| {
                let verbs = [("POST", "create"), ("DELETE", "delete")];
                let asked = body["spec"]["resourceAttributes"]["verb"].as_str();
                let mut verbs = verbs.into_iter().filter(|(m, _)| *m == method.as_str());
                verbs.any(|(_, verb)| asked == Some(verb))
            });
            body["status"] = json!({"allowed": !forbidden});
            return (201, body);
        }
        if self.forbids.as_ref() == Some(method) {
            return failure(
                403,
                "x is forbidden: User \"u\" cannot create resource \"x\" at the cluster scope",
            );
        }
        match path {
            "/version" => {
                let version = json!({
                    "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "",
                    "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
                    "platform": "",
                });
                return (200, version);
            }
            "/apis/admissionregistration.k8s.io/v1" => {
                let resource = json!({
                    "name": "validatingadmissionpolicies", "namespaced": false, "singularName": "",
                    "kind": "ValidatingAdmissionPolicy", "verbs": [],
                });
                let list = json!({
                    "groupVersion": "admissionregistration.k8s.io/v1", "resources": [resource],
                });
                return (200, list);
            }
            "/api/v1/namespaces" => return (200, json!({"metadata": {}, "items": []})),
            _ => {}
        }
        let path = path.trim_start_matches("/apis/admissionregistration.k8s.io/v1/");
        let (resource, name) = path.split_once('/').unwrap_or((path, ""));
        let key = |name: &str| (resource.to_owned(), name.to_owned());
        if method == Method::GET {
            let mut items = self.objects.iter().filter(|((r, _), _)| r == resource);
            let items: Vec<_> = items.by_ref().map(|(_, object)| object.clone()).collect();
            return (200, json!({"metadata": {}, "items": items}));
        }
        if method == Method::DELETE {
            self.writes.push(format!("DELETE {resource} {name}"));
            return match self.objects.remove(&key(name)) {
                Some(object) => (200, object),
                None => failure(404, "not found"),
            };
        }
        let refused = self
            .refuses
            .as_ref()
            .is_some_and(|text| body.to_string().contains(text));
        if refused {
            return failure(422, "spec.validations[0]: it is refused");
        }
        if dry {
            return (201, body);
        }
        let name = body["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        self.writes.push(format!("{method} {resource} {name}"));
        self.version += 1;
        body["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key(&name), body.clone());
        (200, body)
    }
}

fn failure(code: u16, message: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "status": "Failure", "code": code, "message": message}),
    )
}
