//! What policies compile to, as a reviewer reads it, and that it is valid for hostile input.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod support;

use boundary_operator::api::Action;
use boundary_operator::compile::{AdmissionObject, label_guard, object_name};
use boundary_operator::rules::{RuleName, Rules};
use serde_json::json;
use support::{compiled, largest, policy};

fn rules(json: serde_json::Value) -> Rules {
    serde_json::from_value(json).unwrap()
}

fn yaml(objects: &[AdmissionObject]) -> String {
    let documents: Vec<_> = objects
        .iter()
        .flat_map(|object| {
            [
                serde_saphyr::to_string(&object.policy).unwrap(),
                serde_saphyr::to_string(&object.binding).unwrap(),
            ]
        })
        .collect();
    documents.join("---\n")
}

#[test]
fn every_rule() {
    for &rule in RuleName::ALL {
        let objects = compiled(&[policy("example", "web", rule.sample())]);
        insta::assert_snapshot!(rule.as_str(), yaml(&objects));
    }
}

#[test]
fn all_rules_of_several_policies_with_exemptions() {
    let mut first = policy(
        "trusted",
        "web",
        rules(json!({
            "allowedRegistries": {"registries": ["ghcr.io/acme", "docker.io/library"]},
            "disallowLatestTag": {},
        })),
    );
    first.metadata.generation = Some(3);
    first.spec.exemptions = serde_json::from_value(json!([{
        "reason": "function builds use a latest image",
        "rules": ["DisallowLatestTag"],
        "namespaces": ["web-builds"],
    }]))
    .unwrap();
    let second = policy("owner-label", "web", RuleName::RequiredLabels.sample());
    let mut third = policy("soon", "web", RuleName::DisallowLatestTag.sample());
    third.spec.action = Action::Warn;
    let objects = compiled(&[first, second, third]);
    insta::assert_snapshot!(yaml(&objects));
}

#[test]
fn the_guard_on_the_label() {
    let guard = label_guard("boundarypolicy.dev/boundary");
    insta::assert_snapshot!(yaml(&[guard]));
}

#[test]
fn the_order_of_policies_does_not_matter() {
    let policies: Vec<_> = (0..20)
        .map(|n| policy(&format!("p{n}"), "web", RuleName::ALL[n % 3].sample()))
        .collect();
    let reversed: Vec<_> = policies.iter().rev().cloned().collect();
    assert_eq!(compiled(&policies), compiled(&reversed));
}

#[test]
fn a_change_changes_the_revision_and_nothing_else_does() {
    let with = |registry: &str, generation| {
        let registries = json!({"allowedRegistries": {"registries": [registry]}});
        let mut policy = policy("p", "web", rules(registries));
        policy.metadata.generation = Some(generation);
        compiled(&[policy]).remove(0).revision
    };
    assert_eq!(with("a", 1), with("a", 2));
    assert_ne!(with("a", 1), with("b", 1));
}

#[test]
fn the_largest_policies_are_split_and_none_is_lost() {
    let policies: Vec<_> = (0..60).map(|n| largest(&format!("p{n:02}"))).collect();
    let objects = compiled(&policies);
    assert!(objects.len() > 1);
    let mut inside: Vec<_> = objects.iter().flat_map(|o| o.policies.keys()).collect();
    inside.sort();
    let names: Vec<_> = policies
        .iter()
        .map(|p| p.metadata.name.as_ref().unwrap())
        .collect();
    assert_eq!(inside, names);
    for (index, object) in objects.iter().enumerate() {
        let names = (1..=objects.len()).map(|part| object_name("web", Action::Deny, part));
        assert!(names.into_iter().any(|name| name == object.name), "{index}");
        assert!(serde_json::to_vec(&object.policy).unwrap().len() < 1_000_000);
        for variable in object
            .policy
            .spec
            .as_ref()
            .unwrap()
            .variables
            .as_ref()
            .unwrap()
        {
            assert!(
                variable.expression.chars().count() < 90_000,
                "{}",
                variable.name
            );
        }
    }
}
