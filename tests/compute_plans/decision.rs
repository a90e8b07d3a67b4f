//! Every case of the rule, decided.

use boundary_operator::api::{Action, BoundaryPolicy};
use boundary_operator::plans::{BoundaryPlans, Catalog, Refusal, unknown_entries};
use proptest::prelude::*;

use crate::world::{catalog, one, policies, policy, refusals, said, slot, types};

const CHECKED: [&str; 6] = [
    "app",
    "container-instance",
    "postgresql",
    "sql-server",
    "qdrant",
    "valkey",
];

#[expect(
    clippy::unnecessary_wraps,
    reason = "it is compared with what may be nothing"
)]
fn message(plan: &str, allowed: &str) -> Option<String> {
    Some(format!(
        "Compute plan '{plan}' is not allowed in this boundary: a boundary policy disallows it. \
         Allowed plans: {allowed}."
    ))
}

#[test]
fn the_message_is_the_one_that_users_know() {
    let policies = policies(&[&["medium", "small"]]);
    assert_eq!(
        said(&policies, "app", &one("large"), &[]).unwrap(),
        "Compute plan 'large' is not allowed in this boundary: a boundary policy disallows it. \
         Allowed plans: small, medium."
    );
}

#[test]
fn every_type_but_functions_is_checked_when_created() {
    let policies = policies(&[&["small"]]);
    for of in CHECKED {
        assert!(said(&policies, of, &one("large"), &[]).is_some(), "{of}");
    }
    assert_eq!(said(&policies, "function", &one("large"), &[]), None);
}

#[test]
fn a_move_to_another_plan_is_checked() {
    let policies = policies(&[&["small"]]);
    for of in CHECKED {
        let refused = said(&policies, of, &one("large"), &one("medium"));
        assert!(refused.is_some(), "{of}");
    }
    assert_eq!(
        said(&policies, "valkey", &one("small"), &one("large")),
        None
    );
}

#[test]
fn a_resource_keeps_the_plan_that_it_has() {
    let policies = policies(&[&["small"]]);
    for of in CHECKED {
        assert_eq!(
            said(&policies, of, &one("large"), &one("large")),
            None,
            "{of}"
        );
    }
}

#[test]
fn the_plan_of_every_component_is_checked() {
    let policies = policies(&[&["small", "medium"]]);
    let wanted = [
        slot(Some("web"), Some("small")),
        slot(Some("worker"), Some("large")),
        slot(Some("cron"), Some("huge")),
    ];
    let refused = refusals(&policies, "container-instance", &wanted, &[]);
    let refused: Vec<_> = refused
        .iter()
        .map(|r| (r.key.as_deref(), r.plan.as_str()))
        .collect();
    assert_eq!(refused, [(Some("worker"), "large"), (Some("cron"), "huge")]);
    assert_eq!(
        said(&policies, "container-instance", &wanted, &[]),
        message("large", "small, medium")
    );
}

#[test]
fn a_component_keeps_its_plan_and_another_can_not_take_it_over() {
    let policies = policies(&[&["small"]]);
    let held = [
        slot(Some("web"), Some("large")),
        slot(Some("worker"), Some("small")),
    ];
    let kept = [
        slot(Some("worker"), Some("small")),
        slot(Some("web"), Some("large")),
    ];
    assert_eq!(said(&policies, "container-instance", &kept, &held), None);
    let taken = [
        slot(Some("web"), Some("small")),
        slot(Some("worker"), Some("large")),
    ];
    assert_eq!(
        said(&policies, "container-instance", &taken, &held),
        message("large", "small")
    );
}

#[test]
fn a_component_keeps_its_plan_only_if_its_key_is_unique() {
    let policies = policies(&[&["small"]]);
    let held = [slot(Some("web"), Some("large"))];
    let doubled = [
        slot(Some("web"), Some("large")),
        slot(Some("web"), Some("large")),
    ];
    assert_eq!(
        refusals(&policies, "container-instance", &doubled, &held).len(),
        2
    );
    let without_plan = [slot(Some("web"), Some("large")), slot(Some("web"), None)];
    assert_eq!(
        refusals(&policies, "container-instance", &without_plan, &held).len(),
        1
    );
    let nameless = [slot(None, Some("large"))];
    assert_eq!(
        said(&policies, "container-instance", &nameless, &nameless),
        None
    );
}

#[test]
fn an_absent_plan_is_not_checked() {
    let policies = policies(&[&["no-such-plan"]]);
    assert_eq!(said(&policies, "valkey", &[slot(None, None)], &[]), None);
    assert_eq!(said(&policies, "valkey", &[], &[]), None);
}

#[test]
fn a_name_applies_to_every_type_and_a_typed_name_to_its_type() {
    let untyped = policies(&[&["small"]]);
    for of in CHECKED.into_iter().filter(|of| *of != "sql-server") {
        assert_eq!(said(&untyped, of, &one("small"), &[]), None, "{of}");
        assert!(said(&untyped, of, &one("large"), &[]).is_some(), "{of}");
    }
    let typed = policies(&[&["valkey/small"]]);
    assert_eq!(
        said(&typed, "valkey", &one("large"), &[]),
        message("large", "small")
    );
    for of in CHECKED.into_iter().filter(|of| *of != "valkey") {
        assert_eq!(said(&typed, of, &one("large"), &[]), None, "{of}");
    }
    let both = policies(&[&["small", "valkey/large"]]);
    assert_eq!(
        said(&both, "valkey", &one("medium"), &[]),
        message("medium", "small, large")
    );
    assert_eq!(
        said(&both, "qdrant", &one("large"), &[]),
        message("large", "small")
    );
}

#[test]
fn every_policy_that_says_something_of_the_type_must_allow_it() {
    let policies = policies(&[
        &["small", "medium"],
        &["valkey/small", "valkey/large"],
        &["qdrant/large"],
    ]);
    let refused = refusals(&policies, "valkey", &one("medium"), &[]);
    assert_eq!(refused[0].policies, ["p2"]);
    assert_eq!(refused[0].allowed, ["small"]);
    let refused = refusals(&policies, "valkey", &one("large"), &[]);
    assert_eq!(refused[0].policies, ["p1"]);
    let refused = refusals(&policies, "qdrant", &one("small"), &[]);
    assert_eq!(refused[0].policies, ["p3"]);
    assert_eq!(refused[0].message(), message("small", "none").unwrap());
    assert_eq!(said(&policies, "postgresql", &one("medium"), &[]), None);
}

#[test]
fn a_policy_whose_names_match_no_plan_of_the_type_allows_nothing() {
    let policies = policies(&[&["tiny"]]);
    for of in CHECKED {
        for plan in ["small", "medium", "large", "tiny"] {
            assert_eq!(
                said(&policies, of, &one(plan), &[]),
                message(plan, "none"),
                "{of}"
            );
        }
    }
}

#[test]
fn without_a_policy_about_the_type_everything_is_allowed() {
    for of in CHECKED {
        assert_eq!(said(&[], of, &one("anything"), &[]), None);
        let elsewhere = policies(&[&["function/small"]]);
        assert_eq!(said(&elsewhere, of, &one("anything"), &[]), None);
    }
}

#[test]
fn the_policies_of_another_boundary_do_not_count() {
    let mut elsewhere = policies(&[&["small"]]);
    elsewhere[0].spec.boundary = "db".to_owned();
    assert_eq!(said(&elsewhere, "valkey", &one("large"), &[]), None);
}

#[test]
fn the_cluster_scope_does_not_count() {
    let mut policies = policies(&[&["small"]]);
    policies[0].spec.clusters = serde_saphyr::from_str("names: [no-such-cluster]").unwrap();
    assert!(said(&policies, "valkey", &one("large"), &[]).is_some());
}

#[test]
fn policies_that_warn_or_audit_refuse_nothing_and_have_their_own_words() {
    let policies = [
        policy("a", Action::Warn, &["small"]),
        policy("b", Action::Audit, &["medium"]),
    ];
    assert_eq!(said(&policies, "valkey", &one("large"), &[]), None);
    let (catalog, plans) = (catalog(), BoundaryPlans::of(&policies));
    let spec = catalog.get("valkey").unwrap();
    let allowed = |action| {
        plans
            .restriction("web", action, "valkey", spec)
            .unwrap()
            .allowed
    };
    assert_eq!(allowed(Action::Warn), ["small"]);
    assert_eq!(allowed(Action::Audit), ["medium"]);
}

#[test]
fn a_plan_is_shown_without_line_breaks_and_not_without_end() {
    let policies = policies(&[&["small"]]);
    let plan = format!("a\nb\r{}", "é".repeat(400));
    let said = said(&policies, "valkey", &one(&plan), &[]).unwrap();
    assert!(said.starts_with("Compute plan 'a b é"), "{said}");
    assert!(said.contains("é…' is not allowed"), "{said}");
    assert_eq!(said.matches('é').count(), 296);
}

#[test]
fn entries_that_name_nothing_are_told() {
    let rule = |plans: &[&str]| {
        policy("p", Action::Deny, plans)
            .spec
            .rules
            .allowed_compute_plans
    };
    let rule = rule(&[
        "small",
        "tiny",
        "valkey/small",
        "valkey/tiny",
        "valky/small",
    ])
    .unwrap();
    assert_eq!(
        unknown_entries(&rule, &catalog()),
        [
            "spec.rules.allowedComputePlans.plans[1] (tiny): no ComputeResourceType has a plan tiny",
            "spec.rules.allowedComputePlans.plans[3] (valkey/tiny): ComputeResourceType valkey has no plan tiny",
            "spec.rules.allowedComputePlans.plans[4] (valky/small): there is no ComputeResourceType valky",
        ]
    );
}

#[test]
fn a_type_that_is_invalid_is_left_out_and_told() {
    let mut types = types();
    types[0].spec.plans.clear();
    let (catalog, invalid) = Catalog::of(&types);
    assert!(catalog.get("app").is_none());
    assert_eq!(
        invalid["app"][0].to_string(),
        "spec.plans: must have 1 to 50 items"
    );
}

fn entry() -> impl Strategy<Value = String> {
    let plan = || prop::sample::select(vec!["small", "medium", "large", "memory-large", "tiny"]);
    let of = prop::sample::select(vec!["valkey", "qdrant", "container-instance", "other"]);
    prop_oneof![
        plan().prop_map(str::to_owned),
        (of, plan()).prop_map(|(of, plan)| format!("{of}/{plan}")),
    ]
}

fn some_policies() -> impl Strategy<Value = Vec<BoundaryPolicy>> {
    let entries = prop::collection::vec(entry(), 1..5);
    let action = prop_oneof![4 => Just(Action::Deny), 1 => Just(Action::Warn)];
    prop::collection::vec((entries, action), 0..5).prop_map(|policies| {
        let policies = policies.into_iter().zip(1..);
        let policies = policies.map(|((entries, action), n)| {
            let entries: Vec<_> = entries.iter().map(String::as_str).collect();
            policy(&format!("p{n}"), action, &entries)
        });
        policies.collect()
    })
}

fn some_slots() -> impl Strategy<Value = Vec<boundary_operator::plans::Slot>> {
    let key = prop::option::of(prop::sample::select(vec!["a", "b", "c"]));
    let plan = prop::option::of(prop::sample::select(vec![
        "small", "medium", "large", "tiny",
    ]));
    prop::collection::vec((key, plan).prop_map(|(key, plan)| slot(key, plan)), 0..4)
}

fn refused(refusals: &[Refusal]) -> Vec<(Option<String>, String)> {
    let refusals = refusals.iter();
    refusals.map(|r| (r.key.clone(), r.plan.clone())).collect()
}

proptest! {
    #[test]
    fn one_more_policy_never_allows_more(
        mut policies in some_policies(), more in some_policies(),
        wanted in some_slots(), held in some_slots(),
    ) {
        let before = refused(&refusals(&policies, "valkey", &wanted, &held));
        for (mut policy, n) in more.into_iter().zip(1..) {
            policy.metadata.name = Some(format!("q{n}"));
            policies.push(policy);
        }
        let after = refused(&refusals(&policies, "valkey", &wanted, &held));
        prop_assert!(before.iter().all(|refusal| after.contains(refusal)));
    }

    #[test]
    fn the_order_of_policies_does_not_matter(
        policies in some_policies(), wanted in some_slots(), held in some_slots(),
    ) {
        let reversed: Vec<_> = policies.iter().rev().cloned().collect();
        prop_assert_eq!(
            refusals(&policies, "container-instance", &wanted, &held),
            refusals(&reversed, "container-instance", &wanted, &held)
        );
    }

    #[test]
    fn a_kept_plan_is_never_refused(policies in some_policies(), slots in some_slots()) {
        let mut kept: Vec<boundary_operator::plans::Slot> = Vec::new();
        for slot in slots {
            if kept.iter().all(|other| other.key != slot.key) {
                kept.push(slot);
            }
        }
        prop_assert_eq!(refusals(&policies, "valkey", &kept, &kept), vec![]);
    }

    #[test]
    fn what_is_allowed_is_never_refused_and_nothing_else_is_allowed(
        policies in some_policies(), wanted in some_slots(),
    ) {
        for refusal in refusals(&policies, "valkey", &wanted, &[]) {
            prop_assert!(!refusal.allowed.contains(&refusal.plan));
            prop_assert!(!refusal.policies.is_empty());
            for plan in &refusal.allowed {
                prop_assert_eq!(refusals(&policies, "valkey", &one(plan), &[]), vec![]);
            }
        }
    }
}
