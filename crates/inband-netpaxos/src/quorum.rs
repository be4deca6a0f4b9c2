//! How many votes decide, and what a recovery may choose (docs/netpaxos.md, "Why it is safe").

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::c;
use crate::request::{Request, Value};

/// Most minions.
pub const MINIONS_MAX: usize = c::IB_NETPAXOS_MINIONS_MAX as usize;
/// How many minions may fail.
pub const FAILURES: RangeInclusive<u8> = 1..=2;

/// The sizes of a cluster that survives the failure of so many minions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// `f`.
    pub failures: u8,
}

impl Sizes {
    /// `3f + 1`: they have numbers 1 to this, and so have their storage servers.
    pub fn minions(self) -> u8 {
        3 * self.failures + 1
    }

    /// `2f + 1`, of both kinds. Two fast quorums and a classic one have a minion in common: `3(2f + 1) - 2(3f + 1) = 1`.
    pub fn quorum(self) -> usize {
        2 * usize::from(self.failures) + 1
    }

    /// If all of a fast quorum voted for a value, so many of any classic quorum did: `2(2f + 1) - (3f + 1)`.
    pub fn of_a_quorum(self) -> usize {
        usize::from(self.failures) + 1
    }
}

/// A storage server's generation: how often it has begun without memory. By minion, what somebody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Generations([u16; MINIONS_MAX]);

impl Generations {
    /// Of this minion's storage.
    pub fn of(&self, minion: u8) -> u16 {
        self.0[usize::from(minion) - 1]
    }

    /// Learn of one. True if it is new.
    pub fn raise(&mut self, minion: u8, generation: u16) -> bool {
        let known = &mut self.0[usize::from(minion) - 1];
        let is_new = *known < generation;
        *known = generation.max(*known);
        is_new
    }

    /// Learn all that another knows. True if something is new.
    pub fn merge(&mut self, other: &Generations) -> bool {
        let mut is_new = false;
        for (at, generation) in other.0.iter().enumerate() {
            is_new |= self.raise(at as u8 + 1, *generation);
        }
        is_new
    }
}

/// A storage server's vote in an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Vote {
    /// It has not voted, and will not in a round below the one that it promised.
    #[default]
    None,
    /// In the fast round.
    Fast(Arc<Request>),
    /// In a round of recovery.
    Classic(u64, Value),
    /// It knows what is decided.
    Decided(Value),
}

/// What a recovery proposes, given the votes of exactly a classic quorum.
pub fn choose(sizes: Sizes, votes: &[&Vote]) -> Value {
    assert_eq!(votes.len(), sizes.quorum(), "a classic quorum");
    let decided = votes.iter().find_map(|vote| match vote {
        Vote::Decided(value) => Some(value.clone()),
        _ => None,
    });
    if let Some(value) = decided {
        return value;
    }
    let classic = votes.iter().filter_map(|vote| match vote {
        Vote::Classic(round, value) => Some((round, value)),
        _ => None,
    });
    if let Some((_, value)) = classic.max_by_key(|(round, _)| **round) {
        return value.clone();
    }
    let mut fast: Vec<&Arc<Request>> = votes
        .iter()
        .filter_map(|vote| match vote {
            Vote::Fast(request) => Some(request),
            _ => None,
        })
        .collect();
    fast.sort();
    // One with `of_a_quorum` votes may be chosen; there is at most one, and it has the most. Otherwise any is right.
    let most = fast.chunk_by(|a, b| a == b).max_by_key(|same| same.len());
    most.map(|same| Arc::clone(same[0]))
}
