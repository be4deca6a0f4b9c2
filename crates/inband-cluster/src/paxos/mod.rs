//! Clusters of the replicated store: they last over restarts, change their members while they serve, and so have a
//! supervisor of their own, which starts `inband run` for each host.
//!
//! A [`Supervisor`] also listens at `supervisor.sock` in the cluster's directory, so that other processes can do the same
//! through [`supervisor::remote`].

pub mod change;
pub mod cluster_dir;
pub mod control;
pub mod layout;
pub mod memory;
pub mod supervisor;

pub use layout::{AcceptorChoice, ClusterSpec, LeaderLayout, NetworkChoice};
pub use supervisor::{ClusterStatus, DownReport, MemberKind, Supervisor, SupervisorError};

/// On the command line: `inband up kv`, or `inband up`.
pub const COMMAND: &str = "kv";
