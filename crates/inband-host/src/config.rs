//! Settings shared by the host configurations of all systems.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

impl FromStr for Dataplane {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "xdp" => Ok(Self::Xdp),
            "xdp-generic" => Ok(Self::XdpGeneric),
            "udp" => Ok(Self::Udp),
            other => Err(format!(
                "unknown dataplane {other:?}; choose \"auto\", \"xdp\", \"xdp-generic\" or \"udp\""
            )),
        }
    }
}

impl fmt::Display for Dataplane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Udp => "udp",
        })
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

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            "sync" => Ok(Self::Sync),
            other => Err(format!(
                "unknown durability {other:?}; choose \"memory\" or \"sync\""
            )),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Sync => "sync",
        })
    }
}

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
