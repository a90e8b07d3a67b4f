//! Verdicts about resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use json_patch::Patch;
use serde::Serialize;
use serde_json::Value;

use super::diff;
use super::input::{Diagnostics, Document};
use super::policies::Namespaces;
use crate::api::{Action, BOUNDARY_LABEL, BoundaryPolicy, PlanTarget};
use crate::compile::{Capabilities, Options, Version, compile};
use crate::evaluate::{Evaluator, Kind, Mutated, Mutator, ObjectRequest, Operation};
use crate::plans::Catalog;

/// What becomes of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It keeps every rule.
    Allowed,
    /// It is refused.
    Denied,
    /// It is admitted with a warning.
    Warned,
    /// It is admitted with an entry in the audit log.
    Audited,
    /// No policy looks at it.
    NotChecked,
    /// It can't be told here.
    Unsupported,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 6] = [
        Self::Allowed,
        Self::Denied,
        Self::Warned,
        Self::Audited,
        Self::NotChecked,
        Self::Unsupported,
    ];

    /// The word that stands in the output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Warned => "warned",
            Self::Audited => "audited",
            Self::NotChecked => "not-checked",
            Self::Unsupported => "unsupported",
        }
    }
}

// By hand: a derived enum schema with documented variants is a `oneOf`, which names no allowed words.
impl schemars::JsonSchema for Verdict {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Verdict".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let verdicts = Self::ALL.map(Self::as_str);
        schemars::json_schema!({"type": "string", "enum": verdicts})
    }
}

/// The verdict about one resource, as it stands in the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    /// The file of the resource.
    pub file: String,
    /// The document in the file, counted from 1.
    pub document: usize,
    /// Its API group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; none for a kind that is not checked and that names none.
    pub namespace: Option<String>,
    /// Its name, or what its name begins with; none where it has neither.
    pub name: Option<String>,
    /// `CREATE` or `UPDATE`.
    pub operation: &'static str,
    /// What becomes of it.
    pub verdict: Verdict,
    /// What the policies say, or why it is not checked.
    pub messages: Vec<String>,
    /// What the policies change in it; not there where they change nothing.
    #[serde(flatten)]
    pub change: Option<Change>,
}

/// What policies change in a resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What they change, from what it would be stored as without them.
    pub patch: Patch,
    /// A line for each field that they change.
    #[serde(skip)]
    pub lines: Vec<String>,
    /// The resource as it is then.
    #[serde(skip)]
    pub after: Value,
}

impl Change {
    fn of(mutated: Mutated) -> Option<Self> {
        let patch = mutated.patch();
        (!patch.is_empty()).then(|| Self {
            patch,
            lines: diff::lines(&mutated.before, &mutated.after),
            after: mutated.after,
        })
    }
}

/// Who asks, and where.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker {
    /// The boundary of namespaces that are not given.
    pub(super) boundary: Option<String>,
    pub(super) user: String,
    pub(super) groups: Vec<String>,
}

impl Asker {
    /// The groups, with those that the API server itself puts every such user into.
    fn all_groups(&self) -> Vec<String> {
        let mut groups: BTreeSet<String> = self.groups.iter().cloned().collect();
        groups.insert("system:authenticated".to_owned());
        if let Some((namespace, _)) = (self.user.strip_prefix("system:serviceaccount:"))
            .and_then(|account| account.split_once(':'))
        {
            groups.insert("system:serviceaccounts".to_owned());
            groups.insert(format!("system:serviceaccounts:{namespace}"));
        }
        groups.into_iter().collect()
    }
}

/// Policies, ready to judge resources.
pub(super) struct Judge {
    /// What can't even be read by the evaluation is unsupported for every resource.
    evaluator: Result<(Mutator, Evaluator), String>,
    boundaries: BTreeSet<String>,
    namespaces: Namespaces,
    catalog: Arc<Catalog>,
}

/// What the API calls a kind of objects that is checked.
struct Checked {
    group: String,
    version: String,
    resource: String,
}

impl Judge {
    pub(super) fn new(
        policies: &BTreeMap<String, BoundaryPolicy>,
        catalog: Arc<Catalog>,
        namespaces: Namespaces,
        now: Timestamp,
    ) -> Self {
        let mut options = Options::new(Capabilities::of(NEWEST), now);
        options.catalog = catalog.clone();
        let compilation = compile(policies.values(), &options);
        // Policies were validated when they were read, so this says nothing; if it ever does, no
        // verdict can be trusted.
        let evaluator = match compilation.problems.first() {
            None => Mutator::new(&compilation.mutations)
                .and_then(|mutator| Ok((mutator, Evaluator::new(&compilation.objects)?)))
                .map_err(|error| error.to_string()),
            Some(problem) => Err(format!("Policy '{}' can't be compiled.", problem.policy)),
        };
        Self {
            evaluator,
            boundaries: policies.values().map(|p| p.spec.boundary.clone()).collect(),
            namespaces,
            catalog,
        }
    }

    /// The kind of an object, if it is checked.
    fn checked(&self, document: &Document) -> Option<Checked> {
        if let Some(kind) = Kind::of(&document.value) {
            return Some(Checked {
                group: kind.group().to_owned(),
                version: "v1".to_owned(),
                resource: kind.plural().to_owned(),
            });
        }
        let (_, version) = document.text("/apiVersion").split_once('/')?;
        let listed = |v: &String| v == version || v == "*";
        let mut targets = self.targets(document);
        let target = targets.find(|target| target.versions.iter().any(listed))?;
        Some(Checked {
            group: target.group.clone(),
            version: version.to_owned(),
            resource: target.resource.clone(),
        })
    }

    /// The targets that the kind of an object is, in whichever version.
    fn targets(&self, document: &Document) -> impl Iterator<Item = &PlanTarget> {
        let (kind, api_version) = (document.text("/kind"), document.text("/apiVersion"));
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let types = self.catalog.iter().filter(|(_, spec)| spec.checked);
        types
            .flat_map(|(_, spec)| &spec.targets)
            .filter(move |target| target.group == group && target.kind == kind)
    }

    /// The verdict about `new`, which replaces `old` where there is one.
    pub(super) fn judge(&self, new: &Document, old: Option<&Document>, asker: &Asker) -> Judgement {
        let kind = self.checked(new);
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let operation = match old {
            Some(_) => Operation::Update,
            None => Operation::Create,
        };
        let namespace = some(new.text("/metadata/namespace")).or_else(|| {
            let checked = kind.as_ref();
            checked.map(|_| "default".to_owned())
        });
        let mut change = None;
        let (verdict, messages) = if let (Some(kind), Some(namespace)) = (&kind, &namespace) {
            self.verdict(kind, namespace, operation, new, old, asker, &mut change)
        } else if let Some(kind) = of_another_version(new) {
            let message = format!(
                "{} of {} can't be judged: it is of {} in Kubernetes.",
                kind.as_str(),
                new.text("/apiVersion"),
                kind.api_version(),
            );
            (Verdict::Unsupported, vec![message])
        } else if let Some(target) = self.targets(new).next() {
            let message = format!(
                "{} of {} can't be judged: its plans are looked at in {}, which an API server \
                 converts it to.",
                target.kind,
                new.text("/apiVersion"),
                target.versions.join(", "),
            );
            (Verdict::Unsupported, vec![message])
        } else {
            let message = format!(
                "{} of {} is not a kind that is checked.",
                new.text("/kind"),
                new.text("/apiVersion")
            );
            (Verdict::NotChecked, vec![message])
        };
        Judgement {
            file: new.file.clone(),
            document: new.number,
            api_version: new.text("/apiVersion").to_owned(),
            kind: new.text("/kind").to_owned(),
            namespace,
            name: some(new.text("/metadata/name"))
                .or_else(|| some(new.text("/metadata/generateName"))),
            operation: operation.as_str(),
            verdict,
            messages,
            change,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are what a request has")]
    fn verdict(
        &self,
        kind: &Checked,
        namespace: &str,
        operation: Operation,
        new: &Document,
        old: Option<&Document>,
        asker: &Asker,
        change: &mut Option<Change>,
    ) -> (Verdict, Vec<String>) {
        let not_checked = |message: String| (Verdict::NotChecked, vec![message]);
        let given = self.namespaces.get(namespace);
        let labels = match (given, &asker.boundary) {
            (Some(labels), _) => labels.clone(),
            (None, Some(boundary)) => {
                BTreeMap::from([(BOUNDARY_LABEL.to_owned(), boundary.clone())])
            }
            (None, None) => {
                return not_checked(format!(
                    "No boundary is known for namespace {namespace}: give its Namespace, or \
                     --boundary."
                ));
            }
        };
        let Some(boundary) = labels.get(BOUNDARY_LABEL) else {
            return not_checked(format!(
                "Namespace {namespace} is in no boundary: it has no label {BOUNDARY_LABEL}."
            ));
        };
        if !self.boundaries.contains(boundary) {
            return not_checked(format!("No policy given is for boundary '{boundary}'."));
        }
        let (mutator, evaluator) = match &self.evaluator {
            Ok(evaluator) => evaluator,
            Err(cause) => return (Verdict::Unsupported, vec![cause.clone()]),
        };
        let request = ObjectRequest {
            group: &kind.group,
            version: &kind.version,
            resource: &kind.resource,
            sub_resource: "",
            operation,
            object: &new.value,
            old_object: old.map(|old| &old.value),
            namespace,
            namespace_labels: &labels,
            user: &asker.user,
            groups: &asker.all_groups(),
        };
        *change = match mutator.mutate_object(&request) {
            Ok(mutated) => mutated.and_then(Change::of),
            Err(cause) => return (Verdict::Unsupported, vec![cause.to_string()]),
        };
        // What is judged is what it was changed to.
        let changed = change.as_ref().map_or(&new.value, |change| &change.after);
        let request = ObjectRequest {
            object: changed,
            ..request
        };
        let findings = match evaluator.judge_object(&request) {
            Ok(findings) => findings,
            Err(cause) => return (Verdict::Unsupported, vec![cause.to_string()]),
        };
        let verdict = [
            (Action::Deny, Verdict::Denied),
            (Action::Warn, Verdict::Warned),
            (Action::Audit, Verdict::Audited),
        ];
        let messages = verdict.iter().flat_map(|(action, _)| {
            let of_action = findings.iter().filter(move |f| f.action == *action);
            of_action.map(|finding| finding.message.clone())
        });
        let messages = messages.collect();
        let verdict = (verdict.iter())
            .find(|(action, _)| findings.iter().any(|f| f.action == *action))
            .map_or(Verdict::Allowed, |(_, verdict)| *verdict);
        (verdict, messages)
    }
}

/// The kind that `document` names in a version that is not the one which is checked. The API groups
/// in which Kubernetes itself once had such kinds count; a Deployment of someone else's does not.
fn of_another_version(document: &Document) -> Option<Kind> {
    let api_version = document.text("/apiVersion");
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    if !matches!(group, "" | "apps" | "batch" | "extensions") {
        return None;
    }
    let kind = document.text("/kind");
    let mut kinds = Kind::ALL.into_iter();
    kinds.find(|candidate| candidate.as_str() == kind && candidate.api_version() != api_version)
}

/// The newest version of Kubernetes that is known.
pub(super) const NEWEST: Version = Version {
    major: 1,
    minor: 37,
};

/// What tells objects apart: API version, kind, namespace and name.
type Key<'d> = (&'d str, &'d str, &'d str, &'d str);

/// The old state of objects, to be looked up.
#[derive(Default)]
pub(super) struct Old<'d>(BTreeMap<Key<'d>, &'d Document>);

impl<'d> Old<'d> {
    pub(super) fn new(documents: &'d [Document], problems: &mut Diagnostics) -> Self {
        let mut old = BTreeMap::new();
        for document in documents {
            let Some(key) = key(document) else {
                problems.field(document, "metadata", "an old object must have a name");
                continue;
            };
            if let Some(other) = old.insert(key, document) {
                let message = format!(
                    "the same object is in {}, document {}",
                    other.file, other.number
                );
                problems.field(document, "", &message);
            }
        }
        Self(old)
    }

    pub(super) fn of(&self, new: &Document) -> Option<&'d Document> {
        self.0.get(&key(new)?).copied()
    }
}

fn key(document: &Document) -> Option<Key<'_>> {
    let namespace = match document.text("/metadata/namespace") {
        "" => "default",
        namespace => namespace,
    };
    let name = document.text("/metadata/name");
    let key = (
        document.text("/apiVersion"),
        document.text("/kind"),
        namespace,
        name,
    );
    (!name.is_empty()).then_some(key)
}
