//! Watches what is ours in a cluster, so that what something else does to it is put right at once.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream::select_all};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::plan::{BINDING, POLICY, Versions};
use crate::compile::{MANAGED_BY, PROBE_NAMESPACE};

/// The kind of the probe namespace, beside those of [`Versions`].
pub(crate) const NAMESPACE: &str = "Namespace";

/// What was seen last, by a task that watches until it is dropped.
pub(crate) struct Drift {
    /// Absent until all was listed once.
    pub(crate) seen: watch::Receiver<Option<Versions>>,
    task: JoinHandle<()>,
}

impl Drop for Drift {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drift {
    /// Starts to watch.
    pub(crate) fn watch(client: &Client) -> Self {
        let (sender, seen) = watch::channel(None);
        let ours = Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
        let probe = Config::default().fields(&format!("metadata.name={PROBE_NAMESPACE}"));
        let streams = select_all([
            events::<ValidatingAdmissionPolicy>(client, POLICY, ours.clone()),
            events::<ValidatingAdmissionPolicyBinding>(client, BINDING, ours),
            events::<Namespace>(client, NAMESPACE, probe),
        ]);
        let task = tokio::spawn(follow(streams, sender));
        Self { seen, task }
    }
}

/// What happened to objects of one kind.
enum Change {
    /// All of them are listed.
    Listed(&'static str, Versions),
    Applied(&'static str, String, String),
    Deleted(&'static str, String),
}

async fn follow(
    mut changes: impl futures::Stream<Item = Change> + Unpin,
    sender: watch::Sender<Option<Versions>>,
) {
    let mut versions = Versions::new();
    let mut listed = BTreeSet::new();
    while let Some(change) = changes.next().await {
        match change {
            Change::Listed(kind, all) => {
                versions.retain(|(other, _), _| *other != kind);
                versions.extend(all);
                listed.insert(kind);
            }
            Change::Applied(kind, name, version) => {
                versions.insert((kind, name), version);
            }
            Change::Deleted(kind, name) => {
                versions.remove(&(kind, name));
            }
        }
        if listed.len() == 3 {
            let _ = sender.send(Some(versions.clone()));
        }
    }
}

fn events<K>(
    client: &Client,
    kind: &'static str,
    config: Config,
) -> futures::stream::BoxStream<'static, Change>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let mut initial = Versions::new();
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            let change = match event {
                Ok(event) => change(kind, event, &mut initial),
                Err(error) => {
                    tracing::debug!(kind, %error, "a watch broke; it is started again");
                    None
                }
            };
            std::future::ready(change)
        })
        .boxed()
}

fn change<K>(
    kind: &'static str,
    event: Event<PartialObjectMeta<K>>,
    initial: &mut Versions,
) -> Option<Change>
where
    PartialObjectMeta<K>: Resource,
{
    let entry = |object: &PartialObjectMeta<K>| {
        let name = object.name_any();
        (
            name,
            object.metadata.resource_version.clone().unwrap_or_default(),
        )
    };
    match event {
        Event::Init => {
            initial.clear();
            None
        }
        Event::InitApply(object) => {
            let (name, version) = entry(&object);
            initial.insert((kind, name), version);
            None
        }
        Event::InitDone => Some(Change::Listed(kind, std::mem::take(initial))),
        Event::Apply(object) => {
            let (name, version) = entry(&object);
            Some(Change::Applied(kind, name, version))
        }
        Event::Delete(object) => Some(Change::Deleted(kind, entry(&object).0)),
    }
}
