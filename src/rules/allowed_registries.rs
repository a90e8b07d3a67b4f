use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::images::{is_under, trimmed};
use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::{FieldError, is_image_prefix};
use crate::compile::Version;

/// Allows images only under listed prefixes. An image is compared exactly as it is written in the
/// Pod: `docker.io/library` does not allow `nginx:1.27`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AllowedRegistries {
    /// Image prefixes, for example `ghcr.io/acme`. An image must equal one, or continue one after a
    /// `/`. At most 8 segments each, no scheme, no wildcard; a `/` at the end is ignored.
    #[schemars(
        length(min = 1, max = MAX_REGISTRIES),
        inner(length(min = 1, max = 253), regex(pattern = crate::api::patterns::IMAGE_PREFIX))
    )]
    pub registries: Vec<String>,
}

const MAX_REGISTRIES: usize = 100;

/// The list of prefixes in a message is cut after so many characters.
const MAX_SHOWN: usize = 400;

impl AllowedRegistries {
    fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.registries.iter().map(|prefix| trimmed(prefix))
    }
}

impl Rule for AllowedRegistries {
    fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        let path = format!("{path}.registries");
        if self.registries.is_empty() || self.registries.len() > MAX_REGISTRIES {
            let message = format!("must have 1 to {MAX_REGISTRIES} prefixes");
            errors.push(FieldError::new(&path, message));
        }
        for (index, prefix) in self.registries.iter().enumerate() {
            if !is_image_prefix(prefix) {
                errors.push(FieldError::image_prefix(&format!("{path}[{index}]"), prefix));
            }
        }
    }

    fn checks(&self, _version: Version) -> Vec<Check> {
        let listed = self.prefixes().collect::<Vec<_>>().join(", ");
        let shown = match listed.char_indices().nth(MAX_SHOWN) {
            Some((end, _)) => format!("{}…", &listed[..end]),
            None => listed,
        };
        vec![Check {
            columns: vec![shown],
            prefixes: self.prefixes().map(str::to_owned).collect(),
            ..Check::default()
        }]
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::PodSpec,
            variables: &[],
            findings: Findings::Images(
                "variables.candidates.filter(c, !c.exists(p, p in prefixes))",
            ),
            sentence: "'denied image ' + SHORT(v[3]) + ': it is not under ' + v[2] + '.'",
        }
    }

    fn sample() -> Self {
        Self {
            registries: vec!["ghcr.io/acme".to_owned(), "docker.io/library".to_owned()],
        }
    }

    fn violating_pod(&self) -> Pod {
        // Longer than every prefix, so at the latest the one after the last prefix is under none.
        let image = (0..=self.registries.len())
            .map(|n| format!("registry{n}.invalid/not-allowed:1"))
            .find(|image| !is_under(image, self.prefixes()))
            .unwrap_or_default();
        example_pod(&image, BTreeMap::new())
    }

    fn passing_pod(&self) -> Pod {
        let prefix = self.prefixes().next().unwrap_or_default();
        example_pod(&format!("{prefix}/web:1.4"), BTreeMap::new())
    }
}
