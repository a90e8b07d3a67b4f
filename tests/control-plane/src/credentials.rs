//! Certificates, keys and tokens of one control plane.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::Error;

/// The user that may do everything.
pub(crate) const ADMIN: &str = "admin";
/// The user that the kube-controller-manager is.
pub(crate) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

#[derive(Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) token: String,
}

impl User {
    pub(crate) fn new(name: &str, groups: &[&str]) -> Result<Self, Error> {
        let mut random = [0u8; 16];
        File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut random))
            .map_err(Error::io("reading /dev/urandom"))?;
        let token = random.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Ok(Self {
            name: name.to_owned(),
            groups: groups.iter().map(|&g| g.to_owned()).collect(),
            token,
        })
    }

    fn csv(&self) -> String {
        let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        format!(
            "{},{},{},{}\n",
            self.token,
            quote(&self.name),
            quote(&self.name),
            quote(&self.groups.join(","))
        )
    }
}

/// The certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) pem: String,
    pub(crate) der: Vec<u8>,
}

/// Writes everything that the processes read into `folder`, and returns the authority.
pub(crate) fn write(folder: &Path, users: &[User]) -> Result<Authority, Error> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name
        .push(DnType::CommonName, "control-plane test authority");
    let ca_cert = ca.self_signed(&ca_key)?;
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate()?;
    let names = [
        "localhost",
        "127.0.0.1",
        "10.0.0.1",
        "kubernetes.default.svc",
    ];
    let mut serving = CertificateParams::new(names.map(str::to_owned))?;
    serving
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    serving.use_authority_key_identifier_extension = true;
    let cert = serving.signed_by(&key, &issuer)?;

    let accounts = KeyPair::generate()?;
    let tokens: String = users.iter().map(User::csv).collect();
    let files = [
        ("ca.crt", ca_cert.pem()),
        ("tls.crt", cert.pem()),
        ("tls.key", key.serialize_pem()),
        ("service-accounts.key", accounts.serialize_pem()),
        ("service-accounts.pub", accounts.public_key_pem()),
        ("tokens.csv", tokens),
    ];
    for (name, content) in files {
        write_private(&folder.join(name), &content)?;
    }
    Ok(Authority {
        pem: ca_cert.pem(),
        der: ca_cert.der().to_vec(),
    })
}

/// Writes a file that only its owner reads.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), Error> {
    let _ = fs::remove_file(path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut f| f.write_all(content.as_bytes()))
        .map_err(Error::file("writing", path))
}
