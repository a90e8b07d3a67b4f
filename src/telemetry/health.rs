//! Whether the operator is alive and ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A loop that must come round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// The one that takes and renews the Lease.
    Election,
    /// The one that observes, decides and reports.
    Reconcile,
}

impl Loop {
    const ALL: [Self; 2] = [Self::Election, Self::Reconcile];

    /// What it is called.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Election => "election",
            Self::Reconcile => "reconcile",
        }
    }
}

/// Whether an instance is alive and ready. All clones are the same.
#[derive(Clone, Debug)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    ready: AtomicBool,
    /// When each loop last gave a sign, in milliseconds after `start`; 0: it does not run.
    beats: [AtomicU64; Loop::ALL.len()],
}

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(Inner {
            start: Instant::now(),
            ready: AtomicBool::new(false),
            beats: [const { AtomicU64::new(0) }; Loop::ALL.len()],
        }))
    }
}

impl Health {
    /// The hub was read: the instance can do its work, or take over.
    pub fn ready(&self) {
        self.0.ready.store(true, Ordering::SeqCst);
    }

    /// Whether the hub was read.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::SeqCst)
    }

    /// The loop runs and made progress.
    pub fn beat(&self, of: Loop) {
        let elapsed = self.0.start.elapsed().as_millis();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX).max(1);
        self.0.beats[of as usize].store(elapsed, Ordering::SeqCst);
    }

    /// The loop has ended.
    pub fn ended(&self, of: Loop) {
        self.0.beats[of as usize].store(0, Ordering::SeqCst);
    }

    /// A loop that has given no sign for `limit`.
    #[must_use]
    pub fn stuck(&self, limit: Duration) -> Option<Loop> {
        self.stuck_at(self.0.start.elapsed(), limit)
    }

    fn stuck_at(&self, now: Duration, limit: Duration) -> Option<Loop> {
        Loop::ALL.into_iter().find(|&of| {
            let beat = self.0.beats[of as usize].load(Ordering::SeqCst);
            beat != 0 && now.saturating_sub(Duration::from_millis(beat)) > limit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_gives_no_sign_is_stuck_unless_it_ended() {
        let health = Health::default();
        let limit = Duration::from_mins(1);
        assert_eq!(health.stuck_at(limit * 3, limit), None);
        health.beat(Loop::Election);
        assert_eq!(health.stuck_at(limit / 2, limit), None);
        assert_eq!(health.stuck_at(limit * 3, limit), Some(Loop::Election));
        health.ended(Loop::Election);
        assert_eq!(health.stuck_at(limit * 3, limit), None);
    }
}
