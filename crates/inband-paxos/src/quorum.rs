//! Counting answers of acceptors in user space.

use std::collections::BTreeMap;

/// A set of acceptors, and whether it is a majority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes(u64);

impl Votes {
    /// Count `node` once; nodes that are no acceptors do not count.
    pub fn add(&mut self, acceptors: &[u8], node: u16) {
        if let Some(i) = acceptors.iter().position(|a| u16::from(*a) == node) {
            self.0 |= 1 << i;
        }
    }

    /// Nobody was counted yet?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// So many that the others are no majority?
    pub fn blocks(self, acceptors: &[u8]) -> bool {
        (acceptors.len() - self.0.count_ones() as usize) * 2 <= acceptors.len()
    }

    /// More than half of the acceptors?
    pub fn is_majority(self, acceptors: &[u8]) -> bool {
        self.0.count_ones() as usize * 2 > acceptors.len()
    }
}

/// A vote as an acceptor showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote {
    /// Round it was cast in.
    pub vround: u64,
    /// Flags stored with the value.
    pub value_flags: u16,
    /// Session, or nonce.
    pub client_id: u64,
    /// Sequence within the session.
    pub client_seq: u64,
    /// Low-water mark.
    pub client_low: u64,
    /// Digest of the value.
    pub digest: u64,
    /// The value.
    pub value: Vec<u8>,
}

/// The answers to a PHASE1A for one instance.
#[derive(Debug, Clone, Default)]
pub struct SlotPromises {
    voters: Votes,
    best: Option<Vote>,
}

impl SlotPromises {
    /// Count an answer. "No vote" is an answer; no answer is not (schedules.md, 3).
    pub fn add(&mut self, acceptors: &[u8], node: u16, vote: Option<Vote>) {
        self.voters.add(acceptors, node);
        if let Some(vote) = vote {
            if self
                .best
                .as_ref()
                .is_none_or(|best| vote.vround > best.vround)
            {
                self.best = Some(vote);
            }
        }
    }

    /// A majority has answered.
    pub fn is_majority(&self, acceptors: &[u8]) -> bool {
        self.voters.is_majority(acceptors)
    }

    /// The vote of the highest round, if anyone voted.
    pub fn best(&self) -> Option<&Vote> {
        self.best.as_ref()
    }
}

/// Votes for one instance, counted by round: a majority in one round decides.
#[derive(Debug, Clone, Default)]
pub struct RoundVotes(BTreeMap<u64, Votes>);

impl RoundVotes {
    /// Count a vote; true if its round now has a majority.
    pub fn add(&mut self, acceptors: &[u8], round: u64, node: u16) -> bool {
        let votes = self.0.entry(round).or_default();
        votes.add(acceptors, node);
        votes.is_majority(acceptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_counts_once_and_a_stranger_never() {
        let acceptors = [1, 2, 3];
        let mut votes = Votes::default();
        votes.add(&acceptors, 1);
        votes.add(&acceptors, 1);
        votes.add(&acceptors, 9);
        assert!(!votes.is_majority(&acceptors));
        votes.add(&acceptors, 3);
        assert!(votes.is_majority(&acceptors));
    }

    #[test]
    fn rounds_are_not_added_up() {
        let mut votes = RoundVotes::default();
        assert!(!votes.add(&[1, 2, 3], 7, 1));
        assert!(!votes.add(&[1, 2, 3], 8, 2));
        assert!(votes.add(&[1, 2, 3], 8, 1));
    }
}
