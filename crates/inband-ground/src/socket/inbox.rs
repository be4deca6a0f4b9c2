//! Receives packets in batches: many per system call, some of them coalesced by the kernel (UDP GRO).

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::SocketAddrV4;
use std::os::fd::RawFd;

/// Messages per system call. Each is one packet, or several from one sender that the kernel has coalesced.
const MESSAGES_MAX: usize = 32;
/// The same while few arrive: preparing space for a message takes time even if none comes, and a host that busy-polls
/// mostly finds none.
const MESSAGES_FEW: usize = 4;
/// Space for a message: the maximum UDP payload over IPv4, coalesced or not.
const MESSAGE_LEN_MAX_BYTES: usize = 1 << 16;

/// A control message with one number: the length of the coalesced packets. Defined here because nix allocates memory
/// for every message with a control message.
#[repr(C)]
#[derive(Clone, Copy)]
struct JoinedFrom {
    header: libc::cmsghdr,
    packet_len_bytes: libc::c_int,
    padding: [u8; 4],
}

const JOINED_FROM_LEN_BYTES: usize = {
    // SAFETY: arithmetic only.
    unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize }
};

#[derive(Debug, Clone, Copy)]
struct Message {
    from: SocketAddrV4,
    /// Start of the message in the inbox's bytes.
    start: usize,
    end: usize,
    /// Length of each packet but the last, which may be shorter.
    packet_len_bytes: usize,
}

pub(super) struct Inbox {
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// The current message, and the start of its next packet.
    message: usize,
    start: usize,
    /// The last call returned fewer messages than requested, so the socket was empty.
    drained: bool,
    /// The last call returned at least [`MESSAGES_FEW`] messages, so the next may, too.
    is_busy: bool,
    dropped: u64,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox {
            // The kernel allocates only the pages that messages touch.
            bytes: vec![0; MESSAGES_MAX * MESSAGE_LEN_MAX_BYTES],
            messages: Vec::with_capacity(MESSAGES_MAX),
            message: 0,
            start: 0,
            drained: false,
            is_busy: false,
            dropped: 0,
        }
    }

    /// Asks the kernel to coalesce packets. If it cannot, they arrive one by one.
    pub(super) fn join_packets(fd: RawFd) {
        let _ = super::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    }

    /// Returns whether everything received has been consumed.
    pub(super) fn is_empty(&self) -> bool {
        self.message == self.messages.len()
    }

    /// Messages that did not fit, or could not be split.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the next received packet and its sender.
    pub(super) fn next(&mut self) -> Option<(&[u8], SocketAddrV4)> {
        let message = self.messages.get(self.message)?;
        let start = self.start.max(message.start);
        let end = message.end.min(start + message.packet_len_bytes);
        self.start = end;
        if end == message.end {
            self.message += 1;
            self.start = 0;
        }
        Some((&self.bytes[start..end], message.from))
    }

    /// Receives more messages; call it only when [`Inbox::is_empty`]. Returns false if there are none, or if the last
    /// call drained the socket.
    pub(super) fn fill(&mut self, fd: RawFd) -> io::Result<bool> {
        debug_assert!(self.is_empty(), "packets that nobody took");
        self.messages.clear();
        (self.message, self.start) = (0, 0);
        if std::mem::take(&mut self.drained) {
            return Ok(false);
        }
        loop {
            let received = match self.is_busy {
                true => self.receive::<MESSAGES_MAX>(fd),
                false => self.receive::<MESSAGES_FEW>(fd),
            };
            match received {
                Ok(()) if self.messages.is_empty() => {}
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // An ICMP "port unreachable" for an earlier packet: that host is down.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Receives at most `N` messages.
    fn receive<const N: usize>(&mut self, fd: RawFd) -> io::Result<()> {
        // SAFETY: all zero is a valid value of these plain C structs.
        let (mut from, mut joined, mut parts, mut headers): (
            [libc::sockaddr_in; N],
            [JoinedFrom; N],
            [libc::iovec; N],
            [libc::mmsghdr; N],
        ) = unsafe { (zeroed(), zeroed(), zeroed(), zeroed()) };
        let rooms = self.bytes.chunks_exact_mut(MESSAGE_LEN_MAX_BYTES);
        for (at, room) in rooms.take(N).enumerate() {
            parts[at].iov_base = room.as_mut_ptr().cast();
            parts[at].iov_len = room.len();
            let header = &mut headers[at].msg_hdr;
            header.msg_name = (&raw mut from[at]).cast();
            header.msg_namelen = size_of_val(&from[at]) as libc::socklen_t;
            header.msg_iov = &raw mut parts[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut joined[at]).cast();
            header.msg_controllen = size_of_val(&joined[at]) as _;
        }
        // SAFETY: every header names an address, a control message and a part of `self.bytes`, with
        // their sizes; all of them live through the call and overlap nowhere.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                headers.as_mut_ptr(),
                N as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error());
        self.is_busy = count.as_ref().is_ok_and(|count| *count >= MESSAGES_FEW);
        let count = count?;
        self.drained = count < N;
        for (at, header) in headers[..count].iter().enumerate() {
            let len_bytes = header.msg_len as usize;
            let header = &header.msg_hdr;
            if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
                self.dropped += 1;
                continue;
            }
            let start = at * MESSAGE_LEN_MAX_BYTES;
            self.messages.push(Message {
                from: SocketAddrV4::new(
                    from[at].sin_addr.s_addr.to_ne_bytes().into(),
                    u16::from_be(from[at].sin_port),
                ),
                start,
                end: start + len_bytes,
                packet_len_bytes: match packet_len_bytes(&joined[at], header.msg_controllen as _) {
                    Some(packet_len_bytes) => packet_len_bytes,
                    None => len_bytes,
                },
            });
        }
        Ok(())
    }
}

/// Returns the length of coalesced packets, or `None` for a single packet.
fn packet_len_bytes(joined: &JoinedFrom, control_len_bytes: usize) -> Option<usize> {
    let is_joined = control_len_bytes >= JOINED_FROM_LEN_BYTES
        && (joined.header.cmsg_level, joined.header.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
    let len_bytes = usize::try_from(joined.packet_len_bytes).ok()?;
    (is_joined && len_bytes > 0).then_some(len_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    fn taken(inbox: &mut Inbox) -> Vec<(Vec<u8>, SocketAddrV4)> {
        std::iter::from_fn(|| inbox.next().map(|(packet, from)| (packet.to_vec(), from))).collect()
    }

    #[test]
    fn joined_packets_are_parted_and_keep_their_sender() {
        let mut inbox = Inbox::new();
        let [one, other] = [1, 2].map(|port| SocketAddrV4::new([127, 0, 0, 1].into(), port));
        inbox.bytes[..5].copy_from_slice(b"aabbc");
        inbox.bytes[MESSAGE_LEN_MAX_BYTES..][..3].copy_from_slice(b"ddd");
        let message = |from, start, len_bytes, packet_len_bytes| Message {
            from,
            start,
            end: start + len_bytes,
            packet_len_bytes,
        };
        inbox.messages = vec![
            message(one, 0, 5, 2),
            message(other, MESSAGE_LEN_MAX_BYTES, 3, 3),
            message(one, 2 * MESSAGE_LEN_MAX_BYTES, 0, 0),
        ];
        let expected = [
            ("aa", one),
            ("bb", one),
            ("c", one),
            ("ddd", other),
            ("", one),
        ];
        let expected = expected.map(|(packet, from)| (packet.as_bytes().to_vec(), from));
        assert_eq!(taken(&mut inbox), expected);
        assert!(inbox.is_empty());
    }

    #[test]
    fn all_that_has_arrived_is_received_in_order_few_or_many() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_nonblocking(true).expect("an open socket");
        let to = socket.local_addr().expect("it is bound");
        let from = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let mut inbox = Inbox::new();
        // A single packet before each burst, so that the burst finds an inbox that expects few.
        let (few, many) = (MESSAGES_FEW + 1, MESSAGES_MAX + MESSAGES_FEW);
        let sizes = [1, few, 1, many, many, 1];
        for size in sizes {
            let sent: Vec<Vec<u8>> = (0..size).map(|n| vec![n as u8; n + 1]).collect();
            for packet in &sent {
                from.send_to(packet, to).expect("sent");
            }
            let mut packets = Vec::new();
            while inbox.fill(socket.as_raw_fd()).expect("it works") {
                packets.extend(taken(&mut inbox).into_iter().map(|p| p.0));
            }
            assert_eq!(packets, sent);
        }
        assert!(!inbox.fill(socket.as_raw_fd()).expect("it works") && !inbox.is_busy);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let to = socket.local_addr().expect("it is bound");
        let from = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let mut inbox = Inbox::new();
        // Space for only one message.
        inbox.bytes.truncate(MESSAGE_LEN_MAX_BYTES);
        for packet in [&b"whole"[..], b"another"] {
            from.send_to(packet, to).expect("sent");
        }
        assert!(inbox.fill(socket.as_raw_fd()).expect("it works"));
        let packets: Vec<_> = taken(&mut inbox).into_iter().map(|p| p.0).collect();
        assert_eq!((packets, inbox.dropped()), (vec![b"whole".to_vec()], 1));
    }
}
