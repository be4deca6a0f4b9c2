//! A cluster's certificates: one CA, and a certificate for each host that it issues.
//!
//! Anyone with the CA's key can create hosts of the cluster. Hosts do not need it.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inband_storage::{read_secret, replace, SecretFileError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;

/// Name that every host's certificate carries.
pub const HOST_NAME: &str = "inband-host";
/// How long certificates are valid.
pub const VALIDITY: Duration = Duration::from_secs(3650 * 24 * 3600);
/// Clocks of hosts differ, so certificates are valid from a little earlier.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);
/// With less validity left, `inband doctor` warns.
pub const RENEW_BEFORE: Duration = Duration::from_secs(90 * 24 * 3600);

// Common names: "Inband cluster NAME", and "Inband cluster NAME node ID" of a host.
const HOLDER_NAME_START: &str = "Inband cluster ";
const HOLDER_NAME_NODE: &str = " node ";

/// File name of the certificate in a CA's directory.
pub const AUTHORITY_CERTIFICATE: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";

/// Why certificates cannot be used or created.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file could not be read or written.
    #[error("{path}: cannot {what}: {source}; make certificates with `inband certificate new`")]
    File {
        path: PathBuf,
        what: &'static str,
        source: std::io::Error,
    },
    /// A file is not PEM, or has the wrong contents.
    #[error("{path}: {problem}; make certificates with `inband certificate new`")]
    Content { path: PathBuf, problem: String },
    /// A private key is not used.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    /// Certificate, key and CA do not match.
    #[error("certificate {certificate}: {problem}; make a new one with `inband certificate new`")]
    Unusable {
        certificate: PathBuf,
        problem: String,
    },
    /// A certificate could not be created.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

fn file_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> CertificateError {
    let path = path.to_owned();
    move |source| CertificateError::File {
        path: path.clone(),
        what,
        source,
    }
}

/// Reads a private key.
fn read_key(path: &Path) -> Result<Vec<u8>, CertificateError> {
    read_secret(path).map_err(|error| match error {
        SecretFileError::Unreadable { path, source } => file_error(&path, "read")(source),
        other => other.into(),
    })
}

fn write_secret(path: &Path, text: &str) -> Result<(), CertificateError> {
    replace(path, text.as_bytes(), 0o600).map_err(file_error(path, "write"))
}

fn write_public(path: &Path, text: &str) -> Result<(), CertificateError> {
    replace(path, text.as_bytes(), 0o644).map_err(file_error(path, "write"))
}

fn make_parent(path: &Path) -> Result<(), CertificateError> {
    match path.parent().filter(|dir| *dir != Path::new("")) {
        Some(dir) => fs::create_dir_all(dir).map_err(file_error(dir, "make")),
        None => Ok(()),
    }
}

/// Paths of a host's certificate files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// Returns the three files in a directory, under their usual names.
    pub fn in_dir(dir: &Path) -> Self {
        Self {
            ca: dir.join("ca.pem"),
            certificate: dir.join("certificate.pem"),
            key: dir.join("key.pem"),
        }
    }

    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
        certificates(&self.certificate)
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, CertificateError> {
        let pem = read_key(&self.key)?;
        PrivateKeyDer::from_pem_slice(&pem).map_err(|error| CertificateError::Content {
            path: self.key.clone(),
            problem: format!("no private key: {error}"),
        })
    }

    /// Returns when the first of the CA's and the host's certificates expires.
    pub fn expires(&self) -> Result<SystemTime, CertificateError> {
        Ok(expires(&self.ca)?.min(expires(&self.certificate)?))
    }
}

/// Returns the certificates in a file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let pem = fs::read(path).map_err(file_error(path, "read"))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let content = |problem: String| CertificateError::Content {
        path: path.to_owned(),
        problem,
    };
    match all {
        Ok(all) if all.is_empty() => Err(content("there is no certificate in it".into())),
        Ok(all) => Ok(all),
        Err(error) => Err(content(format!("no certificate: {error}"))),
    }
}

/// Returns when the certificate in a file expires.
pub fn expires(path: &Path) -> Result<SystemTime, CertificateError> {
    let content = |problem: String| CertificateError::Content {
        path: path.to_owned(),
        problem,
    };
    let all = certificates(path)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&all[0])
        .map_err(|error| content(format!("no certificate: {error}")))?;
    let at = certificate.validity().not_after.timestamp();
    let since_epoch = u64::try_from(at).map_err(|_| content("it has expired".into()))?;
    Ok(UNIX_EPOCH + Duration::from_secs(since_epoch))
}

/// The holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub node: u8,
    pub cluster: String,
}

/// Returns the holder of the certificate in a file; `None` if it was not created by [`Authority::issue`].
pub fn holder(path: &Path) -> Result<Option<Holder>, CertificateError> {
    let all = certificates(path)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&all[0]).map_err(|error| {
        CertificateError::Content {
            path: path.to_owned(),
            problem: format!("no certificate: {error}"),
        }
    })?;
    let mut names = certificate.subject().iter_common_name();
    let name = names.next().and_then(|name| name.as_str().ok());
    Ok(name.and_then(holder_of_name))
}

/// Returns the common name of a host's certificate.
fn holder_name(cluster: &str, node: u8) -> String {
    format!("{HOLDER_NAME_START}{cluster}{HOLDER_NAME_NODE}{node}")
}

fn holder_of_name(name: &str) -> Option<Holder> {
    let (cluster, node) = name
        .strip_prefix(HOLDER_NAME_START)?
        .rsplit_once(HOLDER_NAME_NODE)?;
    Some(Holder {
        node: node.parse().ok()?,
        cluster: cluster.to_owned(),
    })
}

/// Name of a host in its certificate.
pub fn name_of_node(node: u8) -> String {
    format!("inband-node-{node}")
}

/// A cluster's CA: a directory with its certificate and key.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    key: KeyPair,
    cluster: String,
}

impl Authority {
    /// Returns the CA in a directory; created if missing.
    pub fn open_or_make(dir: &Path, cluster: &str) -> Result<Self, CertificateError> {
        let (certificate, key) = (dir.join(AUTHORITY_CERTIFICATE), dir.join(AUTHORITY_KEY));
        if key.exists() {
            let pem = read_key(&key)?;
            let pem = String::from_utf8_lossy(&pem).into_owned();
            let pair = KeyPair::from_pem(&pem)?;
            let authority = Self {
                dir: dir.to_owned(),
                key: pair,
                cluster: cluster.to_owned(),
            };
            // A crash may have occurred between the two files.
            if !certificate.exists() {
                write_public(&certificate, &authority.certificate_pem()?)?;
            }
            return Ok(authority);
        }
        fs::create_dir_all(dir).map_err(file_error(dir, "make"))?;
        let authority = Self {
            dir: dir.to_owned(),
            key: KeyPair::generate()?,
            cluster: cluster.to_owned(),
        };
        write_public(&certificate, &authority.certificate_pem()?)?;
        write_secret(&key, &authority.key.serialize_pem())?;
        Ok(authority)
    }

    /// Returns its certificate, which all hosts need.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join(AUTHORITY_CERTIFICATE)
    }

    fn certificate_pem(&self) -> Result<String, CertificateError> {
        Ok(self.params()?.self_signed(&self.key)?.pem())
    }

    fn params(&self) -> Result<CertificateParams, CertificateError> {
        let mut params = valid_from_now(Vec::new(), VALIDITY)?;
        let name = format!("{HOLDER_NAME_START}{}", self.cluster);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(params)
    }

    /// Creates a certificate and key for a node that is reached at these addresses, and stores them and the CA's
    /// certificate where the host expects them.
    pub fn issue(
        &self,
        node: u8,
        addresses: &[IpAddr],
        to: &CertificateFiles,
    ) -> Result<(), CertificateError> {
        self.issue_for(node, addresses, to, VALIDITY)
    }

    /// The same with a different validity.
    pub fn issue_for(
        &self,
        node: u8,
        addresses: &[IpAddr],
        to: &CertificateFiles,
        validity: Duration,
    ) -> Result<(), CertificateError> {
        let names = vec![HOST_NAME.into(), name_of_node(node), "localhost".into()];
        let mut params = valid_from_now(names, validity)?;
        let name = holder_name(&self.cluster, node);
        params.distinguished_name.push(DnType::CommonName, name);
        let addresses = addresses.iter().map(|ip| SanType::IpAddress(*ip));
        params.subject_alt_names.extend(addresses);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(self.params()?, &self.key);
        let certificate = params.signed_by(&key, &issuer)?;
        for path in [&to.ca, &to.certificate, &to.key] {
            make_parent(path)?;
        }
        let ca = self.certificate();
        let ca_pem = fs::read_to_string(&ca).map_err(file_error(&ca, "read"))?;
        write_public(&to.ca, &ca_pem)?;
        write_secret(&to.key, &key.serialize_pem())?;
        write_public(&to.certificate, &certificate.pem())
    }
}

fn valid_from_now(
    names: Vec<String>,
    validity: Duration,
) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + validity;
    Ok(params)
}
