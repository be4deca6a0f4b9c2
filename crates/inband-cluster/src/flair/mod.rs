//! Clusters of FLAIR: a leader-based store whose reads are spread over its replicas by a switch (docs/flair.md).

pub mod cluster;
mod hosts;
pub mod keys;
pub mod record;
pub mod remote;
mod role;
pub mod status;

use std::path::Path;

use anyhow::Result;

use crate::Service;

/// What these clusters are called.
pub const SERVICE: Service = Service {
    name: "FLAIR",
    command: "flair",
};

/// Where a FLAIR cluster lives unless told otherwise.
pub const DEFAULT_DATA: &str = ".inband-flair";

/// What the cluster in a directory says of itself; `None`: there is none of FLAIR.
pub fn status_in(data: &Path) -> Option<Result<status::ClusterStatus>> {
    record::is_in(data).then(|| remote::status(data))
}
