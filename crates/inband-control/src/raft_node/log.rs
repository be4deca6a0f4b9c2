//! The log of a controller: in memory, and in a journal on its disk.

use inband_storage::{Journal, JournalConfig, JournalError, Storage, StorageError};
use raft::eraftpb as pb;
use raft::{GetEntriesContext, RaftState};
use serde::{Deserialize, Serialize};

use super::message::{Entry, Snapshot};
use crate::state::State;

/// Entries kept behind the last snapshot before a new one is written.
const COMPACT_ENTRIES: usize = 256;
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
}

/// See the module.
pub(super) struct Log {
    journal: Journal,
    peer: u64,
    hard: pb::HardState,
    /// What `entries` follows.
    start: Snapshot,
    entries: Vec<Entry>,
    /// After the entries applied so far.
    pub applied: Snapshot,
    pub state: State,
}

#[derive(Default)]
struct Replayed {
    peer: Option<u64>,
    hard: pb::HardState,
    start: Snapshot,
    entries: Vec<Entry>,
    unreadable: Option<String>,
}

impl Replayed {
    fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(Record::Peer(peer)) => self.peer = Some(peer),
            Ok(Record::Hard(term, vote, commit)) => {
                (self.hard.term, self.hard.vote, self.hard.commit) = (term, vote, commit);
            }
            Ok(Record::Entry(entry)) => replace_from(&mut self.entries, &self.start, entry),
            Ok(Record::Snapshot(snapshot)) => {
                self.entries.retain(|entry| entry.index > snapshot.index);
                self.start = snapshot;
            }
            Err(error) => self.unreadable = Some(error.to_string()),
        }
    }
}

/// Append an entry; those it replaces were never committed.
fn replace_from(entries: &mut Vec<Entry>, start: &Snapshot, entry: Entry) {
    let kept = entry.index.saturating_sub(start.index + 1) as usize;
    assert!(kept <= entries.len(), "a log has no holes");
    entries.truncate(kept);
    entries.push(entry);
}

fn encode(record: &Record) -> Vec<u8> {
    postcard::to_stdvec(record).expect("a record can always be written")
}

impl Log {
    /// Open a log, or begin one under the id given.
    pub fn open(storage: Box<dyn Storage>, new_peer: u64) -> Result<Log, JournalError> {
        let mut replayed = Replayed::default();
        let mut take = |record: &[u8]| replayed.take(record);
        let mut journal = Journal::open(storage, JOURNAL, &mut take)?;
        if let Some(what) = replayed.unreadable {
            let file = "control-plane log".into();
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
        let state = state_of(&replayed.start);
        Ok(Log {
            journal,
            peer,
            hard: replayed.hard,
            applied: replayed.start.clone(),
            start: replayed.start,
            entries: replayed.entries,
            state,
        })
    }

    pub fn peer(&self) -> u64 {
        self.peer
    }

    /// Is it in a group, or waiting to be taken into one?
    pub fn is_in_group(&self) -> bool {
        self.start.index > 0
    }

    /// Set everything to a snapshot. Durable after the next commit.
    pub fn install(&mut self, snapshot: &Snapshot) {
        self.journal
            .append(&encode(&Record::Snapshot(snapshot.clone())));
        self.entries.clear();
        self.start = snapshot.clone();
        self.applied = snapshot.clone();
        self.state = state_of(snapshot);
        self.hard.commit = self.hard.commit.max(snapshot.index);
        self.hard.term = self.hard.term.max(snapshot.term);
    }

    /// Durable after the next commit.
    pub fn append(&mut self, entry: &pb::Entry) {
        let entry = Entry::of(entry);
        self.journal.append(&encode(&Record::Entry(entry.clone())));
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
        let hard = &self.hard;
        let record = Record::Hard(hard.term, hard.vote, hard.commit);
        self.journal.append(&encode(&record));
    }

    /// Make everything durable.
    pub fn commit(&mut self) -> Result<(), StorageError> {
        self.journal.commit()
    }

    /// Shorten the log if it has become long.
    pub fn compact(&mut self) -> Result<(), StorageError> {
        let done = (self.applied.index - self.start.index) as usize;
        if done < COMPACT_ENTRIES {
            return Ok(());
        }
        let mut start = self.applied.clone();
        start.data = encode_state(&self.state);
        let hard = Record::Hard(self.hard.term, self.hard.vote, self.hard.commit);
        let (peer, entries) = (self.peer, &self.entries[done..]);
        self.journal.snapshot(|append| {
            append(&encode(&Record::Peer(peer)));
            append(&encode(&hard));
            append(&encode(&Record::Snapshot(start.clone())));
            for entry in entries {
                append(&encode(&Record::Entry(entry.clone())));
            }
        })?;
        self.entries.drain(..done);
        self.start = start;
        Ok(())
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

fn encode_state(state: &State) -> Vec<u8> {
    postcard::to_stdvec(state).expect("a state can always be written")
}

/// # Panics
/// If a controller of another version wrote it, or it is damaged though its checksum holds.
fn state_of(snapshot: &Snapshot) -> State {
    snapshot
        .state()
        .expect("a snapshot of a controller of this version")
}

impl raft::Storage for Log {
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
        let count = (high - low) as usize;
        let entries = self.entries.iter().skip(first).take(count);
        let mut found: Vec<pb::Entry> = entries.cloned().map(Entry::into_raft).collect();
        raft::util::limit_size(&mut found, max_size.into());
        Ok(found)
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
        snapshot.data = encode_state(&self.state);
        Ok(snapshot.into_raft())
    }
}
