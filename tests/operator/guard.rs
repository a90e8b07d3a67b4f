//! The guard on the boundary label, as the operator keeps it in its member clusters.

use boundary_operator::api::MemberCluster;
use boundary_operator::compile::GUARD;
use boundary_operator::controller::Settings;
use control_plane::{ControlPlane, Version, eventually};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::world::{OPERATOR, SOON, World, all_objects, namespace};

/// May do everything with its namespaces, and nothing else.
const TENANT: &str = "tenant";
/// As the tenant, and has the verb `assign` on the boundary `web`.
const ASSIGNER: &str = "assigner";

const LABEL: &str = "boundarypolicy.dev/boundary";

/// The resources through which the labels of a namespace can be written.
const RESOURCES: [&str; 3] = ["", "/status", "/finalize"];

const RBAC: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: namespace-admin}
rules:
- apiGroups: ['']
  resources: [namespaces, namespaces/status, namespaces/finalize]
  resourceNames: [shop, free]
  verbs: ['*']
- apiGroups: ['']
  resources: [namespaces]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: namespace-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: namespace-admin}
subjects:
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: tenant}
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: assigner}
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: operator}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: assign-web}
rules:
- apiGroups: [boundarypolicy.dev]
  resources: [boundaries]
  resourceNames: [web]
  verbs: [assign]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: assign-web}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: assign-web}
subjects:
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: assigner}
";

fn with_users(version: Version) -> ControlPlane {
    ControlPlane::builder(version)
        .user(OPERATOR, &[])
        .user(TENANT, &[])
        .user(ASSIGNER, &[])
        .start()
        .unwrap()
}

/// Writes the namespace `name` after a change, through one of the resources; then gives back what is
/// stored, or why it was refused.
async fn write(
    client: &Client,
    name: &str,
    resource: &str,
    change: impl Fn(&mut Namespace),
) -> Result<Namespace, String> {
    let path = format!("/api/v1/namespaces/{name}");
    loop {
        let read = http::Request::get(&path).body(Vec::new()).unwrap();
        let mut namespace: Namespace = client.request(read).await.unwrap();
        change(&mut namespace);
        let request = http::Request::put(format!("{path}{resource}"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&namespace).unwrap())
            .unwrap();
        match client.request::<Namespace>(request).await {
            Ok(stored) => return Ok(stored),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) => {
                assert_eq!(status.code, 403, "{}", status.message);
                return Err(status.message);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Puts the namespace into a boundary, or takes it out.
async fn assign(
    client: &Client,
    name: &str,
    resource: &str,
    boundary: Option<&str>,
) -> Result<(), String> {
    let change = |namespace: &mut Namespace| {
        let labels = namespace.labels_mut();
        match boundary {
            Some(boundary) => labels.insert(LABEL.to_owned(), boundary.to_owned()),
            None => labels.remove(LABEL),
        };
    };
    let stored = write(client, name, resource, change).await?;
    let stored = stored.labels().get(LABEL).map(String::as_str);
    assert_eq!(stored, boundary, "the write had no effect");
    Ok(())
}

async fn refused(client: &Client, name: &str, boundary: Option<&str>, says: &str) {
    for resource in RESOURCES {
        let message = assign(client, name, resource, boundary).await.unwrap_err();
        assert!(message.contains(GUARD), "{message}");
        assert!(message.ends_with(says), "{message}");
    }
}

async fn allowed(client: &Client, name: &str, boundaries: [Option<&str>; 2]) {
    for resource in RESOURCES {
        for boundary in boundaries {
            assign(client, name, resource, boundary).await.unwrap();
        }
    }
}

/// Waits until the guard acts, or does not.
async fn guards(client: &Client, acts: bool) {
    eventually(&format!("guarded: {acts}"), SOON, async || {
        let api: Api<Namespace> = Api::all(client.clone());
        let labelled: Namespace = serde_json::from_value(json!({
            "metadata": {"name": "try", "labels": {LABEL: "web"}},
        }))
        .unwrap();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let refused = match api.create(&params, &labelled).await {
            Ok(_) => false,
            Err(kube::Error::Api(status)) if status.message.contains(GUARD) => true,
            Err(error) => panic!("{error}"),
        };
        (refused == acts).then_some(())
    })
    .await;
}

async fn check(cluster: &ControlPlane) {
    let admin = cluster.client().unwrap();
    namespace(&admin, "shop", Some("web")).await;
    namespace(&admin, "free", None).await;
    let [tenant, assigner, operator] =
        [TENANT, ASSIGNER, OPERATOR].map(|user| cluster.client_for(user).unwrap());
    guards(&tenant, true).await;

    // A tenant can't set, change or remove the label.
    let of = "boundarypolicy.dev/boundary of namespace";
    let needs = "needs the verb assign on boundaries.boundarypolicy.dev";
    refused(
        &tenant,
        "free",
        Some("web"),
        &format!("{of} free is guarded: putting it into boundary 'web' {needs} web."),
    )
    .await;
    refused(
        &tenant,
        "shop",
        None,
        &format!("{of} shop is guarded: taking it out of boundary 'web' {needs} web."),
    )
    .await;
    refused(
        &tenant,
        "shop",
        Some("db"),
        &format!(
            "{of} shop is guarded: taking it out of boundary 'web' and putting it into boundary \
             'db' {needs} web and db."
        ),
    )
    .await;
    refused(
        &tenant,
        "shop",
        Some(""),
        &format!("taking it out of boundary 'web' {needs} web."),
    )
    .await;

    // It can edit everything else.
    for name in ["shop", "free"] {
        for resource in RESOURCES {
            let change = |namespace: &mut Namespace| {
                let (key, value) = (format!("edited{}", resource.len()), "yes".to_owned());
                namespace.labels_mut().insert(key.clone(), value.clone());
                namespace.annotations_mut().insert(key, value);
            };
            let stored = write(&tenant, name, resource, change).await.unwrap();
            assert!(
                stored
                    .annotations()
                    .contains_key(&format!("edited{}", resource.len()))
            );
        }
    }

    // Someone with `assign` on one boundary can do it with that one, and no other.
    allowed(&assigner, "shop", [None, Some("web")]).await;
    allowed(&assigner, "free", [Some("web"), None]).await;
    refused(
        &assigner,
        "shop",
        Some("db"),
        &format!("is guarded: putting it into boundary 'db' {needs} db."),
    )
    .await;
    assign(&admin, "free", "", Some("db")).await.unwrap();
    refused(
        &assigner,
        "free",
        Some("web"),
        &format!("is guarded: taking it out of boundary 'db' {needs} db."),
    )
    .await;
    assign(&admin, "free", "", None).await.unwrap();

    // The operator can, with the role that it has in a member cluster.
    allowed(&operator, "shop", [Some("db"), Some("web")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_may_assign_a_boundary_move_a_namespace() {
    let mut world = World::prepare(with_users(Version::V1_37)).await;
    let old = with_users(Version::V1_30);
    let clients = [world.client.clone(), old.client().unwrap()];
    for client in &clients {
        for document in RBAC.split("\n---\n") {
            apply_yaml(client, document).await;
        }
    }
    world.join_local("hub").await;
    world.join("eu-1", &old).await;
    world.start_operator();
    check(&world.hub).await;
    check(&old).await;
    for name in ["hub", "eu-1"] {
        guarded(&world, name, "Installed").await;
    }

    // It is kept.
    let there = &clients[1];
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(there.clone());
    bindings
        .delete(GUARD, &DeleteParams::default())
        .await
        .unwrap();
    let tenant = old.client_for(TENANT).unwrap();
    eventually("it is there again", SOON, async || {
        bindings.get_opt(GUARD).await.ok()?
    })
    .await;
    guards(&tenant, true).await;

    // It can be switched off.
    world.stop_operator().await;
    world.start_operator_with(Settings {
        label_guard: false,
        ..World::settings()
    });
    guarded(&world, "eu-1", "SwitchedOff").await;
    assert_eq!(all_objects(there).await, Vec::<String>::new());
    guards(&tenant, false).await;
}

/// Waits until the status of a cluster says so of the guard.
async fn guarded(world: &World, name: &str, reason: &str) {
    let api: Api<MemberCluster> = Api::all(world.client.clone());
    eventually(
        &format!("the guard of {name} is {reason}"),
        SOON,
        async || {
            let status = api.get(name).await.ok()?.status?;
            let mut conditions = status.conditions.iter();
            let guarded = conditions.find(|c| c.type_ == "LabelGuarded")?;
            let installed = if reason == "Installed" {
                "True"
            } else {
                "False"
            };
            (guarded.reason == reason && guarded.status == installed).then_some(())
        },
    )
    .await;
}

async fn apply_yaml(client: &Client, document: &str) {
    let value: Value = serde_saphyr::from_str(document).unwrap();
    let kind = value["kind"].as_str().unwrap();
    let resource = if kind == "ClusterRole" {
        "clusterroles"
    } else {
        "clusterrolebindings"
    };
    let path = format!("/apis/rbac.authorization.k8s.io/v1/{resource}");
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&value).unwrap())
        .unwrap();
    client.request::<Value>(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_in_a_boundary_can_be_deleted() {
    let hub = ControlPlane::builder(Version::V1_34)
        .controller_manager()
        .user(OPERATOR, &[])
        .user(TENANT, &[])
        .start()
        .unwrap();
    let mut world = World::prepare(hub).await;
    world.join_local("hub").await;
    world.start_operator();
    for document in RBAC.split("\n---\n") {
        apply_yaml(&world.client, document).await;
    }
    guards(&world.hub.client_for(TENANT).unwrap(), true).await;
    namespace(&world.client, "shop", Some("web")).await;
    let api: Api<Namespace> = Api::all(world.client.clone());
    api.delete("shop", &DeleteParams::default()).await.unwrap();
    eventually("the namespace is gone", SOON, async || {
        api.get_opt("shop").await.ok()?.is_none().then_some(())
    })
    .await;
}
