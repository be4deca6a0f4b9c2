//! Which hosts a world has, and their settings.

use inband_flair::reads::Reads;
use inband_flair::timing::{Nanos, MS, TUNING};

use crate::rng::Rng;

/// Which hosts there are, and how keys lie in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// 3 to 7.
    pub replicas: u8,
    /// At least 1.
    pub switches: u8,
    /// Clients.
    pub clients: u8,
    /// Requests that each has under way at a time.
    pub outstanding: usize,
    /// Keys that they use.
    pub keys: u8,
    /// Key groups of a switch.
    pub groups: usize,
    /// Reads spare a leader that writes.
    pub leader_avoidance: bool,
    /// How reads are answered.
    pub reads: Reads,
    /// A tick of Raft. With few of them a new leader is there while a switch still serves the old one's
    /// session.
    pub tick_ns: Nanos,
    /// How long a switch serves after a heartbeat.
    pub step_down_ns: Nanos,
    /// Time of a client between two requests, on average.
    pub think_ns: Nanos,
    /// Replicas have disks, and sync what they acknowledge.
    pub sync: bool,
    /// A replica's log is cut once it has so many entries that it need not keep, and it keeps as many.
    pub log_entries: usize,
}

impl Layout {
    /// One by chance.
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
