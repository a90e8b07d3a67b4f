//! The hub, and the contexts of a kubeconfig.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;

use super::{At as _, CONTEXT, REGISTERED, Result, Trouble, is_absent, until, whole};
use crate::api::MemberCluster;

/// How the hub is reached.
#[derive(Debug, Args)]
pub(super) struct HubArgs {
    /// The kubeconfig [default: as kubectl does]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    /// The context of the hub [default: the current one]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,

    /// The namespace of the operator on the hub
    #[arg(
        short,
        long,
        value_name = "NAMESPACE",
        default_value = "boundary-operator"
    )]
    pub(super) namespace: String,
}

impl HubArgs {
    pub(super) async fn connect(&self) -> Result<Hub> {
        let contexts = Contexts::read(self.kubeconfig.as_ref())?;
        let config = contexts.config(self.context.as_deref()).await?;
        Ok(Hub {
            client: client(config)?,
            namespace: self.namespace.clone(),
            contexts,
        })
    }
}

/// The contexts of a kubeconfig.
pub(super) struct Contexts(Kubeconfig);

impl Contexts {
    fn read(path: Option<&PathBuf>) -> Result<Self> {
        match path {
            Some(path) => Kubeconfig::read_from(path)
                .map_err(|e| Trouble(format!("--kubeconfig {}: {}", path.display(), whole(&e)))),
            None => Kubeconfig::read().map_err(|error| {
                Trouble(format!(
                    "there is no kubeconfig that can be read ({}): set KUBECONFIG, or give \
                     --kubeconfig",
                    whole(&error)
                ))
            }),
        }
        .map(Self)
    }

    pub(super) fn has(&self, context: &str) -> bool {
        self.0.contexts.iter().any(|named| named.name == context)
    }

    pub(super) async fn config(&self, context: Option<&str>) -> Result<Config> {
        let options = KubeConfigOptions {
            context: context.map(ToOwned::to_owned),
            ..KubeConfigOptions::default()
        };
        if let Some(context) = context.filter(|context| !self.has(context)) {
            let mut names: Vec<_> = self.0.contexts.iter().map(|c| c.name.as_str()).collect();
            names.sort_unstable();
            let names = names.join(", ");
            return Err(Trouble(format!(
                "the kubeconfig has no context {context:?}; it has: {names}"
            )));
        }
        let loaded = Config::from_custom_kubeconfig(self.0.clone(), &options).await;
        let mut config = loaded.map_err(|error| {
            let context = context.unwrap_or("that is current");
            Trouble(format!(
                "the context {context} can't be used: {}",
                whole(&error)
            ))
        })?;
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(Duration::from_secs(30));
        Ok(config)
    }

    /// The cluster of a context, as the kubeconfig has it.
    pub(super) fn cluster(&self, context: &str) -> Option<&kube::config::Cluster> {
        let named = self.0.contexts.iter().find(|named| named.name == context)?;
        let cluster = &named.context.as_ref()?.cluster;
        let named = self
            .0
            .clusters
            .iter()
            .find(|named| named.name == *cluster)?;
        named.cluster.as_ref()
    }
}

pub(super) fn client(config: Config) -> Result<Client> {
    Client::try_from(config).map_err(|e| Trouble(format!("no client can be made: {}", whole(&e))))
}

/// The cluster that holds policies and members.
pub(super) struct Hub {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) contexts: Contexts,
}

impl Hub {
    pub(super) fn members(&self) -> Api<MemberCluster> {
        Api::all(self.client.clone())
    }

    pub(super) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether the operator's CRDs and namespace are there.
    pub(super) async fn check(&self) -> Result<()> {
        match self.members().list(&ListParams::default().limit(1)).await {
            Err(error) if is_absent(&error) => {
                return Err(Trouble::new(
                    "the hub does not know MemberClusters: install the chart boundary-operator \
                     there, or choose another cluster by --context",
                ));
            }
            listed => listed.at(|| "the MemberClusters on the hub can't be listed".to_owned())?,
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces.get_opt(&self.namespace).await;
        let found = found.at(|| format!("the namespace {} can't be read", self.namespace))?;
        match found {
            Some(_) => Ok(()),
            None => Err(Trouble(format!(
                "the hub has no namespace {}: give the one of the operator by --namespace",
                self.namespace
            ))),
        }
    }

    pub(super) async fn member(&self, name: &str) -> Result<Option<MemberCluster>> {
        let found = self.members().get_opt(name).await;
        found.at(|| format!("the MemberCluster {name} can't be read"))
    }

    /// The kubeconfig of a member.
    pub(super) async fn kubeconfig(&self, member: &MemberCluster) -> Result<Option<Vec<u8>>> {
        let Some(reference) = &member.spec.kubeconfig_secret_ref else {
            return Ok(None);
        };
        let secret = self.secrets().get_opt(&reference.name).await;
        let secret = secret.at(|| format!("the Secret {} can't be read", reference.name))?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        Ok(data.get(&reference.key).map(|value| value.0.clone()))
    }

    /// Deletes a `MemberCluster` and waits until the operator let it go. Tells whether it did.
    pub(super) async fn leave(&self, name: &str, timeout: Duration) -> Result<bool> {
        match self.members().delete(name, &DeleteParams::default()).await {
            Err(error) if is_absent(&error) => return Ok(true),
            deleted => deleted.at(|| format!("the MemberCluster {name} can't be deleted"))?,
        };
        let gone = until(timeout, async || {
            Ok(self.member(name).await?.is_none().then_some(()))
        });
        Ok(gone.await?.is_some())
    }

    /// Lets a `MemberCluster` go that no operator lets go.
    pub(super) async fn release(&self, name: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        match self
            .members()
            .patch(name, &PatchParams::default(), &patch)
            .await
        {
            Err(error) if is_absent(&error) => Ok(()),
            patched => patched
                .map(drop)
                .at(|| format!("the finalizers of the MemberCluster {name} can't be removed")),
        }
    }

    /// Deletes the Secret of a member, if it was made by `register`.
    pub(super) async fn forget(&self, member: &MemberCluster) -> Result<()> {
        let Some(reference) = &member.spec.kubeconfig_secret_ref else {
            return Ok(());
        };
        let what = || format!("the Secret {} can't be deleted", reference.name);
        let found = self.secrets().get_opt(&reference.name).await.at(what)?;
        if found.is_none_or(|secret| !secret.labels().contains_key(REGISTERED)) {
            return Ok(());
        }
        match self
            .secrets()
            .delete(&reference.name, &DeleteParams::default())
            .await
        {
            Err(error) if is_absent(&error) => Ok(()),
            deleted => deleted.map(drop).at(what),
        }
    }
}

/// The context to reach a member with: the given one, else that by which it was registered.
pub(super) fn context(member: &MemberCluster, given: Option<&str>) -> Option<String> {
    let known = member.annotations().get(CONTEXT).map(String::as_str);
    given.or(known).map(ToOwned::to_owned)
}
