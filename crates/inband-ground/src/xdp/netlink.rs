//! The part of rtnetlink that XDP needs: links, a veth pair, routes and neighbours.
//!
//! Requests refer to the network namespace of the calling thread.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Maximum length of an answer: one link with all its attributes.
const ANSWER_LEN_MAX_BYTES: usize = 32 * 1024;
/// The kernel answers within the send call; this only guards against a bug.
const ANSWER_TIMEOUT_S: i64 = 5;

/// Sizes of `struct nlmsghdr`, `ifinfomsg`, `rtmsg` and `ndmsg`.
const MESSAGE_HEADER_LEN_BYTES: usize = 16;
const LINK_HEADER_LEN_BYTES: usize = 16;
const ROUTE_HEADER_LEN_BYTES: usize = 12;
const NEIGHBOUR_HEADER_LEN_BYTES: usize = 12;

const VETH_INFO_PEER: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;

const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
/// States in which the hardware address is known.
const NUD_VALID: u16 =
    NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkInfo {
    pub index: u32,
    pub mac: [u8; 6],
    pub mtu_bytes: u32,
    pub up: bool,
    pub xdp_attached: bool,
}

/// The kernel's route to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub ifindex: u32,
    pub next_hop: Ipv4Addr,
}

/// What the kernel knows of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    pub mac: [u8; 6],
    /// An operator has set it (`ip neigh add ... nud permanent`).
    pub is_permanent: bool,
}

/// A request or an answer under construction: header and attributes.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: i32, header: &[u8]) -> Message {
        let mut bytes = vec![0u8; MESSAGE_HEADER_LEN_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        bytes.extend_from_slice(header);
        Message(bytes)
    }

    /// Appends an attribute whose content is written by `fill`.
    fn nest(mut self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self = fill(self);
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Message {
        self.0.extend_from_slice(bytes);
        self
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Message {
        self.nest(kind, |m| m.raw(value))
    }

    fn name(self, kind: u16, name: &str) -> Message {
        self.nest(kind, |m| m.raw(name.as_bytes()).raw(&[0]))
    }
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; LINK_HEADER_LEN_BYTES] {
    let mut header = [0u8; LINK_HEADER_LEN_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// Returns the attributes after a message's fixed header.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind & !(libc::NLA_F_NESTED as u16), value))
    })
}

fn u32_of(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(0..4)?.try_into().ok()?))
}

pub struct Netlink(OwnedFd);

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let timeout = libc::timeval {
            tv_sec: ANSWER_TIMEOUT_S,
            tv_usec: 0,
        };
        // SAFETY: the option's value lives through the call and its size is given.
        let set = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const timeout).cast(),
                size_of::<libc::timeval>() as u32,
            )
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Netlink(socket))
    }

    /// Sends a request. Returns the body of the answer (after the message header), empty for a plain acknowledgement.
    fn ask(&self, mut message: Message) -> io::Result<Vec<u8>> {
        let len = message.0.len() as u32;
        message.0[0..4].copy_from_slice(&len.to_ne_bytes());
        let fd = self.0.as_raw_fd();
        // SAFETY: the buffer is valid for its length; the socket's default peer is the kernel.
        let sent = unsafe { libc::send(fd, message.0.as_ptr().cast(), message.0.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = vec![0u8; ANSWER_LEN_MAX_BYTES];
        // SAFETY: the buffer is valid and writable for its length.
        let got = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        let got = got as usize;
        if got < MESSAGE_HEADER_LEN_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let kind = u16::from_ne_bytes([answer[4], answer[5]]);
        let body = answer[MESSAGE_HEADER_LEN_BYTES..got].to_vec();
        if i32::from(kind) != libc::NLMSG_ERROR {
            return Ok(body);
        }
        match u32_of(&body).map(|code| code as i32) {
            Some(0) => Ok(Vec::new()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn do_it(&self, message: Message) -> io::Result<()> {
        self.ask(message).map(drop)
    }

    /// Finds a link by name.
    pub fn link(&self, name: &str) -> io::Result<Option<LinkInfo>> {
        let message =
            Message::new(libc::RTM_GETLINK, 0, &link_header(0, 0, 0)).name(libc::IFLA_IFNAME, name);
        let body = match self.ask(message) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            other => other?,
        };
        let head = body
            .get(..LINK_HEADER_LEN_BYTES)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut link = LinkInfo {
            index: u32_of(&head[4..]).unwrap_or(0),
            mac: [0; 6],
            mtu_bytes: 0,
            up: u32_of(&head[8..]).unwrap_or(0) & libc::IFF_UP as u32 != 0,
            xdp_attached: false,
        };
        for (kind, value) in attributes(&body[LINK_HEADER_LEN_BYTES..]) {
            match kind {
                libc::IFLA_ADDRESS if value.len() == 6 => link.mac.copy_from_slice(value),
                libc::IFLA_MTU => link.mtu_bytes = u32_of(value).unwrap_or(0),
                IFLA_XDP => {
                    link.xdp_attached =
                        attributes(value).any(|(kind, v)| kind == IFLA_XDP_ATTACHED && v != [0]);
                }
                _ => {}
            }
        }
        Ok(Some(link))
    }

    /// Creates a veth pair with these MAC addresses. Addresses chosen by the kernel would change: udev's default
    /// policy, `persistent`, replaces them a moment later.
    pub fn add_veth(
        &self,
        (name, mac): (&str, [u8; 6]),
        (peer, peer_mac): (&str, [u8; 6]),
    ) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.do_it(
            Message::new(libc::RTM_NEWLINK, flags, &link_header(0, 0, 0))
                .name(libc::IFLA_IFNAME, name)
                .attribute(libc::IFLA_ADDRESS, &mac)
                .nest(libc::IFLA_LINKINFO, |m| {
                    m.attribute(libc::IFLA_INFO_KIND, b"veth")
                        .nest(libc::IFLA_INFO_DATA, |m| {
                            m.nest(VETH_INFO_PEER, |m| {
                                m.raw(&link_header(0, 0, 0))
                                    .name(libc::IFLA_IFNAME, peer)
                                    .attribute(libc::IFLA_ADDRESS, &peer_mac)
                            })
                        })
                }),
        )
    }

    /// Brings a link up.
    pub fn set_up(&self, index: u32) -> io::Result<()> {
        self.set_flags(index, libc::IFF_UP as u32)
    }

    /// Takes a link down.
    pub fn set_down(&self, index: u32) -> io::Result<()> {
        self.set_flags(index, 0)
    }

    fn set_flags(&self, index: u32, flags: u32) -> io::Result<()> {
        self.do_it(Message::new(
            libc::RTM_NEWLINK,
            libc::NLM_F_ACK,
            &link_header(index, flags, libc::IFF_UP as u32),
        ))
    }

    /// Removes a link, and its veth peer with it.
    pub fn delete(&self, index: u32) -> io::Result<()> {
        self.do_it(Message::new(
            libc::RTM_DELLINK,
            libc::NLM_F_ACK,
            &link_header(index, 0, 0),
        ))
    }

    /// Returns the kernel's route to `address`, including policy rules.
    pub fn route(&self, address: Ipv4Addr) -> io::Result<Route> {
        let mut header = [0u8; ROUTE_HEADER_LEN_BYTES];
        header[0] = libc::AF_INET as u8;
        header[1] = 32;
        let message = Message::new(libc::RTM_GETROUTE, 0, &header)
            .attribute(libc::RTA_DST, &address.octets());
        let body = self.ask(message)?;
        let mut route = Route {
            ifindex: 0,
            next_hop: address,
        };
        for (kind, value) in attributes(body.get(ROUTE_HEADER_LEN_BYTES..).unwrap_or(&[])) {
            match kind {
                libc::RTA_OIF => route.ifindex = u32_of(value).unwrap_or(0),
                libc::RTA_GATEWAY if value.len() == 4 => {
                    route.next_hop = Ipv4Addr::new(value[0], value[1], value[2], value[3]);
                }
                _ => {}
            }
        }
        Ok(route)
    }

    fn neighbour_message(
        kind: u16,
        flags: i32,
        ifindex: u32,
        use_it: bool,
        to: Ipv4Addr,
    ) -> Message {
        let mut header = [0u8; NEIGHBOUR_HEADER_LEN_BYTES];
        header[0] = libc::AF_INET as u8;
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        header[10] = if use_it { libc::NTF_USE } else { 0 };
        Message::new(kind, flags, &header).attribute(libc::NDA_DST, &to.octets())
    }

    /// Returns a neighbour, if the kernel knows its hardware address.
    pub fn neighbour(&self, ifindex: u32, address: Ipv4Addr) -> io::Result<Option<Neighbour>> {
        let message = Self::neighbour_message(libc::RTM_GETNEIGH, 0, ifindex, false, address);
        let body = match self.ask(message) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        let head = body
            .get(..NEIGHBOUR_HEADER_LEN_BYTES)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let state = u16::from_ne_bytes([head[8], head[9]]);
        if state & NUD_VALID == 0 {
            return Ok(None);
        }
        let mac = attributes(&body[NEIGHBOUR_HEADER_LEN_BYTES..])
            .find(|(kind, _)| *kind == libc::NDA_LLADDR)
            .and_then(|(_, mac)| mac.try_into().ok());
        let is_permanent = state & NUD_PERMANENT != 0;
        Ok(mac.map(|mac| Neighbour { mac, is_permanent }))
    }

    /// Tells the kernel that the neighbour is in use, so that it resolves or confirms the address. A permanent neighbour
    /// would lose that state (since Linux 5.16), and be resolved like any other.
    pub fn use_neighbour(&self, ifindex: u32, address: Ipv4Addr) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE;
        self.do_it(Self::neighbour_message(
            libc::RTM_NEWNEIGH,
            flags,
            ifindex,
            true,
            address,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_link_is_found_and_a_missing_one_is_not() {
        let netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().expect("every namespace has lo");
        assert_eq!(lo.mac, [0; 6]);
        assert!(lo.index > 0 && !lo.xdp_attached);
        assert_eq!(netlink.link("no-such-link0").unwrap(), None);
    }

    #[test]
    fn a_nested_attribute_is_read_back() {
        let message = Message(Vec::new()).nest(7, |m| m.attribute(3, b"abc").name(4, "xy"));
        let (kind, inner) = attributes(&message.0).next().unwrap();
        assert_eq!(kind, 7);
        let inner: Vec<_> = attributes(inner).collect();
        assert_eq!(inner, [(3, &b"abc"[..]), (4, &b"xy\0"[..])]);
    }
}
