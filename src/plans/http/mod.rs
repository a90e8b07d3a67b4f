//! The HTTP API about compute plans, for a platform and its portal.
//!
//! Every instance of the operator answers, whether it leads or not, from its own watches of the hub.
//! What is not known for certain is not answered.

mod access;
mod answer;
mod cache;
mod follow;
mod known;
mod openapi;
mod routes;
mod serve;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::telemetry::PlanMetrics;
use access::Doorkeeper;
use known::Known;
use routes::{Service, router};
use serve::Server;
use tls::Certificate;

pub use openapi::document;
pub use tls::TlsFiles;

/// How the API is served.
#[derive(Clone, Debug)]
pub struct PlanApiSettings {
    /// Where.
    pub address: SocketAddr,
    /// The certificate. Absent: plain HTTP, on a loopback address alone.
    pub tls: Option<TlsFiles>,
    /// What tokens must be for. None: for the API server of the hub.
    pub audiences: Vec<String>,
    /// How long after the hub was last heard its policies still count.
    pub stale_after: Duration,
    /// Connections at the same time.
    pub max_connections: usize,
    /// How long a question to the hub may take.
    pub request_timeout: Duration,
    /// What is counted.
    pub metrics: PlanMetrics,
}

/// Why the API can't be served.
#[derive(Debug, thiserror::Error)]
pub enum PlanApiError {
    /// Tokens would go over a network as they are.
    #[error(
        "{0} is not a loopback address, and plain HTTP is served on those alone: give a certificate \
         and its key"
    )]
    PlainHttp(SocketAddr),
    /// The address can't be listened on.
    #[error("{0} can't be listened on: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// A file is not what it should be.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is the matter.
        problem: String,
    },
    /// TLS can't be done.
    #[error("TLS can't be done: {0}")]
    Tls(#[source] rustls::Error),
    /// No client can be made for the hub.
    #[error("no client can be made for the hub: {0}")]
    Client(#[source] kube::Error),
}

/// The API, before it is served.
pub struct PlanApi {
    listener: TcpListener,
    address: SocketAddr,
    certificate: Option<Certificate>,
    server: Server,
    background: JoinSet<()>,
}

impl PlanApi {
    /// Listens, and begins to follow the hub.
    ///
    /// # Errors
    /// What is said in the settings can't be done.
    pub async fn start(settings: PlanApiSettings, hub: kube::Config) -> Result<Self, PlanApiError> {
        let address = settings.address;
        if settings.tls.is_none() && !address.ip().is_loopback() {
            return Err(PlanApiError::PlainHttp(address));
        }
        let certificate = settings.tls.map(Certificate::load).transpose()?;
        let server = certificate.as_ref().map(Certificate::server).transpose()?;
        let listen = |error| PlanApiError::Listen(address, error);
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let client = Client::try_from(hub).map_err(PlanApiError::Client)?;
        let known = Known::new(settings.stale_after, settings.metrics.clone());
        let background = known.follow(&client);
        let doorkeeper = Doorkeeper::new(client, settings.audiences, settings.request_timeout);
        let service = Service::new(known, doorkeeper, settings.metrics.clone());
        Ok(Self {
            listener,
            address,
            certificate,
            server: Server {
                router: router(service),
                tls: server.map(TlsAcceptor::from),
                max_connections: settings.max_connections,
                metrics: settings.metrics,
            },
            background,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown`, and then until what was asked is answered.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        if let Some(certificate) = self.certificate {
            self.background.spawn(certificate.follow());
        }
        let tls = self.server.tls.is_some();
        tracing::info!(address = %self.address, tls, "the plan API is served");
        self.server.serve(self.listener, shutdown).await;
    }
}
