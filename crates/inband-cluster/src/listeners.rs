//! Sockets that a supervisor binds in its clients' network and passes to hosts.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReuseAddr;
use nix::sys::socket::{
    self, listen, setsockopt, shutdown, socket, AddressFamily, Backlog, Shutdown, SockFlag,
    SockType, SockaddrStorage,
};

use crate::loopback_ports::LOOPBACK_PORTS;

/// Connections that may wait to be accepted; a benchmark opens hundreds at once.
const BACKLOG: i32 = 1024;
/// How long a port may be in use before that is an error. A process that was just killed, or a child of ours between
/// fork and exec, may hold it for a moment.
pub(crate) const IN_USE_TIMEOUT: Duration = Duration::from_millis(200);
pub(crate) const IN_USE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Why listening at an address failed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// An address for clients is in use.
    #[error("port {} on {} is in use; stop what listens there, or choose another with {option}",
        address.port(), address.ip())]
    PortInUse {
        address: SocketAddr,
        /// The option that sets it.
        option: &'static str,
    },
    /// A member's address on loopback is in use.
    #[error(
        "{address} is the address of {host} in the cluster, and in use; stop what listens there"
    )]
    HostPortInUse { host: String, address: SocketAddrV4 },
    #[error("cannot listen at {address}: {source}; choose another address with {option}")]
    CannotListen {
        address: SocketAddr,
        /// The option that sets it.
        option: &'static str,
        source: std::io::Error,
    },
    /// There are not enough ports for hosts on loopback.
    #[error("no {count} free ports on loopback in {LOOPBACK_PORTS:?}; stop what listens there")]
    NoFreePorts { count: usize },
}

/// Parses an address to listen at. A name may have several addresses, so it is refused. `PORT` is that of the example in the
/// refusal, if `text` has none.
pub fn parse_address<const PORT: u16>(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        let port: u16 = port.unwrap_or(PORT);
        format!("give an IP address and a port, such as 127.0.0.1:{port}; names are not looked up")
    })
}

/// Listens at an address. An error names the option to change.
pub fn bind(address: SocketAddr, option: &'static str) -> Result<TcpListener, ListenError> {
    let failed = |source| ListenError::CannotListen {
        address,
        option,
        source,
    };
    // A listener on a port that the kernel chose for it would have another one after it was closed.
    let (_held, address) = match address.port() {
        0 => {
            let (held, address) = hold(address).map_err(failed)?;
            (Some(held), address)
        }
        _ => (None, address),
    };
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    let listener = loop {
        match TcpListener::bind(address) {
            Ok(listener) => break listener,
            Err(source) if source.kind() != ErrorKind::AddrInUse => return Err(failed(source)),
            Err(_) if Instant::now() < deadline => thread::sleep(IN_USE_POLL_INTERVAL),
            Err(_) => return Err(ListenError::PortInUse { address, option }),
        }
    };
    open(&listener).map_err(failed)?;
    Ok(listener)
}

/// Returns a socket that holds an address, which may be that of a listener that does not listen now, and the address
/// with its port.
fn hold(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let held = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&held, ReuseAddr, &true)?;
    socket::bind(held.as_raw_fd(), &SockaddrStorage::from(address))?;
    // It does not listen.
    let held = TcpListener::from(held);
    let address = held.local_addr()?;
    Ok((held, address))
}

/// Accepts connections.
fn open(listener: &TcpListener) -> io::Result<()> {
    Backlog::new(BACKLOG).and_then(|backlog| listen(listener, backlog))?;
    Ok(())
}

/// Keeps a listener closed, and its port from others.
#[derive(Debug)]
pub(crate) struct Closed {
    listener: Arc<TcpListener>,
    held: TcpListener,
}

impl Closed {
    /// Refuses connections, and resets those that were not accepted. Without this, clients of a host that was killed would
    /// connect to the socket that waits for its next process, and get no answer.
    pub(crate) fn new(listener: &Arc<TcpListener>) -> io::Result<Closed> {
        let address = listener.local_addr()?;
        match shutdown(listener.as_raw_fd(), Shutdown::Read) {
            // It is closed already.
            Err(Errno::ENOTCONN) => {}
            other => other?,
        }
        let hold = || {
            let (held, _) = hold(address)?;
            // From now on no other socket may have the address, not even one that allows it.
            setsockopt(&held, ReuseAddr, &false)?;
            let listener = Arc::clone(listener);
            Ok(Closed { listener, held })
        };
        hold().inspect_err(|_| {
            let _ = open(listener);
        })
    }

    /// Accepts connections again.
    pub(crate) fn open(self) -> io::Result<()> {
        setsockopt(&self.held, ReuseAddr, &true)?;
        open(&self.listener)
    }
}

/// Returns the port of a process for metrics; 0, which is any free one, if the first is, or if there are not so many
/// ports.
pub(crate) fn metrics_port(first: u16, offset: u16) -> u16 {
    match first {
        0 => 0,
        first => first.checked_add(offset).unwrap_or(0),
    }
}

/// Listens at this port of loopback or, if it is in use, at any free one.
pub(crate) fn bind_or_any(port: u16, option: &'static str) -> Result<TcpListener, ListenError> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if port != 0 {
        if let Ok(listener) = TcpListener::bind(at(port)) {
            return Ok(listener);
        }
    }
    let listener = bind(at(0), option)?;
    if let (1.., Ok(other)) = (port, listener.local_addr()) {
        tracing::warn!("{option}: {} is in use; {other} is used instead", at(port));
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn metrics_have_consecutive_ports_or_any_free_ones() {
        assert_eq!(metrics_port(9464, 2), 9466);
        assert_eq!(metrics_port(u16::MAX - 1, 1), u16::MAX);
        assert_eq!(metrics_port(u16::MAX - 1, 2), 0);
        assert_eq!(metrics_port(0, 3), 0);
    }

    #[test]
    fn an_address_has_no_host_name() {
        assert_eq!(
            parse_address::<6379>("127.0.0.1:7000"),
            Ok(([127, 0, 0, 1], 7000).into())
        );
        let refused = parse_address::<6379>("localhost:7000").expect_err("a name");
        assert!(
            refused.contains("IP address") && refused.contains("127.0.0.1:7000"),
            "{refused}"
        );
        let refused = parse_address::<6379>("7000").expect_err("no address");
        assert!(refused.contains("127.0.0.1:6379"), "{refused}");
        let refused = parse_address::<11211>("localhost").expect_err("a name");
        assert!(refused.contains("127.0.0.1:11211"), "{refused}");
    }

    #[test]
    fn a_closed_listener_refuses_until_it_is_opened_and_keeps_its_port() {
        let listener = Arc::new(bind(([127, 0, 0, 1], 0).into(), "--resp").expect("a port"));
        let address = listener.local_addr().expect("it is bound");
        let waiting = TcpStream::connect(address).expect("it listens");
        drop(Closed::new(&listener).expect("closed"));
        let closed = Closed::new(&listener).expect("closed once more");
        let refused = TcpStream::connect(address).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
        let reset = (&waiting).read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(reset, Err(ErrorKind::ConnectionReset));
        assert!(TcpListener::bind(address).is_err(), "the port is kept");
        closed.open().expect("opened");
        TcpStream::connect(address).expect("it listens again");
        listener.accept().expect("and accepts");
    }
}
