//! Clusters of the replicated store. They survive restarts and change their members while they serve, and therefore
//! have a separate supervisor, which starts `inband run` for each host.
//!
//! A [`Supervisor`] also listens at `supervisor.sock` in the cluster's directory, so that other processes can control
//! it through [`supervisor::remote`].

pub mod change;
pub mod cluster_dir;
pub mod control;
pub mod layout;
pub mod memory;
pub mod supervisor;

pub use layout::{AcceptorChoice, ClusterSpec, LeaderLayout, NetworkChoice};
pub use supervisor::{ClusterStatus, DownReport, MemberKind, Supervisor, SupervisorError};

/// The system's name on the command line: `inband up kv`, or `inband up`.
pub const COMMAND: &str = "kv";
