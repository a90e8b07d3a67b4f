//! Every case of the rules, judged offline.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod support;

use boundary_operator::rules::RuleName;
use serde_json::{Value, json};
use support::{Judge, policy, to_json};

#[test]
fn examples_of_every_rule() {
    for &rule in RuleName::ALL {
        let rules = rule.sample();
        let judge = Judge::new(&[policy("example", "web", rules.clone())]);
        let violating = to_json(rules.violating_pod(rule).unwrap());
        let passing = to_json(rules.passing_pod(rule).unwrap());
        let start = format!("Policy 'example' ({rule}) ");
        let message = judge.create(&violating).unwrap_or_default();
        assert!(message.starts_with(&start), "{rule}: {message:?}");
        assert_eq!(judge.create(&passing), None, "{rule}");
    }
}

fn pod(image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": image}]},
    })
}

#[rstest::rstest]
#[case("ghcr.io/acme/web:1.4", true)]
#[case("ghcr.io/acme/web@sha256:abc", true)]
#[case("ghcr.io/acme", true)]
#[case("ghcr.io/acme-tools/web:1.4", false)]
#[case("ghcr.io.evil.com/acme/x", false)]
#[case("GHCR.io/acme/x", false)]
#[case("docker.io/library/nginx:1.27", true)]
#[case("nginx:1.27", false)]
fn allowed_registries(#[case] image: &str, #[case] allowed: bool) {
    let rules =
        json!({"allowedRegistries": {"registries": ["ghcr.io/acme/", "docker.io/library"]}});
    let judge = Judge::new(&[policy(
        "trusted",
        "web",
        serde_json::from_value(rules).unwrap(),
    )]);
    let expected = (!allowed).then(|| {
        format!("Policy 'trusted' (AllowedRegistries) denied image {image}: it is not under ghcr.io/acme, docker.io/library.")
    });
    assert_eq!(judge.create(&pod(image)), expected);
}

#[rstest::rstest]
#[case("nginx:1.27", true)]
#[case("nginx@sha256:0123", true)]
#[case("nginx:latest@sha256:0123", true)]
#[case("registry:5000/api:2", true)]
#[case("nginx:latest-alpine", true)]
#[case("nginx:latest", false)]
#[case("nginx", false)]
#[case("registry:5000/api", false)]
#[case("registry:5000/team/api", false)]
#[case::empty_tag("nginx:", false)]
#[case::no_digest("nginx@latest", false)]
fn disallow_latest_tag(#[case] image: &str, #[case] allowed: bool) {
    let rules = serde_json::from_value(json!({"disallowLatestTag": {}})).unwrap();
    let judge = Judge::new(&[policy("no-latest", "web", rules)]);
    let expected = (!allowed).then(|| {
        format!("Policy 'no-latest' (DisallowLatestTag) denied image {image}: it is tagged latest or carries no tag.")
    });
    assert_eq!(judge.create(&pod(image)), expected);
}

#[rstest::rstest]
#[case::none(json!([]), &[])]
#[case::another_key(json!([{"key": "gpu", "operator": "Exists"}]), &[])]
#[case::control_plane(
    json!([{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}]),
    &["node-role.kubernetes.io/control-plane"]
)]
#[case::master_with_a_value(
    json!([{"key": "node-role.kubernetes.io/master", "operator": "Equal", "value": "x", "effect": "PreferNoSchedule"}]),
    &["node-role.kubernetes.io/master"]
)]
#[case::everything(json!([{"operator": "Exists"}]), &["*"])]
#[case::every_no_schedule(json!([{"key": "", "operator": "Exists", "effect": "NoSchedule"}]), &["*"])]
#[case::every_no_execute(json!([{"operator": "Exists", "effect": "NoExecute"}]), &[])]
#[case::every_preference(json!([{"operator": "Exists", "effect": "PreferNoSchedule"}]), &[])]
#[case::each_in_order(
    json!([{"operator": "Exists"}, {"key": "gpu"}, {"key": "node-role.kubernetes.io/master"}]),
    &["*", "node-role.kubernetes.io/master"]
)]
fn disallow_control_plane_tolerations(#[case] tolerations: Value, #[case] denied: &[&str]) {
    let rules = json!({"disallowControlPlaneTolerations": {}});
    let judge = Judge::new(&[policy(
        "workers",
        "web",
        serde_json::from_value(rules).unwrap(),
    )]);
    let mut object = pod("nginx:1.27");
    object["spec"]["tolerations"] = tolerations;
    let sentences: Vec<_> = denied
        .iter()
        .map(|key| {
            format!("Policy 'workers' (DisallowControlPlaneTolerations) denied toleration {key}: Pods may not use tolerations which schedule on control plane nodes.")
        })
        .collect();
    let expected = (!sentences.is_empty()).then(|| sentences.join(" "));
    assert_eq!(judge.create(&object), expected);
}

#[rstest::rstest]
#[case::all_there(json!({"team": "web", "owner": "x"}), &[])]
#[case::empty_is_any(json!({"team": "web", "owner": ""}), &[])]
#[case::other_value(json!({"team": "api", "owner": "x"}), &["label team=web, found api"])]
#[case::missing(json!({"team": "web"}), &["the label owner"])]
#[case::both(json!({}), &["the label owner", "label team=web, found <unset>"])]
fn required_labels(#[case] labels: Value, #[case] required: &[&str]) {
    let rules = json!({"requiredLabels": {"labels": {"team": "web", "owner": ""}}});
    let judge = Judge::new(&[policy(
        "owner-label",
        "web",
        serde_json::from_value(rules).unwrap(),
    )]);
    let mut object = pod("nginx:1.27");
    object["metadata"]["labels"] = labels;
    let sentences: Vec<_> = required
        .iter()
        .map(|what| format!("Policy 'owner-label' (RequiredLabels) requires {what}."))
        .collect();
    let expected = (!sentences.is_empty()).then(|| sentences.join(" "));
    assert_eq!(judge.create(&object), expected);
}

#[test]
fn a_job_without_labels_has_those_of_its_template() {
    let rules = json!({"requiredLabels": {"labels": {"team": "web"}}});
    let rules = serde_json::from_value(rules).unwrap();
    let judge = Judge::new(&[policy("p", "web", rules)]);
    let object = |kind: &str, labels: Value, template: Value| {
        json!({
            "apiVersion": if kind == "Job" { "batch/v1" } else { "apps/v1" },
            "kind": kind,
            "metadata": {"name": "x", "labels": labels},
            "spec": {"template": {
                "metadata": {"labels": template},
                "spec": {"containers": [{"name": "c", "image": "nginx:1"}]},
            }},
        })
    };
    let (web, none) = (json!({"team": "web"}), json!({}));
    assert_eq!(
        judge.create(&object("Job", none.clone(), web.clone())),
        None
    );
    assert_eq!(judge.create(&object("Job", Value::Null, web.clone())), None);
    let message = "Policy 'p' (RequiredLabels) requires label team=web, found <unset>.";
    for object in [
        object("Job", json!({"a": "b"}), web.clone()),
        object("Job", none.clone(), none.clone()),
        object("Deployment", none, web),
    ] {
        assert_eq!(judge.create(&object).as_deref(), Some(message), "{object}");
    }
}

#[test]
fn every_violation_of_every_policy_in_order() {
    let rules = |json| serde_json::from_value(json).unwrap();
    let judge = Judge::new(&[
        policy(
            "z",
            "web",
            rules(json!({"requiredLabels": {"labels": {"team": ""}}})),
        ),
        policy(
            "a",
            "web",
            rules(json!({
                "requiredLabels": {"labels": {"owner": ""}},
                "disallowLatestTag": {},
                "allowedRegistries": {"registries": ["ghcr.io"]},
            })),
        ),
    ]);
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"spec": {
            "initContainers": [{"name": "i", "image": "init"}],
            "containers": [{"name": "c", "image": "main"}],
            "volumes": [{"name": "v", "image": {"reference": "volume\nx"}}, {"name": "w", "image": {}}],
        }}},
    });
    insta::assert_snapshot!(judge.create(&object).unwrap().replace(". ", ".\n"));
}

#[test]
fn no_more_than_eight_sentences() {
    let rules = serde_json::from_value(json!({"disallowLatestTag": {}})).unwrap();
    let judge = Judge::new(&[policy("no-latest", "web", rules)]);
    let mut object = pod("nginx");
    let containers = (0..11).map(|n| json!({"name": format!("c{n}"), "image": format!("i{n}")}));
    object["spec"]["containers"] = containers.collect();
    let message = judge.create(&object).unwrap();
    assert!(message.contains("denied image i7:"), "{message}");
    assert!(
        message.ends_with("carries no tag. and 3 more."),
        "{message}"
    );
}

#[test]
fn a_long_message_has_fewer_sentences_and_fits() {
    let name = "n".repeat(253);
    let rules = serde_json::from_value(json!({"disallowLatestTag": {}})).unwrap();
    let judge = Judge::new(&[policy(&name, "web", rules)]);
    let mut object = pod("nginx");
    let containers = (0..9)
        .map(|n| json!({"name": format!("c{n}"), "image": format!("{n}{}", "😀".repeat(400))}));
    object["spec"]["containers"] = containers.collect();
    let message = judge.create(&object).unwrap();
    assert!(
        message.len() <= 5120 && message.len() > 4000,
        "{}",
        message.len()
    );
    assert!(message.ends_with(" and 6 more."), "{message}");
    assert!(
        message.contains(&format!("0{}…: it is tagged", "😀".repeat(299))),
        "{message}"
    );
}

#[test]
fn exemptions() {
    let rules = serde_json::from_value(
        json!({"disallowLatestTag": {}, "requiredLabels": {"labels": {"team": ""}}}),
    )
    .unwrap();
    let mut policy = policy("p", "web", rules);
    policy.spec.exemptions = serde_json::from_value(json!([
        {"reason": "builds", "rules": ["DisallowLatestTag"], "namespaces": ["web-builds"]},
        {"reason": "one image", "rules": ["DisallowLatestTag"], "images": ["ghcr.io/acme/fn/"], "users": ["ci"]},
        {"reason": "ended", "rules": ["RequiredLabels"], "groups": ["ops"], "expires": "2026-01-01T00:00:00Z"},
        {"reason": "holds", "rules": ["RequiredLabels"], "groups": ["dev"], "expires": "2027-01-01T00:00:00Z"},
    ])).unwrap();
    let mut judge = Judge::new(&[policy]);
    let latest = |image: &str| format!("denied image {image}");
    let says = |judge: &Judge, image: &str, what: &str| {
        judge.create(&pod(image)).is_some_and(|m| m.contains(what))
    };

    assert!(says(&judge, "fn", &latest("fn")));
    assert!(says(&judge, "fn", "requires the label team"));
    judge.namespace = "web-builds";
    assert!(!says(&judge, "fn", &latest("fn")));
    assert!(says(&judge, "fn", "requires the label team"));
    judge.namespace = "web";
    assert!(says(
        &judge,
        "ghcr.io/acme/fn/a",
        &latest("ghcr.io/acme/fn/a")
    ));
    judge.user = "ci";
    assert!(!says(
        &judge,
        "ghcr.io/acme/fn/a",
        &latest("ghcr.io/acme/fn/a")
    ));
    assert!(says(
        &judge,
        "ghcr.io/acme/fn2/a",
        &latest("ghcr.io/acme/fn2/a")
    ));
    judge.groups = vec!["ops".to_owned()];
    assert!(says(&judge, "fn", "requires the label team"));
    judge.groups = vec!["dev".to_owned()];
    assert!(!says(&judge, "fn", "requires the label team"));
}

#[test]
fn only_what_changed_is_judged() {
    let rules = serde_json::from_value(
        json!({"disallowLatestTag": {}, "requiredLabels": {"labels": {"team": ""}}}),
    )
    .unwrap();
    let judge = Judge::new(&[policy("p", "web", rules)]);
    let old = pod("nginx");
    assert_eq!(judge.update(&old, &old), None);

    let mut annotated = old.clone();
    annotated["metadata"]["annotations"] = json!({"a": "b"});
    annotated["metadata"]["finalizers"] = json!(["x"]);
    assert_eq!(judge.update(&old, &annotated), None);

    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"role": "master"});
    assert_eq!(
        judge.update(&old, &labelled).unwrap(),
        "Policy 'p' (RequiredLabels) requires the label team."
    );

    let mut image = old.clone();
    image["spec"]["containers"][0]["image"] = json!("nginx:latest");
    let message = judge.update(&old, &image).unwrap();
    assert_eq!(
        message,
        "Policy 'p' (DisallowLatestTag) denied image nginx:latest: it is tagged latest or carries no tag."
    );
}
