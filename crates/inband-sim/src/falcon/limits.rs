//! Sizes and times of the simulation, in one place. Nanoseconds.

use inband_falcon::timing::{Nanos, MS};

/// Simulated time with faults, of a seed.
pub const FAULTY_NS: Nanos = 800 * MS;
/// Time in which everything must have finished once faults are over.
pub const SETTLE_NS: Nanos = 20_000 * MS;
/// A task whose executor waits for it is done so soon after it ran so long, when nothing goes wrong.
pub const PROMPT_NS: Nanos = 5 * MS;
/// How far a clock jumps ahead, at most: a machine that stood still, and whose clock did not.
pub const CLOCK_JUMP_NS: Nanos = 400 * MS;
/// Who could not fetch something tries again after this.
pub const FETCH_AGAIN_NS: Nanos = 20 * MS;
/// Longest that work which cannot be fetched is tried.
pub const FETCH_LIMIT_NS: Nanos = 20_000 * MS;
/// A worker that died is started again after this.
pub const RESTART_NS: Nanos = 20 * MS;
/// Events of a run; one with more is a defect.
pub const EVENTS_MAX: u64 = 2_000_000;
