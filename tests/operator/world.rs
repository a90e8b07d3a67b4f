//! A hub with the operator, and member clusters.

use std::collections::BTreeMap;
use std::time::Duration;

use boundary_operator::api::{
    BoundaryPolicy, BoundaryPolicyStatus, ClusterState, ClusterStatus, MemberCluster,
    MemberClusterStatus, crds,
};
use boundary_operator::compile::GUARD;
use boundary_operator::controller::{self, Settings};
use control_plane::{ControlPlane, Version, eventually};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The namespace of the operator.
pub(crate) const NAMESPACE: &str = "boundary-operator";

/// How long anything may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// The user that the operator is, and one that may do nothing.
pub(crate) const OPERATOR: &str = "operator";
pub(crate) const NOBODY: &str = "nobody";

pub(crate) struct World {
    pub(crate) hub: ControlPlane,
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    operator: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl World {
    /// A hub with the CRDs, and the operator running against it.
    pub(crate) async fn start(version: Version) -> Self {
        Self::start_with(version, |_| {}).await
    }

    /// As [`World::start`], with other settings than usual in tests.
    pub(crate) async fn start_with(version: Version, change: impl FnOnce(&mut Settings)) -> Self {
        let mut world = Self::prepare(cluster(version)).await;
        change(&mut world.settings);
        world.start_operator();
        world
    }

    /// A hub with the CRDs, which no operator runs against yet.
    pub(crate) async fn prepare(hub: ControlPlane) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = hub.client().unwrap();
        for crd in crds() {
            apply(&client, &crd).await;
        }
        grant(&client, include_str!("../../config/rbac/hub.yaml")).await;
        grant(&client, include_str!("../../config/rbac/member.yaml")).await;
        let world = Self {
            hub,
            client,
            settings: Self::settings(),
            operator: None,
        };
        eventually("the CRDs are served", SOON, async || {
            let policies = Api::<BoundaryPolicy>::all(world.client.clone());
            let clusters = Api::<MemberCluster>::all(world.client.clone());
            let all = kube::api::ListParams::default();
            policies.list(&all).await.ok()?;
            clusters.list(&all).await.ok()
        })
        .await;
        world
    }

    /// Settings for tests: everything often.
    pub(crate) fn settings() -> Settings {
        Settings {
            namespace: NAMESPACE.to_owned(),
            capabilities_interval: Duration::from_secs(1),
            resync_interval: Duration::from_secs(2),
            request_timeout: Duration::from_secs(3),
            ..Settings::default()
        }
    }

    pub(crate) fn start_operator(&mut self) {
        self.start_operator_with(self.settings.clone());
    }

    pub(crate) fn start_operator_with(&mut self, settings: Settings) {
        let (stop, stopped) = oneshot::channel::<()>();
        let run = controller::run(
            settings,
            self.hub.config_for(OPERATOR).unwrap(),
            async move {
                let _ = stopped.await;
            },
        );
        let task = tokio::spawn(async move { run.await.unwrap() });
        self.operator = Some((stop, task));
    }

    pub(crate) async fn stop_operator(&mut self) {
        let (stop, task) = self.operator.take().unwrap();
        stop.send(()).unwrap();
        tokio::time::timeout(SOON, task).await.unwrap().unwrap();
    }

    /// Makes the hub a member of its own.
    pub(crate) async fn join_local(&self, name: &str) {
        apply(
            &self.client,
            &yaml::<MemberCluster>(&format!(
                "apiVersion: boundarypolicy.dev/v1alpha1\nkind: MemberCluster\n\
                 metadata: {{name: {name}}}\nspec: {{local: {{}}}}"
            )),
        )
        .await;
    }

    /// Makes a member of `cluster`, with what `config/rbac/member.yaml` grants there.
    pub(crate) async fn join(&self, name: &str, cluster: &ControlPlane) {
        let client = cluster.client().unwrap();
        grant(&client, include_str!("../../config/rbac/member.yaml")).await;
        self.join_by(name, &cluster.kubeconfig_for(OPERATOR).unwrap())
            .await;
    }

    /// Makes a member of the cluster that `kubeconfig` leads to.
    pub(crate) async fn join_by(&self, name: &str, kubeconfig: &str) {
        self.kubeconfig(name, kubeconfig).await;
        apply(
            &self.client,
            &yaml::<MemberCluster>(&format!(
                "apiVersion: boundarypolicy.dev/v1alpha1\nkind: MemberCluster\n\
                 metadata: {{name: {name}, labels: {{region: eu}}}}\n\
                 spec: {{kubeconfigSecretRef: {{name: {name}}}}}"
            )),
        )
        .await;
    }

    /// Writes the Secret of a member.
    pub(crate) async fn kubeconfig(&self, name: &str, kubeconfig: &str) {
        let secret: Secret = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": {"value": kubeconfig},
        }))
        .unwrap();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let params = PatchParams::apply("test").force();
        api.patch(name, &params, &Patch::Apply(&secret))
            .await
            .unwrap();
    }

    /// Writes a policy.
    pub(crate) async fn policy(&self, name: &str, spec: &str) {
        let policy = yaml::<BoundaryPolicy>(&format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
             metadata: {{name: {name}}}\nspec: {{{spec}}}"
        ));
        apply(&self.client, &policy).await;
    }

    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// The status of a policy, once it is about its current generation and fulfils `holds`.
    pub(crate) async fn status(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&BoundaryPolicyStatus) -> bool,
    ) -> BoundaryPolicyStatus {
        let api: Api<BoundaryPolicy> = Api::all(self.client.clone());
        eventually(what, SOON, async || {
            let policy = api.get(name).await.ok()?;
            let status = policy.status.unwrap_or_default();
            let current = status.observed_generation == policy.metadata.generation;
            (current && holds(&status)).then_some(status)
        })
        .await
    }

    /// What is said of a policy in a cluster, once it is in `state`.
    pub(crate) async fn state(
        &self,
        name: &str,
        cluster: &str,
        state: ClusterState,
    ) -> ClusterStatus {
        let what = format!("{name} is {state} in {cluster}");
        let status = self
            .status(name, &what, |status| {
                states(status).get(cluster) == Some(&state)
            })
            .await;
        let mut clusters = status.clusters.into_iter();
        clusters.find(|entry| entry.name == cluster).unwrap()
    }

    /// The status of a member, once its condition `Ready` has the reason.
    pub(crate) async fn member(&self, name: &str, reason: &str) -> MemberClusterStatus {
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        eventually(&format!("{name} is {reason}"), SOON, async || {
            let status = api.get(name).await.ok()?.status?;
            let ready = status.conditions.iter().find(|c| c.type_ == "Ready")?;
            (ready.reason == reason).then(|| status.clone())
        })
        .await
    }

    /// The resource version of everything that the operator writes, here and in `members`.
    pub(crate) async fn versions(&self, members: &[&Client]) -> BTreeMap<String, String> {
        let mut all = versions::<BoundaryPolicy>(&self.client, "hub").await;
        // A MemberCluster has the time of the last contact, which moves.
        for (index, member) in members.iter().enumerate() {
            let prefix = index.to_string();
            all.extend(versions::<ValidatingAdmissionPolicy>(member, &prefix).await);
            all.extend(versions::<ValidatingAdmissionPolicyBinding>(member, &prefix).await);
        }
        all
    }
}

/// The reason and the message of a condition.
pub(crate) fn condition(status: &BoundaryPolicyStatus, kind: &str) -> (String, String, String) {
    let found = status.conditions.iter().find(|c| c.type_ == kind).unwrap();
    (
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    )
}

/// The state of each cluster.
pub(crate) fn states(status: &BoundaryPolicyStatus) -> BTreeMap<&str, ClusterState> {
    let clusters = status.clusters.iter();
    clusters
        .map(|cluster| (cluster.name.as_str(), cluster.state))
        .collect()
}

async fn versions<K>(client: &Client, prefix: &str) -> BTreeMap<String, String>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let list = api.list(&kube::api::ListParams::default()).await.unwrap();
    let entry = |object: K| {
        let name = format!("{prefix} {} {}", K::kind(&()), object.name_any());
        (name, object.resource_version().unwrap())
    };
    list.into_iter().map(entry).collect()
}

/// How many requests an API server answered, by its own count.
pub(crate) struct Requests {
    /// Lists of admission policies: one for each time the operator compares.
    pub(crate) comparisons: u64,
    /// Writes of anything that the operator keeps, dry runs left out.
    pub(crate) writes: u64,
}

impl Requests {
    pub(crate) async fn count(client: &Client) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = client.request_text(request).await.unwrap();
        let (mut comparisons, mut writes) = (0, 0);
        let totals = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("apiserver_request_total{"));
        for line in totals {
            let (labels, value) = line.rsplit_once("} ").unwrap();
            let count: f64 = value.parse().unwrap();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let count = count as u64;
            let is = |label: &str, values: &[&str]| {
                values
                    .iter()
                    .any(|value| labels.contains(&format!("{label}=\"{value}\"")))
            };
            let admission = [
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            ];
            let kept = ["boundarypolicies", "memberclusters", "events"];
            if is("verb", &["LIST"]) && is("resource", &admission[..1]) {
                comparisons += count;
            }
            if is("verb", &["POST", "PUT", "PATCH", "APPLY", "DELETE"])
                && is("dry_run", &[""])
                && (is("resource", &admission) || is("resource", &kept))
            {
                writes += count;
            }
        }
        Self {
            comparisons,
            writes,
        }
    }
}

/// The names of the admission policies in a cluster, but for the guard.
pub(crate) async fn objects(client: &Client) -> Vec<String> {
    let mut names = all_objects(client).await;
    names.retain(|name| name != GUARD);
    names
}

/// The names of all admission policies in a cluster.
pub(crate) async fn all_objects(client: &Client) -> Vec<String> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let list = api.list(&kube::api::ListParams::default()).await.unwrap();
    list.into_iter().map(|object| object.name_any()).collect()
}

/// A cluster that knows the operator, who may do nothing there yet.
pub(crate) fn cluster(version: Version) -> ControlPlane {
    let builder = ControlPlane::builder(version)
        .user(OPERATOR, &[])
        .user(NOBODY, &[]);
    builder.start().unwrap()
}

/// Grants the user of the operator what the manifest grants its service account.
pub(crate) async fn grant(client: &Client, manifest: &str) {
    grant_to(client, manifest, &[("User", OPERATOR)]).await;
}

/// Grants users or groups what the manifest grants the service account of the operator, and takes
/// it from who had it before.
pub(crate) async fn grant_to(client: &Client, manifest: &str, subjects: &[(&str, &str)]) {
    for document in manifest.split("\n---\n") {
        let mut value: Value = serde_saphyr::from_str(document).unwrap();
        if value.get("subjects").is_some() {
            let subject = |(kind, name): &(&str, &str)| json!({"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": name});
            value["subjects"] = subjects.iter().map(subject).collect();
        }
        let object = object(value);
        let types = object.types.clone().unwrap();
        let kind = GroupVersionKind::try_from(&types).unwrap();
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let params = PatchParams::apply("test").force();
        let patch = Patch::Apply(&object);
        api.patch(&object.name_any(), &params, &patch)
            .await
            .unwrap();
    }
}

/// Makes a namespace, in a boundary.
pub(crate) async fn namespace(client: &Client, name: &str, boundary: Option<&str>) {
    let labels = boundary.map(|boundary| json!({"boundarypolicy.dev/boundary": boundary}));
    let namespace: Namespace = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }))
    .unwrap();
    apply(client, &namespace).await;
}

/// Why a Pod with `image` is refused in a namespace, if it is. Nothing is stored.
pub(crate) async fn refusal(client: &Client, namespace: &str, image: &str) -> Option<String> {
    let pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {
            "containers": [{"name": "main", "image": image}],
            "automountServiceAccountToken": false,
        },
    }))
    .unwrap();
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&params, &pod).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until a Pod with `image` is refused by a policy, or no more.
pub(crate) async fn refused(client: &Client, namespace: &str, image: &str, by: Option<&str>) {
    eventually(&format!("{image} is refused by {by:?}"), SOON, async || {
        let message = refusal(client, namespace, image).await;
        match (by, message) {
            (None, None) => Some(()),
            (Some(policy), Some(message)) => message
                .contains(&format!("Policy '{policy}'"))
                .then_some(()),
            _ => None,
        }
    })
    .await;
}

/// Waits for an Event about an object of the hub.
pub(crate) async fn event(world: &World, kind: &str, name: &str, reason: &str) {
    let api: Api<Event> = Api::namespaced(world.client.clone(), "default");
    eventually(&format!("an Event {reason} of {name}"), SOON, async || {
        let events = api.list(&ListParams::default()).await.ok()?;
        events.into_iter().find(|event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            regarding.kind.as_deref() == Some(kind)
                && regarding.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        })
    })
    .await;
}

pub(crate) fn yaml<K: DeserializeOwned>(text: &str) -> K {
    serde_saphyr::from_str(text).unwrap()
}

pub(crate) async fn apply<K>(client: &Client, object: &K)
where
    K: Resource<DynamicType = ()> + serde::Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let mut value = serde_json::to_value(object).unwrap();
    value["apiVersion"] = K::api_version(&()).into();
    value["kind"] = K::kind(&()).into();
    let params = PatchParams::apply("test").force();
    api.patch(&object.name_any(), &params, &Patch::Apply(&value))
        .await
        .unwrap();
}

/// Changes the CRD of policies so that anything can be stored, or back.
pub(crate) async fn loosen(client: &Client, loose: bool) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = crds().remove(0);
    if loose {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let schema = json!({"openAPIV3Schema": open});
        crd.spec.versions[0].schema = serde_json::from_value(schema).unwrap();
    }
    let stored = api.get(&crd.name_any()).await.unwrap();
    crd.metadata.resource_version = stored.metadata.resource_version;
    api.replace(&crd.name_any(), &PostParams::default(), &crd)
        .await
        .unwrap();
}

/// Any object of the API group, as JSON.
pub(crate) fn dynamic(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<BoundaryPolicy>(&());
    Api::all_with(client.clone(), &resource)
}

pub(crate) fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}
