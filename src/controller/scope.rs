//! Which policies are for which clusters, and what a cluster is asked for. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use crate::api::{
    BoundaryPolicy, BoundaryPolicyStatus, FieldError, MemberCluster, selects, validate,
};
use crate::fleet::Wanted;

/// A policy, or why there is none to be read under that name.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) metadata: ObjectMeta,
    /// What the output depends on, so that a new status or label is no change; otherwise everything
    /// that keeps it from being compiled.
    pub(crate) policy: Result<Arc<BoundaryPolicy>, Vec<FieldError>>,
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
            stored,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether the cluster is in the scope of the policy.
    pub(crate) fn is_for(&self, cluster: &MemberCluster) -> bool {
        self.policy.as_ref().is_ok_and(|policy| {
            selects(
                policy.spec.clusters.as_ref(),
                &cluster.name_any(),
                cluster.labels(),
            )
            .unwrap_or_default()
        })
    }
}

/// The policies that `cluster` is to enforce, sorted by name.
pub(crate) fn wanted(policies: &BTreeMap<String, Observed>, cluster: &MemberCluster) -> Wanted {
    policies
        .values()
        .filter(|observed| observed.metadata.deletion_timestamp.is_none())
        .filter(|observed| observed.is_for(cluster))
        .filter_map(|observed| observed.policy.as_ref().ok().cloned())
        .collect()
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
        let mut cluster = MemberCluster::new(
            "eu-1",
            crate::api::MemberClusterSpec {
                kubeconfig_secret_ref: None,
                local: None,
            },
        );
        cluster.metadata.labels = Some([("region".to_owned(), "eu".to_owned())].into());
        let wanted = wanted(&policies, &cluster);
        let names: Vec<_> = wanted.iter().map(|policy| policy.name_any()).collect();
        assert_eq!(names, ["all", "eu"]);
        assert_eq!(wanted[0].metadata.labels, None);
    }
}
