//! Policies that try to break out of their literals: they work as they are written, or they are
//! refused at apply with the field named.

use std::collections::BTreeSet;

use boundary_operator::api::{BoundaryPolicy, crds, validate};
use control_plane::{Version, eventually};
use http::{Method, StatusCode};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::server::{SOON, Server, User};
use crate::support::{self, largest};
use crate::workload::{containers, pod, with_labels, with_pod_spec};
use boundary_operator::evaluate::Kind;

/// What could end a literal, or be taken for CEL, a template or another line.
const TEXTS: &[&str] = &[
    "'",
    "\"",
    "''' + '",
    "\\",
    "\\'",
    "\\u0027",
    "a\\",
    "${x}",
    "{{.Values.x}}",
    "%s %d",
    "'] || true || ['",
    "'}, true, {'",
    "') || variables.denied.size() == 0 || ('",
    "// x",
    "a\nb",
    "a\r\nb",
    "a\tb",
    "\u{1}\u{7f}\u{85}",
    "\u{2028}\u{2029}",
    "é…😀\u{202e}",
    "object.metadata.name",
    "null",
    "",
    " ",
];

/// Serves the API on the hub of `server`.
async fn serve_policies(server: &Server) {
    for crd in crds() {
        let mut object = serde_json::to_value(&crd).unwrap();
        object["apiVersion"] = json!("apiextensions.k8s.io/v1");
        object["kind"] = json!("CustomResourceDefinition");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let answer = server.admin(Method::POST, path, Some(&object)).await;
        answer.accepted();
        eventually(
            &format!("{} are served", crd.name_any()),
            SOON,
            async || {
                let path = format!(
                    "/apis/boundarypolicy.dev/v1alpha1/{}",
                    crd.spec.names.plural
                );
                // Before it is served, the answer is no JSON.
                let request = http::Request::get(path).body(kube::client::Body::empty());
                let answer = server.client.send(request.unwrap()).await.ok()?;
                answer.status().is_success().then_some(())
            },
        )
        .await;
    }
}

/// Whether the schema takes a policy; if not, what it says.
async fn apply(server: &Server, policy: &Value) -> Result<BoundaryPolicy, String> {
    let path =
        "/apis/boundarypolicy.dev/v1alpha1/boundarypolicies?dryRun=All&fieldValidation=Strict";
    let answer = server.admin(Method::POST, path, Some(policy)).await;
    if answer.status.is_success() {
        return Ok(serde_json::from_value(answer.body).unwrap());
    }
    assert_eq!(
        answer.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{answer:?}"
    );
    Err(answer.body["message"].as_str().unwrap().to_owned())
}

fn as_applied(spec: &Value) -> Value {
    json!({
        "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
        "metadata": {"name": "hostile"}, "spec": spec,
    })
}

/// Puts a text into every field that takes one. The field as errors name it, and the spec.
fn placed(text: &str) -> Vec<(&'static str, Value)> {
    let exempting = |field: &str, list: Value| {
        json!({
            "boundary": "hostile",
            "rules": {"disallowLatestTag": {}},
            "exemptions": [{"reason": "r", "rules": ["DisallowLatestTag"], field: list}],
        })
    };
    let with = |rules: Value| json!({"boundary": "hostile", "rules": rules});
    vec![
        (
            "spec.boundary",
            json!({"boundary": text, "rules": {"disallowLatestTag": {}}}),
        ),
        (
            "spec.rules.allowedRegistries.registries[1]",
            with(json!({"allowedRegistries": {"registries": ["ghcr.io", text]}})),
        ),
        (
            "spec.rules.requiredLabels.labels",
            with(json!({"requiredLabels": {"labels": {text: "x"}}})),
        ),
        (
            "spec.rules.requiredLabels.labels",
            with(json!({"requiredLabels": {"labels": {"team": text}}})),
        ),
        (
            "spec.exemptions[0].namespaces[0]",
            exempting("namespaces", json!([text])),
        ),
        (
            "spec.exemptions[0].images[0]",
            exempting("images", json!([text])),
        ),
        (
            "spec.exemptions[0].users[0]",
            exempting("users", json!([text])),
        ),
        (
            "spec.exemptions[0].groups[0]",
            exempting("groups", json!([text])),
        ),
    ]
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn texts_are_refused_or_taken_as_they_are(
    #[values(Version::V1_30, Version::V1_37)] v: Version,
) {
    let server = Server::of(v).await;
    serve_policies(&server).await;
    let mut taken = Vec::new();
    for text in TEXTS {
        for (field, spec) in placed(text) {
            let what = format!("{v} {field} {text:?}");
            let offline = serde_json::from_value::<BoundaryPolicy>(as_applied(&spec)).unwrap();
            let errors = validate(&offline);
            match apply(&server, &as_applied(&spec)).await {
                Ok(policy) => {
                    assert_eq!(errors, [], "{what}: the schema takes it");
                    taken.push(policy);
                }
                Err(message) => {
                    assert!(message.contains(field), "{what}: {message}");
                    let named = errors.iter().any(|error| error.path.starts_with(field));
                    assert!(named, "{what}: {errors:?}");
                }
            }
        }
    }
    // Users and groups may be called anything; the empty value of a label is any value.
    assert!(taken.len() > 2 * (TEXTS.len() - 1), "{}", taken.len());

    // The API server takes the objects, and nobody is exempt who isn't named. In boundaries of a
    // few policies each, so that one object has all of a boundary.
    for (n, policy) in taken.iter_mut().enumerate() {
        policy.metadata.name = Some(format!("p{n:03}"));
        policy.spec.boundary = format!("hostile-{}", n / 16);
    }
    let boundaries: BTreeSet<_> = taken.iter().map(|p| p.spec.boundary.clone()).collect();
    assert_eq!(server.install(&taken).await.len(), boundaries.len());
    for boundary in &boundaries {
        server.namespace(boundary, Some(boundary)).await;
    }
    let bad = pod("x", "ghcr.io/x");
    let count = async |name: &str, groups: &[&str]| {
        let user = User { name, groups };
        let mut count = 0;
        for boundary in &boundaries {
            let answer = server.create_as(user, boundary, &bad).await;
            let message = answer.refusal().unwrap();
            count += message.matches("Policy 'p").count();
            if let Some((_, more)) = message.rsplit_once(". and ") {
                let more = more.trim_end_matches(" more.");
                count += more.parse::<usize>().unwrap();
            }
        }
        count
    };
    let all = count("somebody", &[]).await;
    let exempting = taken.iter().filter(|p| !p.spec.exemptions.is_empty());
    assert!(all >= exempting.count(), "{v}: {all}");
    for text in [
        "'",
        "\\",
        "${x}",
        "'] || true || ['",
        "// x",
        "a\\",
        "%s %d",
        "\\u0027",
    ] {
        assert_eq!(count(text, &[]).await, all - 1, "{v} user {text:?}");
        let groups = count("somebody", &[text]).await;
        assert_eq!(groups, all - 1, "{v} group {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn longest_lists_are_taken_and_longer_ones_are_not() {
    let server = Server::of(Version::V1_34).await;
    serve_policies(&server).await;
    let mut policy = largest("longest");
    policy.spec.boundary = "longest".to_owned();
    policy.spec.exemptions = support::longest_exemptions();
    let mut applied = serde_json::to_value(&policy).unwrap();
    applied["apiVersion"] = json!("boundarypolicy.dev/v1alpha1");
    applied["kind"] = json!("BoundaryPolicy");
    let stored = apply(&server, &applied).await.unwrap();
    assert_eq!(stored.spec, policy.spec);

    for (pointer, item, field) in [
        (
            "/spec/rules/allowedRegistries/registries",
            json!("x"),
            "allowedRegistries.registries",
        ),
        (
            "/spec/exemptions",
            json!({"reason": "r", "rules": ["DisallowLatestTag"], "users": ["u"]}),
            "spec.exemptions",
        ),
        (
            "/spec/exemptions/0/rules",
            json!("DisallowLatestTag"),
            "spec.exemptions[0].rules",
        ),
        (
            "/spec/exemptions/0/namespaces",
            json!("x"),
            "spec.exemptions[0].namespaces",
        ),
        (
            "/spec/exemptions/0/users",
            json!("x"),
            "spec.exemptions[0].users",
        ),
        (
            "/spec/exemptions/0/groups",
            json!("x"),
            "spec.exemptions[0].groups",
        ),
        (
            "/spec/exemptions/0/images",
            json!("x"),
            "spec.exemptions[0].images",
        ),
    ] {
        let mut longer = applied.clone();
        longer
            .pointer_mut(pointer)
            .unwrap()
            .as_array_mut()
            .unwrap()
            .push(item);
        let message = apply(&server, &longer).await.unwrap_err();
        assert!(message.contains(field), "{field}: {message}");
        let offline = serde_json::from_value::<BoundaryPolicy>(longer).unwrap();
        assert!(!validate(&offline).is_empty(), "{field}");
    }
    let mut longer = applied.clone();
    longer["spec"]["rules"]["requiredLabels"]["labels"]["one-more"] = json!("x");
    let message = apply(&server, &longer).await.unwrap_err();
    assert!(message.contains("requiredLabels.labels"), "{message}");

    // It acts: an image under its last prefix is allowed, and its neighbour isn't.
    policy.spec.exemptions.clear();
    let registries = policy
        .spec
        .rules
        .allowed_registries
        .as_ref()
        .unwrap()
        .registries
        .clone();
    policy.spec.rules.disallow_latest_tag = None;
    server.install(std::slice::from_ref(&policy)).await;
    server.namespace("longest", Some("longest")).await;
    let labels = policy
        .spec
        .rules
        .required_labels
        .as_ref()
        .unwrap()
        .labels
        .clone();
    let last = registries.last().unwrap();
    for (image, allowed) in [(format!("{last}/x"), true), (format!("{last}x"), false)] {
        let pod_spec = containers([image.as_str()]);
        let object = with_labels(
            &with_pod_spec(Kind::Deployment, "d", &pod_spec),
            json!(labels),
        );
        let refusal = server.create("longest", &object).await.refusal();
        assert_eq!(refusal.is_none(), allowed, "{refusal:?}");
    }
}
