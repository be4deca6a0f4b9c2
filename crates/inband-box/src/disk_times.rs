//! How long it takes to put something on disk, and the timeouts that follow from it.

use crate::promise::{Nanos, MS};

/// A timeout is at least this many times as long as storing took: a candidate and then those that vote for it store a
/// promise, one after the other.
const STORES_PER_TIMEOUT: u64 = 3;
/// Slow disks prolong a timeout to this at most.
const TIMEOUT_MAX_NS: Nanos = 2_000 * MS;
/// By what part of it the longest time is forgotten with each that was shorter.
const FORGET: u64 = 8;

/// The longest time that storing took recently.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskTimes {
    longest_ns: Nanos,
}

impl DiskTimes {
    pub fn took(&mut self, took: Nanos) {
        self.longest_ns = took.max(self.longest_ns - self.longest_ns / FORGET);
    }

    /// Returns a timeout that allows for the disk; never less than what was configured.
    pub fn timeout_ns(&self, configured: Nanos) -> Nanos {
        let needed = STORES_PER_TIMEOUT.saturating_mul(self.longest_ns);
        configured.max(needed.min(TIMEOUT_MAX_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_prolongs_timeouts_until_it_is_fast_again() {
        let mut disk = DiskTimes::default();
        assert_eq!(disk.timeout_ns(10 * MS), 10 * MS);
        disk.took(3 * MS);
        assert_eq!(disk.timeout_ns(10 * MS), 10 * MS);
        disk.took(20 * MS);
        assert_eq!(disk.timeout_ns(10 * MS), 60 * MS);
        for _ in 0..20 {
            disk.took(MS);
        }
        assert_eq!(disk.timeout_ns(10 * MS), 10 * MS);
        disk.took(Nanos::MAX);
        assert_eq!(disk.timeout_ns(10 * MS), TIMEOUT_MAX_NS);
    }
}
