//! CEL literals. Everything that users write reaches an expression through [`string`].

use std::fmt::Write as _;

/// `text` as a CEL string literal.
pub(crate) fn string(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('\'');
    for c in text.chars() {
        match c {
            '\\' => literal.push_str("\\\\"),
            '\'' => literal.push_str("\\'"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\t' => literal.push_str("\\t"),
            // Readers of the object, and some CEL parsers, stumble over the other control
            // characters and over the separators of lines.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                // Writing to a String can't fail.
                let _ = write!(literal, "\\u{:04x}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal.push('\'');
    literal
}

/// A list of string literals.
pub(crate) fn strings<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    list(items.into_iter().map(|item| string(item.as_ref())))
}

/// A list of expressions.
pub(crate) fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

/// A map from string literals to expressions.
pub(crate) fn map(entries: impl IntoIterator<Item = (String, String)>) -> String {
    let entries = entries
        .into_iter()
        .map(|(key, value)| format!("{}: {value}", string(&key)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::string;

    #[rstest::rstest]
    #[case::plain("web", "'web'")]
    #[case::quote("a'b\"c", r#"'a\'b"c'"#)]
    #[case::backslash(r"a\b", r"'a\\b'")]
    #[case::line_breaks("a\r\nb\u{2028}c", r"'a\r\nb\u2028c'")]
    #[case::nul("\0", r"'\u0000'")]
    #[case::not_a_template("${x} {{y}}", "'${x} {{y}}'")]
    #[case::unicode("é…😀", "'é…😀'")]
    fn escapes(#[case] text: &str, #[case] literal: &str) {
        assert_eq!(string(text), literal);
    }

    proptest! {
        #[test]
        fn a_literal_evaluates_to_its_text(text in any::<String>()) {
            let program = cel::Program::compile(&string(&text)).unwrap();
            let value = program.execute(&cel::Context::default()).unwrap();
            prop_assert_eq!(value, cel::Value::from(text));
        }
    }
}
