//! An in-memory directory whose power can be cut.
//!
//! Deterministic: the caller provides the source of randomness.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::storage::{Storage, StorageError};

/// Size that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// What a power failure leaves of unsynced changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    Unsynced,
    /// The first few writes of each file and changes of the directory; the last write torn at any byte.
    Torn,
    /// Any of the written sectors, in any order, and any of the directory's changes. A sector that was being written
    /// may contain garbage, even where it held synced bytes before.
    Scattered,
}

/// How an operation should fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The disk is full.
    NoSpace,
    /// Input/output error. A sync that fails like this discards what it should have written, as on Linux: the next sync
    /// of the file succeeds without it.
    Io,
}

/// A simulated directory. Clones are handles of the same directory: give one to the code under test, and keep one to
/// cut the power.
#[derive(Debug, Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Contents>,
    next_file: u64,
    dir: BTreeMap<String, u64>,
    durable_dir: BTreeMap<String, u64>,
    unsynced_dir: Vec<DirChange>,
    free_bytes: Option<u64>,
    lies: bool,
    operations: u64,
    syncs: u64,
    bytes_written: u64,
    failure: Option<(u64, Failure)>,
    power_off_at: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct Contents {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Debug, Clone)]
enum DirChange {
    Link(String, u64),
    Rename(String, String),
    Unlink(String),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Write(offset, bytes) => {
                let end = offset + bytes.len();
                to.resize(to.len().max(end), 0);
                to[*offset..end].copy_from_slice(bytes);
            }
            Change::Length(len) => to.resize(*len, 0),
        }
    }
}

impl DirChange {
    fn apply(&self, to: &mut BTreeMap<String, u64>) {
        match self {
            DirChange::Link(name, file) => {
                to.insert(name.clone(), *file);
            }
            DirChange::Rename(from, name) => {
                if let Some(file) = to.remove(from) {
                    to.insert(name.clone(), file);
                }
            }
            DirChange::Unlink(name) => {
                to.remove(name);
            }
        }
    }
}

/// Returns a number below its argument, which must not be 0.
type Choose<'a> = &'a mut dyn FnMut(u64) -> u64;

impl SimulatedDisk {
    /// Creates an empty directory on a disk of unlimited size.
    pub fn new() -> SimulatedDisk {
        SimulatedDisk::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics while holding the disk")
    }

    /// Power fails and returns. `choose(bound)` returns a number below `bound`, and decides which unsynced changes
    /// survive. Pending power-offs and failures are cleared.
    pub fn power_cut(&self, cut: Cut, choose: &mut dyn FnMut(u64) -> u64) {
        let mut state = self.state();
        state.power_off_at = None;
        state.failure = None;
        let changes = std::mem::take(&mut state.unsynced_dir);
        let mut dir = std::mem::take(&mut state.durable_dir);
        let first = kept(cut, changes.len(), choose);
        for (at, change) in changes.iter().enumerate() {
            if at < first || (cut == Cut::Scattered && choose(2) == 0) {
                change.apply(&mut dir);
            }
        }
        state.files.retain(|id, _| dir.values().any(|f| f == id));
        for contents in state.files.values_mut() {
            contents.cut(cut, choose);
        }
        state.durable_dir = dir.clone();
        state.dir = dir;
    }

    /// All operations from number `operation` on fail, until [`SimulatedDisk::power_cut`]. The first operation has
    /// number 0; see [`SimulatedDisk::operations`].
    pub fn power_off_at(&self, operation: u64) {
        self.state().power_off_at = Some(operation);
    }

    /// Makes one operation fail without any other effect.
    pub fn fail_at(&self, operation: u64, failure: Failure) {
        self.state().failure = Some((operation, failure));
    }

    /// Returns the number of modifying operations so far. A change of the directory and its sync count as two.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Returns the number of syncs so far, of files and of the directory.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Returns the number of bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.state().bytes_written
    }

    /// Total size of all files.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Limits the growth of all files to this many bytes in total; `None`: no limit.
    pub fn set_free_bytes(&self, free_bytes: Option<u64>) {
        self.state().free_bytes = free_bytes;
    }

    /// Makes every sync succeed without effect, as on some disks. For control runs: a durability test that does not
    /// detect this tests nothing.
    pub fn lie_about_sync(&self, lies: bool) {
        self.state().lies = lies;
    }

    /// Flip the bits of `mask` in one byte, in memory and on disk. Returns false if the file is shorter.
    pub fn corrupt(&self, file: &str, offset: u64, mask: u8) -> bool {
        let mut state = self.state();
        let Some(id) = state.dir.get(file).copied() else {
            return false;
        };
        let at = offset as usize;
        let contents = state.files.get_mut(&id).expect("a name has a file");
        let mut hit = false;
        for bytes in [&mut contents.live, &mut contents.durable] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= mask;
                hit = true;
            }
        }
        hit
    }

    /// Returns a copy of the current disk, including unsynced changes.
    pub fn duplicate(&self) -> SimulatedDisk {
        let state = self.state();
        let files = state.files.iter();
        let copy = State {
            files: files.map(|(id, f)| (*id, f.clone())).collect(),
            next_file: state.next_file,
            dir: state.dir.clone(),
            durable_dir: state.durable_dir.clone(),
            unsynced_dir: state.unsynced_dir.clone(),
            ..State::default()
        };
        SimulatedDisk(Arc::new(Mutex::new(copy)))
    }
}

/// Returns how many of the first `changes` changes certainly survive.
fn kept(cut: Cut, changes: usize, choose: Choose<'_>) -> usize {
    match cut {
        Cut::Torn => choose(changes as u64 + 1) as usize,
        Cut::Unsynced | Cut::Scattered => 0,
    }
}

impl Contents {
    fn cut(&mut self, cut: Cut, choose: Choose<'_>) {
        let changes = std::mem::take(&mut self.unsynced);
        match cut {
            Cut::Unsynced => {}
            Cut::Torn => {
                let first = kept(cut, changes.len(), choose);
                for change in &changes[..first] {
                    change.apply(&mut self.durable);
                }
                if let Some(Change::Write(offset, bytes)) = changes.get(first) {
                    let torn = &bytes[..choose(bytes.len() as u64 + 1) as usize];
                    Change::Write(*offset, torn.to_vec()).apply(&mut self.durable);
                }
            }
            Cut::Scattered => changes.iter().for_each(|c| self.scatter(c, choose)),
        }
        self.live = self.durable.clone();
    }

    /// Any sectors of one change are written, others are not, and one may be garbage.
    fn scatter(&mut self, change: &Change, choose: Choose<'_>) {
        let Change::Write(offset, bytes) = change else {
            if choose(2) == 0 {
                change.apply(&mut self.durable);
            }
            return;
        };
        let end = offset + bytes.len();
        let mut at = *offset;
        while at < end {
            let sector_end = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
            let part_end = sector_end.min(end);
            match choose(8) {
                0..=3 => Change::Write(at, bytes[at - offset..part_end - offset].to_vec())
                    .apply(&mut self.durable),
                4 => {
                    let start = sector_end - SECTOR_BYTES;
                    let garbage = choose(255) as u8 + 1;
                    let len = self.durable.len().max(part_end);
                    self.durable.resize(len, 0);
                    let stop = sector_end.min(len);
                    self.durable[start..stop]
                        .iter_mut()
                        .for_each(|b| *b ^= garbage);
                }
                _ => {}
            }
            at = part_end;
        }
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        let files = self.dir.values().filter_map(|id| self.files.get(id));
        files.map(|f| f.live.len() as u64).sum()
    }

    /// Counts an operation, and makes it fail if it should.
    fn operate(&mut self, file: &str) -> Result<(), StorageError> {
        let operation = self.operations;
        if self.power_off_at.is_some_and(|at| operation >= at) {
            return Err(error(file, io::ErrorKind::Other, "the power is off"));
        }
        self.operations += 1;
        match self.failure {
            Some((at, failure)) if at == operation => {
                self.failure = None;
                Err(match failure {
                    Failure::NoSpace => error(file, io::ErrorKind::StorageFull, "simulated"),
                    Failure::Io => error(file, io::ErrorKind::Other, "simulated"),
                })
            }
            _ => Ok(()),
        }
    }

    fn is_off(&self) -> bool {
        self.power_off_at.is_some_and(|at| self.operations >= at)
    }

    fn find(&self, file: &str) -> Result<u64, StorageError> {
        let found = self.dir.get(file).copied();
        found.ok_or_else(|| StorageError::NotFound {
            path: file.to_owned(),
        })
    }

    fn contents(&mut self, file: &str) -> Result<&mut Contents, StorageError> {
        let id = self.find(file)?;
        Ok(self.files.get_mut(&id).expect("a name has a file"))
    }

    fn freed(&mut self, bytes: usize) {
        self.free_bytes = self.free_bytes.map(|free| free + bytes as u64);
    }

    /// Changes the directory, and syncs it.
    fn change_dir(&mut self, change: DirChange, file: &str) -> Result<(), StorageError> {
        change.apply(&mut self.dir);
        self.unsynced_dir.push(change);
        self.operate(file)?;
        self.syncs += 1;
        if !self.lies {
            self.durable_dir = self.dir.clone();
            self.unsynced_dir.clear();
        }
        Ok(())
    }
}

fn error(file: &str, kind: io::ErrorKind, what: &'static str) -> StorageError {
    StorageError::from_io(file, io::Error::new(kind, what))
}

impl Storage for SimulatedDisk {
    fn list(&self) -> Result<Vec<String>, StorageError> {
        let state = self.state();
        if state.is_off() {
            return Err(error("", io::ErrorKind::Other, "the power is off"));
        }
        Ok(state.dir.keys().cloned().collect())
    }

    fn len_bytes(&self, file: &str) -> Result<u64, StorageError> {
        Ok(self.state().contents(file)?.live.len() as u64)
    }

    fn read_range(
        &self,
        file: &str,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Vec<u8>, StorageError> {
        let mut state = self.state();
        if state.is_off() {
            return Err(error(file, io::ErrorKind::Other, "the power is off"));
        }
        let live = &state.contents(file)?.live;
        let start = live
            .len()
            .min(usize::try_from(offset).unwrap_or(usize::MAX));
        let end = live.len().min(start.saturating_add(len_bytes));
        Ok(live[start..end].to_vec())
    }

    fn create(&mut self, file: &str) -> Result<(), StorageError> {
        let mut state = self.state();
        state.operate(file)?;
        let replaced = state.contents(file).map_or(0, |f| f.live.len());
        state.freed(replaced);
        let id = state.next_file;
        state.next_file += 1;
        state.files.insert(id, Contents::default());
        state.change_dir(DirChange::Link(file.to_owned(), id), file)
    }

    fn write_at(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let mut state = self.state();
        state.operate(file)?;
        let free = state.free_bytes.map(|bytes| bytes as usize);
        let contents = state.contents(file)?;
        let offset = usize::try_from(offset).expect("a file fits memory");
        if offset > contents.live.len() {
            return Err(error(file, io::ErrorKind::InvalidInput, "a hole"));
        }
        let growth = (offset + bytes.len()).saturating_sub(contents.live.len());
        let fits = bytes.len() - growth.saturating_sub(free.unwrap_or(growth));
        let change = Change::Write(offset, bytes[..fits].to_vec());
        change.apply(&mut contents.live);
        contents.unsynced.push(change);
        state.bytes_written += fits as u64;
        state.free_bytes = free.map(|free| free.saturating_sub(growth) as u64);
        if fits < bytes.len() {
            return Err(error(file, io::ErrorKind::StorageFull, "the disk is full"));
        }
        Ok(())
    }

    fn truncate(&mut self, file: &str, len_bytes: u64) -> Result<(), StorageError> {
        let mut state = self.state();
        state.operate(file)?;
        let len = usize::try_from(len_bytes).expect("a file fits memory");
        let contents = state.contents(file)?;
        let before = contents.live.len();
        let change = Change::Length(len);
        change.apply(&mut contents.live);
        contents.unsynced.push(change);
        state.freed(before.saturating_sub(len));
        Ok(())
    }

    fn sync(&mut self, file: &str) -> Result<(), StorageError> {
        let mut state = self.state();
        let outcome = state.operate(file);
        if state.is_off() && outcome.is_err() {
            return outcome; // what was not synced may still survive the power cut
        }
        let lies = state.lies;
        state.syncs += 1;
        let contents = state.contents(file)?;
        if lies {
            return outcome;
        }
        for change in std::mem::take(&mut contents.unsynced) {
            if outcome.is_ok() {
                change.apply(&mut contents.durable);
            }
        }
        outcome
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let mut state = self.state();
        state.operate(from)?;
        state.find(from)?;
        let replaced = state.contents(to).map_or(0, |f| f.live.len());
        state.freed(replaced);
        state.change_dir(DirChange::Rename(from.to_owned(), to.to_owned()), to)
    }

    fn remove(&mut self, file: &str) -> Result<(), StorageError> {
        let mut state = self.state();
        state.operate(file)?;
        let removed = state.contents(file)?.live.len();
        state.freed(removed);
        state.change_dir(DirChange::Unlink(file.to_owned()), file)
    }
}
