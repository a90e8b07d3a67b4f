//! Answers of the hub, kept for a short time. Bounded, and asked for once however many wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

/// What an answer is kept under: a hash, so that no token is.
pub(super) type Key = [u8; 32];

/// Answers by key.
pub(super) struct Cache<V> {
    limit: usize,
    entries: Mutex<HashMap<Key, Arc<Entry<V>>>>,
}

struct Entry<V> {
    made: Instant,
    answer: OnceCell<(V, Instant)>,
}

impl<V> Entry<V> {
    fn is_over(&self, now: Instant) -> bool {
        let answer = self.answer.get();
        answer.is_some_and(|(_, until)| *until <= now)
    }

    /// What goes first where there is no room.
    fn end(&self) -> Instant {
        self.answer.get().map_or(self.made, |(_, until)| *until)
    }
}

impl<V: Clone> Cache<V> {
    /// Keeps at most `limit` answers.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            entries: Mutex::default(),
        }
    }

    /// The answer that is kept, else the one that `ask` gives, with how long it is kept.
    pub(super) async fn get_or(&self, key: Key, ask: impl Future<Output = (V, Duration)>) -> V {
        let entry = self.entry(key);
        let answer = entry.answer.get_or_init(|| async {
            let (answer, keep) = ask.await;
            (answer, Instant::now() + keep)
        });
        answer.await.0.clone()
    }

    /// The answer that is kept.
    pub(super) fn get(&self, key: Key) -> Option<V> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(&key)?;
        let (answer, until) = entry.answer.get()?;
        (*until > Instant::now()).then(|| answer.clone())
    }

    fn entry(&self, key: Key) -> Arc<Entry<V>> {
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(&key)
            && !entry.is_over(now)
        {
            return entry.clone();
        }
        if entries.len() >= self.limit {
            entries.retain(|_, entry| !entry.is_over(now));
        }
        if entries.len() >= self.limit {
            let first = entries.iter().min_by_key(|(_, entry)| entry.end());
            let first = first.map(|(key, _)| *key);
            first.and_then(|key| entries.remove(&key));
        }
        let entry = Arc::new(Entry {
            made: now,
            answer: OnceCell::new(),
        });
        entries.insert(key, entry.clone());
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn key(n: u8) -> Key {
        [n; 32]
    }

    #[tokio::test]
    async fn many_who_wait_ask_once() {
        let cache = Cache::new(4);
        let asked = AtomicU32::new(0);
        let one = || {
            cache.get_or(key(1), async {
                tokio::task::yield_now().await;
                (asked.fetch_add(1, Ordering::SeqCst), LONG)
            })
        };
        let answers = futures::future::join_all((0..100).map(|_| one())).await;
        assert_eq!(answers, [0; 100]);
    }

    #[tokio::test]
    async fn one_who_gives_up_leaves_it_to_the_next() {
        let cache = Cache::new(4);
        let never = cache.get_or(key(1), std::future::pending());
        assert!(
            tokio::time::timeout(Duration::from_millis(1), never)
                .await
                .is_err()
        );
        assert_eq!(cache.get_or(key(1), async { (7, LONG) }).await, 7);
    }

    #[tokio::test]
    async fn an_answer_is_kept_as_long_as_it_says() {
        let cache = Cache::new(4);
        assert_eq!(cache.get_or(key(1), async { (1, Duration::ZERO) }).await, 1);
        assert_eq!(cache.get(key(1)), None);
        assert_eq!(cache.get_or(key(1), async { (2, LONG) }).await, 2);
        assert_eq!(cache.get_or(key(1), async { (3, LONG) }).await, 2);
        assert_eq!(cache.get(key(1)), Some(2));
    }

    #[tokio::test]
    async fn there_are_never_more_than_the_limit() {
        let cache = Cache::new(4);
        for n in 0..100 {
            assert_eq!(cache.get_or(key(n), async { (n, LONG) }).await, n);
            assert!(cache.entries.lock().unwrap().len() <= 4);
        }
        assert_eq!(cache.get(key(99)), Some(99));
        assert_eq!(cache.get(key(1)), None);
    }
}
