//! As much of an HTTPS client as the probes need, so that starting needs no async runtime.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Error;

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Probe {
    tls: Arc<ClientConfig>,
}

impl Probe {
    pub(crate) fn new(authority: &[u8]) -> Result<Self, Error> {
        let failed = |error: rustls::Error| Error::Certificates(error.to_string());
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(authority.to_vec()))
            .map_err(failed)?;
        let tls =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(failed)?
                .with_root_certificates(roots)
                .with_no_client_auth();
        Ok(Self { tls: Arc::new(tls) })
    }

    /// Gets a path; anything but 200 is an error that says what came instead.
    pub(crate) fn get(&self, port: u16, path: &str, token: &str) -> Result<(), String> {
        let status = self
            .status(port, path, token)
            .map_err(|e| format!("{path}: {e}"))?;
        if status.split(' ').nth(1) == Some("200") {
            Ok(())
        } else {
            Err(format!("{path}: {status}"))
        }
    }

    fn status(&self, port: u16, path: &str, token: &str) -> std::io::Result<String> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let tcp = TcpStream::connect_timeout(&to, TIMEOUT)?;
        tcp.set_read_timeout(Some(TIMEOUT))?;
        tcp.set_write_timeout(Some(TIMEOUT))?;
        let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
        let tls =
            ClientConnection::new(Arc::clone(&self.tls), name).map_err(std::io::Error::other)?;
        let mut stream = StreamOwned::new(tls, tcp);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Accept: application/json\r\nConnection: close\r\n\r\n"
        )?;
        stream.flush()?;
        let mut line = Vec::new();
        let mut byte = [0u8];
        while line.len() < 200 && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}
