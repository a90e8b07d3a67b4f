//! The commands that talk to clusters: members come and go, and what is enforced where.

mod hub;
mod member;
mod register;
mod status;
mod uninstall;
mod unregister;

pub(super) use register::Register;
pub(super) use status::Status;
pub(super) use uninstall::Uninstall;
pub(super) use unregister::Unregister;

use std::future::Future;
use std::io;
use std::time::Duration;

use kube::Client;
use tokio::time::{Instant, sleep};

use super::{Error, Outcome};

/// The label of what `register` makes: `unregister` removes nothing else.
const REGISTERED: &str = "boundarypolicy.dev/registered";

/// The annotation of a `MemberCluster` with the context that it was registered by.
const CONTEXT: &str = "boundarypolicy.dev/context";

/// Under which name objects are written.
const MANAGER: &str = "kubectl-boundary";

/// How long until something is looked at again.
const POLL: Duration = Duration::from_millis(250);

/// Why a command failed, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(pub(super) String);

impl Trouble {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self(format!("the output can't be written: {error}"))
    }
}

type Result<T> = std::result::Result<T, Trouble>;

/// Says where a request failed.
trait At<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> At<T> for std::result::Result<T, kube::Error> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| {
            let why = match &error {
                kube::Error::Api(status) => status.message.clone(),
                other => whole(other),
            };
            Trouble(format!("{}: {why}", what()))
        })
    }
}

/// An error and all that caused it.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Asks until there is an answer or the time is over.
async fn until<T>(
    timeout: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = Instant::now() + timeout;
    loop {
        let answer = ask().await?;
        if answer.is_some() || Instant::now() >= end {
            return Ok(answer);
        }
        sleep(POLL).await;
    }
}

/// Which cluster it is: the uid of its namespace `kube-system`.
async fn identity(client: &Client) -> std::result::Result<String, kube::Error> {
    use k8s_openapi::api::core::v1::Namespace;
    let api: kube::Api<Namespace> = kube::Api::all(client.clone());
    let namespace = api.get("kube-system").await?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}

/// Runs a command to its end.
pub(super) fn finish(
    command: impl Future<Output = Result<Outcome>>,
) -> std::result::Result<Outcome, Error> {
    // Fails when there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Output)?;
    runtime.block_on(command).map_err(Error::Fleet)
}

/// Reads `500ms`, `10s`, `5m`, `1h`.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("write it like 500ms, 10s, 5m or 1h".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "it has no number that can be read".to_owned())?;
    (number.checked_mul(unit))
        .map(Duration::from_millis)
        .ok_or_else(|| "it is too long".to_owned())
}
