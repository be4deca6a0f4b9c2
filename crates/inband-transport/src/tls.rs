//! Connections between hosts: plain TCP, or TLS with certificates of the cluster on both ends.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::verify_server_name;
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use crate::certificates::{
    certificates, name_of_node, CertificateError, CertificateFiles, HOST_NAME,
};
use crate::connect;
use crate::paced::{Pace, Paced};

/// Time limit for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Counters of peers refused during the handshake, by reason.
#[derive(Debug, Default)]
pub struct HandshakeCounters {
    plain: AtomicU64,
    no_certificate: AtomicU64,
    bad_certificate: AtomicU64,
    other_node: AtomicU64,
    failed: AtomicU64,
}

impl HandshakeCounters {
    /// Returns all counters, with their names in `inband status --json` and in the metrics.
    pub fn all(&self) -> [(&'static str, u64); 5] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("tls_refused_plain", get(&self.plain)),
            ("tls_refused_no_certificate", get(&self.no_certificate)),
            ("tls_refused_certificate", get(&self.bad_certificate)),
            ("tls_refused_other_node", get(&self.other_node)),
            ("tls_handshakes_failed", get(&self.failed)),
        ]
    }

    /// Counts a failed handshake. Returns the reason as text.
    pub fn failed(&self, error: &io::Error) -> &'static str {
        let tls = error.get_ref().and_then(|e| e.downcast_ref());
        let (counter, says) = match tls {
            Some(rustls::Error::InvalidMessage(_)) => (&self.plain, "it does not speak TLS"),
            Some(rustls::Error::NoCertificatesPresented) => (
                &self.no_certificate,
                "it has no certificate of this cluster",
            ),
            Some(rustls::Error::InvalidCertificate(_)) => (
                &self.bad_certificate,
                "its certificate is not of this cluster, or has expired",
            ),
            _ => (&self.failed, "the TLS handshake failed"),
        };
        count(counter);
        says
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Clone)]
struct Mutual {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Mutual {
    fn load(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let unusable = unusable(files);
        let roots = roots(&files.ca)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable(error.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(files.chain()?, files.key()?)
            .map_err(|error| unusable(error.to_string()))?;
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable(error.to_string()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(files.chain()?, files.key()?)
            .map_err(|error| unusable(error.to_string()))?;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }
}

/// How this host connects to the others: as configured, the same for all.
#[derive(Clone, Default)]
pub struct Transport {
    /// Shared by all clones, so that all of them use new certificates.
    mutual: Option<Arc<RwLock<Mutual>>>,
    counters: Arc<HandshakeCounters>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_secure() { "TLS" } else { "plain" })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn unusable(files: &CertificateFiles) -> impl Fn(String) -> CertificateError + '_ {
    |problem| CertificateError::Unusable {
        certificate: files.certificate.clone(),
        problem,
    }
}

fn roots(ca: &Path) -> Result<Arc<RootCertStore>, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        let added = roots.add(certificate);
        added.map_err(|error| CertificateError::Unusable {
            certificate: ca.to_owned(),
            problem: error.to_string(),
        })?;
    }
    Ok(Arc::new(roots))
}

/// For a client: connect to the server at this address, if its certificate was issued by this CA for the address.
pub fn client_of_server(ca: &Path, address: IpAddr) -> Result<ClientConnection, CertificateError> {
    let unusable = |error: rustls::Error| CertificateError::Unusable {
        certificate: ca.to_owned(),
        problem: error.to_string(),
    };
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots(ca)?)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), ServerName::from(address)).map_err(unusable)
}

/// For clients of this host: it presents its certificate and requires none.
pub fn server_for_clients(files: &CertificateFiles) -> Result<Arc<ServerConfig>, CertificateError> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(files)(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(files.chain()?, files.key()?)
        .map_err(|error| unusable(files)(error.to_string()))?;
    Ok(Arc::new(config))
}

impl Transport {
    /// Without TLS: every machine that can reach a host's ports is trusted.
    pub fn plain() -> Self {
        Self::default()
    }

    /// TLS 1.3 with a certificate from the cluster's CA on each end.
    pub fn mutual(files: &CertificateFiles) -> Result<Self, CertificateError> {
        Ok(Self {
            mutual: Some(Arc::new(RwLock::new(Mutual::load(files)?))),
            counters: Arc::default(),
        })
    }

    /// Uses the present content of these files for connections from now on. If it is unusable, nothing changes. Without
    /// TLS there is nothing to do.
    pub fn reload(&self, files: &CertificateFiles) -> Result<(), CertificateError> {
        let Some(mutual) = &self.mutual else {
            return Ok(());
        };
        let fresh = Mutual::load(files)?;
        *mutual.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// What a connection that begins now uses.
    fn current(&self) -> Option<Mutual> {
        let mutual = self.mutual.as_ref()?;
        Some(
            mutual
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        )
    }

    /// Returns whether the peers must authenticate.
    pub fn is_secure(&self) -> bool {
        self.mutual.is_some()
    }

    /// Counters of refused peers.
    pub fn counters(&self) -> Arc<HandshakeCounters> {
        self.counters.clone()
    }

    /// Connects to a host. The connection is closed if it has been dead for as long as `pace` allows the peer to be
    /// silent.
    pub fn connect(&self, to: SocketAddr, timeout: Duration, pace: Pace) -> io::Result<Stream> {
        let tcp = connect::connect(to, timeout)?;
        tcp.set_nodelay(true)?;
        connect::end_if_unacknowledged(&tcp, pace.silence_max)?;
        let paced = Paced::new(tcp, pace)?;
        let Some(mutual) = self.current() else {
            return Ok(Stream::Plain(paced));
        };
        let name = ServerName::try_from(HOST_NAME).map_err(io::Error::other)?;
        let tls = ClientConnection::new(mutual.client, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, paced);
        stream
            .sock
            .must_end_in(Some(timeout.max(HANDSHAKE_TIMEOUT)));
        while stream.conn.is_handshaking() {
            let done = stream.conn.complete_io(&mut stream.sock);
            done.inspect_err(|error| {
                self.counters.failed(error);
            })?;
        }
        stream.sock.must_end_in(None);
        Ok(Stream::Client(Box::new(stream)))
    }

    /// Accepts a connection from a host; the error says who was refused and why.
    pub fn accept(&self, tcp: TcpStream, pace: Pace) -> io::Result<Stream> {
        tcp.set_nodelay(true)?;
        connect::probe(&tcp)?;
        let paced = Paced::new(tcp, pace)?;
        let Some(mutual) = self.current() else {
            return Ok(Stream::Plain(paced));
        };
        let tls = ServerConnection::new(mutual.server).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, paced);
        stream.sock.must_end_in(Some(HANDSHAKE_TIMEOUT));
        while stream.conn.is_handshaking() {
            if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
                let says = self.counters.failed(&error);
                return Err(io::Error::new(error.kind(), Refused(says, error)));
            }
        }
        stream.sock.must_end_in(None);
        Ok(Stream::Server(Box::new(stream), self.counters.clone()))
    }
}

/// Why a peer was refused.
#[derive(Debug, thiserror::Error)]
#[error("a peer was refused: {0} ({1})")]
pub struct Refused(&'static str, io::Error);

/// Returns whether this error means that a peer was refused during the handshake.
pub fn is_refused(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(|inner| inner.downcast_ref::<Refused>().is_some())
}

/// A connection to a host.
pub enum Stream {
    /// Without TLS.
    Plain(Paced),
    /// TLS, opened by this host.
    Client(Box<StreamOwned<ClientConnection, Paced>>),
    /// TLS, opened by the peer.
    Server(
        Box<StreamOwned<ServerConnection, Paced>>,
        Arc<HandshakeCounters>,
    ),
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.paced().fmt(f)
    }
}

impl Stream {
    /// Returns the rate enforcement of the stream.
    pub fn paced(&self) -> &Paced {
        match self {
            Stream::Plain(paced) => paced,
            Stream::Client(tls) => &tls.sock,
            Stream::Server(tls, _) => &tls.sock,
        }
    }

    /// Returns the same, mutable.
    pub fn paced_mut(&mut self) -> &mut Paced {
        match self {
            Stream::Plain(paced) => paced,
            Stream::Client(tls) => &mut tls.sock,
            Stream::Server(tls, _) => &mut tls.sock,
        }
    }

    /// Returns whether the peer may speak for this node. Without TLS every peer may. Refusals are counted.
    pub fn may_be_node(&self, node: u8) -> bool {
        let Stream::Server(tls, counters) = self else {
            return true;
        };
        let certificate = tls.conn.peer_certificates().and_then(<[_]>::first);
        let may = certificate.is_some_and(|certificate| is_of_node(certificate, node));
        if !may {
            count(&counters.other_node);
        }
        may
    }
}

fn is_of_node(certificate: &CertificateDer<'_>, node: u8) -> bool {
    let Ok(name) = ServerName::try_from(name_of_node(node)) else {
        return false;
    };
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(paced) => paced.read(into),
            Stream::Client(tls) => tls.read(into),
            Stream::Server(tls, _) => tls.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(paced) => paced.write(bytes),
            Stream::Client(tls) => tls.write(bytes),
            Stream::Server(tls, _) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(paced) => paced.flush(),
            Stream::Client(tls) => tls.flush(),
            Stream::Server(tls, _) => tls.flush(),
        }
    }
}
