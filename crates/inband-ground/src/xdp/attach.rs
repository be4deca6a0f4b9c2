//! Attaches programs with bpf_link: the kernel detaches them when the descriptor is closed, and thus also when the
//! process dies.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::{Doing, XdpError};
use super::lost::Lost;
use super::netlink::{LinkInfo, Netlink};
use super::probe::check_kernel;
use super::programs::{load_object, Loaded, Settings};
use super::XdpMode;
use crate::objects;

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// An attached program. Dropping it detaches the program.
pub struct Attachment {
    link: OwnedFd,
}

fn link_create(
    program: &OwnedFd,
    ifindex: u32,
    kind: libbpf_sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut options: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_link_create_opts>() as u64;
    options.flags = flags;
    // SAFETY: the options live through the call; descriptors are checked by the kernel.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex as i32,
            kind,
            &raw const options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a descriptor that was just made and nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Drop for Attachment {
    /// Detaches explicitly. Closing the descriptor is not enough while a forked child that has not called exec yet
    /// holds a copy, and the next program may be attached right away, perhaps in another mode.
    fn drop(&mut self) {
        // SAFETY: plain system call on a descriptor that lives through it. An interface that is gone has nothing
        // attached.
        let _ = unsafe { libbpf_sys::bpf_link_detach(self.link.as_raw_fd()) };
    }
}

impl Attachment {
    pub fn xdp(
        program: &OwnedFd,
        ifindex: u32,
        interface: &str,
        mode: XdpMode,
    ) -> Result<Attachment, XdpError> {
        let flags = match mode {
            XdpMode::Native => XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => XDP_FLAGS_SKB_MODE,
        };
        match link_create(program, ifindex, libbpf_sys::BPF_XDP, flags) {
            Ok(link) => Ok(Attachment { link }),
            Err(e) => Err(match (e.raw_os_error(), mode) {
                (Some(libc::EPERM), _) => XdpError::Privilege {
                    what: "attaching an XDP program",
                },
                (Some(libc::EBUSY | libc::EEXIST), _) => XdpError::Busy {
                    interface: interface.into(),
                },
                (_, XdpMode::Native) => XdpError::NativeRefused {
                    interface: interface.into(),
                    source: e,
                },
                (_, XdpMode::Generic) => XdpError::System {
                    what: format!("attaching a generic XDP program to {interface}"),
                    source: e,
                },
            }),
        }
    }

    /// Replaces the attached program atomically, without losing packets.
    pub fn replace(&self, program: &OwnedFd) -> Result<(), XdpError> {
        // SAFETY: plain system call on descriptors that live through it; no options.
        let result = unsafe {
            libbpf_sys::bpf_link_update(
                self.link.as_raw_fd(),
                program.as_raw_fd(),
                std::ptr::null(),
            )
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result)).doing("replacing an XDP program");
        }
        Ok(())
    }

    pub fn tc_ingress(
        program: &OwnedFd,
        ifindex: u32,
        interface: &str,
    ) -> Result<Attachment, XdpError> {
        link_create(program, ifindex, libbpf_sys::BPF_TCX_INGRESS, 0)
            .map(|link| Attachment { link })
            .doing(format!("attaching a tc program to {interface}"))
    }
}

/// Finds an interface by name. The error lists the existing ones.
pub fn find_link(netlink: &Netlink, name: &str) -> Result<LinkInfo, XdpError> {
    // The last byte of the kernel's field ends the name.
    let max_bytes = libc::IFNAMSIZ - 1;
    if name.len() > max_bytes {
        return Err(XdpError::NameTooLong {
            name: name.into(),
            max_bytes,
        });
    }
    netlink
        .link(name)
        .doing(format!("looking {name} up"))?
        .ok_or_else(|| XdpError::NoInterface {
            name: name.into(),
            there: nix::net::if_::if_nameindex()
                .map(|list| {
                    let names = list.iter().map(|i| i.name().to_string_lossy().into_owned());
                    names.collect::<Vec<_>>().join(", ")
                })
                .unwrap_or_default(),
        })
}

/// The interface must have `address`: peers send to it, and only packets to it are accepted.
fn check_address(interface: &str, address: Ipv4Addr) -> Result<(), XdpError> {
    let all = nix::ifaddrs::getifaddrs()
        .map_err(io::Error::from)
        .doing("reading the interfaces' addresses")?;
    let there: Vec<Ipv4Addr> = all
        .filter(|entry| entry.interface_name == interface)
        .filter_map(|entry| Some(entry.address?.as_sockaddr_in()?.ip()))
        .collect();
    if there.contains(&address) {
        return Ok(());
    }
    let there: Vec<String> = there.iter().map(Ipv4Addr::to_string).collect();
    Err(XdpError::NoAddress {
        interface: interface.into(),
        address,
        there: there.join(", "),
    })
}

/// Finds the interface for programs in this mode, and a socket to query it. Checks that the kernel is new enough, and
/// that the interface exists and has the address.
pub fn open_link(
    interface: &str,
    address: Ipv4Addr,
    mode: XdpMode,
) -> Result<(Netlink, LinkInfo), XdpError> {
    check_kernel(mode)?;
    let netlink = Netlink::open().doing("opening a netlink socket")?;
    let link = find_link(&netlink, interface)?;
    check_address(interface, address)?;
    Ok((netlink, link))
}

/// A program that is alone on its interface, plus, in generic mode, the tc program that sends for it.
pub struct Alone {
    _attachments: Vec<Attachment>,
    _generic: Option<Loaded>,
    pub lost: Option<Lost>,
}

impl Alone {
    pub fn attach(
        program: &Loaded,
        settings: &Settings,
        link: &LinkInfo,
        interface: &str,
        mode: XdpMode,
    ) -> Result<Alone, XdpError> {
        let mut attachments = Vec::new();
        let generic = (mode == XdpMode::Generic)
            .then(|| load_object("generic", objects::GENERIC, Some(settings), &[], &[program]))
            .transpose()?;
        if let Some(generic) = &generic {
            let sender = Attachment::tc_ingress(&generic.program, link.index, interface)?;
            attachments.push(sender);
        }
        let program = &program.program;
        attachments.push(Attachment::xdp(program, link.index, interface, mode)?);
        Ok(Alone {
            _attachments: attachments,
            _generic: generic,
            lost: Lost::count_or_warn(&[link.index]),
        })
    }
}
