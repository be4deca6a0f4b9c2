//! A point-to-point link to another host, with packets directly after the Ethernet header
//! (`dataplane/ground/xdp/raw.h`). It receives every packet that no role in the kernel takes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::c;
use crate::wire::PACKET_LEN_MAX_BYTES;

/// Bytes of an Ethernet header.
const ETHERNET_LEN_BYTES: usize = 14;
const ETHERTYPE: u16 = c::IB_XDP_RAW_ETHERTYPE as u16;

/// One end of a link. Non-blocking.
pub struct RawLink {
    socket: OwnedFd,
    interface: String,
    name: libc::ifreq,
    index: u32,
    /// The Ethernet header of frames that we send.
    header: [u8; ETHERNET_LEN_BYTES],
}

/// Returns the Ethernet header of frames from the host with this node id to the host at the other end.
fn header(node: u8) -> [u8; ETHERNET_LEN_BYTES] {
    let [high, low] = ETHERTYPE.to_be_bytes();
    let mut header = [0xff; ETHERNET_LEN_BYTES];
    header[6..].copy_from_slice(&[0x02, 0x49, 0x42, 0, 0, node, high, low]);
    header
}

fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

impl RawLink {
    /// Opens the link at this interface of the calling thread's network namespace, for the host with this node id.
    pub fn open(interface: &str, node: u8) -> io::Result<RawLink> {
        let protocol = ETHERTYPE.to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain system call.
        let fd = done(unsafe { libc::socket(libc::AF_PACKET, kind, protocol.into()) })?;
        // SAFETY: a descriptor that was just made and nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zero is a valid value of this plain C struct.
        let mut name: libc::ifreq = unsafe { std::mem::zeroed() };
        let text = CString::new(interface)?;
        let bytes = text.as_bytes();
        if bytes.len() >= name.ifr_name.len() {
            let most = name.ifr_name.len() - 1;
            let what = format!(
                "{interface:?} is too long for the name of an interface: at most {most} bytes"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        for (to, from) in name.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        // SAFETY: the name ends within the array, which lives through the call.
        let index = unsafe { libc::if_nametoindex(name.ifr_name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        // SAFETY: the address lives through the call, and its size is given.
        done(unsafe {
            libc::bind(
                fd,
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        })?;
        Ok(RawLink {
            socket,
            interface: interface.to_owned(),
            name,
            index,
            header: header(node),
        })
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the interface index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether the interface is up and has a carrier.
    pub fn is_up(&self) -> bool {
        let mut request = self.name;
        // SAFETY: the kernel reads the name and writes the flags of the struct, which lives through the call.
        let asked = unsafe { libc::ioctl(self.fd(), libc::SIOCGIFFLAGS as _, &raw mut request) };
        // SAFETY: the call has written the flags.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        let wanted = libc::IFF_UP | libc::IFF_RUNNING;
        asked == 0 && flags & wanted == wanted
    }

    /// Sends a packet. Returns false if it was lost because the queue is full or the link is down.
    pub fn send(&self, packet: &[u8]) -> bool {
        let parts = [&self.header[..], packet].map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        // SAFETY: the parts live through the call, which only reads them.
        let sent = unsafe { libc::writev(self.fd(), parts.as_ptr(), parts.len() as i32) };
        sent >= 0
    }

    /// Receives the next packet, if there is one. A packet that is too long is truncated and fails to parse.
    pub fn receive(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
    ) -> io::Result<Option<usize>> {
        let mut header = [0; ETHERNET_LEN_BYTES];
        loop {
            let parts = [
                libc::iovec {
                    iov_base: header.as_mut_ptr().cast(),
                    iov_len: header.len(),
                },
                libc::iovec {
                    iov_base: buffer.as_mut_ptr().cast(),
                    iov_len: buffer.len(),
                },
            ];
            // SAFETY: the parts are writable, live through the call, and their lengths are given.
            let len = unsafe { libc::readv(self.fd(), parts.as_ptr(), parts.len() as i32) };
            match len {
                0.. => return Ok((len as usize).checked_sub(ETHERNET_LEN_BYTES)),
                _ => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::EAGAIN | libc::ENODEV) => return Ok(None),
                        // The interface went down since the last check.
                        Some(libc::ENETDOWN | libc::EINTR) => {}
                        _ => return Err(error),
                    }
                }
            }
        }
    }

    /// For `poll(2)`.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
