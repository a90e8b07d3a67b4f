//! What is known of policies and types, and whether that is still true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::follow::{Keep, follow};
use crate::api::{BoundaryPolicy, ComputeResourceType};
use crate::plans::{BoundaryPlans, Catalog, PlanPolicy};
use crate::telemetry::PlanMetrics;

/// What is known.
pub(super) struct Known {
    stale_after: Duration,
    start: Instant,
    start_time: Timestamp,
    policies: RwLock<Arc<Policies>>,
    types: RwLock<Arc<Types>>,
    /// When the hub was last heard of policies and of types, in milliseconds after `start`; 0: never.
    heard: [AtomicU64; 2],
    metrics: PlanMetrics,
}

/// What the policies say.
#[derive(Default)]
pub(super) struct Policies {
    pub(super) plans: BoundaryPlans,
    /// Policies that say something of compute plans which can't be read, by boundary.
    pub(super) unreadable: BTreeMap<String, BTreeSet<String>>,
}

/// The types of resources.
#[derive(Default)]
pub(super) struct Types {
    pub(super) catalog: Catalog,
    /// Those that can't be used.
    pub(super) unusable: BTreeSet<String>,
}

/// Why nothing can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Not everything was listed yet.
    NotSynced,
    /// The hub was last heard so long ago.
    Stale(Duration),
}

impl Known {
    /// Nothing yet.
    pub(super) fn new(stale_after: Duration, metrics: PlanMetrics) -> Arc<Self> {
        Arc::new(Self {
            stale_after,
            start: Instant::now(),
            start_time: Timestamp::now(),
            policies: RwLock::default(),
            types: RwLock::default(),
            heard: [const { AtomicU64::new(0) }; 2],
            metrics,
        })
    }

    /// Follows the hub, until the set is dropped.
    pub(super) fn follow(self: &Arc<Self>, client: &Client) -> JoinSet<()> {
        // Of three watches two may fail.
        let period = Duration::from_secs((self.stale_after / 3).as_secs().max(1));
        let mut following = JoinSet::new();
        let api = |resource| Api::<DynamicObject>::all_with(client.clone(), &resource);
        let policies = api(ApiResource::erase::<BoundaryPolicy>(&()));
        let keep = KeepPolicies(self.clone());
        following.spawn(async move { follow(policies, "BoundaryPolicy", period, keep).await });
        let types = api(ApiResource::erase::<ComputeResourceType>(&()));
        let keep = KeepTypes(self.clone());
        following.spawn(async move { follow(types, "ComputeResourceType", period, keep).await });
        following
    }

    /// The policies and the types, if they are what the hub has.
    pub(super) fn current(&self) -> Result<(Arc<Policies>, Arc<Types>), Unknown> {
        self.current_at(Instant::now())
    }

    fn current_at(&self, now: Instant) -> Result<(Arc<Policies>, Arc<Types>), Unknown> {
        let heard = self.heard();
        if heard == 0 {
            return Err(Unknown::NotSynced);
        }
        let since = now.saturating_duration_since(self.start);
        let since = since.saturating_sub(Duration::from_millis(heard));
        if since > self.stale_after {
            return Err(Unknown::Stale(since));
        }
        let policies = self.policies.read();
        let policies = policies.unwrap_or_else(PoisonError::into_inner).clone();
        Ok((policies, self.types()))
    }

    /// The types as they were last heard.
    pub(super) fn types(&self) -> Arc<Types> {
        let types = self.types.read();
        types.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn heard(&self) -> u64 {
        let heard = self.heard.iter().map(|at| at.load(Ordering::SeqCst));
        heard.min().unwrap_or_default()
    }

    fn hear(&self, of: usize, at: Instant) {
        let at = at.saturating_duration_since(self.start).as_millis();
        let at = u64::try_from(at).unwrap_or(u64::MAX).max(1);
        self.heard[of].fetch_max(at, Ordering::SeqCst);
        let heard = self.heard();
        if heard > 0 {
            let heard = i64::try_from(heard / 1_000).unwrap_or(i64::MAX);
            self.metrics
                .heard(self.start_time.as_second().saturating_add(heard));
        }
    }
}

/// What one policy says of compute plans: its boundary, and what, unless that can't be read.
type Said = (String, Result<Arc<PlanPolicy>, String>);

struct KeepPolicies(Arc<Known>);

impl Keep for KeepPolicies {
    type Kept = Said;

    fn read(&self, object: &DynamicObject) -> Option<Said> {
        said(object)
    }

    fn publish(&self, all: &BTreeMap<String, Arc<Said>>) {
        let mut unreadable: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let mut readable = Vec::new();
        for (name, said) in all {
            let (boundary, policy) = said.as_ref();
            match policy {
                Ok(policy) => readable.push((boundary.clone(), policy.clone())),
                Err(error) => {
                    tracing::warn!(
                        policy = name,
                        error,
                        "a policy's compute plans can't be read"
                    );
                    let names = unreadable.entry(boundary.clone()).or_default();
                    names.insert(name.clone());
                }
            }
        }
        let policies = Arc::new(Policies {
            plans: BoundaryPlans::new(readable),
            unreadable,
        });
        let mut place = (self.0.policies.write()).unwrap_or_else(PoisonError::into_inner);
        *place = policies;
    }

    fn heard(&self, at: Instant) {
        self.0.hear(0, at);
    }
}

/// What a policy says, if anything. What else is in it may be anything.
fn said(object: &DynamicObject) -> Option<Said> {
    let spec = object.data.get("spec")?;
    let boundary = spec.get("boundary")?.as_str()?.to_owned();
    let rule = match spec.get("rules") {
        None | Some(Value::Null) => return None,
        Some(Value::Object(rules)) => rules.get("allowedComputePlans")?,
        Some(_) => return Some((boundary, Err("spec.rules is no object".to_owned()))),
    };
    let policy = || -> Result<_, serde_json::Error> {
        let action = spec.get("action").filter(|action| !action.is_null());
        Ok(Arc::new(PlanPolicy {
            name: object.name_any(),
            action: action
                .map(|action| serde_json::from_value(action.clone()))
                .transpose()?
                .unwrap_or_default(),
            rule: serde_json::from_value(rule.clone())?,
        }))
    };
    Some((boundary, policy().map_err(|error| error.to_string())))
}

struct KeepTypes(Arc<Known>);

impl Keep for KeepTypes {
    type Kept = Option<ComputeResourceType>;

    fn read(&self, object: &DynamicObject) -> Option<Self::Kept> {
        Some(object.clone().try_parse().ok())
    }

    fn publish(&self, all: &BTreeMap<String, Arc<Self::Kept>>) {
        let (catalog, invalid) =
            Catalog::of(all.values().filter_map(|kept| kept.as_ref().as_ref()));
        let unread = all.iter().filter(|(_, kept)| kept.is_none());
        let unusable = invalid
            .into_keys()
            .chain(unread.map(|(name, _)| name.clone()));
        let types = Arc::new(Types {
            catalog,
            unusable: unusable.collect(),
        });
        let mut place = (self.0.types.write()).unwrap_or_else(PoisonError::into_inner);
        *place = types;
    }

    fn heard(&self, at: Instant) {
        self.0.hear(1, at);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(spec: &Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "boundarypolicy.dev/v1alpha1", "kind": "BoundaryPolicy",
            "metadata": {"name": "p"}, "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_policy_says_something_or_nothing_or_what_can_not_be_read() {
        let rules = json!({"allowedComputePlans": {"plans": ["small"]}, "unknown": 5});
        let (boundary, read) = said(&policy(&json!({"boundary": "web", "rules": rules}))).unwrap();
        assert_eq!(boundary, "web");
        assert_eq!(read.unwrap().rule.plans, ["small"]);
        let other = json!({"boundary": "web", "rules": {"disallowLatestTag": {}}});
        assert_eq!(said(&policy(&other)), None);
        for bad in [
            json!({"boundary": "web", "rules": {"allowedComputePlans": 5}}),
            json!({"boundary": "web", "rules": "x"}),
            json!({"boundary": "web", "action": "Perhaps", "rules": rules}),
        ] {
            assert!(said(&policy(&bad)).unwrap().1.is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_is_known_before_both_kinds_were_heard_and_when_either_is_silent() {
        let limit = Duration::from_secs(15);
        let known = Known::new(limit, PlanMetrics::default());
        let at = |seconds| known.start + Duration::from_secs(seconds);
        let not_synced = Some(Unknown::NotSynced);
        assert_eq!(known.current_at(at(1)).err(), not_synced);
        known.hear(0, at(1));
        assert_eq!(known.current_at(at(1)).err(), not_synced);
        known.hear(1, at(1));
        assert!(known.current_at(at(1)).is_ok());
        known.hear(1, at(16));
        assert!(known.current_at(at(16)).is_ok());
        let stale = Some(Unknown::Stale(Duration::from_secs(16)));
        assert_eq!(known.current_at(at(17)).err(), stale);
        known.hear(0, at(17));
        assert!(known.current_at(at(17)).is_ok());
    }
}
