//! What is put into a member cluster, and taken out of it again.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{At as _, MANAGER, REGISTERED, Result, Trouble, is_absent, until};
use crate::compile::{MANAGED_BY, PROBE_NAMESPACE};

/// What the operator needs in a member.
const MANIFEST: &str = include_str!("../../../config/rbac/member.yaml");

/// The namespace of the service account, in every member.
pub(super) const NAMESPACE: &str = "boundary-operator";

/// The service account.
const ACCOUNT: &str = "boundary-operator";

/// How long the token controller may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The objects of the manifest, in order.
pub(super) fn objects() -> Result<Vec<DynamicObject>> {
    let documents = MANIFEST.split("\n---\n");
    let objects = documents.map(|document| {
        let mut object: DynamicObject =
            serde_saphyr::from_str(document).map_err(|e| Trouble(e.to_string()))?;
        let labels = object.metadata.labels.get_or_insert_default();
        labels.insert(REGISTERED.to_owned(), "true".to_owned());
        Ok(object)
    });
    objects.collect()
}

/// `ClusterRole boundary-operator-member`.
pub(super) fn shown(object: &DynamicObject) -> String {
    let kind = object
        .types
        .as_ref()
        .map_or("", |types| types.kind.as_str());
    format!("{kind} {}", object.name_any())
}

/// Puts the objects of the manifest into a cluster. A namespace that is there already stays as it is.
pub(super) async fn apply(client: &Client) -> Result<()> {
    for object in objects()? {
        let what = || format!("{} can't be applied in the member", shown(&object));
        let types = object.types.clone().unwrap_or_default();
        let kind = GroupVersionKind::try_from(&types).map_err(|e| Trouble(e.to_string()))?;
        let resource = ApiResource::from_gvk(&kind);
        let name = object.name_any();
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        if types.kind == "Namespace" && name == NAMESPACE {
            if api.get_opt(&name).await.at(what)?.is_none() {
                api.create(&PostParams::default(), &object).await.at(what)?;
            }
            continue;
        }
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .at(what)?;
    }
    Ok(())
}

/// A token of the service account, and the Secret that holds it, if one does.
pub(super) struct Token {
    pub(super) text: String,
    pub(super) secret: Option<String>,
}

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Makes a token: one that holds until its Secret is deleted, or for a time.
pub(super) async fn token(client: &Client, holds: Option<Duration>) -> Result<Token> {
    if let Some(holds) = holds {
        let api: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let request = json!({"spec": {"audiences": [], "expirationSeconds": holds.as_secs()}});
        let request = serde_json::from_value(request).map_err(|e| Trouble(e.to_string()))?;
        let params = PostParams::default();
        let made = api.create_token_request(ACCOUNT, &params, &request).await;
        let made = made.at(|| "no token can be requested in the member".to_owned())?;
        return Ok(Token {
            text: made
                .status
                .and_then(|status| status.token)
                .unwrap_or_default(),
            secret: None,
        });
    }
    let secret = json!({
        "metadata": {
            "generateName": "boundary-operator-token-",
            "labels": {REGISTERED: "true"},
            "annotations": {"kubernetes.io/service-account.name": ACCOUNT},
        },
        "type": "kubernetes.io/service-account-token",
    });
    let secret: Secret = serde_json::from_value(secret).map_err(|e| Trouble(e.to_string()))?;
    let api = secrets(client);
    let made = api.create(&PostParams::default(), &secret).await;
    let name = made
        .at(|| "the Secret of the token can't be made in the member".to_owned())?
        .name_any();
    let text = until(TOKEN_TIMEOUT, async || {
        let secret = api.get(&name).await;
        let secret = secret.at(|| format!("the Secret {name} can't be read in the member"))?;
        let data = secret.data.unwrap_or_default();
        Ok((data.get("token")).map(|token| String::from_utf8_lossy(&token.0).into_owned()))
    });
    match text.await {
        Ok(Some(text)) => Ok(Token {
            text,
            secret: Some(name),
        }),
        failed => {
            revoke(client, &name).await?;
            failed?;
            Err(Trouble(format!(
                "no token was put into the Secret {name} within {TOKEN_TIMEOUT:?}: the member runs \
                 no token controller. Ask for a token that expires: --token-duration 8760h"
            )))
        }
    }
}

/// Takes a token back.
pub(super) async fn revoke(client: &Client, secret: &str) -> Result<()> {
    delete(&secrets(client), secret).await
}

/// The Secrets with tokens that `register` made.
pub(super) async fn tokens(client: &Client) -> Result<Vec<String>> {
    let params = ListParams::default().labels(REGISTERED);
    let listed = secrets(client).list(&params).await;
    let listed = listed.at(|| "the tokens in the member can't be listed".to_owned())?;
    Ok(listed.into_iter().map(|secret| secret.name_any()).collect())
}

async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(error) if is_absent(&error) => Ok(()),
        deleted => deleted
            .map(drop)
            .at(|| format!("{name} can't be deleted in the member")),
    }
}

/// Names of the objects that match, none where the cluster doesn't serve the kind.
async fn names<K>(api: &Api<K>, labels: &str) -> Result<Vec<String>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + Resource,
{
    match api.list(&ListParams::default().labels(labels)).await {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        listed => {
            let listed = listed.at(|| "the objects in the member can't be listed".to_owned())?;
            Ok(listed.into_iter().map(|object| object.name_any()).collect())
        }
    }
}

fn mutating(client: &Client) -> Vec<(String, Api<DynamicObject>)> {
    let kinds = ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"];
    let versions = ["v1", "v1beta1"];
    (kinds.into_iter())
        .flat_map(|kind| versions.map(|version| (kind, version)))
        .map(|(kind, version)| {
            let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", version, kind);
            let resource = ApiResource::from_gvk(&kind);
            (kind.kind, Api::all_with(client.clone(), &resource))
        })
        .collect()
}

/// The admission objects of the operator in a cluster.
pub(super) async fn left(client: &Client) -> Result<Vec<String>> {
    let ours = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let mut left = Vec::new();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for name in names(&bindings, &ours).await? {
        left.push(format!("ValidatingAdmissionPolicyBinding {name}"));
    }
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    for name in names(&policies, &ours).await? {
        left.push(format!("ValidatingAdmissionPolicy {name}"));
    }
    for (kind, api) in mutating(client) {
        for name in names(&api, &ours).await.unwrap_or_default() {
            let shown = format!("{kind} {name}");
            if !left.contains(&shown) {
                left.push(shown);
            }
        }
    }
    Ok(left)
}

/// Removes the admission objects of the operator from a cluster, bindings first, and the namespace
/// for proofs.
pub(super) async fn clear(client: &Client) -> Result<()> {
    let ours = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    for name in names(&bindings, &ours).await? {
        delete(&bindings, &name).await?;
    }
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    for name in names(&policies, &ours).await? {
        delete(&policies, &name).await?;
    }
    for (_, api) in mutating(client) {
        for name in names(&api, &ours).await? {
            delete(&api, &name).await?;
        }
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in names(&namespaces, &ours).await? {
        if name == PROBE_NAMESPACE {
            delete(&namespaces, &name).await?;
        }
    }
    Ok(())
}

/// Removes what `register` put into a cluster, and waits until its namespaces are gone.
pub(super) async fn remove(client: &Client, timeout: Duration) -> Result<()> {
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    for name in names(&bindings, REGISTERED).await? {
        delete(&bindings, &name).await?;
    }
    let roles: Api<ClusterRole> = Api::all(client.clone());
    for name in names(&roles, REGISTERED).await? {
        delete(&roles, &name).await?;
    }
    for secret in tokens(client).await? {
        revoke(client, &secret).await?;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    for name in names(&accounts, REGISTERED).await? {
        delete(&accounts, &name).await?;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in names(&namespaces, REGISTERED).await? {
        delete(&namespaces, &name).await?;
    }
    let gone = until(timeout, async || {
        let left = names(&namespaces, REGISTERED).await?;
        Ok(left.is_empty().then_some(()))
    });
    match gone.await? {
        Some(()) => Ok(()),
        None => Err(Trouble::new(
            "the namespaces of the operator in the member are still being deleted: see what holds \
             them by kubectl get namespaces -o yaml",
        )),
    }
}
