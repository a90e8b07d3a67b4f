//! What is checked, and where.

use std::time::{Duration, Instant};

use boundary_operator::api::BoundaryPolicy;
use boundary_operator::evaluate::Kind;
use control_plane::{Version, eventually};
use http::Method;
use serde_json::{Value, json};

use crate::cases::rules;
use crate::server::{Place, SOON, Server, User};
use crate::support;
use crate::workload::{pod, with_image, with_labels, workload};

fn no_latest(name: &str, boundary: &str) -> BoundaryPolicy {
    support::policy(name, boundary, rules(json!({"disallowLatestTag": {}})))
}

fn latest(policy: &str, image: &str) -> String {
    format!(
        "Policy '{policy}' (DisallowLatestTag) denied image {image}: it is tagged latest or \
         carries no tag."
    )
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn debug_containers(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    server.install(&[no_latest("p", "debug")]).await;
    server.namespace("debug", Some("debug")).await;
    let stored = server.store("debug", &pod("p", "nginx:1")).await;
    let ask = async |name: &str, image: &str| {
        let mut new = stored.clone();
        new["spec"]["ephemeralContainers"] = json!([{"name": name, "image": image}]);
        let place = Place::of("debug", &stored).sub_resource("ephemeralcontainers");
        let path = format!("{}?dryRun=All", place.path());
        let user = User::default();
        server.send(user, Method::PUT, &path, Some(&new)).await
    };
    let answer = ask("d", "busybox").await;
    assert_eq!(answer.refusal(), Some(latest("p", "busybox")));
    assert_eq!(ask("d", "busybox:1").await.refusal(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn image_volumes() {
    // The first version that serves them without a feature gate.
    let server = Server::of(Version::V1_37).await;
    server.install(&[no_latest("p", "volumes")]).await;
    server.namespace("volumes", Some("volumes")).await;
    for kind in Kind::ALL {
        let object = |volume: Value| {
            let mut object = workload(kind, "v", "nginx:1");
            let spec = crate::workload::pod_spec(&mut object);
            spec["volumes"] =
                json!([{"name": "e", "emptyDir": {}}, {"name": "v", "image": volume}]);
            object
        };
        let bad = object(json!({"reference": "data"}));
        let answer = server.create("volumes", &bad).await;
        assert_eq!(answer.refusal(), Some(latest("p", "data")), "{kind:?}");
        let good = object(json!({"reference": "data:1"}));
        let answer = server.create("volumes", &good).await;
        assert_eq!(answer.refusal(), None, "{kind:?}");
        // Without a reference it is invalid, which is for the API server to say.
        let open = server.create("volumes", &object(json!({}))).await;
        assert!(!open.denied(), "{kind:?}: {open:?}");
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn other_requests(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    server.install(&[no_latest("p", "others")]).await;
    server.namespace("others", None).await;
    let mut stored = Vec::new();
    for kind in Kind::ALL {
        let object = server
            .store("others", &workload(kind, "stored", "nginx"))
            .await;
        stored.push(object);
    }
    server.relabel("others", Some("others")).await;
    eventually("others is in its boundary", SOON, async || {
        let answer = server.create("others", &pod("x", "nginx")).await;
        answer.denied().then_some(())
    })
    .await;

    for (kind, object) in Kind::ALL.into_iter().zip(&stored) {
        let what = format!("{v} {kind:?}");
        let place = Place::of("others", object);
        let mut new = with_labels(object, json!({"changed": "yes"}));
        if kind != Kind::Job {
            new = with_image(&new, "other");
        }
        // What the subresource leaves out is not judged.
        let path = format!("{}?dryRun=All", place.sub_resource("status").path());
        let answer = server.admin(Method::PUT, &path, Some(&new)).await;
        assert_eq!(answer.refusal(), None, "{what} status");
        if matches!(
            kind,
            Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet
        ) {
            let path = format!("{}?dryRun=All", place.sub_resource("scale").path());
            let scale = json!({"spec": {"replicas": 3}});
            let answer = server.admin(Method::PATCH, &path, Some(&scale)).await;
            assert_eq!(answer.refusal(), None, "{what} scale");
        }
        let path = format!("{}?dryRun=All", place.path());
        let answer = server.admin(Method::DELETE, &path, None).await;
        assert_eq!(answer.refusal(), None, "{what} deleted");
        // The same change of the object itself is refused.
        let answer = server.update("others", &new).await;
        assert!(answer.refusal().is_some(), "{what} changed");
    }

    // Not a kind that runs anything.
    let path = "/api/v1/namespaces/others/configmaps?dryRun=All";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nginx"}});
    let answer = server.admin(Method::POST, path, Some(&map)).await;
    assert_eq!(answer.refusal(), None);
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn boundaries_are_apart(
    #[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version,
) {
    let server = Server::of(v).await;
    let registries = json!({"allowedRegistries": {"registries": ["ghcr.io"]}});
    // A boundary that is no DNS label.
    let right = support::policy("right", "Apart_Right", rules(registries));
    server
        .install(&[no_latest("left", "apart-left"), right])
        .await;
    server.namespace("apart-left", Some("apart-left")).await;
    server.namespace("apart-right", Some("Apart_Right")).await;
    server.namespace("apart-none", None).await;
    server.namespace("apart-empty", Some("")).await;
    server.namespace("apart-case", Some("apart_right")).await;

    let right = Some(
        "Policy 'right' (AllowedRegistries) denied image nginx: it is not under ghcr.io."
            .to_owned(),
    );
    for kind in Kind::ALL {
        let object = workload(kind, "x", "nginx");
        for (namespace, expected) in [
            ("apart-left", Some(latest("left", "nginx"))),
            ("apart-right", right.clone()),
            ("apart-none", None),
            ("apart-empty", None),
            ("apart-case", None),
        ] {
            let answer = server.create(namespace, &object).await;
            assert_eq!(answer.refusal(), expected, "{v} {kind:?} {namespace}");
        }
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_changes_sides(
    #[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version,
) {
    let server = Server::of(v).await;
    let policies = [no_latest("one", "side-one"), no_latest("two", "side-two")];
    server.install(&policies).await;
    server.namespace("sides", None).await;
    let object = pod("x", "nginx");
    let sides = [
        (Some("side-one"), Some(latest("one", "nginx"))),
        (Some("side-two"), Some(latest("two", "nginx"))),
        (None, None),
        (Some("side-two"), Some(latest("two", "nginx"))),
        (Some("elsewhere"), None),
    ];
    for (boundary, expected) in sides {
        server.relabel("sides", boundary).await;
        let since = Instant::now();
        eventually(&format!("sides is in {boundary:?}"), SOON, async || {
            let answer = server.create("sides", &object).await;
            (answer.refusal() == expected).then_some(())
        })
        .await;
        let took = since.elapsed();
        assert!(took < Duration::from_secs(1), "{boundary:?}: {took:?}");
    }
}
