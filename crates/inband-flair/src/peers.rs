//! What a leader knows of the replicas of its set: which entries they hold, which are alive, and how busy they are.

use crate::limits::{AHEAD_ENTRIES_MAX, REPLICAS_MAX};
use crate::timing::Nanos;

/// The weight of a replica with average load.
const WEIGHT_EVEN: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peers {
    /// Up to which index each replica's log is known to match the leader's; 0 if unknown.
    pub matched: [u64; REPLICAS_MAX],
    /// Bitmap of the replicas heard from recently, including the leader.
    pub replicas: u8,
    /// Each replica's share of the reads.
    pub weights: [u8; REPLICAS_MAX],
}

fn bitmap(has: impl Fn(usize) -> bool) -> u8 {
    let bit = |replica| u8::from(has(replica)) << replica;
    (0..REPLICAS_MAX).map(bit).sum()
}

impl Peers {
    /// Bitmap of the replicas whose logs hold this entry.
    pub fn holding(&self, index: u64) -> u8 {
        bitmap(|replica| self.matched[replica] >= index)
    }

    /// Returns the same, plus replicas that should receive it soon because they lack only a few entries.
    pub fn about_to_hold(&self, index: u64) -> u8 {
        bitmap(|replica| {
            let matched = self.matched[replica];
            matched > 0 && matched + AHEAD_ENTRIES_MAX >= index
        })
    }
}

/// Queue lengths reported by replicas, averaged until the weights are next updated.
#[derive(Debug, Clone, Default)]
pub struct Load {
    sums: [u64; REPLICAS_MAX],
    reports: [u64; REPLICAS_MAX],
    weights: [u8; REPLICAS_MAX],
    set_at: Nanos,
}

impl Load {
    /// Adds a report: the replica has this many requests queued.
    pub fn report(&mut self, replica: usize, queue_len: u32) {
        self.sums[replica] += u64::from(queue_len);
        self.reports[replica] += 1;
    }

    /// Returns the weights, updated if they are older than `every_ns`.
    pub fn weights(&mut self, now: Nanos, every_ns: Nanos) -> [u8; REPLICAS_MAX] {
        if now >= self.set_at + every_ns {
            self.set_at = now;
            self.set();
        }
        self.weights
    }

    /// A replica with a longer queue than average gets a smaller weight. A replica without reports gets the average.
    fn set(&mut self) {
        let reported: Vec<usize> = (0..REPLICAS_MAX).filter(|r| self.reports[*r] > 0).collect();
        // Add one, so that an empty queue does not cause a division by zero.
        let length = |load: &Load, r: usize| (load.sums[r] * 16 / load.reports[r]) + 16;
        let total: u64 = reported.iter().map(|r| length(self, *r)).sum();
        let mean = total / (reported.len() as u64).max(1);
        let mut weights = [WEIGHT_EVEN as u8; REPLICAS_MAX];
        for replica in reported {
            let weight = WEIGHT_EVEN * mean / length(self, replica);
            weights[replica] = weight.clamp(1, u64::from(u8::MAX)) as u8;
        }
        self.weights = weights;
        (self.sums, self.reports) = ([0; REPLICAS_MAX], [0; REPLICAS_MAX]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_an_entry() {
        let peers = Peers {
            matched: [9, 7, 0, 8, 0, 0, 0, 0],
            ..Peers::default()
        };
        assert_eq!(peers.holding(8), 0b1001);
        assert_eq!(peers.holding(7), 0b1011);
        assert_eq!(peers.holding(10), 0);
    }

    #[test]
    fn who_is_about_to_hold_an_entry() {
        let peers = Peers {
            matched: [500, 490, 500 - AHEAD_ENTRIES_MAX - 1, 0, 0, 0, 0, 0],
            ..Peers::default()
        };
        assert_eq!(
            peers.about_to_hold(500),
            0b0011,
            "2 is far behind, 3 has nothing"
        );
        assert_eq!(peers.about_to_hold(499), 0b0111);
        assert_eq!(
            peers.about_to_hold(1),
            0b0111,
            "a log that is gone holds nothing"
        );
    }

    #[test]
    fn who_is_busy_gets_less() {
        let mut load = Load::default();
        assert_eq!(load.weights(1000, 1000), [64; REPLICAS_MAX], "nobody said");
        for _ in 0..10 {
            load.report(0, 10);
            load.report(1, 40);
            load.report(2, 10);
        }
        assert_eq!(load.weights(1999, 1000), [64; REPLICAS_MAX], "not yet");
        let weights = load.weights(2000, 1000);
        assert!(
            weights[0] == weights[2] && weights[0] > 3 * weights[1],
            "{weights:?}"
        );
        assert!(weights[1] > 0 && weights[3] == 64);
        assert_eq!(load.weights(3000, 1000), [64; REPLICAS_MAX], "no news");
    }
}
