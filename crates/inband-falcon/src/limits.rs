//! Limits of the host side; those of packets are in `falcon/wire.h`.

use crate::dataplane::wire;

/// Maximum length of a task's description; longer work is fetched from the client.
pub const DESC_LEN_BYTES_MAX: usize = wire::DESC_LEN_MAX_BYTES;
/// Maximum tasks per SUBMIT, which is one packet.
pub const SUBMIT_TASKS_MAX: usize = wire::TASKS_MAX;
/// Maximum unfinished tasks of a client, including waiting ones.
pub const CLIENT_TASKS_MAX: usize = 1 << 20;
/// Failed jobs that a client remembers, so that a later job that depends on one fails too.
pub const FAILED_JOBS_MAX: usize = 1 << 16;
/// The lowest priority.
pub const PRIORITY_MAX: u8 = wire::PRIORITIES - 1;
/// The highest resource number.
pub const RESOURCE_MAX: u8 = wire::RESOURCES - 1;
/// Maximum length of a resource's name: all names must fit into one packet.
pub const RESOURCE_NAME_LEN_BYTES_MAX: usize = 15;
/// Maximum queues per scheduler set: one per resource.
pub const QUEUES_MAX: usize = wire::RESOURCES as usize;
/// Maximum results that a worker keeps for clients that have not acknowledged them.
pub const RESULTS_MAX: usize = 4096;
/// Silent clients that a worker remembers.
pub const SILENT_CLIENTS_MAX: usize = 1024;
/// Work and results up to this length travel in one packet; longer ones are fetched.
pub const INLINE_LEN_BYTES_MAX: usize = 1024;
/// Maximum length of work, and of a result.
pub const WORK_LEN_BYTES_MAX: usize = 256 << 20;
/// Maximum output kept of a program's stdout, and of its stderr.
pub const OUTPUT_LEN_BYTES_MAX: usize = 16 << 20;
/// How often a client tries to fetch a result from one executor before the task is run again.
pub const FETCH_TRIES: u32 = 4;
/// Maximum total of work and results that a process keeps for others to fetch.
pub const BLOBS_LEN_BYTES_MAX: usize = 1 << 30;
/// Maximum fetches that a process serves at a time.
pub const FETCHES_MAX: usize = 64;
/// Maximum executors per worker.
pub const EXECUTORS_MAX: u8 = wire::EXECUTORS as u8;
/// Maximum length of a worker's name.
pub const WORKER_NAME_LEN_BYTES_MAX: usize = 64;
/// Maximum results that a client fetches at a time.
pub const FETCHERS_MAX: usize = 4;
/// Maximum executors of a cluster in one process.
pub const LOCAL_EXECUTORS_MAX: usize = 1024;
