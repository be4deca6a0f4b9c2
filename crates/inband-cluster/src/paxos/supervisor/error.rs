//! What can go wrong with a cluster, each with what to do about it.

use std::path::PathBuf;

use inband_host::key_file::{ChangeError as KeyChangeError, KeyFileError};
use inband_paxos::config::ConfigError;
use inband_transport::certificates::CertificateError;

use crate::background::BackgroundError;
use crate::file_error::FileError;
use crate::listeners::ListenError;
use crate::paxos::change::{ChangeError, PlaneError};
use crate::paxos::memory::TooLarge;
use crate::system_file::SystemFileError;
use inband_host::line_json::CallError;
use inband_lab::preflight::DiskFull;
use inband_lab::LabError;

/// Why a cluster did not start or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Namespaces, links, programs or processes.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A host's certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The directory is of another system.
    #[error(transparent)]
    System(#[from] SystemFileError),
    /// No room in the cluster's directory.
    #[error(transparent)]
    DiskFull(#[from] DiskFull),
    /// A generated configuration was refused: a path that is too long, for instance.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster's keys.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// A change of the keys.
    #[error(transparent)]
    Keys(#[from] KeyChangeError),
    /// The running supervisor could not be asked.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An address that clients or hosts use.
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
    /// A change of the members did not come to be.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Another supervisor has this directory.
    #[error(
        "the cluster in {dir} is running already (process {owner}); see `inband status`, stop it \
         with `inband down`, or choose another --data directory"
    )]
    AlreadyRunning {
        /// The cluster's directory.
        dir: PathBuf,
        /// The process id, as the owner wrote it.
        owner: String,
    },
    /// No supervisor has this directory.
    #[error("no cluster is running in {dir}; start one with `inband up --data {dir}`")]
    NotRunning {
        /// The cluster's directory.
        dir: PathBuf,
    },
    /// The last stop was not clean, so what was chosen cannot be known.
    #[error(
        "the cluster in {dir} was not stopped cleanly: its acceptors kept votes of epoch {epoch} in \
         memory only and are gone, so what they had decided last cannot be known; use \
         --accept-loss to continue from the most advanced replica"
    )]
    Unclean {
        /// The cluster's directory.
        dir: PathBuf,
        /// The epoch that was lost.
        epoch: u32,
    },
    /// Replicas' data are not where the record says.
    #[error(
        "data of {missing} are missing in {dir}, and they may be the most advanced; bring them \
         back, or also allow missing replicas explicitly"
    )]
    ReplicaMissing {
        /// The cluster's directory.
        dir: PathBuf,
        /// Which.
        missing: String,
    },
    /// One of a replica's directories is not there.
    #[error(
        "{replica} has data in {there}, but {gone} is gone; is a disk not mounted? Bring it back, \
         or remove {there} too and it copies a peer's data"
    )]
    ReplicaInPieces {
        /// The replica.
        replica: String,
        /// What is not there.
        gone: PathBuf,
        /// What is.
        there: PathBuf,
    },
    /// It would not fit.
    #[error(transparent)]
    Memory(#[from] TooLarge),
    /// The directory belongs to a cluster of another shape.
    #[error("{0}")]
    LayoutChanged(String),
    /// The directory's record cannot be read.
    #[error(
        "{path} is damaged ({reason}); restore it, or start afresh in another --data directory"
    )]
    DamagedRecord {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A system call on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A replica's data cannot be examined.
    #[error("cannot read the position of {replica}: {reason}")]
    Inspect {
        /// The replica.
        replica: String,
        /// What the program said.
        reason: String,
    },
    /// A host's process ended while it was waited for.
    #[error("{host} stopped at its start ({how}); {log} ends with: {tail}")]
    HostFailed {
        /// The host.
        host: String,
        /// Exit status.
        how: String,
        /// Its log file.
        log: PathBuf,
        /// The last lines of the log, on one line.
        tail: String,
    },
    /// Something did not happen in time.
    #[error("{what} within {limit_s} s; see the logs in {logs}")]
    Late {
        /// What did not happen.
        what: String,
        /// How long was waited.
        limit_s: u64,
        /// Where to look.
        logs: PathBuf,
    },
    /// No host has this name.
    #[error("no role {name:?}; there are {leaders}, {known}")]
    UnknownRole {
        /// The name asked for.
        name: String,
        /// How leaders are named.
        leaders: String,
        /// The names that exist.
        known: String,
    },
    /// `leader` was named and nobody leads.
    #[error("no host leads at the moment; name one, for instance replica/0")]
    NoLeader,
    /// The host is not in a state in which this makes sense.
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
