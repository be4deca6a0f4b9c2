//! All times of the host side, in nanoseconds of a monotonic clock or of the simulator's clock.

use inband_host::config::Durability;
use inband_raft::Tuning;
use serde::Serialize;

use crate::limits::CLOCK_DRIFT_PPM_MAX;

/// A time or duration in nanoseconds.
pub type Nanos = u64;

pub const MS: Nanos = 1_000_000;

/// The default of `heartbeat_ms`.
pub const HEARTBEAT_MS: u64 = 10;
/// The default of `step_down_ms`: tolerates three lost heartbeats and a short stall of the host.
pub const STEP_DOWN_MS: u64 = 50;
/// The default with `durability = "sync"`: a leader's disk may be slow.
pub const STEP_DOWN_SYNC_MS: u64 = 250;

/// Returns the default of `step_down_ms`.
pub fn default_step_down_ms(durability: Durability) -> u64 {
    match durability {
        Durability::Memory => STEP_DOWN_MS,
        Durability::Sync => STEP_DOWN_SYNC_MS,
    }
}

/// The times that drive a replica. They must be the same for all replicas of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// The interval of Raft ticks.
    pub tick_ns: Nanos,
    /// The interval of heartbeats to a switch.
    pub heartbeat_ns: Nanos,
    /// A switch stops serving this long after the last heartbeat.
    pub step_down_ns: Nanos,
    /// A leader replaces a switch that has not answered for this long.
    pub switch_silent_ns: Nanos,
    /// A follower that was not heard from for this long gets no reads.
    pub follower_silent_ns: Nanos,
    /// How long a new session waits for replicas that lack its first entry.
    pub followers_wait_ns: Nanos,
    /// A write that has not arrived this long after its number was seen is given up.
    pub refresh_after_ns: Nanos,
    /// The interval of a replica's announcements.
    pub announce_ns: Nanos,
    /// The interval of weight updates.
    pub weights_ns: Nanos,
    /// Validity of a follower's read lease, from the time that the follower sent.
    pub lease_ns: Nanos,
    /// Timeout after which a question for confirmation of leadership is repeated.
    pub ask_again_ns: Nanos,
}

/// Returns the duration to wait so that `ns` have passed on another clock, which may be slower by the maximum drift.
pub(crate) fn with_drift(ns: Nanos) -> Nanos {
    ns + ns * CLOCK_DRIFT_PPM_MAX / (1_000_000 - CLOCK_DRIFT_PPM_MAX) + 1
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            tick_ns: 10 * MS,
            heartbeat_ns: HEARTBEAT_MS * MS,
            step_down_ns: STEP_DOWN_MS * MS,
            switch_silent_ns: 30 * MS,
            follower_silent_ns: 100 * MS,
            followers_wait_ns: 5 * MS,
            refresh_after_ns: 20 * MS,
            announce_ns: 50 * MS,
            weights_ns: 1000 * MS,
            lease_ns: 200 * MS,
            ask_again_ns: 20 * MS,
        }
    }
}

/// Raft's timing, in ticks. A dead leader is replaced after 100 to 200 ms.
pub const TUNING: Tuning = Tuning {
    heartbeat_ticks: 2,
    election_ticks: 10,
    append_bytes_max: 256 << 10,
    // The next entries are sent when the follower has answered the last ones, so a busy follower gets larger batches.
    appends_max: 1,
    batch_appends: true,
    // A follower applies the entries that a read needs when the read arrives, and the rest with the next entries.
    quiet_commits: true,
    caught_up_entries: 256,
    compact_entries: 16_384,
    slice_bytes: 256 << 10,
    keep_entries: 16_384,
    snapshot_wait_ticks: 200,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClientTiming {
    /// Initial retransmission timeout; doubles up to `retry_max_ns`.
    pub retry_ns: Nanos,
    pub retry_max_ns: Nanos,
    /// Pause after all switches have answered NACK.
    pub nack_ns: Nanos,
    /// Every request ends after this time, whatever its outcome.
    pub deadline_ns: Nanos,
}

impl Default for ClientTiming {
    fn default() -> ClientTiming {
        ClientTiming {
            retry_ns: 20 * MS,
            retry_max_ns: 160 * MS,
            nack_ns: 2 * MS,
            deadline_ns: 5000 * MS,
        }
    }
}

impl ClientTiming {
    pub(crate) fn deadline_ms(&self) -> u64 {
        self.deadline_ns / MS
    }
}
