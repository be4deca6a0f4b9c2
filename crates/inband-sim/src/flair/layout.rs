//! Which hosts a world has, and their settings.

use inband_flair::reads::Reads;
use inband_flair::timing::{Nanos, MS, TUNING};

use crate::rng::Rng;

/// The hosts of a world, and how keys map to groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// 3 to 7.
    pub replicas: u8,
    /// At least 1.
    pub switches: u8,
    pub clients: u8,
    /// Maximum requests in flight per client.
    pub outstanding: usize,
    /// Number of keys that clients use.
    pub keys: u8,
    /// Key groups per switch.
    pub groups: usize,
    /// Reads avoid a leader that is busy with writes.
    pub leader_avoidance: bool,
    pub reads: Reads,
    /// A Raft tick. If it is short, a new leader can be elected while a switch still serves the old one's session.
    pub tick_ns: Nanos,
    /// How long a switch serves after a heartbeat.
    pub step_down_ns: Nanos,
    /// Mean time between two requests of a client.
    pub think_ns: Nanos,
    /// Replicas have disks and sync before they acknowledge.
    pub sync: bool,
    /// A replica compacts its log once it has this many entries that it need not keep, and keeps as many.
    pub log_entries: usize,
}

impl Layout {
    pub fn random(rng: &mut Rng) -> Layout {
        Layout {
            replicas: [3, 3, 3, 4, 5, 5, 7][rng.below(7) as usize],
            switches: 2,
            clients: rng.between(2, 4) as u8,
            outstanding: rng.between(1, 3) as usize,
            keys: rng.between(1, 5) as u8,
            groups: [1, 2, 4, 16][rng.below(4) as usize],
            reads: Reads::Flair,
            leader_avoidance: rng.below(2) == 0,
            tick_ns: [2 * MS, 5 * MS, 10 * MS][rng.below(3) as usize],
            step_down_ns: [40 * MS, 150 * MS, 400 * MS][rng.below(3) as usize],
            think_ns: [MS / 4, MS, 4 * MS][rng.below(3) as usize],
            sync: rng.below(4) == 0,
            log_entries: [32, TUNING.compact_entries][rng.below(2) as usize],
        }
    }
}
