//! What is looked at and removed after a release.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams};

use crate::world::NAMESPACE;

pub(crate) async fn deployment(client: &Client) -> Deployment {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    api.get("boundary-operator").await.unwrap()
}

/// Deletes the CRDs, which a release leaves.
pub(crate) async fn remove_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in boundary_operator::api::crds() {
        let name = crd.metadata.name.unwrap();
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) async fn remove_namespace(client: &Client) {
    let api: Api<Namespace> = Api::all(client.clone());
    api.delete(NAMESPACE, &DeleteParams::default())
        .await
        .unwrap();
}
