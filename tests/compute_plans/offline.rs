//! What policies compile to, as a reviewer reads it and as the evaluation offline judges it.

use std::collections::BTreeMap;
use std::sync::Arc;

use boundary_operator::api::{Action, BOUNDARY_LABEL, BoundaryPolicy, ComputeResourceType};
use boundary_operator::compile::{AdmissionObject, Capabilities, Options, compile};
use boundary_operator::evaluate::{Evaluator, ObjectRequest, Operation};
use boundary_operator::plans::Catalog;
use serde_json::{Value, json};

use crate::world::{policies, policy, types};

/// What `policies` compile to for Kubernetes 1.30.
pub(crate) fn compiled(
    policies: &[BoundaryPolicy],
    types: &[ComputeResourceType],
) -> Vec<AdmissionObject> {
    let capabilities = Capabilities::of("1.30".parse().unwrap());
    let mut options = Options::new(capabilities, "2026-11-30T00:00:00Z".parse().unwrap());
    options.catalog = Arc::new(Catalog::of(types).0);
    let compilation = compile(policies, &options);
    assert_eq!(compilation.problems, []);
    compilation.objects
}

/// What is said of an object of `platform.example.com` that replaces `old`, if there is one.
pub(crate) fn judged(
    objects: &[AdmissionObject],
    resource: &str,
    object: &Value,
    old: Option<&Value>,
) -> Vec<(String, String)> {
    let evaluator = Evaluator::new(objects).unwrap();
    let labels = BTreeMap::from([(BOUNDARY_LABEL.to_owned(), "web".to_owned())]);
    let request = ObjectRequest {
        group: "platform.example.com",
        version: "v1",
        resource,
        sub_resource: "",
        operation: old.map_or(Operation::Create, |_| Operation::Update),
        object,
        old_object: old,
        namespace: "web",
        namespace_labels: &labels,
        user: "someone",
        groups: &[],
    };
    let findings = evaluator.judge_object(&request).unwrap();
    let findings = findings.into_iter().map(|f| (f.object, f.message));
    findings.collect()
}

fn said(objects: &[AdmissionObject], resource: &str, spec: &Value, old: Option<&Value>) -> String {
    let old = old.map(|old| json!({"metadata": {"name": "x"}, "spec": old}));
    let object = json!({"metadata": {"name": "x"}, "spec": spec});
    let said = judged(objects, resource, &object, old.as_ref());
    said.into_iter()
        .map(|(_, message)| message)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_objects() {
    let policies = [
        policy("p1", Action::Deny, &["small", "medium"]),
        policy("p2", Action::Deny, &["valkey/small"]),
        policy("p3", Action::Warn, &["container-instance/small"]),
    ];
    let types: Vec<_> = types()
        .into_iter()
        .filter(|t| ["valkey", "container-instance"].contains(&t.metadata.name.as_deref().unwrap()))
        .collect();
    let documents: Vec<_> = compiled(&policies, &types)
        .iter()
        .flat_map(|object| {
            [
                serde_saphyr::to_string(&object.policy).unwrap(),
                serde_saphyr::to_string(&object.binding).unwrap(),
            ]
        })
        .collect();
    insta::with_settings!({snapshot_path => "../snapshots", prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("compute_plans", documents.join("---\n"));
    });
}

#[test]
fn names_end_in_what_tells_them() {
    let policies: Vec<_> = Action::ALL
        .into_iter()
        .map(|action| policy(&action.as_str().to_lowercase(), action, &["small"]))
        .collect();
    let objects = compiled(&policies, &types());
    let names: Vec<_> = objects.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "web.boundarypolicy.dev.audit.compute-plans",
            "web.boundarypolicy.dev.compute-plans",
            "web.boundarypolicy.dev.warn.compute-plans",
        ]
    );
}

#[test]
fn nothing_is_compiled_for_what_is_not_checked() {
    assert_eq!(compiled(&policies(&[&["function/small"]]), &types()), []);
    let mut without_targets = types();
    for of in &mut without_targets {
        of.spec.targets.clear();
    }
    assert_eq!(compiled(&policies(&[&["small"]]), &without_targets), []);
}

#[test]
fn objects_of_any_shape_come_to_a_verdict() {
    let objects = compiled(&policies(&[&["small"]]), &types());
    let refused = "Compute plan '<not a string>' is not allowed in this boundary: a boundary policy \
                   disallows it. Allowed plans: small.";
    for spec in [
        json!(null),
        json!("text"),
        json!([]),
        json!({}),
        json!({"plan": null}),
        json!({"plan": ""}),
        json!(5),
    ] {
        assert_eq!(said(&objects, "valkeys", &spec, None), "");
    }
    for plan in [
        json!(5),
        json!({"name": "small"}),
        json!(["small"]),
        json!(true),
    ] {
        assert_eq!(
            said(&objects, "valkeys", &json!({"plan": plan}), None),
            refused
        );
        let kept = json!({"plan": plan});
        assert_eq!(said(&objects, "valkeys", &kept, Some(&kept)), "");
    }
    for components in [
        json!(null),
        json!("text"),
        json!({}),
        json!([]),
        json!([null, 5, "x", [], {}]),
        json!([{"plan": "small"}]),
    ] {
        let spec = json!({"components": components});
        assert_eq!(said(&objects, "containerinstances", &spec, None), "");
    }
    let spec = json!({"components": [5, {"plan": [1]}]});
    assert_eq!(said(&objects, "containerinstances", &spec, None), refused);
}

#[test]
fn a_whole_boundary_with_many_types_is_split_and_no_type_is_lost() {
    let many: Vec<ComputeResourceType> = (0..120)
        .map(|n| {
            serde_json::from_value(json!({
                "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "ComputeResourceType",
                "metadata": {"name": format!("t{n}")},
                "spec": {
                    "plans": (0..50).map(|p| json!({"name": format!("{}{p:02}", "p".repeat(61))})).collect::<Vec<_>>(),
                    "targets": (0..8).map(|k| json!({
                        "group": "platform.example.com", "versions": ["v1"],
                        "resource": format!("r{n}-{k}"), "kind": "K",
                        "planFields": (0..4).map(|f| json!({
                            "path": format!("a.b.c.d.e.f{f}[*].{}", "g".repeat(230)), "key": "name",
                        })).collect::<Vec<_>>(),
                    })).collect::<Vec<_>>(),
                },
            }))
            .unwrap()
        })
        .collect();
    let objects = compiled(&policies(&[&["small"]]), &many);
    assert!(objects.len() > 1);
    assert_eq!(objects[0].name, "web.10.boundarypolicy.dev.compute-plans");
    for object in &objects {
        let spec = object.policy.spec.as_ref().unwrap();
        assert!(serde_json::to_vec(&object.policy).unwrap().len() < 1_000_000);
        let variables = spec.variables.iter().flatten();
        assert!(
            variables
                .into_iter()
                .all(|v| v.expression.chars().count() < 90_000)
        );
    }
    let resources = objects.iter().flat_map(|object| {
        let constraints = object
            .policy
            .spec
            .as_ref()
            .unwrap()
            .match_constraints
            .as_ref();
        let rules = constraints.unwrap().resource_rules.as_ref().unwrap();
        rules
            .iter()
            .flat_map(|rule| rule.resources.clone().unwrap())
    });
    let resources: std::collections::BTreeSet<_> = resources.filter(|r| r != "pods").collect();
    assert_eq!(resources.len(), 120 * 8);
}
