//! Errors of a cluster's operations. Messages say what to do.

use std::path::PathBuf;

use inband_host::key_file::{ChangeError as KeyChangeError, KeyFileError};
use inband_paxos::config::ConfigError;
use inband_transport::certificates::CertificateError;

use crate::background::BackgroundError;
use crate::disk::DiskFull;
use crate::link::LinkError;
use crate::listeners::ListenError;
use crate::network::LabError;
use crate::paxos::change::{ChangeError, PlaneError};
use crate::paxos::memory::TooLarge;
use crate::remains::Remains;
use inband_host::file_error::FileError;
use inband_host::line_json::{CallError, PathTooLong};
use inband_host::output::quoted;
use inband_host::system_file::SystemFileError;

/// Why a cluster did not start or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Namespaces, links, programs or processes.
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The directory belongs to another system.
    #[error(transparent)]
    System(#[from] SystemFileError),
    /// No room in the cluster's directory.
    #[error(transparent)]
    DiskFull(#[from] DiskFull),
    /// A generated configuration was refused, for example because a path is too long.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// A change of the keys.
    #[error(transparent)]
    Keys(#[from] KeyChangeError),
    /// The running supervisor could not be reached.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An address for clients or hosts.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The supervisor did not start in the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// What was asked for is not possible.
    #[error("{0}")]
    BadSpec(String),
    /// The control plane refused, or did not answer.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// A membership change did not take effect.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Another supervisor holds this directory.
    #[error(
        "the cluster in {dir} is running already (process {owner}); see `inband status`, stop it \
         with `inband down`, or choose another --data directory"
    )]
    AlreadyRunning {
        dir: PathBuf,
        /// The process id, as the owner wrote it.
        owner: String,
    },
    /// No supervisor holds this directory.
    #[error("{}", .remains.as_ref().map_or_else(
        || format!("no cluster is running in {}; start one with `inband up --data {}`", .dir.display(), quoted(.dir)),
        |remains| remains.in_words(.dir, "inband up"),
    ))]
    NotRunning {
        dir: PathBuf,
        /// What is there nevertheless.
        remains: Option<Remains>,
    },
    /// The last stop was not clean, so what was chosen cannot be known.
    #[error(
        "the cluster in {dir} was not stopped cleanly: its acceptors kept their votes in \
         memory only and are gone, so what they had decided last cannot be known; use \
         --accept-loss to continue from the most advanced replica"
    )]
    Unclean { dir: PathBuf },
    /// Stopping now would lose acknowledged writes.
    #[error(
        "not stopped, because writes that clients were told are done would be lost: {0}; or stop it in any case with \
         `inband down --accept-loss`"
    )]
    WouldLose(String),
    /// Replicas' data is not where the record says.
    #[error(
        "data of {missing} are missing in {dir}, and they may be the most advanced; bring them \
         back, or also allow missing replicas explicitly"
    )]
    ReplicaMissing { dir: PathBuf, missing: String },
    /// One of a replica's directories is missing.
    #[error(
        "{replica} has data in {there}, but {gone} is gone; is a disk not mounted? Bring it back, \
         or remove {there} too and it copies a peer's data"
    )]
    ReplicaInPieces {
        replica: String,
        /// The missing directories.
        gone: PathBuf,
        /// The existing directories.
        there: PathBuf,
    },
    /// The cluster's directory has too long a path.
    #[error(transparent)]
    SocketPath(#[from] PathTooLong),
    /// The cluster would not fit into memory.
    #[error(transparent)]
    Memory(#[from] TooLarge),
    /// The directory belongs to a cluster with other hosts, partitions or directories.
    #[error("{0}")]
    LayoutChanged(String),
    /// The directory's record cannot be read.
    #[error(
        "{path} is damaged ({reason}); restore it, or start afresh in another --data directory"
    )]
    DamagedRecord { path: PathBuf, reason: String },
    #[error(transparent)]
    File(#[from] FileError),
    /// A replica's data cannot be read.
    #[error("cannot read the position of {replica}: {reason}")]
    Inspect {
        replica: String,
        /// The program's output.
        reason: String,
    },
    /// A host's process ended during its start.
    #[error("{host} stopped at its start ({how}); {log} ends with: {tail}")]
    HostFailed {
        host: String,
        /// Exit status.
        how: String,
        /// Its log file.
        log: PathBuf,
        /// The last lines of the log, on one line.
        tail: String,
    },
    /// The key file of an existing cluster is gone.
    #[error(
        "{path}: the key file of this cluster is missing; put it back, from a copy that a host or a client has. If it is lost, \
         export the data (`inband export FILE --data DIR`) and import them into a new cluster"
    )]
    KeysMissing { path: PathBuf },
    /// The start was given up.
    #[error("interrupted; what was started has been stopped")]
    Interrupted,
    #[error("{what} within {limit_s} s; see the logs in {logs}")]
    Late {
        /// What did not happen.
        what: String,
        /// The timeout, in seconds.
        limit_s: u64,
        logs: PathBuf,
    },
    #[error("no host {name:?}; there are {known}")]
    UnknownHost {
        name: String,
        /// The names that exist.
        known: String,
    },
    /// Neither a role nor a host has this name.
    #[error("no role or host {name:?}; there are {leaders}, {known}")]
    UnknownRole {
        name: String,
        /// How leaders are named.
        leaders: String,
        /// The names that exist.
        known: String,
    },
    /// `leader` was named, and there is no leader.
    #[error("no host leads at the moment; name one, for instance replica/0")]
    NoLeader,
    /// The operation makes no sense in the host's state.
    #[error("{0}")]
    WrongState(String),
    /// The running supervisor refused.
    #[error("{0}")]
    Refused(String),
}

impl SupervisorError {
    /// For `map_err` on file operations.
    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let of = FileError::of(what, path);
        move |source| Self::File(of(source))
    }
}
