//! The ports of hosts on loopback.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::thread;
use std::time::Instant;

use inband_paxos::config::control_plane_beside;

use crate::listeners::{ListenError, IN_USE_POLL_INTERVAL, IN_USE_TIMEOUT};

/// Ports of hosts on loopback: below those that the kernel gives to clients.
pub(crate) const LOOPBACK_PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Number of ports reserved for later hosts, from the first port of a kind of listener (RESP, metrics).
const LISTENERS_MAX: u16 = 64;

/// A host's address on loopback. Until this is dropped, no other supervisor on this machine chooses it, also while the
/// host's process does not run.
#[derive(Debug)]
pub struct HeldPort {
    pub address: SocketAddrV4,
    /// An abstract Unix socket, named after the port. The kernel closes it with the process.
    _name: UnixDatagram,
}

impl HeldPort {
    /// Returns `None` if another supervisor holds the port, or a host could not use it: for packets, checkpoints and its
    /// control service.
    fn take(address: SocketAddrV4) -> Option<HeldPort> {
        let name = format!("inband-host-port-{}", address.port());
        let name = UnixAddress::from_abstract_name(name).ok()?;
        let name = UnixDatagram::bind_addr(&name).ok()?;
        is_free(address).then_some(HeldPort {
            address,
            _name: name,
        })
    }
}

fn is_free(address: SocketAddrV4) -> bool {
    let listens = |address| TcpListener::bind(address).is_ok();
    UdpSocket::bind(address).is_ok() && listens(address) && listens(control_plane_beside(address))
}

/// Takes a member's address, because it cannot have another.
pub(crate) fn take_port(host: &str, address: SocketAddrV4) -> Result<HeldPort, ListenError> {
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    loop {
        if let Some(held) = HeldPort::take(address) {
            return Ok(held);
        }
        if Instant::now() >= deadline {
            return Err(ListenError::HostPortInUse {
                host: host.to_owned(),
                address,
            });
        }
        thread::sleep(IN_USE_POLL_INTERVAL);
    }
}

/// Takes ports of loopback for hosts without their own network. The search begins at a port that depends on the cluster, so
/// that most clusters find their former ports free. `taken` belong to members, whether they
/// run or not; the cluster's hosts will listen from each of `first_listeners` on.
pub fn free_loopback_ports(
    cluster: &str,
    count: usize,
    taken: &[SocketAddrV4],
    first_listeners: &[u16],
) -> Result<Vec<HeldPort>, ListenError> {
    let hash = cluster
        .bytes()
        .fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    // Each host has a pair of ports.
    let is_listener = |port: u16| {
        let mut listeners = first_listeners.iter();
        // A host also uses the port after its own.
        listeners.any(|first| {
            port.saturating_add(1) >= *first && port - LISTENERS_MAX.min(port) < *first
        })
    };
    let pairs = u32::from(LOOPBACK_PORTS.end - LOOPBACK_PORTS.start) / 2;
    let start = hash.wrapping_mul(2_654_435_761) % pairs;
    let held: Vec<HeldPort> = (0..pairs)
        .map(|i| LOOPBACK_PORTS.start + 2 * ((start + i) % pairs) as u16)
        .filter(|port| !is_listener(*port))
        .map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
        .filter(|address| !taken.contains(address))
        .filter_map(HeldPort::take)
        .take(count)
        .collect();
    if held.len() < count {
        return Err(ListenError::NoFreePorts { count });
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_held_while_no_host_uses_them() {
        let first = free_loopback_ports("held", 4, &[], &[]).expect("ports");
        let second = free_loopback_ports("held", 4, &[], &[]).expect("more");
        for held in &first {
            assert!(second.iter().all(|other| other.address != held.address));
            let taken = take_port("acceptor/1", held.address).map(|held| held.address);
            let refused = taken.expect_err("it is held").to_string();
            assert!(refused.contains("acceptor/1"), "{refused}");
        }
        let address = first[0].address;
        drop(first);
        take_port("acceptor/1", address).expect("it is free again");
    }

    #[test]
    fn hosts_keep_off_ports_that_will_be_listened_at_later() {
        let found = |listeners: &[u16]| {
            let held = free_loopback_ports("listeners", 3, &[], listeners).expect("ports");
            held.iter()
                .map(|held| held.address.port())
                .collect::<Vec<_>>()
        };
        let at = found(&[])[0];
        for first in [at, at + 1, at - LISTENERS_MAX + 1] {
            let listeners = first..first + LISTENERS_MAX;
            for port in found(&[first, 6479]) {
                let pair = [port, port + 1];
                assert!(
                    !pair.iter().any(|port| listeners.contains(port)),
                    "{pair:?} {listeners:?}"
                );
            }
        }
    }
}
