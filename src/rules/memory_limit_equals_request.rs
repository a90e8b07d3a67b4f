use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disallow_latest_tag::TAGGED;
use super::mutation::{CONTAINERS, Mutation, amount, containers, joined, patch_each};
use super::quantity::Quantity;
use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::FieldError;
use crate::compile::Version;

/// Sets the memory limit of every container and init container of a Pod that is created to its
/// memory request, whatever limit was declared; and that of the Pod as a whole where it has one. It
/// has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryLimitEqualsRequest {}

/// Whether the limit in resources that have a request is another than the request.
fn differs(of: &str) -> String {
    format!(
        "quantity(string({of}.limits['memory']))\
         .compareTo(quantity(string({of}.requests['memory']))) != 0"
    )
}

/// Whether one of `containers` requests no memory, and so gets no limit of its own. A Pod as a whole
/// that requests memory then needs a limit; otherwise those of its containers are enough. The API
/// server fills in what a Pod requests, and not always before it is changed, so asking for a limit
/// in any case would refuse what is right.
fn some_without(containers: &str) -> String {
    format!("({containers}).exists(c, !c.?resources.?requests[?'memory'].hasValue())")
}

/// The JSON Patch of the rule, where `applies` holds.
pub(crate) fn patch(applies: &str) -> String {
    let containers = CONTAINERS.into_iter().flat_map(|list| {
        let requested = format!("{applies} && item.?resources.?requests[?'memory'].hasValue()");
        [
            patch_each(
                list,
                &format!("{requested} && !item.resources.?limits.hasValue()"),
                "/resources/limits",
                "{}",
            ),
            patch_each(
                list,
                &format!(
                    "{requested} && (!item.resources.?limits[?'memory'].hasValue() || {})",
                    differs("item.resources")
                ),
                "/resources/limits/memory",
                "string(item.resources.requests['memory'])",
            ),
        ]
    });
    let of_pod = "variables.spec.resources";
    let condition = format!(
        "{applies} && variables.spec.?resources.?requests[?'memory'].hasValue() && \
         ({of_pod}.?limits[?'memory'].hasValue() ? {} : {})",
        differs(of_pod),
        some_without("variables.containers + variables.initContainers"),
    );
    // From 1.37 on the API server itself fills in the request later.
    let only_limited = format!(
        "{applies} && !variables.spec.?resources.?requests[?'memory'].hasValue() && \
         variables.spec.?resources.?limits[?'memory'].hasValue()"
    );
    let of_pod = [
        format!(
            "({only_limited} && !{of_pod}.?requests.hasValue() ? \
             [JSONPatch{{op: 'add', path: '/spec/resources/requests', value: {{}}}}] : [])"
        ),
        format!(
            "({only_limited} ? [JSONPatch{{op: 'add', path: '/spec/resources/requests/memory', \
             value: string({of_pod}.limits['memory'])}}] : [])"
        ),
        format!(
            "({condition} && !{of_pod}.?limits.hasValue() ? \
             [JSONPatch{{op: 'add', path: '/spec/resources/limits', value: {{}}}}] : [])"
        ),
        format!(
            "({condition} ? [JSONPatch{{op: 'add', path: '/spec/resources/limits/memory', \
             value: string({of_pod}.requests['memory'])}}] : [])"
        ),
    ];
    joined(containers.chain(of_pod))
}

impl Rule for MemoryLimitEqualsRequest {
    fn validate(&self, _path: &str, _errors: &mut Vec<FieldError>) {}

    fn checks(&self, _version: Version) -> Vec<Check> {
        vec![Check::default()]
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::PodResources,
            // The API server itself sets a request where there is only a limit.
            variables: &[
                (
                    "memory",
                    "[[dyn('the Pod'), dyn('spec.'), variables.podSpec.?resources.orValue({})]] + \
                     variables.podContainers.map(c, \
                     [dyn('container ' + c.name), dyn(''), c.?resources.orValue({})])",
                ),
                (
                    "overcommitted",
                    "variables.memory.filter(m, !m[2].?requests[?'memory'].hasValue() ? \
                     m[2].?limits[?'memory'].hasValue() : \
                     m[2].?limits[?'memory'].hasValue() ? \
                     quantity(string(m[2].limits['memory']))\
                     .compareTo(quantity(string(m[2].requests['memory']))) != 0 : \
                     m[1] == '' || variables.podContainers\
                     .exists(c, !c.?resources.?requests[?'memory'].hasValue()))\
                     .map(m, m[0] + ': set ' + m[1] + 'resources.limits.memory to ' + m[1] + \
                     'resources.requests.memory')",
                ),
            ],
            findings: Findings::Strings("variables.overcommitted"),
            sentence: "'denied ' + v[2] + '.'",
        }
    }

    fn sample() -> Self {
        Self {}
    }

    fn violating_pod(&self) -> Pod {
        pod("300Mi", "500Mi")
    }

    fn passing_pod(&self) -> Pod {
        pod("1Gi", "1024Mi")
    }

    fn mutation(&self) -> Option<Mutation> {
        Some(Mutation::MemoryLimit)
    }

    fn is_kept_by(&self, pod: &Pod) -> Option<bool> {
        let kept = |resources: &ResourceRequirements, needs_limit: bool| {
            let request = amount(resources.requests.as_ref(), "memory");
            let limit = amount(resources.limits.as_ref(), "memory");
            let read = |text: &str| text.parse::<Quantity>().ok();
            match (request, limit) {
                (None, None) => true,
                (Some(_), None) => !needs_limit,
                (None, Some(_)) => false,
                (Some(request), Some(limit)) => {
                    read(request).is_some() && read(request) == read(limit)
                }
            }
        };
        let mut all = containers(pod).filter_map(|c| c.resources.as_ref());
        let mut of_pod = pod.spec.iter().filter_map(|spec| spec.resources.as_ref());
        let some_without = containers(pod).any(|c| {
            let requests = c.resources.as_ref().and_then(|r| r.requests.as_ref());
            amount(requests, "memory").is_none()
        });
        Some(all.all(|r| kept(r, true)) && of_pod.all(|r| kept(r, some_without)))
    }
}

fn pod(request: &str, limit: &str) -> Pod {
    let memory = |amount: &str| Some([("memory".to_owned(), Text(amount.to_owned()))].into());
    let mut pod = example_pod(TAGGED, BTreeMap::new());
    for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
        container.resources = Some(ResourceRequirements {
            requests: memory(request),
            limits: memory(limit),
            ..ResourceRequirements::default()
        });
    }
    pod
}
