//! Timing of the host side. Nanoseconds of a monotonic clock; in the simulator, of simulated time.

use serde::Serialize;

pub type Nanos = u64;

pub const MS: Nanos = 1_000_000;

/// Interval at which an unregistered worker asks to be registered, and a leaving one says so.
pub const REGISTER_NS: Nanos = 50 * MS;
/// How long a leaving worker keeps listening for tasks that it was given just before, and repeats that it is leaving:
/// either packet may be lost.
pub const DRAIN_MIN_NS: Nanos = 3 * REGISTER_NS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClientTiming {
    /// Timeout before a SUBMIT is resent; doubles up to `retry_max_ns`. Also the first delay after a full queue.
    pub retry_ns: Nanos,
    /// Maximum time between two retransmissions.
    pub retry_max_ns: Nanos,
    /// Interval at which the scheduler is asked for a queue's position while tasks wait there.
    pub ask_ns: Nanos,
    /// A task is lost if its executor is silent for this long, or if it left its queue this long ago and no executor
    /// has reported it.
    pub lease_ns: Nanos,
}

impl Default for ClientTiming {
    fn default() -> ClientTiming {
        ClientTiming {
            retry_ns: 10 * MS,
            retry_max_ns: 160 * MS,
            ask_ns: 50 * MS,
            // Too short a value makes tasks run twice that were only slow.
            lease_ns: 2000 * MS,
        }
    }
}

/// Timing of an executor. It must match the timing of all clients of the scheduler: a lease is renewed several times
/// before a client gives it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExecutorTiming {
    /// Timeout before a PULL is resent; doubles up to `pull_max_ns`.
    pub pull_ns: Nanos,
    /// Maximum time between two PULLs of an idle executor.
    pub pull_max_ns: Nanos,
    /// Timeout before the client is asked for the work again.
    pub ask_ns: Nanos,
    /// A client that does not answer for this long is silent: its task is dropped.
    pub client_silent_ns: Nanos,
    /// Timeout for a client that was found silent, until it is heard from again.
    pub client_probe_ns: Nanos,
    /// After a silent client did not answer, its tasks are dropped without asking for this long.
    pub client_skip_ns: Nanos,
    /// Interval at which a client is told that its task still runs.
    pub lease_ns: Nanos,
    /// Timeout before a result is resent; doubles up to `result_max_ns`.
    pub result_ns: Nanos,
    /// Maximum time between two retransmissions of a result to a client that is not silent. Must be shorter than a
    /// client's lease, because after a failed fetch a client waits for the next retransmission.
    pub result_max_ns: Nanos,
    /// A client that does not answer to a result for this long is silent: its results make room for others, and a
    /// draining worker does not wait for it.
    pub result_silent_ns: Nanos,
    /// A result whose client has been silent for this long is discarded even if there is room.
    pub result_keep_ns: Nanos,
}

impl Default for ExecutorTiming {
    fn default() -> ExecutorTiming {
        ExecutorTiming {
            pull_ns: 5 * MS,
            pull_max_ns: 100 * MS,
            ask_ns: 10 * MS,
            client_silent_ns: 2000 * MS,
            client_probe_ns: 20 * MS,
            client_skip_ns: 200 * MS,
            lease_ns: 400 * MS,
            result_ns: 10 * MS,
            result_max_ns: 1000 * MS,
            result_silent_ns: 10_000 * MS,
            result_keep_ns: 300_000 * MS,
        }
    }
}
