//! The journal's guarantees under power failures, failing disks and damage.

use std::collections::BTreeMap;

use inband_storage::{
    Cut, Disk, Failure, Journal, JournalConfig, JournalError, SimulatedDisk, Storage, StorageError,
};
use inband_testing::random::chooser;

const SMALL: JournalConfig = JournalConfig {
    segment_bytes: 24 << 10,
    extend_bytes: 8 << 10,
    snapshot_commit_bytes: 4 << 20,
    witness_sync_commits: 3,
};
const BLOCK_BYTES: u64 = 4096;

fn open(disk: &SimulatedDisk) -> Result<(Journal, Vec<Vec<u8>>), JournalError> {
    let mut records = Vec::new();
    let journal = Journal::open(Box::new(disk.clone()), SMALL, &mut |record| {
        records.push(record.to_vec());
    })?;
    Ok((journal, records))
}

fn snapshot(journal: &mut Journal, records: &[&[u8]]) -> Result<(), StorageError> {
    journal.snapshot(|append| records.iter().for_each(|record| append(record)))
}

fn records_of(disk: &SimulatedDisk) -> Vec<Vec<u8>> {
    open(disk).unwrap().1
}

fn is_damaged(disk: &SimulatedDisk) -> bool {
    match open(disk) {
        Err(JournalError::Damaged { .. }) => true,
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

#[test]
fn what_was_committed_is_there_in_order() {
    let disk = SimulatedDisk::new();
    let (mut journal, empty) = open(&disk).unwrap();
    assert!(empty.is_empty());
    let records: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; usize::from(i) * 97]).collect();
    for (i, record) in records.iter().enumerate() {
        assert_eq!(journal.append(record), i as u64 + 1);
        if i % 3 == 2 {
            journal.commit().unwrap();
            assert_eq!(journal.committed(), journal.appended());
        }
    }
    assert!(journal.segments() > 2, "it rolls by itself");
    drop(journal);
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    let (mut journal, replayed) = open(&disk).unwrap();
    assert_eq!(replayed, records);
    assert_eq!(journal.append(b"one more"), 61);
    journal.commit().unwrap();
    assert_eq!(records_of(&disk).len(), 61);
}

#[test]
fn a_commit_is_one_sync_however_many_records_it_has() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(b"the segment is there");
    journal.commit().unwrap();
    let syncs_of_commit = |journal: &mut Journal, records: u8| {
        let before = disk.syncs();
        for i in 0..records {
            journal.append(&[i; 10]);
        }
        journal.commit().unwrap();
        disk.syncs() - before
    };
    assert_eq!(syncs_of_commit(&mut journal, 20), 1);
    assert_eq!(syncs_of_commit(&mut journal, 1), 2, "and the witness's");
    assert_eq!(syncs_of_commit(&mut journal, 0), 0, "nothing to commit");
    let syncs = (0..3).map(|_| syncs_of_commit(&mut journal, 1));
    assert_eq!(syncs.sum::<u64>(), 3 + 1, "the witness's once in three");
}

#[test]
fn a_snapshot_replaces_what_was_before() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for i in 0..200u8 {
        journal.append(&[i; 500]);
        journal.commit().unwrap();
    }
    let before = journal.len_bytes();
    snapshot(&mut journal, &[b"state", b"more"]).unwrap();
    assert_eq!(journal.segments(), 1);
    assert!(journal.len_bytes() < before / 50 && disk.used_bytes() < before / 10);
    journal.append(b"then");
    journal.commit().unwrap();
    drop(journal);
    assert_eq!(records_of(&disk), [&b"state"[..], b"more", b"then"]);
}

#[test]
fn an_empty_snapshot_is_an_empty_journal() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(b"x");
    snapshot(&mut journal, &[]).unwrap();
    drop(journal);
    let (mut journal, records) = open(&disk).unwrap();
    assert!(records.is_empty());
    journal.append(b"y");
    journal.commit().unwrap();
    drop(journal);
    assert_eq!(records_of(&disk), [b"y"]);
}

#[test]
fn a_discarded_journal_begins_anew_and_a_half_discarded_one_is_damaged() {
    let disk = built();
    disk.power_off_at(disk.operations() + 2);
    assert!(Journal::discard(&mut disk.clone()).is_err());
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    assert!(is_damaged(&disk));
    Journal::discard(&mut disk.clone()).unwrap();
    assert!(records_of(&disk).is_empty());
}

#[test]
fn a_full_disk_fails_typed_loses_nothing_and_goes_on() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(b"before");
    journal.commit().unwrap();
    disk.set_free_bytes(Some(1000));
    let mut appended = 1;
    let error = loop {
        journal.append(&[7; 3000]);
        appended += 1;
        match journal.commit() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StorageError::NoSpace { .. }), "{error}");
    assert_eq!(journal.committed(), appended - 1);
    assert!(journal.commit().unwrap_err().is_no_space());
    assert_eq!(
        open(&disk.duplicate()).unwrap().1.len() as u64,
        appended - 1
    );
    disk.set_free_bytes(Some(1 << 20));
    journal.commit().unwrap();
    assert_eq!(journal.committed(), appended);
    drop(journal);
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    assert_eq!(records_of(&disk).len() as u64, appended);
}

#[test]
fn a_snapshot_that_finds_the_disk_full_can_be_tried_again() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(b"before");
    journal.commit().unwrap();
    disk.set_free_bytes(Some(100));
    for _ in 0..3 {
        assert!(snapshot(&mut journal, &[b"state"])
            .unwrap_err()
            .is_no_space());
        assert_eq!(journal.appended(), 1);
    }
    assert_eq!(open(&disk.duplicate()).unwrap().1, [b"before"]);
    disk.set_free_bytes(None);
    snapshot(&mut journal, &[b"state"]).unwrap();
    drop(journal);
    assert_eq!(records_of(&disk), [b"state"]);
}

/// A commit that failed in one segment, complete but for its sync, is repeated in the next one.
#[test]
fn a_commit_that_moved_to_the_next_segment_counts_once() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(b"a");
    journal.commit().unwrap();
    journal.append(b"b");
    disk.fail_at(disk.operations() + 1, Failure::Io);
    journal.commit().unwrap_err();
    journal.roll();
    journal.commit().unwrap();
    drop(journal);
    assert_eq!(records_of(&disk), [b"a", b"b"]);
}

#[test]
fn a_journal_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk = Disk::open(dir.path()).unwrap();
        let mut records = Vec::new();
        let mut replay = |record: &[u8]| records.push(record.to_vec());
        let journal = Journal::open(Box::new(disk), SMALL, &mut replay).unwrap();
        (journal, records)
    };
    let (mut journal, _) = open();
    for i in 0..20u8 {
        journal.append(&[i; 2000]);
        journal.commit().unwrap();
    }
    drop(journal);
    let (mut journal, records) = open();
    assert_eq!(
        records,
        (0..20u8).map(|i| vec![i; 2000]).collect::<Vec<_>>()
    );
    snapshot(&mut journal, &[b"state"]).unwrap();
    drop(journal);
    assert_eq!(open().1, [b"state"]);
}

#[test]
fn a_snapshot_may_be_larger_than_what_is_committed_at_once() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(b"before");
    let record = vec![7; 1 << 20];
    let twenty = |append: &mut dyn FnMut(&[u8])| (0..20).for_each(|_| append(&record));
    disk.set_free_bytes(Some(10 << 20));
    assert!(journal.snapshot(twenty).unwrap_err().is_no_space());
    disk.set_free_bytes(None);
    journal.snapshot(twenty).unwrap();
    drop(journal);
    assert_eq!(records_of(&disk), vec![record.clone(); 20]);
}

// Damage.

/// A small journal of several segments, with commits of one and of several blocks.
fn built() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for i in 0..4u8 {
        for record in 0..=i {
            journal.append(&vec![i * 16 + record; usize::from(i) * 900]);
        }
        journal.commit().unwrap();
        if i % 2 == 0 {
            journal.roll();
        }
    }
    disk
}

fn files(disk: &SimulatedDisk) -> Vec<(String, u64)> {
    let names = disk.list().unwrap().into_iter();
    names
        .map(|name| {
            let len_bytes = disk.len_bytes(&name).unwrap();
            (name, len_bytes)
        })
        .collect()
}

#[test]
fn a_flipped_byte_anywhere_is_detected_or_changes_nothing() {
    let disk = built();
    let whole = records_of(&disk);
    let (mut detected, mut harmless) = (0, 0);
    for (name, len_bytes) in files(&disk) {
        for offset in 0..len_bytes {
            let copy = disk.duplicate();
            assert!(copy.corrupt(&name, offset, 1 << (offset % 8)));
            match open(&copy) {
                Err(JournalError::Damaged { .. }) => detected += 1,
                Err(error) => panic!("{error}"),
                Ok((_, records)) => {
                    assert_eq!(records, whole, "{name} at {offset}");
                    harmless += 1;
                }
            }
        }
    }
    // Harmless damage: each slot of the witness alone, and preallocated space in segments.
    assert!(
        detected >= 6 * BLOCK_BYTES && harmless >= 2 * BLOCK_BYTES,
        "{detected} {harmless}"
    );
}

#[test]
fn lost_blocks_are_detected_or_change_nothing() {
    let disk = built();
    let whole = records_of(&disk);
    let mut detected = 0;
    for (name, len_bytes) in files(&disk) {
        let blocks = len_bytes / BLOCK_BYTES;
        for (from, to) in (0..blocks).flat_map(|from| (from + 1..=blocks).map(move |to| (from, to)))
        {
            let mut copy = disk.duplicate();
            let zeros = vec![0; ((to - from) * BLOCK_BYTES) as usize];
            copy.write_at(&name, from * BLOCK_BYTES, &zeros).unwrap();
            match open(&copy) {
                Err(JournalError::Damaged { .. }) => detected += 1,
                Err(error) => panic!("{error}"),
                Ok((_, records)) => assert_eq!(records, whole, "{name} {from}..{to}"),
            }
        }
    }
    assert!(detected > 10, "{detected}");
}

#[test]
fn a_file_cut_short_is_detected_or_changes_nothing() {
    let disk = built();
    let whole = records_of(&disk);
    for (name, len_bytes) in files(&disk) {
        let mut detected = 0;
        for len_bytes in (0..len_bytes).step_by(512) {
            let mut copy = disk.duplicate();
            copy.truncate(&name, len_bytes).unwrap();
            match open(&copy) {
                Err(JournalError::Damaged { .. }) => detected += 1,
                Err(error) => panic!("{error}"),
                Ok((_, records)) => assert_eq!(records, whole, "{name} of {len_bytes}"),
            }
        }
        assert!(detected > 0, "{name}");
    }
}

#[test]
fn a_lost_file_is_detected() {
    let disk = built();
    for (name, _) in files(&disk) {
        let mut copy = disk.duplicate();
        copy.remove(&name).unwrap();
        assert!(is_damaged(&copy), "{name}");
    }
}

#[test]
fn a_witness_of_another_time_is_detected() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let early = disk.read("synced").unwrap();
    for _ in 0..=SMALL.witness_sync_commits {
        journal.append(b"x");
        journal.commit().unwrap();
    }
    disk.clone().replace("synced", &early).unwrap();
    assert!(is_damaged(&disk));
}

/// The witness is not synced with each commit: what it may lack after a power failure, and what nevertheless counts.
#[test]
fn a_damaged_last_commit_is_detected_unless_the_power_failed_meanwhile() {
    for commits in 1..=6 {
        let disk = SimulatedDisk::new();
        let (mut journal, _) = open(&disk).unwrap();
        for number in 1..=commits {
            journal.append(&[number]);
            journal.commit().unwrap();
        }
        drop(journal);
        let failed = disk.duplicate();
        failed.power_cut(Cut::Unsynced, &mut chooser(1));
        assert_eq!(records_of(&failed.duplicate()).len(), usize::from(commits));
        let segment = files(&disk)[0].0.clone();
        let last = u64::from(commits - 1) * BLOCK_BYTES;
        disk.corrupt(&segment, last, 1);
        assert!(is_damaged(&disk), "{commits}");
        failed.corrupt(&segment, last, 1);
        let is_witness_synced = u64::from(commits) % SMALL.witness_sync_commits == 0;
        assert_eq!(
            is_damaged(&failed.duplicate()),
            is_witness_synced,
            "{commits}"
        );
        if !is_witness_synced {
            assert_eq!(records_of(&failed).len(), usize::from(commits) - 1);
        }
    }
}

/// A documented limitation: two blocks damaged in exactly this way.
#[test]
fn the_last_commit_and_the_newer_slot_together_look_like_a_torn_tail() {
    let disk = SimulatedDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for record in [b"a", b"b"] {
        journal.append(record);
        journal.commit().unwrap();
    }
    drop(journal);
    let segment = files(&disk)[0].0.clone();
    disk.corrupt(&segment, BLOCK_BYTES, 1);
    assert!(is_damaged(&disk.duplicate()));
    let slot = [0, BLOCK_BYTES].into_iter().find(|slot| {
        let copy = disk.duplicate();
        copy.corrupt("synced", *slot, 1);
        !is_damaged(&copy)
    });
    disk.corrupt("synced", slot.expect("one of the slots is the newer"), 1);
    assert_eq!(records_of(&disk), [b"a"]);
}

// Power cuts at every operation, and at random.

/// The model: record number `n` sets a key to `n`. So a state shows which records produced it.
#[derive(Default)]
struct Model {
    keys: Vec<u8>,
    committed: usize,
}

type Table = BTreeMap<u8, usize>;

impl Model {
    fn record(&mut self, key: u8, padding: usize) -> Vec<u8> {
        self.keys.push(key);
        record(key, self.keys.len(), padding)
    }

    fn table(&self, records: usize) -> Table {
        let numbered = self.keys[..records].iter().zip(1..);
        numbered.map(|(key, number)| (*key, number)).collect()
    }

    /// Checks that a journal may contain this now. From now on it must.
    fn check(&mut self, replayed: &[Vec<u8>]) -> Result<(), String> {
        let mut table = Table::new();
        for record in replayed {
            let number = u64::from_le_bytes(record[1..9].try_into().unwrap()) as usize;
            let key_before = table.insert(record[0], number);
            if key_before.is_some_and(|before| before > number) {
                return Err(format!("record {number} came after a later one"));
            }
        }
        let last = table.values().max().copied().unwrap_or(0);
        if last < self.committed {
            return Err(format!(
                "{} were committed, {last} are there",
                self.committed
            ));
        }
        if last > self.keys.len() || table != self.table(last) {
            return Err(format!(
                "it holds something else than the first {last} records"
            ));
        }
        self.keys.truncate(last);
        self.committed = last;
        Ok(())
    }
}

fn record(key: u8, number: usize, padding: usize) -> Vec<u8> {
    let mut record = vec![key];
    record.extend_from_slice(&(number as u64).to_le_bytes());
    record.resize(record.len() + padding, key);
    record
}

const CUTS: [Cut; 3] = [Cut::Unsynced, Cut::Torn, Cut::Scattered];

/// One schedule: appends, commits, snapshots, failures, kills and power failures.
fn schedule(seed: u64, lies: bool) -> Result<(), String> {
    let mut choose = chooser(seed);
    let disk = SimulatedDisk::new();
    disk.lie_about_sync(lies);
    let mut model = Model::default();
    let (mut journal, _) = open(&disk).map_err(|e| e.to_string())?;
    for _ in 0..60 {
        match choose(20) {
            0..=8 => {
                let padding = if choose(5) == 0 {
                    choose(10_000)
                } else {
                    choose(60)
                };
                let record = model.record(choose(8) as u8, padding as usize);
                journal.append(&record);
            }
            9..=12 => {
                let done = journal.commit();
                model.commit(done.is_ok());
            }
            13 => journal.roll(),
            14 => {
                let done = journal.commit().is_ok();
                model.commit(done);
                let state: Vec<_> = model.table(model.committed).into_iter().collect();
                let records: Vec<_> = state.iter().map(|(k, n)| record(*k, *n, 20)).collect();
                if done {
                    let _ =
                        journal.snapshot(|append| records.iter().for_each(|record| append(record)));
                }
            }
            15 => disk.fail_at(disk.operations() + choose(6), Failure::Io),
            16 => disk.fail_at(disk.operations() + choose(6), Failure::NoSpace),
            17 => disk.set_free_bytes(Some(choose(20_000))),
            18 => disk.power_off_at(disk.operations() + choose(8)),
            _ => {
                drop(journal);
                let cut = CUTS[choose(3) as usize];
                // Only killed: what was written is still there, synced or not.
                if choose(3) > 0 {
                    disk.power_cut(cut, &mut choose);
                }
                disk.set_free_bytes(None);
                journal = reopen(&disk, &mut model, &mut choose)?;
            }
        }
    }
    Ok(())
}

/// Opens the journal, however often the power fails meanwhile.
fn reopen(
    disk: &SimulatedDisk,
    model: &mut Model,
    choose: &mut impl FnMut(u64) -> u64,
) -> Result<Journal, String> {
    loop {
        match open(disk) {
            Ok((journal, replayed)) => {
                model.check(&replayed)?;
                return Ok(journal);
            }
            Err(JournalError::Storage(_)) => disk.power_cut(CUTS[choose(3) as usize], choose),
            Err(damaged) => return Err(damaged.to_string()),
        }
    }
}

impl Model {
    fn commit(&mut self, done: bool) {
        if done {
            self.committed = self.keys.len();
        }
    }
}

#[test]
fn no_schedule_loses_or_invents_a_record() {
    for seed in 0..20_000 {
        if let Err(what) = schedule(seed, false) {
            panic!("seed {seed}: {what}");
        }
    }
}

/// The same checker on a disk that lies must detect it, or the test above shows nothing.
#[test]
fn a_lying_disk_is_caught() {
    let caught = (0..2_000)
        .filter(|seed| schedule(*seed, true).is_err())
        .count();
    assert!(caught > 1_000, "{caught} of 2000");
}

/// Appends, commits, rolls and a snapshot. Stops at the first error.
fn script(journal: &mut Journal, model: &mut Model) -> Result<(), StorageError> {
    for step in 0..12u8 {
        let record = model.record(step % 5, usize::from(step) * 600);
        journal.append(&record);
        if step % 2 == 1 {
            journal.commit()?;
            model.commit(true);
        }
        if step == 5 {
            journal.roll();
        }
        if step == 7 {
            let state = model.table(model.committed);
            let records: Vec<_> = state.into_iter().map(|(k, n)| record_of(k, n)).collect();
            journal.snapshot(|append| records.iter().for_each(|record| append(record)))?;
        }
    }
    Ok(())
}

fn record_of(key: u8, number: usize) -> Vec<u8> {
    record(key, number, 30)
}

#[test]
fn the_power_may_fail_at_any_operation() {
    let disk = SimulatedDisk::new();
    script(&mut open(&disk).unwrap().0, &mut Model::default()).unwrap();
    let operations = disk.operations();
    assert!(operations > 20);
    for off_at in 0..operations {
        for (seed, cut) in CUTS.iter().cycle().take(30).enumerate() {
            let mut choose = chooser(seed as u64);
            let disk = SimulatedDisk::new();
            disk.power_off_at(off_at);
            let mut model = Model::default();
            if let Ok((mut journal, _)) = open(&disk) {
                script(&mut journal, &mut model).unwrap_err();
            }
            disk.power_cut(*cut, &mut choose);
            let mut journal = reopen(&disk, &mut model, &mut choose)
                .unwrap_or_else(|what| panic!("off at {off_at}, {cut:?}, {seed}: {what}"));
            // And it continues to work.
            journal.append(&model.record(1, 10));
            journal.commit().unwrap();
            model.commit(true);
            drop(journal);
            disk.power_cut(Cut::Unsynced, &mut choose);
            reopen(&disk, &mut model, &mut choose).unwrap();
        }
    }
}

/// The first power failure takes the witness of what was committed, so that opening the journal writes the last commit
/// again; meanwhile the power fails again, at each operation.
#[test]
fn the_power_may_fail_again_while_the_journal_is_opened() {
    for (off_after, seed) in
        (0..12).flat_map(|off_after| (0..60).map(move |seed| (off_after, seed)))
    {
        let mut choose = chooser(seed);
        let disk = SimulatedDisk::new();
        let mut model = Model::default();
        let (mut journal, _) = open(&disk).unwrap();
        for key in 0..2 {
            let padding = choose(9_000) as usize;
            journal.append(&model.record(key, padding));
            journal.commit().unwrap();
            model.commit(true);
        }
        journal.append(&model.record(3, 9_000));
        disk.power_off_at(disk.operations() + 1);
        journal.commit().unwrap_err();
        drop(journal);
        disk.power_cut(CUTS[choose(3) as usize], &mut choose);
        disk.power_off_at(disk.operations() + off_after);
        let journal = reopen(&disk, &mut model, &mut choose)
            .unwrap_or_else(|what| panic!("off after {off_after}, {seed}: {what}"));
        drop(journal);
        disk.power_cut(Cut::Unsynced, &mut choose);
        reopen(&disk, &mut model, &mut choose).unwrap();
    }
}

/// A slot of the witness with a valid checksum: turn, commit, first commit needed.
fn witness_slot(numbers: [u64; 3]) -> Vec<u8> {
    let mut slot = vec![0; 8];
    slot.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    slot.resize(BLOCK_BYTES as usize, 0);
    let seed = u64::from_le_bytes(*b"inbandJ1");
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&slot[8..], seed);
    slot[..8].copy_from_slice(&sum.to_le_bytes());
    slot
}

/// Found by the fuzzer (target `journal`): numbers that no journal writes, with a valid checksum.
#[test]
fn a_witness_that_says_what_cannot_be_is_damage() {
    for numbers in [
        [2, 1, 0],
        [2, 0, 7],
        [2, u64::MAX, 1],
        [u64::MAX, 1, 1],
        [2, u64::MAX, u64::MAX],
    ] {
        for with_segments in [false, true] {
            let mut disk = SimulatedDisk::new();
            if with_segments {
                let (mut journal, _) = open(&disk).unwrap();
                journal.append(b"record");
                journal.commit().unwrap();
            }
            let slots = [witness_slot(numbers), witness_slot(numbers)].concat();
            disk.replace("synced", &slots).unwrap();
            assert!(is_damaged(&disk), "{numbers:?}");
        }
    }
}
