//! The log of a node: in memory, and in a journal on its disk if it has one.

use std::collections::VecDeque;

use inband_storage::{Journal, JournalConfig, JournalError, Storage, StorageError};
use raft::eraftpb as pb;
use raft::{GetEntriesContext, RaftState};
use serde::{Deserialize, Serialize};

use super::message::{Entry, Proposed, Snapshot};
use crate::machine::StateMachine;
use crate::tuning::Tuning;

/// The log is small; its segments need not be long.
const JOURNAL: JournalConfig = JournalConfig {
    segment_bytes: 1 << 20,
    extend_bytes: 64 << 10,
    snapshot_commit_bytes: 4 << 20,
};

/// A record of the journal.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The id under which this log votes: the first record.
    Peer(u64),
    /// Term, vote and commit index.
    Hard(u64, u64, u64),
    /// Replaces everything from its index on.
    Entry(Entry),
    /// Replaces everything.
    Snapshot(Snapshot),
    /// The journal is begun anew with the state after this entry, which comes in parts between other records.
    Begin(Snapshot),
    /// The next bytes of that state.
    Part(Vec<u8>),
    /// It is whole, and replaces what was there up to its entry.
    End,
}

/// The journal is being begun anew, a slice at a time.
struct Rewriting {
    /// Everything before this segment is dropped in the end.
    segment: u64,
    /// The state, and how much of it is written.
    data: Vec<u8>,
    at: usize,
    /// Of the entries that were written, those that need not be any more.
    bytes_before: usize,
}

/// See the module.
pub(super) struct Log<M> {
    /// `None`: in memory only.
    journal: Option<Journal>,
    /// Bytes of the snapshot that the journal begins with, and of the entries written behind it.
    snapshot_bytes: usize,
    written_bytes: usize,
    rewriting: Option<Rewriting>,
    peer: u64,
    hard: pb::HardState,
    /// What `entries` follows, without its data. A journal may begin later: it holds a state, not the entries
    /// that are kept for peers.
    start: Snapshot,
    entries: VecDeque<Entry>,
    /// After the entries applied so far, without its data.
    pub applied: Snapshot,
    pub state: M,
}

#[derive(Default)]
struct Replayed {
    peer: Option<u64>,
    hard: pb::HardState,
    start: Snapshot,
    entries: VecDeque<Entry>,
    /// The state that comes in parts.
    begun: Option<Snapshot>,
    /// What was before it is gone: it must become whole.
    lacks_state: bool,
    unreadable: Option<String>,
}

impl Replayed {
    fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(Record::Peer(peer)) => self.peer = Some(peer),
            Ok(Record::Hard(term, vote, commit)) => {
                (self.hard.term, self.hard.vote, self.hard.commit) = (term, vote, commit);
            }
            // A journal that was being rewritten when its host died repeats entries; what follows them counts.
            Ok(Record::Entry(entry)) if self.has(&entry) => {}
            Ok(Record::Entry(entry)) => replace_from(&mut self.entries, &self.start, entry),
            Ok(Record::Snapshot(snapshot)) => self.begin_with(snapshot),
            Ok(Record::Begin(start)) => {
                if self.start.index == 0 {
                    self.start = start.clone();
                    self.lacks_state = true;
                }
                self.begun = Some(start);
            }
            Ok(Record::Part(part)) => {
                if let Some(begun) = &mut self.begun {
                    begun.data.extend_from_slice(&part);
                }
            }
            Ok(Record::End) => {
                if let Some(snapshot) = self.begun.take() {
                    self.begin_with(snapshot);
                }
            }
            Err(error) => self.unreadable = Some(error.to_string()),
        }
    }

    fn begin_with(&mut self, snapshot: Snapshot) {
        self.entries.retain(|entry| entry.index > snapshot.index);
        self.start = snapshot;
        (self.begun, self.lacks_state) = (None, false);
    }

    /// Of one index and term there is one entry, and one sequence of entries before it.
    fn has(&self, entry: &Entry) -> bool {
        let at = entry.index.checked_sub(self.start.index + 1);
        let known = at.and_then(|at| self.entries.get(at as usize));
        known.is_some_and(|known| known.term == entry.term)
    }
}

/// Append an entry; those it replaces were never committed.
fn replace_from(entries: &mut VecDeque<Entry>, start: &Snapshot, entry: Entry) {
    let kept = entry.index.saturating_sub(start.index + 1) as usize;
    assert!(kept <= entries.len(), "a log has no holes");
    entries.truncate(kept);
    entries.push_back(entry);
}

fn encode(record: &Record) -> Vec<u8> {
    postcard::to_stdvec(record).expect("a record can always be written")
}

impl<M: StateMachine> Log<M> {
    /// Open a log, or begin one under the id given.
    pub fn open(storage: Box<dyn Storage>, new_peer: u64) -> Result<Log<M>, JournalError> {
        let mut replayed = Replayed::default();
        let mut take = |record: &[u8]| replayed.take(record);
        let mut journal = Journal::open(storage, JOURNAL, &mut take)?;
        let torn = || "the state that it begins with is not whole".to_owned();
        let lacks_state = replayed.lacks_state.then(torn);
        if let Some(what) = replayed.unreadable.take().or(lacks_state) {
            let file = "raft log".into();
            return Err(JournalError::Damaged { file, what });
        }
        let peer = match replayed.peer {
            Some(peer) => peer,
            None => {
                journal.append(&encode(&Record::Peer(new_peer)));
                journal.commit()?;
                new_peer
            }
        };
        Ok(Self::with(Some(journal), peer, replayed))
    }

    /// Begin a log that is forgotten with its process.
    pub fn in_memory(peer: u64) -> Log<M> {
        Self::with(None, peer, Replayed::default())
    }

    fn with(journal: Option<Journal>, peer: u64, mut replayed: Replayed) -> Log<M> {
        let state = state_of(&replayed.start);
        let snapshot_bytes = std::mem::take(&mut replayed.start.data).len();
        Log {
            journal,
            snapshot_bytes,
            written_bytes: 0,
            rewriting: None,
            peer,
            hard: replayed.hard,
            applied: replayed.start.clone(),
            start: replayed.start,
            entries: replayed.entries,
            state,
        }
    }

    pub fn peer(&self) -> u64 {
        self.peer
    }

    /// Is it in a group, or waiting to be taken into one?
    pub fn is_in_group(&self) -> bool {
        self.start.index > 0
    }

    /// Commands behind the last entry that is applied.
    pub fn unapplied(&self) -> impl Iterator<Item = Proposed<'_>> {
        self.entries.range(self.done()..).filter_map(Entry::command)
    }

    fn note(&mut self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &mut self.journal {
            journal.append(&encode(&record()));
        }
    }

    /// Set everything to a snapshot. Durable after the next commit.
    pub fn install(&mut self, mut snapshot: Snapshot) {
        self.note(|| Record::Snapshot(snapshot.clone()));
        self.state = state_of(&snapshot);
        self.snapshot_bytes = std::mem::take(&mut snapshot.data).len();
        self.written_bytes = 0;
        self.rewriting = None;
        self.entries.clear();
        self.hard.commit = self.hard.commit.max(snapshot.index);
        self.hard.term = self.hard.term.max(snapshot.term);
        self.applied = snapshot.clone();
        self.start = snapshot;
    }

    /// Durable after the next commit.
    pub fn append(&mut self, entry: &pb::Entry) {
        let entry = Entry::of(entry);
        self.written_bytes += entry.data.len();
        self.note(|| Record::Entry(entry.clone()));
        replace_from(&mut self.entries, &self.start, entry);
    }

    /// Durable after the next commit.
    pub fn set_hard(&mut self, hard: &pb::HardState) {
        self.hard = hard.clone();
        self.note_hard();
    }

    /// A commit index need not be durable: it is found again.
    pub fn set_commit(&mut self, commit: u64) {
        self.hard.commit = commit;
        self.note_hard();
    }

    fn note_hard(&mut self) {
        let (term, vote, commit) = (self.hard.term, self.hard.vote, self.hard.commit);
        self.note(|| Record::Hard(term, vote, commit));
    }

    /// Make everything durable.
    pub fn commit(&mut self) -> Result<(), StorageError> {
        self.journal.as_mut().map_or(Ok(()), Journal::commit)
    }

    /// Shorten the log if it has become long, or do the next slice of that. Only a journal needs the state for that, and so
    /// only once as much was written as the state is long: what is written in all is twice the entries at most.
    pub fn compact(&mut self, tuning: &Tuning) -> Result<(), StorageError> {
        if self.rewriting.is_none() {
            if self.done() < tuning.compact_entries + tuning.keep_entries {
                return Ok(());
            }
            if self.journal.is_some() {
                if self.written_bytes < self.snapshot_bytes {
                    return Ok(());
                }
                self.begin_rewriting()?;
            }
        }
        if self.write_slice(tuning.rewrite_slice_bytes)? {
            self.forget_entries(tuning.keep_entries);
        }
        Ok(())
    }

    /// Entries that are applied.
    fn done(&self) -> usize {
        (self.applied.index - self.start.index) as usize
    }

    fn forget_entries(&mut self, keep_entries: usize) {
        let mut start = self.applied.clone();
        start.index -= keep_entries as u64;
        start.term = self.term_of(start.index).expect("it is in the log");
        self.entries.drain(..self.done() - keep_entries);
        self.start = start;
    }

    /// Begin the journal anew with the state after the entries that are applied. Until it is whole, what the journal held
    /// before counts.
    fn begin_rewriting(&mut self) -> Result<(), StorageError> {
        let done = self.done();
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let hard = Record::Hard(self.hard.term, self.hard.vote, self.hard.commit);
        let (peer, start, entries) = (self.peer, self.applied.clone(), &self.entries);
        let segment = journal.begin_segment()?;
        journal.append_now(|append| {
            append(&encode(&Record::Peer(peer)));
            append(&encode(&hard));
            append(&encode(&Record::Begin(start)));
            for entry in entries.iter().skip(done) {
                append(&encode(&Record::Entry(entry.clone())));
            }
        })?;
        self.rewriting = Some(Rewriting {
            segment,
            data: self.state.snapshot(),
            at: 0,
            bytes_before: self.written_bytes,
        });
        Ok(())
    }

    /// Write the next bytes of the state. Is all written? After an error it is begun again later.
    fn write_slice(&mut self, slice_bytes: usize) -> Result<bool, StorageError> {
        let (Some(journal), Some(mut rewriting)) = (&mut self.journal, self.rewriting.take())
        else {
            return Ok(true);
        };
        let len_bytes = rewriting.data.len();
        let end = (rewriting.at + slice_bytes).min(len_bytes);
        let part = rewriting.data[rewriting.at..end].to_vec();
        let is_whole = end == len_bytes;
        journal.append_now(|append| {
            append(&encode(&Record::Part(part)));
            if is_whole {
                append(&encode(&Record::End));
            }
        })?;
        if is_whole {
            self.snapshot_bytes = len_bytes;
            self.written_bytes -= rewriting.bytes_before;
            journal.drop_before(rewriting.segment)?;
        } else {
            rewriting.at = end;
            self.rewriting = Some(rewriting);
        }
        Ok(is_whole)
    }

    pub fn last(&self) -> u64 {
        self.start.index + self.entries.len() as u64
    }

    fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.start.index {
            return Some(self.start.term);
        }
        let at = index.checked_sub(self.start.index + 1)?;
        self.entries.get(at as usize).map(|entry| entry.term)
    }
}

/// # Panics
/// If a node of another version wrote it, or it is damaged though its checksum holds.
fn state_of<M: StateMachine>(snapshot: &Snapshot) -> M {
    M::restore(&snapshot.data).expect("a snapshot of a node of this version")
}

impl<M: StateMachine> raft::Storage for Log<M> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let peers = self.start.peers.clone();
        Ok(RaftState::new(self.hard.clone(), peers.into_raft()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<pb::Entry>> {
        if low <= self.start.index {
            return Err(raft::Error::Store(raft::StorageError::Compacted));
        }
        let first = (low - self.start.index - 1) as usize;
        let end = (high - self.start.index - 1) as usize;
        let entries = self.entries.range(first..end.min(self.entries.len()));
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        // At least one, and no more than the limit: what is cut off need not be copied first.
        let found = entries.take_while(|entry| {
            let is_first = size == 0;
            size += entry.size_bytes();
            is_first || size <= limit
        });
        Ok(found.cloned().map(Entry::into_raft).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let error = if index < self.start.index {
            raft::StorageError::Compacted
        } else {
            raft::StorageError::Unavailable
        };
        self.term_of(index).ok_or(raft::Error::Store(error))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.start.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<pb::Snapshot> {
        if self.applied.index < request_index {
            let error = raft::StorageError::SnapshotTemporarilyUnavailable;
            return Err(raft::Error::Store(error));
        }
        let mut snapshot = self.applied.clone();
        snapshot.data = self.state.snapshot();
        Ok(snapshot.into_raft())
    }
}

#[cfg(test)]
mod tests;
