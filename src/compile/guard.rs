//! The guard on the label that puts a namespace into a boundary: a tenant that may edit its
//! namespace must not leave its boundary by it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;

use super::untyped::untype;
use super::{AdmissionObject, MANAGED_BY, cel, emit};
use crate::api::{Action, GROUP};

/// The name of the guard. No boundary has an object of that name, see
/// [`object_name`](super::object_name).
pub const GUARD: &str = "guard.label.boundarypolicy.dev.system";

/// The resource, of the API group `boundarypolicy.dev`, that RBAC is asked about; its names are
/// those of boundaries. No API serves it.
pub const GUARDED_RESOURCE: &str = "boundaries";

/// The verb that RBAC is asked about.
pub const GUARDED_VERB: &str = "assign";

/// The objects that let only those set, change or remove the label who have the verb `assign` on
/// the boundary: on the one that the namespace leaves and on the one that it enters.
///
/// They match every resource through which the labels of a Namespace can be written, and no
/// selector, since that would look at the new labels.
#[must_use]
pub fn label_guard(boundary_label: &str) -> AdmissionObject {
    let key = cel::string(boundary_label);
    let before = format!("oldObject == null ? '' : oldObject.metadata.?labels[?{key}].orValue('')");
    let after = format!("object.metadata.?labels[?{key}].orValue('')");
    let may = |boundary: &str| {
        format!(
            "{boundary} == '' || authorizer.group({}).resource({}).name({boundary}).check({}).allowed()",
            cel::string(GROUP),
            cel::string(GUARDED_RESOURCE),
            cel::string(GUARDED_VERB),
        )
    };
    let variable = |name: &str, expression: String| Variable {
        name: name.to_owned(),
        expression,
    };
    let needs = format!("needs the verb {GUARDED_VERB} on {GUARDED_RESOURCE}.{GROUP} ");
    let refusal = |expression: &str, what: &str, named: &str| Validation {
        expression: expression.to_owned(),
        reason: Some("Forbidden".to_owned()),
        message: Some(format!(
            "Label {boundary_label} is guarded: who sets, changes or removes it {needs}NAME."
        )),
        message_expression: Some(format!(
            "{} + variables.name + {} + {what} + {} + {named} + '.'",
            cel::string(&format!("Label {boundary_label} of namespace ")),
            cel::string(" is guarded: "),
            cel::string(&format!(" {needs}")),
        )),
    };
    let leave = "\"taking it out of boundary '\" + variables.before + \"'\"";
    let enter = "\"putting it into boundary '\" + variables.after + \"'\"";

    let mut policy = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(MatchResources {
            resource_rules: Some(vec![NamedRuleWithOperations {
                api_groups: Some(vec![String::new()]),
                api_versions: Some(vec!["v1".to_owned()]),
                operations: Some(["CREATE", "UPDATE"].map(ToOwned::to_owned).to_vec()),
                resources: Some(
                    ["namespaces", "namespaces/finalize", "namespaces/status"]
                        .map(ToOwned::to_owned)
                        .to_vec(),
                ),
                scope: Some("Cluster".to_owned()),
                ..NamedRuleWithOperations::default()
            }]),
            ..emit::matching(LabelSelector::default())
        }),
        match_conditions: Some(vec![MatchCondition {
            name: "boundary-changes".to_owned(),
            expression: format!("{after} != ({before})"),
        }]),
        variables: Some(vec![
            variable("before", before),
            variable("after", after),
            variable("name", "object.metadata.?name.orValue('')".to_owned()),
            variable("mayLeave", may("variables.before")),
            variable("mayEnter", may("variables.after")),
        ]),
        // Only the first validation that fails is shown, so the first is about both.
        validations: Some(vec![
            refusal(
                "variables.mayLeave == true || variables.mayEnter == true",
                &format!("{leave} + ' and ' + {enter}"),
                "variables.before + ' and ' + variables.after",
            ),
            refusal("variables.mayLeave == true", leave, "variables.before"),
            refusal("variables.mayEnter == true", enter, "variables.after"),
        ]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    untype(&mut policy);
    let binding = ValidatingAdmissionPolicyBindingSpec {
        policy_name: GUARD.to_owned(),
        validation_actions: vec![Action::Deny.as_str().to_owned()],
        match_resources: None,
        ..ValidatingAdmissionPolicyBindingSpec::default()
    };
    let (managed_by, manager) = MANAGED_BY;
    let metadata = ObjectMeta {
        name: Some(GUARD.to_owned()),
        labels: Some([(managed_by.to_owned(), manager.to_owned())].into()),
        ..ObjectMeta::default()
    };
    AdmissionObject {
        rules: BTreeMap::new(),
        name: GUARD.to_owned(),
        boundaries: BTreeSet::new(),
        action: Action::Deny,
        policies: BTreeMap::new(),
        revision: emit::revision(&policy, &binding),
        policy: ValidatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(policy),
            status: None,
        },
        binding: ValidatingAdmissionPolicyBinding {
            metadata,
            spec: binding,
        },
    }
}
