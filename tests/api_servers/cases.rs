//! Every example and case of the rules, word for word.

use boundary_operator::api::{Action, BoundaryPolicy, Exemption};
use boundary_operator::evaluate::Kind;
use boundary_operator::rules::Rules;
use control_plane::{ControlPlane, Version, eventually};
use serde_json::{Value, json};

use crate::server::{Answer, SOON, Server, User};
use crate::support;
use crate::workload::{containers, pod, with_image, with_labels, with_pod_spec, workload};

/// Images, and whether they are under `ghcr.io/acme` or `docker.io/library`.
const REGISTRIES: &[(&str, bool)] = &[
    ("ghcr.io/acme/web:1.4", true),
    ("ghcr.io/acme/web@sha256:0123456789abcdef", true),
    ("ghcr.io/acme", true),
    ("docker.io/library/nginx:1.27", true),
    ("ghcr.io/acme-tools/web:1.4", false),
    ("ghcr.io.evil.com/acme/x", false),
    ("GHCR.io/acme/x", false),
    ("nginx:1.27", false),
];

/// Images, and whether they have a tag that isn't `latest`, or a digest.
const TAGS: &[(&str, bool)] = &[
    ("nginx:1.27", true),
    ("nginx@sha256:0123456789abcdef", true),
    ("nginx:latest@sha256:0123456789abcdef", true),
    ("registry:5000/api:2", true),
    ("nginx:latest-alpine", true),
    ("nginx:latest", false),
    ("nginx", false),
    ("registry:5000/api", false),
    ("registry:5000/team/api", false),
];

/// What is stored before the policies are: it breaks all of them.
const STORED: &str = "stored:latest";

pub(crate) fn rules(rules: Value) -> Rules {
    serde_json::from_value(rules).unwrap()
}

fn policy(name: &str, boundary: &str, json: Value) -> BoundaryPolicy {
    support::policy(name, boundary, rules(json))
}

/// Creates objects before their namespace joins a boundary whose policies refuse them.
async fn store_then_join(server: &Server, boundary: &str, objects: &[Value]) -> Vec<Value> {
    server.namespace(boundary, None).await;
    let mut stored = Vec::new();
    for object in objects {
        stored.push(server.store(boundary, object).await);
    }
    server.relabel(boundary, Some(boundary)).await;
    let what = format!("{boundary} is in its boundary");
    eventually(&what, SOON, async || {
        let answer = server.create(boundary, &pod("probe", STORED)).await;
        answer.denied().then_some(())
    })
    .await;
    stored
}

/// Judges every image in every kind, created and changed, by one policy.
async fn judge_images(
    server: &Server,
    policy: BoundaryPolicy,
    cases: &[(&str, bool)],
    message: impl Fn(&str) -> String,
) {
    let boundary = policy.spec.boundary.clone();
    server.install(&[policy]).await;
    let jobs = cases.iter().enumerate();
    let jobs = jobs.map(|(n, (image, _))| workload(Kind::Job, &format!("job{n}"), image));
    let others = Kind::ALL.map(|kind| workload(kind, "stored", STORED));
    let objects: Vec<_> = jobs.chain(others).collect();
    let stored = store_then_join(server, &boundary, &objects).await;
    let (jobs, others) = stored.split_at(cases.len());

    for ((image, allowed), job) in cases.iter().zip(jobs) {
        let expected = (!allowed).then(|| message(image));
        for (kind, old) in Kind::ALL.into_iter().zip(others) {
            let what = format!("{} {kind:?} {image}", server.version);
            let answer = server
                .create(&boundary, &workload(kind, "new", image))
                .await;
            assert_eq!(answer.refusal(), expected, "{what} created");
            // The image of a Job can't be changed, but a Job is checked when its labels are.
            let new = match kind {
                Kind::Job => with_labels(job, json!({"changed": "yes"})),
                _ => with_image(old, image),
            };
            let answer = server.update(&boundary, &new).await;
            assert_eq!(answer.refusal(), expected, "{what} changed");
        }
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn allowed_registries(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let registries =
        json!({"allowedRegistries": {"registries": ["ghcr.io/acme/", "docker.io/library"]}});
    let policy = policy("trusted", "registries", registries);
    judge_images(&server, policy, REGISTRIES, |image| {
        format!(
            "Policy 'trusted' (AllowedRegistries) denied image {image}: it is not under \
             ghcr.io/acme, docker.io/library."
        )
    })
    .await;
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn disallow_latest_tag(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let policy = policy("no-latest", "latest", json!({"disallowLatestTag": {}}));
    judge_images(&server, policy, TAGS, |image| {
        format!(
            "Policy 'no-latest' (DisallowLatestTag) denied image {image}: it is tagged latest or \
             carries no tag."
        )
    })
    .await;
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn required_labels(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let any = policy(
        "any",
        "labels",
        json!({"requiredLabels": {"labels": {"team": ""}}}),
    );
    let equal = policy(
        "equal",
        "labels",
        json!({"requiredLabels": {"labels": {"team": "web"}}}),
    );
    server.install(&[any, equal]).await;
    let objects = Kind::ALL.map(|kind| workload(kind, "stored", STORED));
    let stored = store_then_join(&server, "labels", &objects).await;

    let cases: &[(Value, Option<&str>)] = &[
        (json!({"team": "web"}), None),
        (json!({"team": "web", "other": "x"}), None),
        (
            json!({"team": "api"}),
            Some("Policy 'equal' (RequiredLabels) requires label team=web, found api."),
        ),
        (
            json!({"team": ""}),
            Some("Policy 'equal' (RequiredLabels) requires label team=web, found ."),
        ),
        (
            json!({"Team": "web"}),
            Some(
                "Policy 'any' (RequiredLabels) requires the label team. \
                 Policy 'equal' (RequiredLabels) requires label team=web, found <unset>.",
            ),
        ),
    ];
    for (labels, expected) in cases {
        for (kind, old) in Kind::ALL.into_iter().zip(&stored) {
            let what = format!("{v} {kind:?} {labels}");
            let expected = expected.map(str::to_owned);
            let mut new = with_labels(&workload(kind, "new", "nginx:1"), labels.clone());
            // The labels of a template are not those of the object.
            if let Some(template) = new.pointer_mut("/spec/template/metadata/labels") {
                template["team"] = json!("web");
            }
            let answer = server.create("labels", &new).await;
            assert_eq!(answer.refusal(), expected, "{what} created");
            let new = with_labels(old, labels.clone());
            let answer = server.update("labels", &new).await;
            assert_eq!(answer.refusal(), expected, "{what} changed");
        }
    }
}

/// Three policies, each of which `nginx:latest` without labels breaks. Their names and their rules
/// sort differently.
fn three(boundary: &str) -> [BoundaryPolicy; 3] {
    [
        policy(
            "gamma",
            boundary,
            json!({"requiredLabels": {"labels": {"team": "web"}}}),
        ),
        policy("alpha", boundary, json!({"disallowLatestTag": {}})),
        policy(
            "beta",
            boundary,
            json!({"allowedRegistries": {"registries": ["ghcr.io/acme"]}}),
        ),
    ]
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn all_violations_at_once(
    #[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version,
) {
    let server = Server::of(v).await;
    server.install(&three("three")).await;
    server.namespace("three", Some("three")).await;
    let deployment = workload(Kind::Deployment, "web", "nginx:latest");
    let expected = "Policy 'alpha' (DisallowLatestTag) denied image nginx:latest: it is tagged \
                    latest or carries no tag. Policy 'beta' (AllowedRegistries) denied image \
                    nginx:latest: it is not under ghcr.io/acme. Policy 'gamma' (RequiredLabels) \
                    requires label team=web, found <unset>.";
    let answer = server.create("three", &deployment).await;
    assert_eq!(
        answer.body["message"],
        format!(
            "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy \
             'three.boundarypolicy.dev' with binding 'three.boundarypolicy.dev' denied request: \
             {expected}"
        )
    );
    assert_eq!(answer.refusal().unwrap(), expected);

    // Containers, then init containers; every rule of a policy before the next policy.
    let pod_spec = json!({
        "initContainers": [{"name": "i", "image": "init"}],
        "containers": [{"name": "a", "image": "b/main:1"}, {"name": "b", "image": "a"}],
    });
    for kind in Kind::ALL {
        let object = with_labels(
            &with_pod_spec(kind, "web", &pod_spec),
            json!({"team": "web"}),
        );
        let latest = ["a", "init"].map(|image| {
            format!(
                "Policy 'alpha' (DisallowLatestTag) denied image {image}: it is tagged latest or \
                 carries no tag."
            )
        });
        let registries = ["b/main:1", "a", "init"].map(|image| {
            format!(
                "Policy 'beta' (AllowedRegistries) denied image {image}: it is not under \
                 ghcr.io/acme."
            )
        });
        let expected = [&latest[..], &registries[..]].concat().join(" ");
        let answer = server.create("three", &object).await;
        assert_eq!(answer.refusal(), Some(expected), "{v} {kind:?}");
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn only_a_change_is_checked(
    #[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version,
) {
    let server = Server::of(v).await;
    server.install(&three("change")).await;
    let objects = Kind::ALL.map(|kind| {
        let object = workload(kind, "stored", STORED);
        with_labels(&object, json!({"app": "stored"}))
    });
    let stored = store_then_join(&server, "change", &objects).await;
    let latest = |image: &str| {
        format!(
            "Policy 'alpha' (DisallowLatestTag) denied image {image}: it is tagged latest or \
             carries no tag. Policy 'beta' (AllowedRegistries) denied image {image}: it is not \
             under ghcr.io/acme."
        )
    };
    let label = "Policy 'gamma' (RequiredLabels) requires label team=web, found <unset>.";

    for (kind, old) in Kind::ALL.into_iter().zip(&stored) {
        let what = format!("{v} {kind:?}");
        let mut bookkeeping = vec![old.clone()];
        for (pointer, value) in [
            ("annotations", json!({"a": "b"})),
            ("finalizers", json!(["example.com/keep"])),
            (
                "ownerReferences",
                json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "o"}]),
            ),
        ] {
            let mut new = old.clone();
            new["metadata"][pointer] = value;
            bookkeeping.push(new);
        }
        let spec = match kind {
            Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet => json!({"replicas": 0}),
            Kind::DaemonSet => json!({"minReadySeconds": 5}),
            Kind::Job => json!({"parallelism": 2, "suspend": true}),
            Kind::CronJob => json!({"suspend": true, "schedule": "1 1 1 1 *"}),
            Kind::Pod => json!({}),
        };
        let mut new = old.clone();
        for (field, value) in spec.as_object().unwrap() {
            new["spec"][field] = value.clone();
        }
        bookkeeping.push(new);
        for new in &bookkeeping {
            let answer = server.update("change", new).await;
            assert_eq!(answer.refusal(), None, "{what} {new}");
        }

        let labelled = with_labels(old, json!({"app": "stored", "role": "master"}));
        let answer = server.update("change", &labelled).await;
        let expected = match kind {
            Kind::Pod => label.to_owned(),
            _ => format!("{} {label}", latest(STORED)),
        };
        assert_eq!(answer.refusal(), Some(expected), "{what} labels changed");

        if kind != Kind::Job {
            let answer = server.update("change", &with_image(old, "new")).await;
            let expected = match kind {
                Kind::Pod => latest("new"),
                _ => format!("{} {label}", latest("new")),
            };
            assert_eq!(answer.refusal(), Some(expected), "{what} image changed");
        }
    }
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn warnings(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let mut policies = three("warn");
    policies[0].spec.action = Action::Warn;
    policies[1].spec.action = Action::Warn;
    server.install(&policies).await;
    server.namespace("warn", Some("warn")).await;
    let label = "Policy 'gamma' (RequiredLabels) requires label team=web, found <unset>.";
    let denial = |image: &str| {
        format!(
            "Policy 'beta' (AllowedRegistries) denied image {image}: it is not under ghcr.io/acme."
        )
    };
    for kind in Kind::ALL {
        let what = format!("{v} {kind:?}");
        let answer = server
            .create("warn", &workload(kind, "w", "ghcr.io/acme/web"))
            .await;
        assert_eq!(answer.refusal(), None, "{what}");
        let latest = "Policy 'alpha' (DisallowLatestTag) denied image ghcr.io/acme/web: it is \
                      tagged latest or carries no tag.";
        let object = "warn.boundarypolicy.dev.warn";
        let expected = format!(
            "Validation failed for ValidatingAdmissionPolicy '{object}' with binding '{object}': \
             {latest} {label}"
        );
        assert_eq!(answer.warnings, [expected], "{what}");

        let answer = server.create("warn", &workload(kind, "w", "nginx:1")).await;
        assert_eq!(answer.refusal(), Some(denial("nginx:1")), "{what}");
        assert_eq!(answer.warning_messages(), [label], "{what}");

        let good = with_labels(
            &workload(kind, "w", "ghcr.io/acme/web:1"),
            json!({"team": "web"}),
        );
        let answer = server.create("warn", &good).await;
        assert_eq!(answer.refusal(), None, "{what}");
        assert_eq!(answer.warnings, [""; 0], "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_annotations() {
    let log = tempfile::tempdir().unwrap();
    let rules = log.path().join("policy.yaml");
    let metadata = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "rules": [{"level": "Metadata", "resources": [{"group": "", "resources": ["pods"]}]}],
    });
    std::fs::write(&rules, metadata.to_string()).unwrap();
    let entries = log.path().join("audit.log");
    let plane = {
        let (rules, entries) = (rules.clone(), entries.clone());
        let start = move || {
            ControlPlane::builder(Version::V1_34)
                .api_server_arg(format!("--audit-policy-file={}", rules.display()))
                .api_server_arg(format!("--audit-log-path={}", entries.display()))
                .start()
                .unwrap()
        };
        tokio::task::spawn_blocking(start).await.unwrap()
    };
    let server = Server::at(&plane);
    let mut policies = three("audit");
    for policy in &mut policies {
        policy.spec.action = Action::Audit;
    }
    server.put(&server.compile(&policies)).await;
    server.namespace("audit", Some("audit")).await;

    let pod = with_labels(&pod("p", "ghcr.io/acme/web"), json!({"team": "web"}));
    let annotation = eventually("an entry in the audit log", SOON, async || {
        let answer = server.create("audit", &pod).await;
        assert_eq!(answer.refusal(), None);
        assert_eq!(answer.warnings, [""; 0]);
        let entries = std::fs::read_to_string(&entries).unwrap();
        let mut entries = entries
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        entries.find_map(|entry| {
            let key = "validation.policy.admission.k8s.io/validation_failure";
            Some(entry["annotations"].get(key)?.as_str()?.to_owned())
        })
    })
    .await;
    let annotation: Value = serde_json::from_str(&annotation).unwrap();
    assert_eq!(annotation[0]["policy"], "audit.boundarypolicy.dev.audit");
    assert_eq!(annotation[0]["validationActions"], json!(["Audit"]));
    assert_eq!(
        annotation[0]["message"],
        "Policy 'alpha' (DisallowLatestTag) denied image ghcr.io/acme/web: it is tagged latest or \
         carries no tag."
    );
}

type Groups = &'static [&'static str];

fn exemptions(json: Value) -> Vec<Exemption> {
    serde_json::from_value(json).unwrap()
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn exempt(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let json = json!({
        "requiredLabels": {"labels": {"team": ""}},
        "disallowLatestTag": {},
        "allowedRegistries": {"registries": ["docker.io"]},
    });
    let mut policy = policy("p", "exempt", json);
    policy.spec.exemptions = exemptions(json!([
        {"reason": "builds", "rules": ["DisallowLatestTag"], "namespaces": ["exempt-builds"]},
        {"reason": "a user's image", "rules": ["DisallowLatestTag", "AllowedRegistries"],
         "users": ["system:serviceaccount:ci:builder"], "images": ["ghcr.io/acme/fn/"]},
        {"reason": "ended", "rules": ["RequiredLabels"], "groups": ["former"],
         "expires": "2026-11-29T23:59:59Z"},
        {"reason": "a group, for a while", "rules": ["RequiredLabels"], "groups": ["ops"],
         "users": ["root"], "expires": "2026-11-30T00:00:01Z"},
    ]));
    server.install(&[policy]).await;
    for namespace in ["exempt", "exempt-builds"] {
        server.namespace(namespace, Some("exempt")).await;
    }
    let label = "Policy 'p' (RequiredLabels) requires the label team.";
    let registry = |image: &str| {
        format!("Policy 'p' (AllowedRegistries) denied image {image}: it is not under docker.io.")
    };
    let latest = |image: &str| {
        format!(
            "Policy 'p' (DisallowLatestTag) denied image {image}: it is tagged latest or carries \
             no tag."
        )
    };
    let builder = "system:serviceaccount:ci:builder";
    let all = |image: &str| vec![label.to_owned(), registry(image), latest(image)];
    let cases: Vec<(&str, &str, Groups, &str, Vec<String>)> = vec![
        ("exempt", "a", &[], "x/y", all("x/y")),
        (
            "exempt-builds",
            "a",
            &[],
            "x/y",
            vec![label.to_owned(), registry("x/y")],
        ),
        (
            "exempt",
            builder,
            &[],
            "ghcr.io/acme/fn",
            vec![label.to_owned()],
        ),
        (
            "exempt",
            builder,
            &[],
            "ghcr.io/acme/fn/a",
            vec![label.to_owned()],
        ),
        (
            "exempt",
            builder,
            &[],
            "ghcr.io/acme/fn2",
            all("ghcr.io/acme/fn2"),
        ),
        (
            "exempt",
            "a",
            &[],
            "ghcr.io/acme/fn",
            all("ghcr.io/acme/fn"),
        ),
        ("exempt", "a", &["former"], "x/y", all("x/y")),
        (
            "exempt",
            "a",
            &["x", "ops"],
            "x/y",
            vec![registry("x/y"), latest("x/y")],
        ),
        (
            "exempt",
            "root",
            &[],
            "x/y",
            vec![registry("x/y"), latest("x/y")],
        ),
    ];
    for (namespace, name, groups, image, sentences) in cases {
        for kind in Kind::ALL {
            let user = User { name, groups };
            let object = workload(kind, "e", image);
            let answer = server.create_as(user, namespace, &object).await;
            let what = format!("{v} {kind:?} {namespace} {name} {groups:?} {image}");
            assert_eq!(answer.refusal(), Some(sentences.join(" ")), "{what}");
        }
    }
    // An image that is exempt doesn't exempt the others.
    let pod = with_pod_spec(
        Kind::Pod,
        "e",
        &containers(["ghcr.io/acme/fn", "docker.io/x"]),
    );
    let user = User {
        name: builder,
        groups: &["ops"],
    };
    let answer = server.create_as(user, "exempt", &pod).await;
    assert_eq!(answer.refusal(), Some(latest("docker.io/x")));
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn long_messages(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let server = Server::of(v).await;
    let prefixes: Vec<_> = (0..30)
        .map(|n| format!("registry{n:02}.example.com"))
        .collect();
    let registries = json!({"allowedRegistries": {"registries": prefixes}});
    server
        .install(&[
            policy("no-latest", "long", json!({"disallowLatestTag": {}})),
            policy("trusted", "long-list", registries),
            policy(
                &"n".repeat(253),
                "long-name",
                json!({"disallowLatestTag": {}}),
            ),
        ])
        .await;
    for namespace in ["long", "long-list", "long-name"] {
        server.namespace(namespace, Some(namespace)).await;
    }
    let ask = async |namespace: &str, images: &[String]| -> Answer {
        let pod_spec = containers(images.iter().map(String::as_str));
        let object = with_pod_spec(Kind::Deployment, "d", &pod_spec);
        server.create(namespace, &object).await
    };
    let sentence = |image: &str| {
        format!(
            "Policy 'no-latest' (DisallowLatestTag) denied image {image}: it is tagged latest or \
             carries no tag."
        )
    };

    // Eight sentences, and the rest is counted.
    for count in [8, 9, 11] {
        let images: Vec<_> = (0..count).map(|n| format!("i{n}")).collect();
        let mut expected: Vec<_> = images.iter().take(8).map(|image| sentence(image)).collect();
        if count > 8 {
            expected.push(format!("and {} more.", count - 8));
        }
        let answer = ask("long", &images).await;
        assert_eq!(answer.refusal(), Some(expected.join(" ")));
    }

    // An image past 300 characters is cut; in characters, not bytes. A line break is a space.
    let fits = "😀".repeat(300);
    let answer = ask("long", std::slice::from_ref(&fits)).await;
    assert_eq!(answer.refusal(), Some(sentence(&fits)));
    let answer = ask("long", &["😀".repeat(301)]).await;
    assert_eq!(answer.refusal(), Some(sentence(&format!("{fits}…"))));
    let answer = ask("long", &["a\nb\r\nc".to_owned()]).await;
    assert_eq!(answer.refusal(), Some(sentence("a b  c")));

    // A list of prefixes past 400 characters is cut.
    let listed: String = prefixes.join(", ").chars().take(400).collect();
    let answer = ask("long-list", &["nginx:1".to_owned()]).await;
    let expected = format!(
        "Policy 'trusted' (AllowedRegistries) denied image nginx:1: it is not under {listed}…."
    );
    assert_eq!(answer.refusal(), Some(expected));

    // A message that would pass what the API server shows has fewer sentences.
    let images: Vec<_> = (0..9).map(|n| format!("{n}{}", "😀".repeat(400))).collect();
    let message = ask("long-name", &images).await.refusal().unwrap();
    assert!(message.len() <= 5120, "{}", message.len());
    assert!(message.ends_with("no tag. and 6 more."), "{message}");
}
