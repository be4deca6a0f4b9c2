//! The disk and the simulated disk, and that both behave the same.

use inband_storage::{Cut, Disk, Failure, SimulatedDisk, Storage, StorageError};
use inband_testing::random::chooser;

/// The common behaviour of all storages.
fn exercise(storage: &mut dyn Storage) {
    assert_eq!(storage.list().unwrap(), Vec::<String>::new());
    storage.create("b").unwrap();
    storage.append("b", b"hello ").unwrap();
    storage.append("b", b"world").unwrap();
    storage.sync("b").unwrap();
    assert_eq!(storage.read("b").unwrap(), b"hello world");
    assert_eq!(storage.read_range("b", 6, 3).unwrap(), b"wor");
    assert_eq!(storage.read_range("b", 9, 100).unwrap(), b"ld");
    assert_eq!(storage.read_range("b", 99, 1).unwrap(), b"");
    storage.write_at("b", 0, b"J").unwrap();
    storage.truncate("b", 5).unwrap();
    assert_eq!(storage.read("b").unwrap(), b"Jello");
    storage.replace("a", b"one").unwrap();
    storage.replace("a", b"two").unwrap();
    assert_eq!(storage.list().unwrap(), ["a", "b"]);
    storage.rename("b", "a").unwrap();
    assert_eq!(storage.read("a").unwrap(), b"Jello");
    storage.append("a", b"!").unwrap();
    assert_eq!(storage.len_bytes("a").unwrap(), 6);
    storage.create("a").unwrap();
    assert_eq!(storage.len_bytes("a").unwrap(), 0);
    storage.remove("a").unwrap();
    assert_eq!(storage.list().unwrap(), Vec::<String>::new());
    for result in [
        storage.read("a").map(|_| ()),
        storage.write_at("a", 0, b"x"),
        storage.sync("a"),
        storage.rename("a", "b"),
        storage.remove("a"),
    ] {
        assert!(
            matches!(result, Err(StorageError::NotFound { .. })),
            "{result:?}"
        );
    }
}

#[test]
fn the_disk_and_the_simulated_disk_do_the_same() {
    let dir = tempfile::tempdir().unwrap();
    exercise(&mut Disk::open(&dir.path().join("new")).unwrap());
    exercise(&mut SimulatedDisk::new());
}

#[test]
fn a_file_of_another_handle_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    Disk::open(dir.path())
        .unwrap()
        .replace("f", b"kept")
        .unwrap();
    let mut disk = Disk::open(dir.path()).unwrap();
    disk.append("f", b" too").unwrap();
    assert_eq!(disk.read("f").unwrap(), b"kept too");
}

/// A directory with synced and unsynced changes.
fn half_synced() -> SimulatedDisk {
    let mut disk = SimulatedDisk::new();
    disk.create("f").unwrap();
    disk.append("f", b"synced").unwrap();
    disk.sync("f").unwrap();
    disk.append("f", b" and not").unwrap();
    disk
}

#[test]
fn a_power_cut_discards_what_was_not_synced() {
    let disk = half_synced();
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    assert_eq!(disk.read("f").unwrap(), b"synced");
}

#[test]
fn a_torn_write_ends_at_any_byte() {
    let mut ends = [false; 15];
    for seed in 0..500 {
        let disk = half_synced();
        disk.power_cut(Cut::Torn, &mut chooser(seed));
        let left = disk.read("f").unwrap();
        assert!(b"synced and not".starts_with(&left) && left.len() >= 6);
        ends[left.len()] = true;
    }
    assert!(ends[6..].iter().all(|seen| *seen));
}

#[test]
fn scattered_sectors_survive_in_any_order() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..500 {
        let mut disk = half_synced();
        disk.append("f", &[7; 3 * 512]).unwrap();
        disk.power_cut(Cut::Scattered, &mut chooser(seed));
        let left = disk.read("f").unwrap();
        seen.insert((
            left.starts_with(b"synced"),
            left.get(512 + 100) == Some(&7),
            left.len(),
        ));
    }
    assert!(seen.len() > 6, "{seen:?}");
    assert!(
        seen.iter().any(|(synced, _, _)| !synced),
        "sectors that were being written are torn"
    );
}

#[test]
fn a_change_of_the_directory_is_lost_or_not_when_the_power_fails_before_its_sync() {
    let mut names = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut disk = half_synced();
        disk.power_off_at(disk.operations() + 1); // after the change, before its sync
        assert!(disk.rename("f", "g").is_err());
        assert!(disk.list().is_err() && disk.read("g").is_err());
        disk.power_cut(Cut::Torn, &mut chooser(seed));
        names.extend(disk.list().unwrap());
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["f", "g"]);
}

#[test]
fn a_disk_that_lies_loses_what_it_called_synced() {
    let mut disk = SimulatedDisk::new();
    disk.create("f").unwrap();
    disk.lie_about_sync(true);
    disk.append("f", b"x").unwrap();
    disk.sync("f").unwrap();
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    assert_eq!(disk.read("f").unwrap(), b"");
}

#[test]
fn a_failed_sync_forgets_and_the_next_one_does_not_know() {
    let mut disk = half_synced();
    disk.fail_at(disk.operations(), Failure::Io);
    assert!(matches!(disk.sync("f"), Err(StorageError::Io { .. })));
    disk.sync("f").unwrap();
    assert_eq!(disk.read("f").unwrap(), b"synced and not");
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    assert_eq!(disk.read("f").unwrap(), b"synced");
}

#[test]
fn a_full_disk_takes_a_part_and_says_so() {
    let mut disk = half_synced();
    disk.set_free_bytes(Some(3));
    assert!(disk.append("f", b"12345").unwrap_err().is_no_space());
    assert_eq!(disk.read("f").unwrap(), b"synced and not123");
    disk.truncate("f", 6).unwrap();
    disk.append("f", b"12345678").unwrap();
    assert!(disk.append("f", b"1234").unwrap_err().is_no_space());
    disk.set_free_bytes(None);
    disk.append("f", b"fits").unwrap();
}

#[test]
fn corruption_is_on_the_disk_and_in_memory() {
    let disk = half_synced();
    assert!(disk.corrupt("f", 0, 1));
    assert!(!disk.corrupt("f", 99, 1) && !disk.corrupt("none", 0, 1));
    assert_eq!(&disk.read("f").unwrap()[..3], b"ryn");
    disk.power_cut(Cut::Unsynced, &mut chooser(1));
    assert_eq!(disk.read("f").unwrap(), b"rynced");
}
