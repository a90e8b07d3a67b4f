//! What a member cluster can do.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use super::failure::{Failure, Verdict, limited};
use crate::api::ClusterState;
use crate::compile::{Capabilities, Version};

/// The API that policies are compiled to.
const VALIDATING: &str = "validatingadmissionpolicies";
const MUTATING: &str = "mutatingadmissionpolicies";
const ADMISSION_V1: &str = "admissionregistration.k8s.io/v1";

/// What the API server of a cluster says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovered {
    /// Its version as it states it.
    pub(crate) version: String,
    /// The admission policy APIs that it serves.
    pub(crate) apis: Vec<String>,
    /// What it can do.
    pub(crate) capabilities: Capabilities,
}

impl Discovered {
    /// Reads the two answers of an API server. `resources` are those of
    /// `admissionregistration.k8s.io/v1`.
    fn read(version: String, resources: &[String]) -> Result<Self, Failure> {
        let number: Version = version
            .parse()
            .map_err(|error| Failure::Server(format!("its version can't be read: {error}")))?;
        let apis: Vec<_> = [VALIDATING, MUTATING]
            .into_iter()
            .filter(|api| resources.iter().any(|resource| resource == api))
            .map(|api| format!("{api}.{ADMISSION_V1}"))
            .collect();
        let served = resources.iter().any(|resource| resource == VALIDATING);
        let capabilities = Capabilities {
            version: number,
            validating: served && number >= Version::FIRST_VALIDATING,
            mutating: None,
        };
        Ok(Self {
            version,
            apis,
            capabilities,
        })
    }

    /// Why nothing can be enforced, if so.
    #[must_use]
    pub(crate) fn unsupported(&self) -> Option<Verdict> {
        let Self {
            version,
            capabilities,
            ..
        } = self;
        if capabilities.validating {
            return None;
        }
        Some(if capabilities.version < Version::FIRST_VALIDATING {
            Verdict::new(
                ClusterState::Unsupported,
                "KubernetesTooOld",
                format!(
                    "Kubernetes {version} does not serve ValidatingAdmissionPolicy v1, which needs \
                     {} or later: nothing is enforced",
                    Version::FIRST_VALIDATING
                ),
            )
        } else {
            Verdict::new(
                ClusterState::Unsupported,
                "NotServed",
                format!(
                    "Kubernetes {version} here does not serve ValidatingAdmissionPolicy v1: nothing \
                     is enforced; enable {ADMISSION_V1} in its API server"
                ),
            )
        })
    }
}

/// What tells a cluster from every other, where the credentials suffice to ask.
pub(crate) async fn identity(client: &Client, timeout: Duration) -> Option<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    match limited(timeout, api.get_metadata("kube-system")).await {
        Ok(namespace) => namespace.metadata.uid,
        Err(failure) => {
            tracing::debug!(%failure, "which cluster it is can't be asked");
            None
        }
    }
}

/// Asks the API server for its version and for what it serves.
///
/// # Errors
/// A request failed. Only a clean "not found" means that an API is absent.
pub(crate) async fn discover(client: &Client, timeout: Duration) -> Result<Discovered, Failure> {
    let version = limited(timeout, client.apiserver_version()).await?;
    let resources = async {
        match client.list_api_group_resources(ADMISSION_V1).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            answer => Ok(answer?.resources.into_iter().map(|api| api.name).collect()),
        }
    };
    let resources = limited(timeout, resources).await?;
    Discovered::read(version.git_version, &resources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::old("v1.29.15", &[], Some("KubernetesTooOld"))]
    #[case::new("v1.30.14", &[VALIDATING], None)]
    #[case::vendor("v1.31.2+k3s1", &[VALIDATING, MUTATING], None)]
    #[case::switched_off("v1.31.2", &["validatingwebhookconfigurations"], Some("NotServed"))]
    fn unsupported(#[case] version: &str, #[case] served: &[&str], #[case] reason: Option<&str>) {
        let served: Vec<_> = served.iter().map(|&api| api.to_owned()).collect();
        let discovered = Discovered::read(version.to_owned(), &served).unwrap();
        let verdict = discovered.unsupported();
        assert_eq!(
            verdict.as_ref().map(|verdict| verdict.reason.as_str()),
            reason
        );
    }

    #[test]
    fn the_version_is_named() {
        let discovered = Discovered::read("v1.29.15".to_owned(), &[]).unwrap();
        assert_eq!(
            discovered.unsupported().unwrap().message,
            "Kubernetes v1.29.15 does not serve ValidatingAdmissionPolicy v1, which needs 1.30 or later: nothing is enforced"
        );
    }
}
