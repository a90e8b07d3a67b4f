//! Verdicts for people.

use std::fmt::Write as _;

use super::input::printable;
use super::judge::{Judgement, Verdict};

/// One row for each verdict, further messages and what is changed below the first, and the counts.
pub(super) fn table(judgements: &[Judgement]) -> String {
    let mut rows = vec![["VERDICT", "KIND", "NAMESPACE/NAME", "MESSAGE"].map(str::to_owned)];
    for judgement in judgements {
        let name = printable(judgement.name.as_deref().unwrap_or("(no name)"));
        let name = match &judgement.namespace {
            Some(namespace) => format!("{}/{name}", printable(namespace)),
            None => name,
        };
        let changes = judgement.change.iter().flat_map(|change| &change.lines);
        let messages = judgement.messages.iter().chain(changes);
        let mut messages = messages.map(|message| printable(message));
        rows.push([
            judgement.verdict.as_str().to_owned(),
            printable(&judgement.kind),
            name,
            messages.next().unwrap_or_default(),
        ]);
        for message in messages {
            rows.push([String::new(), String::new(), String::new(), message]);
        }
    }
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        // One endless name must not push the messages of all others away.
        widths.max().unwrap_or_default().min(60)
    };
    let (verdict, kind, name) = (width(0), width(1), width(2));
    let mut text = String::new();
    for row in &rows {
        let line = format!(
            "{:verdict$}  {:kind$}  {:name$}  {}",
            row[0], row[1], row[2], row[3]
        );
        // Writing to a String can't fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let counts: Vec<_> = (Verdict::ALL.iter())
        .filter_map(|verdict| {
            let count = judgements.iter().filter(|j| j.verdict == *verdict).count();
            (count > 0).then(|| format!("{count} {}", verdict.as_str()))
        })
        .collect();
    let _ = writeln!(text, "\n{}", counts.join(", "));
    text
}
