//! What several tests use.
#![allow(dead_code, unreachable_pub, reason = "not every test uses everything")]

use std::collections::BTreeMap;

use boundary_operator::api::{
    BOUNDARY_LABEL, BoundaryPolicy, BoundaryPolicySpec, Exemption, WhenMutationUnsupported,
};
use boundary_operator::compile::{AdmissionObject, Capabilities, Options, compile};
use boundary_operator::evaluate::{Evaluator, Kind, Operation, Request};
use boundary_operator::rules::{RuleName, Rules};
use serde::Serialize;
use serde_json::{Value, json};

/// The time at which everything is compiled.
pub const NOW: &str = "2026-11-30T00:00:00Z";

/// A policy that denies, also where a cluster can't change Pods.
pub fn policy(name: &str, boundary: &str, rules: Rules) -> BoundaryPolicy {
    let spec = BoundaryPolicySpec {
        boundary: boundary.to_owned(),
        action: boundary_operator::api::Action::Deny,
        clusters: None,
        rules,
        exemptions: Vec::new(),
        when_mutation_unsupported: WhenMutationUnsupported::Deny,
    };
    BoundaryPolicy::new(name, spec)
}

/// The largest policy that the API takes.
pub fn largest(name: &str) -> BoundaryPolicy {
    let prefix = |n: usize| {
        let start = format!("r{n}.invalid");
        let segment = "s".repeat((253 - start.len()) / 7 - 1);
        let mut prefix = start + &format!("/{segment}").repeat(7);
        prefix += &"t".repeat(253 - prefix.len());
        prefix
    };
    let registries: Vec<_> = (0..100).map(prefix).collect();
    let labels: serde_json::Map<_, _> = (0..32)
        .map(|n| {
            (
                format!("{}/{}{n:02}", "d".repeat(253), "k".repeat(61)),
                json!("v".repeat(63)),
            )
        })
        .collect();
    let rules = json!({
        "allowedRegistries": {"registries": registries},
        "disallowLatestTag": {},
        "requiredLabels": {"labels": labels},
    });
    policy(name, "web", serde_json::from_value(rules).unwrap())
}

/// As many exemptions, each as long, as the API takes; nobody in the tests is exempt.
pub fn longest_exemptions() -> Vec<Exemption> {
    let list = |count: usize, start: String, length: usize, fill: &str| -> Vec<String> {
        let item = |n: usize| {
            let start = format!("{start}{n:02}");
            let rest = fill.repeat(length - start.len());
            start + &rest
        };
        (0..count).map(item).collect()
    };
    let exemption = |n: usize| Exemption {
        reason: "r".repeat(512),
        rules: vec![RuleName::DisallowLatestTag; 15]
            .into_iter()
            .chain([RuleName::AllowedRegistries])
            .collect(),
        namespaces: Some(list(32, format!("n{n:02}"), 63, "x")),
        users: Some(list(16, format!("u{n:02}"), 340, "'")),
        groups: Some(list(16, format!("g{n:02}"), 340, "\\")),
        images: Some(list(16, format!("i{n:02}/a/b/c/d/e/f/g"), 253, "x")),
        expires: None,
    };
    (0..16).map(exemption).collect()
}

/// Compiles for Kubernetes 1.30; every policy must be valid.
pub fn compiled(policies: &[BoundaryPolicy]) -> Vec<AdmissionObject> {
    let capabilities = Capabilities::of("1.30".parse().unwrap());
    let options = Options::new(capabilities, NOW.parse().unwrap());
    let compilation = compile(policies, &options);
    assert_eq!(compilation.problems, []);
    compilation.objects
}

pub fn to_json(object: impl Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

/// Judges offline, in a namespace of the boundary `web`.
pub struct Judge {
    evaluator: Evaluator,
    pub namespace: &'static str,
    pub labels: BTreeMap<String, String>,
    pub user: &'static str,
    pub groups: Vec<String>,
}

impl Judge {
    pub fn new(policies: &[BoundaryPolicy]) -> Self {
        Self {
            evaluator: Evaluator::new(&compiled(policies)).unwrap(),
            namespace: "web",
            labels: [(BOUNDARY_LABEL.to_owned(), "web".to_owned())].into(),
            user: "someone",
            groups: Vec::new(),
        }
    }

    pub fn create(&self, object: &Value) -> Option<String> {
        self.judge(Operation::Create, object, None)
    }

    pub fn update(&self, old: &Value, object: &Value) -> Option<String> {
        self.judge(Operation::Update, object, Some(old))
    }

    /// The messages, joined.
    fn judge(&self, operation: Operation, object: &Value, old: Option<&Value>) -> Option<String> {
        let request = Request {
            kind: Kind::of(object).unwrap(),
            sub_resource: "",
            operation,
            object,
            old_object: old,
            namespace: self.namespace,
            namespace_labels: &self.labels,
            user: self.user,
            groups: &self.groups,
        };
        let findings = self.evaluator.judge(&request).unwrap();
        let messages: Vec<_> = findings.into_iter().map(|f| f.message).collect();
        (!messages.is_empty()).then(|| messages.join("\n"))
    }
}
