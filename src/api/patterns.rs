//! The shapes of the strings in the API, as schema patterns and as the same test in Rust.

/// A label value that is not empty. Source: `IsValidLabelValue` of k8s.io/apimachinery.
pub(crate) const LABEL_VALUE: &str = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// An image prefix: 1 to 8 segments separated by `/`, none of them empty, perhaps one `/` at the end.
pub(crate) const IMAGE_PREFIX: &str = r"^[A-Za-z0-9._:@\[\]-]+(/[A-Za-z0-9._:@\[\]-]+){0,7}/?$";

/// The longest image prefix, in bytes.
pub(crate) const IMAGE_PREFIX_MAX: usize = 253;

/// The most segments that an image prefix may have.
pub(crate) const IMAGE_PREFIX_SEGMENTS: usize = 8;

/// An entry of `allowedComputePlans`: a plan, perhaps after a type and `/`.
pub(crate) const COMPUTE_PLAN: &str =
    r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// The path of a field in an object: names with `.` between, and `[*]` after the name of one list at
/// most, which is then not the last.
pub(crate) const FIELD_PATH: &str =
    r"^[A-Za-z_][-A-Za-z0-9_]*([.][A-Za-z_][-A-Za-z0-9_]*)*(\[\*\]([.][A-Za-z_][-A-Za-z0-9_]*)+)?$";

/// The longest path of a field, in bytes.
pub(crate) const FIELD_PATH_MAX: usize = 256;

/// The most names that the path of a field has.
pub(crate) const FIELD_PATH_NAMES: usize = 8;

/// The name of a field in an object.
pub(crate) const FIELD_NAME: &str = "^[A-Za-z_][-A-Za-z0-9_]*$";

/// A time of the years 2000 to 2999, in RFC 3339. The format `date-time` of the API server alone takes
/// more than RFC 3339 does, a zone of `+99:99` for instance.
pub(crate) const TIME: &str = r"^2[0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// Whether `value` fits [`TIME`] and the format `date-time`, which knows no leap seconds.
#[must_use]
pub(crate) fn is_time(value: &str) -> bool {
    let shaped = |value: &str, shape: &str| {
        let mut pairs = value.bytes().zip(shape.bytes());
        let digit = |shape: u8, byte: u8| shape == b'0' && byte.is_ascii_digit();
        value.len() == shape.len() && pairs.all(|(b, s)| digit(s, b) || b == s)
    };
    let Some((local, rest)) = value.split_at_checked(19) else {
        return false;
    };
    let zone = match rest.strip_prefix('.') {
        None => rest,
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if !(1..=9).contains(&(fraction.len() - zone.len())) {
                return false;
            }
            zone
        }
    };
    let offset = |sign: &str| {
        zone.strip_prefix(sign)
            .is_some_and(|zone| shaped(zone, "00:00") && zone < "24" && zone[3..] < *"60")
    };
    shaped(local, "2000-00-00T00:00:00")
        && !local.ends_with("60")
        && (zone == "Z" || offset("+") || offset("-"))
        && value.parse::<jiff::Timestamp>().is_ok()
}

/// Whether `value` can be the value of a label and is not empty.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    value.len() <= 63
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && ends_alphanumeric(value)
}

/// Whether `key` can be the key of a label: a name, perhaps after a DNS subdomain and `/`.
///
/// Source: `IsQualifiedName` of k8s.io/apimachinery.
#[must_use]
pub fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_value(name),
        None => is_label_value(key),
    }
}

/// Whether `value` is a DNS label: lower case letters, digits and `-`, at most 63, `-` at no end.
#[must_use]
pub fn is_dns_label(value: &str) -> bool {
    value.len() <= 63 && is_subdomain_label(value)
}

/// Whether `value` is a DNS subdomain: DNS labels of any length with `.` between, at most 253.
pub(crate) fn is_dns_subdomain(value: &str) -> bool {
    value.len() <= 253 && value.split('.').all(is_subdomain_label)
}

/// Whether `prefix` can stand in `registries` of `allowedRegistries` and in `images` of an exemption.
#[must_use]
pub fn is_image_prefix(prefix: &str) -> bool {
    let segments = prefix.strip_suffix('/').unwrap_or(prefix);
    prefix.len() <= IMAGE_PREFIX_MAX
        && segments.split('/').count() <= IMAGE_PREFIX_SEGMENTS
        && segments.split('/').all(|segment| {
            !segment.is_empty()
                && segment.bytes().all(|b| {
                    b.is_ascii_alphanumeric()
                        || matches!(b, b'.' | b'_' | b':' | b'@' | b'[' | b']' | b'-')
                })
        })
}

/// Whether `entry` can stand in `plans` of `allowedComputePlans`.
#[must_use]
pub(crate) fn is_compute_plan(entry: &str) -> bool {
    match entry.split_once('/') {
        Some((kind, plan)) => is_dns_label(kind) && is_label_value(plan),
        None => is_label_value(entry),
    }
}

/// Whether `path` fits [`FIELD_PATH`] and its bounds.
#[must_use]
pub(crate) fn is_field_path(path: &str) -> bool {
    let names = |path: &str| path.split('.').all(is_field_name);
    path.len() <= FIELD_PATH_MAX
        && path.split('.').count() <= FIELD_PATH_NAMES
        && match path.split_once("[*]") {
            Some((list, item)) => names(list) && item.strip_prefix('.').is_some_and(names),
            None => names(path),
        }
}

/// Whether `name` fits [`FIELD_NAME`].
#[must_use]
pub(crate) fn is_field_name(name: &str) -> bool {
    let first = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    name.bytes().next().is_some_and(first)
        && name
            .bytes()
            .all(|b| first(b) || b.is_ascii_digit() || b == b'-')
}

fn is_subdomain_label(label: &str) -> bool {
    label
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && ends_alphanumeric(label)
}

fn ends_alphanumeric(value: &str) -> bool {
    let ends = [value.bytes().next(), value.bytes().next_back()];
    ends.into_iter()
        .all(|b| b.is_some_and(|b| b.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::host("ghcr.io/acme", true)]
    #[case::port("registry:5000", true)]
    #[case::whole_image("ghcr.io/acme/web:1.4", true)]
    #[case::slash_at_end("ghcr.io/", true)]
    #[case::eight_segments("a/b/c/d/e/f/g/h", true)]
    #[case::nine_segments("a/b/c/d/e/f/g/h/i", false)]
    #[case::scheme("https://ghcr.io", false)]
    #[case::slash_at_start("/ghcr.io", false)]
    #[case::only_a_slash("/", false)]
    #[case::two_slashes_at_end("ghcr.io//", false)]
    #[case::empty("", false)]
    #[case::wildcard("ghcr.io/*", false)]
    #[case::quote("ghcr.io/'", false)]
    #[case::newline("ghcr.io\n", false)]
    fn image_prefixes(#[case] prefix: &str, #[case] valid: bool) {
        assert_eq!(is_image_prefix(prefix), valid);
    }

    #[rstest::rstest]
    #[case::plan("small", true)]
    #[case::plan_of_a_type("valkey/small", true)]
    #[case::dots("gp.2-x_L", true)]
    #[case::empty("", false)]
    #[case::no_type("/small", false)]
    #[case::no_plan("valkey/", false)]
    #[case::two_slashes("a/b/c", false)]
    #[case::upper_case_type("Valkey/small", false)]
    #[case::quote("sma'll", false)]
    #[case::newline("small\n", false)]
    #[case::wildcard("*", false)]
    #[case::not_ascii("klein-ü", false)]
    fn compute_plans(#[case] entry: &str, #[case] valid: bool) {
        assert_eq!(is_compute_plan(entry), valid);
    }

    #[rstest::rstest]
    #[case::field("spec.plan", true)]
    #[case::top("plan", true)]
    #[case::list("spec.components[*].plan", true)]
    #[case::deep_in_list("spec.components[*].resources.plan", true)]
    #[case::eight_names("a.b.c.d.e.f.g.h", true)]
    #[case::nine_names("a.b.c.d.e.f.g.h.i", false)]
    #[case::reserved_words("in.namespace.default", true)]
    #[case::empty("", false)]
    #[case::empty_name("spec..plan", false)]
    #[case::dot_at_the_end("spec.", false)]
    #[case::list_at_the_end("spec.plans[*]", false)]
    #[case::two_lists("spec.a[*].b[*].c", false)]
    #[case::list_of_nothing("[*].plan", false)]
    #[case::index("spec.components[0].plan", false)]
    #[case::quote("spec.'plan'", false)]
    #[case::expression("spec.plan || true", false)]
    #[case::newline("spec.plan\n", false)]
    fn field_paths(#[case] path: &str, #[case] valid: bool) {
        assert_eq!(is_field_path(path), valid);
    }

    #[rstest::rstest]
    #[case::utc("2027-01-31T00:00:00Z", true)]
    #[case::zone("2027-01-31T00:00:00.123456789-23:59", true)]
    #[case::no_such_zone("2027-01-31T00:00:00+24:00", false)]
    #[case::no_such_minute("2027-01-31T00:00:00+01:60", false)]
    #[case::no_such_day("2027-02-30T00:00:00Z", false)]
    #[case::leap_second("2027-01-31T23:59:60Z", false)]
    #[case::long_fraction("2027-01-31T00:00:00.1234567890Z", false)]
    #[case::no_fraction("2027-01-31T00:00:00.Z", false)]
    #[case::lower_case("2027-01-31t00:00:00z", false)]
    #[case::space("2027-01-31 00:00:00Z", false)]
    #[case::compact("20270131T000000Z", false)]
    #[case::zone_name("2027-01-31T00:00:00Z[UTC]", false)]
    #[case::no_zone("2027-01-31T00:00:00", false)]
    #[case::date("2027-01-31", false)]
    #[case::too_early("1999-12-31T00:00:00Z", false)]
    #[case::no_ascii("2027-01-31T00:00:0é", false)]
    fn times(#[case] time: &str, #[case] valid: bool) {
        assert_eq!(is_time(time), valid);
    }

    #[rstest::rstest]
    #[case::name("team", true)]
    #[case::prefixed("app.kubernetes.io/name", true)]
    #[case::upper_case_name("acme.io/Team_a", true)]
    #[case::upper_case_prefix("Acme.io/team", false)]
    #[case::empty("", false)]
    #[case::empty_name("acme.io/", false)]
    #[case::empty_prefix("/team", false)]
    #[case::two_slashes("a/b/c", false)]
    #[case::quote("te'am", false)]
    fn label_keys(#[case] key: &str, #[case] valid: bool) {
        assert_eq!(is_label_key(key), valid);
    }
}
