//! How many requests may be in flight: additive increase, multiplicative decrease. A loss halves the window. Before the
//! first loss, round trips longer than the shortest one shrink it, because the extra time was spent in a queue.

use crate::epoch::{Nanos, MS};

/// Requests in flight before the first answer.
pub const WINDOW_FIRST: u32 = 64;
/// Losses do not shrink the window below this.
pub const WINDOW_MIN: u32 = 16;
/// Long round trips do not shrink the window below this: where processes wait for a CPU, a smaller window does not make
/// round trips shorter.
const WINDOW_MIN_OF_DELAY: f64 = 64.0;
/// The shortest round trip is taken over the last one to two of these intervals, since the path may become longer.
const RTT_MIN_COUNTS_NS: Nanos = 10_000 * MS;
/// A round trip that exceeds the shortest one by more than this has waited in a queue.
pub const DELAY_MAX_NS: Nanos = 10 * MS;

/// A congestion window. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Window {
    size: f64,
    /// Below this the window grows by one with each answer, above it by one with each window of answers.
    threshold: f64,
    max: f64,
    /// The shortest round trip of the current interval, and of the one before.
    rtt_min_ns: [Nanos; 2],
    interval_ends: Nanos,
    /// The window shrinks at most once per round trip; this is when it may shrink again.
    shrinks_at: Nanos,
}

impl Window {
    /// Creates a window that grows up to `max`.
    pub fn new(max: u32) -> Window {
        let max = f64::from(max.max(1));
        Window {
            size: f64::from(WINDOW_FIRST).min(max),
            threshold: f64::INFINITY,
            max,
            rtt_min_ns: [Nanos::MAX; 2],
            interval_ends: 0,
            shrinks_at: 0,
        }
    }

    /// Returns how many requests may be in flight.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Records an answer; `under_way` requests were in flight when it arrived.
    pub fn answered(&mut self, under_way: usize) {
        if under_way + 1 < self.size() {
            return; // the window was not the limit
        }
        self.size += match self.size < self.threshold {
            true => 1.0,
            false => 1.0 / self.size,
        };
        self.size = self.size.min(self.max);
    }

    /// Records the round trip of a request that was sent once; `srtt_ns` is the smoothed round trip.
    pub fn measured(&mut self, now: Nanos, rtt_ns: Nanos, srtt_ns: Nanos) {
        if now >= self.interval_ends {
            self.rtt_min_ns = [Nanos::MAX, self.rtt_min_ns[0]];
            self.interval_ends = now + RTT_MIN_COUNTS_NS;
        }
        self.rtt_min_ns[0] = self.rtt_min_ns[0].min(rtt_ns);
        let shortest_ns = self.rtt_min_ns[0].min(self.rtt_min_ns[1]);
        let is_queue = srtt_ns > shortest_ns + DELAY_MAX_NS;
        if is_queue && self.size > WINDOW_MIN_OF_DELAY {
            self.shrink(now, srtt_ns, self.size * 7.0 / 8.0, WINDOW_MIN_OF_DELAY);
        }
    }

    /// Records the loss of a request or of its answer.
    pub fn lost(&mut self, now: Nanos, srtt_ns: Nanos) {
        self.shrink(now, srtt_ns, self.size / 2.0, WINDOW_MIN.into());
    }

    fn shrink(&mut self, now: Nanos, srtt_ns: Nanos, size: f64, min: f64) {
        if now < self.shrinks_at {
            return;
        }
        self.shrinks_at = now + srtt_ns;
        self.size = size.max(min).min(self.size);
        self.threshold = self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_it_is_used_and_shrinks_once_a_round_trip() {
        let mut window = Window::new(1_000);
        assert_eq!(window.size(), 64);
        (0..100).for_each(|_| window.answered(10));
        assert_eq!(window.size(), 64, "nothing waits for it");
        (0..136).for_each(|_| window.answered(1_000));
        assert_eq!(window.size(), 200);
        window.lost(MS, MS);
        window.lost(MS + 1, MS);
        assert_eq!(window.size(), 100);
        (0..100).for_each(|_| window.answered(1_000));
        assert_eq!(window.size(), 100, "slowly now");
        (0..10_000).for_each(|_| window.answered(1_000));
        assert!((150..200).contains(&window.size()), "{window:?}");
        (2..20).for_each(|ms| window.lost(ms * MS, MS));
        assert_eq!(window.size(), WINDOW_MIN as usize);
        assert_eq!(Window::new(4).size(), 4);
    }

    #[test]
    fn a_way_that_has_become_longer_is_no_queue_for_long() {
        let mut window = Window::new(1_000);
        window.measured(MS, MS, MS);
        let long = 2 * DELAY_MAX_NS;
        let grow = |window: &mut Window, from_ms: u64, to_ms: u64| {
            for at_ms in (from_ms..to_ms).step_by(20) {
                (0..64).for_each(|_| window.answered(1_000));
                window.measured(at_ms * MS, long, long);
            }
        };
        grow(&mut window, 20, 9_000);
        assert!(window.size() < 200, "a queue: {window:?}");
        grow(&mut window, 9_000, 60_000);
        assert!(window.size() > 300, "{window:?}");
    }

    #[test]
    fn a_queue_shrinks_it_before_there_is_a_loss() {
        let mut window = Window::new(1_000);
        (0..500).for_each(|_| window.answered(1_000));
        window.measured(MS, MS, MS);
        assert_eq!(window.size(), 564);
        let long = 2 * DELAY_MAX_NS;
        window.measured(2 * MS, long, long);
        window.measured(3 * MS, long, long);
        assert_eq!(window.size(), 493);
        (1..100).for_each(|n| window.measured(n * 2 * long, long, long));
        assert_eq!(window.size(), 64);
    }
}
