//! A fleet from nothing, and back.

use control_plane::{Version, eventually};

use crate::everything::{everything, only};
use crate::world::{
    Contexts, NAMESPACE, Operator, SOON, apply, helm, install, plane, refusal, root,
};

const POLICY: &str = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
    metadata: {name: no-latest}\nspec: {boundary: web, rules: {disallowLatestTag: {}}}";
const SHOP: &str = "apiVersion: v1\nkind: Namespace\n\
    metadata: {name: shop, labels: {boundarypolicy.dev/boundary: web}}";

#[tokio::test(flavor = "multi_thread")]
async fn three_fresh_clusters_are_registered_enforced_rotated_and_left_as_they_were() {
    let start = |version| std::thread::spawn(move || plane(version));
    let started = [
        Version::V1_34,
        Version::V1_30,
        Version::V1_34,
        Version::V1_37,
    ]
    .map(start);
    let [hub, eu_1, eu_2, eu_3] = started.map(|thread| thread.join().unwrap());
    let contexts = Contexts::new(&[
        ("hub", &hub),
        ("ctx-1", &eu_1),
        ("ctx-2", &eu_2),
        ("ctx-3", &eu_3),
    ]);
    let members = [&eu_1, &eu_2, &eu_3].map(|plane| plane.client().unwrap());
    for client in &members {
        apply(client, SHOP).await;
    }
    let hub_client = hub.client().unwrap();
    let mut before = Vec::new();
    for client in &members {
        before.push(everything(client).await);
    }

    // Nothing is there yet, and it is said what to do.
    let ended = contexts.boundary(&["register", "ctx-1", "--name", "eu-1"]);
    assert_eq!(ended.status, Some(2));
    assert!(
        ended.output.contains("install the chart"),
        "{}",
        ended.output
    );
    install(&hub);
    let hub_before = everything(&hub_client).await;
    let operator = Operator::start(&hub, &[]).await;
    apply(&hub_client, POLICY).await;

    // One command each.
    contexts.fine(&[
        "register",
        "ctx-1",
        "--name",
        "eu-1",
        "--label",
        "region=eu",
    ]);
    contexts.fine(&["register", "ctx-2", "--name", "eu-2"]);
    contexts.fine(&["register", "ctx-3", "--name", "eu-3"]);
    let status = contexts.fine(&["status", "--wait", "--timeout", "60s"]);
    let rows: Vec<Vec<_>> = status
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][4..], ["eu-1", "eu-2", "eu-3"], "{status}");
    assert_eq!(
        rows[1],
        [
            "no-latest",
            "web",
            "Deny",
            "True",
            "Enforced",
            "Enforced",
            "Enforced"
        ]
    );
    for client in &members {
        let refused = refusal(client, "shop", "nginx:latest").await.unwrap();
        assert!(refused.contains("Policy 'no-latest'"), "{refused}");
        assert_eq!(refusal(client, "shop", "nginx:1.27").await, None);
    }
    let json = contexts.fine(&["status", "no-latest", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["policies"][0]["clusters"][2]["state"], "Enforced");
    assert_eq!(json["clusters"][0]["name"], "eu-1");

    wrong_ones(&contexts);
    rotate(&contexts, &hub_client, &members[0]).await;

    // Away again: one alone, then all.
    contexts.fine(&["unregister", "eu-1"]);
    only("eu-1", &members[0], &before[0]).await;
    admitted(&members[0], "nginx:latest").await;
    contexts.fine(&["status", "--wait"]);
    let dry = contexts.fine(&["uninstall"]);
    assert!(dry.contains("say --yes"), "{dry}");
    contexts.fine(&["status", "--wait"]);
    let removed = contexts.fine(&["uninstall", "--yes"]);
    assert!(
        removed.contains("nothing of the operator is left"),
        "{removed}"
    );
    for (client, before) in members.iter().zip(&before).skip(1) {
        only("a member", client, before).await;
    }
    drop(operator);
    let mut hub_before = hub_before;
    hub_before.insert("BoundaryPolicy /no-latest".to_owned());
    only("the hub", &hub_client, &hub_before).await;
}

/// An API server acts on a policy for up to a second after it was deleted.
async fn admitted(client: &kube::Client, image: &str) {
    eventually(&format!("{image} is admitted"), SOON, async || {
        refusal(client, "shop", image).await.is_none().then_some(())
    })
    .await;
}

fn wrong_ones(contexts: &Contexts) {
    for (arguments, named) in [
        (&["register", "ctx-1", "--name", "eu-1"][..], "--rotate"),
        (
            &["register", "ctx-9", "--name", "eu-9"],
            "ctx-1, ctx-2, ctx-3, hub",
        ),
        (&["register", "hub", "--name", "hub"], "--local"),
        (
            &["register", "ctx-1", "--name", "new", "--rotate"],
            "no MemberCluster new",
        ),
        (&["register", "ctx-1", "--name", "EU"], "small letters"),
        (
            &["register", "ctx-1", "--name", "n", "--namespace", "none"],
            "--namespace",
        ),
        (
            &["register", "ctx-1", "--name", "n", "--context", "ctx-2"],
            "install the chart",
        ),
        (
            &[
                "register",
                "ctx-1",
                "--name",
                "n",
                "--server",
                "http://api.example",
            ],
            "https://",
        ),
        (&["unregister", "eu-9"], "no MemberCluster eu-9"),
        (
            &["unregister", "eu-2", "--member-context", "none"],
            "no context",
        ),
        (&["status", "none"], "no BoundaryPolicy none"),
        (&["status", "--context", "ctx-1"], "--context"),
    ] {
        let ended = contexts.boundary(arguments);
        assert_eq!(ended.status, Some(2), "{arguments:?}: {}", ended.output);
        assert!(
            ended.output.contains(named),
            "{arguments:?}: {}",
            ended.output
        );
    }
}

/// The state never leaves Enforced while a token is replaced, and the old token ends.
async fn rotate(contexts: &Contexts, hub: &kube::Client, member: &kube::Client) {
    use boundary_operator::api::{BoundaryPolicy, ClusterState, MemberCluster};
    use k8s_openapi::api::core::v1::Secret;
    use kube::api::{Api, ListParams};

    let tokens: Api<Secret> = Api::namespaced(member.clone(), NAMESPACE);
    let listed = async || {
        let list = tokens.list(&ListParams::default()).await.unwrap();
        let names = list.into_iter().map(|secret| secret.metadata.name.unwrap());
        names.collect::<Vec<_>>()
    };
    let old = listed().await;
    assert_eq!(old.len(), 1);
    let policies: Api<BoundaryPolicy> = Api::all(hub.clone());
    let watching = tokio::spawn(async move {
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let status = policies.get("no-latest").await.unwrap().status.unwrap();
            let entry = status.clusters.iter().find(|c| c.name == "eu-1");
            seen.insert(entry.map(|entry| entry.state));
            assert_eq!(seen, [Some(ClusterState::Enforced)].into(), "{status:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let rotated = contexts.fine(&["register", "ctx-1", "--name", "eu-1", "--rotate"]);
    assert!(rotated.contains("old ones are revoked"), "{rotated}");
    let new = listed().await;
    assert_eq!(new.len(), 1);
    assert_ne!(new, old);
    // The operator goes on to answer for the member with the new one.
    let members: Api<MemberCluster> = Api::all(hub.clone());
    eventually("the member is ready", SOON, async || {
        let status = members.get("eu-1").await.ok()?.status?;
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready")?;
        (ready.status == "True").then_some(())
    })
    .await;
    assert!(!watching.is_finished(), "{:?}", watching.await);
    watching.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_upgrades_and_uninstalls_and_policies_outlive_the_operator() {
    let hub = plane(Version::V1_37);
    let contexts = Contexts::new(&[("hub", &hub)]);
    let client = hub.client().unwrap();
    apply(&client, SHOP).await;
    let before = everything(&client).await;
    install(&hub);
    let operator = Operator::start(&hub, &[]).await;
    apply(&client, POLICY).await;
    contexts.fine(&["register", "--local", "--name", "hub"]);
    contexts.fine(&["status", "--wait"]);

    // An upgrade brings CRDs up to date, and keeps what is there.
    let chart = root().join("charts/boundary-operator");
    let chart = chart.to_str().unwrap();
    let upgrade = [
        "upgrade",
        "boundary-operator",
        chart,
        "--namespace",
        NAMESPACE,
    ];
    let stale = r#"[{"op": "remove", "path": "/spec/names/shortNames"}]"#;
    let crds = "boundarypolicies.boundarypolicy.dev";
    change_crd(&client, crds, stale).await;
    helm(&hub, &[&upgrade[..], &["--set", "replicas=3"]].concat());
    contexts.fine(&["status", "--wait"]);
    let deployment = crate::release::deployment(&client).await;
    assert_eq!(deployment.spec.unwrap().replicas, Some(3));

    // The operator goes without goodbye: enforcement stays, and so do policies. It is waited for the
    // namespace for proofs to be gone, since nothing can be made in one that is going.
    drop(operator);
    helm(
        &hub,
        &[
            "uninstall",
            "boundary-operator",
            "--namespace",
            NAMESPACE,
            "--wait",
        ],
    );
    assert!(refusal(&client, "shop", "nginx:latest").await.is_some());

    // It comes back, and goes in the right order.
    install_again(&hub);
    let operator = Operator::start(&hub, &[]).await;
    contexts.fine(&["status", "--wait"]);
    contexts.fine(&["uninstall", "--yes"]);
    admitted(&client, "nginx:latest").await;
    drop(operator);
    helm(
        &hub,
        &[
            "uninstall",
            "boundary-operator",
            "--namespace",
            NAMESPACE,
            "--wait",
        ],
    );
    crate::release::remove_crds(&client).await;
    crate::release::remove_namespace(&client).await;
    only("the hub", &client, &before).await;
}

fn install_again(hub: &control_plane::ControlPlane) {
    helm(
        hub,
        &[
            "upgrade",
            "--install",
            "boundary-operator",
            "charts/boundary-operator",
            "--namespace",
            NAMESPACE,
        ],
    );
}

async fn change_crd(client: &kube::Client, name: &str, patch: &str) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::api::{Api, Patch, PatchParams};
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let patch: Patch<()> = Patch::Json(serde_json::from_str(patch).unwrap());
    api.patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}
