//! The UDP socket of a host: everything that no role in the kernel takes arrives here.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags, SockaddrIn};

use crate::wire::PACKET_LEN_MAX_BYTES;

/// Receive and send buffer asked of the kernel, in bytes: a full window of the default ring.
const SOCKET_BUFFER_BYTES: libc::c_int = 8 << 20;

/// Packets of one size and destination handed to the kernel in one call. The stack below works
/// through them as one batch, and a veth's ring of 256 frames still takes what a leader and its
/// acceptors make of them.
pub const BATCH_MAX: usize = 16;

/// See the module. Non-blocking.
pub struct HostSocket {
    socket: UdpSocket,
    /// Whether packets are sent without a checksum now.
    no_check: Cell<bool>,
    /// Cleared when the kernel or the interface refuses batches.
    batches: Cell<bool>,
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
        Ok(HostSocket {
            socket,
            no_check: Cell::new(true),
            batches: Cell::new(true),
        })
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
        self.set_no_check(true);
        self.socket.send_to(packet, to).is_ok()
    }

    /// Send packets of `packet_len_bytes` each, which lie one behind the other in `packets`, at most
    /// [`BATCH_MAX`] of them. Returns how many were lost.
    pub fn send_batch(&self, packets: &[u8], packet_len_bytes: usize, to: SocketAddrV4) -> usize {
        assert!(packet_len_bytes > 0 && packets.len() % packet_len_bytes == 0);
        let count = packets.len() / packet_len_bytes;
        assert!(count <= BATCH_MAX, "{count} packets in a batch");
        if count > 1 && self.batches.get() {
            // The kernel cuts a batch into packets only if it also makes their checksums.
            self.set_no_check(false);
            if self.send_segments(packets, packet_len_bytes as u16, to) {
                return 0;
            }
        }
        packets
            .chunks(packet_len_bytes)
            .filter(|packet| !self.send(packet, to))
            .count()
    }

    fn send_segments(&self, packets: &[u8], packet_len_bytes: u16, to: SocketAddrV4) -> bool {
        let address = SockaddrIn::from(to);
        let parts = [IoSlice::new(packets)];
        let control = [ControlMessage::UdpGsoSegments(&packet_len_bytes)];
        let fd = self.socket.as_raw_fd();
        match sendmsg(fd, &parts, &control, MsgFlags::empty(), Some(&address)) {
            Ok(_) => true,
            // No such option, or an interface that cannot: never again.
            Err(Errno::EINVAL | Errno::EIO | Errno::ENOPROTOOPT | Errno::EOPNOTSUPP) => {
                self.batches.set(false);
                false
            }
            Err(_) => false,
        }
    }

    fn set_no_check(&self, no_check: bool) {
        if self.no_check.get() != no_check {
            let set = set_option(self.fd(), libc::SO_NO_CHECK, libc::c_int::from(no_check));
            self.no_check
                .set(if set.is_ok() { no_check } else { !no_check });
        }
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
