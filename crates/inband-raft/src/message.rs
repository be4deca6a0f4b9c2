//! This crate's encoding of Raft's messages and entries, for the network and the disk.
//!
//! The library's own encoding is protobuf 2, whose parser can be made to overflow its stack by crafted input
//! (RUSTSEC-2024-0437); no external input is passed to it.

use bytes::Bytes;
use raft::eraftpb as pb;
use serde::{Deserialize, Serialize};

/// Approximate size of an entry besides its data and context.
const ENTRY_SIZE_BYTES: u64 = 32;

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub kind: Kind,
    pub term: u64,
    pub index: u64,
    pub data: Bytes,
    pub context: Bytes,
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Command,
    Voters,
}

/// The voters and the learners, which do not vote.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Peers {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
}

/// The state after an entry, in place of all entries up to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub index: u64,
    pub term: u64,
    pub peers: Peers,
    /// In a message: part of the state.
    pub data: Bytes,
}

/// A command in a log, or in flight to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposed<'a> {
    /// Its index in the log.
    pub index: u64,
    /// The term in which it was proposed.
    pub term: u64,
    /// The command as proposed.
    pub command: &'a [u8],
}

/// A message between two peers. Opaque: one [`super::RaftNode`] creates it for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftMessage {
    kind: u8,
    /// Raft id of the receiver.
    pub to: u64,
    /// Raft id of the sender.
    pub from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    entries: Vec<Entry>,
    commit: u64,
    commit_term: u64,
    snapshot: Option<Snapshot>,
    /// For parts of a snapshot and their answers: the transfer that they belong to. A leader never reuses a number in
    /// its term.
    transfer: u64,
    /// For a part of a snapshot: its number. For an acknowledgement: the number of the next part.
    part: u64,
    is_last_part: bool,
    request_snapshot: u64,
    reject: bool,
    reject_hint: u64,
    context: Vec<u8>,
    priority: i64,
}

/// Terms and indexes are below this: no log gets that far. Higher ones would overflow.
const NUMBER_END: u64 = 1 << 62;

/// Kinds of messages by their number on the wire.
const KINDS: [pb::MessageType; 15] = [
    pb::MessageType::MsgPropose,
    pb::MessageType::MsgAppend,
    pb::MessageType::MsgAppendResponse,
    pb::MessageType::MsgRequestVote,
    pb::MessageType::MsgRequestVoteResponse,
    pb::MessageType::MsgSnapshot,
    pb::MessageType::MsgHeartbeat,
    pb::MessageType::MsgHeartbeatResponse,
    pb::MessageType::MsgSnapStatus,
    pb::MessageType::MsgTransferLeader,
    pb::MessageType::MsgTimeoutNow,
    pb::MessageType::MsgReadIndex,
    pb::MessageType::MsgReadIndexResp,
    pb::MessageType::MsgRequestPreVote,
    pb::MessageType::MsgRequestPreVoteResponse,
];

/// Parts of a snapshot were accepted or refused. The library does not know about parts.
const PARTS_TAKEN: u8 = KINDS.len() as u8;

impl Entry {
    pub fn of(entry: &pb::Entry) -> Entry {
        Entry {
            kind: match entry.get_entry_type() {
                pb::EntryType::EntryNormal => Kind::Command,
                _ => Kind::Voters,
            },
            term: entry.term,
            index: entry.index,
            data: entry.data.clone(),
            context: entry.context.clone(),
        }
    }

    /// Returns the command, if the entry is one.
    pub fn command(&self) -> Option<Proposed<'_>> {
        (self.kind == Kind::Command).then_some(Proposed {
            index: self.index,
            term: self.term,
            command: &self.data,
        })
    }

    /// Returns its size where messages are limited.
    pub fn size_bytes(&self) -> u64 {
        ENTRY_SIZE_BYTES + (self.data.len() + self.context.len()) as u64
    }

    pub fn into_raft(self) -> pb::Entry {
        let mut entry = pb::Entry::default();
        entry.set_entry_type(match self.kind {
            Kind::Command => pb::EntryType::EntryNormal,
            Kind::Voters => pb::EntryType::EntryConfChange,
        });
        entry.term = self.term;
        entry.index = self.index;
        entry.data = self.data;
        entry.context = self.context;
        entry
    }
}

impl Peers {
    pub fn of(state: &pb::ConfState) -> Peers {
        Peers {
            voters: state.voters.clone(),
            learners: state.learners.clone(),
        }
    }

    pub fn into_raft(self) -> pb::ConfState {
        pb::ConfState {
            voters: self.voters,
            learners: self.learners,
            ..pb::ConfState::default()
        }
    }
}

impl Snapshot {
    /// Returns whether it can be installed, provided that its parts can.
    pub fn is_sound(&self) -> bool {
        let Peers { voters, learners } = &self.peers;
        let mut ids = [&voters[..], &learners[..]].concat();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        (1..NUMBER_END).contains(&self.index)
            && (1..NUMBER_END).contains(&self.term)
            && !voters.is_empty()
            && ids.len() == count
            && ids[0] != 0
    }

    pub fn without_data(&self) -> Snapshot {
        Snapshot {
            data: Bytes::new(),
            ..self.clone()
        }
    }

    pub fn of(snapshot: &pb::Snapshot) -> Snapshot {
        let metadata = snapshot.get_metadata();
        Snapshot {
            index: metadata.index,
            term: metadata.term,
            peers: Peers::of(metadata.get_conf_state()),
            data: Bytes::new(),
        }
    }

    pub fn into_raft(self) -> pb::Snapshot {
        let mut snapshot = pb::Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.index;
        metadata.term = self.term;
        metadata.set_conf_state(self.peers.into_raft());
        snapshot
    }
}

impl RaftMessage {
    /// Returns the commands in the message.
    pub fn proposed(&self) -> impl Iterator<Item = Proposed<'_>> {
        self.entries.iter().filter_map(Entry::command)
    }

    /// Returns the same as pairs of index and command.
    pub fn commands(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.proposed().map(|p| (p.index, p.command))
    }

    /// Returns the last entry of the snapshot in the message, if there is one.
    pub fn snapshot_index(&self) -> Option<u64> {
        self.snapshot.as_ref().map(|snapshot| snapshot.index)
    }

    pub(crate) fn of(message: &pb::Message) -> Option<RaftMessage> {
        let kind = KINDS.iter().position(|k| *k == message.get_msg_type())?;
        let has_snapshot = message.get_msg_type() == pb::MessageType::MsgSnapshot;
        Some(RaftMessage {
            kind: kind as u8,
            to: message.to,
            from: message.from,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            entries: message.entries.iter().map(Entry::of).collect(),
            commit: message.commit,
            commit_term: message.commit_term,
            snapshot: has_snapshot.then(|| Snapshot::of(message.get_snapshot())),
            transfer: 0,
            part: 0,
            is_last_part: false,
            request_snapshot: message.request_snapshot,
            reject: message.reject,
            reject_hint: message.reject_hint,
            context: message.context.to_vec(),
            priority: message.priority,
        })
    }

    /// Returns whether a peer with an intact log can have sent this to a peer whose log ends with `last`. The library
    /// ends the process on some messages that such a peer cannot send. Kinds that peers do not use here are rejected:
    /// the library would pass the data of a forwarded proposal to its own parser.
    pub(super) fn is_sound(&self, last: u64) -> bool {
        use pb::MessageType as Type;
        let numbers = [
            self.term,
            self.log_term,
            self.index,
            self.commit,
            self.commit_term,
            self.reject_hint,
        ];
        if numbers.iter().any(|number| *number >= NUMBER_END) || self.request_snapshot != 0 {
            return false;
        }
        if self.is_part_acknowledgement() {
            return true;
        }
        match KINDS.get(usize::from(self.kind)) {
            Some(Type::MsgAppend) => self.continues(),
            Some(Type::MsgAppendResponse) => self.index <= last && self.reject_hint <= self.index,
            Some(Type::MsgHeartbeat) => self.commit <= last,
            Some(Type::MsgSnapshot) => self.snapshot.as_ref().is_some_and(Snapshot::is_sound),
            Some(
                Type::MsgHeartbeatResponse
                | Type::MsgRequestVote
                | Type::MsgRequestVoteResponse
                | Type::MsgRequestPreVote
                | Type::MsgRequestPreVoteResponse
                | Type::MsgTimeoutNow,
            ) => true,
            _ => false,
        }
    }

    /// Returns whether each entry follows the one before.
    fn continues(&self) -> bool {
        let mut before = (self.index, self.log_term);
        self.entries.iter().all(|entry| {
            let follows = entry.index == before.0 + 1 && entry.term >= before.1;
            before = (entry.index, entry.term);
            follows && entry.term <= self.term
        })
    }

    /// Returns whether it carries a part of a state.
    pub fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Returns the part of a snapshot in the message, the part's number, and whether it is the last one.
    pub(crate) fn part(&self) -> Option<(&Snapshot, u64, bool)> {
        let snapshot = self.snapshot.as_ref()?;
        Some((snapshot, self.part, self.is_last_part))
    }

    pub(crate) fn transfer(&self) -> u64 {
        self.transfer
    }

    pub(crate) fn set_transfer(&mut self, transfer: u64) {
        self.transfer = transfer;
    }

    pub(crate) fn part_len_bytes(&self) -> usize {
        self.snapshot.as_ref().map_or(0, |s| s.data.len())
    }

    /// Returns the same message with a part of its snapshot.
    pub(crate) fn with_part(&self, number: u64, is_last: bool, data: Bytes) -> RaftMessage {
        let mut message = self.clone();
        if let Some(snapshot) = &mut message.snapshot {
            snapshot.data = data;
        }
        (message.part, message.is_last_part) = (number, is_last);
        message
    }

    /// Returns the answer to a part: all parts before `next` were accepted.
    pub(crate) fn parts_taken(&self, next: u64) -> RaftMessage {
        RaftMessage {
            kind: PARTS_TAKEN,
            to: self.from,
            from: self.to,
            term: self.term,
            log_term: 0,
            index: 0,
            entries: Vec::new(),
            commit: 0,
            commit_term: 0,
            snapshot: None,
            transfer: self.transfer,
            part: next,
            is_last_part: false,
            request_snapshot: 0,
            reject: false,
            reject_hint: 0,
            context: Vec::new(),
            priority: 0,
        }
    }

    fn is_part_acknowledgement(&self) -> bool {
        self.kind == PARTS_TAKEN
    }

    /// Returns the answer to a part that its receiver cannot use.
    pub(crate) fn parts_refused(&self) -> RaftMessage {
        RaftMessage {
            reject: true,
            ..self.parts_taken(0)
        }
    }

    /// If it answers parts: the transfer, and the next part; `None` instead of the part if they are refused.
    pub(crate) fn answered_parts(&self) -> Option<(u64, Option<u64>)> {
        let next = (!self.reject).then_some(self.part);
        self.is_part_acknowledgement()
            .then_some((self.transfer, next))
    }

    /// `None` for a kind that peers do not send.
    pub(crate) fn into_raft(self) -> Option<pb::Message> {
        let mut message = pb::Message::default();
        message.set_msg_type(*KINDS.get(usize::from(self.kind))?);
        message.to = self.to;
        message.from = self.from;
        message.term = self.term;
        message.log_term = self.log_term;
        message.index = self.index;
        let entries: Vec<pb::Entry> = self.entries.into_iter().map(Entry::into_raft).collect();
        message.set_entries(entries.into());
        message.commit = self.commit;
        message.commit_term = self.commit_term;
        if let Some(snapshot) = self.snapshot {
            message.set_snapshot(snapshot.into_raft()); // without its data
        }
        message.request_snapshot = self.request_snapshot;
        message.reject = self.reject;
        message.reject_hint = self.reject_hint;
        message.context = self.context.into();
        message.priority = self.priority;
        Some(message)
    }
}
