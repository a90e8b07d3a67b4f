//! What the operator may do, and what it says where it may do less.

use boundary_operator::api::{ClusterState, MemberCluster};
use control_plane::{Version, eventually};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};

use crate::roles::{Grant, MEMBER, grant_without, grants};
use crate::world::{NOBODY, OPERATOR, SOON, World, cluster, grant, namespace, refused};

/// Waits until the cluster is Forbidden and the message, of the policy and of the member, names
/// exactly these.
async fn forbidden(world: &World, policy: &str, name: &str, lacking: &[Grant]) {
    let names: Vec<_> = lacking.iter().map(ToString::to_string).collect();
    let names_them = |message: &str| {
        let rest = message.strip_prefix("the credentials lack permissions: ");
        let list = rest
            .and_then(|rest| rest.strip_suffix("; apply config/rbac/member.yaml in the cluster"));
        let mut found: Vec<_> = list.unwrap_or_default().split(", ").collect();
        let mut wanted: Vec<_> = names.iter().map(String::as_str).collect();
        found.sort_unstable();
        wanted.sort_unstable();
        found == wanted
    };
    let what = format!("{policy} is Forbidden in {name} for {names:?}");
    world
        .status(policy, &what, |status| {
            let mut clusters = status.clusters.iter();
            clusters.any(|entry| {
                entry.name == name
                    && entry.state == ClusterState::Forbidden
                    && entry.reason == "Forbidden"
                    && names_them(&entry.message)
            })
        })
        .await;
    let what = format!("{name} lacks {names:?}");
    let members: Api<MemberCluster> = Api::all(world.client.clone());
    eventually(&what, SOON, async || {
        let status = members.get(name).await.ok()?.status?;
        let of = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind);
        let ready = of("Ready")?;
        let reachable = of("Reachable")?;
        (ready.status == "False"
            && ready.reason == "Forbidden"
            && names_them(&ready.message)
            && reachable.status == "True")
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_permission_of_a_member_that_is_missing_is_named_and_missed_no_more_once_it_is_there()
{
    let world = World::start(Version::V1_34).await;
    let member = cluster(Version::V1_37);
    let there = member.client().unwrap();
    namespace(&there, "shop", Some("web")).await;
    // Nothing is granted, at first.
    world
        .join_by("eu-1", &member.kubeconfig_for(OPERATOR).unwrap())
        .await;
    world
        .policy("no-latest", "boundary: web, rules: {disallowLatestTag: {}}")
        .await;
    let all = grants(MEMBER);
    forbidden(&world, "no-latest", "eu-1", &all).await;
    grant(&there, MEMBER).await;
    let enforced = async || {
        let entry = world
            .state("no-latest", "eu-1", ClusterState::Enforced)
            .await;
        assert_eq!(entry.generation, Some(1));
        refused(&there, "shop", "nginx:latest", Some("no-latest")).await;
        world.member("eu-1", "Ready").await;
    };
    enforced().await;

    // Each of them alone, and some together; what is there goes on being enforced.
    let mut tables: Vec<Vec<Grant>> = all.iter().map(|grant| vec![grant.clone()]).collect();
    tables.push(all.iter().step_by(3).cloned().collect());
    for taken in tables {
        grant_without(&there, MEMBER, &taken).await;
        forbidden(&world, "no-latest", "eu-1", &taken).await;
        refused(&there, "shop", "nginx:latest", Some("no-latest")).await;
    }
    grant(&there, MEMBER).await;
    enforced().await;

    // Someone who may do nothing is told so at once.
    world
        .kubeconfig("eu-1", &member.kubeconfig_for(NOBODY).unwrap())
        .await;
    forbidden(&world, "no-latest", "eu-1", &all).await;
    world
        .kubeconfig("eu-1", &member.kubeconfig_for(OPERATOR).unwrap())
        .await;
    enforced().await;
}

/// Whether the client may do it, with a resource like `pods`, `pods/exec` or
/// `clusterroles.rbac.authorization.k8s.io`.
async fn may(client: &Client, verb: &str, resource: &str, namespace: Option<&str>) -> bool {
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()),
                namespace: namespace.map(ToOwned::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await.unwrap();
    answer.status.unwrap().allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_reads_no_secret_and_makes_no_pod_where_it_has_no_business() {
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use serde_json::json;

    let world = World::prepare(cluster(Version::V1_34)).await;
    namespace(&world.client, "shop", Some("web")).await;
    let operator = world.hub.client_for(OPERATOR).unwrap();
    let code = |error: kube::Error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    };

    // Tried, in the namespace of a tenant, in the one for proofs and in that of the system.
    for namespace in ["shop", "boundary-operator-probe", "kube-system", "default"] {
        let secrets: Api<Secret> = Api::namespaced(operator.clone(), namespace);
        let refused = secrets.get("any").await.unwrap_err();
        assert_eq!(code(refused), 403, "{namespace}");
        let refused = secrets.list(&ListParams::default()).await.unwrap_err();
        assert_eq!(code(refused), 403, "{namespace}");
    }
    let everywhere: Api<Secret> = Api::all(operator.clone());
    assert_eq!(
        code(everywhere.list(&ListParams::default()).await.unwrap_err()),
        403
    );
    let own: Api<Secret> = Api::namespaced(operator.clone(), "boundary-operator");
    own.list(&ListParams::default()).await.unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "main", "image": "nginx:1"}]},
    }))
    .unwrap();
    for namespace in ["shop", "boundary-operator", "kube-system", "default"] {
        for dry_run in [true, false] {
            let pods: Api<Pod> = Api::namespaced(operator.clone(), namespace);
            let params = PostParams {
                dry_run,
                ..PostParams::default()
            };
            let refused = pods.create(&params, &pod).await.unwrap_err();
            assert_eq!(code(refused), 403, "{namespace}");
        }
    }
    let pods: Api<Pod> = Api::namespaced(operator.clone(), "boundary-operator-probe");
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    pods.create(&params, &pod).await.unwrap();
    assert!(may(&operator, "create", "pods", Some("boundary-operator-probe")).await);

    // Asked, for every way to the same.
    for verb in [
        "get", "list", "watch", "create", "update", "patch", "delete",
    ] {
        assert!(!may(&operator, verb, "secrets", None).await, "{verb}");
        assert!(
            !may(&operator, verb, "secrets", Some("shop")).await,
            "{verb}"
        );
        assert!(!may(&operator, verb, "pods", None).await, "{verb}");
        assert!(!may(&operator, verb, "pods", Some("shop")).await, "{verb}");
        for resource in ["serviceaccounts/token", "pods/exec"] {
            let namespace = Some("boundary-operator-probe");
            assert!(!may(&operator, verb, resource, namespace).await, "{verb}");
        }
        let writes = !["get", "list", "watch"].contains(&verb);
        let own = may(&operator, verb, "secrets", Some("boundary-operator")).await;
        assert!(!(writes && own), "{verb}");
    }
    for verb in ["impersonate", "escalate", "bind"] {
        let resources = [
            "users",
            "groups",
            "serviceaccounts",
            "clusterroles.rbac.authorization.k8s.io",
        ];
        for resource in resources {
            assert!(
                !may(&operator, verb, resource, None).await,
                "{verb} {resource}"
            );
        }
    }
}
