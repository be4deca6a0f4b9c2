//! How many requests are under way at a time: one more after each window that was answered, half after a loss (as TCP does it).
//! A link's queue that is full loses copies, and then each of them costs a recovery.

use super::OUTSTANDING_MAX;

const FIRST: f64 = 64.0;
const MIN: f64 = 8.0;

/// See the module.
#[derive(Debug)]
pub struct Window {
    size: f64,
    /// Requests that were sent before this are lost together with the one for which it shrank.
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
    /// So many may be under way.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// A request was answered in time.
    pub fn answered(&mut self) {
        self.size = (self.size + 1.0 / self.size).min(OUTSTANDING_MAX as f64);
    }

    /// The answer to a request that was sent then takes too long.
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
        // Sent after it was made smaller.
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
