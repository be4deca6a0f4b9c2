//! What a host is configured with, and the members of an epoch.

use inband_ground::auth::Digest;

use crate::dataplane::soft::{Geometry, Roles};
use crate::decided_log::LogLimit;
use crate::timing::{
    Timing, DECIDED_LOG_BYTES_MAX, DECIDED_LOG_BYTES_MIN, HELD_LOG_BYTES_MAX, HELD_LOG_VALUES_MAX,
};

/// Where a log starts on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStart {
    /// First instance of this epoch; everything below is in the replicas' state.
    pub first_instance: u64,
    /// Last instance that the application has applied.
    pub applied: u64,
}

/// Configuration of a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// This node's id, 1..=254.
    pub node: u8,
    pub epoch: u32,
    /// One for each log; as many as `geometry.partitions`.
    pub logs: Vec<LogStart>,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Replicas' node ids: hosts with a quorum counter and a learner.
    pub replicas: Vec<u8>,
    /// For each log, the nodes that may lead it, in take-over order; the same set for all logs.
    pub leaders: Vec<Vec<u8>>,
    /// Roles that this host runs in user space.
    pub soft_roles: Roles,
    /// Roles that this host runs in the kernel.
    pub kernel_roles: Roles,
    pub geometry: Geometry,
    pub timing: Timing,
    /// Decided values kept for peers that have fallen behind, for all logs together.
    pub log_values_max: usize,
    /// Maximum packet length in the cluster.
    pub packet_len_max_bytes: usize,
    /// Number of this process run: durable, never reused by this node.
    pub incarnation: u64,
    /// How values are digested.
    pub digest: Digest,
    /// Whether a soft acceptor may vote; `false` if it may have lost votes of this epoch.
    pub voting: bool,
}

/// The members of a configuration epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochConfig {
    pub epoch: u32,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Replicas' node ids.
    pub replicas: Vec<u8>,
    /// For each log, the nodes that may lead it, in take-over order; the same set for all logs.
    pub leaders: Vec<Vec<u8>>,
}

/// Take-over orders for `logs` logs, each with a different first node, so that leaders share the load.
pub fn spread_leaders(leaders: &[u8], logs: usize) -> Vec<Vec<u8>> {
    let order = |log: usize| {
        let mut order = leaders.to_vec();
        order.rotate_left(log % leaders.len().max(1));
        order
    };
    (0..logs).map(order).collect()
}

impl HostConfig {
    /// Returns all replicas and leaders, without duplicates.
    pub(super) fn peers(&self) -> Vec<u8> {
        let mut peers = [&self.replicas[..], self.leader_nodes()].concat();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Returns the nodes that may lead.
    pub fn leader_nodes(&self) -> &[u8] {
        self.leaders.first().map_or(&[], Vec::as_slice)
    }

    /// Returns what each log may keep for peers: its share, but no less than a ring, because otherwise every replica
    /// that misses a little would need a checkpoint.
    pub fn peer_log_limit(&self) -> LogLimit {
        let logs = self.geometry.partitions;
        LogLimit {
            values_max: (self.log_values_max / logs).max(self.geometry.ring_slots),
            bytes_max: (DECIDED_LOG_BYTES_MAX / logs).max(DECIDED_LOG_BYTES_MIN),
            held_values_max: (HELD_LOG_VALUES_MAX / logs).max(self.log_values_max),
            held_bytes_max: (HELD_LOG_BYTES_MAX / logs).max(DECIDED_LOG_BYTES_MIN),
        }
    }
}
