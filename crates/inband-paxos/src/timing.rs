//! Times and limits of the host side, in one place.

use serde::Serialize;

use crate::config;

/// Microseconds of a monotonic clock (simulated in the simulator).
pub type Micros = u64;

/// Most undecided values of a proposer.
pub const PROPOSER_WINDOW: usize = 1024;
/// Most of these that a proposer has sent and not seen decided. More would not be faster (with a round trip of 10 us
/// this allows millions a second), but would overflow queues on the way: a veth's holds 256 frames, and each value
/// makes three copies for each of three learners.
pub const SEND_WINDOW: usize = 48;
/// Instances that a learner queries with one round of LEARN.
pub const LEARN_BATCH: usize = 64;
/// Instances that a learner requests from a peer's log at once.
pub const PEER_BATCH: u64 = 128;
/// Instances that a learner recovers by phase 1 at once.
pub const RECOVERIES_MAX: usize = 32;
/// Decided values kept for peers: number, for all logs of a host.
pub const DECIDED_LOG_VALUES_MAX: usize = 65_536;
/// Decided values kept for peers: bytes, for all logs of a host.
pub const DECIDED_LOG_BYTES_MAX: usize = 64 << 20;
/// The minimum in bytes for a single log.
pub const DECIDED_LOG_BYTES_MIN: usize = 4 << 20;

/// How long a host that has sent a checkpoint keeps what is decided since, for the peer that installs it: after the
/// transfer, and after each answer that nothing else would have allowed.
pub const LOG_HELD_US: Micros = 30_000_000;
/// Decided values kept meanwhile: number, for all logs of a host.
pub const HELD_LOG_VALUES_MAX: usize = 1 << 20;
/// Decided values kept meanwhile: bytes, for all logs of a host.
pub const HELD_LOG_BYTES_MAX: usize = 256 << 20;

/// Returns the next multiple of `period` after `now`. Periodic work for many logs is done at such times, so that a host
/// wakes up once for all of them.
pub fn next_beat(now: Micros, period: Micros) -> Micros {
    (now / period + 1) * period
}

/// The times that drive the state machines, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// A submitted value ends as "outcome unknown" after this time.
    pub submit_deadline_us: Micros,
    /// Time until the first retransmission of a request; doubles up to `resend_max_us`.
    pub resend_us: Micros,
    /// Longest interval between retransmissions of a request.
    pub resend_max_us: Micros,
    /// Time until a request that was answered with BUSY is retransmitted.
    pub busy_us: Micros,
    /// A hole older than this is queried with LEARN.
    pub gap_us: Micros,
    /// A hole older than this is recovered by phase 1.
    pub recover_us: Micros,
    /// Interval between probes of the leader.
    pub probe_interval_us: Micros,
    /// A leader that has not answered for this long is suspected (plus half of it again for each rank). A leader whose
    /// decisions have stopped for this long, with instances outstanding, takes over from itself.
    pub suspect_after_us: Micros,
    /// Interval between ALIVE messages of a host without news.
    pub alive_us: Micros,
    /// Time until an unchanged floor is sent again to acceptors and leaders; doubles up to 16 times that.
    pub trim_repeat_us: Micros,
}

impl Default for Timing {
    fn default() -> Timing {
        // The configurable defaults are defined there.
        let host = config::Timing::default();
        Timing {
            submit_deadline_us: host.submit_deadline_ms * 1000,
            resend_us: 20_000,
            resend_max_us: 200_000,
            busy_us: 1_000,
            gap_us: 3_000,
            recover_us: 30_000,
            probe_interval_us: host.probe_interval_ms * 1000,
            suspect_after_us: host.suspect_after_ms * 1000,
            alive_us: 20_000,
            trim_repeat_us: 200_000,
        }
    }
}
