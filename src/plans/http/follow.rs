//! Policies and types as they are on the hub, and when that was last heard.
//!
//! A watch that is silent may be a quiet hub or a dead one. So each watch is short: the hub ends it
//! itself after a period, and only an event, or an end at its time, counts as heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};
use tokio::time::{Instant, timeout, timeout_at};

/// How much longer than its period a watch may take.
const GRACE: Duration = Duration::from_secs(2);

/// How long it is waited before something is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Objects in one answer of the hub.
const PAGE: u32 = 500;

/// Events that are taken together.
const TOGETHER: usize = 512;

/// What is kept of the objects of a kind.
pub(super) trait Keep: Send {
    /// What is kept of one object.
    type Kept: Clone + Send + Sync;

    /// What to keep of an object, if anything.
    fn read(&self, object: &DynamicObject) -> Option<Self::Kept>;

    /// Everything is like this now.
    fn publish(&self, all: &BTreeMap<String, Arc<Self::Kept>>);

    /// What was published is what the hub has at this time.
    fn heard(&self, at: Instant);
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Kube(#[from] kube::Error),
    #[error("the hub is silent")]
    Silent(#[from] tokio::time::error::Elapsed),
    #[error("the hub ended a watch before its time")]
    Early,
    #[error("the hub gave a list without its version")]
    Versionless,
}

/// Follows a kind for ever.
pub(super) async fn follow<K: Keep>(
    api: Api<DynamicObject>,
    kind: &str,
    period: Duration,
    keep: K,
) {
    let mut follower = Follower {
        api,
        period,
        all: BTreeMap::new(),
        version: None,
        keep,
    };
    let mut told = false;
    loop {
        match follower.step().await {
            Ok(()) => told = false,
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(kind, %error, "the plan API can't follow the hub; it is tried again");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

struct Follower<K: Keep> {
    api: Api<DynamicObject>,
    period: Duration,
    all: BTreeMap<String, Arc<K::Kept>>,
    /// From where to watch. None: everything must be listed.
    version: Option<String>,
    keep: K,
}

impl<K: Keep> Follower<K> {
    async fn step(&mut self) -> Result<(), Trouble> {
        match self.version.clone() {
            None => self.list().await,
            Some(version) => self.watch(&version).await,
        }
    }

    async fn list(&mut self) -> Result<(), Trouble> {
        let asked = Instant::now();
        let limit = self.period + GRACE;
        let mut params = ListParams::default().limit(PAGE);
        let mut all = BTreeMap::new();
        loop {
            let page = timeout(limit, self.api.list(&params)).await??;
            for object in &page.items {
                let kept = self.keep.read(object);
                all.extend(kept.map(|kept| (object.name_any(), Arc::new(kept))));
            }
            if let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) {
                params = params.continue_token(&token);
                continue;
            }
            let version = page.metadata.resource_version;
            self.version = Some(version.ok_or(Trouble::Versionless)?);
            break;
        }
        self.all = all;
        self.keep.publish(&self.all);
        self.keep.heard(asked);
        Ok(())
    }

    async fn watch(&mut self, version: &str) -> Result<(), Trouble> {
        let asked = Instant::now();
        let end = asked + self.period + GRACE;
        let seconds = u32::try_from(self.period.as_secs()).unwrap_or(u32::MAX);
        let params = WatchParams::default().timeout(seconds);
        let events = timeout_at(end, self.api.watch(&params, version)).await??;
        let mut events = events.ready_chunks(TOGETHER).boxed();
        while let Some(chunk) = timeout_at(end, events.next()).await? {
            let at = Instant::now();
            let mut changed = false;
            let mut trouble = None;
            for event in chunk {
                match event {
                    Ok(event) => changed |= self.take(event)?,
                    Err(error) => {
                        trouble = Some(error);
                        break;
                    }
                }
            }
            if changed {
                self.keep.publish(&self.all);
            }
            if let Some(error) = trouble {
                return Err(error.into());
            }
            self.keep.heard(at);
        }
        if asked.elapsed() + Duration::from_millis(500) < self.period {
            return Err(Trouble::Early);
        }
        self.keep.heard(Instant::now());
        Ok(())
    }

    /// Whether the event changed anything.
    fn take(&mut self, event: WatchEvent<DynamicObject>) -> Result<bool, Trouble> {
        let version = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let name = object.name_any();
                match self.keep.read(&object) {
                    Some(kept) => self.all.insert(name, Arc::new(kept)),
                    None => self.all.remove(&name),
                };
                object.metadata.resource_version
            }
            WatchEvent::Deleted(object) => {
                self.all.remove(&object.name_any());
                object.metadata.resource_version
            }
            WatchEvent::Bookmark(bookmark) => {
                self.version = Some(bookmark.metadata.resource_version);
                return Ok(false);
            }
            WatchEvent::Error(status) => {
                // Whatever it is, mostly that the version is too old: a list is right again.
                self.version = None;
                return Err(kube::Error::Api(status).into());
            }
        };
        self.version = version.or(self.version.take());
        Ok(true)
    }
}
