//! A journal whose disk fails, loses power and is damaged: what was committed is there when the journal is opened
//! again, or opening reports damage. Its content is what was appended, in order.

use inband_storage::{Cut, Failure, Journal, JournalConfig, JournalError, SimulatedDisk, Storage};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::input::Input;

const CONFIG: JournalConfig = JournalConfig {
    segment_bytes: 16 << 10,
    extend_bytes: 8 << 10,
    snapshot_commit_bytes: 4 << 10,
    // So damage is detected also after a power failure.
    witness_sync_commits: 1,
};
const BLOCK_BYTES: u64 = 4096;
/// The seed of blocks' checksums (block.rs).
const FORMAT_SEED: u64 = u64::from_le_bytes(*b"inbandJ1");

struct Bench {
    disk: SimulatedDisk,
    journal: Option<Journal>,
    /// Since the last snapshot, in order.
    appended: Vec<Vec<u8>>,
    committed: usize,
    /// A snapshot failed: its records may be there or not.
    unsure: bool,
    /// How often bytes were changed behind the journal's back.
    damages: u32,
}

/// A sequence of steps.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut bench = Bench {
        disk: SimulatedDisk::new(),
        journal: None,
        appended: Vec::new(),
        committed: 0,
        unsure: false,
        damages: 0,
    };
    bench.open();
    while !input.is_empty() && bench.step(&mut input) {}
    bench.journal = None;
    bench.disk.power_cut(Cut::Unsynced, &mut |_| 0);
    bench.open();
}

impl Bench {
    /// Returns false once the journal is known to be damaged.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.byte() % 16 {
            0..=4 => {
                let (len_bytes, byte) = (input.below(9000), input.byte());
                if let Some(journal) = &mut self.journal {
                    let record = vec![byte; len_bytes];
                    journal.append(&record);
                    self.appended.push(record);
                }
            }
            5..=8 => self.commit(),
            9 => self.journal.iter_mut().for_each(Journal::roll),
            10 => self.snapshot(input.below(8)),
            11 => {
                let failure = [Failure::Io, Failure::NoSpace][input.below(2)];
                let operation = self.disk.operations() + input.below(16) as u64;
                self.disk.fail_at(operation, failure);
            }
            12 => {
                let operation = self.disk.operations() + input.below(16) as u64;
                self.disk.power_off_at(operation);
            }
            13 => {
                let cut = [Cut::Unsynced, Cut::Torn, Cut::Scattered][input.below(3)];
                let mut choose = |bound: u64| input.below(1 << 16) as u64 % bound;
                self.journal = None;
                self.disk.power_cut(cut, &mut choose);
                return self.open();
            }
            14 => {
                self.journal = None;
                self.damage(input);
                return self.open();
            }
            _ => {
                self.journal = None;
                return self.open();
            }
        }
        true
    }

    fn commit(&mut self) {
        if let Some(journal) = &mut self.journal {
            if journal.commit().is_ok() {
                self.committed = self.appended.len();
            }
        }
    }

    fn snapshot(&mut self, records: usize) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let records: Vec<Vec<u8>> = (0..records).map(|n| vec![n as u8; n * 700]).collect();
        let done = journal.snapshot(|append| records.iter().for_each(|record| append(record)));
        if done.is_ok() {
            (self.appended, self.committed) = (records, 0);
            self.committed = self.appended.len();
        } else {
            self.unsure = true;
            self.appended.extend(records);
        }
    }

    fn damage(&mut self, input: &mut Input<'_>) {
        // Pending failures have happened, and the power is on.
        self.disk.power_cut(Cut::Unsynced, &mut |_| 0);
        let names = self.disk.list().expect("it lists");
        let name = &names[input.below(256) % names.len()];
        let len_bytes = self.disk.len_bytes(name).expect("it is there");
        self.damages += 1;
        match input.byte() % 4 {
            0 => {
                let at = input.below(1 << 16) as u64 % len_bytes.max(1);
                self.disk.corrupt(name, at, 1 << (input.byte() % 8));
            }
            1 => {
                let to = input.below(1 << 16) as u64 % len_bytes.max(1);
                self.disk.truncate(name, to).expect("it truncates");
            }
            2 => self.disk.remove(name).expect("it removes"),
            _ => self.forge(name, len_bytes, input),
        }
    }

    /// A block with arbitrary numbers and a correct checksum.
    fn forge(&mut self, name: &str, len_bytes: u64, input: &mut Input<'_>) {
        self.damages += 1; // no real disk does that
        let at = (input.byte() as u64 * BLOCK_BYTES) % (len_bytes + 1) / BLOCK_BYTES * BLOCK_BYTES;
        let mut block = vec![0; 8];
        for _ in 0..5 {
            block.extend_from_slice(&input.number().to_le_bytes());
        }
        block.resize(BLOCK_BYTES as usize, 0);
        let sum = xxh3_64_with_seed(&block[8..], FORMAT_SEED);
        block[..8].copy_from_slice(&sum.to_le_bytes());
        self.disk.write_at(name, at, &block).expect("it writes");
    }

    /// Opens the journal; returns true if it can be used.
    fn open(&mut self) -> bool {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let opened = Journal::open(Box::new(self.disk.clone()), CONFIG, &mut |record| {
            found.push(record.to_vec());
        });
        match opened {
            Ok(journal) => {
                // Several damages together may look like an older journal, or like none.
                if self.damages <= 1 && !self.unsure {
                    self.holds(&found);
                }
                self.journal = Some(journal);
                (self.appended, self.committed) = (found.clone(), found.len());
                self.unsure = false;
                true
            }
            Err(JournalError::Damaged { file, what }) => {
                assert!(self.damages > 0, "nothing was damaged: {file}: {what}");
                false
            }
            Err(JournalError::Storage(_)) => true, // the disk fails, or its power is off
        }
    }

    fn holds(&self, found: &[Vec<u8>]) {
        assert!(found.len() >= self.committed, "committed records are gone");
        assert!(found.len() <= self.appended.len(), "more than was appended");
        assert!(
            found == &self.appended[..found.len()],
            "other records than were appended"
        );
    }
}
