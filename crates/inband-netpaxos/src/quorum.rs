//! How many votes decide, and what a recovery may choose (docs/netpaxos.md, "Why it is safe").

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::c;
use crate::request::{Request, Value};

/// Maximum number of minions.
pub const MINIONS_MAX: usize = c::IB_NETPAXOS_MINIONS_MAX as usize;
/// How many minions may fail, depending on the cluster's size.
pub const FAILURES: RangeInclusive<u8> = 1..=2;

/// The sizes of a cluster that survives the failure of this many minions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// `f`.
    pub failures: u8,
}

impl Sizes {
    /// Returns the number of minions and of storage servers, `3f + 1`; both are numbered from 1.
    pub fn minions(self) -> u8 {
        3 * self.failures + 1
    }

    /// Returns the size of a fast and of a classic quorum, `2f + 1`. Two fast quorums and a classic one have a minion
    /// in common: `3(2f + 1) - 2(3f + 1) = 1`.
    pub fn quorum(self) -> usize {
        2 * usize::from(self.failures) + 1
    }

    /// Returns how many votes any classic quorum must contain for a value that a whole fast quorum voted for: `2(2f +
    /// 1) - (3f + 1)`.
    pub fn of_a_quorum(self) -> usize {
        usize::from(self.failures) + 1
    }
}

/// The known generation of each minion's storage server. A generation counts how often the server has started without
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Generations([u16; MINIONS_MAX]);

impl Generations {
    /// Returns the generation of this minion's storage.
    pub fn of(&self, minion: u8) -> u16 {
        self.0[usize::from(minion) - 1]
    }

    /// Records a generation. Returns whether it is new.
    pub fn raise(&mut self, minion: u8, generation: u16) -> bool {
        let known = &mut self.0[usize::from(minion) - 1];
        let is_new = *known < generation;
        *known = generation.max(*known);
        is_new
    }

    /// Records all that another process knows. Returns whether any of it is new.
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
    /// It has not voted, and will not vote in a round below the one that it promised.
    #[default]
    None,
    /// It has voted in the fast round.
    Fast(Arc<Request>),
    /// It has voted in a round of recovery.
    Classic(u64, Value),
    /// It knows what is decided.
    Decided(Value),
}

/// Returns what a recovery must propose, given the votes of exactly a classic quorum.
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
    // Only a value with `of_a_quorum` votes can have been chosen; there is at most one, and it has the most votes. If
    // there is none, any value is right.
    let most = fast.chunk_by(|a, b| a == b).max_by_key(|same| same.len());
    most.map(|same| Arc::clone(same[0]))
}
