//! An HTTP client that sends exactly what a test says, over TLS or not.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// How an address is reached.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) address: SocketAddr,
    tls: Option<TlsConnector>,
}

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap_or_default()
    }
}

impl Caller {
    pub(crate) fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    /// Trusts the certificate authority, or the certificate itself, in PEM.
    pub(crate) fn trusting(address: SocketAddr, pem: &str) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let trusted = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        roots.add(trusted).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A resumed session shows no certificate.
        config.resumption = rustls::client::Resumption::disabled();
        Self {
            address,
            tls: Some(TlsConnector::from(Arc::new(config))),
        }
    }

    pub(crate) async fn connect(&self) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from("localhost").unwrap();
                Box::new(tls.connect(name, stream).await?)
            }
        };
        Ok(Connection {
            stream,
            buffer: Vec::new(),
        })
    }

    /// One request over its own connection.
    pub(crate) async fn send(&self, request: &str) -> std::io::Result<Reply> {
        let mut connection = self.connect().await?;
        connection.write(request.as_bytes()).await?;
        connection.reply().await
    }
}

impl Connection {
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads until the server closes the connection.
    pub(crate) async fn rest(&mut self) -> std::io::Result<String> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await?;
        Ok(String::from_utf8_lossy(&rest).into_owned())
    }

    pub(crate) async fn reply(&mut self) -> std::io::Result<Reply> {
        let mut chunk = vec![0; 16_384];
        loop {
            if let Some(end) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).to_lowercase();
                let length = head
                    .lines()
                    .find_map(|l| l.strip_prefix("content-length: "));
                let length: usize = length.map_or(0, |length| length.parse().unwrap());
                if self.buffer.len() >= end + 4 + length {
                    let body: Vec<_> = self.buffer.drain(..end + 4 + length).collect();
                    let body = &body[end + 4..];
                    return Ok(Reply {
                        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
                        body: serde_json::from_slice(body).unwrap_or_default(),
                        head,
                    });
                }
            }
            match self.stream.read(&mut chunk).await? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }
}

/// The text of a request.
pub(crate) fn request(method: &str, path: &str, token: Option<&str>, body: Option<&str>) -> String {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let json = body.map(|body| {
        let length = body.len();
        format!("Content-Type: application/json\r\nContent-Length: {length}\r\n")
    });
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{}{}\r\n{}",
        token.unwrap_or_default(),
        json.unwrap_or_default(),
        body.unwrap_or_default()
    )
}

/// The text of a check.
pub(crate) fn check(boundary: &str, token: &str, body: &Value) -> String {
    let path = format!("/v1/boundaries/{boundary}/compute-plans:check");
    request("POST", &path, Some(token), Some(&body.to_string()))
}
