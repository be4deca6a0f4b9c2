//! What processes tell each other: the value of a CONTROL packet.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::quorum::{Generations, Vote};
use crate::request::{Identity, Request, Value};
use crate::wire::{emit, intact, Header, Type};

/// A message between processes. Who sent it is the header's `node`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// [storage -> learners] These numbers of its minion are stored: bit b is number `first + b`, a vote in instance
    /// `base + first + b` (modulo 2^64).
    Stored {
        /// The minion's.
        incarnation: u64,
        /// Of the instances.
        base: u64,
        /// Number of the lowest bit.
        first: u64,
        /// Which are stored.
        mask: u64,
        /// What the storage knows.
        generations: Generations,
    },
    /// [learner -> storage] What is the request with this number?
    Fetch {
        /// The minion's.
        incarnation: u64,
        /// The minion's.
        number: u64,
    },
    /// [storage -> learner] This is.
    Number {
        /// The minion's.
        incarnation: u64,
        /// The minion's.
        number: u64,
        /// What it gave the number.
        request: Arc<Request>,
    },
    /// [learner -> storages] Promise to vote in no round below this one.
    Prepare {
        /// Where.
        instance: u64,
        /// Of this learner.
        round: u64,
    },
    /// [storage -> learner] Promised.
    Promise {
        /// Where.
        instance: u64,
        /// As asked.
        round: u64,
        /// What it has voted for.
        vote: Vote,
        /// What the storage knows.
        generations: Generations,
    },
    /// [storage -> learner] It has promised a higher round.
    Refused {
        /// Where.
        instance: u64,
        /// The round that is too low.
        round: u64,
        /// The higher one.
        promised: u64,
    },
    /// [learner -> storages] Vote for this.
    Accept {
        /// Where.
        instance: u64,
        /// Of this learner.
        round: u64,
        /// For what.
        value: Value,
    },
    /// [storage -> learner] Voted.
    Accepted {
        /// Where.
        instance: u64,
        /// As asked.
        round: u64,
        /// What the storage knows.
        generations: Generations,
    },
    /// [learner -> learners, storages; whoever knows -> its asker] This is decided.
    Decided {
        /// Where.
        instance: u64,
        /// What.
        value: Value,
    },
    /// [learner, storage -> learners] What is decided there?
    Learn {
        /// Where.
        instance: u64,
    },
    /// [learner -> storages] How far are you?
    Ask,
    /// [storage -> learner] So far.
    Position {
        /// The highest instance in which it may have voted or promised.
        highest: u64,
        /// What the storage knows.
        generations: Generations,
    },
    /// [learner -> storage] A request that its minion has numbered, too, was decided in this instance.
    Align {
        /// Where.
        instance: u64,
        /// Which.
        request: Identity,
    },
    /// [learner -> storages] It has, durably if it stores durably, all instances up to `position`.
    Delivered {
        /// Of this start of the learner.
        incarnation: u64,
        /// The last instance.
        position: u64,
    },
    /// [storage without memory -> storages] Count nothing of generations before this one; 0: only asks.
    Fence {
        /// Of this start.
        nonce: u64,
        /// The asker's new generation.
        generation: u16,
    },
    /// [storage -> storage without memory] So it is.
    Fenced {
        /// As asked.
        nonce: u64,
        /// As asked.
        generation: u16,
        /// The highest instance in which it may have voted or promised.
        highest: u64,
        /// It has forgotten all instances up to this one, which are decided.
        floor: u64,
        /// What it knows.
        generations: Generations,
    },
}

/// To whom a packet of a storage server or a learner goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// All other storage servers.
    Storages,
    /// All other learners.
    Learners,
    /// A node by its id.
    Node(u8),
    /// A proposer, by its `reply_to`.
    Proposer(u64),
}

impl Control {
    /// The packet of node `from`, to be signed.
    pub fn packet(&self, from: u8) -> Vec<u8> {
        let value = postcard::to_stdvec(self).expect("it has no maps");
        let header = Header {
            node: from.into(),
            ..Header::of(Type::Control)
        };
        emit(&header, &value)
    }

    /// The message of a packet, and the node that sent it.
    pub fn of(packet: &[u8]) -> Option<(u8, Control)> {
        let (header, value) = intact(packet)?;
        if header.kind != Type::Control {
            return None;
        }
        Some((header.node as u8, postcard::from_bytes(value).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use inband_ground::wire::PACKET_LEN_MAX_BYTES;

    use super::*;
    use crate::quorum::MINIONS_MAX;
    use crate::VALUE_LEN_MAX_BYTES;

    #[test]
    fn the_longest_message_fits_a_packet() {
        let request = Arc::new(Request {
            client: u64::MAX,
            number: u64::MAX,
            low: u64::MAX,
            opens: true,
            reply_to: u64::MAX,
            value: vec![255; VALUE_LEN_MAX_BYTES],
        });
        let mut generations = Generations::default();
        (1..=MINIONS_MAX as u8).for_each(|minion| {
            generations.raise(minion, u16::MAX);
        });
        let promise = Control::Promise {
            instance: u64::MAX,
            round: u64::MAX,
            vote: Vote::Classic(u64::MAX, Some(request)),
            generations,
        };
        let packet = promise.packet(254);
        assert!(packet.len() <= PACKET_LEN_MAX_BYTES, "{}", packet.len());
        assert_eq!(Control::of(&packet), Some((254, promise)));
    }
}
