//! Limits of the host side, in one place; those of packets are what `falcon/wire.h` says.

use crate::dataplane::wire;

/// What a task's description holds; longer work is asked for at the client.
pub const DESC_LEN_BYTES_MAX: usize = wire::DESC_LEN_MAX_BYTES;
/// Tasks in one SUBMIT, which is one packet.
pub const SUBMIT_TASKS_MAX: usize = wire::TASKS_MAX;
/// Tasks of one client that are not done, waiting ones included.
pub const CLIENT_TASKS_MAX: usize = 1 << 20;
/// Failed jobs that a client remembers, so that one which is to come after them fails, too.
pub const FAILED_JOBS_MAX: usize = 1 << 16;
/// The last of the priorities.
pub const PRIORITY_MAX: u8 = wire::PRIORITIES - 1;
/// The last of the resources.
pub const RESOURCE_MAX: u8 = wire::RESOURCES - 1;
/// What a resource is called: all names fit into one packet.
pub const RESOURCE_NAME_LEN_BYTES_MAX: usize = 15;
/// Queues of a scheduler's set: one a resource, at most.
pub const QUEUES_MAX: usize = wire::RESOURCES as usize;
/// Results that a worker keeps for clients that have not acknowledged them.
pub const RESULTS_MAX: usize = 4096;
/// Silent clients that a worker remembers.
pub const SILENT_CLIENTS_MAX: usize = 1024;
/// Work and results up to this go in one packet; longer ones are fetched.
pub const INLINE_LEN_BYTES_MAX: usize = 1024;
/// Work, and a result.
pub const WORK_LEN_BYTES_MAX: usize = 256 << 20;
/// What is kept of what a program writes to stdout, and to stderr.
pub const OUTPUT_LEN_BYTES_MAX: usize = 16 << 20;
/// How often a client tries to fetch a result of one executor, before the task is done again.
pub const FETCH_TRIES: u32 = 4;
/// Work and results that a process keeps for others to fetch, together.
pub const BLOBS_LEN_BYTES_MAX: usize = 1 << 30;
/// Fetches that a process serves at a time.
pub const FETCHES_MAX: usize = 64;
/// Executors of a worker.
pub const EXECUTORS_MAX: u8 = wire::EXECUTORS as u8;
/// What a worker calls itself.
pub const WORKER_NAME_LEN_BYTES_MAX: usize = 64;
/// Results that a client fetches at a time.
pub const FETCHERS_MAX: usize = 4;
/// Executors of a cluster in one process.
pub const LOCAL_EXECUTORS_MAX: usize = 1024;
