//! The witness: a separate file that records how far the journal has been synced.
//!
//! Two slots are written alternately, so that one of them is always intact.

use crate::block::{checksum, word, BLOCK_BYTES, NUMBER_END};
use crate::storage::{Storage, StorageError};

/// File name of the witness.
pub(crate) const WITNESS_FILE: &str = "synced";
/// Leftover of a new witness after a power failure.
pub(crate) const WITNESS_TEMPORARY: &str = "synced.new";

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Witness {
    turn: u64,
    /// The last synced commit. Its answers may have been sent.
    pub commit: u64,
    /// First commit of the first segment that is needed.
    pub first: u64,
}

/// The contents of a witness file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Testimony {
    /// There is no file.
    Absent,
    /// Neither slot can be read.
    Unreadable,
    /// The newer of the slots, and whether the other one is readable too.
    Says(Witness, bool),
}

impl Witness {
    fn encode(self) -> Vec<u8> {
        let mut slot = vec![0; 8];
        for word in [self.turn, self.commit, self.first] {
            slot.extend_from_slice(&word.to_le_bytes());
        }
        slot.resize(BLOCK_BYTES, 0);
        let sum = checksum(&slot);
        slot[..8].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    fn decode(slot: &[u8]) -> Option<Witness> {
        let whole = slot.len() == BLOCK_BYTES && word(slot, 0) == checksum(slot);
        let witness = whole.then(|| Witness {
            turn: word(slot, 8),
            commit: word(slot, 16),
            first: word(slot, 24),
        });
        // No journal writes other numbers, and none can be continued from them.
        let known = |w: &Witness| {
            w.turn.max(w.commit) < NUMBER_END && (1..=w.commit + 1).contains(&w.first)
        };
        witness.filter(known)
    }

    /// Replaces the witness with a new file with these contents. What was read from the old one need not be on disk.
    pub fn create(
        storage: &mut dyn Storage,
        commit: u64,
        first: u64,
    ) -> Result<Witness, StorageError> {
        let slots = [0, 1].map(|turn| Witness {
            turn,
            commit,
            first,
        });
        storage.replace(WITNESS_FILE, &slots.map(Witness::encode).concat())?;
        Ok(slots[1])
    }

    pub fn read(storage: &dyn Storage) -> Result<Testimony, StorageError> {
        let bytes = match storage.read(WITNESS_FILE) {
            Ok(bytes) => bytes,
            Err(StorageError::NotFound { .. }) => return Ok(Testimony::Absent),
            Err(error) => return Err(error),
        };
        let slots: Vec<_> = bytes
            .chunks(BLOCK_BYTES)
            .take(2)
            .filter_map(Witness::decode)
            .collect();
        let newest = slots.iter().max_by_key(|slot| slot.turn);
        Ok(newest.map_or(Testimony::Unreadable, |newest| {
            Testimony::Says(*newest, slots.len() == 2)
        }))
    }

    /// Record that all commits up to `commit` are synced, and those before `first` are not needed.
    pub fn testify(
        &mut self,
        storage: &mut dyn Storage,
        commit: u64,
        first: u64,
    ) -> Result<(), StorageError> {
        let next = Witness {
            turn: self.turn + 1,
            commit,
            first,
        };
        let offset = (next.turn & 1) * BLOCK_BYTES as u64;
        storage.write_at(WITNESS_FILE, offset, &next.encode())?;
        storage.sync(WITNESS_FILE)?;
        *self = next;
        Ok(())
    }
}
