//! How many requests may be in flight: one more after each window of answers, half after a loss (as in TCP). A link's
//! full queue loses copies, and each lost copy costs a recovery.

use super::OUTSTANDING_MAX;

const FIRST: f64 = 64.0;
const MIN: f64 = 8.0;

/// A congestion window. See the [module](self).
#[derive(Debug)]
pub struct Window {
    size: f64,
    /// Losses of requests sent before this time belong to the last reduction, and do not shrink the window again.
    shrunk_at: u64,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            size: FIRST,
            shrunk_at: 0,
        }
    }
}

impl Window {
    /// Returns how many requests may be in flight.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Records an answer in time.
    pub fn answered(&mut self) {
        self.size = (self.size + 1.0 / self.size).min(OUTSTANDING_MAX as f64);
    }

    /// Records that the answer to a request sent at `sent_at` is overdue.
    pub fn lost(&mut self, now: u64, sent_at: u64) {
        if sent_at >= self.shrunk_at {
            self.size = (self.size / 2.0).max(MIN);
            self.shrunk_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_halves_once_for_what_was_lost_together() {
        let mut window = Window::default();
        window.lost(100, 50);
        window.lost(101, 60);
        assert_eq!(window.size(), 32);
        // This one was sent after the reduction.
        window.lost(200, 150);
        assert_eq!(window.size(), 16);
        (0..10).for_each(|n| window.lost(1000 * (n + 1), 1000 * n + 500));
        assert_eq!(window.size(), MIN as usize);
    }

    #[test]
    fn it_grows_by_one_a_window_up_to_its_limit() {
        let mut window = Window::default();
        (0..64).for_each(|_| window.answered());
        assert!((64..=65).contains(&window.size()));
        (0..10_000_000).for_each(|_| window.answered());
        assert_eq!(window.size(), OUTSTANDING_MAX);
    }
}
