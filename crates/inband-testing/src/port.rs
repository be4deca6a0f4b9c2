//! Ports of loopback for programs under test and for benchmarks.

use std::mem::forget;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports of hosts on loopback, and below those that the kernel gives to clients, which might take a port before
/// the program under test binds it.
const PORTS: std::ops::Range<u16> = 10_000..20_000;
/// Processes with consecutive ids begin this far apart, so that they seldom ask for the same ports.
const PORTS_BETWEEN_PROCESSES: u32 = 331;

/// Returns the first of `count` ports in a row that neither a TCP nor a UDP socket of loopback has at the moment. They
/// are reserved: until this process ends, this function returns them neither to it nor to another process.
///
/// # Panics
/// If there are none.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let in_range = PORTS.len() as u32;
    let first_of_process = std::process::id().wrapping_mul(PORTS_BETWEEN_PROCESSES);
    loop {
        let next = NEXT.fetch_add(u32::from(count), Ordering::Relaxed);
        assert!(next < in_range, "no {count} free ports in {PORTS:?}");
        let offset = first_of_process.wrapping_add(next) % in_range;
        if offset + u32::from(count) > in_range {
            continue;
        }
        let first = PORTS.start + offset as u16;
        if (first..first + count).all(reserve) {
            return first;
        }
    }
}

/// Reserves a port if nobody has it. The kernel gives it back when the process ends.
fn reserve(port: u16) -> bool {
    let name = UnixAddr::from_abstract_name(format!("inband-port-{port}")).expect("a short name");
    let Ok(reservation) = UnixListener::bind_addr(&name) else {
        return false;
    };
    let at = loopback(port);
    let is_free = TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok();
    if is_free {
        forget(reservation);
    }
    is_free
}

/// Returns an address of loopback with a port of its own ([`free_ports`]).
pub fn free_address() -> SocketAddr {
    loopback(free_ports(1))
}

pub fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
