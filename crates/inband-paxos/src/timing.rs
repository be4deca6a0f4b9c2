//! Times and limits of the host side, in one place.

use serde::Serialize;

use crate::config;

/// Microseconds of a monotonic clock; in the simulator, simulated ones.
pub type Micros = u64;

/// Values a proposer keeps undecided at once.
pub const PROPOSER_WINDOW: usize = 1024;
/// Of these, values a proposer has sent and not seen decided. More makes nothing faster (at 10 us a
/// round trip it allows millions a second), but overflows queues on the way: a veth's holds 256
/// frames, and each value makes three copies for each of three learners.
pub const SEND_WINDOW: usize = 48;
/// Instances a learner asks for with one round of LEARN.
pub const LEARN_BATCH: usize = 64;
/// Instances a learner asks a peer's log for at once.
pub const PEER_BATCH: u64 = 128;
/// Instances a learner recovers by phase 1 at once.
pub const RECOVERIES_MAX: usize = 32;
/// Decided values kept for peers: count, of all logs of a host.
pub const DECIDED_LOG_VALUES_MAX: usize = 65_536;
/// Decided values kept for peers: bytes, of all logs of a host.
pub const DECIDED_LOG_BYTES_MAX: usize = 64 << 20;
/// The same of one log among many: not less than this.
pub const DECIDED_LOG_BYTES_MIN: usize = 4 << 20;

/// The next multiple of `period` after `now`. What is done periodically for many logs is done at such
/// times, so that a host wakes up once for all of them.
pub fn next_beat(now: Micros, period: Micros) -> Micros {
    (now / period + 1) * period
}

/// The times that drive the state machines. All in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// A submitted value ends in "outcome unknown" after this.
    pub submit_deadline_us: Micros,
    /// First repetition of a request; doubles up to `resend_max_us`.
    pub resend_us: Micros,
    /// Longest time between repetitions of a request.
    pub resend_max_us: Micros,
    /// Time after which a request that met BUSY is repeated.
    pub busy_us: Micros,
    /// A hole older than this is asked for with LEARN.
    pub gap_us: Micros,
    /// A hole older than this is recovered by phase 1.
    pub recover_us: Micros,
    /// Time between probes of the leader.
    pub probe_interval_us: Micros,
    /// A leader that has not answered for this long is suspected (plus half of it again for each rank). A leader whose
    /// decisions have stopped for this long, with instances outstanding, takes over from itself.
    pub suspect_after_us: Micros,
    /// Time between ALIVE messages of a host with nothing new to say.
    pub alive_us: Micros,
    /// Time after which an unchanged floor is repeated to acceptors and leaders; doubles up to 16
    /// times that.
    pub trim_repeat_us: Micros,
}

impl Default for Timing {
    fn default() -> Timing {
        // The defaults of what the configuration has are there.
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
