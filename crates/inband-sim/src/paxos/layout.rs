//! The hosts of a cluster and the roles on each.

use inband_ground::auth::{Digest, Secret};
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::host::{EpochConfig, HostConfig, LogStart};
use inband_paxos::timing::{Micros, Timing, DECIDED_LOG_VALUES_MAX};

use crate::paxos::limits::{
    CHECKPOINT_COPY_MAX_US, FLUSH_MAX_US, RING_SLOTS, SEVERAL_LOGS, SEVERAL_LOGS_PPM,
    STORE_READS_PPM, SYNC_MAX_US,
};
use crate::rng::Rng;

/// First configuration epoch of every simulated cluster.
pub const EPOCH: u32 = 1;

#[derive(Debug, Clone)]
pub struct Layout {
    /// Nodes with an acceptor.
    pub acceptors: Vec<u8>,
    /// Nodes with a replica.
    pub replicas: Vec<u8>,
    /// Nodes with a leader role, in take-over order.
    pub leaders: Vec<u8>,
    /// All nodes that can be acceptors, members of the epoch or not. This never changes.
    pub acceptor_hosts: Vec<u8>,
    /// The same for replicas.
    pub replica_hosts: Vec<u8>,
    /// The same for leaders.
    pub leader_hosts: Vec<u8>,
    /// Number of logs; every acceptor has a separate ring for each.
    pub partitions: usize,
    pub ring_slots: usize,
    /// Acceptors keep a journal and forget nothing (`sync` mode).
    pub sync: bool,
    /// If set, packets carry tags and values have keyed digests.
    pub digest_key: Option<Secret>,
    /// Replicas run the real key-value store.
    pub store: bool,
    /// Of the store's commands over several partitions, the share that only reads, in parts per million.
    pub store_reads_ppm: u64,
    /// The real control plane changes members.
    pub plane: bool,
    /// Maximum time until a replica makes durable what it has applied.
    pub flush_max_us: u64,
    /// Decided values that a replica keeps for its peers; a ring's at least.
    pub peer_log_values: usize,
    /// Range of the time that it takes to copy a peer's state.
    pub checkpoint_copy_us: (u64, u64),
    /// Range of the time that a disk takes to sync a journal.
    pub sync_us: (u64, u64),
    pub timing: Timing,
}

impl Layout {
    /// Each role on its own host: leaders, then acceptors, then replicas.
    pub fn dedicated(acceptors: u8, leaders: u8, replicas: u8) -> Layout {
        let range = |from: u8, count: u8| (from..from + count).collect::<Vec<u8>>();
        Layout::of(
            range(1 + leaders, acceptors),
            range(1 + leaders + acceptors, replicas),
            range(1, leaders),
        )
    }

    fn of(acceptors: Vec<u8>, replicas: Vec<u8>, leaders: Vec<u8>) -> Layout {
        Layout {
            acceptor_hosts: acceptors.clone(),
            replica_hosts: replicas.clone(),
            leader_hosts: leaders.clone(),
            acceptors,
            replicas,
            leaders,
            partitions: 1,
            ring_slots: RING_SLOTS,
            sync: false,
            digest_key: None,
            store: false,
            store_reads_ppm: STORE_READS_PPM[0],
            plane: false,
            flush_max_us: FLUSH_MAX_US,
            peer_log_values: DECIDED_LOG_VALUES_MAX,
            checkpoint_copy_us: (1, CHECKPOINT_COPY_MAX_US),
            sync_us: (1, SYNC_MAX_US),
            timing: Timing::default(),
        }
    }

    /// Adds a host with an acceptor that is not a member of the first epoch. Returns its node id.
    pub fn add_spare_acceptor(&mut self) -> u8 {
        let node = self.nodes().last().map_or(1, |last| last + 1);
        self.acceptor_hosts.push(node);
        node
    }

    /// Adds a host with a replica that is not a member of the first epoch. Returns its node id.
    pub fn add_spare_replica(&mut self) -> u8 {
        let node = self.nodes().last().map_or(1, |last| last + 1);
        self.replica_hosts.push(node);
        node
    }

    /// Hosts that are each leader (or backup), acceptor and replica.
    pub fn combined(hosts: u8) -> Layout {
        let all: Vec<u8> = (1..=hosts).collect();
        Layout::of(all.clone(), all.clone(), all)
    }

    /// Acceptors on separate hosts; replicas are leader and backups.
    pub fn replicas_lead(acceptors: u8, replicas: u8) -> Layout {
        let of = Layout::dedicated(acceptors, 0, replicas);
        Layout::of(of.acceptors, of.replicas.clone(), of.replicas)
    }

    pub fn random(rng: &mut Rng) -> Layout {
        let acceptors = if rng.chance_ppm(300_000) { 5 } else { 3 };
        let replicas = [3, 3, 2, 1][rng.below(4) as usize];
        let mut layout = match rng.below(4) {
            0 => Layout::combined(if rng.chance_ppm(200_000) { 5 } else { 3 }),
            1 => Layout::replicas_lead(acceptors, replicas),
            _ => Layout::dedicated(acceptors, rng.between(1, 3) as u8, replicas),
        };
        layout.timing.submit_deadline_us = rng.between(200, 1_500) * 1_000;
        if rng.chance_ppm(SEVERAL_LOGS_PPM) {
            layout.partitions = SEVERAL_LOGS;
        }
        layout
    }

    /// Returns all nodes, ascending.
    pub fn nodes(&self) -> Vec<u8> {
        let hosts = [
            &self.leader_hosts[..],
            &self.acceptor_hosts,
            &self.replica_hosts,
        ];
        let mut nodes = hosts.concat();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Returns how many acceptors may be without memory at once.
    pub fn acceptor_failures_max(&self) -> usize {
        (self.acceptors.len() - 1) / 2
    }

    /// Returns how many replicas may be down for good.
    pub fn replica_failures_max(&self) -> usize {
        (self.replicas.len() - 1) / 2
    }

    /// Returns the configuration with which host `node` starts; `applied` is by log.
    pub fn host(
        &self,
        node: u8,
        entered: EpochConfig,
        incarnation: u64,
        applied: impl Iterator<Item = u64>,
        voting: bool,
    ) -> HostConfig {
        let start = |applied| LogStart {
            first_instance: 1,
            applied,
        };
        HostConfig {
            node,
            epoch: entered.epoch,
            logs: applied.map(start).collect(),
            acceptors: entered.acceptors,
            replicas: entered.replicas,
            leaders: entered.leaders,
            soft_roles: Roles {
                leader: self.leader_hosts.contains(&node),
                acceptor: self.acceptor_hosts.contains(&node),
                quorum: self.replica_hosts.contains(&node),
            },
            kernel_roles: Roles::default(),
            geometry: self.geometry(),
            timing: self.timing,
            log_values_max: self.peer_log_values,
            packet_len_max_bytes: inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES,
            incarnation,
            digest: self.digest(),
            voting,
        }
    }

    pub fn digest(&self) -> Digest {
        self.digest_key.map_or(Digest::PLAIN, Digest::keyed)
    }

    /// Sizes of a host's registers.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            partitions: self.partitions,
            ring_slots: self.ring_slots,
        }
    }

    pub fn submit_deadline_us(&self) -> Micros {
        self.timing.submit_deadline_us
    }

    /// Returns a one-line description for people.
    pub fn describe(&self) -> String {
        format!(
            "acceptors {:?}, leaders {:?}, replicas {:?}{}, {} logs, {} slots, {}{}{}, deadline {} ms",
            self.acceptors,
            self.leaders,
            self.replicas,
            if self.store { " of the store" } else { "" },
            self.partitions,
            self.ring_slots,
            if self.sync { "sync" } else { "memory" },
            if self.digest_key.is_some() {
                ", key"
            } else {
                ""
            },
            if self.plane { ", control plane" } else { "" },
            self.timing.submit_deadline_us / 1000
        )
    }
}
