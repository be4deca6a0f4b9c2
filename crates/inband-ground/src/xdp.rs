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
    if !matches!(&known, Ok(Some(neighbour)) if neighbour.is_permanent) {
        netlink
            .use_neighbour(link.index, route.next_hop)
            .map_err(|e| format!("the kernel cannot resolve {}: {e}", route.next_hop))?;
    }
    match known {
        Ok(Some(neighbour)) => Ok(neighbour.mac),
        Ok(None) => Err(format!("{} has not answered ARP yet", route.next_hop)),
        Err(e) => Err(format!("the kernel's neighbour table: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Since Linux 5.16, a neighbour that a program says it uses is not permanent any more.
    #[test]
    fn a_permanent_neighbour_stays_permanent() {
        // SAFETY: it moves this thread, which the test harness made for this test, to a namespace of its own.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return inband_testing::not_run("a network namespace needs root");
        }
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split(' ')).output();
            let output = output.expect("ip runs");
            assert!(output.status.success(), "ip {arguments}: {output:?}");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        ip("link add d0 type veth peer name d1");
        ip("address add 10.7.7.1/24 dev d0");
        ip("link set d0 up");
        ip("link set d1 up");
        ip("neigh add 10.7.7.2 lladdr 02:00:00:00:00:02 dev d0 nud permanent");
        let netlink = Netlink::open().expect("a socket");
        let link = netlink.link("d0").expect("asked").expect("it exists");
        for _ in 0..2 {
            let mac = resolve(&netlink, &link, "d0", Ipv4Addr::new(10, 7, 7, 2));
            assert_eq!(mac, Ok([2, 0, 0, 0, 0, 2]));
        }
        let shown = ip("neigh show 10.7.7.2");
        assert!(shown.contains("PERMANENT"), "{shown}");
    }
}
