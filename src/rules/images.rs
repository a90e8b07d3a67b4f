//! Image prefixes, as `registries` of a rule and `images` of an exemption give them.

/// `prefix` as it is compared and shown: without a `/` at its end.
pub(crate) fn trimmed(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// Whether `image` is under one of `prefixes`, which are trimmed: it equals it, or continues it
/// after a `/`.
pub(crate) fn is_under<'p>(image: &str, prefixes: impl IntoIterator<Item = &'p str>) -> bool {
    prefixes.into_iter().any(|prefix| {
        image
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
