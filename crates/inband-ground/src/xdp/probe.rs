//! Finds out which modes work here, for the `auto` backend and for `doctor`.

use std::fmt;
use std::net::Ipv4Addr;

use super::attach::{find_link, Attachment};
use super::error::{Doing, XdpError, KERNEL_MIN_GENERIC, KERNEL_MIN_NATIVE};
use super::netlink::{LinkInfo, Netlink};
use super::programs::load_object;
use super::trial::{send_from_xdp, Proof};
use super::XdpMode;
use crate::objects;

/// Maximum number of neighbours to ask in a trial.
const NEIGHBOURS_MAX: usize = 8;
/// From the documentation range, so that the route to it is the default route.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Whether a mode works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// It was tried successfully.
    Yes,
    /// It does not work: the reason, and the remedy.
    No(String),
}

impl Support {
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

/// The abilities of an interface and its host.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Major and minor version of the kernel.
    pub kernel: (u32, u32),
    /// Whether this process may load BPF programs.
    pub privileged: bool,
    pub native: Support,
    pub generic: Support,
}

/// Returns the running kernel's version; (0, 0) if it cannot be read.
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

/// Checks that the kernel is new enough.
pub fn check_kernel(mode: XdpMode) -> Result<(), XdpError> {
    let (what, need) = needed(mode);
    let have = kernel_version();
    if have < need {
        return Err(XdpError::KernelTooOld { what, have, need });
    }
    Ok(())
}

/// Tests whether the interface actually sends what XDP sends, with a neighbour on the route to `peers` or to the
/// default route. Must be called in the interface's network namespace.
pub fn sends(
    interface: &str,
    mode: XdpMode,
    address: Ipv4Addr,
    peers: &[Ipv4Addr],
) -> Result<Proof, XdpError> {
    check_kernel(mode)?;
    let netlink = Netlink::open().doing("opening a netlink socket")?;
    let link = find_link(&netlink, interface)?;
    let neighbours = neighbours(&netlink, &link, peers);
    send_from_xdp(&link, interface, mode, address, &neighbours)
}

/// Returns the MTU of an interface of the calling thread's network namespace.
pub fn mtu_bytes(interface: &str) -> Result<u32, XdpError> {
    let netlink = Netlink::open().doing("opening a netlink socket")?;
    Ok(find_link(&netlink, interface)?.mtu_bytes)
}

/// Returns the first hops behind this interface on the routes to the peers, and on the default route.
fn neighbours(netlink: &Netlink, link: &LinkInfo, peers: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    let mut hops: Vec<Ipv4Addr> = Vec::new();
    for to in peers.iter().chain([&ELSEWHERE]) {
        let Ok(route) = netlink.route(*to) else {
            continue;
        };
        let hop = route.next_hop;
        if route.ifindex == link.index && hop != ELSEWHERE && !hops.contains(&hop) {
            hops.push(hop);
        }
    }
    hops.truncate(NEIGHBOURS_MAX);
    hops
}

/// Finds out which modes an interface supports, by briefly attaching a program that passes everything; [`sends`] tests
/// more. An error concerns the interface or the host as a whole. A missing privilege is not an error.
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

/// A program that passes everything, attached in native mode. The other end of a veth pair needs one (or generic
/// receive offload); otherwise it drops frames that a native program sends to it.
pub struct PassThrough {
    _attachment: Attachment,
}

impl PassThrough {
    /// Attaches it to an interface of the calling thread's network namespace.
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
