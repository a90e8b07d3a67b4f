//! Which of several instances of the operator leads: the one that holds a Lease.
//!
//! No two clocks are compared. The holder counts from before it asked to renew, and stops writing
//! after `renew_deadline`; the others count from after they saw the renewal, and wait for
//! `lease_duration`, which is longer.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};

use super::write::WriteError;
use crate::fleet::{Fence, jitter};
use crate::telemetry::{ErrorClass, Loop, Telemetry};

/// The name of the Lease.
pub const LEASE: &str = "boundary-operator";

/// How the leader is elected.
#[derive(Clone, Debug)]
pub struct Election {
    /// Under which name the instance holds the Lease; each instance has another.
    pub identity: String,
    /// How long the others wait after they last saw the holder renew.
    pub lease_duration: Duration,
    /// How long the holder goes on after it last renewed; less than `lease_duration`.
    pub renew_deadline: Duration,
    /// How often the holder renews and the others look; less than `renew_deadline`.
    pub retry_period: Duration,
}

impl Election {
    /// Usual times: 15, 10 and 2 seconds.
    #[must_use]
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// What is wrong with the times, if anything.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        if self.renew_deadline >= self.lease_duration {
            return Some("the renew deadline must be shorter than the lease duration");
        }
        if self.retry_period >= self.renew_deadline {
            return Some("the retry period must be shorter than the renew deadline");
        }
        if self.lease_duration < Duration::from_secs(1) {
            return Some("the lease duration must be a second or more");
        }
        None
    }
}

/// What to do about a Lease.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// It is ours.
    Hold,
    /// It is free, or its holder is gone.
    Take,
    /// It is another's.
    Wait,
}

/// What was last seen of the Lease, and when it was first seen so.
#[derive(Clone, Debug)]
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

impl Seen {
    /// Takes note of the Lease as it is at `now`.
    fn note(seen: &mut Option<Self>, spec: &LeaseSpec, now: Instant) {
        if seen.as_ref().is_none_or(|seen| seen.spec != *spec) {
            *seen = Some(Self {
                spec: spec.clone(),
                since: now,
            });
        }
    }

    fn decide(&self, identity: &str, now: Instant) -> Decision {
        let holder = self.spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() {
            return Decision::Take;
        }
        if holder == identity {
            return Decision::Hold;
        }
        // What the holder promised counts, not what this instance would.
        let seconds = self.spec.lease_duration_seconds.unwrap_or_default();
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        if now.saturating_duration_since(self.since) >= duration {
            Decision::Take
        } else {
            Decision::Wait
        }
    }
}

/// Takes part in the election.
pub(crate) struct Elector {
    election: Election,
    api: Api<Lease>,
    timeout: Duration,
    fence: Fence,
    telemetry: Telemetry,
    seen: Option<Seen>,
    /// The Lease as it was last read or written.
    lease: Option<Lease>,
}

impl Elector {
    /// Takes part in the election of `namespace`; `fence` is open while this instance leads.
    pub(crate) fn new(
        election: Election,
        client: Client,
        namespace: &str,
        timeout: Duration,
        fence: Fence,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            // So that a request which gets no answer leaves time for another.
            timeout: timeout.min(election.renew_deadline / 2),
            election,
            api: Api::namespaced(client, namespace),
            fence,
            telemetry,
            seen: None,
            lease: None,
        }
    }

    /// Waits until this instance leads.
    pub(crate) async fn acquire(&mut self) {
        let mut told = String::new();
        loop {
            self.telemetry.health.beat(Loop::Election);
            match self.attempt().await {
                Ok(true) => {
                    tracing::info!(identity = self.election.identity, "this instance leads");
                    return;
                }
                Ok(false) => {
                    let holder = self.holder().unwrap_or_default();
                    if holder != told {
                        tracing::info!(holder, "another instance leads");
                        holder.clone_into(&mut told);
                    }
                }
                Err(error) => {
                    self.telemetry.metrics.error(ErrorClass::Lease);
                    tracing::warn!(%error, "the Lease can't be taken; it is tried again");
                }
            }
            tokio::time::sleep(jitter(self.election.retry_period)).await;
        }
    }

    /// Holds on to the Lease, until it is lost. From then on the fence is closed.
    pub(crate) async fn keep(&mut self) {
        let mut deadline = Instant::now() + self.election.renew_deadline;
        loop {
            self.telemetry.health.beat(Loop::Election);
            let wait = self.election.retry_period;
            tokio::time::sleep(wait.min(deadline.saturating_duration_since(Instant::now()))).await;
            let now = Instant::now();
            if !self.fence.is_open() {
                break;
            }
            let left = deadline.saturating_duration_since(now);
            match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(true)) => deadline = now + self.election.renew_deadline,
                Ok(Ok(false)) => {
                    let holder = self.holder().unwrap_or_default();
                    tracing::error!(holder, "another instance has taken the Lease");
                    break;
                }
                Ok(Err(error)) => {
                    self.telemetry.metrics.error(ErrorClass::Lease);
                    tracing::warn!(%error, "the Lease can't be renewed; it is tried again");
                }
                Err(_) => {}
            }
        }
        self.fence.close();
        tracing::error!("this instance leads no more");
    }

    /// Gives the Lease back, so that another instance need not wait. The fence is closed before.
    pub(crate) async fn release(mut self) {
        self.fence.close();
        let release = async {
            // It may have been renewed since it was last read here.
            let Some(mut lease) = self.read().await? else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(&self.election.identity) {
                return Ok(());
            }
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            self.write(&lease).await
        };
        if let Err::<_, WriteError>(error) = release.await {
            tracing::warn!(%error, "the Lease can't be given back; it runs out");
        }
    }

    /// Takes or renews the Lease if it is free or ours, and says whether this instance holds it.
    async fn attempt(&mut self) -> Result<bool, WriteError> {
        let sent = Instant::now();
        let known = self.lease.take();
        let held = known.as_ref().is_some_and(|lease| {
            let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.as_ref());
            holder == Some(&self.election.identity)
        });
        // The holder knows the Lease, and sees by a conflict if it is not so any more.
        let mut current = if held { known } else { self.read().await? };
        let mut written = self.put(current.as_ref()).await;
        if held && written.as_ref().is_err_and(WriteError::is_conflict) {
            current = self.read().await?;
            written = self.put(current.as_ref()).await;
        }
        match written {
            Ok(true) => {
                self.fence.open_until(sent + self.election.renew_deadline);
                Ok(true)
            }
            Ok(false) => {
                self.lease = current;
                Ok(false)
            }
            // Another was faster.
            Err(error) if error.is_conflict() && !held => {
                self.lease = None;
                Ok(false)
            }
            Err(error) => {
                self.lease = current;
                Err(error)
            }
        }
    }

    /// Writes the Lease over `current` if it may be had.
    async fn put(&mut self, current: Option<&Lease>) -> Result<bool, WriteError> {
        let identity = self.election.identity.clone();
        let spec = current.and_then(|lease| lease.spec.clone());
        let spec = spec.unwrap_or_default();
        Seen::note(&mut self.seen, &spec, Instant::now());
        let decision = self
            .seen
            .as_ref()
            .map_or(Decision::Take, |s| s.decide(&identity, Instant::now()));
        let now = MicroTime(Timestamp::now());
        let taken = match decision {
            Decision::Wait => return Ok(false),
            Decision::Hold => spec,
            Decision::Take => LeaseSpec {
                acquire_time: Some(now.clone()),
                lease_transitions: Some(match (current, spec.lease_transitions) {
                    (None, _) => 0,
                    (Some(_), before) => before.unwrap_or_default().saturating_add(1),
                }),
                ..spec
            },
        };
        let seconds = self.election.lease_duration.as_secs_f64().ceil();
        let lease = Lease {
            metadata: current.map_or_else(
                || ObjectMeta {
                    name: Some(LEASE.to_owned()),
                    ..ObjectMeta::default()
                },
                |lease| lease.metadata.clone(),
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(identity),
                lease_duration_seconds: Some(rounded(seconds)),
                renew_time: Some(now),
                ..taken
            }),
        };
        self.write(&lease).await?;
        Ok(true)
    }

    async fn read(&self) -> Result<Option<Lease>, WriteError> {
        within(self.timeout, self.api.get_opt(LEASE)).await
    }

    async fn write(&mut self, lease: &Lease) -> Result<(), WriteError> {
        let params = PostParams::default();
        let written = if lease.metadata.resource_version.is_some() {
            within(self.timeout, self.api.replace(LEASE, &params, lease)).await?
        } else {
            within(self.timeout, self.api.create(&params, lease)).await?
        };
        self.lease = Some(written);
        Ok(())
    }

    fn holder(&self) -> Option<&str> {
        let spec = self.lease.as_ref()?.spec.as_ref()?;
        spec.holder_identity.as_deref()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a lease of 68 years is long enough"
)]
fn rounded(seconds: f64) -> i32 {
    seconds.clamp(1.0, f64::from(i32::MAX)) as i32
}

async fn within<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, WriteError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(WriteError::Timeout(timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_taken_when_its_holder_was_not_seen_to_renew_for_its_duration() {
        let start = Instant::now();
        let mut seen = None;
        // Its time is long past by our clock; what counts is when it was seen here.
        Seen::note(&mut seen, &spec("a", 0), start);
        let decide = |seen: &Option<Seen>, at| seen.as_ref().unwrap().decide("b", after(start, at));
        assert_eq!(decide(&seen, 14), Decision::Wait);
        assert_eq!(decide(&seen, 15), Decision::Take);

        Seen::note(&mut seen, &spec("a", 0), after(start, 10));
        assert_eq!(decide(&seen, 15), Decision::Take);
        Seen::note(&mut seen, &spec("a", 1), after(start, 10));
        assert_eq!(decide(&seen, 24), Decision::Wait);
        assert_eq!(decide(&seen, 25), Decision::Take);
    }

    #[test]
    fn a_lease_without_a_holder_is_free_and_ones_own_is_held() {
        let now = Instant::now();
        let mut seen = None;
        Seen::note(&mut seen, &LeaseSpec::default(), now);
        assert_eq!(seen.as_ref().unwrap().decide("a", now), Decision::Take);
        Seen::note(&mut seen, &spec("a", 1), now);
        let late = after(now, 100);
        assert_eq!(seen.as_ref().unwrap().decide("a", late), Decision::Hold);
    }

    #[test]
    fn the_holder_stops_before_the_others_start() {
        assert_eq!(Election::new("a").problem(), None);
        let wrong = Election {
            renew_deadline: Duration::from_secs(15),
            ..Election::new("a")
        };
        assert!(wrong.problem().is_some());
    }
}
