use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::{FieldError, is_label_key, is_label_value};
use crate::compile::Version;

/// Requires labels on every checked object itself: a Deployment needs them on the Deployment, and
/// its Pods on the Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequiredLabels {
    /// Keys and values. A value must be equal; an empty value stands for any value.
    #[schemars(
        extend(
            "additionalProperties" = {
                "type": "string",
                "maxLength": 63,
                "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
            },
            "minProperties" = 1,
            "maxProperties" = MAX_LABELS,
            "x-kubernetes-validations" = [{
                "rule": "self.all(key, key.size() <= 317 && key.lastIndexOf('/') <= 253 && key.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
                "message": "every key must be a label key: a name of at most 63 letters, digits, '-', '_' and '.', perhaps after a DNS subdomain and '/'"
            }]
        )
    )]
    pub labels: BTreeMap<String, String>,
}

const MAX_LABELS: usize = 32;

impl Rule for RequiredLabels {
    fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        let path = format!("{path}.labels");
        if self.labels.is_empty() || self.labels.len() > MAX_LABELS {
            errors.push(FieldError::new(&path, format!("must have 1 to {MAX_LABELS} labels")));
        }
        for (key, value) in &self.labels {
            if !is_label_key(key) {
                errors.push(FieldError::quoting(&path, key, "is not a label key"));
            }
            if !value.is_empty() && !is_label_value(value) {
                let path = format!("{path}[{key}]");
                errors.push(FieldError::quoting(&path, value, "is not a label value"));
            }
        }
    }

    fn checks(&self, _version: Version) -> Vec<Check> {
        let row = |(key, value): (&String, &String)| Check {
            columns: vec![key.clone(), value.clone()],
            ..Check::default()
        };
        self.labels.iter().map(row).collect()
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::Labels,
            variables: &[],
            findings: Findings::Strings(
                "(r[3] == '' ? r[2] in variables.labels : variables.labels[?r[2]].orValue('') == r[3]) \
                 ? [] : [variables.labels[?r[2]].orValue('<unset>')]",
            ),
            sentence: "'requires ' + (v[3] == '' ? 'the label ' + v[2] : 'label ' + v[2] + '=' + v[3] + ', found ' + v[4]) + '.'",
        }
    }

    fn sample() -> Self {
        let labels = [("owner", ""), ("team", "web")];
        Self {
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        }
    }

    fn violating_pod(&self) -> Pod {
        example_pod(super::disallow_latest_tag::TAGGED, BTreeMap::new())
    }

    fn passing_pod(&self) -> Pod {
        let any_value = |value: &String| match value.as_str() {
            "" => "any".to_owned(),
            value => value.to_owned(),
        };
        let labels = self.labels.iter().map(|(k, v)| (k.clone(), any_value(v)));
        example_pod(super::disallow_latest_tag::TAGGED, labels.collect())
    }
}
