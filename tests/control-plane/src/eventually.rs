use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Calls `f` until it returns something, which it gives back.
///
/// Waits 50 ms between calls, and abandons a call that is still running at the deadline.
///
/// # Panics
///
/// Panics, naming `what`, when `f` has returned nothing by the deadline: it is meant for tests.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut f: impl AsyncFnMut() -> Option<T>,
) -> T {
    let until = Instant::now() + deadline;
    loop {
        if let Ok(Some(found)) = timeout_at(until, f()).await {
            return found;
        }
        assert!(Instant::now() < until, "not within {deadline:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}
