//! Errors of XDP hosts, and what to do about them.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// The oldest kernel on which native mode was tested (docs/kernels.md): Debian 12's. 5.18 has all helpers, but its
/// verifier may refuse programs.
pub const KERNEL_MIN_NATIVE: (u32, u32) = (6, 1);
/// The oldest kernel for generic mode, which needs tcx links. Tested on 6.12 and newer.
pub const KERNEL_MIN_GENERIC: (u32, u32) = (6, 6);

/// Why an XDP host could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    #[error("{}; without them set dataplane = \"udp\"", self.in_short())]
    Privilege {
        /// What was being done.
        what: &'static str,
    },
    /// The kernel lacks a feature.
    #[error(
        "kernel {}.{} is too old for {what}, which needs {}.{} or newer",
        have.0, have.1, need.0, need.1
    )]
    KernelTooOld {
        /// What needs it.
        what: &'static str,
        /// Major and minor version of the running kernel.
        have: (u32, u32),
        /// Major and minor version that is required.
        need: (u32, u32),
    },
    /// No such network interface.
    #[error("there is no network interface \"{name}\"; there are: {there}")]
    NoInterface {
        /// The name asked for.
        name: String,
        /// The existing interfaces.
        there: String,
    },
    /// No interface can have this name.
    #[error("\"{name}\" has {} bytes; the name of an interface has {max_bytes} at most", .name.len())]
    NameTooLong { name: String, max_bytes: usize },
    /// The interface does not have this host's address.
    #[error("{interface} does not have the address {address}; it has: {there}")]
    NoAddress {
        interface: String,
        address: Ipv4Addr,
        /// The addresses that it has.
        there: String,
    },
    /// The interface's driver has no native XDP, or refuses it in the current configuration.
    #[error(
        "{interface} refuses native XDP ({source}): its driver may lack it, its MTU may be above \
         one page, or it may have too few queues"
    )]
    NativeRefused {
        interface: String,
        source: io::Error,
    },
    /// Another program is attached.
    #[error(
        "{interface} already has an XDP program, of Inband or of another program; see \
         `ip link show {interface}`, and stop the one that put it there"
    )]
    Busy { interface: String },
    /// The reverse path filter would drop packets between the host's own roles and sockets.
    #[error(
        "net.ipv4.conf.all.rp_filter is 1, which drops packets between roles and processes of this \
         host; run `sysctl -w net.ipv4.conf.all.rp_filter=2`"
    )]
    ReversePathFilter,
    /// `send_local` without the veth pair that it needs.
    #[error("no peer is local and `loopback` is off, so there is no way to this host's own roles")]
    NoLoopback,
    /// The specification is invalid.
    #[error("{0}")]
    Spec(String),
    /// The driver accepts programs but loses the frames that they send.
    #[error("{interface} loses what XDP sends: {what} got no answer, other frames did; its driver cannot send from XDP as it is set up")]
    Loses { interface: String, what: String },
    /// The kernel refused a program.
    #[error(
        "kernel {kernel} refuses the XDP program {program}: {reason}\n{}\nset dataplane = \"udp\" (or \
         \"auto\", which tries what works), or run a kernel that docs/deploy.md lists",
        match log { Some(path) => format!("the verifier's log is in {}", path.display()), None => "there is no log of the verifier".into() }
    )]
    Load {
        program: &'static str,
        /// The kernel's release.
        kernel: String,
        /// The last message of the verifier or of libbpf.
        reason: String,
        /// The file with the whole log.
        log: Option<PathBuf>,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        source: io::Error,
    },
}

impl XdpError {
    /// Returns what went wrong in one line, without the remedy.
    pub fn in_short(&self) -> String {
        match self {
            XdpError::Privilege { what } => format!(
                "{what} needs root, or the capabilities CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW"
            ),
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

    /// Returns whether it will fail again until this host or its configuration is changed.
    pub fn is_lasting(&self) -> bool {
        match self {
            // An interface, its address or its driver may appear late; another program may be exiting.
            XdpError::NoInterface { .. }
            | XdpError::NoAddress { .. }
            | XdpError::Busy { .. }
            | XdpError::System { .. } => false,
            XdpError::NameTooLong { .. }
            | XdpError::Privilege { .. }
            | XdpError::KernelTooOld { .. }
            | XdpError::NativeRefused { .. }
            | XdpError::ReversePathFilter
            | XdpError::NoLoopback
            | XdpError::Spec(_)
            | XdpError::Loses { .. }
            | XdpError::Load { .. } => true,
        }
    }

    /// Returns the error of the last system call (`errno`).
    pub fn last(what: impl Into<String>) -> XdpError {
        XdpError::System {
            what: what.into(),
            source: io::Error::last_os_error(),
        }
    }
}

/// Adds a description of the failed system call.
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
