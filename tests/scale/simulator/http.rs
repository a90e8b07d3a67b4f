//! The endpoints of one simulated cluster.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WARNING};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use serde_json::{Value, json};

use super::admission::{self, Asked, Said, USER};
use super::store::{Filter, Refusal, Resource, Stored, not_found};
use super::{Cluster, VERSION};

/// The largest body that is read.
const MAX_BODY: usize = 3 * 1024 * 1024;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What was asked, as far as it is looked at.
struct Query(BTreeMap<String, String>);

impl Query {
    fn of(request: &http::request::Parts) -> Self {
        let query = request.uri.query().unwrap_or_default();
        Self(
            form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn is_dry(&self) -> bool {
        self.get("dryRun") == Some("All")
    }

    fn filter(&self) -> Result<Filter, Refusal> {
        let unknown = |what: &str| (400, "BadRequest", format!("{what} is not simulated"));
        let mut filter = Filter::default();
        for part in self
            .get("labelSelector")
            .into_iter()
            .flat_map(|s| s.split(','))
        {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (part, None),
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
            if key.is_empty() || !key.chars().all(plain) {
                return Err(unknown(&format!("the label selector {part}")));
            }
            filter.labels.push((key.to_owned(), value));
        }
        if let Some(text) = self.get("fieldSelector") {
            let name = text.strip_prefix("metadata.name");
            let is = name.and_then(|rest| rest.strip_prefix('='));
            let is_not = name.and_then(|rest| rest.strip_prefix("!="));
            filter.name = match (is, is_not) {
                (Some(name), _) => Some((name.to_owned(), true)),
                (_, Some(name)) => Some((name.to_owned(), false)),
                _ => return Err(unknown(&format!("the field selector {text}"))),
            };
        }
        Ok(filter)
    }
}

/// Answers one request.
pub(crate) async fn answer(
    cluster: Arc<Cluster>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    cluster.not_blackholed().await;
    let (head, body) = request.into_parts();
    let body = http_body_util::Limited::new(body, MAX_BODY).collect().await;
    let answered = match body {
        Ok(body) => cluster.route(&head, &body.to_bytes()),
        Err(_) => Err((
            413,
            "RequestEntityTooLarge",
            "the body is too large".to_owned(),
        )),
    };
    let response = answered.unwrap_or_else(|(code, reason, message)| {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        respond(code, status.to_string())
    });
    cluster.not_blackholed().await;
    Ok(response)
}

fn respond(code: u16, json: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(json)).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn unknown(head: &http::request::Parts) -> Refusal {
    let text = format!("{} {} is not simulated", head.method, head.uri);
    (404, "NotFound", text)
}

impl Cluster {
    fn route(
        self: &Arc<Self>,
        head: &http::request::Parts,
        body: &Bytes,
    ) -> Result<Response<Body>, Refusal> {
        self.state.lock().unwrap().requests += 1;
        if head.headers.get(AUTHORIZATION) != Some(&self.authorization) {
            return Err((401, "Unauthorized", "Unauthorized".to_owned()));
        }
        let query = Query::of(head);
        let path: Vec<_> = head.uri.path().trim_matches('/').split('/').collect();
        let ok = |value: Value| Ok(respond(200, value.to_string()));
        match (&head.method, path.as_slice()) {
            (&Method::GET, ["version"]) => ok(json!({
                "major": "1", "minor": "34", "gitVersion": VERSION, "gitCommit": "",
                "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z",
                "goVersion": "go1.24", "compiler": "gc", "platform": "linux/amd64",
            })),
            (&Method::GET, ["apis", "admissionregistration.k8s.io", "v1"]) => ok(discovery()),
            (
                &Method::POST,
                [
                    "apis",
                    "authorization.k8s.io",
                    "v1",
                    "selfsubjectaccessreviews",
                ],
            ) => {
                let mut review = read(body)?;
                review["status"] = json!({"allowed": true});
                Ok(respond(201, review.to_string()))
            }
            (&Method::POST, ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"]) => {
                let mut review = read(body)?;
                review["status"] = json!({"userInfo": {"username": USER, "groups": []}});
                Ok(respond(201, review.to_string()))
            }
            (
                _,
                [
                    "apis",
                    "admissionregistration.k8s.io",
                    "v1",
                    "validatingadmissionpolicies",
                    rest @ ..,
                ],
            ) => self.objects(head, &query, Resource::Policies, rest, body),
            (
                _,
                [
                    "apis",
                    "admissionregistration.k8s.io",
                    "v1",
                    "validatingadmissionpolicybindings",
                    rest @ ..,
                ],
            ) => self.objects(head, &query, Resource::Bindings, rest, body),
            (&Method::POST, ["api", "v1", "namespaces", namespace, "pods"]) if query.is_dry() => {
                self.pod(namespace, body)
            }
            (_, ["api", "v1", "namespaces", rest @ ..]) => {
                self.objects(head, &query, Resource::Namespaces, rest, body)
            }
            _ => Err(unknown(head)),
        }
    }

    fn objects(
        self: &Arc<Self>,
        head: &http::request::Parts,
        query: &Query,
        resource: Resource,
        rest: &[&str],
        body: &Bytes,
    ) -> Result<Response<Body>, Refusal> {
        let accept = head.headers.get(http::header::ACCEPT);
        let accept = accept
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let partial = accept.contains("as=PartialObjectMetadata");
        let mut state = self.state.lock().unwrap();
        let stored = match (&head.method, rest) {
            (&Method::GET, []) if query.get("watch").is_some() => {
                let version = query.get("resourceVersion").unwrap_or_default();
                let version = version.parse().unwrap_or(state.version());
                let filter = query.filter()?;
                let Some(events) = state.watch(resource, &filter, version) else {
                    let text = format!("too old resource version: {version}");
                    return Err((410, "Expired", text));
                };
                let seconds = query.get("timeoutSeconds").and_then(|s| s.parse().ok());
                let until = Duration::from_secs(seconds.unwrap_or(300));
                drop(state);
                return Ok(self.watch(events, partial, until));
            }
            (&Method::GET, []) => {
                let filter = query.filter()?;
                let items = state.list(resource, &filter);
                if !partial && filter.labels.is_empty() {
                    match resource {
                        Resource::Policies => state.lists[0] += 1,
                        Resource::Bindings => state.lists[1] += 1,
                        Resource::Namespaces => {}
                    }
                }
                let version = state.version();
                drop(state);
                return Ok(respond(200, list(resource, &items, version, partial)));
            }
            (&Method::GET, [name]) => {
                let found = state.get(resource, name).cloned();
                found.ok_or_else(|| not_found(resource, name))?
            }
            (&Method::POST, []) => {
                let content = self.contents(resource, &read(body)?)?;
                let stored = state.create(content, query.is_dry())?;
                self.wrote(&stored, query.is_dry());
                return Ok(respond(201, stored.json(partial)));
            }
            (&Method::PUT, [_]) => {
                let object = read(body)?;
                let version = object["metadata"]["resourceVersion"].as_str();
                let content = self.contents(resource, &object)?;
                let stored = state.replace(content, version, query.is_dry())?;
                self.wrote(&stored, query.is_dry());
                stored
            }
            (&Method::PATCH, [name]) => {
                let before = state.get(resource, name);
                let before = before.ok_or_else(|| not_found(resource, name))?;
                let mut object: Value = serde_json::from_str(&before.json(false)).unwrap();
                json_patch::merge(&mut object, &read(body)?);
                let content = self.contents(resource, &object)?;
                state.replace(content, None, query.is_dry())?
            }
            (&Method::DELETE, [name]) => state.delete(resource, name)?,
            _ => return Err(unknown(head)),
        };
        Ok(respond(200, stored.json(partial)))
    }

    fn contents(
        &self,
        resource: Resource,
        object: &Value,
    ) -> Result<Arc<super::store::Content>, Refusal> {
        let content = self.contents.of(resource, object);
        content.map_err(|text| (422, "Invalid", text))
    }

    fn wrote(&self, stored: &Stored, dry: bool) {
        if !dry && stored.content.resource == Resource::Policies {
            self.applied.note(self.index, &stored.content);
        }
    }

    /// What would become of a Pod.
    fn pod(&self, namespace: &str, body: &Bytes) -> Result<Response<Body>, Refusal> {
        let mut pod = read(body)?;
        let text = std::str::from_utf8(body).unwrap_or_default();
        let state = self.state.lock().unwrap();
        let Some(stored) = state.get(Resource::Namespaces, namespace) else {
            return Err(not_found(Resource::Namespaces, namespace));
        };
        let asked = Asked {
            text,
            pod: &pod,
            namespace,
            namespace_labels: &stored.content.labels,
        };
        let said = if self.blind.load(Ordering::Relaxed) {
            Said::default()
        } else {
            admission::judge(&state, &asked).map_err(|text| (500, "InternalError", text))?
        };
        drop(state);
        let mut response = if let Some(denial) = said.denial {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let message = format!("pods \"{name}\" is forbidden: {denial}");
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "Forbidden", "code": 403,
            });
            respond(403, status.to_string())
        } else {
            pod["metadata"]["namespace"] = namespace.into();
            respond(201, pod.to_string())
        };
        for warning in said.warnings {
            let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
                response.headers_mut().append(WARNING, value);
            }
        }
        Ok(response)
    }

    /// Events until `until` has passed.
    fn watch(
        self: &Arc<Self>,
        events: tokio::sync::mpsc::UnboundedReceiver<super::store::Event>,
        partial: bool,
        until: Duration,
    ) -> Response<Body> {
        let cluster = self.clone();
        let end = Box::pin(tokio::time::sleep(until));
        let events = futures::stream::unfold(events, |mut events| async move {
            events.recv().await.map(|event| (event, events))
        });
        let lines = events.take_until(end).then(move |event| {
            let cluster = cluster.clone();
            async move {
                cluster.not_blackholed().await;
                let object = event.object.json(partial);
                let line = format!("{{\"type\":\"{}\",\"object\":{object}}}\n", event.what);
                Ok::<_, Infallible>(Frame::data(Bytes::from(line)))
            }
        });
        let mut response = Response::new(StreamBody::new(lines).boxed_unsync());
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

fn read(body: &Bytes) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| (400, "BadRequest", error.to_string()))
}

fn list(resource: Resource, items: &[Stored], version: u64, partial: bool) -> String {
    let (api_version, kind) = if partial {
        ("meta.k8s.io/v1", "PartialObjectMetadata")
    } else {
        (resource.api_version(), resource.kind())
    };
    let items: Vec<_> = items.iter().map(|item| item.json(partial)).collect();
    format!(
        r#"{{"apiVersion":"{api_version}","kind":"{kind}List","metadata":{{"resourceVersion":"{version}"}},"items":[{}]}}"#,
        items.join(",")
    )
}

/// The admission APIs of a 1.34, which serves no `MutatingAdmissionPolicy` in v1.
fn discovery() -> Value {
    let verbs = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    let resource = |of: Resource| {
        json!({
            "name": of.plural(), "singularName": of.kind().to_lowercase(), "namespaced": false,
            "kind": of.kind(), "verbs": verbs,
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": "admissionregistration.k8s.io/v1",
        "resources": [resource(Resource::Policies), resource(Resource::Bindings)],
    })
}
