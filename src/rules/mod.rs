//! The rules of a policy, one file each.
//!
//! To add a rule: write its file, with its fields, its [`Rule`] implementation and its examples,
//! and add its line to the list below. The schema, the compiler, offline evaluation, the probe and
//! the tests that go over all rules take it from there.

mod allowed_compute_plans;
mod images;
mod mutation;
mod quantity;
mod rule;

pub use allowed_compute_plans::AllowedComputePlans;
pub(crate) use images::trimmed;
pub use mutation::Mutation;
pub use pod_security::PodSecurityLevel;
pub(crate) use quantity::Quantity;
pub use rule::{Check, Findings, Logic, Rule, Subject, example_pod};

use k8s_openapi::api::core::v1::Pod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::FieldError;
use crate::compile::Version;

macro_rules! rules {
    ($($file:ident: $Rule:ident,)+) => {
        $(
            mod $file;
            pub use $file::$Rule;
        )+

        /// The rules of a policy. At least one is set.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        #[schemars(extend("minProperties" = 1))]
        #[expect(missing_docs, reason = "each rule is documented at its type, and so in the schema")]
        pub struct Rules {
            $(
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $file: Option<$Rule>,
            )+
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub allowed_compute_plans: Option<AllowedComputePlans>,
        }

        /// The name of a rule, as messages and exemptions write it. The order is that of messages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "each rule is documented at its type")]
        pub enum RuleName {
            $($Rule,)+
        }

        impl RuleName {
            /// Every rule, in the order of messages.
            pub const ALL: &[Self] = &[$(Self::$Rule),+];

            /// The word that stands in the API.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Rule => stringify!($Rule),)+
                }
            }

            /// The CEL of the rule, the same for every policy.
            #[must_use]
            pub fn logic(self) -> Logic {
                match self {
                    $(Self::$Rule => $Rule::logic(),)+
                }
            }

            /// Rules with this one alone, filled with typical values.
            #[must_use]
            pub fn sample(self) -> Rules {
                match self {
                    $(Self::$Rule => Rules { $file: Some($Rule::sample()), ..Rules::default() },)+
                }
            }
        }

        impl Rules {
            /// The rules about Pods that are set, in the order of messages.
            #[must_use]
            pub fn names(&self) -> Vec<RuleName> {
                let mut names = Vec::new();
                $(
                    if self.$file.is_some() {
                        names.push(RuleName::$Rule);
                    }
                )+
                names
            }

            /// What the rules check on an API server of `version`, rule by rule.
            #[must_use]
            pub fn checks(&self, version: Version) -> Vec<(RuleName, Vec<Check>)> {
                let mut checks = Vec::new();
                $(
                    if let Some(rule) = &self.$file {
                        checks.push((RuleName::$Rule, rule.checks(version)));
                    }
                )+
                checks
            }

            /// A Pod that breaks the rule `name`, if it is set.
            #[must_use]
            pub fn violating_pod(&self, name: RuleName) -> Option<Pod> {
                match name {
                    $(RuleName::$Rule => self.$file.as_ref().map(Rule::violating_pod),)+
                }
            }

            /// What the rules change on a Pod that is created, rule by rule.
            #[must_use]
            pub fn mutations(&self) -> Vec<(RuleName, Mutation)> {
                let mut mutations = Vec::new();
                $(
                    if let Some(mutation) = self.$file.as_ref().and_then(Rule::mutation) {
                        mutations.push((RuleName::$Rule, mutation));
                    }
                )+
                mutations
            }

            /// Whether `pod`, as an API server returned it, keeps the rule `name`. None: the rule
            /// is not set, or changes nothing.
            #[must_use]
            pub fn is_kept_by(&self, name: RuleName, pod: &Pod) -> Option<bool> {
                match name {
                    $(RuleName::$Rule => self.$file.as_ref().and_then(|rule| rule.is_kept_by(pod)),)+
                }
            }

            /// A Pod that keeps the rule `name`, if it is set.
            #[must_use]
            pub fn passing_pod(&self, name: RuleName) -> Option<Pod> {
                match name {
                    $(RuleName::$Rule => self.$file.as_ref().map(Rule::passing_pod),)+
                }
            }

            /// What can't be compiled, under the field path `path`.
            pub(crate) fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
                if self.titles().is_empty() {
                    errors.push(FieldError::new(path, "must have at least one rule"));
                }
                $(
                    if let Some(rule) = &self.$file {
                        let path = format!("{path}.{}", rule::camel_case(stringify!($file)));
                        rule.validate(&path, errors);
                    }
                )+
                if let Some(rule) = &self.allowed_compute_plans {
                    rule.validate(&format!("{path}.allowedComputePlans"), errors);
                }
            }
        }
    };
}

rules! {
    required_labels: RequiredLabels,
    allowed_registries: AllowedRegistries,
    disallow_latest_tag: DisallowLatestTag,
    pod_security: PodSecurity,
    disallow_control_plane_tolerations: DisallowControlPlaneTolerations,
    always_pull_images: AlwaysPullImages,
    default_resources: DefaultResources,
    memory_limit_equals_request: MemoryLimitEqualsRequest,
}

/// The JSON Patches of the rules that change Pods.
pub(crate) mod patches {
    pub(crate) use super::always_pull_images::patch as pull_always;
    pub(crate) use super::default_resources::{limit_patch as limits, request_patch as requests};
    pub(crate) use super::memory_limit_equals_request::patch as memory_limit;
}

impl Rules {
    /// The names of all rules that are set, those about Pods first.
    #[must_use]
    pub fn titles(&self) -> Vec<&'static str> {
        let plans = self.allowed_compute_plans.as_ref();
        let plans = plans.map(|_| AllowedComputePlans::NAME);
        let names = self.names().into_iter().map(RuleName::as_str);
        names.chain(plans).collect()
    }
}

impl std::fmt::Display for RuleName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

// By hand: a derived enum schema with documented variants is a `oneOf`, which is not structural.
impl JsonSchema for RuleName {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RuleName".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<_> = Self::ALL.iter().map(|name| name.as_str()).collect();
        schemars::json_schema!({"type": "string", "enum": names})
    }
}
