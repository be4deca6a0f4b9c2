//! Queues packets and sends them with one system call. Packets of one size to one address pass through the kernel as
//! one message (`UDP_SEGMENT`).

use std::cell::Cell;
use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::RawFd;

use super::BATCH_MAX;

/// Messages per system call. Each is one packet, or several that the kernel splits.
const MESSAGES_MAX: usize = 32;
/// Maximum UDP payload over IPv4; it also limits a message that the kernel splits.
const MESSAGE_LEN_MAX_BYTES: usize = 65_507;
/// A queue with this many bytes is sent immediately.
const QUEUE_LEN_MAX_BYTES: usize = 1 << 20;

/// The control message that makes the kernel split a message into packets. Defined here because nix allocates memory
/// for every message with a control message.
#[repr(C)]
#[derive(Clone, Copy)]
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
        let mut header: libc::cmsghdr = unsafe { zeroed() };
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

#[derive(Debug, Clone, Copy)]
struct Packet {
    to: SocketAddrV4,
    start: usize,
    end: usize,
}

/// Packets of one length to one address, contiguous in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    to: SocketAddrV4,
    start: usize,
    end: usize,
    packet_len_bytes: usize,
}

impl Message {
    fn packets(&self) -> usize {
        match self.packet_len_bytes {
            0 => 1,
            len_bytes => (self.end - self.start) / len_bytes,
        }
    }

    fn is_joined(&self) -> bool {
        self.packets() > 1
    }

    /// Returns whether a packet may be appended to it.
    fn takes(&self, packet: &Packet) -> bool {
        let len_bytes = packet.end - packet.start;
        self.to == packet.to
            && len_bytes > 0
            && self.packet_len_bytes == len_bytes
            && self.packets() < BATCH_MAX
            && self.end - self.start + len_bytes <= MESSAGE_LEN_MAX_BYTES
    }
}

pub(super) struct How {
    fd: RawFd,
    /// Whether packets are currently sent without a checksum.
    no_check: Cell<bool>,
    /// Cleared when the kernel or the interface does not support segmentation, or a receiver does not.
    cuts: Cell<bool>,
}

impl How {
    /// For a socket whose packets have no checksum.
    pub(super) fn without_checksum(fd: RawFd) -> How {
        How {
            fd,
            no_check: Cell::new(true),
            cuts: Cell::new(true),
        }
    }

    pub(super) fn join_no_packets(&self) {
        self.cuts.set(false);
    }

    /// The kernel splits a message only if it also computes the packets' checksums.
    fn set_no_check(&self, no_check: bool) {
        if self.no_check.get() != no_check {
            let value = libc::c_int::from(no_check);
            let set = super::set_option(self.fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, value);
            self.no_check
                .set(if set.is_ok() { no_check } else { !no_check });
        }
    }

    /// Passes at most [`MESSAGES_MAX`] messages to the kernel; all or none of them must need splitting. Returns how
    /// many it accepted. An error is about the first one.
    fn send(&self, messages: &[Message], bytes: &[u8]) -> io::Result<usize> {
        match messages {
            // The most frequent call: does not clear the space for the others.
            [_] => self.send_some::<1>(messages, bytes),
            _ => self.send_some::<MESSAGES_MAX>(messages, bytes),
        }
    }

    /// As [`How::send`], for at most `N` messages.
    fn send_some<const N: usize>(&self, messages: &[Message], bytes: &[u8]) -> io::Result<usize> {
        let is_joined = messages[0].is_joined();
        self.set_no_check(!is_joined);
        // SAFETY: all zero is a valid value of these plain C structs.
        let (mut to, mut cut, mut parts, mut headers): (
            [libc::sockaddr_in; N],
            [CutInto; N],
            [libc::iovec; N],
            [libc::mmsghdr; N],
        ) = unsafe { (zeroed(), zeroed(), zeroed(), zeroed()) };
        for (at, message) in messages.iter().enumerate() {
            let packets = &bytes[message.start..message.end];
            to[at].sin_family = libc::AF_INET as libc::sa_family_t;
            to[at].sin_port = message.to.port().to_be();
            to[at].sin_addr.s_addr = u32::from_ne_bytes(message.to.ip().octets());
            parts[at].iov_base = packets.as_ptr().cast_mut().cast();
            parts[at].iov_len = packets.len();
            let header = &mut headers[at].msg_hdr;
            header.msg_name = (&raw mut to[at]).cast();
            header.msg_namelen = size_of_val(&to[at]) as libc::socklen_t;
            header.msg_iov = &raw mut parts[at];
            header.msg_iovlen = 1;
            if is_joined {
                cut[at] = CutInto::new(message.packet_len_bytes as u16);
                header.msg_control = (&raw mut cut[at]).cast();
                header.msg_controllen = CUT_INTO_SPACE_BYTES as _;
            }
        }
        // SAFETY: there are as many headers as are given. Addresses, bytes and control messages live
        // through the call, which only reads them, and their sizes are given.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd,
                headers.as_mut_ptr(),
                messages.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

#[derive(Default)]
pub(super) struct SendQueue {
    bytes: Vec<u8>,
    packets: Vec<Packet>,
    /// The bytes of the packets ordered by address, and the messages in them.
    ordered: Vec<u8>,
    messages: Vec<Message>,
    lost: u64,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns whether the queue must be sent now.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= QUEUE_LEN_MAX_BYTES
    }

    /// Packets that the kernel refused.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn push(&mut self, packet: &[u8], to: SocketAddrV4) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.packets.push(Packet {
            to,
            start,
            end: self.bytes.len(),
        });
    }

    /// Sends one packet; the queue must be empty.
    pub(super) fn send_now(
        &mut self,
        how: &How,
        socket: &UdpSocket,
        packet: &[u8],
        to: SocketAddrV4,
    ) {
        how.set_no_check(true);
        self.lost += u64::from(socket.send_to(packet, to).is_err());
    }

    /// Sends the whole queue. What the kernel refuses is lost, as on a network, and counted.
    pub(super) fn flush(&mut self, how: &How) {
        self.make_messages(how.cuts.get());
        let mut at = 0;
        while let Some(first) = self.messages.get(at) {
            let same = |m: &&Message| m.is_joined() == first.is_joined();
            let rest = self.messages[at..].iter().take(MESSAGES_MAX);
            let count = rest.take_while(same).count();
            match how.send(&self.messages[at..at + count], &self.ordered) {
                Ok(sent) => at += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if first.is_joined() => {
                    if cannot_cut(&error) {
                        how.cuts.set(false);
                    }
                    // Some of its packets may still be accepted individually.
                    self.part_messages(at);
                }
                Err(_) => {
                    self.lost += first.packets() as u64;
                    at += 1;
                }
            }
        }
        self.messages.clear();
        self.packets.clear();
        self.bytes.clear();
    }

    /// Groups packets by address and keeps their order.
    fn make_messages(&mut self, joins: bool) {
        self.packets.sort_unstable_by_key(|p| (p.to, p.start));
        self.ordered.clear();
        self.messages.clear();
        for packet in &self.packets {
            let start = self.ordered.len();
            self.ordered
                .extend_from_slice(&self.bytes[packet.start..packet.end]);
            let end = self.ordered.len();
            match self.messages.last_mut() {
                Some(last) if joins && last.takes(packet) => last.end = end,
                _ => self.messages.push(Message {
                    to: packet.to,
                    start,
                    end,
                    packet_len_bytes: packet.end - packet.start,
                }),
            }
        }
    }

    /// Splits all messages from this one on into single packets.
    fn part_messages(&mut self, from: usize) {
        let joined = self.messages.split_off(from);
        self.messages.extend(joined.iter().flat_map(|message| {
            let len_bytes = message.packet_len_bytes;
            (0..message.packets()).map(move |n| Message {
                start: message.start + n * len_bytes,
                end: message.start + (n + 1) * len_bytes,
                ..*message
            })
        }));
    }
}

/// The option is unknown or the interface does not support it: segmentation is not tried again.
fn cannot_cut(error: &io::Error) -> bool {
    let never = [libc::EINVAL, libc::EIO, libc::ENOPROTOOPT, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|e| never.contains(&e))
}
