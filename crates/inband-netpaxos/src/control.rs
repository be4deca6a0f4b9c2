//! Messages between processes: the value of a CONTROL packet.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::quorum::{Generations, Vote};
use crate::request::{Identity, Request, Value};
use crate::wire::{emit, intact, Header, Type};

/// A message between processes. The header's `node` is its sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// [storage -> learners] These numbers of its minion are stored: bit b is number `first + b`, which is a vote in
    /// instance `base + first + b` (modulo 2^64).
    Stored {
        /// Incarnation of the minion.
        incarnation: u64,
        /// What to add to a number to get its instance.
        base: u64,
        /// Number of the lowest bit.
        first: u64,
        /// Bitmap of the stored numbers.
        mask: u64,
        /// The generations that the storage knows.
        generations: Generations,
    },
    /// [learner -> storage] Asks for the request with this number.
    Fetch {
        /// Incarnation of the minion.
        incarnation: u64,
        /// The minion's number.
        number: u64,
    },
    /// [storage -> learner] Answers Fetch.
    Number {
        /// Incarnation of the minion.
        incarnation: u64,
        /// The minion's number.
        number: u64,
        /// The request with that number.
        request: Arc<Request>,
    },
    /// [learner -> storages] Asks them to vote in no round below this one.
    Prepare {
        instance: u64,
        /// A round of this learner.
        round: u64,
    },
    /// [storage -> learner] Answers Prepare: promised.
    Promise {
        instance: u64,
        /// The round of the Prepare.
        round: u64,
        /// The storage's vote so far.
        vote: Vote,
        /// The generations that the storage knows.
        generations: Generations,
    },
    /// [storage -> learner] Answers Prepare or Accept: it has promised a higher round.
    Refused {
        instance: u64,
        /// The refused round.
        round: u64,
        /// The higher round.
        promised: u64,
    },
    /// [learner -> storages] Asks them to vote for a value.
    Accept {
        instance: u64,
        /// A round of this learner.
        round: u64,
        value: Value,
    },
    /// [storage -> learner] Answers Accept: voted.
    Accepted {
        instance: u64,
        /// The round of the Accept.
        round: u64,
        /// The generations that the storage knows.
        generations: Generations,
    },
    /// [learner -> learners and storages; any process that knows it -> the process that asked] This is decided.
    Decided { instance: u64, value: Value },
    /// [learner, storage -> learners] Asks what is decided in an instance.
    Learn { instance: u64 },
    /// [learner -> storages] Asks for their position.
    Ask {
        /// The question, if it is asked for reads.
        question: Option<Question>,
    },
    /// [storage -> learner] Answers Ask.
    Position {
        /// The highest instance in which it may have voted or promised.
        highest: u64,
        /// The generations that the storage knows.
        generations: Generations,
        /// The question of the Ask.
        question: Option<Question>,
    },
    /// [learner -> the process that asked to learn] All instances up to this one are decided, and forgotten here.
    Forgotten {
        /// The last such instance.
        floor: u64,
    },
    /// [learner -> storage] A request that its minion has numbered as well was decided in this instance.
    Align { instance: u64, request: Identity },
    /// [learner -> storages] The learner has all instances up to `position`, durably if it stores its log.
    Delivered {
        /// Incarnation of the learner.
        incarnation: u64,
        /// The last instance.
        position: u64,
    },
    /// [storage without memory -> storages] Tells them to count nothing of generations before this one; 0: only asks
    /// for generations.
    Fence {
        /// Identifies the sender's start.
        nonce: u64,
        /// The sender's new generation.
        generation: u16,
    },
    /// [storage -> storage without memory] Answers Fence.
    Fenced {
        /// The nonce of the Fence.
        nonce: u64,
        /// The generation of the Fence.
        generation: u16,
        /// The highest instance in which it may have voted or promised.
        highest: u64,
        /// All instances up to this one are decided, and forgotten here.
        floor: u64,
        /// The generations that the storage knows.
        generations: Generations,
        /// The highest incarnation that it has granted, by learner.
        incarnations: Vec<(u8, u32)>,
    },
    /// [learner -> storages] Asks for an incarnation that no other start of this learner has.
    Enrol {
        incarnation: u32,
        /// Identifies the start.
        nonce: u64,
    },
    /// [storage -> learner] Answers Enrol.
    Enrolled {
        /// The highest incarnation that it has granted to this learner.
        incarnation: u32,
        /// The start that has it.
        nonce: u64,
        /// The generations that the storage knows.
        generations: Generations,
    },
}

/// Identifies a question by learner, start and number: an answer to an earlier question, or to another learner, says
/// nothing about the present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The learner's number.
    pub learner: u8,
    /// The learner's incarnation.
    pub incarnation: u32,
    /// Number of the question.
    pub number: u64,
}

/// Recipient of a packet of a storage server or a learner.
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
    /// Returns the message as a packet of node `from`, still unsigned.
    pub fn packet(&self, from: u8) -> Vec<u8> {
        let value = postcard::to_stdvec(self).expect("it has no maps");
        let header = Header {
            node: from.into(),
            ..Header::of(Type::Control)
        };
        emit(&header, &value)
    }

    /// Returns the sender and the message of a packet.
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
