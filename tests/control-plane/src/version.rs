use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A Kubernetes version that can be built and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Kubernetes 1.29: admission policies are beta, behind a feature gate.
    V1_29,
    /// Kubernetes 1.30: the first with validating admission policies in v1.
    V1_30,
    /// Kubernetes 1.34.
    V1_34,
    /// Kubernetes 1.37.
    V1_37,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Self; 4] = [Self::V1_29, Self::V1_30, Self::V1_34, Self::V1_37];

    /// The release, such as `v1.34.4`.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::V1_29 => "v1.29.15",
            Self::V1_30 => "v1.30.14",
            Self::V1_34 => "v1.34.4",
            Self::V1_37 => "v1.37.2",
        }
    }

    /// The second number, such as 34.
    #[must_use]
    pub const fn minor(self) -> u16 {
        match self {
            Self::V1_29 => 29,
            Self::V1_30 => 30,
            Self::V1_34 => 34,
            Self::V1_37 => 37,
        }
    }
}

/// Writes the release, such as `v1.34.4`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.tag())
    }
}

/// Reads `1.34`, `v1.34` or the whole release, `1.34.4` or `v1.34.4`.
impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = text.strip_prefix('v').unwrap_or(text);
        Self::ALL
            .into_iter()
            .find(|v| number == format!("1.{}", v.minor()) || number == &v.tag()[1..])
            .ok_or_else(|| Error::UnknownVersion(text.to_owned()))
    }
}
