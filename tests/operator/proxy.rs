//! A faulty way to an API server: a proxy that ends TLS, with certificates of its own authority.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use control_plane::ControlPlane;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What becomes of connections. Those that are open when it changes are closed, or hang where no
/// connection gets an answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All is passed on.
    Pass,
    /// Nothing listens.
    Refuses,
    /// Packets to it are lost, as in a network that drops them.
    NeverAccepts,
    /// Connections are taken, and nothing is read.
    ReadsNothing,
    /// Requests are read, and never answered.
    NeverAnswers,
    /// Every request gets this answer.
    Answers(&'static str),
    /// Every answer ends soon after its head.
    Truncates,
    /// Every answer takes so long.
    Slow(Duration),
    /// Watches are closed right after they began.
    ClosesWatches,
    /// The certificate ran out.
    Expired,
    /// The certificate is of [`Proxy::other_authority`].
    OtherAuthority,
}

impl Mode {
    fn is_silent(self) -> bool {
        matches!(
            self,
            Self::NeverAccepts | Self::ReadsNothing | Self::NeverAnswers
        )
    }
}

pub(crate) struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    in_force: watch::Receiver<Mode>,
    authority: String,
    other_authority: String,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The ends of a proxy: what it shows of itself, and how it reaches the API server.
struct Ends {
    good: TlsAcceptor,
    expired: TlsAcceptor,
    other: TlsAcceptor,
    connector: TlsConnector,
    server: SocketAddr,
}

impl Proxy {
    /// A proxy to the API server of `plane` that passes on everything.
    pub(crate) async fn to(plane: &ControlPlane) -> Self {
        let (authority, other) = (Authority::new("one"), Authority::new("other"));
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(plane.ca_pem().as_bytes()).unwrap();
        roots.add(root).unwrap();
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = plane.url();
        let ends = Ends {
            good: authority.acceptor(2100),
            expired: authority.acceptor(2020),
            other: other.acceptor(2100),
            connector: TlsConnector::from(Arc::new(client)),
            server: server.trim_start_matches("https://").parse().unwrap(),
        };
        // Below the ports of outgoing connections, since it is given up and taken again.
        let address = loop {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(12_000..19_000)));
            if TcpListener::bind(address).await.is_ok() {
                break address;
            }
        };
        let (mode, receiver) = watch::channel(Mode::Pass);
        let (sender, in_force) = watch::channel(Mode::Refuses);
        let mut proxy = Self {
            address,
            mode,
            in_force,
            authority: authority.pem,
            other_authority: other.pem,
            task: tokio::spawn(run(address, receiver, sender, Arc::new(ends))),
        };
        proxy.set(Mode::Pass).await;
        proxy
    }

    /// Goes over to another mode, and waits until it has.
    pub(crate) async fn set(&mut self, mode: Mode) {
        self.mode.send_if_modified(|now| {
            let changed = *now != mode;
            *now = mode;
            changed
        });
        self.in_force.wait_for(|now| *now == mode).await.unwrap();
    }

    /// A kubeconfig like `direct`, by way of the proxy.
    pub(crate) fn kubeconfig(&self, direct: &str) -> String {
        self.kubeconfig_trusting(direct, &self.authority)
    }

    /// The authority whose certificate is shown in [`Mode::OtherAuthority`].
    pub(crate) fn other_authority(&self) -> &str {
        &self.other_authority
    }

    pub(crate) fn kubeconfig_trusting(&self, direct: &str, authority: &str) -> String {
        let mut kubeconfig: Value = serde_saphyr::from_str(direct).unwrap();
        let cluster = &mut kubeconfig["clusters"][0]["cluster"];
        cluster["server"] = format!("https://{}", self.address).into();
        cluster["certificate-authority-data"] = BASE64_STANDARD.encode(authority).into();
        kubeconfig.to_string()
    }
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// With a certificate that is valid until that year.
    fn acceptor(&self, until: i32) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

async fn run(
    address: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    in_force: watch::Sender<Mode>,
    ends: Arc<Ends>,
) {
    let mut connections = JoinSet::new();
    loop {
        let now = *mode.borrow_and_update();
        if now == Mode::Refuses {
            in_force.send(now).unwrap();
            mode.changed().await.unwrap();
            continue;
        }
        let backlog = if now == Mode::NeverAccepts { 1 } else { 1024 };
        let listener = listen(address, backlog).await;
        // The kernel answers no more than the queue holds, and nobody takes anything out of it.
        let mut queued = Vec::new();
        while now == Mode::NeverAccepts
            && let Ok(Ok(stream)) =
                tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            queued.push(stream);
        }
        in_force.send(now).unwrap();
        loop {
            tokio::select! {
                accepted = listener.accept(), if now != Mode::NeverAccepts => {
                    if let Ok((stream, _)) = accepted {
                        connections.spawn(connection(stream, mode.clone(), now, ends.clone()));
                    }
                }
                changed = mode.changed() => {
                    changed.unwrap();
                    break;
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

async fn listen(address: SocketAddr, backlog: u32) -> TcpListener {
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        if socket.bind(address).is_ok()
            && let Ok(listener) = socket.listen(backlog)
        {
            return listener;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn connection(
    stream: TcpStream,
    mut mode: watch::Receiver<Mode>,
    mut now: Mode,
    ends: Arc<Ends>,
) {
    let mut serving = pin!(serve(stream, now, &ends));
    loop {
        let goes_on = !now.is_silent() || now == Mode::NeverAnswers;
        tokio::select! {
            // Whoever breaks off is no matter.
            _ = &mut serving, if goes_on => return,
            changed = mode.changed() => {
                let next = *mode.borrow_and_update();
                // Whoever hung is let go, whatever comes next.
                if changed.is_err() || now.is_silent() || !next.is_silent() {
                    return;
                }
                now = if next == Mode::NeverAnswers { Mode::ReadsNothing } else { next };
            }
        }
    }
}

async fn serve(stream: TcpStream, mode: Mode, ends: &Ends) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let acceptor = match mode {
        Mode::Expired => &ends.expired,
        Mode::OtherAuthority => &ends.other,
        _ => &ends.good,
    };
    let mut client = acceptor.accept(stream).await?;
    match mode {
        Mode::NeverAnswers => {
            copy(&mut client, &mut tokio::io::sink()).await?;
            return Ok(());
        }
        Mode::Answers(answer) => {
            while read_request(&mut client).await? {
                client.write_all(answer.as_bytes()).await?;
                client.flush().await?;
            }
            return client.shutdown().await;
        }
        _ => {}
    }
    let server = TcpStream::connect(ends.server).await?;
    server.set_nodelay(true)?;
    let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
    let server = ends.connector.connect(name, server).await?;
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = split(server);
    tokio::select! {
        done = requests(from_client, to_server, mode) => done,
        done = answers(from_server, to_client, mode) => done,
    }
}

/// Reads a request to its end. Says whether there was one.
async fn read_request(client: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
    let mut read = Vec::new();
    loop {
        if let Some(head) = find(&read, b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if read.len() >= head + 4 + length {
                return Ok(true);
            }
        }
        if client.read_buf(&mut read).await? == 0 {
            return Ok(false);
        }
    }
}

async fn requests(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    mode: Mode,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = client.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        server.write_all(&buffer[..count]).await?;
        server.flush().await?;
        if mode == Mode::ClosesWatches && find(&buffer[..count], b"watch=true").is_some() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            return Ok(());
        }
    }
}

async fn answers(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    mode: Mode,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = server.read(&mut buffer).await?;
        if count == 0 {
            return client.shutdown().await;
        }
        let mut answer = &buffer[..count];
        if let Mode::Slow(time) = mode {
            tokio::time::sleep(time).await;
        }
        let cut = (mode == Mode::Truncates)
            .then(|| find(answer, b"\r\n\r\n"))
            .flatten();
        if let Some(head) = cut {
            answer = &answer[..count.min(head + 24)];
        }
        client.write_all(answer).await?;
        client.flush().await?;
        if cut.is_some() {
            return client.shutdown().await;
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}
