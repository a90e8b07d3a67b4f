//! Namespaces that are checked by the plugin of the API server, and namespaces that are checked by
//! our rule.

use std::time::Duration;

use boundary_operator::api::{BOUNDARY_LABEL, BoundaryPolicy};
use boundary_operator::compile::{AdmissionObject, Capabilities, Options, compile};
use boundary_operator::rules::Rules;
use control_plane::{ControlPlane, Version, eventually, shared};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::support::{NOW, policy};

/// What the API server says of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    /// By the plugin or our rule, with what it says.
    Denied(String),
    /// The Pod is not valid, whatever the rules are.
    Invalid(String),
}

pub(crate) struct Cluster {
    client: Client,
    minor: u16,
}

/// A level, and a version of the standards or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) level: &'static str,
    pub(crate) version: Option<&'static str>,
}

impl Asked {
    pub(crate) const BASELINE: Self = Self {
        level: "baseline",
        version: None,
    };
    pub(crate) const RESTRICTED: Self = Self {
        level: "restricted",
        version: None,
    };

    pub(crate) fn rules(self) -> Rules {
        let mut rule = json!({"level": self.level});
        if let Some(version) = self.version {
            rule["version"] = json!(version);
        }
        serde_json::from_value(json!({"podSecurity": rule})).unwrap()
    }

    /// The name of the boundary, and of the policy.
    pub(crate) fn name(self) -> String {
        let version = self.version.unwrap_or("latest").replace('.', "-");
        format!("{}-{version}", self.level)
    }

    /// The namespace that the plugin checks.
    pub(crate) fn plugin_namespace(self) -> String {
        format!("plugin-{}", self.name())
    }

    /// The namespace that our rule checks.
    pub(crate) fn rule_namespace(self) -> String {
        format!("rule-{}", self.name())
    }
}

/// A namespace that nobody checks.
pub(crate) const PLAIN: &str = "plain";

/// What is emitted for API servers of 1.`minor`.
pub(crate) fn compiled(asked: Asked, minor: u16) -> Vec<AdmissionObject> {
    compiled_for(
        &[policy(&asked.name(), &asked.name(), asked.rules())],
        minor,
    )
}

fn compiled_for(policies: &[BoundaryPolicy], minor: u16) -> Vec<AdmissionObject> {
    let version = format!("1.{minor}").parse().unwrap();
    let options = Options::new(Capabilities::of(version), NOW.parse().unwrap());
    let compilation = compile(policies, &options);
    assert_eq!(compilation.problems, []);
    compilation.objects
}

impl Cluster {
    pub(crate) async fn start(version: Version) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plane = tokio::task::spawn_blocking(move || shared(version))
            .await
            .unwrap();
        let cluster = Self::of(plane);
        cluster.namespace(PLAIN, json!({})).await;
        cluster
    }

    pub(crate) fn of(plane: &ControlPlane) -> Self {
        Self {
            client: plane.client().unwrap(),
            minor: plane.version().minor(),
        }
    }

    /// A namespace with a service account, which Pods need.
    async fn namespace(&self, name: &str, labels: Value) {
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
        }))
        .unwrap();
        let parameters = PostParams::default();
        let created = Api::all(self.client.clone())
            .create(&parameters, &namespace)
            .await;
        if let Err(kube::Error::Api(status)) = &created {
            assert_eq!(status.code, 409, "{status:?}");
        } else {
            created.unwrap();
        }
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
        let created = accounts.create(&parameters, &account).await;
        if let Err(kube::Error::Api(status)) = &created {
            assert_eq!(status.code, 409, "{status:?}");
        } else {
            created.unwrap();
        }
    }

    /// Makes both namespaces, and waits until our rule acts.
    pub(crate) async fn enforce(&self, asked: Asked) {
        self.namespace(
            &asked.plugin_namespace(),
            json!({
                "pod-security.kubernetes.io/enforce": asked.level,
                "pod-security.kubernetes.io/enforce-version": asked.version.unwrap_or("latest"),
            }),
        )
        .await;
        self.act(&asked.name(), &compiled(asked, self.minor)).await;
    }

    /// Makes a namespace `rule-NAME` of the boundary `name` with policies of `rules`, and waits
    /// until they act. Returns the number of objects.
    pub(crate) async fn enforce_all(&self, name: &str, rules: Vec<Rules>) -> usize {
        let policies: Vec<_> = (rules.into_iter().enumerate())
            .map(|(n, rules)| policy(&format!("p{n:03}"), name, rules))
            .collect();
        let objects = compiled_for(&policies, self.minor);
        self.act(name, &objects).await;
        objects.len()
    }

    /// Makes a namespace of the boundary `name` and `objects`, and waits until they act.
    async fn act(&self, name: &str, objects: &[AdmissionObject]) {
        let namespace = format!("rule-{name}");
        self.namespace(&namespace, json!({BOUNDARY_LABEL: name}))
            .await;
        let parameters = PostParams::default();
        for object in objects {
            let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
            policies.create(&parameters, &object.policy).await.unwrap();
            let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
            bindings.create(&parameters, &object.binding).await.unwrap();
        }
        let violating = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]},
        });
        eventually("the rule acts", Duration::from_secs(30), async || {
            let verdict = self.create(&namespace, &violating).await;
            matches!(verdict, Verdict::Denied(_)).then_some(())
        })
        .await;
    }

    /// Asks for `object` in `namespace`, without creating it.
    pub(crate) async fn create(&self, namespace: &str, object: &Value) -> Verdict {
        self.send(namespace, object)
            .await
            .map_or_else(|verdict| verdict, |_| Verdict::Admitted)
    }

    /// The object that would be stored, if it is admitted.
    pub(crate) async fn send(&self, namespace: &str, object: &Value) -> Result<Value, Verdict> {
        let (group, resource) = match object["kind"].as_str().unwrap() {
            "Pod" => ("api/v1", "pods"),
            "Deployment" => ("apis/apps/v1", "deployments"),
            "ReplicaSet" => ("apis/apps/v1", "replicasets"),
            "StatefulSet" => ("apis/apps/v1", "statefulsets"),
            "DaemonSet" => ("apis/apps/v1", "daemonsets"),
            "Job" => ("apis/batch/v1", "jobs"),
            "CronJob" => ("apis/batch/v1", "cronjobs"),
            other => panic!("{other}"),
        };
        let path = format!("/{group}/namespaces/{namespace}/{resource}?dryRun=All");
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(object).unwrap())
            .unwrap();
        verdict(self.client.request(request).await)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }
}

/// Tells apart what the API server says.
pub(crate) fn verdict<T>(answer: Result<T, kube::Error>) -> Result<T, Verdict> {
    let status = match answer {
        Ok(value) => return Ok(value),
        Err(kube::Error::Api(status)) => status,
        Err(other) => panic!("{other}"),
    };
    let message = status.message.clone();
    for start in ["denied request: ", "violates PodSecurity "] {
        if status.code == 403
            && let Some((_, said)) = message.split_once(start)
        {
            return Err(Verdict::Denied(said.to_owned()));
        }
    }
    assert_eq!(status.code, 422, "{status:?}");
    Err(Verdict::Invalid(message))
}
