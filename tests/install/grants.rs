//! What the chart's roles grant, a verb on a resource at a time.

use std::fmt;

use control_plane::eventually;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};

use crate::audit::Request;
use crate::world::{ACCOUNT, SOON};

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    role: String,
    /// Empty: in the whole cluster.
    namespace: String,
    pub(crate) verb: String,
    group: String,
    /// With its subresource.
    pub(crate) resource: String,
    /// Empty: every one.
    name: String,
}

/// As the operator and kubectl name it.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in namespace {}", self.namespace)?;
        }
        Ok(())
    }
}

impl Grant {
    /// Whether a request needs it.
    pub(crate) fn is_for(&self, request: &Request) -> bool {
        let object = &request.object_ref;
        let resource = match object.subresource.as_str() {
            "" => object.resource.clone(),
            subresource => format!("{}/{subresource}", object.resource),
        };
        self.verb == request.verb
            && self.group == object.api_group
            && self.resource == resource
            && (self.name.is_empty() || self.name == object.name)
            && (self.namespace.is_empty() || self.namespace == object.namespace)
    }

    fn rule(&self) -> PolicyRule {
        let name = Some(self.name.clone()).filter(|name| !name.is_empty());
        PolicyRule {
            api_groups: Some(vec![self.group.clone()]),
            resources: Some(vec![self.resource.clone()]),
            resource_names: name.map(|name| vec![name]),
            verbs: vec![self.verb.clone()],
            ..PolicyRule::default()
        }
    }

    fn of(role: &str, namespace: &str, rules: Option<&Vec<PolicyRule>>) -> Vec<Self> {
        let mut grants = Vec::new();
        for rule in rules.into_iter().flatten() {
            let names = rule.resource_names.clone().unwrap_or_default();
            let names = if names.is_empty() {
                vec![String::new()]
            } else {
                names
            };
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        for name in &names {
                            grants.push(Self {
                                role: role.to_owned(),
                                namespace: namespace.to_owned(),
                                verb: verb.clone(),
                                group: group.clone(),
                                resource: resource.clone(),
                                name: name.clone(),
                            });
                        }
                    }
                }
            }
        }
        grants
    }
}

/// The roles of the release, as they were installed.
pub(crate) struct Roles {
    client: Client,
    everywhere: Vec<ClusterRole>,
    namespaced: Vec<Role>,
}

impl Roles {
    pub(crate) async fn installed(client: &Client) -> Self {
        let ours = ListParams::default().labels("app.kubernetes.io/instance=boundary-operator");
        let everywhere = Api::<ClusterRole>::all(client.clone()).list(&ours).await;
        let namespaced = Api::<Role>::all(client.clone()).list(&ours).await;
        Self {
            client: client.clone(),
            everywhere: everywhere.unwrap().items,
            namespaced: namespaced.unwrap().items,
        }
    }

    /// What the roles grant whose names end so.
    pub(crate) fn grants(&self, wanted: impl Fn(&str) -> bool) -> Vec<Grant> {
        let mut grants = Vec::new();
        for role in &self.everywhere {
            grants.extend(Grant::of(&role.name_any(), "", role.rules.as_ref()));
        }
        for role in &self.namespaced {
            let namespace = role.namespace().unwrap();
            grants.extend(Grant::of(&role.name_any(), &namespace, role.rules.as_ref()));
        }
        grants.retain(|grant| wanted(&grant.role));
        grants
    }

    /// Takes one grant away, and waits until the API server goes by it. Everything else is as it was
    /// installed.
    pub(crate) async fn without(&self, taken: &Grant) {
        self.put(Some(taken)).await;
        eventually(&format!("without {taken}"), SOON, async || {
            (!self.has(taken).await).then_some(())
        })
        .await;
    }

    /// Gives everything back.
    pub(crate) async fn whole(&self, taken: &Grant) {
        self.put(None).await;
        eventually(&format!("with {taken}"), SOON, async || {
            self.has(taken).await.then_some(())
        })
        .await;
    }

    async fn put(&self, taken: Option<&Grant>) {
        let less = |role: &str, namespace: &str, rules: Option<&Vec<PolicyRule>>| {
            let grants = Grant::of(role, namespace, rules).into_iter();
            let kept = grants.filter(|grant| Some(grant) != taken);
            Some(kept.map(|grant| grant.rule()).collect())
        };
        let params = PostParams::default();
        for role in &self.everywhere {
            let mut role = role.clone();
            let name = role.name_any();
            role.rules = less(&name, "", role.rules.as_ref());
            role.metadata.resource_version = None;
            let api: Api<ClusterRole> = Api::all(self.client.clone());
            api.replace(&name, &params, &role).await.unwrap();
        }
        for role in &self.namespaced {
            let mut role = role.clone();
            let (name, namespace) = (role.name_any(), role.namespace().unwrap());
            role.rules = less(&name, &namespace, role.rules.as_ref());
            role.metadata.resource_version = None;
            let api: Api<Role> = Api::namespaced(self.client.clone(), &namespace);
            api.replace(&name, &params, &role).await.unwrap();
        }
    }

    /// Whether the service account of the operator may do it.
    async fn has(&self, grant: &Grant) -> bool {
        let (resource, subresource) =
            (grant.resource.split_once('/')).unwrap_or((grant.resource.as_str(), ""));
        let set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(ACCOUNT.to_owned()),
                resource_attributes: Some(ResourceAttributes {
                    verb: set(&grant.verb),
                    group: set(&grant.group),
                    resource: set(resource),
                    subresource: set(subresource),
                    namespace: set(&grant.namespace),
                    name: set(&grant.name),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await.unwrap();
        answer.status.unwrap().allowed
    }
}
