//! Times and limits of the control plane, in one place. It is slow on purpose: nothing waits for it
//! but repair.

use serde::Serialize;

/// Microseconds of a monotonic clock; in the simulator, simulated ones.
pub type Micros = u64;

/// Most bytes of votes in one answer to a pull, about.
pub const PIECE_LEN_BYTES: usize = 256 << 10;

/// The times that drive the state machines. All in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Between two reports of a host that has nothing new to say.
    pub report_us: Micros,
    /// A host that has not reported for this long is not counted on.
    pub alive_us: Micros,
    /// Between repetitions of orders, questions and proposals.
    pub retry_us: Micros,
    /// A source of votes that has not answered for this long is given up for another.
    pub stall_us: Micros,
    /// An acceptor that does not vote for this long is a reason to reconfigure.
    pub settle_us: Micros,
    /// How long the acceptors still installing are waited for, once a majority has installed.
    pub open_wait_us: Micros,
    /// A reconfiguration without any progress for this long is started over.
    pub give_up_us: Micros,
    /// First time between two repairs; doubles while they do not last.
    pub backoff_us: Micros,
    /// Longest time between two repairs.
    pub backoff_max_us: Micros,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            report_us: 100_000,
            alive_us: 1_000_000,
            retry_us: 100_000,
            stall_us: 500_000,
            settle_us: 200_000,
            open_wait_us: 1_000_000,
            give_up_us: 5_000_000,
            backoff_us: 500_000,
            backoff_max_us: 30_000_000,
        }
    }
}
