//! Sizes and times of the simulation. Times are in nanoseconds.

use inband_falcon::timing::{Nanos, MS};

/// Simulated time with faults per seed.
pub const FAULTY_NS: Nanos = 800 * MS;
/// Time in which everything must finish once faults end.
pub const SETTLE_NS: Nanos = 20_000 * MS;
/// Without faults, a task with a waiting executor ends at most this much later than its run time.
pub const PROMPT_NS: Nanos = 5 * MS;
/// The farthest that a clock jumps forward: as if the machine had been suspended and its clock had not.
pub const CLOCK_JUMP_NS: Nanos = 400 * MS;
/// Delay before a failed fetch is retried.
pub const FETCH_AGAIN_NS: Nanos = 20 * MS;
/// How long an executor keeps trying to fetch work.
pub const FETCH_LIMIT_NS: Nanos = 20_000 * MS;
/// Delay before a worker that died is started again.
pub const RESTART_NS: Nanos = 20 * MS;
/// Maximum events per run; more is a defect.
pub const EVENTS_MAX: u64 = 2_000_000;
