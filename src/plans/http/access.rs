//! Who asks, and for which boundaries they may. The hub says both.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::cache::Cache;
use crate::api::GROUP;

/// What may be read: `boundaries/computeplans`.
pub(super) const RESOURCE: &str = "boundaries";
pub(super) const SUB_RESOURCE: &str = "computeplans";

/// How long an answer of the hub is kept.
const KEEP: Duration = Duration::from_secs(10);

/// How long it is kept that the hub gave none.
const KEEP_FAILURE: Duration = Duration::from_secs(1);

/// Answers that are kept.
const USERS: usize = 4_096;
const GRANTS: usize = 16_384;

/// Questions to the hub at the same time.
const CONCURRENT: usize = 32;

/// What becomes of who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// They may ask.
    Granted,
    /// Nobody knows them.
    Unauthenticated,
    /// The user may not.
    Forbidden(String),
    /// The hub gave no answer.
    Unavailable,
}

/// A known user, in part of the spec of a `SubjectAccessReview`.
type User = Box<SubjectAccessReviewSpec>;

/// Asks the hub, and keeps its answers.
pub(super) struct Doorkeeper {
    client: Client,
    audiences: Vec<String>,
    timeout: Duration,
    users: Cache<Result<User, Access>>,
    grants: Cache<Access>,
    permits: Semaphore,
}

impl Doorkeeper {
    /// Tokens must be for one of `audiences`; none: for the API server of the hub.
    pub(super) fn new(client: Client, audiences: Vec<String>, timeout: Duration) -> Self {
        Self {
            client,
            audiences,
            timeout,
            users: Cache::new(USERS),
            grants: Cache::new(GRANTS),
            permits: Semaphore::new(CONCURRENT),
        }
    }

    /// Whether who has `token` may ask about `boundary`. Where the hub is known not to answer it is
    /// not asked.
    pub(super) async fn access(&self, token: &str, boundary: &str, answers: bool) -> Access {
        let user_key: [u8; 32] = Sha256::digest(token).into();
        let grant_key: [u8; 32] = Sha256::new()
            .chain_update(user_key)
            .chain_update(boundary)
            .finalize()
            .into();
        if !answers {
            let refused = match self.users.get(user_key) {
                Some(Err(refused)) => Some(refused),
                _ => None,
            };
            let access = refused.or_else(|| self.grants.get(grant_key));
            return access.unwrap_or(Access::Unavailable);
        }
        match self.users.get_or(user_key, self.user(token)).await {
            Ok(user) => {
                let grant = self.grant(*user, boundary);
                self.grants.get_or(grant_key, grant).await
            }
            Err(access) => access,
        }
    }

    async fn user(&self, token: &str) -> (Result<User, Access>, Duration) {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: (!self.audiences.is_empty()).then(|| self.audiences.clone()),
            },
            ..TokenReview::default()
        };
        let Some(status) = self.ask(&review).await.and_then(|review| review.status) else {
            return (Err(Access::Unavailable), KEEP_FAILURE);
        };
        let audiences = status.audiences.unwrap_or_default();
        // An authenticator that knows no audiences says none: then the token is for the API server.
        let meant = self.audiences.is_empty()
            || audiences
                .iter()
                .any(|audience| self.audiences.contains(audience));
        match status.user {
            Some(user) if status.authenticated == Some(true) && meant => {
                (Ok(Box::new(subject(user))), KEEP)
            }
            _ => (Err(Access::Unauthenticated), KEEP),
        }
    }

    async fn grant(&self, user: SubjectAccessReviewSpec, boundary: &str) -> (Access, Duration) {
        let name = user.user.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some("get".to_owned()),
                    group: Some(GROUP.to_owned()),
                    version: Some("v1alpha1".to_owned()),
                    resource: Some(RESOURCE.to_owned()),
                    subresource: Some(SUB_RESOURCE.to_owned()),
                    name: Some(boundary.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..user
            },
            ..SubjectAccessReview::default()
        };
        match self.ask(&review).await.and_then(|review| review.status) {
            None => (Access::Unavailable, KEEP_FAILURE),
            Some(status) if status.allowed => (Access::Granted, KEEP),
            Some(_) => (Access::Forbidden(name), KEEP),
        }
    }

    /// The answer of the hub. The question is not logged: it may hold a token.
    async fn ask<K>(&self, question: &K) -> Option<K>
    where
        K: kube::Resource<DynamicType = ()>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let kind = K::kind(&()).into_owned();
        let api: Api<K> = Api::all(self.client.clone());
        let params = PostParams::default();
        let asked = async {
            let _permit = self.permits.acquire().await.ok()?;
            match api.create(&params, question).await {
                Ok(answer) => Some(answer),
                Err(error) => {
                    tracing::warn!(kind, %error, "the hub gives no answer about a caller");
                    None
                }
            }
        };
        let answer = tokio::time::timeout(self.timeout, Box::pin(asked)).await;
        answer.unwrap_or_else(|_| {
            tracing::warn!(kind, "the hub gives no answer about a caller in time");
            None
        })
    }
}

fn subject(user: UserInfo) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        ..SubjectAccessReviewSpec::default()
    }
}
