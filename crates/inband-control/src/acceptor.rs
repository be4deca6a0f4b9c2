//! What a reconfiguration needs of an acceptor's registers, and the merging of several acceptors'
//! votes.

use std::collections::BTreeMap;

use inband_ground::auth::Digest;
use serde::{Deserialize, Serialize};

use crate::configuration::Epoch;

/// An acceptor's state of one partition in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// Highest round promised for the partition.
    pub promise: u64,
    /// Trim floor.
    pub floor: u64,
    /// No vote lies above this instance.
    pub highest: u64,
}

/// A vote of an acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredVote {
    /// Instance voted for.
    pub instance: u64,
    /// Round promised for this instance alone.
    pub promise: u64,
    /// Round of the vote, never 0.
    pub vround: u64,
    /// Digest that came with the value.
    pub digest: u64,
    /// Session.
    pub client_id: u64,
    /// Sequence within the session.
    pub client_seq: u64,
    /// Low-water mark.
    pub client_low: u64,
    /// Flags stored with the value.
    pub flags: u16,
    /// The value.
    pub value: Vec<u8>,
}

impl StoredVote {
    /// Is the value the one that was proposed? A damaged one can be told by its digest.
    fn is_readable(&self, digest: Digest) -> bool {
        digest.of(&self.value) == self.digest
    }
}

/// A part of an acceptor's state of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Where the partition stands.
    pub position: Position,
    /// Every vote from the instance asked for up to `next`, in order.
    pub votes: Vec<StoredVote>,
    /// The instance to ask for next; `None`: that was all.
    pub next: Option<u64>,
}

/// For which epoch the votes in an acceptor's memory are complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// The epoch it began with this state, or is about to.
    pub epoch: Epoch,
    /// The epoch in force before, whose votes were merged into it; 0: it began empty.
    pub base: Epoch,
}

impl Holds {
    /// Does this hold whatever can have been chosen up to the end of epoch `opened`, provided that
    /// the acceptors holding it and those that never voted in it make a majority? Either it voted
    /// (or may vote) in that epoch, or it took over the votes of a majority sealed in it, for an epoch
    /// that was given up since.
    pub fn serves(self, opened: Epoch) -> bool {
        self.epoch == opened || (self.base == opened && self.epoch > opened)
    }
}

/// Two acceptors show different values voted for in one round: a rule of the protocol is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("instance {instance}: two different values have votes of round {vround}; please report this with the logs of all hosts")]
pub struct Conflict {
    /// The instance.
    pub instance: u64,
    /// The round.
    pub vround: u64,
}

/// The state of a partition merged from several acceptors: what phase 1 would have learnt of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Merged {
    /// Highest promise, floor and instance of any.
    pub position: Position,
    /// For each instance the vote of the highest round.
    pub votes: BTreeMap<u64, StoredVote>,
    digest: Digest,
}

impl Merged {
    /// Nothing yet, of acceptors whose values are digested like this.
    pub fn of(digest: Digest) -> Merged {
        Merged {
            digest,
            ..Merged::default()
        }
    }

    /// Take in a piece. In any order, any number of times: the result is the same.
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

/// The higher round counts; of one round, the copy that can be read.
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
    /// A packet program keeps a slot.
    #[error(
        "partition {partition}: slot {slot} stays taken by a packet program; it is tried again"
    )]
    Taken {
        /// Partition.
        partition: usize,
        /// Slot of its ring.
        slot: usize,
    },
    /// The host is gone, or its disk failed.
    #[error("the acceptor's state cannot be reached: {0}; it is tried again")]
    Unreachable(String),
}

/// The acceptor of a host, under its packet programs. All calls may be repeated.
///
/// Where votes are durable, a call returns only when what it changed is durable too, and
/// [`AcceptorState::holds`] is what was found at the start.
pub trait AcceptorState {
    /// How many partitions there are.
    fn partitions(&self) -> usize;

    /// How its values are digested.
    fn digest(&self) -> Digest;

    /// Where a partition stands.
    fn position(&self, partition: usize) -> Position;

    /// The epoch that the registers carry: no vote of a lower one is cast any more.
    fn epoch(&self) -> Epoch;

    /// Does it vote?
    fn is_voting(&self) -> bool;

    /// For which epoch the votes held are complete; `None`: for none.
    fn holds(&self) -> Option<Holds>;

    /// Stop voting, and raise the epoch of all partitions. On return every vote of a lower epoch is
    /// stored and no further one will be.
    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError>;

    /// The votes of a sealed acceptor from an instance on, of about so many bytes.
    fn export(
        &self,
        partition: usize,
        from: u64,
        len_bytes_max: usize,
    ) -> Result<Piece, AcceptorError>;

    /// Make a sealed acceptor's partition equal to `merged`.
    fn install(&mut self, partition: usize, merged: &Merged) -> Result<(), AcceptorError>;

    /// All partitions are installed: this is what the acceptor holds now.
    fn installed(&mut self, holds: Holds) -> Result<(), AcceptorError>;

    /// Begin an epoch with nothing; instances below the first are in the replicas' state.
    fn start_fresh(&mut self, epoch: Epoch, first: &[u64]) -> Result<(), AcceptorError>;

    /// Vote in the epoch that it was sealed for.
    fn open(&mut self) -> Result<(), AcceptorError>;
}
