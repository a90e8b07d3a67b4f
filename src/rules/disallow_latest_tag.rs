use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::FieldError;
use crate::compile::Version;

/// Requires of every image an explicit tag that isn't `latest`, or a digest. It has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisallowLatestTag {}

/// An image that every rule about tags allows.
pub(super) const TAGGED: &str = "registry.k8s.io/pause:3.10";

impl Rule for DisallowLatestTag {
    fn validate(&self, _path: &str, _errors: &mut Vec<FieldError>) {}

    fn checks(&self, _version: Version) -> Vec<Check> {
        vec![Check::default()]
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::PodSpec,
            // A digest is `@algorithm:value` at the end. Without one, the tag is what follows the
            // first `:` of the last segment.
            variables: &[(
                "latestTagged",
                "variables.candidates.filter(c, [c[0].split('@', 2)].exists(s, \
                 (s.size() == 1 || s[1].contains('@') || s[1].contains('/') || !s[1].contains(':') || s[1].startsWith(':') || s[1].endsWith(':')) && \
                 (!s[0].substring(s[0].lastIndexOf('/') + 1).contains(':') || s[0].endsWith(':latest') || s[0].endsWith(':'))))",
            )],
            findings: Findings::Images("variables.latestTagged"),
            sentence: "'denied image ' + SHORT(v[2]) + ': it is tagged latest or carries no tag.'",
        }
    }

    fn sample() -> Self {
        Self {}
    }

    fn violating_pod(&self) -> Pod {
        example_pod("registry.k8s.io/pause:latest", BTreeMap::new())
    }

    fn passing_pod(&self) -> Pod {
        example_pod(TAGGED, BTreeMap::new())
    }
}
