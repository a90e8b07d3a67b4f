//! What a rule is made of.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::api::ObjectMeta;

use super::mutation::Mutation;
use crate::api::FieldError;
use crate::compile::Version;

/// A rule: the values that a policy gives it, and the logic that is the same for every policy.
pub trait Rule {
    /// What can't be compiled, each under its field path; `path` is that of the rule.
    fn validate(&self, path: &str, errors: &mut Vec<FieldError>);

    /// What the rule checks on an API server of `version`: one row of values for each thing that it
    /// reports by itself.
    fn checks(&self, version: Version) -> Vec<Check>;

    /// The CEL that judges the rows. It must not depend on the values of a policy.
    fn logic() -> Logic;

    /// Typical values, for tests and documentation.
    fn sample() -> Self;

    /// A Pod that breaks this rule with these values.
    fn violating_pod(&self) -> Pod;

    /// A Pod that keeps this rule with these values.
    fn passing_pod(&self) -> Pod;

    /// What this rule changes on a Pod that is created. None: it only checks.
    ///
    /// A rule that has a mutation has checks too: a later webhook can undo what it does.
    fn mutation(&self) -> Option<Mutation> {
        None
    }

    /// For a rule that has a mutation: whether `pod`, as an API server returned it, keeps the rule.
    fn is_kept_by(&self, _pod: &Pod) -> Option<bool> {
        None
    }
}

/// One row of values of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// The values that the CEL reads as `r[2]`, `r[3]`, …; `r[0]` is the policy and `r[1]` the rule.
    pub columns: Vec<String>,
    /// Image prefixes that the CEL reads as `prefixes`, a map with each as a key.
    pub prefixes: Vec<String>,
    /// For [`Findings::OfCheck`]: an expression over the row `r` that gives its findings, each a
    /// list that begins with the row. Those that no message can show need not. Checks whose first
    /// column is the same have the same.
    pub findings: String,
    /// Variables that `findings` reads: name and expression, in the order of their use. Checks may
    /// share them.
    pub variables: Vec<(String, String)>,
}

/// The CEL of a rule. Rows, findings and sentences are lists of strings.
#[derive(Clone, Copy, Debug)]
pub struct Logic {
    /// What must have changed on a Pod for the rule to look at it again.
    pub subject: Subject,
    /// What breaks the rule.
    pub findings: Findings,
    /// Variables that `findings` reads: name and expression, in the order of their use.
    pub variables: &'static [(&'static str, &'static str)],
    /// An expression over a finding `v` that gives its sentence. `v` is the row and after it what
    /// was found.
    ///
    /// Here, in variables and in findings, `SHORT(v[n])` is for what users wrote: it is cut at
    /// 300 characters. What stands in it has no parenthesis.
    pub sentence: &'static str,
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The labels of the object.
    Labels,
    /// The pod spec of the object.
    PodSpec,
    /// A Pod, and not what has a template for Pods.
    Pod,
    /// A Pod, also when its resources are resized.
    PodResources,
}

/// How a rule finds what breaks it.
#[derive(Clone, Copy, Debug)]
pub enum Findings {
    /// An expression over the row `r` that gives a list of strings, one for each finding.
    Strings(&'static str),
    /// An expression over the row `r` that gives a list of those of `variables.candidates` that
    /// break the rule. Exemptions by image are taken out of it.
    Images(&'static str),
    /// The expression of each check, [`Check::findings`]: for rules whose CEL itself depends on the
    /// version of the API server.
    OfCheck,
}

/// A Pod with one container of `image`, labelled with `labels`.
#[must_use]
pub fn example_pod(image: &str, labels: BTreeMap<String, String>) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some("example".to_owned()),
            labels: (!labels.is_empty()).then_some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "web".to_owned(),
                image: Some(image.to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// `snake_case` as the API writes it.
pub(super) fn camel_case(snake: &str) -> String {
    let mut words = snake.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (initial, rest) = word.split_at(1);
        name + &initial.to_uppercase() + rest
    })
}
