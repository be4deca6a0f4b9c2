//! Logs whose journal is rewritten, as a whole or in parts, with power failures meanwhile.

use super::*;
use crate::message::Kind;
use inband_storage::{Cut, SimulatedDisk};

fn entry(index: u64, term: u64) -> Vec<u8> {
    encode(&Record::Entry(Entry {
        kind: Kind::Command,
        term,
        index,
        data: bytes::Bytes::new(),
        context: bytes::Bytes::new(),
    }))
}

fn snapshot(index: u64) -> Vec<u8> {
    encode(&Record::Snapshot(Snapshot {
        index,
        term: 5,
        ..Snapshot::default()
    }))
}

fn replay(records: &[Vec<u8>]) -> Vec<(u64, u64)> {
    let mut replayed = Replayed::<Bytes>::default();
    records.iter().for_each(|record| replayed.take(record));
    assert_eq!(replayed.unreadable, None);
    let entries = replayed.entries.iter();
    entries.map(|entry| (entry.index, entry.term)).collect()
}

#[test]
fn a_rewriting_that_was_broken_off_forgets_nothing() {
    let before = [snapshot(1), entry(2, 5), entry(3, 5), entry(4, 5)];
    let rewritten = [snapshot(2), entry(3, 5)];
    let both = [&before[..], &rewritten[..]].concat();
    assert_eq!(replay(&both), [(3, 5), (4, 5)]);
}

fn begin(index: u64) -> Vec<u8> {
    encode(&Record::Begin(Snapshot {
        index,
        term: 5,
        ..Snapshot::default()
    }))
}

fn part(text: &str) -> Vec<u8> {
    encode(&Record::Part(text.into()))
}

#[test]
fn a_state_in_parts_counts_once_it_is_whole() {
    let before = [snapshot(1), entry(2, 5), entry(3, 5)];
    let parts = [begin(2), entry(3, 5), part("a"), entry(4, 5), part("b")];
    let end = [encode(&Record::End), entry(5, 5)];
    let broken_off = [&before[..], &parts[..]].concat();
    assert_eq!(replay(&broken_off), [(2, 5), (3, 5), (4, 5)]);
    let again = [&broken_off[..], &parts[..2], &parts[2..], &end[..]].concat();
    for whole in [[&parts[..], &end[..]].concat(), again] {
        let mut replayed = Replayed::<Bytes>::default();
        whole.iter().for_each(|record| replayed.take(record));
        assert_eq!(
            (&replayed.state.0[..], replayed.start.index),
            (&b"ab"[..], 2)
        );
        assert_eq!(replay(&whole), [(3, 5), (4, 5), (5, 5)]);
    }
}

#[test]
fn another_peers_snapshot_ends_a_state_in_parts() {
    let records = [
        snapshot(1),
        begin(1),
        part("a"),
        snapshot(7),
        part("b"),
        encode(&Record::End),
    ];
    let mut replayed = Replayed::<Bytes>::default();
    records.iter().for_each(|record| replayed.take(record));
    assert_eq!((replayed.start.index, replayed.state.0.len()), (7, 0));
}

#[test]
fn a_journal_whose_state_is_cut_off_is_damaged() {
    let mut replayed = Replayed::<Bytes>::default();
    let records = [begin(2), entry(3, 5), part("a")];
    records.iter().for_each(|record| replayed.take(record));
    assert!(replayed.lacks_state);
}

#[test]
fn an_entry_of_another_term_replaces_all_from_its_place_on() {
    let records = [
        snapshot(1),
        entry(2, 5),
        entry(3, 5),
        entry(4, 5),
        entry(3, 6),
    ];
    assert_eq!(replay(&records), [(2, 5), (3, 6)]);
}

/// All applied commands, one byte each.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl StateMachine for Bytes {
    type Command<'a> = u8;
    type Output = ();
    type Frozen = Rest;

    fn apply(&mut self, _index: u64, command: &[u8]) -> Option<()> {
        self.0.extend_from_slice(command);
        Some(())
    }

    fn freeze(&self) -> Rest {
        Rest(self.0.clone())
    }

    fn restore_part(&mut self, part: &[u8]) -> bool {
        self.0.extend_from_slice(part);
        true
    }
}

struct Rest(Vec<u8>);

impl Frozen for Rest {
    fn next_part(&mut self, len_bytes: usize) -> Option<Vec<u8>> {
        let rest = self.0.split_off(len_bytes.min(self.0.len()));
        let part = std::mem::replace(&mut self.0, rest);
        (!part.is_empty()).then_some(part)
    }
}

const SLICES: Tuning = Tuning {
    heartbeat_ticks: 2,
    election_ticks: 10,
    append_bytes_max: 1 << 20,
    appends_max: 256,
    batch_appends: false,
    quiet_commits: false,
    caught_up_entries: 16,
    compact_entries: 8,
    slice_bytes: 5,
    keep_entries: 3,
    snapshot_wait_ticks: 0,
};
const ENTRIES: u64 = 120;

fn open(disk: &SimulatedDisk) -> Log<Bytes> {
    Log::open(Box::new(disk.clone()), 7).expect("a torn tail is no damage")
}

/// The contents: the state, and what follows in the log.
fn content(log: &Log<Bytes>) -> Vec<u8> {
    let after = log
        .entries
        .range((log.applied.index - log.start.index) as usize..);
    let commands = after.flat_map(|entry| entry.data.to_vec());
    log.state.0.iter().copied().chain(commands).collect()
}

/// Append, sync and apply entries as a node does, until its disk fails. The error says how many were synced, and
/// whether the journal was being rewritten at the end.
fn fill(log: &mut Log<Bytes>, rewritings: &mut usize) -> Result<(), (u64, bool)> {
    log.begin(Snapshot {
        index: 1,
        term: 5,
        ..Snapshot::default()
    });
    log.commit(5).map_err(|_| (0, false))?;
    for number in 1..=ENTRIES {
        let was_rewriting = log.rewriting.is_some();
        let entry = pb::Entry {
            term: 5,
            index: number + 1,
            data: vec![number as u8].into(),
            ..pb::Entry::default()
        };
        log.append(&entry);
        log.commit(5).map_err(|_| (number - 1, was_rewriting))?;
        // One entry is committed but not applied yet.
        if number > 1 {
            log.state.apply(number, &[number as u8 - 1]);
            (log.applied.index, log.applied.term) = (number, 5);
        }
        let done = log.compact(&SLICES, false);
        *rewritings += usize::from(was_rewriting && log.rewriting.is_none());
        done.map_err(|_| (number, true))?;
    }
    Ok(())
}

#[test]
fn a_power_cut_in_the_midst_of_rewriting_takes_nothing() {
    let (disk, mut rewritings) = (SimulatedDisk::new(), 0);
    fill(&mut open(&disk), &mut rewritings).expect("the disk works");
    assert!(rewritings > 2, "{rewritings} by several slices each");
    let operations = disk.operations();
    let expected: Vec<u8> = (1..=ENTRIES as u8).collect();
    assert_eq!(content(&open(&disk)), expected);
    let (mut in_the_midst, mut random) = (0, 1u64);
    for operation in 0..operations {
        for cut in [Cut::Unsynced, Cut::Torn, Cut::Scattered] {
            let disk = SimulatedDisk::new();
            disk.power_off_at(operation);
            let log = Log::open(Box::new(disk.clone()), 7);
            let ended = log.map(|mut log| fill(&mut log, &mut 0));
            let (synced, was_rewriting) = ended.unwrap_or(Err((0, false))).expect_err("it fails");
            in_the_midst += usize::from(was_rewriting);
            disk.power_cut(cut, &mut |below| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) % below
            });
            let found = content(&open(&disk));
            // Unacknowledged entries may be there, too.
            let is_whole = found.len() as u64 >= synced && expected.starts_with(&found);
            assert!(is_whole, "{operation}, {cut:?}: {synced} synced, {found:?}");
        }
    }
    assert!(in_the_midst > 100, "{in_the_midst}");
}

/// Commit index of the log that has its own entries.
const OLD_COMMIT: u64 = 9;

/// A log that has its own entries, then installs another node's state and continues after it.
fn fill_and_install(log: &mut Log<Bytes>, is_empty: bool) -> Result<(), &'static str> {
    let begun = Snapshot {
        index: 1,
        term: 5,
        ..Snapshot::default()
    };
    let append = |log: &mut Log<Bytes>, term, index: u64| {
        log.append(&pb::Entry {
            term,
            index,
            data: vec![index as u8].into(),
            ..pb::Entry::default()
        });
    };
    if !is_empty {
        log.begin(begun);
        (2..30).for_each(|index| append(log, 5, index));
        log.set_hard(&pb::HardState {
            term: 5,
            commit: OLD_COMMIT,
            ..pb::HardState::default()
        });
    }
    log.commit(5).map_err(|_| "before")?;
    let snapshot = Snapshot {
        index: 20,
        term: 6,
        ..Snapshot::default()
    };
    log.install(snapshot, Bytes(vec![7; 40]));
    let hard = pb::HardState {
        term: 6,
        commit: 20,
        ..pb::HardState::default()
    };
    log.set_hard(&hard);
    let mut slices = 0;
    while !log.commit(5).map_err(|_| "meanwhile")? {
        slices += 1;
    }
    assert_eq!(slices, 8, "and one more");
    append(log, 6, 21);
    log.commit(5).map_err(|_| "after")?;
    Ok(())
}

#[test]
fn another_nodes_state_replaces_everything_at_once() {
    cut_power_while_installing(true);
    cut_power_while_installing(false);
}

fn cut_power_while_installing(is_empty: bool) {
    let disk = SimulatedDisk::new();
    fill_and_install(&mut open(&disk), is_empty).expect("the disk works");
    let operations = disk.operations();
    let old: Vec<u8> = (2..30).filter(|_| !is_empty).collect();
    let new = [[7; 40].as_slice(), &[21]].concat();
    assert_eq!(content(&open(&disk)), new);
    let (mut random, mut meanwhile) = (1u64, 0);
    for operation in 0..operations {
        for cut in [Cut::Unsynced, Cut::Torn, Cut::Scattered] {
            let disk = SimulatedDisk::new();
            disk.power_off_at(operation);
            let Ok(mut log) = Log::open(Box::new(disk.clone()), 7) else {
                continue;
            };
            let when = fill_and_install(&mut log, is_empty).expect_err("it fails");
            disk.power_cut(cut, &mut |below| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) % below
            });
            let log = open(&disk);
            let (found, commit) = (content(&log), log.hard.commit);
            let is_new = found.starts_with(&new[..40]);
            let expected = match (is_new, when) {
                (true, _) => 20..=20,
                (false, "before") => 0..=OLD_COMMIT.min(log.last()),
                (false, _) if is_empty => 0..=0,
                (false, _) => OLD_COMMIT..=OLD_COMMIT,
            };
            assert!(
                expected.contains(&commit),
                "{operation}, {cut:?}, {when}: {commit} is committed, not {expected:?}"
            );
            let is_sound = match when {
                "before" => old.starts_with(&found),
                "meanwhile" => found == old || found == new[..40],
                _ => new.starts_with(&found) && found.len() >= 40,
            };
            meanwhile += usize::from(when == "meanwhile");
            assert!(is_sound, "{operation}, {cut:?}, {when}: {found:?}");
        }
    }
    assert!(meanwhile > 20, "{meanwhile}");
}
