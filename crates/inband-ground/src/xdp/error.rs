//! What can go wrong with XDP, and what to do about it.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

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
         CAP_NET_RAW; without them set dataplane = \"udp\""
    )]
    Privilege {
        /// What was being done.
        what: &'static str,
    },
    /// The kernel lacks something.
    #[error(
        "kernel {}.{} is too old for {what}, which needs {}.{} or newer",
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
         one page, or it may have too few queues"
    )]
    NativeRefused {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else is attached.
    #[error(
        "{interface} already has an XDP program, of Inband or of another program; see \
         `ip link show {interface}`, and stop the one that put it there"
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
    /// The driver takes programs, and loses what they send.
    #[error("{interface} loses what XDP sends: {what} got no answer, other frames did; its driver cannot send from XDP as it is set up")]
    Loses {
        /// The interface.
        interface: String,
        /// What was tried.
        what: String,
    },
    /// The kernel refused a program.
    #[error(
        "kernel {kernel} refuses the XDP program {program}: {reason}\n{}\nset dataplane = \"udp\" (or \
         \"auto\", which tries what works), or run a kernel that docs/deploy.md lists",
        match log { Some(path) => format!("the verifier's log is in {}", path.display()), None => "there is no log of the verifier".into() }
    )]
    Load {
        /// Its name.
        program: &'static str,
        /// The kernel's release.
        kernel: String,
        /// The last that the verifier said, or libbpf.
        reason: String,
        /// Where the whole log is.
        log: Option<PathBuf>,
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
    /// In one line: what went wrong, without what to do.
    pub fn in_short(&self) -> String {
        match self {
            XdpError::Load { log, .. } => {
                let text = self.to_string();
                let first = text.lines().next().unwrap_or_default();
                match log {
                    Some(log) => format!("{first} (log: {})", log.display()),
                    None => first.to_owned(),
                }
            }
            _ => self.to_string(),
        }
    }

    /// Will it be the same the next time, unless somebody changes this host or its configuration?
    pub fn is_lasting(&self) -> bool {
        match self {
            // An interface, its address or its driver may come late; a program may be going.
            XdpError::NoInterface { .. }
            | XdpError::NoAddress { .. }
            | XdpError::Busy { .. }
            | XdpError::System { .. } => false,
            XdpError::Privilege { .. }
            | XdpError::KernelTooOld { .. }
            | XdpError::NativeRefused { .. }
            | XdpError::ReversePathFilter
            | XdpError::NoLoopback
            | XdpError::Spec(_)
            | XdpError::Loses { .. }
            | XdpError::Load { .. } => true,
        }
    }

    /// The last system call failed.
    pub fn last(what: impl Into<String>) -> XdpError {
        XdpError::System {
            what: what.into(),
            source: io::Error::last_os_error(),
        }
    }
}

/// Name the system call that failed.
pub trait Doing<T> {
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
