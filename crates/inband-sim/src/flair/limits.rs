//! Sizes and times of the simulation, in one place. Nanoseconds.

use inband_flair::timing::{Nanos, MS};

/// Simulated time with faults, of a seed.
pub const FAULTY_NS: Nanos = 900 * MS;
/// Time in which everything must have finished once faults are over.
pub const SETTLE_NS: Nanos = 6_000 * MS;
/// Requests that every client must then still do.
pub const REQUESTS_AFTER: u64 = 20;
/// What a slow link adds, at most.
pub const SLOW_NS: Nanos = 100 * MS;
/// A client gives a request up after this.
pub const DEADLINE_NS: Nanos = 400 * MS;
/// Events of a run; one with more is a defect.
pub const EVENTS_MAX: u64 = 3_000_000;
