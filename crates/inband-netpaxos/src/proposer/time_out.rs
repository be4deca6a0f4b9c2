//! How long to wait for an answer, based on recent round trips (as in TCP, RFC 6298).

const MS: u64 = 1_000_000;
/// Timeout before the first sample, in nanoseconds.
pub const FIRST_NS: u64 = 20 * MS;
/// Minimum: recovering an instance takes less.
pub const MIN_NS: u64 = 8 * MS;
/// Maximum, even for a request that was sent many times.
pub const MAX_NS: u64 = 320 * MS;

/// A retransmission timeout. See the [module](self).
#[derive(Debug, Default)]
pub struct TimeOut {
    /// Smoothed time of an answer, and its variation; 0 before the first sample.
    smoothed_ns: u64,
    variation_ns: u64,
}

impl TimeOut {
    /// Records the time of an answer to a request that was sent once.
    pub fn measured(&mut self, took_ns: u64) {
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (took_ns.max(1), took_ns / 2);
            return;
        }
        let off_ns = self.smoothed_ns.abs_diff(took_ns);
        self.variation_ns = (3 * self.variation_ns + off_ns) / 4;
        self.smoothed_ns = ((7 * self.smoothed_ns + took_ns) / 8).max(1);
    }

    /// Returns the timeout of a request that has been retransmitted `repeats` times.
    pub fn after(&self, repeats: u32) -> u64 {
        let once_ns = match self.smoothed_ns {
            0 => FIRST_NS,
            _ => (self.smoothed_ns + 4 * self.variation_ns).clamp(MIN_NS, MAX_NS),
        };
        once_ns
            .checked_shl(repeats.min(16))
            .map_or(MAX_NS, |ns| ns.min(MAX_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_measured() {
        let mut time_out = TimeOut::default();
        assert_eq!(time_out.after(0), FIRST_NS);
        (0..50).for_each(|_| time_out.measured(MS / 10));
        assert_eq!(time_out.after(0), MIN_NS);
        (0..50).for_each(|_| time_out.measured(30 * MS));
        let slow = time_out.after(0);
        assert!((30 * MS..60 * MS).contains(&slow), "{slow}");
        assert_eq!(time_out.after(2), 4 * slow);
        assert_eq!(time_out.after(60), MAX_NS);
    }
}
