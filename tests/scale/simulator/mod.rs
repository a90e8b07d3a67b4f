//! A fleet of member clusters in one process: the few endpoints of an API server that the operator
//! uses, each cluster on a port of its own, over TLS.
//!
//! A cluster stores admission policies, bindings and namespaces, serves them with versions, watches
//! and conflicts, and judges Pods (dry runs only) by evaluating the CEL of the policies that it has
//! stored, a moment after it stored them. It knows nothing of what the operator wants.
//!
//! What it is not: it has no etcd, no authorization (a token is compared, and then everything is
//! allowed), no validation of what is stored, no mutation, no other admission plugin, no managed
//! fields, no pages of lists and no discovery of anything but its policies. It serves no
//! `MutatingAdmissionPolicy`, as a 1.34 does not. What it can't do it answers with an error, never
//! with success.

mod admission;
mod http;
mod store;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ::http::HeaderValue;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use store::{Content, Contents, State};
pub(crate) use store::{Resource, Writes};

/// The version that each cluster says it is.
pub(crate) const VERSION: &str = "v1.34.4";

/// What the clusters are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) clusters: usize,
    /// How long a cluster takes to act on what it stored.
    pub(crate) delay: Duration,
    /// Namespaces in each boundary of each cluster, and how many boundaries have some.
    pub(crate) namespaces: (usize, usize),
}

/// The clusters.
pub(crate) struct Fleet {
    clusters: Vec<Arc<Cluster>>,
    authority: String,
    token: String,
    pub(crate) applied: Arc<Applied>,
    _listeners: JoinSet<()>,
}

/// One cluster.
pub(crate) struct Cluster {
    index: usize,
    pub(crate) name: String,
    address: SocketAddr,
    authorization: HeaderValue,
    state: Mutex<State>,
    contents: Arc<Contents>,
    applied: Arc<Applied>,
    blackholed: watch::Sender<bool>,
    blind: AtomicBool,
}

/// Which cluster stored which generation of each policy, and when it first did.
#[derive(Default)]
pub(crate) struct Applied(Mutex<HashMap<String, Generations>>);

/// The generation in each cluster.
type Generations = HashMap<usize, (i64, SystemTime)>;

impl Applied {
    fn note(&self, cluster: usize, content: &Content) {
        let now = SystemTime::now();
        let mut applied = self.0.lock().unwrap();
        for (policy, generation) in content.inside() {
            let clusters = applied.entry(policy).or_default();
            let known = clusters.entry(cluster).or_insert((generation, now));
            if known.0 != generation {
                *known = (generation, now);
            }
        }
    }

    /// When the last of `clusters` stored that generation or a later one, if all did.
    pub(crate) fn since(
        &self,
        policy: &str,
        generation: i64,
        clusters: impl IntoIterator<Item = usize>,
    ) -> Option<SystemTime> {
        let applied = self.0.lock().unwrap();
        let stored = applied.get(policy)?;
        let mut last = SystemTime::UNIX_EPOCH;
        for cluster in clusters {
            let (there, since) = stored.get(&cluster)?;
            if *there < generation {
                return None;
            }
            last = last.max(*since);
        }
        Some(last)
    }
}

impl Fleet {
    /// Starts to serve the clusters.
    pub(crate) async fn start(settings: Settings) -> io::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (authority, tls) = tls()?;
        let tls = TlsAcceptor::from(Arc::new(tls));
        let token = format!("simulated-{:016x}", fastrand::u64(..));
        let applied = Arc::new(Applied::default());
        let contents = Arc::new(Contents::default());
        let mut listeners = JoinSet::new();
        let mut clusters = Vec::new();
        for index in 0..settings.clusters {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let name = format!("c{index:03}");
            let mut state = State::new(&name, settings.delay);
            furnish(&mut state, &contents, settings.namespaces);
            let cluster = Arc::new(Cluster {
                index,
                name,
                address: listener.local_addr()?,
                authorization: HeaderValue::from_str(&format!("Bearer {token}"))
                    .map_err(io::Error::other)?,
                state: Mutex::new(state),
                contents: contents.clone(),
                applied: applied.clone(),
                blackholed: watch::Sender::new(false),
                blind: AtomicBool::new(false),
            });
            listeners.spawn(serve(cluster.clone(), listener, tls.clone()));
            clusters.push(cluster);
        }
        Ok(Self {
            clusters,
            authority,
            token,
            applied,
            _listeners: listeners,
        })
    }

    pub(crate) fn clusters(&self) -> &[Arc<Cluster>] {
        &self.clusters
    }

    /// How the operator reaches a cluster.
    pub(crate) fn kubeconfig(&self, cluster: &Cluster) -> String {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "member",
            "contexts": [{"name": "member", "context": {"cluster": "member", "user": "member"}}],
            "clusters": [{"name": "member", "cluster": {
                "server": format!("https://{}", cluster.address),
                "certificate-authority-data": BASE64_STANDARD.encode(&self.authority),
            }}],
            "users": [{"name": "member", "user": {"token": self.token}}],
        });
        kubeconfig.to_string()
    }

    /// All writes, to all clusters.
    pub(crate) fn writes(&self) -> Writes {
        let mut all = Writes::default();
        for cluster in &self.clusters {
            let writes = cluster.state.lock().unwrap().writes;
            all.policies += writes.policies;
            all.namespaces += writes.namespaces;
        }
        all
    }

    /// All requests that were answered, by all clusters.
    pub(crate) fn requests(&self) -> u64 {
        let all = self.clusters.iter();
        all.map(|cluster| cluster.state.lock().unwrap().requests)
            .sum()
    }
}

impl Cluster {
    /// Whether what is sent to the cluster is never answered, from now on.
    pub(crate) fn blackhole(&self, blackholed: bool) {
        self.blackholed.send_replace(blackholed);
    }

    /// Whether the cluster acts on no policy at all, as if the admission plugin were switched off.
    pub(crate) fn blind(&self, blind: bool) {
        self.blind.store(blind, Ordering::Relaxed);
    }

    /// How often policies and bindings were both listed whole.
    pub(crate) fn lists(&self) -> u64 {
        let lists = self.state.lock().unwrap().lists;
        lists[0].min(lists[1])
    }

    /// What is stored under that name, as JSON.
    pub(crate) fn get(&self, resource: Resource, name: &str) -> Option<Value> {
        let state = self.state.lock().unwrap();
        let stored = state.get(resource, name)?;
        serde_json::from_str(&stored.json(false)).ok()
    }

    /// Changes what is stored behind the operator's back.
    pub(crate) fn meddle(&self, resource: Resource, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(resource, name).unwrap();
        change(&mut object);
        let content = self.contents.of(resource, &object).unwrap();
        let mut state = self.state.lock().unwrap();
        state.replace(content, None, false).unwrap();
    }

    /// Names of what is stored.
    pub(crate) fn names(&self, resource: Resource) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let all = state.all(resource);
        all.map(|stored| stored.content.name.clone()).collect()
    }

    async fn not_blackholed(&self) {
        let mut blackholed = self.blackholed.subscribe();
        // The sender lives as long as the cluster.
        let _ = blackholed.wait_for(|blackholed| !blackholed).await;
    }
}

/// The namespaces of a cluster.
fn furnish(state: &mut State, contents: &Contents, (each, boundaries): (usize, usize)) {
    let tenants = (0..boundaries).flat_map(|boundary| {
        (0..each).map(move |index| {
            json!({"metadata": {
                "name": format!("tenant-{boundary}-{index}"),
                "labels": {"boundarypolicy.dev/boundary": format!("b{boundary:02}")},
            }})
        })
    });
    let system = ["default", "kube-system"].map(|name| json!({"metadata": {"name": name}}));
    for namespace in system.into_iter().chain(tenants) {
        let content = contents.of(Resource::Namespaces, &namespace).unwrap();
        state.create(content, false).unwrap();
    }
    state.writes = Writes::default();
}

async fn serve(cluster: Arc<Cluster>, listener: TcpListener, tls: TlsAcceptor) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(cluster.clone(), stream, tls.clone()));
                }
                Err(error) => {
                    eprintln!("{}: a connection could not be taken: {error}", cluster.name);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(cluster: Arc<Cluster>, stream: TcpStream, tls: TlsAcceptor) {
    cluster.not_blackholed().await;
    let _ = stream.set_nodelay(true);
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| http::answer(cluster.clone(), request));
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The certificate of an authority, in PEM, and what serves with one of its certificates.
fn tls() -> io::Result<(String, ServerConfig)> {
    let error = io::Error::other::<rcgen::Error>;
    let key = KeyPair::generate().map_err(error)?;
    let mut authority = CertificateParams::new(Vec::new()).map_err(error)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).map_err(error)?;
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().map_err(error)?;
    let serving = CertificateParams::new(vec!["127.0.0.1".to_owned()]).map_err(error)?;
    let serving = serving.signed_by(&key, &issuer).map_err(error)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![serving.der().clone()], key)
        .map_err(io::Error::other)?;
    // Connections are taken up again as real API servers do.
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(io::Error::other)?;
    Ok((certificate.pem(), config))
}
