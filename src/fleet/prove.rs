//! Shows by requests whether an API server acts on what it has.
//!
//! All of it happens in one namespace that is the operator's own. It is put into a boundary, and
//! then asked, by server-side dry runs, first which revision of an object the API server acts on,
//! and then whether it refuses (or warns of) what breaks each rule of each policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::header::WARNING;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::core::{Request as KubeRequest, Status};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::failure::{Failure, Verdict, limited};
use super::target::{FIELD_MANAGER, Target};
use crate::api::{Action, BoundaryPolicy, ClusterState, Exemption};
use crate::compile::{
    AdmissionObject, MANAGED_BY, PROBE_LABEL, PROBE_NAMESPACE, PROBE_OBJECT_ANNOTATION,
    PROBE_RULE_ANNOTATION,
};
use crate::evaluate::{Evaluator, Kind, Operation, Request};
use crate::rules::{RuleName, example_pod};

/// The first and the longest wait between two looks at whether an API server acts.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Probes at the same time.
const CONCURRENT: usize = 8;

/// How long further connections are kept.
const KEEP_CONNECTIONS: Duration = Duration::from_mins(1);

/// The label of a namespace that says which Pods Pod Security Admission takes there: all, so that
/// it is not in the way of a probe. Source: <https://kubernetes.io/docs/concepts/security/pod-security-admission/>.
const POD_SECURITY: (&str, &str) = ("pod-security.kubernetes.io/enforce", "privileged");

/// What holds for all proofs.
#[derive(Clone, Debug)]
pub struct ProofSettings {
    /// Whether anything is proven. If not, nothing is called Enforced.
    pub enabled: bool,
    /// How often what was proven is proven again.
    pub interval: Duration,
    /// How long an API server may take to act on a change.
    pub timeout: Duration,
    /// How many connections are asked for the revision: behind a shared address each may lead to
    /// another API server.
    pub connections: usize,
}

impl Default for ProofSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: Duration::from_mins(5),
            timeout: Duration::from_secs(10),
            connections: 3,
        }
    }
}

/// Whether an API server acts on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acting {
    /// It does, on the revision that was asked for.
    Yes,
    /// It doesn't; what it answered instead.
    No(String),
    /// Something else answered.
    Blocked(String),
    /// It can't be seen.
    Unseeable,
}

/// Proves objects in one cluster.
pub(crate) struct Prover {
    target: Target,
    settings: ProofSettings,
    boundary_label: String,
    /// The revision of each object on which the API server was last seen to act.
    acting: BTreeMap<String, String>,
    /// Further connections, and since when.
    connections: Option<(Instant, Vec<Client>)>,
    /// Who the operator is there: user and groups.
    identity: Option<(String, Vec<String>)>,
}

/// What a dry run came to.
#[derive(Debug)]
struct Answer {
    /// Why it was refused.
    refusal: Option<String>,
    /// The warnings.
    warnings: Vec<String>,
    /// What would have been stored.
    stored: Option<Value>,
}

impl Prover {
    pub(crate) fn new(target: Target, settings: ProofSettings, boundary_label: String) -> Self {
        Self {
            target,
            settings,
            boundary_label,
            acting: BTreeMap::new(),
            connections: None,
            identity: None,
        }
    }

    pub(crate) fn settings(&self) -> &ProofSettings {
        &self.settings
    }

    /// Forgets on which revision of an object the API server acts.
    pub(crate) fn forget(&mut self, object: &str) {
        self.acting.remove(object);
    }

    /// Proves each of `policies` that is in `object`.
    ///
    /// # Errors
    /// The cluster does not answer, or the credentials do not suffice.
    pub(crate) async fn prove(
        &mut self,
        object: &AdmissionObject,
        policies: &[Arc<BoundaryPolicy>],
    ) -> Result<BTreeMap<String, Verdict>, Failure> {
        let all = |verdict: Verdict| {
            let names = object.policies.keys();
            names.map(|name| (name.clone(), verdict.clone())).collect()
        };
        if let Some(verdict) = self.unprovable(object.action) {
            return Ok(all(verdict));
        }
        self.forget(&object.name);
        match self.acts(object).await? {
            Acting::Yes => {}
            Acting::No(answer) => return Ok(all(not_acting(object, &answer, &self.settings))),
            Acting::Blocked(answer) => return Ok(all(blocked(&answer))),
            Acting::Unseeable => return Ok(all(self.in_vain())),
        }
        if object.checks_plans() {
            return Ok(all(plans_act()));
        }
        self.identify().await?;
        let inside = policies
            .iter()
            .filter(|policy| object.policies.contains_key(&policy.name_any()));
        let probes: Vec<(Arc<BoundaryPolicy>, RuleName)> = inside
            .flat_map(|policy| {
                let rules = object.rules.get(&policy.name_any());
                let rules = rules.into_iter().flatten();
                rules.map(move |rule| (policy.clone(), *rule))
            })
            .collect();
        let mut probing = Vec::new();
        for (policy, rule) in probes {
            probing.push(self.probe(object, policy, rule));
        }
        let proven: Vec<(String, Verdict)> = stream::iter(probing)
            .buffered(CONCURRENT)
            .try_collect()
            .await?;
        let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
        for (policy, verdict) in proven {
            match verdicts.get(&policy) {
                Some(known) if known.state <= verdict.state => {}
                _ => {
                    verdicts.insert(policy, verdict);
                }
            }
        }
        if verdicts
            .values()
            .any(|v| v.state == ClusterState::NotEnforced)
            && let Some(text) = self.moved(object).await?
        {
            return Ok(all(blocked(&text)));
        }
        Ok(verdicts)
    }

    /// Waits until the API server acts on `object`, on every connection.
    ///
    /// # Errors
    /// The cluster does not answer, or the credentials do not suffice.
    pub(crate) async fn acts(&mut self, object: &AdmissionObject) -> Result<Acting, Failure> {
        if self.unprovable(object.action).is_some() {
            return Ok(Acting::Unseeable);
        }
        if self.acting.get(&object.name) == Some(&object.revision) {
            return Ok(Acting::Yes);
        }
        let Some(boundary) = object.boundaries.first() else {
            return Ok(Acting::Unseeable);
        };
        let deadline = Instant::now() + self.settings.timeout;
        let mut wait = WAITS.0;
        match self.enter(boundary).await {
            Err(Failure::Denied(text)) => return Ok(Acting::Blocked(text)),
            entered => entered?,
        }
        let clients = self.clients();
        let mut remaining = clients.iter();
        let mut next = remaining.next();
        while let Some(client) = next {
            let seen = match self.ask(client, &revision_probe(object)).await {
                Ok(answer) => answer.revision(object),
                Err(Failure::Server(text)) => Acting::Blocked(text),
                // The namespace may just be gone.
                Err(Failure::Conflict(text)) => {
                    self.enter(boundary).await?;
                    Acting::Blocked(text)
                }
                Err(failure) => return Err(failure),
            };
            if seen == Acting::Yes {
                next = remaining.next();
                continue;
            }
            if Instant::now() + wait > deadline {
                if let Some(text) = self.moved(object).await? {
                    return Ok(Acting::Blocked(text));
                }
                return Ok(seen);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 3 / 2).min(WAITS.1);
        }
        self.acting
            .insert(object.name.clone(), object.revision.clone());
        Ok(Acting::Yes)
    }

    /// Removes the probe namespace, if it is ours.
    ///
    /// # Errors
    /// The cluster does not answer, or the credentials do not suffice.
    pub(crate) async fn leave(target: &Target) -> Result<(), Failure> {
        let api = namespaces(&target.client);
        let Some(namespace) = limited(target.timeout, api.get_opt(PROBE_NAMESPACE)).await? else {
            return Ok(());
        };
        if !is_ours(&namespace) {
            return Ok(());
        }
        let params = DeleteParams::default();
        match limited(target.timeout, api.delete(PROBE_NAMESPACE, &params)).await {
            Ok(_) | Err(Failure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// The verdict on what nothing can be proven of.
    fn unprovable(&self, action: Action) -> Option<Verdict> {
        match action {
            Action::Audit => Some(Verdict::new(
                ClusterState::Installed,
                "Audit",
                "what breaks the policy is admitted and written to the audit log",
            )),
            _ if !self.settings.enabled => Some(Verdict::new(
                ClusterState::Installed,
                "ProvingOff",
                "the objects are there; whether the API server acts on them is not looked at",
            )),
            Action::Deny | Action::Warn => None,
        }
    }

    fn in_vain(&self) -> Verdict {
        blocked(&format!(
            "no probe could be made within {:?}",
            self.settings.timeout
        ))
    }

    /// Puts the probe namespace into a boundary.
    async fn enter(&self, boundary: &str) -> Result<(), Failure> {
        let labels = json!({
            MANAGED_BY.0: MANAGED_BY.1,
            POD_SECURITY.0: POD_SECURITY.1,
            self.boundary_label.as_str(): boundary,
        });
        let api = namespaces(&self.target.client);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let patched = api.patch_metadata(PROBE_NAMESPACE, &params, &patch);
        match limited(self.target.timeout, patched).await {
            Err(Failure::Conflict(_)) => {}
            answer => return answer.map(drop),
        }
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": PROBE_NAMESPACE, "labels": labels},
        });
        // Building this from constants can't fail.
        let Ok(namespace) = serde_json::from_value::<Namespace>(namespace) else {
            return Ok(());
        };
        tracing::info!(namespace = PROBE_NAMESPACE, "creating the probe namespace");
        let params = PostParams {
            dry_run: false,
            field_manager: Some(FIELD_MANAGER.to_owned()),
        };
        match limited(self.target.timeout, api.create(&params, &namespace)).await {
            Ok(_) | Err(Failure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Whether something else took the probe namespace out of the boundary while it was asked.
    async fn moved(&self, object: &AdmissionObject) -> Result<Option<String>, Failure> {
        let api = namespaces(&self.target.client);
        let get = api.get_opt(PROBE_NAMESPACE);
        let Some(namespace) = limited(self.target.timeout, get).await? else {
            return Ok(Some(format!("the namespace {PROBE_NAMESPACE} was deleted")));
        };
        let boundary = namespace.labels().get(&self.boundary_label);
        if boundary == object.boundaries.first() {
            return Ok(None);
        }
        Ok(Some(format!(
            "something else labels the namespace {PROBE_NAMESPACE}: {} is {}",
            self.boundary_label,
            boundary.map_or("not set", String::as_str)
        )))
    }

    /// The connections that are asked for the revision.
    fn clients(&mut self) -> Vec<Client> {
        let mut clients = vec![self.target.client.clone()];
        let Some(config) = &self.target.config else {
            return clients;
        };
        let fresh = self
            .connections
            .take()
            .filter(|(since, _)| since.elapsed() < KEEP_CONNECTIONS);
        let (since, further) = fresh.unwrap_or_else(|| {
            let count = self.settings.connections.saturating_sub(1);
            let further = (0..count).filter_map(|_| self.target.fence.client(config.clone()).ok());
            (Instant::now(), further.collect())
        });
        clients.extend(further.iter().cloned());
        self.connections = Some((since, further));
        clients
    }

    /// Asks what the API server would do with a Pod in the probe namespace.
    async fn ask(&self, client: &Client, pod: &Value) -> Result<Answer, Failure> {
        let params = PostParams {
            dry_run: true,
            field_manager: Some(FIELD_MANAGER.to_owned()),
        };
        let path = format!("/api/v1/namespaces/{PROBE_NAMESPACE}/pods");
        // Serializing a value can't fail.
        let body = serde_json::to_vec(pod).unwrap_or_default();
        let request = KubeRequest::new(path)
            .create(&params, body)
            .map_err(|error| Failure::Server(error.to_string()))?;
        let answer = async {
            let response = client.send(request.map(Body::from)).await?;
            let (head, body) = response.into_parts();
            Ok((head, body.collect_bytes().await?))
        };
        let (head, body) = limited(self.target.timeout, answer).await?;
        let warnings = head.headers.get_all(WARNING).iter();
        let warnings = warnings
            .filter_map(|value| warning(&String::from_utf8_lossy(value.as_bytes())))
            .collect();
        if head.status.is_success() {
            let stored = serde_json::from_slice(&body)
                .map_err(|error| Failure::Server(format!("its answer can't be read: {error}")))?;
            return Ok(Answer {
                refusal: None,
                warnings,
                stored: Some(stored),
            });
        }
        let status: Status = serde_json::from_slice(&body).unwrap_or_default();
        let message = if status.message.is_empty() {
            format!("it answered {}", head.status)
        } else {
            status.message.clone()
        };
        let code = head.status.as_u16();
        let unauthorized = message.contains("\" cannot create resource \"pods\"");
        if matches!(code, 400 | 403 | 409 | 413 | 422) && !unauthorized {
            return Ok(Answer {
                refusal: Some(message),
                warnings,
                stored: None,
            });
        }
        let status = Status::failure(&message, &status.reason).with_code(code);
        Err(kube::Error::Api(Box::new(status)).into())
    }

    /// Whether the rule of a policy in an object is acted on.
    async fn probe(
        &self,
        object: &AdmissionObject,
        policy: Arc<BoundaryPolicy>,
        rule: RuleName,
    ) -> Result<(String, Verdict), Failure> {
        let name = policy.name_any();
        let Some(violating) = policy.spec.rules.violating_pod(rule) else {
            return Ok((name, proven()));
        };
        let pod = probe(&violating, |annotations| {
            annotations.insert(PROBE_OBJECT_ANNOTATION.to_owned(), object.name.clone());
            annotations.insert(PROBE_RULE_ANNOTATION.to_owned(), format!("{name}/{rule}"));
        });
        let deadline = Instant::now() + self.settings.timeout;
        let mut wait = WAITS.0;
        loop {
            let answer = match self.ask(&self.target.client, &pod).await {
                Ok(answer) if answer.names(object, &name, rule) => return Ok((name, proven())),
                Ok(answer) => Ok(answer),
                Err(Failure::Server(text) | Failure::Conflict(text)) => Err(text),
                Err(failure) => return Err(failure),
            };
            // What went through is looked at once more only if it can't be trusted.
            if Instant::now() + wait > deadline || answer.as_ref().is_ok_and(Answer::went_through) {
                let verdict = match answer {
                    Ok(answer) => self.judge(object, &policy, rule, &answer),
                    Err(text) => blocked(&text),
                };
                return Ok((name, verdict));
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 3 / 2).min(WAITS.1);
        }
    }

    /// The verdict on a rule that was not seen to act.
    fn judge(
        &self,
        object: &AdmissionObject,
        policy: &BoundaryPolicy,
        rule: RuleName,
        answer: &Answer,
    ) -> Verdict {
        let Some(stored) = &answer.stored else {
            return blocked(answer.refusal.as_deref().unwrap_or_default());
        };
        if self.is_exempt(policy, rule) {
            return Verdict::new(
                ClusterState::Installed,
                "ProbeExempt",
                format!("{rule} can't be proven: an exemption covers the operator's own requests"),
            );
        }
        // Does what came back still break the rule?
        let labels = BTreeMap::from([(
            self.boundary_label.clone(),
            object.boundaries.first().cloned().unwrap_or_default(),
        )]);
        let (user, groups) = self.identity.clone().unwrap_or_default();
        let request = Request {
            kind: Kind::Pod,
            sub_resource: "",
            operation: Operation::Create,
            object: stored,
            old_object: None,
            namespace: PROBE_NAMESPACE,
            namespace_labels: &labels,
            user: &user,
            groups: &groups,
        };
        let found = Evaluator::new(std::slice::from_ref(object))
            .and_then(|evaluator| evaluator.judge(&request));
        let sentence = sentence(&policy.name_any(), rule);
        match found {
            Ok(found) if !found.iter().any(|f| f.message.contains(&sentence)) => blocked(&format!(
                "something changed the Pod so that it keeps {rule}"
            )),
            _ => Verdict::new(
                ClusterState::NotEnforced,
                "ProbeAdmitted",
                match object.action {
                    Action::Warn => {
                        format!("a Pod that breaks {rule} was admitted without a warning")
                    }
                    _ => format!("a Pod that breaks {rule} was admitted"),
                },
            ),
        }
    }

    /// Whether an exemption may cover the probe.
    fn is_exempt(&self, policy: &BoundaryPolicy, rule: RuleName) -> bool {
        let (user, groups) = self.identity.clone().unwrap_or_default();
        let holds = |exemption: &Exemption| {
            let namespaces = exemption.namespaces.as_deref().unwrap_or_default();
            let users = exemption.users.as_deref().unwrap_or_default();
            let of = exemption.groups.as_deref().unwrap_or_default();
            exemption.rules.contains(&rule)
                && (namespaces.is_empty() || namespaces.iter().any(|n| n == PROBE_NAMESPACE))
                && (users.len() + of.len() == 0
                    || users.contains(&user)
                    || of.iter().any(|group| groups.contains(group)))
        };
        policy.spec.exemptions.iter().any(holds)
    }

    /// Finds out who the operator is in the cluster.
    async fn identify(&mut self) -> Result<(), Failure> {
        use k8s_openapi::api::authentication::v1::SelfSubjectReview;
        if self.identity.is_some() {
            return Ok(());
        }
        let api: Api<SelfSubjectReview> = Api::all(self.target.client.clone());
        let (params, review) = (PostParams::default(), SelfSubjectReview::default());
        let review = limited(self.target.timeout, api.create(&params, &review)).await?;
        let user = review.status.and_then(|status| status.user_info);
        let user = user.unwrap_or_default();
        self.identity = Some((
            user.username.unwrap_or_default(),
            user.groups.unwrap_or_default(),
        ));
        Ok(())
    }
}

impl Answer {
    /// Nothing was in the way of it.
    fn went_through(&self) -> bool {
        self.refusal.is_none()
    }

    /// What `object` said, whichever way its action says it.
    fn words<'a>(&'a self, object: &'a AdmissionObject) -> impl Iterator<Item = &'a str> {
        let signature = format!("ValidatingAdmissionPolicy '{}' with binding ", object.name);
        let (refusal, warnings) = match object.action {
            Action::Deny => (self.refusal.as_deref(), &[][..]),
            Action::Warn | Action::Audit => (None, self.warnings.as_slice()),
        };
        refusal
            .into_iter()
            .chain(warnings.iter().map(String::as_str))
            .filter(move |text| text.contains(&signature))
    }

    fn names(&self, object: &AdmissionObject, policy: &str, rule: RuleName) -> bool {
        let sentence = sentence(policy, rule);
        self.words(object).any(|text| text.contains(&sentence))
    }

    fn revision(&self, object: &AdmissionObject) -> Acting {
        let current = format!("revision {}", object.revision);
        let mut words = self.words(object).peekable();
        if let Some(first) = words.peek() {
            let first = (*first).to_owned();
            return if words.any(|text| text.contains(&current)) {
                Acting::Yes
            } else {
                Acting::No(first)
            };
        }
        match &self.refusal {
            Some(refusal) => Acting::Blocked(refusal.clone()),
            None => Acting::No(format!(
                "it admitted the probe without a word of {}",
                object.name
            )),
        }
    }
}

fn namespaces(client: &Client) -> Api<Namespace> {
    Api::all(client.clone())
}

fn is_ours(namespace: &Namespace) -> bool {
    namespace.labels().get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1)
}

/// How a message names policy and rule.
fn sentence(policy: &str, rule: RuleName) -> String {
    format!("Policy '{policy}' ({rule}) ")
}

fn proven() -> Verdict {
    Verdict::new(ClusterState::Enforced, "Proven", "")
}

/// The verdict on compute plans: a resource that breaks them is not made.
fn plans_act() -> Verdict {
    Verdict::new(
        ClusterState::Installed,
        "NotTried",
        "the API server acts on the check of compute plans; that it refuses a resource is not tried",
    )
}

fn blocked(answer: &str) -> Verdict {
    Verdict::new(
        ClusterState::Pending,
        "ProbeBlocked",
        format!(
            "whether the API server acts can't be seen, since something is in the way: {answer}"
        ),
    )
}

fn not_acting(object: &AdmissionObject, answer: &str, settings: &ProofSettings) -> Verdict {
    Verdict::new(
        ClusterState::NotEnforced,
        "NotActing",
        format!(
            "the API server does not act on {} {:?} after it was written: {answer}",
            object.name, settings.timeout
        ),
    )
}

/// A Pod that asks for the revision of `object`.
fn revision_probe(object: &AdmissionObject) -> Value {
    let labels = BTreeMap::from([(PROBE_LABEL.to_owned(), "revision".to_owned())]);
    probe(
        &example_pod("registry.invalid/probe:1", labels),
        |annotations| {
            annotations.insert(PROBE_OBJECT_ANNOTATION.to_owned(), object.name.clone());
        },
    )
}

/// `pod` as a probe.
fn probe(pod: &Pod, annotate: impl FnOnce(&mut BTreeMap<String, String>)) -> Value {
    let mut pod = pod.clone();
    pod.metadata.name = Some(PROBE_NAMESPACE.to_owned());
    pod.metadata.namespace = Some(PROBE_NAMESPACE.to_owned());
    annotate(pod.metadata.annotations.get_or_insert_default());
    if let Some(spec) = &mut pod.spec {
        spec.automount_service_account_token = Some(false);
    }
    // Serializing a Pod can't fail: its maps have strings as keys.
    let mut value = serde_json::to_value(pod).unwrap_or_default();
    value["apiVersion"] = json!("v1");
    value["kind"] = json!("Pod");
    value
}

/// The text of a warning header: `299 - "text"`. Source: RFC 7234, section 5.5.
fn warning(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?.strip_prefix('"')?;
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            '"' => return Some(text),
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_read_with_its_quotes() {
        let header = r#"299 - "Policy \"x\" says \\ no""#;
        assert_eq!(warning(header).as_deref(), Some(r#"Policy "x" says \ no"#));
        assert_eq!(warning("299 - text"), None);
        assert_eq!(warning(r#"299 - "open"#), None);
    }
}
