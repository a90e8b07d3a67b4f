//! When to try again.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Waits that double from one failure to the next, each with jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    failures: u32,
    longest: Duration,
}

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(500);

    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            failures: 0,
            longest,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = Self::SHORTEST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        jitter(wait.min(self.longest))
    }
}

/// `wait`, or up to a fifth less, so that clusters don't move in step.
pub(crate) fn jitter(wait: Duration) -> Duration {
    // The keys of the hasher are random; nothing here needs better.
    let random = RandomState::new().hash_one(0_u8) % 200;
    let less = wait / 1000 * u32::try_from(random).unwrap_or_default();
    wait.saturating_sub(less)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest_and_begin_anew_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(10));
        let first = backoff.next();
        assert!(first <= Backoff::SHORTEST && first >= Backoff::SHORTEST * 4 / 5);
        for _ in 0..100 {
            assert!(backoff.next() <= Duration::from_secs(10));
        }
        assert!(backoff.next() >= Duration::from_secs(8));
        backoff.reset();
        assert!(backoff.next() <= Backoff::SHORTEST);
    }
}
