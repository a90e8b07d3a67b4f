//! What the rules change in an object, for people; and whether an object has what is expected.

use std::collections::BTreeSet;

use serde_json::Value;

use super::input::printable;

/// A line for each field that differs: `+` it is new, `~` it has another value, `-` it is gone. Items
/// of a list are named by their `name` where they have one.
pub(super) fn lines(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    walk("", Some(before), Some(after), &mut lines);
    lines
}

fn walk(path: &str, before: Option<&Value>, after: Option<&Value>, lines: &mut Vec<String>) {
    if before == after {
        return;
    }
    match (before, after) {
        (_, Some(Value::Object(new))) if before.is_none_or(Value::is_object) => {
            let old = before.and_then(Value::as_object);
            let keys: BTreeSet<&String> = old
                .into_iter()
                .flatten()
                .chain(new)
                .map(|(k, _)| k)
                .collect();
            for key in keys {
                let path = below(path, key);
                walk(&path, old.and_then(|old| old.get(key)), new.get(key), lines);
            }
        }
        (_, Some(Value::Array(new))) if before.is_none_or(Value::is_array) => {
            let old = before
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice);
            for index in 0..old.len().max(new.len()) {
                let (old, new) = (old.get(index), new.get(index));
                let named = new.or(old).and_then(|item| item.get("name")?.as_str());
                let item = named.map_or_else(|| index.to_string(), str::to_owned);
                walk(&format!("{path}[{item}]"), old, new, lines);
            }
        }
        (None, Some(new)) => lines.push(format!("+ {path}: {}", text(new))),
        (Some(old), None) => lines.push(format!("- {path}: {}", text(old))),
        (Some(old), Some(new)) => {
            lines.push(format!("~ {path}: {} -> {}", text(old), text(new)));
        }
        (None, None) => {}
    }
}

fn below(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}

/// Where `found` lacks what `expected` has: the path, what is expected and what is found. Of an object
/// only the fields that are expected are looked at, and `null` stands for one that is not there; a list
/// must have as many items.
pub(super) fn lacks(expected: &Value, found: Option<&Value>) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", expected, found, &mut lines);
    lines
}

fn compare(path: &str, expected: &Value, found: Option<&Value>, lines: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(fields), Some(Value::Object(of))) => {
            for (key, field) in fields {
                let path = below(path, key);
                compare(&path, field, of.get(key), lines);
            }
        }
        (Value::Array(items), Some(Value::Array(of))) if items.len() == of.len() => {
            for (index, (item, found)) in items.iter().zip(of).enumerate() {
                compare(&format!("{path}[{index}]"), item, Some(found), lines);
            }
        }
        (expected, found) if expected == found.unwrap_or(&Value::Null) => {}
        (expected, found) => {
            let found = found.map_or_else(|| "(none)".to_owned(), text);
            lines.push(format!(
                "{path}: expected {}, found {found}",
                text(expected)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_what_differs() {
        let before = json!({"spec": {"containers": [{"name": "web", "a": "x", "b": 1}], "l": [1]}});
        let after = json!({"spec": {
            "containers": [{"name": "web", "a": "y", "c": {"d": "2"}}],
            "l": [1, {"e": true}],
        }});
        assert_eq!(
            lines(&before, &after),
            [
                "~ spec.containers[web].a: x -> y",
                "- spec.containers[web].b: 1",
                "+ spec.containers[web].c.d: 2",
                "+ spec.l[1].e: true",
            ]
        );
        assert_eq!(lines(&after, &after), [""; 0]);
    }

    #[rstest::rstest]
    #[case::less(json!({"a": {"b": 1}}), &[])]
    #[case::absent(json!({"x": null}), &[])]
    #[case::another(json!({"a": {"b": 2}}), &["a.b: expected 2, found 1"])]
    #[case::there(json!({"a": {"b": null}}), &["a.b: expected null, found 1"])]
    #[case::missing(json!({"x": {"y": "z"}}), &[r#"x: expected {"y":"z"}, found (none)"#])]
    #[case::items(json!({"l": [{"n": 1}, {"m": 2}]}), &["l[1].m: expected 2, found (none)"])]
    #[case::count(json!({"l": [{}]}), &[r#"l: expected [{}], found [{"n":1},{"n":2}]"#])]
    fn looks_at_what_is_expected(#[case] expected: Value, #[case] lines: &[&str]) {
        let found = json!({"a": {"b": 1, "c": 2}, "l": [{"n": 1}, {"n": 2}]});
        assert_eq!(lacks(&expected, Some(&found)), lines);
    }
}
