//! Sizes and times of the simulation. Times are in nanoseconds.

use inband_flair::timing::{Nanos, MS};

/// Simulated time with faults per seed.
pub const FAULTY_NS: Nanos = 900 * MS;
/// Time in which everything must finish once faults end.
pub const SETTLE_NS: Nanos = 6_000 * MS;
/// Requests that every client must complete after that.
pub const REQUESTS_AFTER: u64 = 20;
/// Maximum extra delay of a slow link.
pub const SLOW_NS: Nanos = 100 * MS;
/// A client gives up a request after this.
pub const DEADLINE_NS: Nanos = 400 * MS;
/// Maximum events per run; more is a defect.
pub const EVENTS_MAX: u64 = 3_000_000;
