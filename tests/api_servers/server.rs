//! A control plane that all tests share, and what they ask of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use boundary_operator::api::{Action, BOUNDARY_LABEL, BoundaryPolicy};
use boundary_operator::compile::{
    AdmissionObject, Capabilities, Options, PROBE_LABEL, PROBE_NAMESPACE, PROBE_OBJECT_ANNOTATION,
    compile,
};
use boundary_operator::evaluate::Kind;
use control_plane::{ControlPlane, Version, eventually};
use http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::support::NOW;
use crate::workload::pod;

/// How long anything may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// Only one test at a time can have the probe namespace of a server in its boundary.
static PROBES: [Mutex<()>; Version::ALL.len()] = [const { Mutex::const_new(()) }; 4];

pub(crate) struct Server {
    pub(crate) version: Version,
    pub(crate) client: Client,
}

/// Who asks.
#[derive(Clone, Copy, Default)]
pub(crate) struct User<'a> {
    /// Empty: the administrator of the control plane.
    pub(crate) name: &'a str,
    pub(crate) groups: &'a [&'a str],
}

/// A namespaced object in the API.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    pub(crate) sub_resource: &'a str,
}

/// What the API server answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

/// What an admission policy said.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Said {
    pub(crate) object: String,
    pub(crate) message: String,
}

impl Server {
    /// The control plane of `version` that the tests share.
    pub(crate) async fn of(version: Version) -> Self {
        let plane = tokio::task::spawn_blocking(move || control_plane::shared(version));
        Self::at(plane.await.unwrap())
    }

    /// A control plane that a test has to itself.
    pub(crate) fn at(plane: &ControlPlane) -> Self {
        let version = plane.version();
        let client = plane.client().unwrap();
        Self { version, client }
    }

    /// Sends a request as `user`.
    pub(crate) async fn send(
        &self,
        user: User<'_>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", "application/json");
        if !user.name.is_empty() {
            // Everyone may do everything: only admission is asked about.
            let groups = user.groups.iter().chain(&["system:masters"]);
            request = request.header("impersonate-user", user.name);
            for group in groups {
                request = request.header("impersonate-group", *group);
            }
        }
        let body = body.map_or_else(Vec::new, |body| serde_json::to_vec(body).unwrap());
        let response = self.client.send(request.body(Body::from(body)).unwrap());
        let (parts, body) = response.await.unwrap().into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        let warnings = parts.headers.get_all("warning").iter();
        Answer {
            status: parts.status,
            // What is not served at all is answered in plain text.
            body: serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into()),
            warnings: warnings
                .map(|value| unquoted(&String::from_utf8_lossy(value.as_bytes())))
                .collect(),
        }
    }

    /// Whether `object` can be created in `namespace`. Nothing is stored.
    pub(crate) async fn create(&self, namespace: &str, object: &Value) -> Answer {
        self.create_as(User::default(), namespace, object).await
    }

    pub(crate) async fn create_as(
        &self,
        user: User<'_>,
        namespace: &str,
        object: &Value,
    ) -> Answer {
        let kind = Kind::of(object).unwrap();
        let path = format!("{}?dryRun=All", collection(namespace, kind));
        self.send(user, Method::POST, &path, Some(object)).await
    }

    /// Whether a stored object can be replaced by `object`. Nothing is stored.
    pub(crate) async fn update(&self, namespace: &str, object: &Value) -> Answer {
        self.update_as(User::default(), namespace, object).await
    }

    pub(crate) async fn update_as(
        &self,
        user: User<'_>,
        namespace: &str,
        object: &Value,
    ) -> Answer {
        let place = Place::of(namespace, object);
        let path = format!("{}?dryRun=All", place.path());
        self.send(user, Method::PUT, &path, Some(object)).await
    }

    /// Stores `object`, and returns it as it is stored.
    pub(crate) async fn store(&self, namespace: &str, object: &Value) -> Value {
        let path = collection(namespace, Kind::of(object).unwrap());
        self.admin(Method::POST, &path, Some(object))
            .await
            .accepted()
    }

    pub(crate) async fn admin(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        self.send(User::default(), method, path, body).await
    }

    /// Makes a namespace in a boundary, or in none.
    pub(crate) async fn namespace(&self, name: &str, boundary: Option<&str>) {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {BOUNDARY_LABEL: boundary}},
        });
        let answer = self
            .admin(Method::POST, "/api/v1/namespaces", Some(&namespace))
            .await;
        answer.accepted();
    }

    /// Moves a namespace to another boundary, or to none.
    pub(crate) async fn relabel(&self, name: &str, boundary: Option<&str>) {
        let labels = json!({"metadata": {"labels": {BOUNDARY_LABEL: boundary}}});
        let path = format!("/api/v1/namespaces/{name}");
        self.admin(Method::PATCH, &path, Some(&labels))
            .await
            .accepted();
    }

    /// What `policies` compile to for this server.
    pub(crate) fn compile(&self, policies: &[BoundaryPolicy]) -> Vec<AdmissionObject> {
        let version = self.version.tag().parse().unwrap();
        let options = Options::new(Capabilities::of(version), NOW.parse().unwrap());
        let compilation = compile(policies, &options);
        assert_eq!(compilation.problems, []);
        compilation.objects
    }

    /// Compiles `policies`, applies the objects and waits until the API server acts on them.
    pub(crate) async fn install(&self, policies: &[BoundaryPolicy]) -> Vec<AdmissionObject> {
        let objects = self.compile(policies);
        self.put(&objects).await;
        self.wait(&objects).await;
        objects
    }

    /// Writes objects in place.
    pub(crate) async fn put(&self, objects: &[AdmissionObject]) {
        for object in objects {
            let (policy, binding) = (&object.policy, &object.binding);
            self.write("validatingadmissionpolicies", policy).await;
            self.write("validatingadmissionpolicybindings", binding)
                .await;
        }
    }

    /// Creates or replaces an admission policy or a binding.
    pub(crate) async fn write(&self, resource: &str, object: impl Serialize) -> Value {
        let mut object = serde_json::to_value(object).unwrap();
        let collection = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
        let path = format!(
            "{collection}/{}",
            object["metadata"]["name"].as_str().unwrap()
        );
        let stored = self.admin(Method::GET, &path, None).await;
        if stored.status == StatusCode::NOT_FOUND {
            let created = self.admin(Method::POST, &collection, Some(&object)).await;
            return created.accepted();
        }
        object["metadata"]["resourceVersion"] =
            stored.accepted()["metadata"]["resourceVersion"].clone();
        let replaced = self.admin(Method::PUT, &path, Some(&object)).await;
        replaced.accepted()
    }

    /// Deletes an object as a whole: the binding first.
    pub(crate) async fn delete(&self, object: &AdmissionObject) {
        for resource in [
            "validatingadmissionpolicybindings",
            "validatingadmissionpolicies",
        ] {
            let path = format!(
                "/apis/admissionregistration.k8s.io/v1/{resource}/{}",
                object.name
            );
            self.admin(Method::DELETE, &path, None).await.accepted();
        }
    }

    /// Keeps the probe namespace as it is.
    pub(crate) async fn hold_probes(&self) -> MutexGuard<'static, ()> {
        PROBES[self.version as usize].lock().await
    }

    pub(crate) async fn make_probe_namespace(&self) {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROBE_NAMESPACE},
        });
        self.admin(Method::POST, "/api/v1/namespaces", Some(&namespace))
            .await;
    }

    /// Waits until the API server acts on exactly these objects, which answer a probe with their
    /// revision. Those that only write to the audit log can't.
    pub(crate) async fn wait(&self, objects: &[AdmissionObject]) {
        let _probe = self.hold_probes().await;
        self.make_probe_namespace().await;
        let boundaries: BTreeSet<_> = objects.iter().flat_map(|o| &o.boundaries).collect();
        for boundary in boundaries {
            self.relabel(PROBE_NAMESPACE, Some(boundary)).await;
            let of_it = objects.iter().filter(|o| o.boundaries.contains(boundary));
            for object in of_it.filter(|object| object.action != Action::Audit) {
                let mut probe = pod("probe", "registry.k8s.io/pause:3.10");
                probe["metadata"]["labels"] = json!({PROBE_LABEL: "revision"});
                probe["metadata"]["annotations"] = json!({PROBE_OBJECT_ANNOTATION: object.name});
                let expected = Said {
                    object: object.name.clone(),
                    message: format!("boundary {boundary} revision {}", object.revision),
                };
                let what = format!("{} acts on {}", self.version, object.name);
                eventually(&what, SOON, async || {
                    let answer = self.create(PROBE_NAMESPACE, &probe).await;
                    answer.said().contains(&expected).then_some(())
                })
                .await;
            }
        }
        self.relabel(PROBE_NAMESPACE, None).await;
    }
}

impl<'a> Place<'a> {
    /// The place of `object`, which has a name.
    pub(crate) fn of(namespace: &'a str, object: &'a Value) -> Self {
        Self {
            namespace,
            kind: Kind::of(object).unwrap(),
            name: object["metadata"]["name"].as_str().unwrap(),
            sub_resource: "",
        }
    }

    pub(crate) fn sub_resource(self, sub_resource: &'a str) -> Self {
        Self {
            sub_resource,
            ..self
        }
    }

    pub(crate) fn path(&self) -> String {
        let mut path = format!("{}/{}", collection(self.namespace, self.kind), self.name);
        if !self.sub_resource.is_empty() {
            let _ = write!(path, "/{}", self.sub_resource);
        }
        path
    }
}

pub(crate) fn collection(namespace: &str, kind: Kind) -> String {
    let api = match kind.group() {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    format!("{api}/namespaces/{namespace}/{}", kind.plural())
}

impl Answer {
    /// The object, which must have been accepted.
    #[track_caller]
    pub(crate) fn accepted(self) -> Value {
        assert!(self.status.is_success(), "{self:?}");
        self.body
    }

    /// Whether an admission policy refused the object, rather than anything else.
    pub(crate) fn denied(&self) -> bool {
        self.denial().is_some()
    }

    fn denial(&self) -> Option<Said> {
        let message = self.body["message"].as_str()?;
        let (_, rest) = message.split_once("ValidatingAdmissionPolicy '")?;
        let (object, rest) = rest.split_once("' with binding '")?;
        let message = rest
            .strip_prefix(object)?
            .strip_prefix("' denied request: ")?;
        Some(Said {
            object: object.to_owned(),
            message: message.to_owned(),
        })
    }

    fn warned(&self) -> Vec<Said> {
        let said = |warning: &String| {
            let rest = warning.strip_prefix("Validation failed for ValidatingAdmissionPolicy '")?;
            let (object, rest) = rest.split_once("' with binding '")?;
            let message = rest.strip_prefix(object)?.strip_prefix("': ")?;
            Some(Said {
                object: object.to_owned(),
                message: message.to_owned(),
            })
        };
        self.warnings.iter().filter_map(said).collect()
    }

    /// Everything that admission policies said, in refusals and warnings.
    pub(crate) fn said(&self) -> Vec<Said> {
        self.denial().into_iter().chain(self.warned()).collect()
    }

    /// The message of the admission policy that refused the object. None: it was accepted.
    /// Anything else fails the test.
    #[track_caller]
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.status.is_success() {
            return None;
        }
        let denial = self.denial();
        let Some(said) = denial.filter(|_| self.status == StatusCode::FORBIDDEN) else {
            panic!("it was refused by something else: {self:?}");
        };
        Some(said.message)
    }

    /// The messages of the warnings of admission policies, sorted.
    pub(crate) fn warning_messages(&self) -> Vec<String> {
        let mut messages: Vec<_> = self.warned().into_iter().map(|said| said.message).collect();
        messages.sort();
        messages
    }
}

/// The text of a warning header: `299 - "TEXT"`, with `\` before `\` and `"`.
fn unquoted(header: &str) -> String {
    let quoted = header.strip_prefix("299 - \"").unwrap_or(header);
    let quoted = quoted.strip_suffix('"').unwrap_or(quoted);
    let mut text = String::new();
    let mut characters = quoted.chars();
    while let Some(c) = characters.next() {
        text.extend(if c == '\\' {
            characters.next()
        } else {
            Some(c)
        });
    }
    text
}
