//! Settings shared by the host configurations of all systems.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{by_name, serde_as_text};

/// Where the packet roles of a host run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dataplane {
    /// The best one that works here; the program reports which and why.
    #[default]
    Auto,
    /// In the kernel, in the interface's driver.
    Xdp,
    /// In the kernel, behind the driver: any interface, slower.
    XdpGeneric,
    /// In user space, over a UDP socket: no privileges.
    Udp,
}

by_name!(
    Dataplane,
    "dataplane",
    Auto = "auto",
    Xdp = "xdp",
    XdpGeneric = "xdp-generic",
    Udp = "udp"
);

/// Longest name of a host in DNS, in bytes.
const HOST_NAME_LEN_BYTES_MAX: usize = 253;

/// Where clients reach a host: an IP address or a name of DNS, and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientAddress {
    /// Without the brackets around an IPv6 address.
    pub host: String,
    pub port: u16,
}

impl From<SocketAddr> for ClientAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl FromStr for ClientAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            Err(format!(
                "{text:?} {why}; write ADDRESS:PORT, where clients reach this host, for instance \
                 \"192.0.2.1:6379\", \"[2001:db8::1]:6379\" or \"host-1.example:6379\""
            ))
        };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return match (address.port(), address.ip()) {
                (0, _) => wrong("has no port from 1"),
                (_, ip) if ip.is_unspecified() || ip.is_multicast() => {
                    wrong("is not an address that a client can connect to")
                }
                _ => Ok(address.into()),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return wrong("has no port");
        };
        let port = match port.parse() {
            Ok(0) | Err(_) => return wrong("has no port from 1 to 65535"),
            Ok(port) => port,
        };
        let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_';
        let is_name = (1..=HOST_NAME_LEN_BYTES_MAX).contains(&host.len())
            && host.bytes().all(legal)
            // Digits and dots alone are an IP address with a mistake.
            && host.bytes().any(|b| b.is_ascii_alphabetic());
        if !is_name {
            return wrong("has no host name or IP address");
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

serde_as_text!(ClientAddress);

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// What survives when hosts lose their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Any minority of acceptors at any time; see protocol.md, 6.
    #[default]
    Memory,
    /// Values are on disk before they are acknowledged, and survive a power failure of all hosts. Acceptors run in user
    /// space.
    Sync,
}

by_name!(Durability, "durability", Memory = "memory", Sync = "sync");

/// `[host.tls]`: checkpoints and the control plane use TLS, and only hosts with a certificate from the cluster's CA can
/// connect. Either all hosts of a cluster have it, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate of the cluster's CA.
    pub ca: PathBuf,
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Redis clients must use TLS too. They need no certificate.
    #[serde(default)]
    pub resp: bool,
}
