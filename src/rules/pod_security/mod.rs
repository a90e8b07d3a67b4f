//! The Pod Security Standards. Each file has the checks about one thing; the order of checks is
//! that of the standards.

mod host;
mod privileges;
mod profiles;
mod sysctls;
mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Pod, PodSecurityContext, SeccompProfile, SecurityContext,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disallow_latest_tag::TAGGED;
use super::{Check, Findings, Logic, Rule, Subject, example_pod};
use crate::api::FieldError;
use crate::compile::{Version, first};

/// Holds Pods, and the templates of workloads, to a level of the Pod Security Standards, in the
/// version of them that the cluster has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodSecurity {
    /// `baseline` denies the known ways from a Pod to its node. `restricted` requires in addition
    /// that a Pod is hardened: not root, no privilege escalation, no capabilities, a seccomp
    /// profile, and only certain types of volumes.
    pub level: PodSecurityLevel,

    /// The version of the standards, for example `v1.30`; `latest`, or absent: that of the cluster.
    /// A cluster that is older than this version has its own. It means the same as the label
    /// `pod-security.kubernetes.io/enforce-version` of a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        regex(pattern = r"^(latest|v1[.](0|[1-9][0-9]*))$")
    )]
    pub version: Option<String>,
}

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurityLevel {
    /// What is known to lead to the node is denied.
    #[default]
    Baseline,
    /// What hardens a Pod is required, and all of baseline.
    Restricted,
}

impl PodSecurityLevel {
    /// Every level, the weakest first.
    pub const ALL: [Self; 2] = [Self::Baseline, Self::Restricted];

    /// The word that stands in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

// By hand: a derived enum schema with documented variants is a `oneOf`, which is not structural.
impl JsonSchema for PodSecurityLevel {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodSecurityLevel".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "enum": Self::ALL.map(Self::as_str)})
    }
}

/// What a Pod is held to.
struct Standard {
    level: PodSecurityLevel,
    /// The version of the standards: that of the API server, or an older one.
    version: Version,
    /// The version of the API server. Some changes came without a version of the standards.
    server: Version,
}

impl Standard {
    fn is_restricted(&self) -> bool {
        self.level == PodSecurityLevel::Restricted
    }

    /// Whether its version is 1.`minor` or later.
    fn since(&self, minor: u32) -> bool {
        self.version >= Version { major: 1, minor }
    }

    /// A condition that the Pod is not for Windows, for checks which exempt it since 1.25: there
    /// the API server refuses the fields they ask for. With `&&` at its end.
    fn unless_windows(&self) -> &'static str {
        if self.since(25) {
            "!variables.podSecurityWindows && "
        } else {
            ""
        }
    }

    /// A condition that the Pod is not in a user namespace, for checks which exempt it since 1.35.
    /// With `&&` at its end.
    fn unless_user_namespace(&self) -> &'static str {
        if self.since(35) {
            "variables.podSpec.?hostUsers.orValue(true) && "
        } else {
            ""
        }
    }

    /// The name of a variable of this standard.
    fn variable(&self, of: &str) -> String {
        let level = match self.level {
            PodSecurityLevel::Baseline => "Baseline",
            PodSecurityLevel::Restricted => "Restricted",
        };
        let Version { major, minor } = self.version;
        format!("podSecurity{of}{level}{major}_{minor}")
    }

    /// The check of a policy, in three variables: the containers that break something, with a mark
    /// for each thing; what is said; and the marks of the containers of which nothing is said.
    ///
    /// Making text costs the API server more than looking, so it is made for no more containers
    /// than a message has sentences.
    fn check(&self) -> Check {
        let (mut pod, mut lines) = (Vec::new(), Vec::new());
        for check in CHECKS {
            let terms = check(self);
            pod.extend(terms.pod);
            lines.extend(terms.container);
        }
        let marks: Vec<_> = lines.iter().map(Line::mark).collect();
        let texts: Vec<_> = lines.iter().map(|line| line.text(&CONTAINER)).collect();
        let (bad, shown, more) = (
            self.variable("Bad"),
            self.variable("Shown"),
            self.variable("More"),
        );
        let first = first(&format!("variables.{bad}"));
        let variables = vec![
            (
                bad.clone(),
                format!(
                    "variables.podSecurityContainers.map(c, c + [dyn({})]).filter(c, c[3] != '')",
                    marks.join(" + ")
                ),
            ),
            (
                shown.clone(),
                format!(
                    "({} + {first}.map(c, {}).join('')).split('\\n').filter(f, f != '')",
                    pod.join(" + "),
                    texts.join(" + ")
                ),
            ),
            (
                more.clone(),
                format!(
                    "variables.{bad}.map(c, c[3]).join('').substring({first}.map(c, c[3]).join('').size())\
                     .split('').filter(m, m != '').map(m, [m])"
                ),
            ),
        ];
        Check {
            columns: vec![format!("{}:v{}", self.level.as_str(), self.version)],
            variables,
            findings: format!("variables.{shown}.map(f, r + [f]) + variables.{more}"),
            ..Check::default()
        }
    }
}

/// What a check adds.
#[derive(Default)]
struct Terms {
    /// About the Pod: expressions that give text, a line for each finding, and nothing where there
    /// is none.
    pod: Vec<String>,
    /// About a container `c`, a list: its place in a sentence (` of container web: `), the
    /// container, and its `securityContext`, an empty map if it has none.
    container: Vec<Line>,
}

impl Terms {
    /// A check of the Pod.
    fn pod(text: String) -> Self {
        Self {
            pod: vec![text],
            container: Vec::new(),
        }
    }

    /// A check of each container.
    fn containers(lines: impl IntoIterator<Item = Line>) -> Self {
        Self {
            pod: Vec::new(),
            container: lines.into_iter().collect(),
        }
    }

    /// A check of the security contexts of the Pod and of each container.
    fn contexts(lines: impl Fn(&'static str) -> Vec<Line>) -> Self {
        let pod = lines(POD.context);
        Self {
            pod: pod.iter().map(|line| line.text(&POD)).collect(),
            container: lines(CONTAINER.context),
        }
    }
}

/// Where a security context is.
struct Place {
    /// The security context.
    context: &'static str,
    /// What stands between the field and the reason.
    of: &'static str,
}

const POD: Place = Place {
    context: "variables.podSecurityContext",
    of: "': '",
};

const CONTAINER: Place = Place {
    context: "c[2]",
    of: "c[0]",
};

/// A finding, which stands between `denied` and the full stop of its sentence.
struct Line {
    /// When there is one.
    condition: String,
    /// The field that it is about.
    field: String,
    /// What is wrong: an expression.
    reason: String,
}

impl Line {
    /// `reason` is an expression, or text in quotes.
    fn new(
        condition: impl Into<String>,
        field: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            condition: condition.into(),
            field: field.into(),
            reason: reason.into(),
        }
    }

    fn text(&self, place: &Place) -> String {
        let Self {
            condition,
            field,
            reason,
        } = self;
        format!(
            "({condition} ? '{field}' + {} + {reason} + '\\n' : '')",
            place.of
        )
    }

    /// One character where there is a finding.
    fn mark(&self) -> String {
        format!("({} ? '*' : '')", self.condition)
    }
}

/// Every check, in the order of the standards.
const CHECKS: &[fn(&Standard) -> Terms] = &[
    host::namespaces,
    volumes::types,
    host::ports,
    host::probes,
    privileges::privileged,
    privileges::proc_mount,
    privileges::capabilities,
    profiles::se_linux,
    profiles::seccomp,
    profiles::app_armor,
    sysctls::names,
    host::windows_process,
    privileges::escalation,
    privileges::non_root,
    privileges::user,
];

impl PodSecurity {
    /// The version that is asked for; none stands for the latest.
    fn pinned(&self) -> Option<Version> {
        self.version.as_deref()?.parse().ok()
    }
}

impl Rule for PodSecurity {
    fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        let Some(version) = &self.version else { return };
        let is_minor = |minor: &str| {
            (minor == "0" || !minor.starts_with('0'))
                && minor.len() <= 8
                && !minor.is_empty()
                && minor.bytes().all(|b| b.is_ascii_digit())
        };
        if version != "latest" && !version.strip_prefix("v1.").is_some_and(is_minor) {
            let message = "is not a version of the Pod Security Standards: write latest, or a \
                           version like v1.30";
            let path = format!("{path}.version");
            errors.push(FieldError::quoting(&path, version, message));
        }
    }

    fn checks(&self, server: Version) -> Vec<Check> {
        let standard = Standard {
            level: self.level,
            version: self.pinned().map_or(server, |pinned| pinned.min(server)),
            server,
        };
        vec![standard.check()]
    }

    fn logic() -> Logic {
        Logic {
            subject: Subject::PodSpec,
            variables: &[
                (
                    "podAnnotations",
                    "object.kind == 'Pod' ? dyn(object).?metadata.?annotations.orValue({}) : \
                     object.kind == 'CronJob' ? \
                     dyn(object).spec.jobTemplate.spec.template.?metadata.?annotations.orValue({}) : \
                     dyn(object).spec.template.?metadata.?annotations.orValue({})",
                ),
                (
                    "podSecurityContext",
                    "variables.podSpec.?securityContext.orValue({})",
                ),
                (
                    "podSecurityWindows",
                    "variables.podSpec.?os.?name.orValue('') == 'windows'",
                ),
                ("podSecurityAppArmor", profiles::APP_ARMOR_ANNOTATED),
                (
                    "podSecurityContainers",
                    "(variables.podSpec.containers + variables.podSpec.?initContainers.orValue([]) + \
                     variables.podSpec.?ephemeralContainers.orValue([])).map(c, \
                     [dyn(' of container ' + c.?name.orValue('') + ': '), dyn(c), dyn(c.?securityContext.orValue({}))])",
                ),
            ],
            findings: Findings::OfCheck,
            sentence: "'denied ' + v[3] + '.'",
        }
    }

    fn sample() -> Self {
        Self {
            level: PodSecurityLevel::Restricted,
            version: None,
        }
    }

    fn violating_pod(&self) -> Pod {
        let mut pod = self.passing_pod();
        if let Some(spec) = &mut pod.spec {
            spec.host_network = Some(true);
        }
        pod
    }

    /// What passes at `restricted` passes at `baseline` too.
    fn passing_pod(&self) -> Pod {
        let mut pod = example_pod(TAGGED, BTreeMap::new());
        if let Some(spec) = &mut pod.spec {
            spec.security_context = Some(PodSecurityContext {
                run_as_non_root: Some(true),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            });
            for container in &mut spec.containers {
                container.security_context = Some(SecurityContext {
                    allow_privilege_escalation: Some(false),
                    capabilities: Some(Capabilities {
                        drop: Some(vec!["ALL".to_owned()]),
                        ..Capabilities::default()
                    }),
                    ..SecurityContext::default()
                });
            }
        }
        pod
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("latest", true)]
    #[case("v1.0", true)]
    #[case("v1.30", true)]
    #[case("1.30", false)]
    #[case("v1.30.4", false)]
    #[case("v1.", false)]
    #[case("v1.030", false)]
    #[case("v2.0", false)]
    #[case("", false)]
    fn versions(#[case] version: &str, #[case] valid: bool) {
        let rule = PodSecurity {
            level: PodSecurityLevel::Baseline,
            version: Some(version.to_owned()),
        };
        let mut errors = Vec::new();
        rule.validate("spec.rules.podSecurity", &mut errors);
        assert_eq!(errors.is_empty(), valid, "{errors:?}");
    }

    #[test]
    fn a_cluster_that_is_older_has_its_own_version() {
        let columns = |version: Option<&str>, minor| {
            let rule = PodSecurity {
                level: PodSecurityLevel::Baseline,
                version: version.map(str::to_owned),
            };
            rule.checks(Version { major: 1, minor }).remove(0).columns
        };
        assert_eq!(columns(None, 34), ["baseline:v1.34"]);
        assert_eq!(columns(Some("latest"), 34), ["baseline:v1.34"]);
        assert_eq!(columns(Some("v1.30"), 34), ["baseline:v1.30"]);
        assert_eq!(columns(Some("v1.37"), 34), ["baseline:v1.34"]);
    }
}
