//! What an API server can do, as far as the output depends on it.

use std::fmt;
use std::str::FromStr;

/// The version of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The `1` of 1.30.
    pub major: u32,
    /// The `30` of 1.30.
    pub minor: u32,
}

impl Version {
    /// The first version that serves `ValidatingAdmissionPolicy` v1.
    pub const FIRST_VALIDATING: Self = Self {
        major: 1,
        minor: 30,
    };

    /// The first version whose mutations can be used: earlier ones don't know the index of an item.
    pub const FIRST_MUTATING: Self = Self {
        major: 1,
        minor: 34,
    };

    /// The first version that serves `MutatingAdmissionPolicy` v1, and acts on it, by itself.
    pub const FIRST_MUTATING_BY_ITSELF: Self = Self {
        major: 1,
        minor: 36,
    };

    /// The first version in which a Pod is resized through a subresource of its own.
    pub(super) const FIRST_RESIZING: Self = Self {
        major: 1,
        minor: 33,
    };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The text is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Kubernetes version; write it like 1.30 or v1.30.14")]
pub struct ParseVersionError(String);

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Reads `1.30`, `v1.30.14`, and what vendors make of it: `v1.30.4-eks-a1b2c3`, `v1.31.2+k3s1`,
    /// `1.30+`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseVersionError(text.chars().take(64).collect());
        let version = text.trim();
        let version = version.strip_prefix('v').unwrap_or(version);
        let (major, rest) = version.split_once('.').ok_or_else(error)?;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Ok(Self {
            major: major.parse().map_err(|_| error())?,
            minor: rest[..digits].parse().map_err(|_| error())?,
        })
    }
}

/// What an API server can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its version.
    pub version: Version,
    /// Whether it serves `ValidatingAdmissionPolicy` in `admissionregistration.k8s.io/v1`.
    pub validating: bool,
    /// The newest version of `MutatingAdmissionPolicy` that it serves and that can be used. That it
    /// serves it doesn't mean that it acts on it, see [`Mutating`](super::Mutating).
    pub mutating: Option<MutatingApi>,
}

/// A version of `MutatingAdmissionPolicy` that can be used. v1alpha1 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MutatingApi {
    /// `admissionregistration.k8s.io/v1beta1`
    V1beta1,
    /// `admissionregistration.k8s.io/v1`
    V1,
}

impl MutatingApi {
    /// Its API group and version.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1beta1 => "admissionregistration.k8s.io/v1beta1",
            Self::V1 => "admissionregistration.k8s.io/v1",
        }
    }
}

impl Capabilities {
    /// What an API server of `version` can do unless it is configured otherwise.
    #[must_use]
    pub fn of(version: Version) -> Self {
        Self {
            version,
            validating: version >= Version::FIRST_VALIDATING,
            mutating: (version >= Version::FIRST_MUTATING_BY_ITSELF).then_some(MutatingApi::V1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("1.30", 30)]
    #[case("v1.30.14", 30)]
    #[case("v1.30.4-eks-a1b2c3", 30)]
    #[case("v1.31.2+k3s1", 31)]
    #[case("1.30+", 30)]
    fn reads_versions(#[case] text: &str, #[case] minor: u32) {
        assert_eq!(text.parse(), Ok(Version { major: 1, minor }));
    }

    #[rstest::rstest]
    #[case("")]
    #[case("1")]
    #[case("v1.")]
    #[case("latest")]
    #[case("1.x")]
    #[case("1.99999999999999999999")]
    fn refuses_what_is_no_version(#[case] text: &str) {
        assert!(text.parse::<Version>().is_err());
    }
}
