//! Times of the host side, in one place. Nanoseconds of a monotonic clock; in the simulator,
//! simulated ones.

use inband_host::config::Durability;
use inband_raft::Tuning;
use serde::Serialize;

use crate::limits::CLOCK_DRIFT_PPM_MAX;

/// Nanoseconds.
pub type Nanos = u64;

/// Nanoseconds of a millisecond.
pub const MS: Nanos = 1_000_000;

/// `heartbeat_ms`, unless the user says otherwise.
pub const HEARTBEAT_MS: u64 = 10;
/// `step_down_ms`, unless the user says otherwise: three heartbeats may be lost, and a host may pause for a while.
pub const STEP_DOWN_MS: u64 = 50;
/// The same with `durability = "sync"`: a leader's disk may take its time.
pub const STEP_DOWN_SYNC_MS: u64 = 250;

/// The default of `step_down_ms`.
pub fn default_step_down_ms(durability: Durability) -> u64 {
    match durability {
        Durability::Memory => STEP_DOWN_MS,
        Durability::Sync => STEP_DOWN_SYNC_MS,
    }
}

/// The times that drive a replica. All replicas of a set have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// A tick of Raft.
    pub tick_ns: Nanos,
    /// Between two heartbeats to a switch.
    pub heartbeat_ns: Nanos,
    /// A switch without a heartbeat for this long serves nobody.
    pub step_down_ns: Nanos,
    /// A switch that has not answered for this long is given up for another one.
    pub switch_silent_ns: Nanos,
    /// A follower that was not heard of for this long is sent no reads.
    pub follower_silent_ns: Nanos,
    /// How long a new session waits for replicas that have not yet got its first entry.
    pub followers_wait_ns: Nanos,
    /// A write that has not come for this long after its number was seen never will.
    pub refresh_after_ns: Nanos,
    /// Between two announcements of a replica to the others.
    pub announce_ns: Nanos,
    /// Between two settings of the replicas' weights.
    pub weights_ns: Nanos,
    /// A follower's lease of reads lasts so long after the time that the follower told.
    pub lease_ns: Nanos,
    /// A question whether this replica leads, which reads wait for, is asked again after this.
    pub ask_again_ns: Nanos,
}

/// By a clock that may be faster than the other, at least as long.
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

/// Raft's own times, in ticks: a leader that is dead is replaced after 100 to 200 ms.
pub const TUNING: Tuning = Tuning {
    heartbeat_ticks: 2,
    election_ticks: 10,
    append_bytes_max: 256 << 10,
    // The next entries leave when a follower has answered the last ones: the busier it is, the more in one message.
    appends_max: 1,
    batch_appends: true,
    // A follower applies what a read needs when the read comes, and the rest with the next entries.
    quiet_commits: true,
    caught_up_entries: 256,
    compact_entries: 16_384,
    slice_bytes: 256 << 10,
    keep_entries: 16_384,
    snapshot_wait_ticks: 200,
};

/// Times of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClientTiming {
    /// A request is sent again after this; doubles up to `retry_max_ns`.
    pub retry_ns: Nanos,
    /// Longest time between two repetitions.
    pub retry_max_ns: Nanos,
    /// After a NACK of every switch, the time until the next is asked.
    pub nack_ns: Nanos,
    /// A request ends after this, whatever its outcome.
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
