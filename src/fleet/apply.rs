//! Brings a cluster to what is wanted there, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};

use super::failure::{Failure, limited};
use super::plan::{Existing, Plan, Step, plan};
use super::prove::{Acting, Prover};
use super::target::{FIELD_MANAGER, Target};
use crate::compile::{AdmissionObject, GUARD};

/// How often a plan is made anew when the cluster changes under it.
const ROUNDS: usize = 3;

/// How long an API server takes to act on a change, with some room: up to 629 ms were measured. Only
/// where it can't be seen.
const SETTLE: Duration = Duration::from_millis(1500);

/// How far an attempt came.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What is in the cluster now.
    pub(crate) existing: Existing,
    /// What remains to be done.
    pub(crate) remaining: Plan,
    /// Objects that could not be written, and why.
    pub(crate) failed: BTreeMap<String, Failure>,
    /// Objects that were not as they are wanted, and whether they were there.
    pub(crate) differed: BTreeMap<String, bool>,
}

/// Brings the cluster to `wanted` and reads back what is there. With a prover it waits until what a
/// policy moved to acts.
///
/// # Errors
/// The cluster can't be read, or does not answer.
pub(crate) async fn apply(
    target: &Target,
    mut prover: Option<&mut Prover>,
    wanted: &[AdmissionObject],
) -> Result<Outcome, Failure> {
    let mut failed = BTreeMap::new();
    let mut differed = BTreeMap::new();
    for round in 0.. {
        let existing = target.list().await?;
        let remaining = plan(&existing, wanted);
        for name in remaining.steps.iter().filter_map(Step::object) {
            let whole =
                existing.policies.contains_key(name) && existing.bindings.contains_key(name);
            differed.entry(name.to_owned()).or_insert(whole);
        }
        let conflicts = failed
            .values()
            .all(|failure| matches!(failure, Failure::Conflict(_)));
        if remaining.steps.is_empty() || round == ROUNDS || !conflicts {
            return Ok(Outcome {
                existing,
                remaining,
                failed,
                differed,
            });
        }
        let walk = target.walk(remaining.steps, wanted, prover.as_deref_mut());
        failed = walk.await?;
    }
    Ok(Outcome::default())
}

/// Removes everything of ours from the cluster.
///
/// # Errors
/// The cluster can't be read, does not answer, or refuses.
pub(crate) async fn remove_all(target: &Target) -> Result<(), Failure> {
    let outcome = apply(target, None, &[]).await?;
    match outcome.failed.into_values().next() {
        Some(failure) => Err(failure),
        None => Prover::leave(target).await,
    }
}

impl Target {
    async fn list(&self) -> Result<Existing, Failure> {
        fn by_name<K: kube::Resource + Clone>(
            list: kube::core::ObjectList<K>,
        ) -> BTreeMap<String, K> {
            list.into_iter()
                .map(|object| (object.name_any(), object))
                .collect()
        }
        // The answers are large; so many of them are held at the same time.
        let _permit = self.permits.acquire().await.ok();
        let all = ListParams::default();
        let policies = limited(self.timeout, self.policies().list(&all)).await?;
        let bindings = limited(self.timeout, self.bindings().list(&all)).await?;
        Ok(Existing {
            policies: by_name(policies),
            bindings: by_name(bindings),
        })
    }

    /// Takes the steps. Where one fails, the further steps of that object are left out, and nothing
    /// is taken from where a policy was before.
    async fn walk(
        &self,
        steps: Vec<Step>,
        wanted: &[AdmissionObject],
        mut prover: Option<&mut Prover>,
    ) -> Result<BTreeMap<String, Failure>, Failure> {
        let mut failed: BTreeMap<String, Failure> = BTreeMap::new();
        for step in steps {
            let name = match &step {
                Step::Settle(names) => {
                    // The guard holds no policy that could be lost.
                    if failed.keys().any(|name| name != GUARD) {
                        break;
                    }
                    let objects = wanted.iter().filter(|object| names.contains(&object.name));
                    if !settle(objects, prover.as_deref_mut()).await? {
                        break;
                    }
                    continue;
                }
                Step::PutPolicy(_)
                | Step::PutBinding(_)
                | Step::DeleteBinding(_)
                | Step::DeletePolicy(_) => step.object().unwrap_or_default().to_owned(),
            };
            if let Some(prover) = prover.as_deref_mut() {
                prover.forget(&name);
            }
            if failed.contains_key(&name) {
                continue;
            }
            match self.take(step).await {
                Ok(()) => {}
                Err(failure) if failure.concerns_the_cluster() => return Err(failure),
                Err(failure) => {
                    tracing::warn!(object = name, %failure, "an object could not be written");
                    failed.insert(name, failure);
                }
            }
        }
        Ok(failed)
    }

    async fn take(&self, step: Step) -> Result<(), Failure> {
        // Never closed; and without a permit the bound is lost, not the write.
        let _permit = self.permits.acquire().await.ok();
        match step {
            Step::PutPolicy(object) => self.put_policy(&object, false).await,
            Step::PutBinding(object) => {
                let (name, params) = (object.name_any(), put_params(false));
                tracing::info!(object = name, "writing a binding");
                let api = self.bindings();
                if object.metadata.resource_version.is_some() {
                    limited(self.timeout, api.replace(&name, &params, &object)).await?;
                } else {
                    limited(self.timeout, api.create(&params, &object)).await?;
                }
                Ok(())
            }
            Step::DeleteBinding(name) => {
                tracing::info!(object = name, "deleting a binding");
                let api = self.bindings();
                gone(limited(self.timeout, api.delete(&name, &DeleteParams::default())).await)
            }
            Step::DeletePolicy(name) => {
                tracing::info!(object = name, "deleting a policy");
                let api = self.policies();
                gone(limited(self.timeout, api.delete(&name, &DeleteParams::default())).await)
            }
            Step::Settle(_) => Ok(()),
        }
    }

    async fn put_policy(
        &self,
        object: &ValidatingAdmissionPolicy,
        dry_run: bool,
    ) -> Result<(), Failure> {
        let (name, params) = (object.name_any(), put_params(dry_run));
        tracing::info!(object = name, dry_run, "writing a policy");
        let api = self.policies();
        if object.metadata.resource_version.is_some() {
            limited(self.timeout, api.replace(&name, &params, object)).await?;
        } else {
            limited(self.timeout, api.create(&params, object)).await?;
        }
        Ok(())
    }

    /// Asks whether the API server would take the object, under a name that nothing has.
    ///
    /// # Errors
    /// [`Failure::Refused`] if it would not; otherwise the question failed.
    pub(crate) async fn try_out(&self, object: &AdmissionObject) -> Result<(), Failure> {
        let mut policy = object.policy.clone();
        policy.metadata.name = Some(format!("try.{}", object.name));
        let _permit = self.permits.acquire().await.ok();
        self.put_policy(&policy, true).await
    }

    fn policies(&self) -> Api<ValidatingAdmissionPolicy> {
        Api::all(self.client.clone())
    }

    fn bindings(&self) -> Api<ValidatingAdmissionPolicyBinding> {
        Api::all(self.client.clone())
    }
}

impl Outcome {
    /// Objects that were refused as they are.
    pub(crate) fn refused(&self) -> BTreeSet<&str> {
        let failed = self.failed.iter();
        failed
            .filter(|(_, failure)| matches!(failure, Failure::Refused(_)))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Whether something of the object is not yet as it is wanted.
    pub(crate) fn differs(&self, object: &str) -> bool {
        self.remaining
            .steps
            .iter()
            .any(|step| step.object() == Some(object))
    }
}

/// Waits until the API server acts on the objects. Says whether what they hold may now be taken from
/// where it was before.
async fn settle(
    objects: impl Iterator<Item = &AdmissionObject>,
    mut prover: Option<&mut Prover>,
) -> Result<bool, Failure> {
    let mut unseen = false;
    for object in objects {
        let acting = match prover.as_deref_mut() {
            Some(prover) => prover.acts(object).await?,
            None => Acting::Unseeable,
        };
        match acting {
            Acting::Yes => {}
            Acting::No(answer) => {
                tracing::warn!(
                    object = object.name,
                    answer,
                    "a moved policy does not act yet"
                );
                return Ok(false);
            }
            Acting::Blocked(_) | Acting::Unseeable => unseen = true,
        }
    }
    if unseen {
        // No condition can be had.
        tokio::time::sleep(SETTLE).await;
    }
    Ok(true)
}

fn put_params(dry_run: bool) -> PostParams {
    PostParams {
        dry_run,
        field_manager: Some(FIELD_MANAGER.to_owned()),
    }
}

/// What is deleted already counts as deleted.
fn gone<T>(answer: Result<T, Failure>) -> Result<(), Failure> {
    match answer {
        Ok(_) | Err(Failure::Conflict(_)) => Ok(()),
        Err(failure) => Err(failure),
    }
}
