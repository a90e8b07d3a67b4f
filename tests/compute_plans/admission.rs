//! The rule at the admission of real API servers, with the kinds of the examples.

use boundary_operator::api::{Action, BoundaryPolicy, crds, validate_resource_type};
use boundary_operator::compile::AdmissionObject;
use control_plane::{ControlPlane, Version, eventually};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::offline::compiled;
use crate::server::{Answer, SOON, Server};
use crate::world::{documents, policy, types};

/// The kinds of the examples that are checked, but for the one with components.
const PLAIN: [&str; 5] = ["apps", "postgresqls", "sqlservers", "qdrants", "valkeys"];

/// A server that has the kinds of the examples.
pub(crate) async fn server(version: Version) -> Server {
    let server = Server::of(version).await;
    for crd in documents::<Value>("crds.yaml") {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let answer = server.admin(Method::POST, path, Some(&crd)).await;
        assert!(
            answer.status.is_success() || answer.status == StatusCode::CONFLICT,
            "{answer:?}"
        );
        let resource = crd["spec"]["names"]["plural"].as_str().unwrap();
        eventually(&format!("{resource} is served"), SOON, async || {
            let answer = server
                .admin(Method::GET, &collection("default", resource), None)
                .await;
            answer.status.is_success().then_some(())
        })
        .await;
    }
    server
}

pub(crate) fn collection(namespace: &str, resource: &str) -> String {
    format!("/apis/platform.example.com/v1/namespaces/{namespace}/{resource}")
}

/// A namespace in a boundary of the same name, in which `policies` act.
pub(crate) struct Boundary<'s> {
    pub(crate) server: &'s Server,
    pub(crate) name: &'s str,
    pub(crate) objects: Vec<AdmissionObject>,
}

impl<'s> Boundary<'s> {
    pub(crate) async fn new(
        server: &'s Server,
        name: &'s str,
        policies: &[BoundaryPolicy],
    ) -> Self {
        server.namespace(name, Some(name)).await;
        let mut boundary = Self {
            server,
            name,
            objects: Vec::new(),
        };
        boundary.act(policies).await;
        boundary
    }

    /// Makes these the policies that act.
    pub(crate) async fn act(&mut self, policies: &[BoundaryPolicy]) {
        let policies: Vec<_> = policies
            .iter()
            .cloned()
            .map(|mut policy| {
                self.name.clone_into(&mut policy.spec.boundary);
                policy
            })
            .collect();
        self.objects = compiled(&policies, &types());
        self.server.put(&self.objects).await;
        self.server.wait(&self.objects).await;
    }

    async fn send(&self, method: Method, path: &str, object: &Value) -> Answer {
        self.server.admin(method, path, Some(object)).await
    }

    /// What becomes of a new object with this spec. Nothing is stored.
    pub(crate) async fn create(&self, resource: &str, spec: &Value) -> Answer {
        let path = format!("{}?dryRun=All", collection(self.name, resource));
        self.send(Method::POST, &path, &object(resource, "new", spec))
            .await
    }

    /// Stores an object while nothing acts on it: the boundary is left and entered again.
    pub(crate) async fn store(&self, resource: &str, name: &str, spec: &Value) {
        self.server.relabel(self.name, None).await;
        let path = collection(self.name, resource);
        let stored = eventually("the namespace is in no boundary", SOON, async || {
            let answer = self
                .send(Method::POST, &path, &object(resource, name, spec))
                .await;
            answer.status.is_success().then_some(answer)
        })
        .await;
        stored.accepted();
        self.server.relabel(self.name, Some(self.name)).await;
        self.entered().await;
    }

    /// Waits until the namespace is seen to be in the boundary.
    async fn entered(&self) {
        let plan = json!({"plan": "entered"});
        eventually("the namespace is in the boundary", SOON, async || {
            let answer = self.create("valkeys", &plan).await;
            (!answer.said().is_empty()).then_some(())
        })
        .await;
    }

    /// What becomes of a change of a stored object to this spec. Nothing is stored.
    pub(crate) async fn change(&self, resource: &str, name: &str, spec: &Value) -> Answer {
        let path = format!("{}/{name}", collection(self.name, resource));
        let stored = self.server.admin(Method::GET, &path, None).await.accepted();
        let mut object = object(resource, name, spec);
        object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        self.send(Method::PUT, &format!("{path}?dryRun=All"), &object)
            .await
    }
}

pub(crate) fn object(resource: &str, name: &str, spec: &Value) -> Value {
    let kind = match resource {
        "apps" => "App",
        "containerinstances" => "ContainerInstance",
        "postgresqls" => "PostgreSQL",
        "sqlservers" => "SQLServer",
        "qdrants" => "Qdrant",
        "functions" => "Function",
        _ => "Valkey",
    };
    json!({
        "apiVersion": "platform.example.com/v1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

/// The message with which the check of compute plans refused the object, as HTTP 422. None: it was
/// accepted. Anything else fails the test.
#[track_caller]
pub(crate) fn refusal(answer: &Answer) -> Option<String> {
    if answer.status.is_success() {
        return None;
    }
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{answer:?}"
    );
    assert_eq!(answer.body["reason"], "Invalid", "{answer:?}");
    let said = answer.said();
    assert!(said[0].object.ends_with(".compute-plans"), "{answer:?}");
    Some(said[0].message.clone())
}

#[track_caller]
fn refused(answer: &Answer, plan: &str, allowed: &str) {
    let message = format!(
        "Compute plan '{plan}' is not allowed in this boundary: a boundary policy disallows it. \
         Allowed plans: {allowed}."
    );
    assert_eq!(refusal(answer), Some(message));
}

#[track_caller]
fn accepted(answer: &Answer) {
    assert_eq!(refusal(answer), None);
}

fn plan(plan: &str) -> Value {
    json!({"plan": plan})
}

fn components(components: &[(&str, &str)]) -> Value {
    let component = |(name, plan): &(&str, &str)| json!({"name": name, "plan": plan});
    json!({"components": components.iter().map(component).collect::<Vec<_>>()})
}

fn deny(name: &str, plans: &[&str]) -> BoundaryPolicy {
    policy(name, Action::Deny, plans)
}

#[rstest::rstest]
#[case::v1_30(Version::V1_30)]
#[case::v1_37(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn every_type_but_functions_is_checked_when_created(#[case] version: Version) {
    let server = server(version).await;
    let boundary = Boundary::new(&server, "created", &[deny("a", &["small", "medium"])]).await;
    for resource in PLAIN {
        let allowed = match resource {
            "sqlservers" => "medium",
            "qdrants" => "small",
            _ => "small, medium",
        };
        refused(
            &boundary.create(resource, &plan("large")).await,
            "large",
            allowed,
        );
        let first = allowed.split(", ").next().unwrap();
        accepted(&boundary.create(resource, &plan(first)).await);
        accepted(&boundary.create(resource, &json!({"size": 3})).await);
    }
    let mixed = components(&[("web", "small"), ("worker", "large"), ("cron", "huge")]);
    refused(
        &boundary.create("containerinstances", &mixed).await,
        "large",
        "small, medium",
    );
    let allowed = components(&[("web", "small"), ("worker", "medium")]);
    accepted(&boundary.create("containerinstances", &allowed).await);
    accepted(&boundary.create("functions", &plan("large")).await);
}

#[rstest::rstest]
#[case::v1_30(Version::V1_30)]
#[case::v1_37(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_keeps_its_plan_and_a_move_is_checked(#[case] version: Version) {
    let server = server(version).await;
    let boundary = Boundary::new(&server, "kept", &[deny("a", &["small"])]).await;
    for resource in PLAIN {
        boundary.store(resource, "old", &plan("large")).await;
        let grown = json!({"plan": "large", "size": 5});
        accepted(&boundary.change(resource, "old", &grown).await);
        let allowed = if resource == "sqlservers" {
            "none"
        } else {
            "small"
        };
        refused(
            &boundary.change(resource, "old", &plan("medium")).await,
            "medium",
            allowed,
        );
        accepted(&boundary.change(resource, "old", &json!({})).await);
    }
    accepted(&boundary.change("valkeys", "old", &plan("small")).await);
}

#[rstest::rstest]
#[case::v1_30(Version::V1_30)]
#[case::v1_37(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn a_component_keeps_its_plan_only_if_its_key_is_unique(#[case] version: Version) {
    let server = server(version).await;
    let boundary = Boundary::new(&server, "components", &[deny("a", &["small"])]).await;
    let kind = "containerinstances";
    let held = components(&[("web", "large"), ("worker", "small")]);
    boundary.store(kind, "old", &held).await;
    let change =
        async |spec: &[(&str, &str)]| boundary.change(kind, "old", &components(spec)).await;
    accepted(&change(&[("worker", "small"), ("web", "large")]).await);
    accepted(&change(&[("web", "large")]).await);
    refused(
        &change(&[("web", "small"), ("worker", "large")]).await,
        "large",
        "small",
    );
    refused(
        &change(&[("web", "large"), ("web", "large")]).await,
        "large",
        "small",
    );
    refused(
        &change(&[("web", "large"), ("new", "medium")]).await,
        "medium",
        "small",
    );
    let nameless = json!({"components": [{"plan": "large", "image": "x"}]});
    boundary.store(kind, "nameless", &nameless).await;
    accepted(&boundary.change(kind, "nameless", &nameless).await);
}

#[rstest::rstest]
#[case::v1_30(Version::V1_30)]
#[case::v1_37(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn policies_are_taken_together(#[case] version: Version) {
    let server = server(version).await;
    let together = [
        deny("p1", &["small", "medium"]),
        deny("p2", &["valkey/small", "valkey/large"]),
        deny("p3", &["qdrant/no-such-plan"]),
    ];
    let mut boundary = Boundary::new(&server, "together", &together).await;
    assert_eq!(boundary.objects.len(), 1);
    refused(
        &boundary.create("valkeys", &plan("large")).await,
        "large",
        "small",
    );
    accepted(&boundary.create("valkeys", &plan("small")).await);
    refused(
        &boundary.create("qdrants", &plan("small")).await,
        "small",
        "none",
    );
    refused(
        &boundary.create("apps", &plan("large")).await,
        "large",
        "small, medium",
    );

    // Of types that no policy is about, everything is allowed.
    boundary.act(&[deny("p2", &["valkey/small"])]).await;
    refused(
        &boundary.create("valkeys", &plan("medium")).await,
        "medium",
        "small",
    );
    accepted(&boundary.create("apps", &plan("anything")).await);
}

#[rstest::rstest]
#[case::v1_30(Version::V1_30)]
#[case::v1_37(Version::V1_37)]
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_warns_warns(#[case] version: Version) {
    let server = server(version).await;
    let warn = [
        policy("w", Action::Warn, &["small"]),
        policy("a", Action::Audit, &["none-at-all"]),
    ];
    let boundary = Boundary::new(&server, "warned", &warn).await;
    let answer = boundary.create("valkeys", &plan("large")).await;
    assert_eq!(
        answer.warning_messages(),
        [
            "Compute plan 'large' is not allowed in this boundary: a boundary policy disallows it. \
          Allowed plans: small."
        ]
    );
    accepted(&answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_namespaces_and_other_objects_are_not_touched() {
    let server = server(Version::V1_30).await;
    let boundary = Boundary::new(&server, "touched", &[deny("a", &["small"])]).await;
    server.namespace("touched-not", Some("touched-not")).await;
    let path = format!("{}?dryRun=All", collection("touched-not", "valkeys"));
    let elsewhere = object("valkeys", "new", &plan("large"));
    accepted(&boundary.send(Method::POST, &path, &elsewhere).await);
    let pod = crate::workload::pod("web", "nginx");
    accepted(&server.create("touched", &pod).await);
}

/// How many components that may not keep their plan an object can have.
#[tokio::test(flavor = "multi_thread")]
async fn many_components_are_checked() {
    let server = server(Version::V1_30).await;
    let boundary = Boundary::new(&server, "many", &[deny("a", &["small"])]).await;
    let of = |count: usize, plan: &str| {
        let names: Vec<_> = (0..count).map(|n| format!("component-{n:04}")).collect();
        let components = names.iter().map(|name| json!({"name": name, "plan": plan}));
        json!({"components": components.collect::<Vec<_>>()})
    };
    let kind = "containerinstances";
    accepted(&boundary.create(kind, &of(2_000, "small")).await);
    refused(
        &boundary.create(kind, &of(2_000, "large")).await,
        "large",
        "small",
    );
    // Each of them keeps a plan that is not allowed any more.
    boundary.store(kind, "old", &of(200, "large")).await;
    accepted(&boundary.change(kind, "old", &of(200, "large")).await);
}

/// The schema of types refuses what the operator could not use, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_types_and_their_validation_agree() {
    let plane = ControlPlane::builder(Version::V1_30).start().unwrap();
    let server = Server::at(&plane);
    for crd in crds() {
        let crd = serde_json::to_value(crd).unwrap();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server
            .admin(Method::POST, path, Some(&crd))
            .await
            .accepted();
    }
    let path = "/apis/boundarypolicy.dev/v1alpha1/computeresourcetypes";
    eventually("types are served", SOON, async || {
        let answer = server.admin(Method::GET, path, None).await;
        answer.status.is_success().then_some(())
    })
    .await;
    let target = |target: Value| {
        let mut whole = json!({
            "group": "a.b", "versions": ["v1"], "resource": "rs", "kind": "R",
            "planFields": [{"path": "spec.plan"}],
        });
        for (field, value) in target.as_object().unwrap() {
            whole[field] = value.clone();
        }
        json!({"plans": [{"name": "small"}], "targets": [whole]})
    };
    let long = |length: usize| "x".repeat(length);
    let named = |name: &str| (name.to_owned(), json!({"plans": [{"name": "small"}]}));
    let specs = [
        json!({"plans": [{"name": "small"}]}),
        json!({"plans": []}),
        json!({"plans": [{"name": "small"}, {"name": "small"}]}),
        json!({"plans": [{"name": "a/b"}]}),
        json!({"plans": [{"name": "it's"}]}),
        json!({"plans": [{"name": "a\nb"}]}),
        json!({"plans": [{"name": long(64)}]}),
        json!({"plans": [{"name": long(63), "displayName": long(129)}]}),
        json!({"plans": [{"name": "s", "displayName": "", "description": ""}]}),
        json!({"plans": [{"name": "s", "description": long(513)}], "displayName": long(129)}),
        json!({"plans": (0..50).map(|n| json!({"name": format!("p{n}")})).collect::<Vec<_>>()}),
        json!({"plans": (0..51).map(|n| json!({"name": format!("p{n}")})).collect::<Vec<_>>()}),
        target(json!({})),
        target(json!({"group": ""})),
        target(json!({"group": "A.b"})),
        target(json!({"group": "a..b"})),
        target(json!({"versions": []})),
        target(json!({"versions": ["*"]})),
        target(json!({"versions": ["*", "v1"]})),
        target(json!({"versions": ["V1"]})),
        target(json!({"resource": "rs/status"})),
        target(json!({"resource": "*"})),
        target(json!({"kind": "r'"})),
        target(json!({"kind": long(64)})),
        target(json!({"planFields": []})),
        target(json!({"planFields": [{"path": "spec.a[*].plan", "key": "name"}]})),
        target(json!({"planFields": [{"path": "spec.a[*].plan"}]})),
        target(json!({"planFields": [{"path": "spec.plan", "key": "name"}]})),
        target(json!({"planFields": [{"path": "spec.a[*]", "key": "name"}]})),
        target(json!({"planFields": [{"path": "spec.a[*].b[*].c", "key": "name"}]})),
        target(json!({"planFields": [{"path": "a.b.c.d.e.f.g.h"}]})),
        target(json!({"planFields": [{"path": "a.b.c.d.e.f.g.h.i"}]})),
        target(json!({"planFields": [{"path": "spec.'plan'"}]})),
        target(json!({"planFields": [{"path": "spec.plan\n"}]})),
        target(json!({"planFields": [{"path": format!("spec.{}", long(252))}]})),
        target(json!({"planFields": [{"path": format!("spec.{}", long(251))}]})),
        target(json!({"planFields": [{"path": "spec.a[*].plan", "key": "na.me"}]})),
        target(json!({"planFields": [{"path": "spec.a[*].plan", "key": ""}]})),
    ];
    let mut types: Vec<_> = specs.map(|spec| ("valkey".to_owned(), spec)).to_vec();
    types.extend([named("a.b"), named(&long(63)), named(&long(64))]);
    let (mut valid, mut invalid) = (0, 0);
    for (name, spec) in types {
        let object = json!({
            "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "ComputeResourceType",
            "metadata": {"name": name}, "spec": spec,
        });
        let answer = server
            .admin(Method::POST, &format!("{path}?dryRun=All"), Some(&object))
            .await;
        let errors = validate_resource_type(&serde_json::from_value(object.clone()).unwrap());
        assert_eq!(
            answer.status.is_success(),
            errors.is_empty(),
            "{object} {answer:?} {errors:?}"
        );
        *if errors.is_empty() {
            &mut valid
        } else {
            &mut invalid
        } += 1;
    }
    assert!(valid > 5 && invalid > 20, "{valid} {invalid}");
}
