//! How much memory a cluster will take on this machine.
//!
//! Most of it is rings: logs times slots times the size of a slot, at every acceptor. They do not depend on the load.

use std::fs;

use inband_paxos::config::{bounds, logs_of, ring_memory_bytes, Role};

use crate::paxos::layout::ClusterSpec;

/// Memory of a host's process, apart from rings and store.
const PROCESS_BYTES: u64 = 24 << 20;
/// Decided values that a replica keeps for its peers, and the ring buffer through which the kernel delivers values.
const REPLICA_BYTES: u64 = 80 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    pub acceptor_rings_bytes: u64,
    /// One replica, with its store.
    pub replica_bytes: u64,
    /// All hosts of the cluster.
    pub total_bytes: u64,
}

impl MemoryNeed {
    /// The need of a cluster.
    pub fn of(spec: &ClusterSpec) -> Self {
        let rings = |roles: &[Role]| ring_memory_bytes(roles, spec.partitions, spec.ring_slots);
        let replica_bytes = rings(&[Role::Replica]) + REPLICA_BYTES + spec.store_memory_bytes;
        let host = |roles: &[Role]| host_bytes(roles, rings(roles), spec.store_memory_bytes);
        Self {
            acceptor_rings_bytes: rings(&[Role::Acceptor]),
            replica_bytes: PROCESS_BYTES + replica_bytes,
            total_bytes: spec.hosts().iter().map(|h| host(&h.roles)).sum(),
        }
    }
}

/// One host's process with these roles: its rings, and its store if it is a replica.
pub fn host_bytes(roles: &[Role], rings_bytes: u64, store_bytes: u64) -> u64 {
    let as_replica = if roles.contains(&Role::Replica) {
        REPLICA_BYTES + store_bytes
    } else {
        0
    };
    PROCESS_BYTES + rings_bytes + as_replica
}

/// The cluster needs more memory than this machine has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster needs about {} MiB of memory and this machine has {} MiB available: {} MiB in each \
     of {acceptors} acceptors for {logs} rings of {ring_slots} slots, {} MiB in each of {replicas} \
     replicas; {cure}",
    mib(need.total_bytes), mib(*available_bytes), mib(need.acceptor_rings_bytes),
    mib(need.replica_bytes)
)]
pub struct TooLarge {
    pub need: MemoryNeed,
    pub available_bytes: u64,
    pub acceptors: usize,
    pub replicas: usize,
    pub logs: usize,
    pub ring_slots: u32,
    /// What to do.
    pub cure: String,
}

/// Checks that a cluster fits into this much memory.
pub fn check(spec: &ClusterSpec, available_bytes: u64) -> Result<MemoryNeed, TooLarge> {
    let need = MemoryNeed::of(spec);
    if need.total_bytes <= available_bytes {
        return Ok(need);
    }
    Err(TooLarge {
        need,
        available_bytes,
        acceptors: spec.acceptors.0.len(),
        replicas: spec.replicas,
        logs: logs_of(spec.partitions),
        ring_slots: spec.ring_slots,
        cure: cure(spec, available_bytes),
    })
}

/// Memory that this machine can give without swapping. If it cannot be read, it counts as unlimited.
pub fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Suggests smaller rings if those fit, otherwise fewer partitions.
fn cure(spec: &ClusterSpec, available_bytes: u64) -> String {
    let fits = |spec: &ClusterSpec| MemoryNeed::of(spec).total_bytes <= available_bytes;
    let mut smaller = spec.clone();
    while smaller.ring_slots / 2 >= *bounds::RING_SLOTS.start() as u32 {
        smaller.ring_slots /= 2;
        if fits(&smaller) {
            return format!("--ring-slots {} would fit", smaller.ring_slots);
        }
    }
    let mut fewer = spec.clone();
    while fewer.partitions > 1 {
        fewer.partitions /= 2;
        if fits(&fewer) {
            return format!("--partitions {} would fit", fewer.partitions);
        }
    }
    "choose fewer --replicas, --acceptors or --partitions and smaller --ring-slots, or a larger \
     machine"
        .to_owned()
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn rings_grow_with_logs_and_slots_and_nothing_else_does() {
        let mut spec = ClusterSpec::new("inband", "/data");
        let one = check(&spec, GIB).expect("the default fits 1 GiB");
        spec.partitions = 4;
        let four = MemoryNeed::of(&spec);
        assert_eq!(four.acceptor_rings_bytes, 5 * one.acceptor_rings_bytes);
        spec.ring_slots *= 2;
        assert_eq!(
            MemoryNeed::of(&spec).acceptor_rings_bytes,
            10 * one.acceptor_rings_bytes
        );
        let rings = |need: &MemoryNeed| need.total_bytes - 3 * need.acceptor_rings_bytes;
        let per_log_and_slot = rings(&four) - rings(&one);
        assert!(per_log_and_slot < four.acceptor_rings_bytes);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers_and_a_cure() {
        let mut spec = ClusterSpec::new("inband", "/data");
        spec.partitions = 64;
        spec.ring_slots = 65_536;
        let error = check(&spec, 8 * GIB).expect_err("too large").to_string();
        for says in [
            "8192 MiB available",
            "65 rings of 65536 slots",
            "--ring-slots 16384 would fit",
        ] {
            assert!(error.contains(says), "{error}");
        }
        spec.ring_slots = 64;
        spec.store_memory_bytes = 64 << 20;
        let error = check(&spec, 400 << 20).expect_err("too large").to_string();
        assert!(error.contains("choose fewer --replicas"), "{error}");
        assert!(available_bytes() > 0);
    }
}
