//! The witness: a separate file that records how far the journal has been synced.
//!
//! It has two slots. One of them is always synced. The other one is written, as often as necessary, until it is synced too;
//! only then is the first one written again. So one of them is always intact.

use crate::block::{checksum, word, BLOCK_BYTES, NUMBER_END};
use crate::storage::{Storage, StorageError};

/// File name of the witness.
pub(crate) const WITNESS_FILE: &str = "synced";

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    /// The newer slot has the higher one. Its lowest bit is the slot's place.
    turn: u64,
    /// The last synced commit. Its answers may have been sent.
    commit: u64,
    /// First commit of the first segment that is needed.
    first: u64,
}

impl Slot {
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

    fn decode(slot: &[u8]) -> Option<Slot> {
        let whole = slot.len() == BLOCK_BYTES && word(slot, 0) == checksum(slot);
        let decoded = whole.then(|| Slot {
            turn: word(slot, 8),
            commit: word(slot, 16),
            first: word(slot, 24),
        });
        // No journal writes other numbers, and none can be continued from them.
        let known = |slot: &Slot| {
            slot.turn.max(slot.commit) < NUMBER_END && (1..=slot.commit + 1).contains(&slot.first)
        };
        decoded.filter(known)
    }
}

/// The contents of a witness file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Testimony {
    /// There is no file.
    Absent,
    /// Neither slot can be read.
    Unreadable,
    /// What the newer of the slots says, and whether the other one is readable too.
    Says(Witness, bool),
}

impl Testimony {
    pub fn read(storage: &dyn Storage) -> Result<Testimony, StorageError> {
        let bytes = match storage.read(WITNESS_FILE) {
            Ok(bytes) => bytes,
            Err(StorageError::NotFound { .. }) => return Ok(Testimony::Absent),
            Err(error) => return Err(error),
        };
        let slots: Vec<_> = bytes
            .chunks(BLOCK_BYTES)
            .take(2)
            .filter_map(Slot::decode)
            .collect();
        let newest = slots.iter().max_by_key(|slot| slot.turn);
        Ok(newest.map_or(Testimony::Unreadable, |newest| {
            let witness = Witness {
                synced: *newest,
                written: *newest,
            };
            Testimony::Says(witness, slots.len() == 2)
        }))
    }
}

/// Whether a testimony survives a power failure, or only the end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    No,
    Yes,
}

/// The witness file. One that was read must be [created](Witness::create) anew before it is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    /// The newest slot that survives a power failure.
    synced: Slot,
    /// The newest slot.
    written: Slot,
}

impl Witness {
    /// Replaces the witness with a new file with these contents. What was read from the old one need not be on disk.
    pub fn create(
        storage: &mut dyn Storage,
        commit: u64,
        first: u64,
    ) -> Result<Witness, StorageError> {
        let slots = [0, 1].map(|turn| Slot {
            turn,
            commit,
            first,
        });
        storage.replace(WITNESS_FILE, &slots.map(Slot::encode).concat())?;
        Ok(Witness {
            synced: slots[1],
            written: slots[1],
        })
    }

    /// The last commit known to be synced.
    pub fn commit(&self) -> u64 {
        self.written.commit
    }

    /// The last commit known to be synced after a power failure now.
    pub fn synced_commit(&self) -> u64 {
        self.synced.commit
    }

    /// First commit of the first segment that is needed.
    pub fn first(&self) -> u64 {
        self.written.first
    }

    /// Records that all commits up to `commit` are synced, and those before `first` are not needed.
    pub fn testify(
        &mut self,
        storage: &mut dyn Storage,
        commit: u64,
        first: u64,
        durable: Durable,
    ) -> Result<(), StorageError> {
        let next = Slot {
            turn: self.synced.turn + 1,
            commit,
            first,
        };
        let offset = (next.turn & 1) * BLOCK_BYTES as u64;
        storage.write_at(WITNESS_FILE, offset, &next.encode())?;
        if durable == Durable::Yes {
            storage.sync(WITNESS_FILE)?;
            self.synced = next;
        }
        self.written = next;
        Ok(())
    }
}
