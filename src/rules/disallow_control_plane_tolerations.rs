use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disallow_latest_tag::TAGGED;
use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::FieldError;
use crate::compile::Version;

/// Denies tolerations of the taints that keep workloads off control plane nodes, and tolerations of
/// every taint. It has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisallowControlPlaneTolerations {}

impl Rule for DisallowControlPlaneTolerations {
    fn validate(&self, _path: &str, _errors: &mut Vec<FieldError>) {}

    fn checks(&self, _version: Version) -> Vec<Check> {
        vec![Check::default()]
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::PodSpec,
            // Without a key a toleration tolerates every taint of its effect; those of control
            // plane nodes have the effect NoSchedule.
            variables: &[(
                "controlPlaneTolerations",
                "variables.podSpec.?tolerations.orValue([])\
                 .filter(t, t.?key.orValue('') == '' \
                 ? t.?operator.orValue('') == 'Exists' && t.?effect.orValue('') in ['', 'NoSchedule'] \
                 : t.key in ['node-role.kubernetes.io/control-plane', 'node-role.kubernetes.io/master'])\
                 .map(t, t.?key.orValue('') == '' ? '*' : t.key)",
            )],
            findings: Findings::Strings("variables.controlPlaneTolerations"),
            sentence: "'denied toleration ' + v[2] + \
                       ': Pods may not use tolerations which schedule on control plane nodes.'",
        }
    }

    fn sample() -> Self {
        Self {}
    }

    fn violating_pod(&self) -> Pod {
        let mut pod = self.passing_pod();
        let toleration = Toleration {
            key: Some("node-role.kubernetes.io/control-plane".to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        };
        if let Some(spec) = &mut pod.spec {
            spec.tolerations = Some(vec![toleration]);
        }
        pod
    }

    fn passing_pod(&self) -> Pod {
        example_pod(TAGGED, BTreeMap::new())
    }
}
