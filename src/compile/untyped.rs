//! Reads of `variables` past their type.
//!
//! Before Kubernetes 1.36 all policies of an API server share one table of the types of their
//! variables. It is written without a lock whenever a policy is compiled, and read by every request
//! for which `variables.NAME` is evaluated; an API server in which both happen at once ends with
//! `fatal error: concurrent map read and map write`. `dyn(variables).NAME` has the same value and
//! does not look there. Source: <https://github.com/kubernetes/kubernetes/issues/135757>, and
//! `survives_changes` in `tests/api_servers/change.rs`.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicySpec;

/// Lets every expression of `policy` read its variables without their types.
pub(super) fn untype(policy: &mut ValidatingAdmissionPolicySpec) {
    for variable in policy.variables.iter_mut().flatten() {
        variable.expression = untyped(&variable.expression);
    }
    for validation in policy.validations.iter_mut().flatten() {
        validation.expression = untyped(&validation.expression);
        if let Some(message) = &mut validation.message_expression {
            *message = untyped(message);
        }
    }
}

/// `expression` with `dyn(variables).` in place of `variables.`, but in string literals.
pub(super) fn untyped(expression: &str) -> String {
    const NAME: &str = "variables.";
    let mut written = String::with_capacity(expression.len());
    let mut quote = None;
    let mut before = None;
    let mut rest = expression.char_indices();
    while let Some((at, c)) = rest.next() {
        let starts_word =
            !before.is_some_and(|b: char| b.is_alphanumeric() || b == '_' || b == '.');
        match quote {
            None if starts_word && expression[at..].starts_with(NAME) => {
                written.push_str("dyn(variables).");
                rest.nth(NAME.len() - 2);
                before = Some('.');
                continue;
            }
            None if matches!(c, '\'' | '"') => quote = Some(c),
            Some(_) if c == '\\' => {
                written.push(c);
                let escaped = rest.next().map(|(_, escaped)| escaped);
                written.extend(escaped);
                before = escaped;
                continue;
            }
            Some(end) if c == end => quote = None,
            _ => {}
        }
        written.push(c);
        before = Some(c);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::untyped;

    #[rstest::rstest]
    #[case::first("variables.a", "dyn(variables).a")]
    #[case::several("variables.a+variables.b", "dyn(variables).a+dyn(variables).b")]
    #[case::literal("'variables.a' + variables.a", "'variables.a' + dyn(variables).a")]
    #[case::quotes(
        r#""it's variables.a" + variables.a"#,
        r#""it's variables.a" + dyn(variables).a"#
    )]
    #[case::escapes(
        r"'\'variables.a\\' + variables.a",
        r"'\'variables.a\\' + dyn(variables).a"
    )]
    #[case::unicode("'é' + variables.é", "'é' + dyn(variables).é")]
    #[case::another("myvariables.a + x.variables.a", "myvariables.a + x.variables.a")]
    #[case::once("dyn(variables).a", "dyn(variables).a")]
    #[case::the_end("'\\", "'\\")]
    fn names(#[case] expression: &str, #[case] expected: &str) {
        assert_eq!(untyped(expression), expected);
    }
}
