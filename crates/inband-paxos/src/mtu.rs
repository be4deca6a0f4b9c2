//! Packets are made for the smallest MTU of the cluster. A longer one would be cut into fragments, which
//! roles in the kernel do not put together.

use std::io;
use std::net::Ipv4Addr;

use crate::config::Config;

/// Why packets of this cluster would not pass.
#[derive(Debug, thiserror::Error)]
pub enum MtuError {
    /// The interface takes less than the cluster's packets need.
    #[error(
        "{interface} has an MTU of {interface_mtu}, but this cluster's packets are made for {mtu}; set \
         `mtu = {interface_mtu}` (at least 1280) under [cluster] on all hosts before the cluster is \
         founded, or run: ip link set {interface} mtu {mtu}"
    )]
    TooSmall {
        /// Which.
        interface: String,
        /// What it takes.
        interface_mtu: u32,
        /// What the configuration says.
        mtu: u16,
    },
    /// The system did not say.
    #[error("the MTU of the interface with {address}: {source}")]
    Unknown {
        /// This host's address.
        address: Ipv4Addr,
        /// What the system said.
        source: io::Error,
    },
}

/// Does the interface that has this host's address take the cluster's packets? An address that no
/// interface has is for others to complain about.
pub fn check(config: &Config) -> Result<(), MtuError> {
    let address = *config.this().address.ip();
    let unknown = |source| MtuError::Unknown { address, source };
    let all = nix::ifaddrs::getifaddrs().map_err(|errno| unknown(errno.into()))?;
    for entry in all {
        let own = entry
            .address
            .and_then(|own| Some(own.as_sockaddr_in()?.ip()));
        if own != Some(address) {
            continue;
        }
        let interface = entry.interface_name;
        let interface_mtu = mtu_of(&interface).map_err(unknown)?;
        let mtu = config.cluster.mtu;
        if interface_mtu < u32::from(mtu) {
            return Err(MtuError::TooSmall {
                interface,
                interface_mtu,
                mtu,
            });
        }
    }
    Ok(())
}

/// By the kernel's own words for the calling thread's network namespace.
fn mtu_of(interface: &str) -> io::Result<u32> {
    inband_ground::xdp::mtu_bytes(interface).map_err(|error| io::Error::other(error.to_string()))
}
