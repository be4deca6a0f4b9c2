//! Clusters of FLAIR: a leader-based store whose reads are spread over its replicas by a switch (docs/flair.md).

pub mod cluster;
mod command;
mod hosts;
pub mod keys;
pub mod record;
mod role;
pub mod settings;
pub mod status;

pub use cluster::{Cluster, Flair};
