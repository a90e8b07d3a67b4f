//! Every object of a cluster.

use std::collections::BTreeSet;

use control_plane::eventually;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};

use crate::world::SOON;

/// The kind, namespace and name of every object, but for those that come and go by themselves.
pub(crate) async fn everything(client: &Client) -> BTreeSet<String> {
    // A group that is just going is listed and not found.
    let discovery = eventually("the APIs are listed", SOON, async || {
        Discovery::new(client.clone()).run().await.ok()
    })
    .await;
    let mut all = BTreeSet::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            if ["Event", "Lease", "ComponentStatus", "APIService"].contains(&resource.kind.as_str())
            {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            assert!(matches!(
                capabilities.scope,
                Scope::Cluster | Scope::Namespaced
            ));
            let Ok(list) = api.list(&ListParams::default()).await else {
                continue;
            };
            for object in list {
                let namespace = object.metadata.namespace.unwrap_or_default();
                let name = object.metadata.name.unwrap_or_default();
                all.insert(format!("{} {namespace}/{name}", resource.kind));
            }
        }
    }
    all
}

/// Waits until a cluster holds what it held before and nothing else.
pub(crate) async fn only(what: &str, client: &Client, before: &BTreeSet<String>) {
    let mut last = BTreeSet::new();
    for _ in 0..100 {
        last = everything(client).await;
        if last == *before {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let more: Vec<_> = last.difference(before).collect();
    let fewer: Vec<_> = before.difference(&last).collect();
    panic!("{what}: left {more:?}, gone {fewer:?}");
}
