//! The exit status says whether starting again could help.

use anyhow::Error;
use inband_control::service::{FilesError, ServiceError};
use inband_host::state_dir::StateError;
use inband_kv::replica::ReplicaError;
use inband_kv::store::StoreError;
use inband_paxos::durable::DurableError;
use inband_paxos::node::NodeError;
use inband_program::exit_status::is_lasting;

fn lasts(error: impl Into<Error>) -> bool {
    is_lasting(&error.into().context("starting"))
}

#[test]
fn what_only_a_change_cures_is_told_from_what_may_pass() {
    let partitions = || StoreError::Partitions {
        path: "/data".into(),
        found: 1,
        asked: 2,
    };
    let io = || std::io::Error::from_raw_os_error(28); // no space left
    assert!(lasts(partitions()));
    assert!(lasts(ReplicaError::from(partitions())));
    assert!(lasts(NodeError::from(DurableError::from(
        StateError::Damaged {
            path: "/state/epoch".into(),
            found: "x".into(),
        }
    ))));
    assert!(lasts(ServiceError::from(FilesError::Damaged {
        file: "raft"
    })));
    assert!(!lasts(StoreError::Io {
        path: "/data".into(),
        source: io(),
    }));
    assert!(!lasts(NodeError::from(DurableError::from(
        StateError::Io {
            path: "/state/epoch".into(),
            source: io(),
        }
    ))));
}
