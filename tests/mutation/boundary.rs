//! A boundary with rules that change Pods, offline and on an API server.

use std::collections::BTreeMap;

use boundary_operator::api::{BOUNDARY_LABEL, BoundaryPolicy, WhenMutationUnsupported};
use boundary_operator::compile::{
    Capabilities, Compilation, MUTATION_REVISION_ANNOTATION, Mutating, MutatingApi, MutationObject,
    Options, PROBE_NAMESPACE, compile,
};
use boundary_operator::evaluate::{Evaluator, Kind, Mutator, Operation, Request};
use control_plane::eventually;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{SOON, Server};
use crate::support::{NOW, policy};
use crate::workload::pod;

/// The rules of the document that asks for them.
pub(crate) fn seed() -> Value {
    json!({
        "alwaysPullImages": {},
        "defaultResources": {
            "requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
            "limits": {"ephemeral-storage": "2Gi"},
        },
        "memoryLimitEqualsRequest": {},
    })
}

/// A policy that does nothing about Pods that it can't change.
pub(crate) fn reporting(name: &str, boundary: &str, rules: &Value) -> BoundaryPolicy {
    let mut policy = policy(
        name,
        boundary,
        serde_json::from_value(rules.clone()).unwrap(),
    );
    policy.spec.when_mutation_unsupported = WhenMutationUnsupported::Report;
    policy
}

/// What `policies` compile to for an API server of 1.`minor` that serves `api`.
pub(crate) fn compiled(
    policies: &[BoundaryPolicy],
    minor: u16,
    api: Option<MutatingApi>,
    mutation: Mutating,
) -> Compilation {
    let mut capabilities = Capabilities::of(format!("1.{minor}").parse().unwrap());
    capabilities.mutating = api;
    let mut options = Options::new(capabilities, NOW.parse().unwrap());
    options.mutation = mutation;
    let compilation = compile(policies, &options);
    assert_eq!(compilation.problems, []);
    compilation
}

/// Changes and judges offline.
pub(crate) struct Offline {
    mutator: Mutator,
    evaluator: Evaluator,
    labels: BTreeMap<String, String>,
    pub(crate) namespace: &'static str,
    pub(crate) user: &'static str,
    pub(crate) groups: Vec<String>,
}

impl Offline {
    /// Of an API server of 1.37, in a namespace of `boundary`.
    pub(crate) fn new(policies: &[BoundaryPolicy], boundary: &str) -> Self {
        let compilation = compiled(policies, 37, Some(MutatingApi::V1), Mutating::Acting);
        Self {
            mutator: Mutator::new(&compilation.mutations).unwrap(),
            evaluator: Evaluator::new(&compilation.objects).unwrap(),
            labels: [(BOUNDARY_LABEL.to_owned(), boundary.to_owned())].into(),
            namespace: "web",
            user: "someone",
            groups: Vec::new(),
        }
    }

    fn request<'a>(&'a self, object: &'a Value) -> Request<'a> {
        Request {
            kind: Kind::of(object).unwrap(),
            sub_resource: "",
            operation: Operation::Create,
            object,
            old_object: None,
            namespace: self.namespace,
            namespace_labels: &self.labels,
            user: self.user,
            groups: &self.groups,
        }
    }

    /// What `object` is changed to.
    pub(crate) fn mutate(&self, object: &Value) -> Value {
        let mutated = self.mutator.mutate(&self.request(object)).unwrap();
        mutated.map_or_else(|| object.clone(), |mutated| mutated.after)
    }

    /// What is said of `object` as it is.
    pub(crate) fn judge(&self, object: &Value) -> Vec<String> {
        let findings = self.evaluator.judge(&self.request(object)).unwrap();
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }
}

impl Server {
    /// Applies objects that change Pods, and waits until the API server acts on exactly these.
    pub(crate) async fn mutate(&self, objects: &[MutationObject]) {
        self.put_mutations(objects).await;
        self.wait_for_mutations(objects).await;
    }

    pub(crate) async fn put_mutations(&self, objects: &[MutationObject]) {
        for object in objects {
            let [policy, binding] = object.documents();
            for (resource, document) in [
                ("mutatingadmissionpolicies", policy),
                ("mutatingadmissionpolicybindings", binding),
            ] {
                let collection = format!("/apis/{}/{resource}", object.api.api_version());
                self.put_document(&collection, document).await;
            }
        }
    }

    async fn put_document(&self, collection: &str, mut document: Value) {
        let name = document["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{collection}/{name}");
        let stored = self.admin(Method::GET, &path, None).await;
        if stored.status == StatusCode::NOT_FOUND {
            let created = self.admin(Method::POST, collection, Some(&document)).await;
            created.accepted();
            return;
        }
        let version = stored.accepted()["metadata"]["resourceVersion"].clone();
        document["metadata"]["resourceVersion"] = version;
        self.admin(Method::PUT, &path, Some(&document))
            .await
            .accepted();
    }

    pub(crate) async fn wait_for_mutations(&self, objects: &[MutationObject]) {
        let _probe = self.hold_probes().await;
        self.make_probe_namespace().await;
        for object in objects {
            self.relabel(
                PROBE_NAMESPACE,
                object.boundaries.first().map(String::as_str),
            )
            .await;
            let what = format!("{} acts on {}", self.version, object.name);
            eventually(&what, SOON, async || {
                let answer = self.revision_of(object).await;
                (answer.as_deref() == Some(&object.revision)).then_some(())
            })
            .await;
        }
        self.relabel(PROBE_NAMESPACE, None).await;
    }

    /// The revision that the API server answers for `object`, in the probe namespace as it is.
    pub(crate) async fn revision_of(&self, object: &MutationObject) -> Option<String> {
        let (labels, annotations) = object.asking_for_revision();
        let mut probe = pod("probe", "registry.k8s.io/pause:3.10");
        probe["metadata"]["labels"] = json!(labels);
        probe["metadata"]["annotations"] = json!(annotations);
        let answer = self.create(PROBE_NAMESPACE, &probe).await;
        let answered = &answer.body["metadata"]["annotations"][MUTATION_REVISION_ANNOTATION];
        answered.as_str().map(str::to_owned)
    }

    /// Makes a namespace of a boundary that nothing else has, with a service account, and the
    /// objects of `policies` for it, and waits until they act.
    pub(crate) async fn enforce(&self, namespace: &str, compilation: &Compilation) {
        let boundary = compilation
            .mutations
            .first()
            .and_then(|o| o.boundaries.first());
        let boundary = boundary.or_else(|| compilation.objects.first()?.boundaries.first());
        self.namespace(namespace, boundary.map(String::as_str))
            .await;
        self.mutate(&compilation.mutations).await;
        self.put(&compilation.objects).await;
        self.wait(&compilation.objects).await;
    }
}
