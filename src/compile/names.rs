//! Names of objects.

use sha2::{Digest as _, Sha256};

use crate::api::{Action, GROUP, is_dns_label};

/// The name of part `part`, counted from 1, of the objects for `boundary` and `action`:
/// `BOUNDARY[.PART].boundarypolicy.dev[.warn|.audit]`.
///
/// A boundary that is no DNS label is written in lower case with `-` for what a name can't hold,
/// and after it `.h` and a hash of it, which no DNS label and no part can look like.
#[must_use]
pub fn object_name(boundary: &str, action: Action, part: usize) -> String {
    let name = if is_dns_label(boundary) {
        boundary.to_owned()
    } else {
        format!("{}.h{}", readable(boundary), hash(boundary.as_bytes()))
    };
    let part = if part > 1 {
        format!(".{part}")
    } else {
        String::new()
    };
    let action = match action {
        Action::Deny => "",
        Action::Warn => ".warn",
        Action::Audit => ".audit",
    };
    format!("{name}{part}.{GROUP}{action}")
}

/// The first 16 hexadecimal digits of the SHA-256 of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let start = digest[..8]
        .iter()
        .fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    format!("{start:016x}")
}

/// `boundary` as a DNS label that reminds of it.
fn readable(boundary: &str) -> String {
    let label: String = boundary
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    label.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("web", Action::Deny, 1, "web.boundarypolicy.dev")]
    #[case("web", Action::Warn, 1, "web.boundarypolicy.dev.warn")]
    #[case("web", Action::Audit, 2, "web.2.boundarypolicy.dev.audit")]
    #[case(
        "Team_A",
        Action::Deny,
        1,
        "team-a.he61a548267596fe2.boundarypolicy.dev"
    )]
    #[case("web.2", Action::Deny, 1, "web-2.h7515d04d47351693.boundarypolicy.dev")]
    fn names(
        #[case] boundary: &str,
        #[case] action: Action,
        #[case] part: usize,
        #[case] name: &str,
    ) {
        assert_eq!(object_name(boundary, action, part), name);
    }

    #[test]
    fn boundaries_that_differ_in_case_have_names_that_differ() {
        let names = ["A", "a", "A.", "a_b", "a-b", "a.b"].map(|b| object_name(b, Action::Deny, 1));
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
