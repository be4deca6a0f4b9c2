//! The log of a node: in memory, and in a journal on its disk if it has one.

use std::cell::RefCell;
use std::collections::VecDeque;

use inband_storage::{Journal, JournalConfig, JournalError, Storage, StorageError};
use raft::eraftpb as pb;
use raft::{GetEntriesContext, RaftState};
use serde::{Deserialize, Serialize};

use super::message::{Entry, Proposed, Snapshot};
use crate::machine::{Frozen, StateMachine};
use crate::tuning::Tuning;

/// The log is small, so its segments need not be long.
const JOURNAL: JournalConfig = JournalConfig {
    segment_bytes: 1 << 20,
    extend_bytes: 64 << 10,
    ..JournalConfig::DEFAULT
};

/// A record of the journal.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The id under which this log votes; always the first record.
    Peer(u64),
    /// Term, vote and commit index.
    Hard(u64, u64, u64),
    /// Replaces all entries from its index on.
    Entry(Entry),
    /// Replaces everything.
    Snapshot(Snapshot),
    /// The journal is rewritten with the state after this entry, which follows in parts between other records.
    Begin(Snapshot),
    /// The next bytes of that state.
    Part(Vec<u8>),
    /// The state is complete, and replaces everything up to its entry.
    End,
    /// Another node's state after this entry follows in parts. The previous contents, if any, count until
    /// [`Record::Installed`].
    Install(Snapshot),
    /// The state is complete, and replaces everything.
    Installed,
}

/// Most obsolete files removed at a time.
const FILES_REMOVED_MAX: usize = 8;
/// Most entries dropped at a time.
const ENTRIES_FORGOTTEN_MAX: usize = 4096;

/// The journal is being rewritten, a slice at a time.
struct Rewriting<F> {
    /// Everything before this segment is dropped at the end.
    segment: u64,
    state: F,
    /// How much of the state has been written.
    len_bytes: usize,
    /// What the journal no longer needs afterwards.
    before: Written,
}

/// Entries in the journal after its initial state.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    entries: usize,
    bytes: usize,
}

pub(super) struct Log<M: StateMachine> {
    /// `None`: only in memory.
    journal: Option<Journal>,
    /// Size of the journal's initial snapshot.
    snapshot_bytes: usize,
    written: Written,
    rewriting: Option<Rewriting<M::Frozen>>,
    /// The state is another node's, and not in the journal yet.
    is_installing: bool,
    /// Commit index of the log that counts until that state is complete: its other entries may differ from those that
    /// produced the state.
    replaced_commit: u64,
    /// States that the library has requested, each for a peer and after an entry: their messages are about to be sent.
    wanted: RefCell<Vec<(u64, u64, M::Frozen)>>,
    /// States that are no longer needed, released a slice at a time.
    released: Vec<M::Frozen>,
    peer: u64,
    hard: pb::HardState,
    /// What `entries` follows, without its data. A journal may begin later: it holds a state, not the entries that are
    /// kept for peers.
    start: Snapshot,
    entries: VecDeque<Entry>,
    entries_bytes: u64,
    /// Entries up to this one need not be kept.
    forget_to: u64,
    /// After the applied entries, without its data.
    pub applied: Snapshot,
    pub state: M,
}

#[derive(Default)]
struct Replayed<M> {
    peer: Option<u64>,
    hard: pb::HardState,
    start: Snapshot,
    entries: VecDeque<Entry>,
    state: M,
    state_bytes: usize,
    /// The state that is being read in parts.
    begun: Option<Begun<M>>,
    /// Everything before it is gone, so it must be complete.
    lacks_state: bool,
    unreadable: Option<String>,
}

struct Begun<M> {
    snapshot: Snapshot,
    state: M,
    len_bytes: usize,
}

impl<M: StateMachine> Begun<M> {
    fn new(snapshot: Snapshot) -> Begun<M> {
        Begun {
            snapshot,
            state: M::default(),
            len_bytes: 0,
        }
    }

    /// Returns false if this is not a part of such a state.
    fn add(&mut self, part: &[u8]) -> bool {
        self.len_bytes += part.len();
        part.is_empty() || self.state.restore_part(part)
    }
}

impl<M: StateMachine> Replayed<M> {
    fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(Record::Peer(peer)) => self.peer = Some(peer),
            Ok(Record::Hard(term, vote, commit)) => {
                (self.hard.term, self.hard.vote, self.hard.commit) = (term, vote, commit);
            }
            // A journal that was being rewritten when its host failed repeats entries; those after them count.
            Ok(Record::Entry(entry)) if self.has(&entry) => {}
            Ok(Record::Entry(entry)) => replace_from(&mut self.entries, &self.start, entry),
            Ok(Record::Snapshot(mut snapshot)) => {
                let part = std::mem::take(&mut snapshot.data);
                self.begun = Some(Begun::new(snapshot));
                self.add(&part);
                self.begin_with_begun();
            }
            Ok(Record::Begin(start)) => {
                if self.start.index == 0 {
                    self.start = start.clone();
                    self.lacks_state = true;
                }
                self.begun = Some(Begun::new(start));
            }
            Ok(Record::Install(start)) => self.begun = Some(Begun::new(start)),
            Ok(Record::Part(part)) => self.add(&part),
            Ok(Record::End) => self.begin_with_begun(),
            Ok(Record::Installed) => {
                self.begin_with_begun();
                self.entries.clear();
            }
            Err(error) => self.unreadable = Some(error.to_string()),
        }
    }

    fn add(&mut self, part: &[u8]) {
        if self.begun.as_mut().is_some_and(|begun| !begun.add(part)) {
            let what = "its state is damaged, or was written by another version";
            self.unreadable = Some(what.to_owned());
        }
    }

    fn begin_with_begun(&mut self) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        self.entries
            .retain(|entry| entry.index > begun.snapshot.index);
        (self.start, self.state) = (begun.snapshot, begun.state);
        self.state_bytes = begun.len_bytes;
        self.lacks_state = false;
    }

    /// For each index and term there is only one entry, and only one sequence of entries before it.
    fn has(&self, entry: &Entry) -> bool {
        let at = entry.index.checked_sub(self.start.index + 1);
        let known = at.and_then(|at| self.entries.get(at as usize));
        known.is_some_and(|known| known.term == entry.term)
    }

    /// The commit index is written separately from state and entries. What the state contains is decided; missing
    /// entries are not.
    fn bound_commit(&mut self) {
        let last = self.start.index + self.entries.len() as u64;
        self.hard.commit = self.hard.commit.clamp(self.start.index, last);
    }
}

/// Appends an entry; the entries that it replaces were never committed.
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
    /// Opens a log, or creates one with the given id.
    pub fn open(storage: Box<dyn Storage>, new_peer: u64) -> Result<Log<M>, JournalError> {
        let mut replayed = Replayed::<M>::default();
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

    /// Creates a log that is lost with its process.
    pub fn in_memory(peer: u64) -> Log<M> {
        Self::with(None, peer, Replayed::default())
    }

    fn with(journal: Option<Journal>, peer: u64, mut replayed: Replayed<M>) -> Log<M> {
        replayed.bound_commit();
        let written = Written {
            entries: replayed.entries.len(),
            bytes: 0,
        };
        Log {
            journal,
            snapshot_bytes: replayed.state_bytes,
            written,
            rewriting: None,
            is_installing: false,
            replaced_commit: 0,
            wanted: RefCell::default(),
            released: Vec::new(),
            peer,
            hard: replayed.hard,
            applied: replayed.start.clone(),
            start: replayed.start,
            entries_bytes: replayed.entries.iter().map(Entry::size_bytes).sum(),
            entries: replayed.entries,
            forget_to: 0,
            state: replayed.state,
        }
    }

    pub fn peer(&self) -> u64 {
        self.peer
    }

    /// Returns whether it belongs to a group, as opposed to waiting to be added to one.
    pub fn is_in_group(&self) -> bool {
        self.start.index > 0
    }

    /// Commands after the last applied entry.
    pub fn unapplied(&self) -> impl Iterator<Item = Proposed<'_>> {
        self.entries.range(self.done()..).filter_map(Entry::command)
    }

    /// While another node's state is being written, later records are written after it.
    fn note(&mut self, record: impl FnOnce() -> Record) {
        if let Some(journal) = self.journal.as_mut().filter(|_| !self.is_installing) {
            journal.append(&encode(&record()));
        }
    }

    /// Begins a new group's log with this empty snapshot. Durable after the next commit.
    pub fn begin(&mut self, snapshot: Snapshot) {
        self.note(|| Record::Snapshot(snapshot.clone()));
        self.set(snapshot, M::default());
    }

    /// Replaces everything with another node's state. Durable when [`Log::commit`] returns true.
    pub fn install(&mut self, snapshot: Snapshot, state: M) {
        self.stop_rewriting();
        if !self.is_installing {
            self.replaced_commit = self.hard.commit;
        }
        self.is_installing = self.journal.is_some();
        self.set(snapshot, state);
    }

    fn set(&mut self, snapshot: Snapshot, state: M) {
        let before = std::mem::replace(&mut self.state, state);
        self.released.push(before.freeze());
        (self.snapshot_bytes, self.written) = (0, Written::default());
        self.entries.clear();
        self.entries_bytes = 0;
        self.hard.commit = self.hard.commit.max(snapshot.index);
        self.hard.term = self.hard.term.max(snapshot.term);
        self.applied = snapshot.clone();
        self.start = snapshot;
    }

    /// Durable after the next commit.
    pub fn append(&mut self, entry: &pb::Entry) {
        let entry = Entry::of(entry);
        self.written.entries += 1;
        self.written.bytes += entry.data.len();
        self.note(|| Record::Entry(entry.clone()));
        let kept = entry.index.saturating_sub(self.start.index + 1) as usize;
        let kept = kept.min(self.entries.len());
        let replaced = self.entries.range(kept..).map(Entry::size_bytes);
        self.entries_bytes -= replaced.sum::<u64>();
        self.entries_bytes += entry.size_bytes();
        replace_from(&mut self.entries, &self.start, entry);
    }

    /// Durable after the next commit.
    pub fn set_hard(&mut self, hard: &pb::HardState) {
        self.hard = hard.clone();
        self.note_hard();
    }

    /// The commit index need not be durable: it is determined again.
    pub fn set_commit(&mut self, commit: u64) {
        self.hard.commit = commit;
        self.note_hard();
    }

    fn note_hard(&mut self) {
        let (term, vote, commit) = (self.hard.term, self.hard.vote, self.hard.commit);
        self.note(|| Record::Hard(term, vote, commit));
    }

    /// Makes everything durable. Returns false if another node's state is being written in slices and more remain.
    pub fn commit(&mut self, slice_bytes: usize) -> Result<bool, StorageError> {
        if self.is_installing {
            if self.rewriting.is_none() {
                self.begin_rewriting()?;
            }
            if !self.write_slice(slice_bytes)? {
                return Ok(false);
            }
            self.is_installing = false;
        }
        self.journal.as_mut().map_or(Ok(()), Journal::commit)?;
        Ok(true)
    }

    /// Does the next slice of compaction. With `holds`, entries are kept for a peer.
    pub fn compact(&mut self, tuning: &Tuning, holds: bool) -> Result<(), StorageError> {
        self.release(tuning.slice_bytes);
        self.remove_files()?;
        let long = tuning.compact_entries + tuning.keep_entries;
        if self.done() >= long && !holds {
            self.forget_to = self.applied.index - tuning.keep_entries as u64;
        }
        self.forget_entries();
        if self.journal.is_some() && self.rewriting.is_none() {
            // The total written is at most twice the entries.
            if self.written.entries < long || self.written.bytes < self.snapshot_bytes {
                return Ok(());
            }
            self.begin_rewriting()?;
        }
        self.write_slice(tuning.slice_bytes)?;
        Ok(())
    }

    /// Returns whether [`Log::compact`] or [`Log::commit`] has more to do at once.
    pub fn has_work(&self) -> bool {
        let has_forgotten = self.journal.as_ref().is_some_and(Journal::has_forgotten);
        let has_entries = self.start.index < self.forget_to;
        self.rewriting.is_some() || !self.released.is_empty() || has_forgotten || has_entries
    }

    /// Releases unneeded states at the rate at which they would be written.
    fn release(&mut self, slice_bytes: usize) {
        let wanted = self.wanted.get_mut().drain(..);
        self.released.extend(wanted.map(|(_, _, state)| state));
        let Some(state) = self.released.last_mut() else {
            return;
        };
        if state.next_part(slice_bytes).is_none() {
            self.released.pop();
        }
    }

    /// Returns the state after this entry, for a message to this peer that is about to be sent.
    pub fn take_wanted(&mut self, to: u64, index: u64) -> Option<M::Frozen> {
        let wanted = self.wanted.get_mut();
        let at = wanted.iter().position(|w| (w.0, w.1) == (to, index))?;
        Some(wanted.swap_remove(at).2)
    }

    /// This state is no longer needed.
    pub fn give_back(&mut self, state: M::Frozen) {
        self.released.push(state);
    }

    fn remove_files(&mut self) -> Result<(), StorageError> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        (0..FILES_REMOVED_MAX).try_for_each(|_| journal.remove_forgotten())
    }

    fn stop_rewriting(&mut self) {
        let rewriting = self.rewriting.take();
        self.released
            .extend(rewriting.map(|rewriting| rewriting.state));
    }

    /// Returns the number of applied entries in `entries`.
    pub fn done(&self) -> usize {
        (self.applied.index - self.start.index) as usize
    }

    /// Bytes of all entries kept.
    pub fn entries_bytes(&self) -> u64 {
        self.entries_bytes
    }

    fn forget_entries(&mut self) {
        let count = self.forget_to.saturating_sub(self.start.index) as usize;
        let count = count.min(ENTRIES_FORGOTTEN_MAX);
        if count == 0 {
            return;
        }
        let mut start = self.applied.clone();
        start.index = self.start.index + count as u64;
        start.term = self.term_of(start.index).expect("it is in the log");
        let forgotten = self.entries.drain(..count);
        self.entries_bytes -= forgotten.map(|entry| entry.size_bytes()).sum::<u64>();
        self.start = start;
    }

    /// Starts to rewrite the journal with the state after the applied entries. Until it is complete, the previous
    /// contents of the journal count; entries after another node's state do not follow those.
    fn begin_rewriting(&mut self) -> Result<(), StorageError> {
        let written = match self.is_installing {
            true => self.entries.len(),
            false => self.done(),
        };
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let commit = match self.is_installing {
            true => self.replaced_commit,
            false => self.hard.commit,
        };
        let hard = Record::Hard(self.hard.term, self.hard.vote, commit);
        let (peer, entries) = (self.peer, &self.entries);
        let start = match self.is_installing {
            true => Record::Install(self.applied.clone()),
            false => Record::Begin(self.applied.clone()),
        };
        let segment = journal.begin_segment()?;
        journal.append_now(|append| {
            append(&encode(&Record::Peer(peer)));
            append(&encode(&hard));
            append(&encode(&start));
            for entry in entries.iter().skip(written) {
                append(&encode(&Record::Entry(entry.clone())));
            }
        })?;
        self.rewriting = Some(Rewriting {
            segment,
            state: self.state.freeze(),
            len_bytes: 0,
            before: self.written,
        });
        Ok(())
    }

    /// Writes the next bytes of the state. Returns whether all are written. After an error it is started again later.
    fn write_slice(&mut self, slice_bytes: usize) -> Result<bool, StorageError> {
        let written = self.try_write_slice(slice_bytes);
        if !matches!(written, Ok(false)) {
            self.stop_rewriting();
        }
        written
    }

    fn try_write_slice(&mut self, slice_bytes: usize) -> Result<bool, StorageError> {
        let (Some(journal), Some(rewriting)) = (&mut self.journal, &mut self.rewriting) else {
            return Ok(true);
        };
        let (is_installing, entries) = (self.is_installing, &self.entries);
        let hard = Record::Hard(self.hard.term, self.hard.vote, self.hard.commit);
        let (mut written, mut is_whole) = (0, false);
        journal.append_now(|append| {
            while written < slice_bytes && !is_whole {
                match rewriting.state.next_part(slice_bytes - written) {
                    Some(part) => {
                        written += part.len();
                        append(&encode(&Record::Part(part)));
                    }
                    None => is_whole = true,
                }
            }
            if is_whole && is_installing {
                append(&encode(&Record::Installed));
                append(&encode(&hard));
                let entries = entries.iter().cloned();
                entries.for_each(|entry| append(&encode(&Record::Entry(entry))));
            } else if is_whole {
                append(&encode(&Record::End));
            }
        })?;
        rewriting.len_bytes += written;
        if is_whole {
            self.snapshot_bytes = rewriting.len_bytes;
            self.written.entries -= rewriting.before.entries;
            self.written.bytes -= rewriting.before.bytes;
            journal.forget_before(rewriting.segment)?;
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

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<pb::Snapshot> {
        if self.applied.index < request_index {
            let error = raft::StorageError::SnapshotTemporarilyUnavailable;
            return Err(raft::Error::Store(error));
        }
        let wanted = (to, self.applied.index, self.state.freeze());
        self.wanted.borrow_mut().push(wanted);
        Ok(self.applied.clone().into_raft())
    }
}

#[cfg(test)]
mod tests;
