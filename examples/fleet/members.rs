//! The member clusters: what is put into them, and when they are ready to be looked at.

use std::collections::BTreeSet;

use boundary_operator::api::{BoundaryPolicy, ClusterState, MemberCluster};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, documents, until};
use crate::{MEMBERS, NAMESPACE, root};

/// Makes the namespaces of the boundary. No kube-controller-manager runs here, so the service
/// account that Pods need is made too.
pub(crate) async fn namespaces(member: &Cluster) -> anyhow::Result<()> {
    for namespace in documents(&root("examples/policies/namespaces.yaml"))? {
        member.apply(&namespace).await?;
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace["metadata"]["name"]},
        });
        member.apply(&account).await?;
    }
    Ok(())
}

/// Writes the Secret on the hub with which the operator reaches the member.
pub(crate) async fn secret(hub: &Cluster, member: &Cluster) -> anyhow::Result<()> {
    let token = member.token(NAMESPACE, "boundary-operator").await?;
    // The one of the administrator, with the token of the operator in place of theirs.
    let mut kubeconfig: Value = serde_saphyr::from_str(&member.plane.kubeconfig())?;
    kubeconfig["users"][0]["user"] = json!({"token": token});
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("{}-kubeconfig", member.name), "namespace": NAMESPACE},
        "stringData": {"value": serde_json::to_string(&kubeconfig)?},
    });
    hub.apply(&secret).await
}

/// Waits until every policy has an answer from every member.
pub(crate) async fn settled(hub: &Cluster) -> anyhow::Result<()> {
    let policies: Api<BoundaryPolicy> = Api::all(hub.client.clone());
    let clusters: Api<MemberCluster> = Api::all(hub.client.clone());
    until("every policy has an answer from every member", async || {
        let policies = policies.list(&ListParams::default()).await?;
        let clusters = clusters.list(&ListParams::default()).await?;
        let settled = policies.iter().all(has_answers)
            && clusters.iter().all(|cluster| {
                let name = cluster.metadata.name.as_deref().unwrap_or_default();
                let status = cluster.status.as_ref();
                let counted = status.and_then(|status| status.policies.as_ref());
                let enforced = policies.iter().filter(|policy| is_enforced(policy, name));
                let enforced = u32::try_from(enforced.count()).ok();
                counted.is_some_and(|counted| Some(counted.enforced) == enforced)
            });
        Ok(settled.then_some(()))
    })
    .await
}

/// Whether the status is about the policy as it is, and no member is on its way.
fn has_answers(policy: &BoundaryPolicy) -> bool {
    let Some(status) = &policy.status else {
        return false;
    };
    status.observed_generation == policy.metadata.generation
        && status.clusters.len() == MEMBERS.len()
        && (status.clusters.iter()).all(|cluster| cluster.state != ClusterState::Pending)
}

fn is_enforced(policy: &BoundaryPolicy, member: &str) -> bool {
    let clusters = policy.status.iter().flat_map(|status| &status.clusters);
    clusters
        .filter(|cluster| cluster.name == member)
        .any(|cluster| cluster.state == ClusterState::Enforced)
}

/// The members in which every policy is said to be enforced.
pub(crate) async fn enforcing(hub: &Cluster) -> anyhow::Result<BTreeSet<&'static str>> {
    let policies: Api<BoundaryPolicy> = Api::all(hub.client.clone());
    let policies = policies.list(&ListParams::default()).await?;
    let names = MEMBERS.map(|(name, _)| name).into_iter();
    let enforcing = names.filter(|name| policies.iter().all(|policy| is_enforced(policy, name)));
    Ok(enforcing.collect())
}
