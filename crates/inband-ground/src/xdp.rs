//! Loading, attaching, probing and measuring XDP programs on this host's network interfaces. The systems provide the
//! programs and their settings.

pub mod alone;
pub mod attach;
pub mod error;
pub mod forwarding;
pub mod gate;
pub mod live;
pub mod loopback;
pub mod lost;
pub mod maps;
pub mod multicast;
pub mod netlink;
pub mod probe;
pub mod programs;
pub mod refusal;
pub mod rig;
mod trial;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::c;
use netlink::{LinkInfo, Netlink};

pub use error::{XdpError, KERNEL_MIN_GENERIC, KERNEL_MIN_NATIVE};
pub use probe::{mtu_bytes, probe, sends, PassThrough, Probe, Support};
pub use refusal::keep_refusals_in;
pub use trial::Proof;

/// How programs are attached to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel allocates anything. The driver must support it.
    Native,
    /// In the kernel's receive path: slower, but works on any interface.
    Generic,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            XdpMode::Native => "xdp",
            XdpMode::Generic => "xdp-generic",
        })
    }
}

/// Returns an IPv4 address in network byte order.
pub fn wire_address(address: SocketAddrV4) -> u32 {
    u32::from_ne_bytes(address.ip().octets())
}

/// Returns a port in network byte order.
pub fn wire_port(address: SocketAddrV4) -> u16 {
    address.port().to_be()
}

/// Returns a destination via `link` whose address is not set yet.
pub fn nobody(link: &LinkInfo, from: SocketAddrV4) -> c::ib_member {
    c::ib_member {
        known: 0,
        ifindex: link.index,
        to_address: 0,
        from_address: wire_address(from),
        to_port: 0,
        from_port: wire_port(from),
        to_mac: [0; 6],
        from_mac: link.mac,
    }
}

/// Looks up the hardware address for packets to `address` and sets it in `member`. Returns whether it has changed. The
/// error says why it is unknown.
pub fn resolve_into(
    member: &mut c::ib_member,
    address: Ipv4Addr,
    netlink: &Netlink,
    link: &LinkInfo,
    interface: &str,
) -> Result<bool, String> {
    let mac = resolve(netlink, link, interface, address)?;
    let new = member.known != 1 || member.to_mac != mac;
    member.to_mac = mac;
    member.known = 1;
    Ok(new)
}

/// Returns the hardware address for packets to `address`. The error says why it is unknown.
fn resolve(
    netlink: &Netlink,
    link: &LinkInfo,
    interface: &str,
    address: Ipv4Addr,
) -> Result<[u8; 6], String> {
    let route = netlink
        .route(address)
        .map_err(|e| format!("there is no route to it: {e}"))?;
    if route.ifindex != link.index {
        return Err(format!(
            "the kernel's route to it does not go through {interface}"
        ));
    }
    let known = netlink.neighbour(link.index, route.next_hop);
    netlink
        .use_neighbour(link.index, route.next_hop)
        .map_err(|e| format!("the kernel cannot resolve {}: {e}", route.next_hop))?;
    match known {
        Ok(Some(mac)) => Ok(mac),
        Ok(None) => Err(format!("{} has not answered ARP yet", route.next_hop)),
        Err(e) => Err(format!("the kernel's neighbour table: {e}")),
    }
}
