//! What can go wrong with XDP, and what to do about it.

use std::io;
use std::net::Ipv4Addr;

/// The oldest kernel for native mode that was tried (docs/kernels.md): Debian 12's. 5.18 has all helpers, but
/// its verifier may refuse programs.
pub const KERNEL_MIN_NATIVE: (u32, u32) = (6, 1);
/// The oldest kernel for generic mode: tcx links. Tried on 6.12 and newer.
pub const KERNEL_MIN_GENERIC: (u32, u32) = (6, 6);

/// Why an XDP host could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// Not enough privileges.
    #[error(
        "{what} needs root, or the capabilities CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and \
         CAP_NET_RAW; without them use the udp backend"
    )]
    Privilege {
        /// What was being done.
        what: &'static str,
    },
    /// The kernel lacks something.
    #[error(
        "kernel {}.{} is too old for {what}: it needs {}.{} or newer; use the udp backend",
        have.0, have.1, need.0, need.1
    )]
    KernelTooOld {
        /// What needs it.
        what: &'static str,
        /// Major and minor version that runs.
        have: (u32, u32),
        /// Major and minor version that is needed.
        need: (u32, u32),
    },
    /// No such network interface.
    #[error("there is no network interface \"{name}\"; there are: {there}")]
    NoInterface {
        /// The name asked for.
        name: String,
        /// Those there are.
        there: String,
    },
    /// The interface does not have this host's address.
    #[error("{interface} does not have the address {address}; it has: {there}")]
    NoAddress {
        /// The interface.
        interface: String,
        /// The address of the specification.
        address: Ipv4Addr,
        /// The addresses it has.
        there: String,
    },
    /// The interface's driver has no native XDP, or refuses it as it is set up.
    #[error(
        "{interface} refuses native XDP ({source}): its driver may lack it, its MTU may be above \
         one page, or it may have too few queues; use the xdp-generic backend"
    )]
    NativeRefused {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else is attached.
    #[error(
        "{interface} already has an XDP program; see `ip link show {interface}`, and stop the \
         program that put it there"
    )]
    Busy {
        /// The interface.
        interface: String,
    },
    /// A filter of the host would drop packets between its own roles and its own sockets.
    #[error(
        "net.ipv4.conf.all.rp_filter is 1, which drops packets between roles and processes of this \
         host; run `sysctl -w net.ipv4.conf.all.rp_filter=2`"
    )]
    ReversePathFilter,
    /// `send_local` without the veth pair it goes through.
    #[error("no peer is local and `loopback` is off, so there is no way to this host's own roles")]
    NoLoopback,
    /// The specification asks for something impossible.
    #[error("{0}")]
    Spec(String),
    /// A program could not be loaded.
    #[error("the kernel refused the XDP program {program}: {message}")]
    Load {
        /// Its name.
        program: &'static str,
        /// What libbpf said, with the end of the verifier's log.
        message: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl XdpError {
    /// The last system call failed.
    pub(crate) fn last(what: impl Into<String>) -> XdpError {
        XdpError::System {
            what: what.into(),
            source: io::Error::last_os_error(),
        }
    }
}

/// Name the system call that failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, XdpError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, XdpError> {
        self.map_err(|source| XdpError::System {
            what: what.into(),
            source,
        })
    }
}
