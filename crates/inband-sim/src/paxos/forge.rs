//! Forged packets for the mutations.

use inband_paxos::dataplane::wire::{self, flag, Header, Type};

use crate::paxos::layout::Layout;
use crate::paxos::mutation::Mutation;

/// How many instances too far a mutated TRIM goes.
const TRIM_TOO_FAR: u64 = 24;

pub(crate) fn packet(header: &Header, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::emit(header, value, &mut bytes);
    bytes
}

/// Returns the packet that is sent instead of this one; `None`: the packet itself.
pub(crate) fn instead(
    mutation: Mutation,
    layout: &Layout,
    header: &Header,
    value: &[u8],
) -> Option<(Header, Vec<u8>)> {
    let mut forged = *header;
    match (mutation, header.kind) {
        (Mutation::VotesIgnored, Type::Phase1B) if header.has(flag::VOTE) => {
            forged.flags &= !(flag::VOTE | flag::VALUE_MASK);
            forged.vround = 0;
            Some((forged, Vec::new()))
        }
        (Mutation::TrimTooFar, Type::Trim) if header.floor > layout.ring_slots as u64 => {
            forged.floor += TRIM_TOO_FAR;
            Some((forged, value.to_vec()))
        }
        (Mutation::ReadOfRecovering, Type::Position) if is_for_read(header) => {
            forged.flags &= !flag::RECOVERING;
            Some((forged, Vec::new()))
        }
        _ => None,
    }
}

/// Returns whether this is a read's question, or the answer to one.
fn is_for_read(header: &Header) -> bool {
    header.kind == Type::Position && header.client_seq != 0
}

/// Returns whether this is a read's question.
pub(crate) fn asks_for_read(header: &Header) -> bool {
    is_for_read(header) && !header.has(flag::ANSWER)
}

/// Returns whether this is the answer to a read's question.
pub(crate) fn answers_read(header: &Header) -> bool {
    is_for_read(header) && header.has(flag::ANSWER)
}

/// Returns a forged answer: the acceptor has voted up to `highest`.
pub(crate) fn read_answer(question: &Header, acceptor: u8, highest: u64) -> Header {
    let mut answer = *question;
    answer.flags |= flag::ANSWER;
    answer.node = u16::from(acceptor);
    answer.instance = highest;
    answer
}

/// Returns the answer as if answers did not name the client that asked.
pub(crate) fn as_if_asked_by(client_id: u64, answer: &[u8]) -> Vec<u8> {
    match wire::parse(answer) {
        Ok((header, value)) => packet(
            &Header {
                client_id,
                ..header
            },
            value,
        ),
        Err(_) => answer.to_vec(),
    }
}

/// Returns a packet to send in addition.
pub(crate) fn besides(mutation: Mutation, layout: &Layout, header: &Header) -> Option<Header> {
    let is_doubled = match mutation {
        Mutation::VoteCountedTwice => header.kind == Type::Phase2B,
        Mutation::ReadOfOneAcceptor => answers_read(header),
        _ => false,
    };
    if !is_doubled {
        return None;
    }
    let other = layout
        .acceptors
        .iter()
        .find(|a| u16::from(**a) != header.node)?;
    let mut forged = *header;
    forged.node = u16::from(*other);
    Some(forged)
}

/// Returns a forged answer to a question that was lost.
pub(crate) fn answer_to_lost(mutation: Option<Mutation>, lost: &Header, to: u8) -> Option<Header> {
    let concerned = mutation == Some(Mutation::SilenceIsNoVote)
        && lost.kind == Type::Phase1A
        && lost.has(flag::SLOT);
    concerned.then(|| {
        let mut answer = *lost;
        answer.kind = Type::Phase1B;
        answer.node = u16::from(to);
        answer
    })
}
