//! Errors of a lab, each with advice on how to fix it.

use std::path::PathBuf;

/// Why a lab could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A tool that the lab runs is not installed.
    #[error("`{tool}` is not installed; run `apt-get install {package}`")]
    ToolMissing {
        tool: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// The caller lacks the privileges to create namespaces or load programs.
    #[error(
        "no privileges to {what}; run as root (sudo), or use --dataplane udp, which needs none"
    )]
    NotPrivileged { what: String },
    /// The kernel lacks features that the programs need.
    #[error(
        "kernel {release} is too old, {oldest} or newer is needed for XDP; upgrade it, or use \
         --dataplane udp"
    )]
    KernelTooOld {
        /// The kernel's release string.
        release: String,
        /// The oldest that works.
        oldest: String,
    },
    /// The kernel has no network namespaces.
    #[error("this kernel has no network namespaces (CONFIG_NET_NS); use --dataplane udp")]
    NoNamespaces,
    /// A running process uses the name of the lab.
    #[error(
        "lab {name:?} is running already, owned by process {owner}; stop it with `inband down`, or \
         use another --data directory"
    )]
    InUse {
        name: String,
        /// The owner's process id, as recorded by the owner.
        owner: String,
    },
    /// More hosts than the switch has ports, or a duplicate name.
    #[error("{0}")]
    BadLayout(String),
    /// No host has this name.
    #[error("no host {name:?} in the lab; there are {known}")]
    UnknownHost { name: String, known: String },
    /// All drop rules of the switch are in use.
    #[error("all {0} drop rules of the switch are in use; remove one")]
    TooManyDropRules(u32),
    /// A command that configures the lab failed.
    #[error("`{command}` failed: {stderr}")]
    Command {
        command: String,
        /// Its error output, on one line.
        stderr: String,
    },
    /// A system call on a file failed.
    #[error("cannot {what} {path}: {source}")]
    File {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        what: String,
        source: std::io::Error,
    },
    /// The kernel rejected the switch program or its maps.
    #[error(
        "the switch's XDP program: cannot {what}: {source}; `inband doctor` says what is missing"
    )]
    Bpf {
        what: String,
        source: libbpf_rs::Error,
    },
    /// The thread that queues frames has ended, so faults can no longer be changed.
    #[error("the lab's queueing thread has ended; create the lab again")]
    QueueGone,
}

impl LabError {
    /// For `map_err` on system calls.
    pub fn system<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| {
            let source = source.into();
            if source.kind() == std::io::ErrorKind::PermissionDenied {
                Self::NotPrivileged { what }
            } else {
                Self::System { what, source }
            }
        }
    }

    /// For `map_err` on file operations.
    pub fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// For `map_err` on libbpf calls.
    pub(crate) fn bpf(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        let what = what.into();
        move |source| Self::Bpf { what, source }
    }
}
