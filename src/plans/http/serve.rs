//! Connections: how many, how long, and how they end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::telemetry::PlanMetrics;

/// How long a caller may take for the TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// How long a caller may take for the head of a request, and a connection be idle.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 32 * 1024;

/// After how long a connection is closed, so that none holds its place for ever.
const MAX_AGE: Duration = Duration::from_mins(5);

/// How long requests have to end when the server stops or a connection is closed.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(10);

/// How long it is waited where no connection can be taken.
const PAUSE: Duration = Duration::from_millis(100);

/// How connections are served.
pub(super) struct Server {
    pub(super) router: Router,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) max_connections: usize,
    pub(super) metrics: PlanMetrics,
}

impl Server {
    /// Serves until `shutdown`, and then until what was asked is answered, or its time is over.
    pub(super) async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let server = Arc::new(self);
        let places = Arc::new(Semaphore::new(server.max_connections.max(1)));
        let (stop, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            // Where there is no place, callers wait in the queue of the system.
            let accepted = async {
                let place = places.clone().acquire_owned().await;
                (place, listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                accepted = accepted => accepted,
                Some(_) = connections.join_next() => continue,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (server, stopped) = (server.clone(), stopped.clone());
                    connections.spawn(async move {
                        let _place = place;
                        let _counted = server.metrics.connected();
                        server.take(stream, stopped).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the plan API can't take a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        let _ = stop.send(true);
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(DRAIN_TIME, ended).await;
    }

    async fn take(&self, stream: TcpStream, stopped: watch::Receiver<bool>) {
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.talk(stream, stopped).await,
            Some(tls) => match timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.talk(stream, stopped).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            },
        }
    }

    async fn talk<S>(&self, stream: S, mut stopped: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let service = TowerToHyperService::new(self.router.clone());
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(MAX_HEAD);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection failed");
                }
                return;
            }
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = tokio::time::sleep(MAX_AGE) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = timeout(DRAIN_TIME, connection).await;
    }
}
