//! What is on the hub, kept up to date by watches.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::argocd;
use super::scope::Observed;
use crate::api::{BoundaryPolicy, ComputeResourceType, MemberCluster, MemberClusterSpec};
use crate::fleet::{Source, Verdict};
use crate::plans::Catalog;

/// What is on the hub.
pub(crate) struct Hub {
    client: Client,
    namespace: String,
    timeout: Duration,
    policies: Store<DeserializeGuard<BoundaryPolicy>>,
    members: Store<DeserializeGuard<MemberCluster>>,
    secrets: Store<Secret>,
    /// The cluster Secrets of Argo CD, and their namespace, where they are looked for.
    argocd: Option<(String, Store<Secret>)>,
    types: Store<DeserializeGuard<ComputeResourceType>>,
    /// What was last made of the types.
    catalog: Arc<Catalog>,
    /// What was made of the policies, so that each version of one is looked at once.
    observed: BTreeMap<String, Observed>,
    /// Something is not what it was.
    pub(crate) changed: Arc<Notify>,
    _watches: JoinSet<()>,
}

/// A member cluster and how it is reached.
pub(crate) struct Member {
    pub(crate) object: MemberCluster,
    pub(crate) source: Source,
}

impl Hub {
    /// Watches the hub with `client`, the Secrets in `namespace`.
    pub(crate) fn watch(
        client: &Client,
        namespace: &str,
        argocd: Option<&str>,
        timeout: Duration,
    ) -> Self {
        let changed = Arc::new(Notify::new());
        let mut watches = JoinSet::new();
        let secrets = Api::namespaced(client.clone(), namespace);
        let all = watcher::Config::default;
        let argocd = argocd.map(|namespace| {
            let api = Api::namespaced(client.clone(), namespace);
            let clusters = all().labels(argocd::SECRETS);
            (
                namespace.to_owned(),
                start(&mut watches, api, clusters, &changed),
            )
        });
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            timeout,
            policies: start(&mut watches, Api::all(client.clone()), all(), &changed),
            members: start(&mut watches, Api::all(client.clone()), all(), &changed),
            secrets: start(&mut watches, secrets, all(), &changed),
            argocd,
            types: start(&mut watches, Api::all(client.clone()), all(), &changed),
            catalog: Arc::default(),
            observed: BTreeMap::new(),
            changed,
            _watches: watches,
        }
    }

    /// Waits until everything was listed once. Before, nothing may be taken for deleted.
    pub(crate) async fn ready(&self) {
        let _ = tokio::join!(
            self.policies.wait_until_ready(),
            self.members.wait_until_ready(),
            self.secrets.wait_until_ready(),
            self.types.wait_until_ready(),
        );
    }

    /// The policies by name.
    pub(crate) async fn policies(&mut self) -> &BTreeMap<String, Observed> {
        let state = self.policies.state();
        let names: std::collections::BTreeSet<_> = state.iter().map(|p| p.name_any()).collect();
        self.observed.retain(|name, _| names.contains(name));
        for guarded in state {
            let name = guarded.name_any();
            let known = self.observed.get(&name).map(|known| &known.metadata);
            if known.is_some_and(|known| known.resource_version == guarded.meta().resource_version)
            {
                continue;
            }
            let observed = match &guarded.0 {
                Ok(policy) => Observed::read(policy),
                Err(invalid) => {
                    tracing::warn!(
                        policy = name,
                        error = invalid.error,
                        "a policy can't be read"
                    );
                    let stored = self.stored_status(&name).await;
                    Observed::malformed(invalid.metadata.clone(), &invalid.error, stored)
                }
            };
            self.observed.insert(name, observed);
        }
        &self.observed
    }

    /// The types of resources that can be read.
    pub(crate) fn catalog(&mut self) -> Arc<Catalog> {
        let state = self.types.state();
        let (catalog, invalid) = Catalog::of(state.iter().filter_map(|t| t.0.as_ref().ok()));
        if catalog != *self.catalog {
            for (name, errors) in invalid {
                let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
                let error = errors.join("; ");
                tracing::warn!(name, error, "a ComputeResourceType can't be used");
            }
            self.catalog = Arc::new(catalog);
        }
        self.catalog.clone()
    }

    /// The status of a policy the rest of which can't be read.
    async fn stored_status(&self, name: &str) -> Option<crate::api::BoundaryPolicyStatus> {
        let resource = ApiResource::erase::<BoundaryPolicy>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let read = tokio::time::timeout(self.timeout, api.get(name)).await;
        let object = read.ok()?.ok()?;
        serde_json::from_value(object.data.get("status")?.clone()).ok()
    }

    /// The member clusters, sorted by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        let mut members: Vec<_> = self
            .members
            .state()
            .iter()
            .map(|guarded| match &guarded.0 {
                Ok(object) => Member {
                    source: self.source(&object.spec),
                    object: object.clone(),
                },
                Err(invalid) => {
                    let object = MemberCluster {
                        metadata: invalid.metadata.clone(),
                        spec: MemberClusterSpec::default(),
                        status: None,
                    };
                    let text = format!("the stored MemberCluster can't be read: {}", invalid.error);
                    Member {
                        object,
                        source: unusable("InvalidMemberCluster", text),
                    }
                }
            })
            .collect();
        members.sort_by_key(|member| member.object.name_any());
        members
    }

    fn source(&self, spec: &MemberClusterSpec) -> Source {
        let reference = match (
            &spec.local,
            &spec.kubeconfig_secret_ref,
            &spec.argocd_secret_ref,
        ) {
            (Some(_), None, None) => return Source::Local,
            (None, Some(reference), None) => reference,
            (None, None, Some(reference)) => return self.argocd_source(&reference.name),
            _ => {
                let text = "set exactly one of kubeconfigSecretRef, argocdSecretRef and local";
                return unusable("InvalidMemberCluster", text.to_owned());
            }
        };
        let key = reflector::ObjectRef::new(&reference.name).within(&self.namespace);
        let Some(secret) = self.secrets.get(&key) else {
            let text = format!(
                "there is no Secret {} in namespace {}: create it, with the kubeconfig in its key {}",
                reference.name, self.namespace, reference.key
            );
            return unusable("SecretNotFound", text);
        };
        let mut data = secret.data.iter().flatten();
        if let Some((_, value)) = data.find(|(key, _)| **key == reference.key) {
            return Source::Kubeconfig(value.0.clone());
        }
        let text = format!(
            "the Secret {} in namespace {} has no key {}: put the kubeconfig there, or name its key \
             in spec.kubeconfigSecretRef.key",
            reference.name, self.namespace, reference.key
        );
        unusable("SecretKeyMissing", text)
    }
}

impl Hub {
    /// How a cluster is reached by what Argo CD has of it.
    fn argocd_source(&self, name: &str) -> Source {
        let Some((namespace, secrets)) = &self.argocd else {
            let text = "argocdSecretRef is set, and the operator does not look for cluster Secrets of \
                        Argo CD: start it with --argocd-namespace";
            return unusable("ArgocdOff", text.to_owned());
        };
        let key = reflector::ObjectRef::new(name).within(namespace);
        match secrets.get(&key) {
            Some(secret) => argocd::source(&secret),
            None => unusable(
                "SecretNotFound",
                format!(
                    "there is no cluster Secret {name} of Argo CD in namespace {namespace}: create \
                     it, with the label {}",
                    argocd::SECRETS
                ),
            ),
        }
    }

    /// What there is to do for the cluster Secrets of Argo CD: nothing before they were listed.
    pub(crate) fn argocd_changes(&self, members: &[Member]) -> Vec<argocd::Change> {
        let Some((_, secrets)) = &self.argocd else {
            return Vec::new();
        };
        if secrets.wait_until_ready().now_or_never().is_none() {
            return Vec::new();
        }
        let secrets = secrets.state();
        let secrets: Vec<&Secret> = secrets.iter().map(AsRef::as_ref).collect();
        let members: Vec<_> = members.iter().map(|member| member.object.clone()).collect();
        argocd::changes(&secrets, &members)
    }
}

fn unusable(reason: &str, text: String) -> Source {
    Source::Unusable(Verdict::new(
        crate::api::ClusterState::Unreachable,
        reason,
        text,
    ))
}

/// Starts a watch that goes on whatever happens.
fn start<K>(
    watches: &mut JoinSet<()>,
    api: Api<K>,
    what: watcher::Config,
    changed: &Arc<Notify>,
) -> Store<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (store, writer) = reflector::store();
    let changed = changed.clone();
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let events = reflector::reflector(writer, watcher(api, what));
    watches.spawn(async move {
        let mut events = std::pin::pin!(events.default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                Ok(_) => changed.notify_one(),
                Err(error) => tracing::warn!(kind, %error, "a watch failed; it is tried again"),
            }
        }
    });
    store
}
