use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::disallow_latest_tag::TAGGED;
use super::mutation::{
    CONTAINERS, Mutation, amount, containers, is_set_for_pod, joined, patch_each,
};
use super::quantity::Quantity;
use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::FieldError;
use crate::compile::Version;

/// Sets requests and limits on every container and init container of a Pod that is created, where it
/// has none. At least one of `requests` and `limits` is set.
///
/// A default limit below the request of a container would make the Pod invalid: then the limit is
/// the request. What is set for the Pod as a whole is not set on its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 1))]
pub struct DefaultResources {
    /// Requests by resource: `cpu`, `memory`, `ephemeral-storage`. Write the amounts as text:
    /// `cpu: 100m`, `cpu: "1"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = request_schema)]
    pub requests: BTreeMap<String, String>,

    /// Limits by resource: `memory`, `ephemeral-storage`. A CPU limit can't be a default: it would
    /// slow containers down on nodes that have CPU to spare.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = limit_schema)]
    pub limits: BTreeMap<String, String>,
}

const REQUESTS: &[&str] = &["cpu", "memory", "ephemeral-storage"];
const LIMITS: &[&str] = &["memory", "ephemeral-storage"];
const NO_CPU_LIMIT: &str = "a CPU limit can't be a default; leave limits.cpu out";
const FRACTION: &str = "of memory or storage must be whole bytes, like 200Mi: m stands for thousandths";

/// An amount that is not below 0.
const AMOUNT: &str =
    r"^([0-9]+([.][0-9]*)?|[.][0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+]?[0-9]{1,2})?$";
const MAX_AMOUNT: usize = 20;

fn request_schema(schema: &mut schemars::Schema) {
    bound(schema, REQUESTS, &[]);
}

fn limit_schema(schema: &mut schemars::Schema) {
    let rule = json!({"rule": "!('cpu' in self)", "message": NO_CPU_LIMIT});
    bound(schema, &["cpu", "memory", "ephemeral-storage"], &[rule]);
}

fn bound(schema: &mut schemars::Schema, resources: &[&str], rules: &[serde_json::Value]) {
    let listed = resources.join("', '");
    let mut rules = rules.to_vec();
    rules.push(json!({
        "rule": format!("self.all(key, key in ['{listed}'])"),
        "message": format!("only {} can have a default", REQUESTS.join(", ")),
    }));
    rules.push(json!({
        "rule": "self.all(key, key == 'cpu' || !self[key].endsWith('m'))",
        "message": format!("an amount {FRACTION}"),
    }));
    let amount = json!({
        "type": "string", "minLength": 1, "maxLength": MAX_AMOUNT, "pattern": AMOUNT,
    });
    schema.insert("additionalProperties".to_owned(), amount);
    schema.insert("minProperties".to_owned(), json!(1));
    schema.insert("maxProperties".to_owned(), json!(8));
    schema.insert("x-kubernetes-validations".to_owned(), json!(rules));
}

/// The JSON Patch for requests. `variables.requests` has the defaults that apply, as text.
pub(crate) fn request_patch(resources: &[&str]) -> String {
    patch("requests", resources, |resource| format!("variables.requests['{resource}']"))
}

/// The JSON Patch for limits. `variables.limits` has the defaults that apply, as text.
pub(crate) fn limit_patch(resources: &[&str]) -> String {
    patch("limits", resources, |resource| {
        let default = format!("variables.limits['{resource}']");
        let request = format!("item.resources.?requests[?'{resource}']");
        format!(
            "quantity(string({request}.orValue({default}))).isGreaterThan(quantity({default})) ? \
             string(item.resources.requests['{resource}']) : {default}"
        )
    })
}

fn patch(
    part: &str,
    resources: &[&str],
    value: impl Fn(&str) -> String,
) -> String {
    let lists = CONTAINERS.into_iter().flat_map(|list| {
        // The map and what is in it must be made together: an empty one does not last.
        let missing = resources.iter().map(|resource| format!("variables.{part}['{resource}'] != ''"));
        let missing: Vec<_> = missing.collect();
        let map = patch_each(
            list,
            &format!("({}) && !item.?resources.?{part}.hasValue()", missing.join(" || ")),
            &format!("/resources/{part}"),
            "{}",
        );
        let value = &value;
        let amounts = resources.iter().map(move |resource| {
            patch_each(
                list,
                &format!(
                    "variables.{part}['{resource}'] != '' && \
                     !item.?resources.?{part}[?'{resource}'].hasValue()"
                ),
                &format!("/resources/{part}/{resource}"),
                &value(resource),
            )
        });
        std::iter::once(map).chain(amounts).collect::<Vec<_>>()
    });
    joined(lists)
}

impl Rule for DefaultResources {
    fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        if self.requests.is_empty() && self.limits.is_empty() {
            errors.push(FieldError::new(path, "set requests, limits or both"));
        }
        for (field, amounts, known) in [
            ("requests", &self.requests, REQUESTS),
            ("limits", &self.limits, LIMITS),
        ] {
            for (resource, amount) in amounts {
                let path = format!("{path}.{field}.{resource}");
                if field == "limits" && resource == "cpu" {
                    errors.push(FieldError::new(&path, NO_CPU_LIMIT));
                } else if !known.contains(&resource.as_str()) {
                    let message = format!("has no default: only {} can", known.join(", "));
                    errors.push(FieldError::new(&path, message));
                } else if !is_amount(amount) {
                    let message = "is not an amount: write it like 100m, 0.5, 200Mi or 1Gi, not below 0";
                    errors.push(FieldError::quoting(&path, amount, message));
                } else if resource != "cpu" && amount.ends_with('m') {
                    errors.push(FieldError::quoting(&path, amount, FRACTION));
                }
            }
        }
    }

    fn checks(&self, _version: Version) -> Vec<Check> {
        let rows = |part: &str, amounts: &BTreeMap<String, String>| -> Vec<Check> {
            let row = |resource: &String| Check {
                columns: vec![part.to_owned(), resource.clone()],
                ..Check::default()
            };
            amounts.keys().map(row).collect()
        };
        let mut checks = rows("requests", &self.requests);
        checks.extend(rows("limits", &self.limits));
        checks
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::Pod,
            variables: &[(
                "setForPod",
                "[variables.podSpec.?resources.?requests.orValue({}), \
                 variables.podSpec.?resources.?limits.orValue({})]",
            )],
            findings: Findings::Strings(
                "variables.setForPod.exists(m, r[3] in m) ? [] : variables.podContainers\
                 .filter(c, !c.?resources[?r[2]][?r[3]].hasValue()).map(c, c.name)",
            ),
            sentence: "'denied container ' + v[4] + ': set resources.' + v[2] + '.' + v[3] + '.'",
        }
    }

    fn sample() -> Self {
        let amounts = |amounts: &[(&str, &str)]| {
            let owned = |(key, amount): &(&str, &str)| ((*key).to_owned(), (*amount).to_owned());
            amounts.iter().map(owned).collect()
        };
        Self {
            requests: amounts(&[("cpu", "100m"), ("ephemeral-storage", "1Gi"), ("memory", "200Mi")]),
            limits: amounts(&[("ephemeral-storage", "2Gi")]),
        }
    }

    fn violating_pod(&self) -> Pod {
        example_pod(TAGGED, BTreeMap::new())
    }

    fn passing_pod(&self) -> Pod {
        let texts = |amounts: &BTreeMap<String, String>| -> BTreeMap<String, Text> {
            let text = |(key, amount): (&String, &String)| (key.clone(), Text(amount.clone()));
            amounts.iter().map(text).collect()
        };
        let (mut requests, mut limits) = (texts(&self.requests), texts(&self.limits));
        // No limit is below its request, and none is without one.
        for (resource, limit) in &mut limits {
            let request = requests.entry(resource.clone()).or_insert_with(|| limit.clone());
            let amounts = [&limit.0, &request.0].map(|text| text.parse::<Quantity>().ok());
            if amounts[0] < amounts[1] {
                *limit = request.clone();
            }
        }
        let mut pod = self.violating_pod();
        for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
            container.resources = Some(ResourceRequirements {
                requests: Some(requests.clone()),
                limits: Some(limits.clone()),
                ..ResourceRequirements::default()
            });
        }
        pod
    }

    fn mutation(&self) -> Option<Mutation> {
        Some(Mutation::Defaults {
            requests: self.requests.clone(),
            limits: self.limits.clone(),
        })
    }

    fn is_kept_by(&self, pod: &Pod) -> Option<bool> {
        let set_for_pod = |resource: &str| {
            let mut specs = pod.spec.iter();
            specs.any(|spec| is_set_for_pod(spec, resource))
        };
        let all = |resource: &str, limits: bool| {
            containers(pod).all(|container| {
                let resources = container.resources.as_ref();
                let list = resources.and_then(|resources| {
                    if limits {
                        resources.limits.as_ref()
                    } else {
                        resources.requests.as_ref()
                    }
                });
                amount(list, resource).is_some()
            })
        };
        let kept = |amounts: &BTreeMap<String, String>, limits: bool| {
            let mut resources = amounts.keys();
            resources.all(|resource| set_for_pod(resource) || all(resource, limits))
        };
        Some(kept(&self.requests, false) && kept(&self.limits, true))
    }
}

/// Whether `text` fits [`AMOUNT`].
fn is_amount(text: &str) -> bool {
    let unsigned = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let fine = ["n", "u"].iter().any(|suffix| text.ends_with(suffix));
    let exponent = text.split_once(['e', 'E']).map_or("", |(_, exponent)| exponent);
    text.len() <= MAX_AMOUNT
        && unsigned
        && !fine
        && !exponent.starts_with('-')
        && exponent.trim_start_matches('+').len() <= 2
        && text.parse::<Quantity>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("100m", true)]
    #[case("1", true)]
    #[case("0", true)]
    #[case(".5", true)]
    #[case("1.", true)]
    #[case("200Mi", true)]
    #[case("1e3", true)]
    #[case("1E+3", true)]
    #[case("1E", true)]
    #[case("1e100", false)]
    #[case("1e-3", false)]
    #[case("-1", false)]
    #[case("+1", false)]
    #[case("1n", false)]
    #[case("1u", false)]
    #[case("100mi", false)]
    #[case("1K", false)]
    #[case("", false)]
    #[case("a lot", false)]
    #[case("1'", false)]
    #[case("1\n", false)]
    #[case("1000000000000000000000", false)]
    fn amounts(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_amount(text), valid);
    }
}
