//! The UDP socket of a host: everything that no role in the kernel takes arrives here.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

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

/// The control message that has the kernel cut what is sent into packets. By hand, because nix
/// allocates memory for every message with one.
#[repr(C)]
struct CutInto {
    header: libc::cmsghdr,
    packet_len_bytes: u16,
    padding: [u8; 6],
}

const CUT_INTO_SPACE_BYTES: usize = {
    // SAFETY: arithmetic only.
    unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) as usize }
};

impl CutInto {
    fn new(packet_len_bytes: u16) -> CutInto {
        const { assert!(size_of::<CutInto>() >= CUT_INTO_SPACE_BYTES) };
        // SAFETY: all zero is a valid value of this plain C struct.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        // SAFETY: arithmetic only.
        header.cmsg_len = unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as _;
        header.cmsg_level = libc::SOL_UDP;
        header.cmsg_type = libc::UDP_SEGMENT;
        CutInto {
            header,
            packet_len_bytes,
            padding: [0; 6],
        }
    }
}

/// `packets` to one address, cut into packets by the kernel.
fn send_cut(fd: RawFd, packets: &[u8], packet_len_bytes: u16, to: SocketAddrV4) -> io::Result<()> {
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = to.port().to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(to.ip().octets());
    let mut control = CutInto::new(packet_len_bytes);
    let mut bytes = libc::iovec {
        iov_base: packets.as_ptr().cast_mut().cast(),
        iov_len: packets.len(),
    };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of_val(&address) as libc::socklen_t;
    message.msg_iov = &raw mut bytes;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CUT_INTO_SPACE_BYTES as _;
    // SAFETY: address, bytes and control message live through the call, which only reads them, and
    // their sizes are given.
    if unsafe { libc::sendmsg(fd, &raw const message, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
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
        let Err(error) = send_cut(self.fd(), packets, packet_len_bytes, to) else {
            return true;
        };
        let never = [libc::EINVAL, libc::EIO, libc::ENOPROTOOPT, libc::EOPNOTSUPP];
        if error.raw_os_error().is_some_and(|e| never.contains(&e)) {
            // No such option, or an interface that cannot: never again.
            self.batches.set(false);
        }
        false
    }

    fn set_no_check(&self, no_check: bool) {
        if self.no_check.get() != no_check {
            let set = set_option(self.fd(), libc::SO_NO_CHECK, libc::c_int::from(no_check));
            self.no_check
                .set(if set.is_ok() { no_check } else { !no_check });
        }
    }

    /// Where it listens: for who has bound port 0.
    pub fn local_address(&self) -> io::Result<SocketAddrV4> {
        match self.socket.local_addr()? {
            std::net::SocketAddr::V4(address) => Ok(address),
            std::net::SocketAddr::V6(_) => unreachable!("it was bound to IPv4"),
        }
    }

    /// For polling.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Sleep until one of the descriptors has something to read, or for so long; an interrupted wait is a short one. Returns
/// which of them have something; a negative one never has.
pub fn wait_readable(fds: impl IntoIterator<Item = RawFd>, timeout: Duration) -> Vec<bool> {
    let polled = fds.into_iter().map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let mut polled: Vec<libc::pollfd> = polled.collect();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the array has the length that is given and lives through the call, as the time-out does. Of a descriptor
    // that is closed, or another's by now, the kernel only says whether it has something to read.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    let any = ready > 0;
    polled.iter().map(|fd| any && fd.revents != 0).collect()
}
