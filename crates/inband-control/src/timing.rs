//! Times and limits of the control plane. It is slow on purpose: only repair waits for it.

use serde::Serialize;

/// Microseconds of a monotonic clock (simulated in the simulator).
pub type Micros = u64;

/// Approximate maximum size of the votes in one answer to a pull.
pub const PIECE_LEN_BYTES: usize = 256 << 10;

/// The times that drive the state machines, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Interval between reports of a host without news.
    pub report_us: Micros,
    /// A host that has not reported for this long is considered dead.
    pub alive_us: Micros,
    /// Interval between repetitions of orders, queries and proposals.
    pub retry_us: Micros,
    /// A source of votes that has not answered for this long is replaced by another.
    pub stall_us: Micros,
    /// An acceptor that has not voted for this long causes a reconfiguration.
    pub settle_us: Micros,
    /// How long to wait for the acceptors still installing, once a majority has installed.
    pub open_wait_us: Micros,
    /// A reconfiguration without progress for this long is started over.
    pub give_up_us: Micros,
    /// Initial interval between two repairs; doubles while they do not last.
    pub backoff_us: Micros,
    /// Longest interval between two repairs.
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
