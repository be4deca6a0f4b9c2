//! Counting acceptors' answers in user space.

use std::collections::BTreeMap;

/// A set of acceptors, and whether it is a majority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes(u64);

impl Votes {
    /// Counts `node` once; nodes that are not acceptors do not count.
    pub fn add(&mut self, acceptors: &[u8], node: u16) {
        if let Some(i) = acceptors.iter().position(|a| u16::from(*a) == node) {
            self.0 |= 1 << i;
        }
    }

    /// Returns whether no node has been counted.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the remaining acceptors cannot form a majority.
    pub fn blocks(self, acceptors: &[u8]) -> bool {
        (acceptors.len() - self.0.count_ones() as usize) * 2 <= acceptors.len()
    }

    /// Returns whether this is more than half of the acceptors.
    pub fn is_majority(self, acceptors: &[u8]) -> bool {
        self.0.count_ones() as usize * 2 > acceptors.len()
    }
}

/// A vote as reported by an acceptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote {
    /// Round in which it was cast.
    pub vround: u64,
    /// Flags stored with the value.
    pub value_flags: u16,
    /// Session, or nonce.
    pub client_id: u64,
    /// Sequence number within the session.
    pub client_seq: u64,
    /// Low-water mark.
    pub client_low: u64,
    pub digest: u64,
    pub value: Vec<u8>,
}

/// The answers to a PHASE1A for one instance.
#[derive(Debug, Clone, Default)]
pub struct SlotPromises {
    voters: Votes,
    best: Option<Vote>,
}

impl SlotPromises {
    /// Counts an answer. "No vote" is an answer; silence is not (schedules.md, 3).
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

    /// Returns whether a majority has answered.
    pub fn is_majority(&self, acceptors: &[u8]) -> bool {
        self.voters.is_majority(acceptors)
    }

    /// Returns the vote of the highest round, if there is any.
    pub fn best(&self) -> Option<&Vote> {
        self.best.as_ref()
    }
}

/// Votes for one instance, counted by round: a majority in one round decides.
#[derive(Debug, Clone, Default)]
pub struct RoundVotes(BTreeMap<u64, Votes>);

impl RoundVotes {
    /// Counts a vote; true if its round now has a majority.
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
