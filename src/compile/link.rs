//! From policies to what each object holds.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use super::{Options, object_name};
use crate::api::{Action, BoundaryPolicy, Exemption, WhenMutationUnsupported};
use crate::rules::{Check, Findings, RuleName, Subject, trimmed};

/// What one object holds: policies of one action, by boundary.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) name: String,
    pub(crate) action: Action,
    /// Over how many objects the policies of the boundaries and the action are spread.
    pub(crate) parts: usize,
    pub(crate) boundaries: BTreeMap<String, Vec<LinkedPolicy>>,
}

/// A policy as it goes into an object.
#[derive(Clone, Debug)]
pub(crate) struct LinkedPolicy {
    pub(crate) name: String,
    pub(crate) generation: i64,
    pub(crate) checks: Vec<(RuleName, Vec<Check>)>,
    pub(crate) exemptions: Vec<Exemption>,
}

/// Links `policies`, which are valid, as `options` say, without the rules that are `not_enforced`.
/// Those without a rule about Pods that is checked are left out.
pub(crate) fn link(
    policies: &[&BoundaryPolicy],
    not_enforced: &BTreeMap<String, BTreeSet<RuleName>>,
    options: &Options,
) -> Vec<Linked> {
    let mut groups: BTreeMap<(Group, Action), Vec<(String, LinkedPolicy)>> = BTreeMap::new();
    for policy in policies {
        let mut linked = LinkedPolicy::new(policy, options);
        if let Some(rules) = not_enforced.get(&linked.name) {
            linked.checks.retain(|(rule, _)| !rules.contains(rule));
        }
        if linked.checks.is_empty() {
            continue;
        }
        let boundary = policy.spec.boundary.clone();
        groups
            .entry((Group::of(&boundary), policy.spec.action))
            .or_default()
            .push((boundary, linked));
    }
    let mut linked = Vec::new();
    for ((group, action), mut policies) in groups {
        policies.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let parts = split(policies);
        let count = parts.len();
        for (index, part) in parts.into_iter().enumerate() {
            let mut boundaries: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (boundary, policy) in part {
                boundaries.entry(boundary).or_default().push(policy);
            }
            linked.push(Linked {
                name: group.object_name(action, index + 1),
                action,
                parts: count,
                boundaries,
            });
        }
    }
    linked
}

/// The rules of `policy` that nothing enforces: those that change Pods, where that does not happen and
/// is not checked either. A policy that only warns, or only audits, changes nothing: the check is all
/// there is of it.
pub(crate) fn not_enforced(policy: &BoundaryPolicy, changes_pods: bool) -> BTreeSet<RuleName> {
    if changes_pods
        || policy.spec.action != Action::Deny
        || policy.spec.when_mutation_unsupported == WhenMutationUnsupported::Deny
    {
        return BTreeSet::new();
    }
    let mutations = policy.spec.rules.mutations();
    mutations.into_iter().map(|(rule, _)| rule).collect()
}

/// Boundaries whose policies share objects. This is the one place that decides it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    boundary: String,
}

impl Group {
    fn of(boundary: &str) -> Self {
        Self {
            boundary: boundary.to_owned(),
        }
    }

    fn object_name(&self, action: Action, part: usize) -> String {
        object_name(&self.boundary, action, part)
    }
}

/// Spreads `policies`, in their order, over as few objects as hold them. Each policy stays whole.
fn split(policies: Vec<(String, LinkedPolicy)>) -> Vec<Vec<(String, LinkedPolicy)>> {
    let mut parts: Vec<Vec<_>> = Vec::new();
    let mut load = Load::default();
    for (boundary, policy) in policies {
        let with = load.with(&policy);
        match parts.last_mut() {
            Some(part) if with.fits() => {
                part.push((boundary, policy));
                load = with;
            }
            _ => {
                load = Load::default().with(&policy);
                parts.push(vec![(boundary, policy)]);
            }
        }
    }
    parts
}

/// What policies weigh in an object.
#[derive(Clone, Debug, Default)]
struct Load {
    /// Bytes of literals.
    bytes: usize,
    /// Numbers of segments that prefixes have.
    depths: BTreeSet<usize>,
    /// Bytes of the variables that checks bring, by their name: each is there once.
    variables: BTreeMap<String, usize>,
    rules: BTreeMap<RuleName, RuleLoad>,
    /// The cost of asking which exemptions hold for a request.
    exempting: u64,
}

/// What the policies give one rule to do.
#[derive(Clone, Debug, Default)]
struct RuleLoad {
    rows: u64,
    /// The exemptions of each row, over all rows.
    exemptions: u64,
    /// Of those, the ones by image.
    image_exemptions: u64,
}

impl Load {
    /// Half of what the API server stores in one object, since its managed fields and annotations
    /// come on top.
    const MAX_BYTES: usize = 700 * 1024;

    /// Half of the cost that the API server allows one expression.
    const MAX_COST: u64 = 500_000;

    /// Half of the cost that the API server allows all expressions of an object together.
    const MAX_TOTAL: u64 = 5_000_000;

    /// The images of the Pod that the cost is estimated for, and the groups of the user.
    const IMAGES: u64 = 250;
    const GROUPS: u64 = 200;

    /// What a row costs that finds something in each of so many containers, or as many tolerations;
    /// and a variable that looks at each container.
    const LISTING_ROW: u64 = Self::IMAGES * 16;
    const VARIABLE: u64 = Self::IMAGES * 1_000;

    /// What a row costs that looks at the resources of each container.
    const CONTAINERS_ROW: u64 = Self::IMAGES * 60;

    fn with(&self, policy: &LinkedPolicy) -> Self {
        let mut load = self.clone();
        load.bytes += policy.bytes();
        load.depths.extend(policy.prefixes().map(segments));
        for check in policy.checks.iter().flat_map(|(_, checks)| checks) {
            for (name, expression) in &check.variables {
                // What is written short in them about doubles them.
                load.variables.insert(name.clone(), expression.len() * 2);
            }
        }
        for (rule, checks) in &policy.checks {
            let rows = checks.len() as u64;
            let exemptions = policy.exemptions.iter().filter(|e| e.rules.contains(rule));
            let by_image = exemptions.clone().filter(|e| e.images.is_some());
            let of_rule = load.rules.entry(*rule).or_default();
            of_rule.rows += rows;
            of_rule.exemptions += rows * exemptions.count() as u64;
            of_rule.image_exemptions += rows * by_image.count() as u64;
        }
        for exemption in &policy.exemptions {
            let length = |list: &Option<Vec<_>>| list.as_ref().map_or(0, Vec::len) as u64;
            load.exempting += 40 + length(&exemption.namespaces) + length(&exemption.users);
            if exemption.groups.is_some() {
                load.exempting += Self::GROUPS * (10 + length(&exemption.groups));
            }
        }
        load
    }

    fn fits(&self) -> bool {
        let costs = self.costs();
        self.bytes + self.variables.values().sum::<usize>() <= Self::MAX_BYTES
            && costs.iter().all(|cost| *cost <= Self::MAX_COST)
            && costs.iter().sum::<u64>() <= Self::MAX_TOTAL
    }

    /// Upper bounds of the costs of the expressions that grow with the policies, for a Pod whose
    /// every image breaks every rule, and every exemption but by image holds.
    ///
    /// The factors are above what `measure` in `tests/api_servers/cost.rs` shows on Kubernetes
    /// 1.30 with images of 253 characters: 335 for the candidates of an image at 8 depths; for each
    /// row and image 56, 77 and 106 at 1, 4 and 8 depths, 15 more where the rule has exemptions,
    /// and 70 for each that is by image; less than 120 for a row of labels; 22 to 31 for each
    /// group of the user and exemption with 16 groups. A variable of a check costs less than 1,000
    /// for each container, since `many_containers` in `tests/pod_security/limits.rs` has 1,000.
    fn costs(&self) -> Vec<u64> {
        let depths = self.depths.len() as u64;
        let candidates = Self::IMAGES * (30 + 45 * depths);
        let rows: u64 = self.rules.values().map(|rule| rule.rows).sum();
        let mut costs = vec![candidates, self.exempting, rows * 40];
        costs.extend(self.variables.iter().map(|_| Self::VARIABLE));
        for (rule, load) in &self.rules {
            let exempt = load.exemptions * 50;
            costs.push(match rule.logic().findings {
                Findings::Images(_) => {
                    let exempted = if load.exemptions > 0 { 20 } else { 0 };
                    let row = Self::IMAGES * (52 + 8 * depths + exempted);
                    let exempt_row = Self::IMAGES * (16 + 8 * depths);
                    load.rows * row + load.image_exemptions * exempt_row + exempt
                }
                Findings::Strings(_) | Findings::OfCheck => {
                    let row = match rule.logic().subject {
                        Subject::Labels => 120,
                        Subject::PodSpec => Self::LISTING_ROW,
                        Subject::Pod | Subject::PodResources => Self::CONTAINERS_ROW,
                    };
                    load.rows * row + exempt
                }
            });
        }
        costs
    }
}

impl LinkedPolicy {
    fn new(policy: &BoundaryPolicy, options: &Options) -> Self {
        let exemptions = policy.spec.exemptions.iter();
        Self {
            name: policy.name_any(),
            generation: policy.metadata.generation.unwrap_or_default(),
            checks: policy.spec.rules.checks(options.capabilities.version),
            exemptions: exemptions
                .filter(|exemption| {
                    exemption
                        .expires
                        .is_none_or(|expires| expires > options.now)
                })
                .cloned()
                .collect(),
        }
    }

    /// Every image prefix, as it is compared.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &str> {
        let checks = self.checks.iter().flat_map(|(_, checks)| checks);
        let exempted = self.exemptions.iter().filter_map(|e| e.images.as_ref());
        checks
            .flat_map(|check| &check.prefixes)
            .chain(exempted.flatten())
            .map(|prefix| trimmed(prefix))
    }

    /// How many bytes the policy takes in an object, and not many less.
    fn bytes(&self) -> usize {
        const PER_STRING: usize = 6;
        const PER_ROW: usize = 64;
        let literal = |text: &str| {
            let escaped = |c| match c {
                // CEL doubles a backslash, and JSON doubles both.
                '\\' => 4,
                '\'' => 3,
                '"' => 2,
                c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => 7,
                c => c.len_utf8(),
            };
            PER_STRING + text.chars().map(escaped).sum::<usize>()
        };
        let per_row = PER_ROW + literal(&self.name);
        let mut bytes = 0;
        for check in self.checks.iter().flat_map(|(_, checks)| checks) {
            let strings = check.columns.iter().chain(&check.prefixes);
            bytes += 2 * per_row + strings.map(|s| literal(s)).sum::<usize>();
        }
        for exemption in &self.exemptions {
            let lists = [
                &exemption.namespaces,
                &exemption.users,
                &exemption.groups,
                &exemption.images,
            ];
            let strings = lists.into_iter().flatten().flatten();
            bytes += 2 * per_row + exemption.rules.len() * 32;
            bytes += strings.map(|s| literal(s)).sum::<usize>();
        }
        bytes
    }
}

/// The number of segments of an image prefix.
pub(crate) fn segments(prefix: &str) -> usize {
    prefix.split('/').count()
}
