//! Why a request to a member cluster failed, as far as it changes what happens next.

use std::time::Duration;

use crate::api::ClusterState;
use crate::telemetry::ErrorClass;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// There was no answer.
    #[error("{message}")]
    Unreachable {
        /// In one word.
        reason: &'static str,
        /// In words.
        message: String,
    },
    /// The API server does not know who asks.
    #[error("the API server refused the credentials: {0}")]
    Unauthorized(String),
    /// The credentials lack a permission.
    #[error("the credentials lack a permission: {0}")]
    Forbidden(String),
    /// Something in the cluster refuses the request: a webhook, another admission policy.
    #[error("{0}")]
    Denied(String),
    /// The API server does not take the object.
    #[error("{0}")]
    Refused(String),
    /// The object is not what it was when it was read.
    #[error("the object changed in the meantime: {0}")]
    Conflict(String),
    /// The API server failed.
    #[error("the API server failed: {0}")]
    Server(String),
}

/// What became of a policy in a cluster, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What became of it.
    pub state: ClusterState,
    /// Why, in one word.
    pub reason: String,
    /// Why, in words.
    pub message: String,
}

impl Verdict {
    /// A verdict.
    pub fn new(state: ClusterState, reason: &str, message: impl Into<String>) -> Self {
        let message = message.into().chars().take(1024).collect();
        Self {
            state,
            reason: reason.to_owned(),
            message,
        }
    }
}

impl Failure {
    /// Whether nothing else will work either, now.
    #[must_use]
    pub(crate) fn concerns_the_cluster(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unauthorized(_))
    }

    /// What kind of failure is counted.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Unreachable { .. } => ErrorClass::Unreachable,
            Self::Unauthorized(_) => ErrorClass::Unauthorized,
            Self::Forbidden(_) => ErrorClass::Forbidden,
            Self::Refused(_) | Self::Denied(_) => ErrorClass::Refused,
            Self::Conflict(_) => ErrorClass::Conflict,
            Self::Server(_) => ErrorClass::Server,
        }
    }

    /// What it means for a policy.
    #[must_use]
    pub(crate) fn verdict(&self) -> Verdict {
        let (state, reason) = match self {
            Self::Unreachable { reason, .. } => (ClusterState::Unreachable, *reason),
            Self::Unauthorized(_) => (ClusterState::Forbidden, "Unauthorized"),
            Self::Forbidden(_) => (ClusterState::Forbidden, "Forbidden"),
            Self::Refused(_) | Self::Denied(_) => (ClusterState::NotEnforced, "Refused"),
            Self::Conflict(_) => (ClusterState::Pending, "Conflict"),
            Self::Server(_) => (ClusterState::Pending, "ServerError"),
        };
        Verdict::new(state, reason, self.to_string())
    }

    /// What it means for the cluster as a whole, of which nothing is known as long as it lasts.
    #[must_use]
    pub(crate) fn of_cluster(&self) -> Verdict {
        let verdict = self.verdict();
        match self {
            Self::Server(_) => Verdict {
                state: ClusterState::Unreachable,
                ..verdict
            },
            _ => verdict,
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let message = status.message.clone();
                match status.code {
                    400 | 413 | 422 => Self::Refused(message),
                    401 => Self::Unauthorized(message),
                    403 => match permission(&message) {
                        Some(permission) => Self::Forbidden(permission.to_owned()),
                        None => Self::Denied(message),
                    },
                    404 | 409 => Self::Conflict(message),
                    code => Self::Server(format!("{code} {message}")),
                }
            }
            kube::Error::SerdeError(error) => {
                Self::Server(format!("its answer can't be read: {error}"))
            }
            error => {
                let cause = root_cause(&error);
                let reason = if is_of_certificate(cause) {
                    "InvalidCertificate"
                } else {
                    "ConnectionFailed"
                };
                Self::Unreachable {
                    reason,
                    message: format!("the API server can't be reached: {cause}"),
                }
            }
        }
    }
}

/// The part that names verb and resource in the words of an authorizer:
/// `pods is forbidden: User "x" cannot list resource "pods" …`. What admission refuses reads
/// otherwise.
fn permission(message: &str) -> Option<&str> {
    let user = message.find(": User \"")?;
    let verb = message[user..].find("\" cannot ")?;
    Some(&message[user + verb + 2..])
}

/// The innermost error, which is the one that says something, without the layers around it.
fn root_cause(error: &kube::Error) -> &(dyn std::error::Error + 'static) {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// Whether the certificate of the API server is not to be trusted.
fn is_of_certificate(cause: &(dyn std::error::Error + 'static)) -> bool {
    // An I/O error gives the source of what is in it, not what is in it; one may be in another.
    let mut cause = cause;
    while let Some(inner) = cause
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref)
    {
        cause = inner;
    }
    let tls = cause.downcast_ref();
    matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
}

/// Waits for `request` at most as long as `timeout`.
pub(crate) async fn limited<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::Unreachable {
            reason: "Timeout",
            message: format!("no answer within {timeout:?}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn a_missing_permission_is_named() {
        let message = "validatingadmissionpolicies.admissionregistration.k8s.io is forbidden: User \"op\" cannot list resource \"validatingadmissionpolicies\" in API group \"admissionregistration.k8s.io\" at the cluster scope";
        let status = Status::failure(message, "Forbidden").with_code(403);
        let verdict = Failure::from(kube::Error::Api(Box::new(status))).verdict();
        assert_eq!(verdict.state, ClusterState::Forbidden);
        assert!(
            verdict.message.starts_with(
                "the credentials lack a permission: cannot list resource \"validatingadmissionpolicies\""
            ),
            "{}",
            verdict.message
        );
    }

    #[test]
    fn what_admission_refuses_is_no_lack_of_a_permission() {
        let message = "namespaces \"x\" is forbidden: ValidatingAdmissionPolicy 'theirs' with binding 'theirs' denied request: you cannot do this";
        let status = Status::failure(message, "Forbidden").with_code(403);
        let verdict = Failure::from(kube::Error::Api(Box::new(status))).verdict();
        assert_eq!(
            (
                verdict.state,
                verdict.reason.as_str(),
                verdict.message.as_str()
            ),
            (ClusterState::NotEnforced, "Refused", message)
        );
    }
}
