//! The cluster's certificate authority, in the cluster's directory, and the certificates of its hosts, in theirs.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use inband_paxos::config::TlsConfig;
use inband_transport::certificates::{Authority, CertificateError, CertificateFiles, RENEW_BEFORE};

/// Directory of the authority within the cluster's. Its private key can create certificates for hosts of the cluster.
const AUTHORITY_DIR: &str = "authority";
/// Directory of a host's certificate within the host's.
const TLS_DIR: &str = "tls";

/// Returns the certificate of the cluster's authority, which may be given to all clients.
pub fn authority(cluster_dir: &Path) -> PathBuf {
    cluster_dir.join(AUTHORITY_DIR).join("ca.pem")
}

/// Makes sure that a host has a certificate that is not about to expire.
pub fn ensure(
    cluster_dir: &Path,
    cluster: &str,
    host_dir: &Path,
    node: u8,
    addresses: &[IpAddr],
) -> Result<CertificateFiles, CertificateError> {
    let authority = Authority::open_or_make(&cluster_dir.join(AUTHORITY_DIR), cluster)?;
    let dir = host_dir.join(TLS_DIR);
    let files = CertificateFiles {
        ca: dir.join("ca.pem"),
        certificate: dir.join("certificate.pem"),
        key: dir.join("key.pem"),
    };
    if !is_good(&authority, &files) {
        let mut all = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
        all.extend(addresses.iter().filter(|ip| !ip.is_unspecified()));
        authority.issue(node, &all, &files)?;
    }
    Ok(files)
}

/// Returns whether there is a certificate of this authority that is not about to expire.
fn is_good(authority: &Authority, files: &CertificateFiles) -> bool {
    let same = match (fs::read(authority.certificate()), fs::read(&files.ca)) {
        (Ok(ours), Ok(its)) => ours == its,
        _ => false,
    };
    let lasts = |expires: SystemTime| {
        let left = expires.duration_since(SystemTime::now());
        left.is_ok_and(|left| left > RENEW_BEFORE)
    };
    same && files.key.exists() && files.expires().is_ok_and(lasts)
}

/// Returns the TLS section of the host's configuration.
pub fn config(files: CertificateFiles, resp: bool) -> TlsConfig {
    TlsConfig {
        ca: files.ca,
        certificate: files.certificate,
        key: files.key,
        resp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_made_once_and_again_when_the_authority_is_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let host = dir.path().join("host");
        let ensure = || ensure(dir.path(), "test", &host, 3, &[]).expect("made");
        let read = |files: &CertificateFiles| fs::read(&files.certificate).expect("there");
        let files = ensure();
        let first = read(&files);
        assert_eq!(read(&ensure()), first);
        // As after a crash while the certificate was being written.
        fs::remove_file(&files.key).expect("removed");
        let second = read(&ensure());
        assert_ne!(second, first);
        fs::remove_dir_all(dir.path().join(AUTHORITY_DIR)).expect("removed");
        assert_ne!(read(&ensure()), second);
    }
}
