//! Times of the host side, in one place. Nanoseconds of a monotonic clock; in the simulator, simulated ones.

use serde::Serialize;

/// Nanoseconds.
pub type Nanos = u64;

/// Nanoseconds of a millisecond.
pub const MS: Nanos = 1_000_000;

/// How often a worker that is not known yet asks to be, and one that leaves says so.
pub const REGISTER_NS: Nanos = 50 * MS;
/// So long a worker that ends listens for tasks that it was given just before, and tells the scheduler again: either
/// may be lost.
pub const DRAIN_MIN_NS: Nanos = 3 * REGISTER_NS;

/// Times of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClientTiming {
    /// A SUBMIT that nothing was heard of is sent again after this; doubles up to `retry_max_ns`. A full queue
    /// is tried again after this, too.
    pub retry_ns: Nanos,
    /// Longest time between two repetitions.
    pub retry_max_ns: Nanos,
    /// How often the scheduler is asked how far a queue is, while tasks wait there.
    pub ask_ns: Nanos,
    /// An executor not heard of for this long, or a task that left its queue this long ago, is lost.
    pub lease_ns: Nanos,
}

impl Default for ClientTiming {
    fn default() -> ClientTiming {
        ClientTiming {
            retry_ns: 10 * MS,
            retry_max_ns: 160 * MS,
            ask_ns: 50 * MS,
            // Whoever is too strict has tasks run twice that were only slow.
            lease_ns: 2000 * MS,
        }
    }
}

/// Times of an executor. Those of all clients and executors of a scheduler fit: a lease is renewed several
/// times before a client gives it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExecutorTiming {
    /// A PULL that nothing was heard of is sent again after this; doubles up to `pull_max_ns`.
    pub pull_ns: Nanos,
    /// Longest time between two PULLs of an idle executor.
    pub pull_max_ns: Nanos,
    /// The client is asked for the work again after this.
    pub ask_ns: Nanos,
    /// A client that does not answer for this long is silent: its task is dropped.
    pub client_silent_ns: Nanos,
    /// A client that was found silent has only this long to answer, until it is heard of again.
    pub client_probe_ns: Nanos,
    /// After it was asked in vain, its tasks are dropped at once for this long.
    pub client_skip_ns: Nanos,
    /// How often a client is told that its task still runs.
    pub lease_ns: Nanos,
    /// A result is sent again after this; doubles up to `result_max_ns`.
    pub result_ns: Nanos,
    /// Longest time between two repetitions of a result whose client is not silent. Shorter than a client's lease: after a fetch
    /// that failed, a client waits for the next repetition.
    pub result_max_ns: Nanos,
    /// A client that does not answer to a result for this long is silent: its results make room for others, and nobody who
    /// drains waits for it.
    pub result_silent_ns: Nanos,
    /// A result whose client was silent for this long is thrown away even if there is room.
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
