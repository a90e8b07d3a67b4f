//! From what an object holds to the object: CEL whose logic is the same for every policy, and
//! literal tables with the values of the policies.
//!
//! A *row* is a list of strings: policy, rule, and the values of one check. A *finding* is a row and
//! after it what was found to break it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::ObjectMeta;

use super::link::{Linked, LinkedPolicy, segments};
use super::mutate::IS_MIRROR;
use super::untyped::untype;
use super::{
    AdmissionObject, MANAGED_BY, Options, POLICIES_ANNOTATION, PROBE_LABEL, PROBE_NAMESPACE,
    PROBE_OBJECT_ANNOTATION, PROBE_RULE_ANNOTATION, Version, cel, names,
};
use crate::api::{Action, Exemption};
use crate::rules::{Check, Findings, RuleName, Subject, trimmed};

/// The longest table in one expression, in characters. The API server takes 100,000.
const MAX_TABLE: usize = 60_000;

/// A message lists so many sentences and counts the rest.
const MAX_SENTENCES: usize = 8;

/// The room for the sentences of a refusal, in bytes. The API server takes 5,120; the rest is for
/// ` and N more.`.
const MAX_DENIAL_BYTES: usize = 5_090;

/// The room for the sentences of all warnings of a boundary, in characters.
const MAX_WARNING_CHARACTERS: usize = 3_800;

/// All warnings of an answer, in characters; beyond, the API server cuts each to 256.
const MAX_WARNINGS: usize = 4_096;

/// The length of what the API server puts before a warning, without the two names in it.
const WARNING_WORDS: usize =
    "Validation failed for ValidatingAdmissionPolicy '' with binding '': ".len();

/// The room for ` and N more.`.
const MORE_CHARACTERS: usize = 24;

/// What a user wrote is cut after so many characters.
const MAX_SHOWN: usize = 300;

/// Emits the object for `linked`.
pub(crate) fn emit(linked: &Linked, options: &Options) -> AdmissionObject {
    let boundaries: BTreeSet<String> = linked.boundaries.keys().cloned().collect();
    let selector = namespace_selector(&boundaries, &options.boundary_label);
    let listed = boundaries.iter().cloned().collect::<Vec<_>>().join(", ");
    let static_message = format!("The boundary policies of {listed} deny this object.");

    let mut policy = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(MatchResources {
            resource_rules: Some(checked_resources(resizes(linked, options))),
            ..matching(selector.clone())
        }),
        match_conditions: Some(vec![MatchCondition {
            name: "created-or-changed".to_owned(),
            expression: CREATED_OR_CHANGED.to_owned(),
        }]),
        variables: Some(Variables::emit(linked, options)),
        validations: Some(vec![Validation {
            expression: format!(
                "variables.denied.size() == 0 || {}",
                asks_another(&linked.name)
            ),
            message: Some(static_message),
            message_expression: Some(message_expression()),
            reason: Some("Forbidden".to_owned()),
        }]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    let binding = ValidatingAdmissionPolicyBindingSpec {
        policy_name: linked.name.clone(),
        validation_actions: vec![linked.action.as_str().to_owned()],
        match_resources: Some(matching(selector)),
        ..ValidatingAdmissionPolicyBindingSpec::default()
    };

    untype(&mut policy);
    let revision = revision(&policy, &binding);
    if let Some(validations) = &mut policy.validations {
        // Only the first validation that fails is shown, so this one must stand first.
        validations.insert(0, revision_validation(&linked.name, &listed, &revision));
    }

    let policies: BTreeMap<_, _> = linked
        .boundaries
        .values()
        .flatten()
        .map(|policy| (policy.name.clone(), policy.generation))
        .collect();
    let rules = (linked.boundaries.values().flatten())
        .map(|policy| {
            let rules = policy.checks.iter().map(|(rule, _)| *rule).collect();
            (policy.name.clone(), rules)
        })
        .collect();
    let metadata = metadata(linked, &boundaries, &policies);
    AdmissionObject {
        rules,
        name: linked.name.clone(),
        boundaries,
        action: linked.action,
        policies,
        revision,
        policy: ValidatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(policy),
            status: None,
        },
        binding: ValidatingAdmissionPolicyBinding {
            metadata,
            spec: binding,
        },
    }
}

/// Bookkeeping by controllers must pass even on objects that break a rule, so only what a rule
/// looks at counts as a change.
const CREATED_OR_CHANGED: &str = "request.operation == 'CREATE' || \
    object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || \
    (object.kind == 'Pod' ? dyn(object).spec != dyn(oldObject).spec : \
    object.kind == 'CronJob' ? dyn(object).spec.jobTemplate != dyn(oldObject).spec.jobTemplate : \
    dyn(object).spec.template != dyn(oldObject).spec.template)";

const POD_SPEC: &str = "object.kind == 'Pod' ? dyn(object).spec : \
    object.kind == 'CronJob' ? dyn(object).spec.jobTemplate.spec.template.spec : \
    dyn(object).spec.template.spec";

const IMAGES: &str = "(variables.podSpec.containers + \
    variables.podSpec.?initContainers.orValue([]) + \
    variables.podSpec.?ephemeralContainers.orValue([])).map(c, c.?image.orValue('')) + \
    variables.podSpec.?volumes.orValue([]).map(v, v.?image.?reference.orValue('')).filter(i, i != '')";

/// On a Pod a rule looks only at what changed: operators move labels on running Pods.
const CHECKS_LABELS: &str = "object.kind != 'Pod' || request.operation == 'CREATE' || \
    object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({})";

const CHECKS_POD_SPEC: &str = "object.kind != 'Pod' || request.operation == 'CREATE' || \
    dyn(object).spec != dyn(oldObject).spec";

/// Only a Pod itself, and not a debug container that is added to it: that has no resources, and what
/// the Pod has was judged when it was created.
const CHECKS_POD: &str = "object.kind == 'Pod' && request.?subResource.orValue('') in SUBRESOURCES && \
    (request.operation == 'CREATE' || dyn(object).spec != dyn(oldObject).spec)";

const CONTAINERS: &str =
    "variables.podSpec.containers + variables.podSpec.?initContainers.orValue([])";

/// Whether an object looks at Pods that are resized.
fn resizes(linked: &Linked, options: &Options) -> bool {
    let policies = linked.boundaries.values().flatten();
    options.capabilities.version >= Version::FIRST_RESIZING
        && policies
            .flat_map(|policy| &policy.checks)
            .any(|(rule, _)| rule.logic().subject == Subject::PodResources)
}

/// The variables of an object, in the order in which they use each other.
struct Variables {
    emitted: Vec<Variable>,
}

impl Variables {
    fn emit(linked: &Linked, options: &Options) -> Vec<Variable> {
        let content = Content::of(linked);
        let mut variables = Self {
            emitted: Vec::new(),
        };
        variables.shared(&content, resizes(linked, options), options);
        let exemptions = variables.exemptions(&content);
        for (&rule, rows) in &content.rows {
            variables.rule(rule, rows, &exemptions);
        }
        variables.order(&content);
        variables.sentences(&content);
        variables.add("total", "variables.denied.map(d, d.size()).sum()");
        variables.add("shown", shown(linked));
        variables.emitted
    }

    fn add(&mut self, name: impl Into<String>, expression: impl Into<String>) {
        self.emitted.push(Variable {
            name: name.into(),
            expression: expression.into(),
        });
    }

    /// What several rules read.
    fn shared(&mut self, content: &Content, resizes: bool, options: &Options) {
        let label = cel::string(&options.boundary_label);
        self.add(
            "boundary",
            format!("namespaceObject.metadata.?labels[?{label}].orValue('')"),
        );
        if content.looks_at(Subject::Labels) {
            self.add("checksLabels", CHECKS_LABELS);
            self.add("labels", "object.metadata.?labels.orValue({})");
        }
        if content.looks_at(Subject::PodSpec) {
            let resizing = "request.?subResource.orValue('') != 'resize' && ";
            let checks = if resizes {
                format!("{resizing}({CHECKS_POD_SPEC})")
            } else {
                CHECKS_POD_SPEC.to_owned()
            };
            self.add("checksPodSpec", checks);
        }
        for (subject, name, sub_resources) in [
            (Subject::Pod, "checksPod", &[""][..]),
            (Subject::PodResources, "checksPodResources", &["", "resize"]),
        ] {
            if content.looks_at(subject) {
                let checks = CHECKS_POD.replace("SUBRESOURCES", &cel::strings(sub_resources));
                self.add(name, format!("{checks} && !({IS_MIRROR})"));
            }
        }
        if content.looks_at(Subject::Pod)
            || content.looks_at(Subject::PodResources)
            || content.looks_at(Subject::PodSpec)
        {
            self.add("podSpec", POD_SPEC);
        }
        if content.looks_at(Subject::Pod) || content.looks_at(Subject::PodResources) {
            self.add("podContainers", CONTAINERS);
        }
        if content.finds_images() {
            self.add("images", IMAGES);
            self.add("candidates", candidates(&content.depths));
        }
    }

    /// The exemptions: for each whether it holds for the request, the images that it is about, and
    /// which of them each policy has. Whether one holds is asked once and not for every row, since
    /// that looks through lists. Returns the expression that gives, as maps of images, those that
    /// hold for the row `r`.
    fn exemptions(&mut self, content: &Content) -> BTreeMap<RuleName, String> {
        let exemptions = content.exemptions.iter();
        let (literals, images): (Vec<_>, Vec<_>) = exemptions
            .clone()
            .map(|(_, exemption)| (exemption_literal(exemption), exempt_images(exemption)))
            .unzip();
        let own: Vec<_> = exemptions
            .enumerate()
            .map(|(index, (policy, _))| (policy.clone(), index.to_string()))
            .collect();
        let Some(own) = self.by_policy("exemptionsOf", &own) else {
            return BTreeMap::new();
        };
        let all = self.list("exemptions", &literals);
        let images = self.list("exemptImages", &images);
        self.add(
            "exempting",
            format!(
                "variables.{all}.map(e, \
                 (e[1].size() == 0 || request.namespace in e[1]) && \
                 (e[2].size() + e[3].size() == 0 || request.userInfo.username in e[2] || \
                 request.userInfo.?groups.orValue([]).exists(g, g in e[3])))"
            ),
        );
        let holding = format!(
            "({own}).filter(i, variables.exempting[i] && r[1] in variables.{all}[i][0])\
             .map(i, variables.{images}[i])"
        );
        let rules = content.exempted_rules.iter();
        rules.map(|&rule| (rule, holding.clone())).collect()
    }

    /// A table of lists by policy. Returns the expression that gives the list for the row `r`.
    fn by_policy(&mut self, name: &str, entries: &[(String, String)]) -> Option<String> {
        let mut lookups = Vec::new();
        for (index, chunk) in chunks(entries, |(key, value)| key.len() + value.len())
            .into_iter()
            .enumerate()
        {
            let mut lists: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (policy, item) in chunk {
                lists.entry(policy.clone()).or_default().push(item.clone());
            }
            let lists = lists
                .into_iter()
                .map(|(policy, items)| (policy, cel::list(items)));
            let name = numbered(name, index);
            self.add(&name, cel::map(lists));
            lookups.push(format!("variables.{name}[?r[0]].orValue([])"));
        }
        (!lookups.is_empty()).then(|| lookups.join(" + "))
    }

    /// The rows of a rule, and its findings: for each row a list.
    fn rule(&mut self, rule: RuleName, rows: &Rows, exemptions: &BTreeMap<RuleName, String>) {
        let logic = rule.logic();
        let name = variable_name(rule);
        let table = self.rows(&format!("{name}Rows"), rows);
        for (name, expression) in logic.variables {
            self.add(*name, shortening(expression));
        }

        let exemption = exemptions.get(&rule);
        let mut findings = match logic.findings {
            Findings::Strings(expression) => {
                format!("({}).map(f, r + [f])", shortening(expression))
            }
            Findings::OfCheck => {
                let variables = rows.iter().flat_map(|(_, row)| &row.check.variables);
                let mut added = BTreeSet::new();
                for (name, expression) in variables {
                    if added.insert(name) {
                        self.add(name, shortening(expression));
                    }
                }
                findings_of_checks(rows)
            }
            Findings::Images(expression) => {
                let exempt =
                    exemption.map_or("", |_| ".filter(c, !exempt.exists(m, c.exists(p, p in m)))");
                format!("{expression}{exempt}.map(c, r + [c[0]])")
            }
        };
        if let Some(prefixes) = self.prefixes(&format!("{name}Prefixes"), rows) {
            findings = format!("[{prefixes}].map(prefixes, {findings})[0]");
        }
        if let Some(holding) = exemption {
            findings = format!(
                "[{holding}].map(exempt, exempt.exists(m, m.size() == 0) ? [] : {findings})[0]"
            );
        }
        let checks = match logic.subject {
            Subject::Labels => "checksLabels",
            Subject::PodSpec => "checksPodSpec",
            Subject::Pod => "checksPod",
            Subject::PodResources => "checksPodResources",
        };
        self.add(
            name,
            format!("variables.{table}.map(r, variables.{checks} ? {findings} : [])"),
        );
    }

    /// The rows by boundary, in one variable. Returns its name.
    fn rows(&mut self, name: &str, rows: &Rows) -> String {
        let rows: Vec<_> = rows
            .iter()
            .map(|(boundary, row)| (boundary.clone(), row.literal()))
            .collect();
        let chunks = chunks(&rows, |(_, row)| row.len());
        let tables: Vec<String> = chunks
            .iter()
            .map(|chunk| {
                let mut lists: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for (boundary, row) in *chunk {
                    lists.entry(boundary.clone()).or_default().push(row.clone());
                }
                let lists = lists
                    .into_iter()
                    .map(|(boundary, rows)| (boundary, cel::list(rows)));
                format!("{}[?variables.boundary].orValue([])", cel::map(lists))
            })
            .collect();
        self.joined(name, tables)
    }

    /// A list in as many variables as it needs. Returns the name of the one that has all of it.
    fn list(&mut self, name: &str, items: &[String]) -> String {
        let chunks = chunks(items, String::len);
        let lists = chunks.iter().map(|chunk| cel::list(chunk.iter().cloned()));
        self.joined(name, lists.collect())
    }

    /// Lists as one list. Returns the name of its variable.
    fn joined(&mut self, name: &str, mut lists: Vec<String>) -> String {
        if lists.len() == 1 {
            self.add(name, lists.remove(0));
            return name.to_owned();
        }
        let mut names = Vec::new();
        for (index, list) in lists.into_iter().enumerate() {
            let name = numbered(name, index);
            self.add(&name, list);
            names.push(format!("variables.{name}"));
        }
        let all = format!("{name}All");
        self.add(&all, names.join(" + "));
        all
    }

    /// The prefixes of the rows as maps by policy. Returns the expression that gives those of the
    /// row `r`. A key is found in a map at once, in a list only by looking at every item.
    fn prefixes(&mut self, name: &str, rows: &Rows) -> Option<String> {
        let entries: Vec<_> = rows
            .iter()
            .filter(|(_, row)| !row.check.prefixes.is_empty())
            .map(|(_, row)| {
                let prefixes: BTreeSet<_> = row.check.prefixes.iter().cloned().collect();
                let prefixes = prefixes
                    .into_iter()
                    .map(|prefix| (prefix, "true".to_owned()));
                (row.policy.clone(), cel::map(prefixes))
            })
            .collect();
        if entries.is_empty() {
            return None;
        }
        let mut lookup = String::from("{}");
        let chunks = chunks(&entries, |(key, value)| key.len() + value.len());
        for (index, chunk) in chunks.into_iter().enumerate() {
            let name = numbered(name, index);
            self.add(&name, cel::map(chunk.iter().cloned()));
            lookup = format!("variables.{name}[?r[0]].orValue({lookup})");
        }
        Some(lookup)
    }

    /// Puts the findings of all rules in the order of messages: policy, rule, container. `order`
    /// has for each list of findings the index of its rule and the index of its row.
    fn order(&mut self, content: &Content) {
        let mut order: BTreeMap<&str, Vec<(&str, usize, usize)>> = BTreeMap::new();
        for (rule, rows) in content.rows.values().enumerate() {
            let mut next: BTreeMap<&str, usize> = BTreeMap::new();
            for (boundary, row) in rows {
                let index = next.entry(boundary).or_default();
                let order = order.entry(boundary).or_default();
                order.push((row.policy.as_str(), rule, *index));
                *index += 1;
            }
        }
        let order = order.into_iter().map(|(boundary, mut entries)| {
            entries.sort_unstable();
            let entries = entries
                .into_iter()
                .map(|(_, rule, row)| format!("[{rule}, {row}]"));
            (boundary.to_owned(), cel::list(entries))
        });
        self.add(
            "order",
            format!("{}[?variables.boundary].orValue([])", cel::map(order)),
        );
        self.add("probed", probed());
        // `dyn`, since the type checker finds lists of strings and of `dyn` among them.
        let rules = content.rows.keys();
        let findings = rules.map(|&rule| format!("dyn(variables.{})", variable_name(rule)));
        self.add(
            "denied",
            format!(
                "variables.order.map(o, {}[o[0]][o[1]]).filter(d, d.size() > 0 && \
                 (variables.probed == '' || variables.probed == d[0][0] + '/' + d[0][1]))",
                cel::list(findings)
            ),
        );
    }

    /// The first sentences; enough of them, and not many more. Between sentences stands a line
    /// break, since CEL of 1.30 can't flatten lists; in sentences there is none.
    fn sentences(&mut self, content: &Content) {
        let mut rules = content.rows.keys().rev();
        let Some(last) = rules.next() else { return };
        let sentence = rules.fold(sentence(*last), |rest, &rule| {
            let name = cel::string(rule.as_str());
            format!("v[1] == {name} ? {} : {rest}", sentence(rule))
        });
        let finding = format!("\"Policy '\" + v[0] + \"' (\" + v[1] + ') ' + ({sentence})");
        let findings = format!("{}.map(v, {finding}).join('\\n')", first("d"));
        self.add(
            "sentences",
            format!(
                "{}.map(d, {findings}).join('\\n').split('\\n')",
                first("variables.denied")
            ),
        );
    }
}

/// Rows of a rule with their boundaries, sorted by boundary and policy.
type Rows = Vec<(String, Row)>;

/// One check of a policy.
struct Row {
    policy: String,
    rule: RuleName,
    check: Check,
}

impl Row {
    fn literal(&self) -> String {
        let columns = self.check.columns.iter().map(String::as_str);
        cel::strings(
            [self.policy.as_str(), self.rule.as_str()]
                .into_iter()
                .chain(columns),
        )
    }
}

/// The content of an object, rule by rule.
struct Content {
    rows: BTreeMap<RuleName, Rows>,
    /// With their policies.
    exemptions: Vec<(String, Exemption)>,
    exempted_rules: BTreeSet<RuleName>,
    depths: BTreeSet<usize>,
}

impl Content {
    fn of(linked: &Linked) -> Self {
        let mut content = Self {
            rows: BTreeMap::new(),
            exemptions: Vec::new(),
            exempted_rules: BTreeSet::new(),
            depths: BTreeSet::new(),
        };
        for (boundary, policies) in &linked.boundaries {
            for policy in policies {
                content.add(boundary, policy);
            }
        }
        content
    }

    fn add(&mut self, boundary: &str, policy: &LinkedPolicy) {
        self.depths.extend(policy.prefixes().map(segments));
        for (rule, checks) in &policy.checks {
            let rows = self.rows.entry(*rule).or_default();
            for check in checks {
                let row = Row {
                    policy: policy.name.clone(),
                    rule: *rule,
                    check: check.clone(),
                };
                rows.push((boundary.to_owned(), row));
            }
            let mut exempting = policy.exemptions.iter();
            if exempting.any(|exemption| exemption.rules.contains(rule)) {
                self.exempted_rules.insert(*rule);
            }
        }
        for exemption in &policy.exemptions {
            self.exemptions
                .push((policy.name.clone(), exemption.clone()));
        }
    }

    fn looks_at(&self, subject: Subject) -> bool {
        self.rows.keys().any(|rule| rule.logic().subject == subject)
    }

    fn finds_images(&self) -> bool {
        let mut rules = self.rows.keys();
        rules.any(|rule| matches!(rule.logic().findings, Findings::Images(_)))
    }
}

/// An exemption as `[rules, namespaces, users, groups]`.
fn exemption_literal(exemption: &Exemption) -> String {
    let rules: BTreeSet<_> = exemption.rules.iter().map(|rule| rule.as_str()).collect();
    let items = |list: &Option<Vec<String>>| cel::strings(list.iter().flatten());
    cel::list([
        cel::strings(rules),
        items(&exemption.namespaces),
        items(&exemption.users),
        items(&exemption.groups),
    ])
}

/// The images of an exemption, as a map with each as a key; empty: it is about any.
fn exempt_images(exemption: &Exemption) -> String {
    let images = exemption.images.iter().flatten();
    let images: BTreeSet<_> = images.map(|image| trimmed(image).to_owned()).collect();
    cel::map(images.into_iter().map(|image| (image, "true".to_owned())))
}

/// Each image with the prefixes of it that can be listed: itself, and itself cut after as many
/// segments as listed prefixes have. Comparing those is much cheaper than trying every prefix.
fn candidates(depths: &BTreeSet<usize>) -> String {
    let mut candidate = String::from("[i");
    for depth in depths {
        let limit = depth + 1;
        let _ = write!(
            candidate,
            ", [i.split('/', {limit})].map(s, s.size() > {depth} ? \
             i.substring(0, i.size() - s[{depth}].size() - 1) : i)[0]"
        );
    }
    format!("variables.images.map(i, {candidate}])")
}

/// What the check of the row `r` finds.
fn findings_of_checks(rows: &Rows) -> String {
    let checks = rows.iter().map(|(_, row)| &row.check);
    let distinct: BTreeMap<_, _> = checks
        .filter_map(|check| Some((check.columns.first()?, &check.findings)))
        .collect();
    let chosen = distinct
        .into_iter()
        .fold("[]".to_owned(), |others, (column, findings)| {
            let column = cel::string(column);
            format!("r[2] == {column} ? {} : {others}", shortening(findings))
        });
    format!("({chosen})")
}

/// The sentence of a rule over a finding `v`.
fn sentence(rule: RuleName) -> String {
    shortening(rule.logic().sentence)
}

/// `expression` with every `SHORT(…)` in it written out.
pub(super) fn shortening(expression: &str) -> String {
    let mut parts = expression.split("SHORT(");
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (argument, after) = part.split_once(')').unwrap_or((part, ""));
        // Writing to a String can't fail.
        let _ = write!(
            written,
            "({argument}.size() > {MAX_SHOWN} ? {argument}.substring(0, {MAX_SHOWN}) + '…' : \
             {argument}).replace('\\n', ' ').replace('\\r', ' '){after}"
        );
    }
    written
}

/// The message: as many of the sentences as are shown, and how many more there are.
fn message_expression() -> String {
    let text = first_sentences("variables.shown");
    format!(
        "variables.denied.size() == 0 ? '' : {text} + \
         (variables.total > variables.shown ? \
         ' and ' + string(variables.total - variables.shown) + ' more.' : '')"
    )
}

/// How many sentences there is room for; one in any case.
fn shown(linked: &Linked) -> String {
    let counts = cel::list((1..=MAX_SENTENCES).rev().map(|count| count.to_string()));
    let text = first_sentences("n");
    let fits = match linked.action {
        Action::Warn => {
            // What the API server puts before each warning counts as well.
            let before = WARNING_WORDS + 2 * linked.name.chars().count();
            let room = (MAX_WARNING_CHARACTERS / linked.parts)
                .min((MAX_WARNINGS / linked.parts).saturating_sub(before))
                .saturating_sub(MORE_CHARACTERS);
            format!("{text}.size() <= {room}")
        }
        Action::Deny | Action::Audit => format!("bytes({text}).size() <= {MAX_DENIAL_BYTES}"),
    };
    format!("({counts}.filter(n, n <= variables.sentences.size() && {fits}) + [1])[0]")
}

/// The first `count` sentences, a space between.
fn first_sentences(count: &str) -> String {
    let indexes = cel::list((0..MAX_SENTENCES).map(|index| index.to_string()));
    format!("{indexes}.filter(k, k < {count}).map(k, variables.sentences[k]).join(' ')")
}

/// The first items of a list: as many as a message has sentences.
pub(crate) fn first(list: &str) -> String {
    let indexes = cel::list((0..MAX_SENTENCES).map(|index| index.to_string()));
    format!("{indexes}.filter(k, k < {list}.size()).map(k, {list}[k])")
}

/// Runs of entries whose sizes stay under [`MAX_TABLE`] together.
fn chunks<T>(entries: &[T], size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut chunks = Vec::new();
    let (mut start, mut total) = (0, 0);
    for (index, entry) in entries.iter().enumerate() {
        let size = size(entry) + 8;
        if total + size > MAX_TABLE && index > start {
            chunks.push(&entries[start..index]);
            (start, total) = (index, 0);
        }
        total += size;
    }
    if start < entries.len() {
        chunks.push(&entries[start..]);
    }
    chunks
}

/// `name` for the first of several variables, `name2` for the second.
fn numbered(name: &str, index: usize) -> String {
    match index {
        0 => name.to_owned(),
        _ => format!("{name}{}", index + 1),
    }
}

fn variable_name(rule: RuleName) -> String {
    let (initial, rest) = rule.as_str().split_at(1);
    initial.to_lowercase() + rest
}

/// Every workload kind, and what else makes a node pull an image; and Pods that are resized, if
/// those are looked at.
fn checked_resources(resizes: bool) -> Vec<NamedRuleWithOperations> {
    let mut pods = vec!["pods", "pods/ephemeralcontainers"];
    pods.extend(resizes.then_some("pods/resize"));
    [
        ("", pods.as_slice()),
        (
            "apps",
            &["deployments", "replicasets", "statefulsets", "daemonsets"],
        ),
        ("batch", &["jobs", "cronjobs"]),
    ]
    .into_iter()
    .map(|(group, resources)| NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec!["v1".to_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(
            resources
                .iter()
                .map(|&resource| resource.to_owned())
                .collect(),
        ),
        scope: Some("Namespaced".to_owned()),
        ..NamedRuleWithOperations::default()
    })
    .collect()
}

/// The defaults of the API server stand here too, so that what it stores equals what is emitted.
pub(super) fn matching(namespaces: LabelSelector) -> MatchResources {
    MatchResources {
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(namespaces),
        object_selector: Some(LabelSelector::default()),
        ..MatchResources::default()
    }
}

pub(super) fn namespace_selector(boundaries: &BTreeSet<String>, label: &str) -> LabelSelector {
    match boundaries.first() {
        Some(boundary) if boundaries.len() == 1 => LabelSelector {
            match_labels: Some([(label.to_owned(), boundary.clone())].into()),
            ..LabelSelector::default()
        },
        _ => LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: label.to_owned(),
                operator: "In".to_owned(),
                values: Some(boundaries.iter().cloned().collect()),
            }]),
            ..LabelSelector::default()
        },
    }
}

pub(super) fn revision(
    policy: &ValidatingAdmissionPolicySpec,
    binding: &ValidatingAdmissionPolicyBindingSpec,
) -> String {
    // Serializing these types can't fail: their maps have strings as keys.
    let bytes = serde_json::to_vec(&(policy, binding)).unwrap_or_default();
    names::hash(&bytes)
}

/// The one rule of a policy that a probe is about, as `POLICY/RULE`; empty: all. A message shows only the first sentences, and
/// of several objects that refuse the API server shows one, so a probe which breaks many rules would
/// not show each.
fn probed() -> String {
    format!(
        "request.namespace == {} ? object.metadata.?annotations[?{}].orValue('') : ''",
        cel::string(PROBE_NAMESPACE),
        cel::string(PROBE_RULE_ANNOTATION)
    )
}

/// Answers the probe with the revision that the API server acts on.
pub(super) fn revision_validation(name: &str, boundaries: &str, revision: &str) -> Validation {
    Validation {
        expression: format!(
            "!(request.namespace == {} && object.metadata.?labels[?{}].orValue('') == 'revision') \
             || {}",
            cel::string(PROBE_NAMESPACE),
            cel::string(PROBE_LABEL),
            asks_another(name),
        ),
        message: Some(format!("boundary {boundaries} revision {revision}")),
        reason: Some("Forbidden".to_owned()),
        ..Validation::default()
    }
}

/// Whether the request is a probe of another object than that of the name.
pub(super) fn asks_another(name: &str) -> String {
    let name = cel::string(name);
    format!(
        "(request.namespace == {} && \
         object.metadata.?annotations[?{}].orValue({name}) != {name})",
        cel::string(PROBE_NAMESPACE),
        cel::string(PROBE_OBJECT_ANNOTATION),
    )
}

fn metadata(
    linked: &Linked,
    boundaries: &BTreeSet<String>,
    policies: &BTreeMap<String, i64>,
) -> ObjectMeta {
    let mut labels = BTreeMap::from([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())]);
    if let Some(boundary) = boundaries.first().filter(|_| boundaries.len() == 1) {
        labels.insert(crate::api::BOUNDARY_LABEL.to_owned(), boundary.clone());
    }
    let policies = serde_json::to_string(policies).unwrap_or_default();
    ObjectMeta {
        name: Some(linked.name.clone()),
        labels: Some(labels),
        annotations: Some([(POLICIES_ANNOTATION.to_owned(), policies)].into()),
        ..ObjectMeta::default()
    }
}
