//! What a simulated cluster stores. Equal contents of many clusters are kept once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::admission::{Bound, Judge};

/// Changes that a watch may start from.
const HISTORY: usize = 2_000;

/// A kind of object that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Resource {
    Policies,
    Bindings,
    Namespaces,
}

impl Resource {
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Policies => "validatingadmissionpolicies",
            Self::Bindings => "validatingadmissionpolicybindings",
            Self::Namespaces => "namespaces",
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Policies => "ValidatingAdmissionPolicy",
            Self::Bindings => "ValidatingAdmissionPolicyBinding",
            Self::Namespaces => "Namespace",
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Policies | Self::Bindings => "admissionregistration.k8s.io/v1",
            Self::Namespaces => "v1",
        }
    }
}

/// What a client writes of an object, which many clusters may have alike.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) resource: Resource,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// As JSON.
    spec: String,
    judge: OnceLock<Result<Judge, String>>,
    binding: OnceLock<Result<Bound, String>>,
}

impl Content {
    /// What judges by the policy.
    pub(crate) fn judge(&self) -> Result<&Judge, String> {
        let judge = self.judge.get_or_init(|| Judge::new(&self.whole()));
        judge.as_ref().map_err(Clone::clone)
    }

    /// What the binding says.
    pub(crate) fn binding(&self) -> Result<&Bound, String> {
        let binding = self.binding.get_or_init(|| Bound::new(self.whole()));
        binding.as_ref().map_err(Clone::clone)
    }

    fn whole(&self) -> Value {
        let spec: Value = serde_json::from_str(&self.spec).unwrap_or_default();
        json!({"metadata": {"name": self.name}, "spec": spec})
    }

    /// The policies that an object of the operator says are inside, each with its generation.
    pub(crate) fn inside(&self) -> BTreeMap<String, i64> {
        let text = self.annotations.get("boundarypolicy.dev/policies");
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

/// Keeps equal contents once.
#[derive(Default)]
pub(crate) struct Contents(Mutex<HashMap<u64, Vec<Weak<Content>>>>);

impl Contents {
    pub(crate) fn of(&self, resource: Resource, object: &Value) -> Result<Arc<Content>, String> {
        let texts = |field: &str| -> Result<BTreeMap<String, String>, String> {
            match &object["metadata"][field] {
                Value::Null => Ok(BTreeMap::new()),
                map => serde_json::from_value(map.clone())
                    .map_err(|error| format!("metadata.{field}: {error}")),
            }
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Err("metadata.name: Required value".to_owned());
        }
        let content = Content {
            resource,
            name: name.to_owned(),
            labels: texts("labels")?,
            annotations: texts("annotations")?,
            spec: object.get("spec").unwrap_or(&json!({})).to_string(),
            judge: OnceLock::new(),
            binding: OnceLock::new(),
        };
        let mut hasher = DefaultHasher::new();
        content.key().hash(&mut hasher);
        let mut all = self.0.lock().unwrap();
        let alike = all.entry(hasher.finish()).or_default();
        let known = alike.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.into_iter().find(|known| known.key() == content.key()) {
            return Ok(known);
        }
        alike.retain(|content| content.strong_count() > 0);
        let content = Arc::new(content);
        alike.push(Arc::downgrade(&content));
        Ok(content)
    }
}

impl Content {
    fn key(
        &self,
    ) -> (
        Resource,
        &str,
        &BTreeMap<String, String>,
        &BTreeMap<String, String>,
        &str,
    ) {
        (
            self.resource,
            &self.name,
            &self.labels,
            &self.annotations,
            &self.spec,
        )
    }
}

/// An object in one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) content: Arc<Content>,
    pub(crate) uid: String,
    pub(crate) version: u64,
    generation: u64,
    /// What the cluster acted on before, and since when it acts on `content`.
    acted: Option<Arc<Content>>,
    acts_from: Instant,
}

impl Stored {
    /// What the cluster acts on. An API server takes a moment to pick a change up.
    pub(crate) fn acting(&self, now: Instant) -> Option<&Arc<Content>> {
        if now >= self.acts_from {
            Some(&self.content)
        } else {
            self.acted.as_ref()
        }
    }

    /// The object as JSON, whole or its metadata alone.
    pub(crate) fn json(&self, metadata_only: bool) -> String {
        let content = &self.content;
        let metadata = json!({
            "name": content.name,
            "uid": self.uid,
            "resourceVersion": self.version.to_string(),
            "generation": self.generation,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": content.labels,
            "annotations": content.annotations,
        });
        if metadata_only {
            return format!(
                r#"{{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{metadata}}}"#
            );
        }
        let (version, kind) = (content.resource.api_version(), content.resource.kind());
        format!(
            r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{metadata},"spec":{}}}"#,
            content.spec
        )
    }
}

/// What happened to an object.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) what: &'static str,
    pub(crate) object: Stored,
}

/// Which objects a list or a watch is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Labels that must be there, with a value or with any.
    pub(crate) labels: Vec<(String, Option<String>)>,
    /// The name, and whether it is the one or any but it.
    pub(crate) name: Option<(String, bool)>,
}

impl Filter {
    pub(crate) fn takes(&self, content: &Content) -> bool {
        let named = self
            .name
            .as_ref()
            .is_none_or(|(name, is)| (content.name == *name) == *is);
        named
            && self.labels.iter().all(|(key, value)| {
                let has = content.labels.get(key);
                has.is_some() && (value.is_none() || has == value.as_ref())
            })
    }
}

/// Writes to a cluster, dry runs left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writes {
    /// To policies and bindings.
    pub(crate) policies: u64,
    /// To namespaces: the probe namespace, as it goes from boundary to boundary.
    pub(crate) namespaces: u64,
}

/// Why a write is refused: HTTP status, reason, message.
pub(crate) type Refusal = (u16, &'static str, String);

/// What one cluster has.
pub(crate) struct State {
    name: String,
    delay: Duration,
    version: u64,
    objects: BTreeMap<(Resource, String), Stored>,
    history: VecDeque<Event>,
    watches: Vec<(Resource, Filter, mpsc::UnboundedSender<Event>)>,
    pub(crate) writes: Writes,
    /// Times that policies and bindings were listed whole.
    pub(crate) lists: [u64; 2],
    pub(crate) requests: u64,
}

impl State {
    pub(crate) fn new(name: &str, delay: Duration) -> Self {
        Self {
            name: name.to_owned(),
            delay,
            version: 1,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            watches: Vec::new(),
            writes: Writes::default(),
            lists: [0; 2],
            requests: 0,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, resource: Resource, name: &str) -> Option<&Stored> {
        self.objects.get(&(resource, name.to_owned()))
    }

    pub(crate) fn all(&self, resource: Resource) -> impl Iterator<Item = &Stored> {
        let all = self.objects.iter();
        all.filter(move |((of, _), _)| *of == resource)
            .map(|(_, stored)| stored)
    }

    pub(crate) fn list(&self, resource: Resource, filter: &Filter) -> Vec<Stored> {
        let all = self.all(resource);
        all.filter(|stored| filter.takes(&stored.content))
            .cloned()
            .collect()
    }

    /// Creates an object.
    pub(crate) fn create(&mut self, content: Arc<Content>, dry: bool) -> Result<Stored, Refusal> {
        let key = (content.resource, content.name.clone());
        if self.objects.contains_key(&key) {
            let text = format!(
                "{} \"{}\" already exists",
                content.resource.plural(),
                content.name
            );
            return Err((409, "AlreadyExists", text));
        }
        let mut hasher = DefaultHasher::new();
        (&self.name, &key, self.version).hash(&mut hasher);
        let stored = Stored {
            uid: format!("{:016x}", hasher.finish()),
            content,
            version: self.version + 1,
            generation: 1,
            acted: None,
            acts_from: Instant::now() + self.delay,
        };
        if !dry {
            self.store(stored.clone(), "ADDED");
        }
        Ok(stored)
    }

    /// Replaces an object, if it is still of that version.
    pub(crate) fn replace(
        &mut self,
        content: Arc<Content>,
        version: Option<&str>,
        dry: bool,
    ) -> Result<Stored, Refusal> {
        let (resource, name) = (content.resource, content.name.clone());
        let Some(before) = self.get(resource, &name) else {
            return Err(not_found(resource, &name));
        };
        if version.is_some_and(|version| version != before.version.to_string()) {
            let text = format!(
                "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please \
                 apply your changes to the latest version and try again",
                resource.plural()
            );
            return Err((409, "Conflict", text));
        }
        let now = Instant::now();
        let mut stored = before.clone();
        if Arc::ptr_eq(&stored.content, &content) {
            // As a real one, it stores nothing, and the version stays. The request counts.
            if !dry {
                self.count(resource);
            }
            return Ok(stored);
        }
        stored.generation += u64::from(stored.content.spec != content.spec);
        stored.version = self.version + 1;
        // A namespace's labels take effect at once, nearly.
        stored.acted = before.acting(now).cloned();
        stored.acts_from = now + self.delay;
        stored.content = content;
        if !dry {
            self.store(stored.clone(), "MODIFIED");
        }
        Ok(stored)
    }

    pub(crate) fn delete(&mut self, resource: Resource, name: &str) -> Result<Stored, Refusal> {
        let Some(mut stored) = self.objects.remove(&(resource, name.to_owned())) else {
            return Err(not_found(resource, name));
        };
        self.version += 1;
        stored.version = self.version;
        self.count(resource);
        self.tell(Event {
            what: "DELETED",
            object: stored.clone(),
        });
        Ok(stored)
    }

    fn store(&mut self, stored: Stored, what: &'static str) {
        let content = &stored.content;
        self.version = stored.version;
        self.count(content.resource);
        let key = (content.resource, content.name.clone());
        self.objects.insert(key, stored.clone());
        self.tell(Event {
            what,
            object: stored,
        });
    }

    fn count(&mut self, resource: Resource) {
        match resource {
            Resource::Policies | Resource::Bindings => self.writes.policies += 1,
            Resource::Namespaces => self.writes.namespaces += 1,
        }
    }

    fn tell(&mut self, event: Event) {
        self.watches.retain(|(resource, filter, to)| {
            let content = &event.object.content;
            if content.resource != *resource || !filter.takes(content) {
                return !to.is_closed();
            }
            to.send(event.clone()).is_ok()
        });
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(event);
    }

    /// What happened after `version`, and what will. None: that is not known any more.
    pub(crate) fn watch(
        &mut self,
        resource: Resource,
        filter: &Filter,
        version: u64,
    ) -> Option<mpsc::UnboundedReceiver<Event>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let oldest = self.history.front().map(|event| event.object.version);
        if self.history.len() == HISTORY && oldest.is_some_and(|oldest| version < oldest) {
            return None;
        }
        let since = self.history.iter();
        for event in since.filter(|event| event.object.version > version) {
            let content = &event.object.content;
            if content.resource == resource && filter.takes(content) {
                let _ = sender.send(event.clone());
            }
        }
        self.watches.push((resource, filter.clone(), sender));
        Some(receiver)
    }
}

pub(crate) fn not_found(resource: Resource, name: &str) -> Refusal {
    let text = format!("{} \"{name}\" not found", resource.plural());
    (404, "NotFound", text)
}
