//! Which modes work here: for the `auto` backend and for `doctor`.

use std::fmt;

use super::attach::{find_link, Attachment};
use super::error::{Doing, XdpError, KERNEL_MIN_GENERIC, KERNEL_MIN_NATIVE};
use super::netlink::Netlink;
use super::programs::{load_object, objects};
use super::XdpMode;

/// Does a mode work?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// Yes: it was tried.
    Yes,
    /// No, and why, with the cure.
    No(String),
}

impl Support {
    /// Does it work?
    pub fn works(&self) -> bool {
        *self == Support::Yes
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Support::Yes => f.write_str("works"),
            Support::No(why) => f.write_str(why),
        }
    }
}

/// What an interface and its host can do.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Major and minor version of the kernel.
    pub kernel: (u32, u32),
    /// May this process load BPF programs?
    pub privileged: bool,
    /// Native mode.
    pub native: Support,
    /// Generic mode.
    pub generic: Support,
}

/// The running kernel's version, (0, 0) if it cannot be read.
fn kernel_version() -> (u32, u32) {
    let release = nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut parts = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn needed(mode: XdpMode) -> (&'static str, (u32, u32)) {
    match mode {
        XdpMode::Native => ("native XDP", KERNEL_MIN_NATIVE),
        XdpMode::Generic => ("generic XDP", KERNEL_MIN_GENERIC),
    }
}

/// Is the kernel new enough?
pub(crate) fn check_kernel(mode: XdpMode) -> Result<(), XdpError> {
    let (what, need) = needed(mode);
    let have = kernel_version();
    if have < need {
        return Err(XdpError::KernelTooOld { what, have, need });
    }
    Ok(())
}

/// Find out which modes work on an interface, by attaching a program that passes everything for a
/// moment. The error is about the interface or the host as a whole; a missing privilege is not one.
pub fn probe(interface: &str) -> Result<Probe, XdpError> {
    let netlink = Netlink::open().doing("opening a netlink socket")?;
    let link = find_link(&netlink, interface)?;
    let bare = load_object("bare", objects::BARE, None, &[], &[]);
    let try_mode = |mode| -> Result<(), XdpError> {
        check_kernel(mode)?;
        if link.xdp_attached {
            return Err(XdpError::Busy {
                interface: interface.into(),
            });
        }
        match &bare {
            Ok(bare) => Attachment::xdp(&bare.program, link.index, interface, mode).map(drop),
            Err(error) => Err(XdpError::Spec(error.to_string())),
        }
    };
    let support = |mode| match try_mode(mode) {
        Ok(()) => Support::Yes,
        Err(error) => Support::No(error.to_string()),
    };
    Ok(Probe {
        kernel: kernel_version(),
        privileged: bare.is_ok(),
        native: support(XdpMode::Native),
        generic: support(XdpMode::Generic),
    })
}

/// A program that passes everything, attached natively. The other end of a veth needs one (or
/// generic receive offload), or it loses frames that a native program sends to it.
pub struct PassThrough {
    _attachment: Attachment,
}

impl PassThrough {
    /// Attach to an interface of the calling thread's network namespace.
    pub fn attach(interface: &str) -> Result<PassThrough, XdpError> {
        let link = find_link(
            &Netlink::open().doing("opening a netlink socket")?,
            interface,
        )?;
        let bare = load_object("bare", objects::BARE, None, &[], &[])?;
        let attachment = Attachment::xdp(&bare.program, link.index, interface, XdpMode::Native)?;
        Ok(PassThrough {
            _attachment: attachment,
        })
    }
}
