//! The UDP socket of a host: everything that no role in the kernel takes arrives here.

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use crate::wire::PACKET_LEN_MAX_BYTES;

/// Receive and send buffer asked of the kernel, in bytes: a full window of the default ring.
const SOCKET_BUFFER_BYTES: libc::c_int = 8 << 20;

/// See the module. Non-blocking.
pub struct HostSocket {
    socket: UdpSocket,
}

fn set_option(fd: RawFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: `value` lives through the call and its length is given.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl HostSocket {
    /// Bind the host's address.
    pub fn bind(address: SocketAddrV4) -> io::Result<HostSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_raw_fd();
        // Packet programs rewrite what we send, and a checksum left for the interface to fill in does
        // not survive a redirect; UDP over IPv4 allows none, and the digest guards the value.
        set_option(fd, libc::SO_NO_CHECK, 1)?;
        for (forced, plain) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            if set_option(fd, forced, SOCKET_BUFFER_BYTES).is_err() {
                // Without the privilege the kernel's own limit applies; smaller is slower, not wrong.
                set_option(fd, plain, SOCKET_BUFFER_BYTES)?;
            }
        }
        Ok(HostSocket { socket })
    }

    /// The next packet, if one is there. Longer ones arrive cut off and fail to parse.
    pub fn receive(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
    ) -> io::Result<Option<(usize, SocketAddrV4)>> {
        loop {
            match self.socket.recv_from(buffer) {
                Ok((len_bytes, std::net::SocketAddr::V4(from))) => {
                    return Ok(Some((len_bytes, from)))
                }
                Ok((_, std::net::SocketAddr::V6(_))) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // An ICMP "port unreachable" for something sent earlier: that host is down.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Send a packet. A full queue or an unreachable host loses it, as a network may.
    pub fn send(&self, packet: &[u8], to: SocketAddrV4) -> bool {
        self.socket.send_to(packet, to).is_ok()
    }

    /// For polling.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Borrow a descriptor for a poll; `None` for -1.
pub fn borrow<'a>(fd: RawFd) -> Option<std::os::fd::BorrowedFd<'a>> {
    if fd < 0 {
        return None;
    }
    // SAFETY: not -1. The descriptors come from `wake_fds` of a node that the caller owns and keeps
    // for as long as it polls.
    Some(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
}
