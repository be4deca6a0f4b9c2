//! The path from this host to its own roles: a veth pair with the dispatch program on both ends.
//!
//! A frame sent into the near end comes out of the far end, where the roles handle it. Their answers come out of the
//! near end, where either the roles or the host's UDP socket receive them.

use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::attach;
use super::error::{Doing, XdpError};
use super::netlink::{LinkInfo, Netlink};
use crate::c;
use crate::wire::PACKET_LEN_MAX_BYTES;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const IP_LEN_BYTES: usize = 20;
const UDP_LEN_BYTES: usize = 8;
const FRAME_LEN_BYTES: usize = c::IB_XDP_FRAME_LEN_BYTES as usize;

pub struct Loopback {
    pub near_name: String,
    pub far_name: String,
    pub near: LinkInfo,
    pub far: LinkInfo,
    address: SocketAddrV4,
    socket: OwnedFd,
    netlink: Netlink,
}

impl Loopback {
    /// Creates the pair for the host with this node id and address. Replaces a pair left behind by a crashed process.
    pub fn create(
        netlink: &Netlink,
        node: u8,
        address: SocketAddrV4,
    ) -> Result<Loopback, XdpError> {
        if read_sysctl("net/ipv4/conf/all/rp_filter").as_deref() == Some("1") {
            return Err(XdpError::ReversePathFilter);
        }
        let near_name = format!("ib{}-loop0", node);
        let far_name = format!("ib{}-loop1", node);
        if let Some(old) = netlink
            .link(&near_name)
            .doing("looking the loopback pair up")?
        {
            if old.xdp_attached {
                return Err(XdpError::Busy {
                    interface: near_name,
                });
            }
            netlink
                .delete(old.index)
                .doing("removing an old loopback pair")?;
        }
        let mac = |end: u8| [0x02, b'i', b'b', 0, end, node];
        let (near, far) = ((&*near_name, mac(0)), (&*far_name, mac(1)));
        netlink.add_veth(near, far).map_err(|e| {
            if e.kind() == io::ErrorKind::PermissionDenied {
                return XdpError::Privilege {
                    what: "making a veth pair",
                };
            }
            XdpError::System {
                what: format!("making the veth pair {near_name}"),
                source: e,
            }
        })?;
        let mut pair = Loopback {
            near: attach::find_link(netlink, &near_name)?,
            far: attach::find_link(netlink, &far_name)?,
            near_name,
            far_name,
            address,
            socket: packet_socket()?,
            netlink: Netlink::open().doing("opening a netlink socket")?,
        };
        for (name, link) in [
            (&pair.near_name, &mut pair.near),
            (&pair.far_name, &mut pair.far),
        ] {
            // The roles' answers have this host's own address as their source.
            write_sysctl(&format!("net/ipv4/conf/{name}/accept_local"), "1")
                .doing(format!("setting accept_local of {name}"))?;
            // Only our packets belong here. Without IPv6 this fails, which is fine.
            let _ = write_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
            pair.netlink
                .set_up(link.index)
                .doing(format!("bringing {name} up"))?;
            *link = attach::find_link(&pair.netlink, name)?;
        }
        pair.keep_filter_off()?;
        Ok(pair)
    }

    /// Disables reverse path filtering. The pair has no addresses, so even loose filtering would drop its packets. Must
    /// be called repeatedly, because udev may apply the machine's settings to a new interface at any time after it was
    /// created.
    pub fn keep_filter_off(&self) -> Result<(), XdpError> {
        for name in [&self.near_name, &self.far_name] {
            let path = format!("net/ipv4/conf/{name}/rp_filter");
            // Unreadable if the calling thread is not in the pair's namespace.
            if read_sysctl(&path).is_some_and(|value| value != "0") {
                write_sysctl(&path, "0").doing(format!("setting rp_filter of {name}"))?;
            }
        }
        Ok(())
    }

    /// Sends a UDP payload from this host's address to itself, through the pair.
    pub fn send(&self, payload: &[u8]) -> Result<(), XdpError> {
        if payload.len() > PACKET_LEN_MAX_BYTES {
            return Err(XdpError::Spec(format!(
                "a packet of {} bytes is longer than {PACKET_LEN_MAX_BYTES}",
                payload.len()
            )));
        }
        let to = self.far.mac;
        let headers = headers(to, self.near.mac, self.address, self.address, payload.len());
        let mut frame = [0; FRAME_LEN_BYTES + PACKET_LEN_MAX_BYTES];
        frame[..FRAME_LEN_BYTES].copy_from_slice(&headers);
        frame[FRAME_LEN_BYTES..][..payload.len()].copy_from_slice(payload);
        let frame = &frame[..FRAME_LEN_BYTES + payload.len()];
        send_frame(&self.socket, self.near.index, frame).doing("sending to this host's own roles")
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        if let Err(error) = self.netlink.delete(self.near.index) {
            tracing::warn!(%error, interface = self.near_name, "could not remove the veth pair");
        }
    }
}

/// Sends a complete frame out of an interface.
pub fn send_frame(socket: &OwnedFd, ifindex: u32, frame: &[u8]) -> io::Result<()> {
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = ifindex as i32;
    // SAFETY: frame and address are valid for the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns a socket that sends complete frames. It receives nothing (protocol 0).
pub fn packet_socket() -> Result<OwnedFd, XdpError> {
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(XdpError::last("opening a packet socket"));
    }
    // SAFETY: a descriptor that was just made and nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn read_sysctl(path: &str) -> Option<String> {
    Some(
        fs::read_to_string(format!("/proc/sys/{path}"))
            .ok()?
            .trim()
            .to_owned(),
    )
}

fn write_sysctl(path: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{path}"), value)
}

/// Returns the ones' complement checksum of an IPv4 header whose checksum field is zero.
pub fn ip_checksum(header: &[u8]) -> [u8; 2] {
    let mut sum: u32 = header
        .chunks_exact(2)
        .map(|half| u32::from(u16::from_be_bytes([half[0], half[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// The Ethernet, IPv4 and UDP headers of a payload.
fn headers(
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload_len_bytes: usize,
) -> [u8; FRAME_LEN_BYTES] {
    let udp_len_bytes = (UDP_LEN_BYTES + payload_len_bytes) as u16;
    let ip_len_bytes = udp_len_bytes + IP_LEN_BYTES as u16;
    let mut headers = [0; FRAME_LEN_BYTES];
    let mut end = 0;
    let mut put = |bytes: &[u8]| {
        headers[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
    };
    put(&to_mac);
    put(&from_mac);
    put(&ETHERTYPE_IPV4);
    put(&[0x45, 0]);
    put(&ip_len_bytes.to_be_bytes());
    // Identification 0, "don't fragment", time to live, UDP; the checksum is filled in below.
    put(&[0, 0, 0x40, 0]);
    put(&[c::IB_XDP_TTL as u8, libc::IPPROTO_UDP as u8, 0, 0]);
    put(&from.ip().octets());
    put(&to.ip().octets());
    put(&from.port().to_be_bytes());
    put(&to.port().to_be_bytes());
    put(&udp_len_bytes.to_be_bytes());
    put(&[0, 0]);
    let ip = &mut headers[FRAME_LEN_BYTES - UDP_LEN_BYTES - IP_LEN_BYTES..][..IP_LEN_BYTES];
    let checksum = ip_checksum(ip);
    ip[10..12].copy_from_slice(&checksum);
    headers
}

/// A payload with its Ethernet, IPv4 and UDP headers.
pub fn frame(
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
) -> Vec<u8> {
    [
        &headers(to_mac, from_mac, from, to, payload.len())[..],
        payload,
    ]
    .concat()
}
