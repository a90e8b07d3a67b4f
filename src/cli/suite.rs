//! Cases with expected verdicts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::input::{Diagnostics, Document, Reader, printable};
use super::judge::{Asker, Judge, Judgement, Verdict};
use super::{Error, Outcome, bad_input, diff, policies, schema};
use crate::api::{GROUP, is_label_value};

const KIND: &str = "BoundaryTestSuite";

/// A file of cases. The fields are documented in `examples/README.md`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Suite {
    #[expect(dead_code, reason = "read with the document")]
    api_version: String,
    #[expect(dead_code, reason = "read with the document")]
    kind: String,
    policies: Vec<PathBuf>,
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    now: Option<Timestamp>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Case {
    name: String,
    resource: Value,
    #[serde(default)]
    old: Option<Value>,
    #[serde(default)]
    boundary: Option<String>,
    #[serde(default)]
    user: String,
    #[serde(default)]
    groups: Vec<String>,
    expect: Expect,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Expect {
    verdict: Verdict,
    /// Absent: any.
    #[serde(default)]
    messages: Option<Vec<String>>,
    /// What the resource must have after the policies have changed it. Absent: anything.
    #[serde(default)]
    mutated: Option<Value>,
}

/// Runs every case of every suite: the lines to print, and whether all is as expected.
pub(super) fn run(
    paths: &[PathBuf],
    reader: &mut Reader<'_>,
    now: Timestamp,
) -> Result<(String, Outcome), Error> {
    let mut problems = Diagnostics::default();
    let documents = reader.documents(paths, &mut problems);
    if documents.is_empty() && problems.0.is_empty() {
        problems.file("", format!("no {KIND} was found"));
    }
    let schema = schema::of::<Suite>();
    let mut ready = Vec::new();
    for document in &documents {
        let before = problems.0.len();
        let suite = suite(document, &schema, &mut problems);
        let Some(suite) = suite.filter(|_| problems.0.len() == before) else {
            continue;
        };
        let folder = match document.file.as_str() {
            "standard input" => Path::new(""),
            file => Path::new(file).parent().unwrap_or(Path::new("")),
        };
        let paths: Vec<_> = suite
            .policies
            .iter()
            .map(|path| folder.join(path))
            .collect();
        let policy_documents = reader.documents(&paths, &mut problems);
        let policies = policies::policies(&policy_documents, &mut problems);
        let catalog = policies::catalog(&policy_documents, &mut problems);
        let mut resources = Vec::new();
        for (index, case) in suite.cases.iter().enumerate() {
            let path = format!("cases[{index}].resource");
            let new = object(
                document,
                folder,
                &case.resource,
                &path,
                reader,
                &mut problems,
            );
            let path = format!("cases[{index}].old");
            let old = (case.old.as_ref())
                .map(|old| object(document, folder, old, &path, reader, &mut problems));
            resources.push((new, old.flatten()));
        }
        let namespaces = policies::namespaces(&policy_documents, &mut problems);
        let judge = Judge::new(&policies, catalog, namespaces, suite.now.unwrap_or(now));
        ready.push((document, suite, resources, judge));
    }
    bad_input(problems)?;

    let (mut text, mut cases, mut different) = (String::new(), 0, 0);
    for (document, suite, resources, judge) in ready {
        for (index, (case, (new, old))) in suite.cases.into_iter().zip(resources).enumerate() {
            let Some(new) = new else { continue };
            let asker = Asker {
                boundary: case.boundary,
                user: case.user,
                groups: case.groups,
            };
            let found = judge.judge(&new, old.as_ref(), &asker);
            cases += 1;
            if let Some(difference) = difference(&case.expect, &found, &new.value) {
                different += 1;
                let line = document.line_of(&format!("cases[{index}].name"));
                let file = printable(&document.file);
                // Writing to a String can't fail.
                let _ = writeln!(
                    text,
                    "{file}:{line}: {}\n{difference}",
                    printable(&case.name)
                );
            }
        }
    }
    let plural = if cases == 1 { "case" } else { "cases" };
    let _ = writeln!(
        text,
        "{cases} {plural}: {} as expected, {different} different",
        cases - different
    );
    let outcome = if different == 0 {
        Outcome::Fine
    } else {
        Outcome::Denied
    };
    Ok((text, outcome))
}

/// What differs, if anything does, in lines.
fn difference(expect: &Expect, found: &Judgement, resource: &Value) -> Option<String> {
    let same_verdict = found.verdict == expect.verdict;
    let messages = (expect.messages.as_ref()).filter(|expected| **expected != found.messages);
    let mutated = found
        .change
        .as_ref()
        .map_or(resource, |change| &change.after);
    let expected = expect.mutated.iter();
    let lacking: Vec<_> = expected
        .flat_map(|expected| diff::lacks(expected, Some(mutated)))
        .collect();
    if same_verdict && messages.is_none() && lacking.is_empty() {
        return None;
    }
    let mut lines = Vec::new();
    if !same_verdict {
        lines.push(format!("  expected verdict: {}", expect.verdict.as_str()));
        lines.push(format!("     found verdict: {}", found.verdict.as_str()));
    }
    // What is found is said also where no message is expected: it tells why.
    let told = (!same_verdict || messages.is_some()).then_some(&found.messages);
    for (what, messages) in [("  expected", messages), ("     found", told)] {
        for message in messages.into_iter().flatten() {
            lines.push(format!("{what} message: {}", printable(message)));
        }
        if messages.is_some_and(Vec::is_empty) {
            lines.push(format!("{what} message: (none)"));
        }
    }
    lines.extend(
        lacking
            .iter()
            .map(|lacking| format!("  mutated {}", printable(lacking))),
    );
    Some(lines.join("\n"))
}

fn suite(document: &Document, schema: &Value, problems: &mut Diagnostics) -> Option<Suite> {
    let api_version = format!("{GROUP}/v1alpha1");
    if (document.text("/apiVersion"), document.text("/kind")) != (api_version.as_str(), KIND) {
        let message = format!("is not a {KIND} ({api_version})");
        problems.field(document, "kind", &message);
        return None;
    }
    let before = problems.0.len();
    schema::check(document, schema, problems);
    if problems.0.len() > before {
        return None;
    }
    let suite: Suite = match serde_json::from_value(document.value.clone()) {
        Ok(suite) => suite,
        Err(error) => {
            problems.field(document, "", &error.to_string());
            return None;
        }
    };
    for (path, empty) in [
        ("policies", suite.policies.is_empty()),
        ("cases", suite.cases.is_empty()),
    ] {
        if empty {
            problems.field(document, path, "must have at least one item");
        }
    }
    let mut names = BTreeSet::new();
    for (index, case) in suite.cases.iter().enumerate() {
        if !names.insert(&case.name) {
            let path = format!("cases[{index}].name");
            problems.field(
                document,
                &path,
                &format!("{:?} is the name of another case", case.name),
            );
        }
        if case
            .boundary
            .as_ref()
            .is_some_and(|boundary| !is_label_value(boundary))
        {
            let path = format!("cases[{index}].boundary");
            problems.field(
                document,
                &path,
                "must be a label value that is not empty, like web",
            );
        }
    }
    Some(suite)
}

/// The object that a case names (`PATH`, or `PATH#DOCUMENT` counted from 1) or holds.
fn object(
    suite: &Document,
    folder: &Path,
    value: &Value,
    field: &str,
    reader: &mut Reader<'_>,
    problems: &mut Diagnostics,
) -> Option<Document> {
    let documents = match value {
        Value::String(text) => {
            let (path, number) = match text.rsplit_once('#') {
                None => (text.as_str(), None),
                Some((path, number)) => {
                    let Ok(number) = number.parse::<usize>() else {
                        problems.field(
                            suite,
                            field,
                            "must end in the number of a document after #",
                        );
                        return None;
                    };
                    (path, Some(number))
                }
            };
            let before = problems.0.len();
            let mut documents = reader.documents(&[folder.join(path)], problems);
            if problems.0.len() > before {
                return None;
            }
            if let Some(number) = number {
                documents.retain(|document| document.number == number);
            }
            documents
        }
        Value::Object(_) => {
            let mut documents = Vec::new();
            let inline = suite.at(field)?;
            super::input::expand(inline, &mut documents, problems);
            if documents.is_empty() {
                return None;
            }
            documents
        }
        _ => {
            problems.field(
                suite,
                field,
                "must be an object, or PATH or PATH#DOCUMENT of one",
            );
            return None;
        }
    };
    match <[Document; 1]>::try_from(documents) {
        Ok([document]) => Some(document),
        Err(documents) => {
            let message = format!("must be one object, is {}", documents.len());
            problems.field(suite, field, &message);
            None
        }
    }
}
