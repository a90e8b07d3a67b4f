//! Writes to the hub: statuses, Events, finalizers.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams,
};
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::json;

use super::policy_status::Transition;
use crate::api::MemberCluster;
use crate::telemetry::{ErrorClass, Loop, Telemetry};

/// The name under which the operator writes.
const NAME: &str = "boundary-operator";

/// Holds a `MemberCluster` until the operator's objects are removed from the cluster.
pub(crate) const FINALIZER: &str = "boundarypolicy.dev/cleanup";

/// Statuses that were written and that the watch has not yet brought back.
pub(crate) struct Memory<S>(BTreeMap<String, (Option<String>, S)>);

impl<S: Clone> Memory<S> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The status of the object of that name and version: what was written last if that version is
    /// from before, else what is stored.
    pub(crate) fn latest(&self, metadata: &ObjectMeta, stored: Option<&S>) -> Option<S> {
        let name = metadata.name.as_deref().unwrap_or_default();
        match self.0.get(name) {
            Some((version, written)) if *version == metadata.resource_version => {
                Some(written.clone())
            }
            _ => stored.cloned(),
        }
    }

    /// Takes note of a write over that version.
    pub(crate) fn written(&mut self, metadata: &ObjectMeta, status: S) {
        let name = metadata.name.clone().unwrap_or_default();
        self.0
            .insert(name, (metadata.resource_version.clone(), status));
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }
}

/// Writes to the hub.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) client: Client,
    pub(crate) timeout: Duration,
    /// Which of several operators writes.
    pub(crate) instance: String,
    pub(crate) telemetry: Telemetry,
}

/// A write to the hub failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("{}", text(.0))]
    Kube(#[from] kube::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the status can't be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl WriteError {
    /// Whether the object is not what it was when it was read, or not there.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if matches!(status.code, 404 | 409))
    }

    /// Whether the object as it is will be refused every time.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.code == 422)
    }
}

/// What the API server says, without what the client adds.
fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

impl Writer {
    /// Writes the status of an object, whole.
    pub(crate) async fn status<K>(
        &self,
        metadata: &ObjectMeta,
        status: &impl Serialize,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        let name = metadata.name.as_deref().unwrap_or_default();
        // Not by server-side apply, which fails where the rest of the object does not fit the schema.
        // The uid keeps the status of a deleted object from one of the same name.
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        // Untyped, since the rest of the object may be what can't be read.
        let api: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        self.limited(api.patch_status(name, &params(), &patch))
            .await
    }

    /// Tells of a change of state at the object.
    pub(crate) async fn event<K>(
        &self,
        object: &ObjectMeta,
        transition: &Transition,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        let now = Timestamp::now();
        let name = object.name.clone().unwrap_or_default();
        let event = Event {
            action: Some("Enforce".to_owned()),
            event_time: Some(MicroTime(now)),
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some("default".to_owned()),
                ..ObjectMeta::default()
            },
            note: Some(transition.note.clone()),
            reason: Some(transition.reason.clone()),
            regarding: Some(ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: Some(name),
                uid: object.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(format!("{}/{NAME}", crate::api::GROUP)),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if transition.good { "Normal" } else { "Warning" }.to_owned()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        self.limited(api.create(&PostParams::default(), &event))
            .await
    }

    /// Makes a `MemberCluster`.
    pub(crate) async fn create(&self, cluster: &MemberCluster) -> Result<(), WriteError> {
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        let params = PostParams {
            field_manager: Some(NAME.to_owned()),
            ..PostParams::default()
        };
        self.limited(api.create(&params, cluster)).await
    }

    /// Sets labels of a `MemberCluster`, or takes them away.
    pub(crate) async fn label(
        &self,
        name: &str,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<(), WriteError> {
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.limited(api.patch(name, &params(), &patch)).await
    }

    /// Deletes a `MemberCluster`.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), WriteError> {
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        self.limited(api.delete(name, &DeleteParams::default()))
            .await
    }

    /// Sets whether the cluster is held by our finalizer.
    pub(crate) async fn finalizer(
        &self,
        cluster: &ObjectMeta,
        held: bool,
    ) -> Result<(), WriteError> {
        let name = cluster.name.as_deref().unwrap_or_default();
        let mut finalizers = cluster.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if held {
            finalizers.push(FINALIZER.to_owned());
        }
        let body = json!({"metadata": {
            "finalizers": finalizers,
            "resourceVersion": cluster.resource_version,
        }});
        let resource = ApiResource::erase::<MemberCluster>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        self.limited(api.patch(name, &params(), &Patch::Merge(body)))
            .await
    }

    async fn limited<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<(), WriteError> {
        let written = match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(WriteError::Timeout(self.timeout)),
        };
        // A pass may have many writes; each is progress.
        self.telemetry.health.beat(Loop::Reconcile);
        if written.is_err() {
            self.telemetry.metrics.error(ErrorClass::Hub);
        }
        written
    }
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(NAME.to_owned()),
        ..PatchParams::default()
    }
}
