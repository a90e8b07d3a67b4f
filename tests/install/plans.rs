//! The API about compute plans, as the chart serves it.

use kube::Client;
use serde_json::{Value, json};

use crate::client::{Caller, Reply, check};
use crate::world::{NAMESPACE, Operator, apply, root, token};

/// What the tokens of callers are for, in the values of the chart.
const AUDIENCE: &str = "compute-plans";

/// The values with which it is served.
pub(crate) const VALUES: [&str; 5] = [
    "planApi.enabled=true",
    "planApi.tls.secretName=plan-api-tls",
    "planApi.audiences[0]=compute-plans",
    "planApi.staleAfter=20s",
    "planApi.maxConnections=50",
];

/// A portal that may ask about every boundary.
pub(crate) struct Portal {
    certificate: String,
    token: String,
}

const PORTAL: &str = "apiVersion: v1\nkind: ServiceAccount\n\
    metadata: {name: portal, namespace: default}\n---\n\
    apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n\
    metadata: {name: compute-plans-reader}\nrules:\n\
    - {apiGroups: [boundarypolicy.dev], resources: [boundaries/computeplans], verbs: [get]}\n---\n\
    apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
    metadata: {name: compute-plans-reader}\n\
    roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: compute-plans-reader}\n\
    subjects: [{kind: ServiceAccount, name: portal, namespace: default}]";

impl Portal {
    /// Makes the Secret with the certificate, and the portal. The namespace of the operator must be
    /// there.
    pub(crate) async fn new(hub: &Client) -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate = made.cert.pem();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "plan-api-tls", "namespace": NAMESPACE},
            "stringData": {"tls.crt": certificate, "tls.key": made.signing_key.serialize_pem()},
        });
        apply(hub, &secret.to_string()).await;
        apply(hub, PORTAL).await;
        Self {
            certificate,
            token: token(hub, "default", "portal", &[AUDIENCE]).await,
        }
    }

    /// Asks whether a Valkey may have a plan.
    pub(crate) async fn ask(&self, operator: &Operator, plan: &str) -> std::io::Result<Reply> {
        self.ask_as(operator, &self.token, plan).await
    }

    pub(crate) async fn ask_as(
        &self,
        operator: &Operator,
        token: &str,
        plan: &str,
    ) -> std::io::Result<Reply> {
        let caller = Caller::trusting(operator.plan_api.unwrap(), &self.certificate);
        let asked = json!({"type": "valkey", "wanted": [{"plan": plan}]});
        caller.send(&check("web", token, &asked)).await
    }
}

/// Applies a file of the examples.
pub(crate) async fn apply_example(client: &Client, file: &str) {
    let path = root().join("examples/compute-plans").join(file);
    apply(client, &std::fs::read_to_string(path).unwrap()).await;
}

/// What the API server says of a Valkey with a plan. Nothing is stored.
pub(crate) async fn valkey(client: &Client, plan: &str) -> Result<(), (u16, String)> {
    let object: Value = json!({
        "apiVersion": "platform.example.com/v1", "kind": "Valkey",
        "metadata": {"name": "tried"}, "spec": {"plan": plan},
    });
    let path = "/apis/platform.example.com/v1/namespaces/shop/valkeys?dryRun=All";
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&object).unwrap())
        .unwrap();
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err((status.code, status.message)),
        Err(error) => panic!("{error}"),
    }
}
