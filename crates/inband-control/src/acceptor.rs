//! What a reconfiguration needs from an acceptor's registers, and how the votes of several acceptors are merged.

use std::collections::BTreeMap;

use inband_ground::auth::Digest;
use serde::{Deserialize, Serialize};

use crate::configuration::Epoch;

/// The positions of an acceptor in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// Highest round promised for the partition.
    pub promise: u64,
    /// Trim floor.
    pub floor: u64,
    /// There is no vote above this instance.
    pub highest: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredVote {
    /// Instance voted for.
    pub instance: u64,
    /// Round promised for this instance only.
    pub promise: u64,
    /// Round of the vote, never 0.
    pub vround: u64,
    /// Digest sent with the value.
    pub digest: u64,
    pub client_id: u64,
    /// Sequence number within the session.
    pub client_seq: u64,
    /// Low-water mark of the session.
    pub client_low: u64,
    /// Flags stored with the value.
    pub flags: u16,
    pub value: Vec<u8>,
}

impl StoredVote {
    /// Returns whether the value is intact, that is, matches its digest.
    fn is_readable(&self, digest: Digest) -> bool {
        digest.of(&self.value) == self.digest
    }
}

/// Part of an acceptor's state for one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub position: Position,
    /// All votes from the requested instance up to `next`, in order.
    pub votes: Vec<StoredVote>,
    /// The next instance to request; `None`: this was the last piece.
    pub next: Option<u64>,
}

/// The epoch for which the votes in an acceptor's memory are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// The epoch that it entered with this state, or is about to enter.
    pub epoch: Epoch,
    /// The epoch in force before, whose votes were merged into the state; 0: it started empty.
    pub base: Epoch,
}

impl Holds {
    /// Returns whether this state contains everything that can have been chosen up to the end of epoch `opened`,
    /// provided that the acceptors with such a state and those that never voted in the epoch form a majority. Either
    /// the acceptor voted (or may vote) in that epoch, or it took over the votes of a majority sealed in it for a later
    /// epoch that was abandoned.
    pub fn serves(self, opened: Epoch) -> bool {
        self.epoch == opened || (self.base == opened && self.epoch > opened)
    }
}

/// Two acceptors voted for different values in the same round: a protocol rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("instance {instance}: two different values have votes of round {vround}; please report this with the logs of all hosts")]
pub struct Conflict {
    pub instance: u64,
    pub vround: u64,
}

/// A partition's state merged from several acceptors: what phase 1 would have learned from them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Merged {
    /// The highest promise, floor and instance of any acceptor.
    pub position: Position,
    /// For each instance, the vote of the highest round.
    pub votes: BTreeMap<u64, StoredVote>,
    digest: Digest,
}

impl Merged {
    /// Empty, for acceptors that use this digest.
    pub fn of(digest: Digest) -> Merged {
        Merged {
            digest,
            ..Merged::default()
        }
    }

    /// Merges a piece. Pieces may be added in any order and more than once, with the same result.
    pub fn add(&mut self, piece: &Piece) -> Result<(), Conflict> {
        let (own, other) = (&mut self.position, &piece.position);
        own.promise = own.promise.max(other.promise);
        own.floor = own.floor.max(other.floor);
        own.highest = own.highest.max(other.highest);
        for vote in &piece.votes {
            own.promise = own.promise.max(vote.promise).max(vote.vround);
            match self.votes.get(&vote.instance) {
                Some(held) if !replaces(vote, held, self.digest)? => {}
                _ => {
                    self.votes.insert(vote.instance, vote.clone());
                }
            }
        }
        let floor = self.position.floor;
        self.votes = self.votes.split_off(&floor);
        Ok(())
    }
}

/// The higher round wins; within one round, an intact copy wins.
fn replaces(vote: &StoredVote, held: &StoredVote, digest: Digest) -> Result<bool, Conflict> {
    if vote.vround != held.vround {
        return Ok(vote.vround > held.vround);
    }
    match (vote.is_readable(digest), held.is_readable(digest)) {
        (true, true) if vote.digest != held.digest => Err(Conflict {
            instance: vote.instance,
            vround: vote.vround,
        }),
        (readable, held_readable) => Ok(readable && !held_readable),
    }
}

/// Why an acceptor's state could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// A packet program holds a slot.
    #[error("partition {partition}: slot {slot} stays locked by a packet program; retrying")]
    Taken {
        partition: usize,
        /// Slot in the partition's ring.
        slot: usize,
    },
    /// Its slots have less room than those of others.
    #[error("instance {instance} has a value of {len} bytes, and this acceptor has room for {max}; it votes again once the instance is trimmed")]
    TooLong {
        instance: u64,
        /// Length of the value in bytes.
        len: usize,
        /// Longest value in bytes.
        max: usize,
    },
    /// The host is unreachable, or its disk failed.
    #[error("the acceptor's state cannot be reached: {0}; retrying")]
    Unreachable(String),
}

/// A host's acceptor, underneath its packet programs. All calls are idempotent.
///
/// With durable votes, a call returns only when its changes are durable, and [`AcceptorState::holds`] returns what was
/// recovered at the start.
pub trait AcceptorState {
    /// Returns the number of partitions.
    fn partitions(&self) -> usize;

    /// Returns the digest function for values.
    fn digest(&self) -> Digest;

    /// Returns the positions of a partition.
    fn position(&self, partition: usize) -> Position;

    /// Returns the epoch in the registers: the acceptor no longer votes in lower epochs.
    fn epoch(&self) -> Epoch;

    /// Returns whether it votes.
    fn is_voting(&self) -> bool;

    /// Returns the epoch for which its votes are complete, if any.
    fn holds(&self) -> Option<Holds>;

    /// Stops voting, and raises the epoch of all partitions. On return, all votes of lower epochs are stored and there
    /// will be no more.
    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError>;

    /// Returns a sealed acceptor's votes, starting at an instance; approximately the requested number of bytes.
    fn export(
        &self,
        partition: usize,
        from: u64,
        len_bytes_max: usize,
    ) -> Result<Piece, AcceptorError>;

    /// Replaces a partition of a sealed acceptor with `merged`.
    fn install(&mut self, partition: usize, merged: &Merged) -> Result<(), AcceptorError>;

    /// All partitions have been installed: record what the acceptor holds now.
    fn installed(&mut self, holds: Holds) -> Result<(), AcceptorError>;

    /// Enters an epoch empty; instances below `first` are in the replicas' state.
    fn start_fresh(&mut self, epoch: Epoch, first: &[u64]) -> Result<(), AcceptorError>;

    /// Starts voting in the epoch for which it was sealed.
    fn open(&mut self) -> Result<(), AcceptorError>;
}
