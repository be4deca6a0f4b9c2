//! Packets are sized for the smallest MTU of the cluster. Longer ones would be fragmented, and roles in the kernel do
//! not reassemble fragments.

use std::io;
use std::net::Ipv4Addr;

use crate::config::Config;

/// Why packets of this cluster would be lost.
#[derive(Debug, thiserror::Error)]
pub enum MtuError {
    /// The interface's MTU is smaller than the cluster's.
    #[error(
        "{interface} has an MTU of {interface_mtu}, but this cluster's packets are made for {mtu}; set \
         `mtu = {interface_mtu}` (at least 1280) under [cluster] on all hosts before the cluster is \
         founded, or run: ip link set {interface} mtu {mtu}"
    )]
    TooSmall {
        interface: String,
        interface_mtu: u32,
        /// The configured MTU.
        mtu: u16,
    },
    /// The MTU could not be determined.
    #[error("the MTU of the interface with {address}: {source}")]
    Unknown {
        address: Ipv4Addr,
        /// What the system said.
        source: io::Error,
    },
}

/// Checks that the interface with this host's address accepts the cluster's packets. An address that no interface has
/// is reported elsewhere.
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

/// Returns the kernel's value for the calling thread's network namespace.
fn mtu_of(interface: &str) -> io::Result<u32> {
    inband_ground::xdp::mtu_bytes(interface).map_err(|error| io::Error::other(error.to_string()))
}
