//! From policies to what each object holds.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use super::{Options, object_name};
use crate::api::{Action, BoundaryPolicy, Exemption};
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

/// Links `policies`, which are valid, as `options` say.
pub(crate) fn link(policies: &[&BoundaryPolicy], options: &Options) -> Vec<Linked> {
    let mut groups: BTreeMap<(Group, Action), Vec<(String, LinkedPolicy)>> = BTreeMap::new();
    for policy in policies {
        let boundary = policy.spec.boundary.clone();
        groups
            .entry((Group::of(&boundary), policy.spec.action))
            .or_default()
            .push((boundary, LinkedPolicy::new(policy, options)));
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
    /// Rows whose findings are images; those that list what else is in the pod spec; all others.
    image_rows: u64,
    listing_rows: u64,
    other_rows: u64,
    /// Bytes of the variables that checks bring, by their name: each is there once.
    expressions: BTreeMap<String, usize>,
    /// Exemptions over all rows: each is looked at for each row of its policy.
    exempted_rows: u64,
    /// Exemptions by image over all rows whose findings are images.
    exempted_image_rows: u64,
}

impl Load {
    /// Half of what the API server stores in one object, since its managed fields and annotations
    /// come on top.
    const MAX_BYTES: usize = 700 * 1024;

    /// Half of the cost that the API server allows one expression.
    const MAX_COST: u64 = 500_000;

    /// The images of the Pod that the cost is estimated for.
    const IMAGES: u64 = 250;

    /// What a row costs that finds something in each of so many containers, or as many tolerations.
    const LISTING_ROW: u64 = Self::IMAGES * 16;

    fn with(&self, policy: &LinkedPolicy) -> Self {
        let mut load = self.clone();
        load.bytes += policy.bytes();
        load.depths.extend(policy.prefixes().map(segments));
        for check in policy.checks.iter().flat_map(|(_, checks)| checks) {
            for (name, expression) in &check.variables {
                // What is written short in them about doubles them.
                load.expressions.insert(name.clone(), expression.len() * 2);
            }
        }
        for (rule, checks) in &policy.checks {
            let rows = checks.len() as u64;
            let exemptions = || policy.exemptions.iter().filter(|e| e.rules.contains(rule));
            load.exempted_rows += rows * exemptions().count() as u64;
            match rule.logic().findings {
                Findings::Images(_) => {
                    load.image_rows += rows;
                    let by_image = exemptions().filter(|e| e.images.is_some()).count() as u64;
                    load.exempted_image_rows += rows * by_image;
                }
                Findings::Strings(_) | Findings::OfCheck => match rule.logic().subject {
                    Subject::Labels => load.other_rows += rows,
                    Subject::PodSpec => load.listing_rows += rows,
                },
            }
        }
        load
    }

    fn fits(&self) -> bool {
        let bytes = self.bytes + self.expressions.values().sum::<usize>();
        bytes <= Self::MAX_BYTES && self.cost() <= Self::MAX_COST
    }

    /// An upper bound of the cost of the dearest expression, for a Pod whose every image breaks
    /// every rule. The factors are estimates; they are not measured yet.
    fn cost(&self) -> u64 {
        let cuts = 1 + self.depths.len() as u64;
        let image_row = Self::IMAGES * (cuts * 9 + 20);
        let exempted_image_row = Self::IMAGES * (cuts * 25 + 10);
        self.image_rows * image_row
            + self.exempted_image_rows * exempted_image_row
            + self.other_rows * 100
            + self.listing_rows * Self::LISTING_ROW
            + self.exempted_rows * 150
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

    /// About how many bytes the policy takes in an object. Strings are counted twice, for what
    /// escaping may add in CEL; nothing in them is escaped again in JSON but `\`.
    fn bytes(&self) -> usize {
        const PER_STRING: usize = 12;
        const PER_ROW: usize = 48;
        let mut bytes = self.name.len() * 2;
        for check in self.checks.iter().flat_map(|(_, checks)| checks) {
            let strings = check.columns.iter().chain(&check.prefixes);
            bytes += PER_ROW + self.name.len();
            bytes += strings.map(|s| s.len() + PER_STRING).sum::<usize>();
        }
        for exemption in &self.exemptions {
            let lists = [
                &exemption.namespaces,
                &exemption.users,
                &exemption.groups,
                &exemption.images,
            ];
            let strings = lists.into_iter().flatten().flatten();
            bytes += PER_ROW * 2 + self.name.len() + exemption.rules.len() * 32;
            bytes += strings.map(|s| s.len() * 2 + PER_STRING).sum::<usize>();
        }
        bytes
    }
}

/// The number of segments of an image prefix.
pub(crate) fn segments(prefix: &str) -> usize {
    prefix.split('/').count()
}
