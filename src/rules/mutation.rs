//! What the rules that change Pods have in common.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

/// What a rule changes on a Pod that is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Images are pulled at every start.
    PullAlways,
    /// Requests and limits are set where there are none.
    Defaults {
        /// The requests, by resource.
        requests: BTreeMap<String, String>,
        /// The limits, by resource.
        limits: BTreeMap<String, String>,
    },
    /// The limit of memory becomes the request.
    MemoryLimit,
}

/// The lists of containers that have resources and a pull policy: the variable that holds it and its
/// path in a Pod.
pub(crate) const CONTAINERS: [(&str, &str); 2] = [
    ("containers", "/spec/containers/"),
    ("initContainers", "/spec/initContainers/"),
];

/// One operation of a JSON Patch for each item of `list` that `condition` holds for; `item` is the
/// item, and `field` follows the index in the path.
pub(crate) fn patch_each(
    (list, path): (&str, &str),
    condition: &str,
    field: &str,
    value: &str,
) -> String {
    format!(
        "variables.{list}.transformList(index, item, {condition}, \
         JSONPatch{{op: 'add', path: '{path}' + string(index) + '{field}', value: {value}}})"
    )
}

/// The sum of lists.
pub(crate) fn joined(lists: impl IntoIterator<Item = String>) -> String {
    lists.into_iter().fold(String::new(), |mut sum, list| {
        let plus = if sum.is_empty() { "" } else { " + " };
        // Writing to a String can't fail.
        let _ = write!(sum, "{plus}{list}");
        sum
    })
}

/// Containers and init containers.
pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    })
}

/// Whether `resource` is set for the Pod as a whole.
pub(super) fn is_set_for_pod(spec: &PodSpec, resource: &str) -> bool {
    let resources = spec.resources.iter();
    let lists = resources.flat_map(|resources| [&resources.requests, &resources.limits]);
    lists.flatten().any(|list| list.contains_key(resource))
}

/// An amount in a list of resources.
pub(super) fn amount<'r>(
    list: Option<&'r BTreeMap<String, Text>>,
    resource: &str,
) -> Option<&'r str> {
    Some(list?.get(resource)?.0.as_str())
}
