//! The rounds of one process: each is created at most once, ever.

use crate::dataplane::round;

/// Creates rounds for both this process's leadership and its recoveries, so that the two never collide (schedules.md,
/// 2). The incarnation comes from stable storage and is never reused.
#[derive(Debug)]
pub struct RoundSource {
    node: u8,
    incarnation: u64,
    highest_seen: u64,
}

impl RoundSource {
    /// Rounds of `node` in this `incarnation`.
    pub fn new(node: u8, incarnation: u64) -> RoundSource {
        RoundSource {
            node,
            incarnation,
            highest_seen: 0,
        }
    }

    /// Notes a round seen anywhere; the next round created is higher.
    pub fn saw(&mut self, round: u64) {
        self.highest_seen = self.highest_seen.max(round);
    }

    /// Returns the highest round seen or created.
    pub fn highest_seen(&self) -> u64 {
        self.highest_seen
    }

    /// A round above all seen, never created before.
    ///
    /// # Panics
    /// After 2^32 counters: four billion leader changes. The process stops rather than wraps.
    pub fn make(&mut self) -> u64 {
        let made = round::next_above(self.highest_seen, self.incarnation, self.node)
            .unwrap_or_else(|overflow| panic!("{overflow}"));
        self.highest_seen = made;
        made
    }
}
