//! Ports of loopback for programs under test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that the kernel gives to clients, which may take a port between this call and the program's bind, and
/// below those of `inband up` and of benchmarks.
const PORTS: std::ops::Range<u16> = 10_000..14_000;
/// Processes with consecutive ids begin this far apart: those that ask at the same time would find the same ports free.
const PORTS_BETWEEN_PROCESSES: u32 = 331;

/// Returns the first of `count` ports in a row that neither a TCP nor a UDP socket of loopback has at the moment, and that
/// this function has not returned to this process before.
///
/// # Panics
/// If there are none in the range.
pub fn free_ports(count: u16) -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let in_range = PORTS.len() as u32;
    let first_of_process = std::process::id().wrapping_mul(PORTS_BETWEEN_PROCESSES);
    let is_free = |port: u16| {
        let address = (Ipv4Addr::LOCALHOST, port);
        TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    loop {
        let given = GIVEN.fetch_add(u32::from(count), Ordering::Relaxed);
        assert!(given < in_range, "no {count} free ports in {PORTS:?}");
        let offset = first_of_process.wrapping_add(given) % in_range;
        if offset + u32::from(count) > in_range {
            continue;
        }
        let first = PORTS.start + offset as u16;
        if (first..first + count).all(is_free) {
            return first;
        }
    }
}

/// Returns an address of loopback with a port of its own ([`free_ports`]).
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_ports(1)).into()
}
