use std::path::PathBuf;
use std::time::Duration;

use crate::{Binary, Version};

/// Why a binary could not be built, or a control plane not be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names no version that this crate can build.
    #[error("unknown version {0:?}: expected one of 1.29, 1.30, 1.34, 1.37")]
    UnknownVersion(String),

    /// A binary has to be built and there is no `go` on the PATH.
    #[error(
        "building {name} needs Go {needed} or newer, and there is no `go` on the PATH; \
         install it from https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with {name}"
    )]
    GoMissing {
        /// The binary and its version.
        name: String,
        /// The oldest Go that can build it.
        needed: String,
    },

    /// A binary has to be built and the `go` on the PATH is too old for it.
    #[error("building {name} needs Go {needed} or newer, and `go` on the PATH is {found}")]
    GoTooOld {
        /// The binary and its version.
        name: String,
        /// The oldest Go that can build it.
        needed: String,
        /// What `go version` says.
        found: String,
    },

    /// `go build` failed.
    #[error("building {name} failed; the end of what `go build` said:\n{output}")]
    Build {
        /// The binary and its version.
        name: String,
        /// The last lines of the output of `go build`.
        output: String,
    },

    /// Neither `BOUNDARY_OPERATOR_CACHE`, `XDG_CACHE_HOME` nor `HOME` says where to keep binaries.
    #[error("no folder for the binaries: set BOUNDARY_OPERATOR_CACHE, XDG_CACHE_HOME or HOME")]
    NoCache,

    /// A process ended while it was awaited.
    #[error("{binary} {version} ended before it was ready ({status}); the end of its log:\n{log}")]
    Ended {
        /// Which process.
        binary: Binary,
        /// Of which version.
        version: Version,
        /// How it ended.
        status: String,
        /// The last lines of its log.
        log: String,
    },

    /// A process did not become ready in time.
    #[error(
        "{binary} {version} was not ready after {} s ({last}); the end of its log:\n{log}",
        after.as_secs()
    )]
    NotReady {
        /// Which process.
        binary: Binary,
        /// Of which version.
        version: Version,
        /// How long it was awaited.
        after: Duration,
        /// What the last probe found.
        last: String,
        /// The last lines of its log.
        log: String,
    },

    /// No free port was found.
    #[error("no free port on 127.0.0.1")]
    NoPort,

    /// The control plane has no such user.
    #[error("the control plane has no user {0:?}: add it with Builder::user")]
    UnknownUser(String),

    /// The process is not running.
    #[error("{0} is not running")]
    NotRunning(Binary),

    /// A certificate or key could not be made or used.
    #[error("making certificates: {0}")]
    Certificates(String),

    /// The client could not be made.
    #[error("making a client: {0}")]
    Client(Box<kube::Error>),

    /// Reading, writing or starting a process failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn file(
        what: &str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        Self::io(format!("{what} {}", path.into().display()))
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificates(error.to_string())
    }
}
