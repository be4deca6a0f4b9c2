//! An append-only journal of records that survives power failures, or reports that it did not.
//!
//! # Guarantee
//!
//! Once [`Journal::commit`] has returned, every record appended before is there when the journal is opened again, in
//! order, or opening it fails with [`JournalError::Damaged`]. Records appended but not committed may be there, a whole
//! commit at a time, or may not.
//!
//! # How a torn tail is distinguished from damage
//!
//! A commit is one write of whole blocks and one sync, so no later commit touches an earlier one. It is numbered, and
//! starts only after the previous one is synced. After that sync the commit's number is written to a *witness*, a
//! separate file; only then does `commit` return. The witness itself is synced once every
//! [`witness_sync_commits`](JournalConfig::witness_sync_commits) commits. So:
//!
//! - an incomplete commit after the last one known to the witness, with no block of a later commit after it, was being
//!   written when the power failed: a torn tail. It is cut off;
//! - an incomplete or missing commit that the witness knows, or that a block of a later commit proves to have been
//!   synced, is damage. So are a missing segment and an unreadable witness.
//!
//! After the end of a process, also a sudden one, the witness knows every commit whose answers may have been sent. After a
//! power failure it may lack the last `witness_sync_commits`, those since the kernel last wrote the file by itself (within
//! half a minute, by default).
//!
//! A witness that is synced after each commit would know all of them. But a second sync, which cannot begin before the first
//! one has ended, doubles the time that every answer waits.
//!
//! # What cannot be distinguished
//!
//! What was synced and is nevertheless missing from the end of the journal after a power failure, if the witness was not
//! synced since: the disk has reported a sync that did not happen, or was damaged by the failure. The last commit and the
//! newer slot of the witness both damaged exactly as a power failure would have left them; the whole directory replaced by an
//! older copy of itself, or emptied. None of these can be detected from the directory alone.

use std::collections::VecDeque;

use crate::block::{self, BLOCK_BYTES};
use crate::storage::{Storage, StorageError, TEMPORARY_SUFFIX};
use crate::witness::{Durable, Testimony, Witness, WITNESS_FILE};

const SEGMENT_PREFIX: &str = "journal-";
const RECORD_LEN_BYTES: usize = 4;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Something that was synced is missing. A host that relied on this journal has lost state and must not act as if
    /// it had not.
    #[error("{file}: damaged: {what}; promises that relied on it may be lost. Check the disk")]
    Damaged { file: String, what: String },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Sizes of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalConfig {
    /// A commit that finds its segment this long starts a new one.
    pub segment_bytes: u64,
    /// Segments are extended by this much at a time, so that most syncs need not sync the length.
    pub extend_bytes: u64,
    /// A snapshot is committed in pieces of this size, which bounds the memory for it.
    pub snapshot_commit_bytes: usize,
    /// The witness is synced once in this many commits; at least 1. How many synced commits it may not know after a power
    /// failure.
    pub witness_sync_commits: u64,
}

impl JournalConfig {
    pub const DEFAULT: JournalConfig = JournalConfig {
        segment_bytes: 32 << 20,
        extend_bytes: 1 << 20,
        snapshot_commit_bytes: 4 << 20,
        witness_sync_commits: 256,
    };
}

impl Default for JournalConfig {
    fn default() -> JournalConfig {
        JournalConfig::DEFAULT
    }
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    /// Number of its first commit, which is part of its name.
    first: u64,
    /// End of the last commit.
    end: u64,
    /// Up to where the file has been allocated.
    allocated: u64,
}

pub struct Journal {
    storage: Box<dyn Storage>,
    config: JournalConfig,
    witness: Witness,
    segments: VecDeque<Segment>,
    /// The last commit that is written and synced.
    last_commit: u64,
    /// The next commit starts a new segment.
    rolls: bool,
    pending: Vec<u8>,
    blocks: Vec<u8>,
    appended: u64,
    synced: u64,
    committed: u64,
}

fn segment_name(first: u64) -> String {
    format!("{SEGMENT_PREFIX}{first:020}")
}

fn damaged(file: String, what: String) -> JournalError {
    JournalError::Damaged { file, what }
}

impl Journal {
    /// Opens the journal in `storage`, which must be used for nothing else, or creates one. Passes every record to
    /// `replay`, oldest first; if this fails, discard what was replayed.
    pub fn open(
        mut storage: Box<dyn Storage>,
        config: JournalConfig,
        replay: &mut dyn FnMut(&[u8]),
    ) -> Result<Journal, JournalError> {
        let mut firsts = Vec::new();
        for name in storage.list()? {
            if name.ends_with(TEMPORARY_SUFFIX) {
                storage.remove(&name)?;
            } else if let Some(number) = name.strip_prefix(SEGMENT_PREFIX) {
                let first = number.parse();
                firsts.push(first.map_err(|_| damaged(name.clone(), "its name".into()))?);
            }
        }
        let (witness, both_slots) = match Testimony::read(storage.as_ref())? {
            Testimony::Says(witness, both_slots) => (witness, both_slots),
            Testimony::Absent if firsts.is_empty() => {
                (Witness::create(storage.as_mut(), 0, 1)?, true)
            }
            testimony => {
                let what = format!("{testimony:?}, but there are segments");
                return Err(damaged(WITNESS_FILE.into(), what));
            }
        };
        let mut journal = Journal {
            storage,
            config,
            last_commit: witness.first() - 1,
            witness,
            segments: VecDeque::new(),
            rolls: true,
            pending: Vec::new(),
            blocks: Vec::new(),
            appended: 0,
            synced: 0,
            committed: 0,
        };
        let needed = firsts.partition_point(|first| *first < journal.witness.first());
        journal.read_segments(&firsts[needed..], replay)?;
        journal.hear_witness(both_slots)?;
        // Only now: what the witness said may not have been synced before.
        for first in &firsts[..needed] {
            journal.storage.remove(&segment_name(*first))?;
        }
        Ok(journal)
    }

    /// Removes a journal, damaged or not, when nothing depends on it any more.
    pub fn discard(storage: &mut dyn Storage) -> Result<(), StorageError> {
        // The witness last: until then the remainder counts as damaged, not as new.
        for name in storage.list()? {
            if name.starts_with(SEGMENT_PREFIX) {
                storage.remove(&name)?;
            }
        }
        match storage.remove(WITNESS_FILE) {
            Err(StorageError::NotFound { .. }) => Ok(()),
            result => result,
        }
    }

    fn read_segments(
        &mut self,
        firsts: &[u64],
        replay: &mut dyn FnMut(&[u8]),
    ) -> Result<(), JournalError> {
        for (at, first) in firsts.iter().enumerate() {
            let name = segment_name(*first);
            if *first != self.last_commit + 1 {
                let what = format!(
                    "commits {} to {} are missing before it",
                    self.last_commit + 1,
                    first - 1
                );
                return Err(damaged(name, what));
            }
            // A commit that failed here may have succeeded in the next segment, or was written again there.
            let end = firsts.get(at + 1).copied().unwrap_or(u64::MAX);
            self.read_segment(*first, end, replay)?;
        }
        Ok(())
    }

    fn read_segment(
        &mut self,
        first: u64,
        end_commit: u64,
        replay: &mut dyn FnMut(&[u8]),
    ) -> Result<(), JournalError> {
        let name = segment_name(first);
        let bytes = self.storage.read(&name)?;
        let mut at = 0;
        while let Some((header, payload)) = block::decode(&bytes[at..]) {
            if header.commit != self.last_commit + 1 || header.commit == end_commit {
                break;
            }
            let starts = self.appended == 0 && first == self.witness.first();
            if !starts && header.first_record != self.appended + 1 {
                let what = format!("commit {} does not continue the one before", header.commit);
                return Err(damaged(name, what));
            }
            self.appended = header.first_record - 1;
            self.replay_commit(&payload, replay).ok_or_else(|| {
                damaged(
                    name.clone(),
                    format!("commit {} cannot be read", header.commit),
                )
            })?;
            self.last_commit = header.commit;
            at += header.count as usize * BLOCK_BYTES;
        }
        let later = bytes[at..]
            .chunks(BLOCK_BYTES)
            .filter_map(block::header)
            .find(|header| (self.last_commit + 2..end_commit).contains(&header.commit));
        if let Some(later) = later {
            let what = format!(
                "commit {} is not whole at byte {at}, but there is something of commit {}",
                self.last_commit + 1,
                later.commit
            );
            return Err(damaged(name, what));
        }
        let whole_blocks = bytes.len() - bytes.len() % BLOCK_BYTES;
        self.segments.push_back(Segment {
            first,
            end: at as u64,
            allocated: whole_blocks as u64,
        });
        self.rolls = false;
        Ok(())
    }

    fn replay_commit(&mut self, payload: &[u8], replay: &mut dyn FnMut(&[u8])) -> Option<()> {
        let mut rest = payload;
        while !rest.is_empty() {
            let (len, tail) = rest.split_at_checked(RECORD_LEN_BYTES)?;
            let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
            let (record, tail) = tail.split_at_checked(len)?;
            replay(record);
            self.appended += 1;
            rest = tail;
        }
        Some(())
    }

    /// Compares what was read with what the witness knows, and makes it as durable as a commit.
    fn hear_witness(&mut self, both_slots: bool) -> Result<(), JournalError> {
        let (last, known) = (self.last_commit, self.witness.commit());
        if last < known {
            let file = self
                .segments
                .back()
                .map_or(segment_name(last + 1), |s| segment_name(s.first));
            let what = format!("it ends with commit {last}, but commit {known} was synced");
            return Err(damaged(file, what));
        }
        // If a slot is lost, it was the newer one.
        let slots_lost = if both_slots { 0 } else { 1 };
        let unknown_max = self.config.witness_sync_commits * (1 + slots_lost);
        if last - known > unknown_max {
            let what = format!("it knows commit {known} only, but the journal ends with {last}");
            return Err(damaged(WITNESS_FILE.into(), what));
        }
        // A process may have been killed before it synced what was read now. Creating a new witness also syncs the
        // directory.
        self.synced = self.appended;
        if last > known {
            self.write_again()?;
        }
        self.witness = Witness::create(self.storage.as_mut(), last, self.witness.first())?;
        self.committed = self.synced;
        Ok(())
    }

    /// Writes the last commit again, and syncs it: its writer may have been killed before the sync, and a failed sync
    /// discards what it should have written. Not in place: it may also have been synced, and its answers sent, before a
    /// power failure took the witness, and a power failure now could damage the blocks that are being written. So it
    /// becomes the first commit of a segment that appears as a whole.
    fn write_again(&mut self) -> Result<(), StorageError> {
        let mut segments = self.segments.iter();
        let at = segments.rposition(|s| s.end > 0);
        let at = at.expect("there is a commit");
        let segment = &mut self.segments[at];
        let name = segment_name(segment.first);
        let bytes = self.storage.read_range(&name, 0, segment.end as usize)?;
        let of_commit = |block: &[u8]| block::header(block).map(|header| header.commit);
        let start = bytes
            .chunks(BLOCK_BYTES)
            .position(|block| of_commit(block) == Some(self.last_commit))
            .expect("it was read a moment ago")
            * BLOCK_BYTES;
        let commit = &bytes[start..];
        self.storage
            .replace(&segment_name(self.last_commit), commit)?;
        let written = Segment {
            first: self.last_commit,
            end: commit.len() as u64,
            allocated: commit.len() as u64,
        };
        if segment.first == written.first {
            *segment = written;
        } else {
            segment.end = start as u64;
            self.segments.insert(at + 1, written);
        }
        Ok(())
    }

    /// Appends a record; it is durable after the next commit. Returns its number, starting with 1.
    pub fn append(&mut self, record: &[u8]) -> u64 {
        let len = u32::try_from(record.len()).expect("a record is < 4 GiB");
        self.pending.extend_from_slice(&len.to_le_bytes());
        self.pending.extend_from_slice(record);
        self.appended += 1;
        self.appended
    }

    /// Makes everything appended durable. After an error nothing more counts as durable than before, and everything
    /// appended waits for the next attempt.
    pub fn commit(&mut self) -> Result<(), StorageError> {
        // A synced commit must not be rewritten: the witness may already know it.
        if self.witness.commit() < self.last_commit {
            self.testify()?;
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        self.write()?;
        self.testify()
    }

    /// Writes and syncs the pending records as one commit.
    fn write(&mut self) -> Result<(), StorageError> {
        let commit = self.last_commit + 1;
        let full = self
            .segments
            .back()
            .is_none_or(|s| s.end >= self.config.segment_bytes);
        if full || self.rolls {
            self.storage.create(&segment_name(commit))?;
            self.rolls = false;
            self.segments.push_back(Segment {
                first: commit,
                end: 0,
                allocated: 0,
            });
        }
        let segment = self.segments.back_mut().expect("there is a segment now");
        self.blocks.clear();
        block::encode(commit, self.synced + 1, &self.pending, &mut self.blocks);
        let end = segment.end + self.blocks.len() as u64;
        let mut allocated = segment.allocated;
        if end > allocated {
            allocated = end
                + self
                    .config
                    .extend_bytes
                    .next_multiple_of(BLOCK_BYTES as u64);
            self.blocks.resize((allocated - segment.end) as usize, 0);
        }
        let name = segment_name(segment.first);
        self.storage.write_at(&name, segment.end, &self.blocks)?;
        self.storage.sync(&name)?;
        segment.end = end;
        segment.allocated = allocated;
        self.last_commit = commit;
        self.synced = self.appended;
        self.pending.clear();
        Ok(())
    }

    /// The witness learns of the last commit.
    fn testify(&mut self) -> Result<(), StorageError> {
        let unsynced = self.last_commit - self.witness.synced_commit();
        let durable = match unsynced < self.config.witness_sync_commits {
            true => Durable::No,
            false => Durable::Yes,
        };
        self.testify_from(self.witness.first(), durable)
    }

    fn testify_from(&mut self, first: u64, durable: Durable) -> Result<(), StorageError> {
        self.witness
            .testify(self.storage.as_mut(), self.last_commit, first, durable)?;
        self.committed = self.synced;
        Ok(())
    }

    /// Returns the number of the last record appended.
    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// Returns the number of the last record that is durable.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Bytes of all segments, without preallocated space.
    pub fn len_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns the number of the segment of the next commit, or a lower one.
    fn segment(&self) -> u64 {
        match self.segments.back() {
            Some(segment) if !self.rolls => segment.first,
            _ => self.last_commit + 1,
        }
    }

    /// Makes the next commit start a new segment.
    pub fn roll(&mut self) {
        self.rolls = self.segments.back().is_some_and(|segment| segment.end > 0);
    }

    /// Commit, then remove all segments before `segment`: everything in them that still counts must have been appended
    /// again.
    pub fn drop_before(&mut self, segment: u64) -> Result<(), StorageError> {
        self.forget_before(segment)?;
        while self.has_forgotten() {
            self.remove_forgotten()?;
        }
        Ok(())
    }

    /// As [`Journal::drop_before`], but the files stay until [`Journal::remove_forgotten`] or the next start removes
    /// them.
    pub fn forget_before(&mut self, segment: u64) -> Result<(), StorageError> {
        self.commit()?;
        assert!(segment <= self.last_commit + 1, "no such segment yet");
        if segment > self.witness.first() {
            self.testify_from(segment, Durable::Yes)?;
        }
        Ok(())
    }

    /// Returns whether there are files that no longer count.
    pub fn has_forgotten(&self) -> bool {
        let oldest = self.segments.front();
        oldest.is_some_and(|segment| segment.first < self.witness.first())
    }

    /// Removes the oldest file that no longer counts, if there is one.
    pub fn remove_forgotten(&mut self) -> Result<(), StorageError> {
        if !self.has_forgotten() {
            return Ok(());
        }
        if let Some(oldest) = self.segments.front() {
            match self.storage.remove(&segment_name(oldest.first)) {
                Ok(()) | Err(StorageError::NotFound { .. }) => drop(self.segments.pop_front()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Starts a segment with the records that `records` appends, which must contain the whole live state, and removes
    /// the earlier segments. An error has no effect.
    pub fn snapshot(
        &mut self,
        records: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<(), StorageError> {
        let segment = self.begin_segment()?;
        self.append_now(records)?;
        self.drop_before(segment)
    }

    /// Makes the next commit start a new segment, and returns its number: once it and later ones contain the whole live
    /// state, earlier ones can be dropped.
    pub fn begin_segment(&mut self) -> Result<u64, StorageError> {
        self.commit()?;
        self.roll();
        Ok(self.segment())
    }

    /// Commits what is pending, and then these records. After an error, those that were not written count as never
    /// appended.
    pub fn append_now(
        &mut self,
        records: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<(), StorageError> {
        self.commit()?;
        let mut failure = None;
        let commit_bytes = self.config.snapshot_commit_bytes;
        records(&mut |record| {
            if failure.is_none() {
                self.append(record);
                if self.pending.len() >= commit_bytes {
                    failure = self.commit().err();
                }
            }
        });
        let done = failure.map_or_else(|| self.commit(), Err);
        if done.is_err() {
            self.pending.clear();
            self.appended = self.synced;
        }
        done
    }
}
