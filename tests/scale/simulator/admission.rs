//! What a simulated cluster says of a Pod, from the policies and bindings that it stores and from
//! nothing else. The CEL of each stored policy is evaluated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

use boundary_operator::api::Action;
use boundary_operator::compile::AdmissionObject;
use boundary_operator::evaluate::{Evaluator, Kind, Operation, Request};
use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde_json::Value;

use super::store::{Resource, State};

/// Who asks in a simulated cluster.
pub(crate) const USER: &str = "system:simulated";

/// Verdicts that are remembered, of one policy.
const REMEMBERED: usize = 1_000;

type Labels = BTreeMap<String, String>;

/// A Pod that is to be created, dry.
pub(crate) struct Asked<'a> {
    /// As it was sent.
    pub(crate) text: &'a str,
    pub(crate) pod: &'a Value,
    pub(crate) namespace: &'a str,
    pub(crate) namespace_labels: &'a Labels,
}

/// What a cluster says of it.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) denial: Option<String>,
    pub(crate) warnings: Vec<String>,
}

/// One stored policy, ready to judge.
pub(crate) struct Judge {
    evaluator: Evaluator,
    matcher: Matcher,
    /// The same asked of the same policy has the same answer, in every cluster.
    remembered: Mutex<HashMap<(String, Labels), Option<String>>>,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judge").finish_non_exhaustive()
    }
}

impl Judge {
    /// Reads a stored policy.
    pub(crate) fn new(stored: &Value) -> Result<Self, String> {
        let policy: ValidatingAdmissionPolicy =
            serde_json::from_value(stored.clone()).map_err(|error| error.to_string())?;
        let spec = policy.spec.clone().unwrap_or_default();
        let object = AdmissionObject {
            name: policy.metadata.name.clone().unwrap_or_default(),
            boundaries: [].into(),
            action: Action::Deny,
            policies: [].into(),
            rules: [].into(),
            revision: String::new(),
            policy,
            binding: ValidatingAdmissionPolicyBinding::default(),
        };
        let evaluator = Evaluator::new(&[object]).map_err(|error| error.to_string())?;
        Ok(Self {
            evaluator,
            matcher: Matcher::new(spec.match_constraints.unwrap_or_default())?,
            remembered: Mutex::default(),
        })
    }

    /// The message of the policy, if it has one.
    fn judge(&self, asked: &Asked<'_>) -> Result<Option<String>, String> {
        if !self.matcher.matches(asked) {
            return Ok(None);
        }
        let key = (asked.text.to_owned(), asked.namespace_labels.clone());
        if let Some(known) = self.remembered.lock().unwrap().get(&key) {
            return Ok(known.clone());
        }
        let request = Request {
            kind: Kind::Pod,
            sub_resource: "",
            operation: Operation::Create,
            object: asked.pod,
            old_object: None,
            namespace: asked.namespace,
            namespace_labels: asked.namespace_labels,
            user: USER,
            groups: &[],
        };
        let found = self.evaluator.judge(&request);
        let found = found.map_err(|error| error.to_string())?;
        let message = found.into_iter().next().map(|finding| finding.message);
        let mut remembered = self.remembered.lock().unwrap();
        if remembered.len() == REMEMBERED {
            remembered.clear();
        }
        remembered.insert(key, message.clone());
        Ok(message)
    }
}

/// What a cluster that has `state` says.
///
/// # Errors
/// Something that is stored can't be evaluated here. It is never taken for a pass.
pub(crate) fn judge(state: &State, asked: &Asked<'_>) -> Result<Said, String> {
    let now = Instant::now();
    let mut said = Said::default();
    for stored in state.all(Resource::Bindings) {
        let Some(content) = stored.acting(now) else {
            continue;
        };
        let binding = content.binding()?;
        if !binding.matcher.matches(asked) {
            continue;
        }
        let policy = state.get(Resource::Policies, &binding.policy);
        let Some(policy) = policy.and_then(|stored| stored.acting(now)) else {
            continue;
        };
        let Some(message) = policy.judge()?.judge(asked)? else {
            continue;
        };
        let by = format!(
            "ValidatingAdmissionPolicy '{}' with binding '{}'",
            policy.name, content.name
        );
        for action in &binding.actions {
            match action.as_str() {
                "Deny" if said.denial.is_none() => {
                    said.denial = Some(format!("{by} denied request: {message}"));
                }
                "Warn" => said
                    .warnings
                    .push(format!("Validation failed for {by}: {message}")),
                _ => {}
            }
        }
    }
    Ok(said)
}

/// One stored binding.
#[derive(Debug)]
pub(crate) struct Bound {
    policy: String,
    actions: Vec<String>,
    matcher: Matcher,
}

impl Bound {
    /// Reads a stored binding.
    pub(crate) fn new(stored: Value) -> Result<Self, String> {
        let binding: ValidatingAdmissionPolicyBinding =
            serde_json::from_value(stored).map_err(|error| error.to_string())?;
        let spec = binding.spec;
        Ok(Self {
            policy: spec.policy_name,
            actions: spec.validation_actions,
            matcher: Matcher::new(spec.match_resources.unwrap_or_default())?,
        })
    }
}

/// What a policy or a binding is about.
#[derive(Debug)]
struct Matcher {
    new_pods: bool,
    namespaces: Selector,
    objects: Selector,
}

impl Matcher {
    fn new(resources: MatchResources) -> Result<Self, String> {
        let selector = |selector: Option<LabelSelector>| {
            Selector::try_from(selector.unwrap_or_default()).map_err(|error| error.to_string())
        };
        let rules = resources.resource_rules.unwrap_or_default();
        let excluded = resources.exclude_resource_rules.unwrap_or_default();
        Ok(Self {
            new_pods: (rules.is_empty() || rules.iter().any(is_about_new_pods))
                && !excluded.iter().any(is_about_new_pods),
            namespaces: selector(resources.namespace_selector)?,
            objects: selector(resources.object_selector)?,
        })
    }

    fn matches(&self, asked: &Asked<'_>) -> bool {
        let labels = asked.pod["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten();
        let labels: Labels = labels
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect();
        self.new_pods
            && self.namespaces.matches(asked.namespace_labels)
            && self.objects.matches(&labels)
    }
}

fn is_about_new_pods(rule: &NamedRuleWithOperations) -> bool {
    let has = |list: &Option<Vec<String>>, item: &str| {
        let mut items = list.iter().flatten();
        items.any(|i| i == item || i == "*")
    };
    has(&rule.api_groups, "")
        && has(&rule.api_versions, "v1")
        && has(&rule.operations, "CREATE")
        && has(&rule.resources, "pods")
        && rule.scope.as_deref() != Some("Cluster")
        && rule.resource_names.iter().flatten().next().is_none()
}
