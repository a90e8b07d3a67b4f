use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disallow_latest_tag::TAGGED;
use super::mutation::{CONTAINERS, Mutation, containers, joined, patch_each};
use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::FieldError;
use crate::compile::Version;

/// Sets `imagePullPolicy: Always` on every container and init container of a Pod that is created,
/// and `pullPolicy: Always` on image volumes, whatever was declared. It has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlwaysPullImages {}

const ALWAYS: &str = "Always";

/// The JSON Patch of the rule, where `applies` holds.
pub(crate) fn patch(applies: &str) -> String {
    let containers = CONTAINERS.map(|list| {
        let condition = format!("{applies} && item.?imagePullPolicy.orValue('') != 'Always'");
        patch_each(list, &condition, "/imagePullPolicy", "'Always'")
    });
    let volumes = patch_each(
        ("volumes", "/spec/volumes/"),
        &format!("{applies} && has(item.image) && item.image.?pullPolicy.orValue('') != 'Always'"),
        "/image/pullPolicy",
        "'Always'",
    );
    joined(containers.into_iter().chain([volumes]))
}

impl Rule for AlwaysPullImages {
    fn validate(&self, _path: &str, _errors: &mut Vec<FieldError>) {}

    fn checks(&self, _version: Version) -> Vec<Check> {
        vec![Check::default()]
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::Pod,
            variables: &[(
                "notPulled",
                "variables.podContainers.filter(c, c.?imagePullPolicy.orValue('') != 'Always')\
                 .map(c, 'container ' + c.name + ': set imagePullPolicy to Always') + \
                 variables.podSpec.?volumes.orValue([])\
                 .filter(v, has(v.image) && v.image.?pullPolicy.orValue('') != 'Always')\
                 .map(v, 'volume ' + v.name + ': set image.pullPolicy to Always')",
            )],
            findings: Findings::Strings("variables.notPulled"),
            sentence: "'denied ' + v[2] + '.'",
        }
    }

    fn sample() -> Self {
        Self {}
    }

    fn violating_pod(&self) -> Pod {
        pod("IfNotPresent")
    }

    fn passing_pod(&self) -> Pod {
        pod(ALWAYS)
    }

    fn mutation(&self) -> Option<Mutation> {
        Some(Mutation::PullAlways)
    }

    fn is_kept_by(&self, pod: &Pod) -> Option<bool> {
        let mut containers = containers(pod);
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        Some(
            containers.all(|c| c.image_pull_policy.as_deref() == Some(ALWAYS))
                && volumes
                    .all(|v| (v.image.as_ref()).is_none_or(|i| i.pull_policy.as_deref() == Some(ALWAYS))),
        )
    }
}

fn pod(policy: &str) -> Pod {
    let mut pod = example_pod(TAGGED, BTreeMap::new());
    for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
        container.image_pull_policy = Some(policy.to_owned());
    }
    pod
}
