//! Every case of the rules that change Pods, offline.

use std::collections::BTreeSet;

use boundary_operator::compile::{Mutating, MutatingApi};
use boundary_operator::rules::RuleName;
use serde_json::{Value, json};

use crate::boundary::{Offline, compiled, reporting, seed};
use crate::support::to_json;

/// A Pod of `spec`.
pub(crate) fn of(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

/// A Pod with one container that has `resources`.
fn with(resources: &Value) -> Value {
    of(&json!({"containers": [{"name": "web", "image": "nginx:alpine", "resources": resources}]}))
}

fn offline(rules: &Value) -> Offline {
    Offline::new(&[reporting("defaults", "web", rules)], "web")
}

#[test]
fn the_example_to_the_letter() {
    let offline = offline(&seed());
    let submitted = of(&json!({"containers": [{"name": "web", "image": "nginx:alpine"}]}));
    let running = offline.mutate(&submitted);
    assert_eq!(
        running["spec"]["containers"],
        json!([{
            "name": "web",
            "image": "nginx:alpine",
            "imagePullPolicy": "Always",
            "resources": {
                "requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
                "limits": {"memory": "200Mi", "ephemeral-storage": "2Gi"},
            },
        }])
    );
    assert_eq!(offline.judge(&running), [""; 0]);

    let memory = json!({"requests": {"memory": "300Mi"}, "limits": {"memory": "500Mi"}});
    let running = offline.mutate(&with(&memory));
    let resources = &running["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"]["memory"], "300Mi");
    assert_eq!(resources["limits"]["memory"], "300Mi");
    assert_eq!(resources["limits"]["cpu"], Value::Null);
}

#[rstest::rstest]
#[case::nothing(json!({}), json!({
    "requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
    "limits": {"memory": "200Mi", "ephemeral-storage": "2Gi"},
}))]
#[case::limits_only(json!({"limits": {"cpu": "2", "memory": "1Gi"}}), json!({
    "requests": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"},
    "limits": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "2Gi"},
}))]
#[case::request_above_the_default_limit(json!({"requests": {"ephemeral-storage": "3072Mi"}}), json!({
    "requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "3072Mi"},
    "limits": {"memory": "200Mi", "ephemeral-storage": "3072Mi"},
}))]
#[case::the_same_in_other_units(
    json!({"requests": {"memory": "1Gi", "ephemeral-storage": "2048Mi"}, "limits": {"memory": "1024Mi"}}),
    json!({
        "requests": {"cpu": "100m", "memory": "1Gi", "ephemeral-storage": "2048Mi"},
        "limits": {"memory": "1024Mi", "ephemeral-storage": "2Gi"},
    })
)]
#[case::numbers(json!({"requests": {"cpu": 1, "memory": 1_048_576}, "limits": {"memory": "2Mi"}}), json!({
    "requests": {"cpu": 1, "memory": 1_048_576, "ephemeral-storage": "1Gi"},
    "limits": {"memory": "1048576", "ephemeral-storage": "2Gi"},
}))]
#[case::another_resource(
    json!({"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}),
    json!({
        "requests": {"example.com/gpu": "1", "cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
        "limits": {"example.com/gpu": "1", "memory": "200Mi", "ephemeral-storage": "2Gi"},
    })
)]
fn resources(#[case] declared: Value, #[case] expected: Value) {
    let offline = offline(&seed());
    let mutated = offline.mutate(&with(&declared));
    assert_eq!(mutated["spec"]["containers"][0]["resources"], expected);
    assert_eq!(offline.judge(&mutated), [""; 0]);
    assert_eq!(offline.mutate(&mutated), mutated);
}

#[test]
fn init_containers_sidecars_and_image_volumes() {
    let offline = offline(&seed());
    let pod = of(&json!({
        "initContainers": [
            {"name": "prepare", "image": "busybox:1", "imagePullPolicy": "Never"},
            {"name": "sidecar", "image": "proxy:1", "restartPolicy": "Always"},
        ],
        "containers": [{"name": "web", "image": "nginx:alpine", "imagePullPolicy": "IfNotPresent"}],
        "volumes": [
            {"name": "model", "image": {"reference": "models/a:1", "pullPolicy": "Never"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }));
    let mutated = offline.mutate(&pod);
    let spec = &mutated["spec"];
    for container in [
        &spec["initContainers"][0],
        &spec["initContainers"][1],
        &spec["containers"][0],
    ] {
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["resources"]["limits"]["memory"], "200Mi");
    }
    assert_eq!(spec["volumes"][0]["image"]["pullPolicy"], "Always");
    assert_eq!(spec["volumes"][1], json!({"name": "tmp", "emptyDir": {}}));
}

#[test]
fn what_is_set_for_the_pod_is_not_set_on_containers() {
    let offline = offline(&seed());
    let pod = of(&json!({
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "containers": [{"name": "web", "image": "nginx:alpine"}],
    }));
    let mutated = offline.mutate(&pod);
    assert_eq!(
        mutated["spec"]["containers"][0]["resources"],
        json!({
            "requests": {"cpu": "100m", "ephemeral-storage": "1Gi"},
            "limits": {"ephemeral-storage": "2Gi"},
        })
    );
    let resources = &mutated["spec"]["resources"];
    assert_eq!(resources["limits"]["memory"], "1Gi");
    assert_eq!(offline.judge(&mutated), [""; 0]);
    assert_eq!(offline.mutate(&mutated), mutated);
}

#[test]
fn the_first_policy_that_gives_a_default_wins() {
    let defaults = |requests: Value| json!({"defaultResources": {"requests": requests}});
    let policies = [
        reporting(
            "b",
            "web",
            &defaults(json!({"cpu": "200m", "memory": "1Gi"})),
        ),
        reporting("a", "web", &defaults(json!({"cpu": "50m"}))),
    ];
    let mut exempting = policies.clone();
    exempting[1].spec.exemptions = serde_json::from_value(json!([{
        "reason": "builds need more", "rules": ["DefaultResources"], "namespaces": ["web"],
        "groups": ["builders"],
    }]))
    .unwrap();
    let requests = |offline: &Offline| {
        offline.mutate(&with(&json!({})))["spec"]["containers"][0]["resources"]["requests"].clone()
    };
    let first = json!({"cpu": "50m", "memory": "1Gi"});
    assert_eq!(requests(&Offline::new(&policies, "web")), first);
    let mut offline = Offline::new(&exempting, "web");
    assert_eq!(requests(&offline), first);
    offline.groups = vec!["builders".to_owned()];
    assert_eq!(requests(&offline), json!({"cpu": "200m", "memory": "1Gi"}));
    offline.namespace = "other";
    assert_eq!(requests(&offline), first);
}

#[test]
fn mirror_pods_are_left_alone() {
    let mut offline = offline(&seed());
    let mut pod = with(&json!({}));
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_ne!(
        offline.mutate(&pod)["spec"]["containers"][0]["imagePullPolicy"],
        "IfNotPresent"
    );
    offline.groups = vec!["system:nodes".to_owned()];
    assert_eq!(
        offline.mutate(&pod)["spec"]["containers"][0]["imagePullPolicy"],
        "IfNotPresent"
    );
    assert_eq!(offline.judge(&pod), [""; 0]);
    pod["metadata"]["annotations"] = json!({});
    assert_eq!(
        offline.mutate(&pod)["spec"]["containers"][0]["imagePullPolicy"],
        "Always"
    );
}

#[test]
fn examples_are_mended_and_judged() {
    for &rule in RuleName::ALL {
        let rules = rule.sample();
        let judged =
            |pod: &Value| rules.is_kept_by(rule, &serde_json::from_value(pod.clone()).unwrap());
        let violating = to_json(rules.violating_pod(rule).unwrap());
        if rules.mutations().is_empty() {
            assert_eq!(judged(&violating), None, "{rule}");
            continue;
        }
        let offline = offline(&to_json(&rules));
        let mended = offline.mutate(&violating);
        assert_eq!(judged(&violating), Some(false), "{rule}");
        assert_eq!(judged(&mended), Some(true), "{rule}");
        assert_eq!(
            judged(&to_json(rules.passing_pod(rule).unwrap())),
            Some(true),
            "{rule}"
        );
        assert_eq!(offline.judge(&violating).len(), 1, "{rule}");
        assert_eq!(offline.judge(&mended), [""; 0], "{rule}");
    }
}

#[test]
fn what_is_refused_says_what_to_set() {
    let offline = offline(&seed());
    let pod = of(&json!({
        "containers": [{"name": "web", "image": "nginx:alpine", "resources": {"requests": {"memory": "1Gi"}}}],
        "volumes": [{"name": "model", "image": {"reference": "models/a:1"}}],
    }));
    assert_eq!(
        offline.judge(&pod),
        [
            "Policy 'defaults' (AlwaysPullImages) denied container web: set imagePullPolicy to Always. \
          Policy 'defaults' (AlwaysPullImages) denied volume model: set image.pullPolicy to Always. \
          Policy 'defaults' (DefaultResources) denied container web: set resources.requests.cpu. \
          Policy 'defaults' (DefaultResources) denied container web: set resources.requests.ephemeral-storage. \
          Policy 'defaults' (DefaultResources) denied container web: set resources.limits.ephemeral-storage. \
          Policy 'defaults' (MemoryLimitEqualsRequest) denied container web: set resources.limits.memory to resources.requests.memory."
        ]
    );
}

#[test]
fn where_pods_are_not_changed() {
    let report = reporting("defaults", "web", &seed());
    let mut deny = report.clone();
    deny.spec.when_mutation_unsupported = boundary_operator::api::WhenMutationUnsupported::Deny;
    let mut warn = report.clone();
    warn.spec.action = boundary_operator::api::Action::Warn;
    let acting = Mutating::Acting;
    let not = Mutating::NotActing;
    let v1 = Some(MutatingApi::V1);
    // The objects that check, those that change, and how many rules nothing enforces.
    for (policy, api, mutation, expected) in [
        (&report, v1, acting, (1, 1, 0)),
        (&report, v1, not, (0, 1, 3)),
        (&report, None, not, (0, 0, 3)),
        (&deny, None, not, (1, 0, 0)),
        (&deny, v1, not, (1, 1, 0)),
        (&warn, v1, acting, (1, 0, 0)),
        (&warn, None, not, (1, 0, 0)),
    ] {
        let compiled = compiled(std::slice::from_ref(policy), 37, api, mutation);
        let unenforced = compiled
            .not_enforced
            .get("defaults")
            .map_or(0, BTreeSet::len);
        let found = (compiled.objects.len(), compiled.mutations.len(), unenforced);
        assert_eq!(found, expected, "{api:?} {mutation:?}");
    }
}

#[test]
fn policies_that_an_object_cannot_hold_are_said_to_be_left_out() {
    let policies: Vec<_> = (0..10)
        .map(|n| {
            let mut policy = reporting(&format!("p{n}"), "web", &seed());
            let mut exemptions = crate::support::longest_exemptions();
            exemptions.truncate(5);
            for exemption in &mut exemptions {
                exemption.images = None;
                exemption.rules = vec![RuleName::DefaultResources];
            }
            policy.spec.exemptions = exemptions;
            policy
        })
        .collect();
    let compiled = compiled(&policies, 37, Some(MutatingApi::V1), Mutating::Acting);
    let inside: BTreeSet<_> = compiled.mutations[0].policies.keys().collect();
    let left_out: BTreeSet<_> = compiled.not_enforced.keys().collect();
    assert!(inside.len() > 1 && !left_out.is_empty(), "{inside:?}");
    assert!(
        inside
            .iter()
            .all(|name| left_out.iter().all(|other| name < other))
    );
    assert_eq!(inside.len() + left_out.len(), 10);
    let checked: BTreeSet<_> = compiled
        .objects
        .iter()
        .flat_map(|o| o.policies.keys())
        .collect();
    assert_eq!(checked, inside);
}
