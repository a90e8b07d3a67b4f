//! The certificate of the API, from files that may change: a mounted Secret, for instance.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest as _, Sha256};

use super::PlanApiError;

/// How often it is looked whether the files changed.
const LOOK: Duration = Duration::from_secs(2);

/// Where the certificate and its key are, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that lead from it to the root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What the files held.
struct Read {
    hash: [u8; 32],
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// The certificate in use.
#[derive(Debug)]
struct InUse(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for InUse {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(certified.clone())
    }
}

/// A certificate that follows its files.
pub(super) struct Certificate {
    files: TlsFiles,
    hash: [u8; 32],
    in_use: Arc<InUse>,
}

impl Certificate {
    /// # Errors
    /// The files can't be read, or are no certificate with its key.
    pub(super) fn load(files: TlsFiles) -> Result<Self, PlanApiError> {
        let read = read(&files)?;
        let certified = certified(&files, &read)?;
        Ok(Self {
            files,
            hash: read.hash,
            in_use: Arc::new(InUse(RwLock::new(Arc::new(certified)))),
        })
    }

    /// How connections are made.
    ///
    /// # Errors
    /// The library can't do TLS.
    pub(super) fn server(&self) -> Result<Arc<ServerConfig>, PlanApiError> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(PlanApiError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(self.in_use.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Takes the files anew whenever they change. What is no certificate with its key is told, and
    /// the one in use stays.
    pub(super) async fn follow(mut self) {
        let mut refused = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let files = self.files.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let read = read(&files)?;
                let hash = read.hash;
                Ok::<_, PlanApiError>((hash, certified(&files, &read)))
            });
            match looked.await {
                Ok(Ok((hash, _))) if hash == self.hash => refused = None,
                Ok(Ok((hash, Ok(certified)))) => {
                    let mut place = (self.in_use.0.write()).unwrap_or_else(PoisonError::into_inner);
                    *place = Arc::new(certified);
                    self.hash = hash;
                    refused = None;
                    tracing::info!("the plan API uses a new certificate");
                }
                Ok(Ok((_, Err(error))) | Err(error)) => {
                    let text = error.to_string();
                    if refused.as_ref() != Some(&text) {
                        tracing::warn!(error = text, "the plan API keeps its certificate");
                        refused = Some(text);
                    }
                }
                Err(_) => return,
            }
        }
    }
}

fn read(files: &TlsFiles) -> Result<Read, PlanApiError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| PlanApiError::File {
            path: path.to_owned(),
            problem: error.to_string(),
        })
    };
    let certificate = read(&files.certificate)?;
    let key = read(&files.key)?;
    let hash = Sha256::new()
        .chain_update(Sha256::digest(&certificate))
        .chain_update(Sha256::digest(&key));
    Ok(Read {
        hash: hash.finalize().into(),
        certificate,
        key,
    })
}

fn certified(files: &TlsFiles, read: &Read) -> Result<CertifiedKey, PlanApiError> {
    let problem = |path: &Path, problem: String| PlanApiError::File {
        path: path.to_owned(),
        problem,
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read.certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| problem(&files.certificate, error.to_string()))?;
    if chain.is_empty() {
        let none = "it has no certificate in PEM".to_owned();
        return Err(problem(&files.certificate, none));
    }
    let key = PrivateKeyDer::from_pem_slice(&read.key)
        .map_err(|error| problem(&files.key, format!("it has no private key in PEM: {error}")))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|error| problem(&files.key, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn what_is_no_certificate_with_its_key_is_told_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        };
        let (certificate, key) = made();
        let other = made().1;
        let load = |certificate: Option<&str>, key: Option<&str>| {
            for (path, text) in [(&files.certificate, certificate), (&files.key, key)] {
                match text {
                    Some(text) => std::fs::write(path, text).unwrap(),
                    None => drop(std::fs::remove_file(path)),
                }
            }
            let loaded = Certificate::load(files.clone());
            loaded.err().map(|error| error.to_string())
        };
        assert_eq!(load(Some(&certificate), Some(&key)), None);
        for (certificate, key, file) in [
            (None, Some(key.as_str()), "tls.crt"),
            (Some(certificate.as_str()), None, "tls.key"),
            (Some(""), Some(&key), "tls.crt"),
            (Some(&key), Some(&key), "tls.crt"),
            (Some(&certificate), Some(""), "tls.key"),
            (Some(&certificate), Some(&certificate), "tls.key"),
            (Some(&certificate), Some(&other), "tls.key"),
        ] {
            let error = load(certificate, key).unwrap();
            assert!(error.contains(file), "{error}");
        }
    }
}
