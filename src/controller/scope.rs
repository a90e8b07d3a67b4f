//! Which policies are for which clusters, and what a cluster is asked for. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use crate::api::{
    BoundaryPolicy, BoundaryPolicyStatus, FieldError, MemberCluster, selects, validate,
};
use crate::fleet::Wanted;
use crate::plans::Catalog;
use crate::rules::Rules;

/// A policy, or why there is none to be read under that name.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) metadata: ObjectMeta,
    /// What the output depends on, so that a new status or label is no change; otherwise everything
    /// that keeps it from being compiled.
    pub(crate) policy: Result<Arc<BoundaryPolicy>, Vec<FieldError>>,
    /// The policy with the rule about compute plans alone, if it has it.
    plans: Option<Arc<BoundaryPolicy>>,
    /// Its stored status, where that can be read.
    pub(crate) stored: Option<BoundaryPolicyStatus>,
}

impl Observed {
    /// A policy that can be read.
    pub(crate) fn read(policy: &BoundaryPolicy) -> Self {
        let errors = validate(policy);
        Self {
            metadata: policy.metadata.clone(),
            stored: policy.status.clone(),
            plans: errors.is_empty().then(|| plans_of(policy)).flatten(),
            policy: if errors.is_empty() {
                Ok(Arc::new(essence(policy)))
            } else {
                Err(errors)
            },
        }
    }

    /// A policy that can't be read, for `error`.
    pub(crate) fn malformed(
        metadata: ObjectMeta,
        error: &str,
        stored: Option<BoundaryPolicyStatus>,
    ) -> Self {
        let text = format!("the stored policy can't be read: {error}");
        Self {
            metadata,
            policy: Err(vec![FieldError {
                path: "spec".to_owned(),
                message: text,
            }]),
            plans: None,
            stored,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether the cluster has something of the policy to enforce.
    pub(crate) fn is_for(&self, cluster: &MemberCluster, catalog: &Catalog) -> bool {
        self.part_for(cluster, catalog).is_some()
    }

    /// What the cluster has to enforce of the policy. Which compute plans are allowed does not depend
    /// on the scope.
    fn part_for(&self, cluster: &MemberCluster, catalog: &Catalog) -> Option<&Arc<BoundaryPolicy>> {
        let policy = self.policy.as_ref().ok()?;
        let plans = self.plans.as_ref().filter(|_| self.checks_objects(catalog));
        let scope = policy.spec.clusters.as_ref();
        let selected = selects(scope, &cluster.name_any(), cluster.labels());
        let pods = !policy.spec.rules.names().is_empty();
        if pods && selected.unwrap_or_default() {
            return Some(policy);
        }
        plans
    }

    /// Whether the policy says which compute plans objects in clusters may have.
    pub(crate) fn checks_objects(&self, catalog: &Catalog) -> bool {
        let rules = self.policy.as_ref().map(|policy| &policy.spec.rules);
        let rule = rules.ok().and_then(|r| r.allowed_compute_plans.as_ref());
        rule.is_some_and(|rule| catalog.checks_objects(rule))
    }
}

/// What `cluster` is to enforce: the policies sorted by name.
pub(crate) fn wanted(
    policies: &BTreeMap<String, Observed>,
    catalog: &Arc<Catalog>,
    cluster: &MemberCluster,
) -> Wanted {
    let policies = policies
        .values()
        .filter(|observed| observed.metadata.deletion_timestamp.is_none())
        .filter_map(|observed| observed.part_for(cluster, catalog).cloned());
    Wanted {
        policies: policies.collect(),
        catalog: catalog.clone(),
    }
}

/// `policy` with the rule about compute plans alone, for clusters that it is not for otherwise.
fn plans_of(policy: &BoundaryPolicy) -> Option<Arc<BoundaryPolicy>> {
    let rule = policy.spec.rules.allowed_compute_plans.clone()?;
    let mut plans = essence(policy);
    plans.spec.clusters = None;
    plans.spec.exemptions.clear();
    plans.spec.rules = Rules {
        allowed_compute_plans: Some(rule),
        ..Rules::default()
    };
    Some(Arc::new(plans))
}

fn essence(policy: &BoundaryPolicy) -> BoundaryPolicy {
    BoundaryPolicy {
        metadata: ObjectMeta {
            name: policy.metadata.name.clone(),
            uid: policy.metadata.uid.clone(),
            generation: policy.metadata.generation,
            ..ObjectMeta::default()
        },
        spec: policy.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(name: &str, spec: &str) -> (String, Observed) {
        let policy: BoundaryPolicy = serde_saphyr::from_str(&format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
             metadata: {{name: {name}, generation: 2, labels: {{a: b}}}}\n\
             spec: {{boundary: web, {spec}}}"
        ))
        .unwrap();
        (name.to_owned(), Observed::read(&policy))
    }

    #[test]
    fn a_cluster_gets_the_valid_policies_in_whose_scope_it_is() {
        let policies = [
            observed("all", "rules: {disallowLatestTag: {}}"),
            observed(
                "eu",
                "clusters: {selector: {matchLabels: {region: eu}}}, rules: {disallowLatestTag: {}}",
            ),
            observed(
                "us",
                "clusters: {names: [us-1]}, rules: {disallowLatestTag: {}}",
            ),
            observed("invalid", "rules: {}"),
        ]
        .into();
        let mut cluster = MemberCluster::new("eu-1", crate::api::MemberClusterSpec::default());
        cluster.metadata.labels = Some([("region".to_owned(), "eu".to_owned())].into());
        let wanted = wanted(&policies, &Arc::default(), &cluster);
        let names: Vec<_> = wanted.iter().map(|policy| policy.name_any()).collect();
        assert_eq!(names, ["all", "eu"]);
        assert_eq!(wanted[0].metadata.labels, None);
    }

    #[test]
    fn compute_plans_know_no_scope_and_need_objects_that_have_them() {
        let rules = "rules: {disallowLatestTag: {}, allowedComputePlans: {plans: [valkey/small]}}";
        let policies = [
            observed("here", &format!("clusters: {{names: [eu-1]}}, {rules}")),
            observed(
                "elsewhere",
                &format!("clusters: {{names: [us-1]}}, {rules}"),
            ),
            observed(
                "plans",
                "rules: {allowedComputePlans: {plans: [valkey/small]}}",
            ),
        ]
        .into();
        let cluster = MemberCluster::new("eu-1", crate::api::MemberClusterSpec::default());
        let shown = |catalog: &Arc<Catalog>| {
            let wanted = wanted(&policies, catalog, &cluster);
            let shown = wanted.iter().map(|policy| {
                let rules = policy.spec.rules.titles().join(" ");
                format!("{}: {rules}", policy.name_any())
            });
            shown.collect::<Vec<_>>()
        };
        let catalog = |targets: &str| {
            let valkey = format!(
                "apiVersion: boundarypolicy.dev/v1alpha1\nkind: ComputeResourceType\n\
                 metadata: {{name: valkey}}\nspec: {{plans: [{{name: small}}], targets: [{targets}]}}"
            );
            Arc::new(Catalog::of(&[serde_saphyr::from_str(&valkey).unwrap()]).0)
        };
        assert_eq!(
            shown(&catalog("")),
            ["here: DisallowLatestTag AllowedComputePlans"]
        );
        let target = "{group: a.b, versions: [v1], resource: r, kind: R, planFields: [{path: p}]}";
        assert_eq!(
            shown(&catalog(target)),
            [
                "elsewhere: AllowedComputePlans",
                "here: DisallowLatestTag AllowedComputePlans",
                "plans: AllowedComputePlans",
            ]
        );
    }
}
