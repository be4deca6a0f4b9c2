//! Opens connections, and makes the system detect dead ones.
//!
//! TCP alone is slow to notice that a network has recovered after a cut: it retransmits after 0.2 s, 0.4 s, 0.8 s and
//! so on, and a SYN after one second. Between replicas that is far too long.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    connect as begin_connecting, setsockopt, socket, sockopt, AddressFamily, SockFlag, SockType,
    SockaddrStorage,
};

/// Another connection attempt is started after this time, because a lost SYN delays the first by a second. Earlier
/// attempts continue: the peer may be that far away.
const ATTEMPT_EVERY: Duration = Duration::from_millis(250);
/// An idle connection is probed after this time, and then at this interval: a peer that closed it while the network was
/// cut could not tell this host.
const PROBED_AFTER_S: u32 = 2;
const PROBE_EVERY_S: u32 = 1;
/// Unanswered probes after which the connection is closed. A host may be suspended for several seconds.
const PROBES_MAX: u32 = 8;

/// Connects within `limit`.
pub(crate) fn connect(to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let until = Instant::now() + limit;
    let mut attempts = Vec::new();
    loop {
        attempts.push(begin(to)?);
        let next = until.min(Instant::now() + ATTEMPT_EVERY);
        if let Some(open) = first_open(&mut attempts, next)? {
            open.set_nonblocking(false)?;
            return Ok(open);
        }
        if next == until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn begin(to: SocketAddr) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    match begin_connecting(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the first of these attempts that connects, if any does by then. A refusal also ends the wait.
fn first_open(attempts: &mut Vec<TcpStream>, until: Instant) -> io::Result<Option<TcpStream>> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let fd = |stream| PollFd::new(AsFd::as_fd(stream), PollFlags::POLLOUT);
        let mut fds: Vec<PollFd<'_>> = attempts.iter().map(fd).collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if let Some(at) = fds.iter().position(is_ready) {
            let stream = attempts.swap_remove(at);
            return match stream.take_error()? {
                None => Ok(Some(stream)),
                Some(error) => Err(error),
            };
        }
        if Instant::now() >= until {
            return Ok(None);
        }
    }
}

/// Makes the system close this connection once sent data has not been acknowledged or accepted for this long.
pub(crate) fn end_if_unacknowledged(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    Ok(setsockopt(stream, sockopt::TcpUserTimeout, &limit_ms)?)
}

/// Makes the system probe this connection while it is idle.
pub(crate) fn probe(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &PROBED_AFTER_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_EVERY_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &PROBES_MAX)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn it_connects_is_refused_or_gives_up_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let limit = Duration::from_secs(5);
        let stream = connect(address, limit).expect("it connects");
        probe(&stream).expect("the system knows how");
        end_if_unacknowledged(&stream, limit).expect("the system knows how");
        assert_eq!(stream.peer_addr().expect("connected"), address);
        drop((stream, listener));
        let begun = Instant::now();
        let refused = connect(address, limit).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(begun.elapsed() < limit, "at once: {:?}", begun.elapsed());
    }

    /// A listener whose backlog is full: the system drops further SYNs.
    fn full_listener() -> (TcpListener, Vec<TcpStream>) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        nix::sys::socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(any)).expect("bound");
        let backlog = nix::sys::socket::Backlog::new(1).expect("small");
        nix::sys::socket::listen(&fd, backlog).expect("listens");
        let listener = TcpListener::from(fd);
        let address = listener.local_addr().expect("its address");
        let limit = Duration::from_millis(600);
        let mut open = Vec::new();
        loop {
            let begun = Instant::now();
            match connect(address, limit) {
                Ok(stream) => open.push(stream),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
                    return (listener, open);
                }
            }
            assert!(open.len() < 10, "its queue is bounded");
        }
    }

    #[test]
    fn a_listener_that_takes_nobody_is_given_up_in_time() {
        let begun = Instant::now();
        drop(full_listener());
        let took = begun.elapsed();
        assert!(
            took < Duration::from_secs(60),
            "the system's limit: {took:?}"
        );
    }

    #[test]
    fn room_is_found_by_a_later_attempt_before_the_system_repeats_its_syn() {
        // The system retransmits a SYN after 1 s. A busy machine may be late, so only one of several rounds must be in
        // time.
        let took = |_| {
            let (listener, open) = full_listener();
            let address = listener.local_addr().expect("its address");
            let making_room = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                let taken: Vec<_> = (0..open.len()).map(|_| listener.accept()).collect();
                (listener, taken, open)
            });
            let begun = Instant::now();
            connect(address, Duration::from_secs(5)).expect("there is room now");
            let took = begun.elapsed();
            drop(making_room.join().expect("no panic"));
            took
        };
        let mut rounds = (0..10).map(took);
        assert!(rounds.any(|took| took < Duration::from_millis(900)));
    }
}
