//! With a log on disk, what a node says it has is on disk, also if it handles several packets before it syncs.

use inband_box::journal::LogOnDisk;
use inband_box::Zab;
use inband_ground::auth::Gate;
use inband_ground::soft::Soft;
use inband_storage::SimulatedDisk;

use super::*;

const MS: u64 = 1_000_000;

/// What the process does with a packet: role, then node; everything is sent at once, and nothing is synced.
fn arrives(node: &mut Node, role: &Soft<Zab>, mut packet: Vec<u8>) -> Vec<(u64, Control)> {
    Gate::of::<Zab>(None, 1).sign(&mut packet);
    let (verdict, _) = role.handled(&packet, MS);
    let mut out = Out::default();
    if verdict == Verdict::Pass {
        let (header, value) = wire::parse(&packet).expect("a packet");
        node.on_packet(MS, &header, value, role, &mut out);
        if out.store.take().is_some() {
            node.on_stored(MS, 1);
            node.on_tick(MS, role, &mut out);
        }
    }
    said(&out)
}

fn lead(from: u8, epoch: u64) -> Vec<u8> {
    let (header, value) = LEAD.encode(from, epoch);
    wire::emit(&header, &value)
}

fn propose(from: u8, epoch: u64, zxid: u64, committed: u64) -> Vec<u8> {
    let record = Record {
        zxid,
        epoch,
        origin: 2,
        origin_session: 1,
        origin_seq: zxid,
        value: vec![1, 2, 3],
        ..Record::default()
    };
    wire::propose(&record, from, epoch, committed)
}

/// As at the end of a turn of the process.
fn syncs(node: &mut Node, role: &Soft<Zab>, log: &mut LogOnDisk) {
    let durable = log.write(role).expect("the disk works");
    node.on_durable(durable, role, &mut Out::default());
}

/// A node with ten records of node 2 on disk, of which two are committed.
fn with_ten_records() -> (Node, Soft<Zab>, LogOnDisk, SimulatedDisk) {
    let stored = Stored {
        promise: 1,
        session: 4,
        has_log: true,
        new_id: 0,
        founders: FOUNDERS,
    };
    let (role, disk) = (inband_box::soft::soft(1, 64), SimulatedDisk::new());
    let opened = LogOnDisk::open(Box::new(disk.clone()), 1, 0);
    let mut log = opened.expect("an empty disk").0;
    let mut node = started(Start::WithLog, stored, &role);
    node.keep_log(log.durable(), &role);
    arrives(&mut node, &role, lead(2, 34));
    for zxid in 1..=10 {
        arrives(&mut node, &role, propose(2, 34, zxid, 2.min(zxid - 1)));
    }
    syncs(&mut node, &role, &mut log);
    assert_eq!((role.view().matched, role.view().committed), (10, 2));
    (node, role, log, disk)
}

#[test]
fn a_node_says_it_has_only_what_is_on_disk() {
    let (mut node, role, log, disk) = with_ten_records();
    // Node 3, whose log ends with the second one, leads: in one turn its announcement, its first records, and its
    // announcement again, because the answer takes long.
    let mut heard = arrives(&mut node, &role, lead(3, 67));
    for zxid in 3..=6 {
        heard.extend(arrives(&mut node, &role, propose(3, 67, zxid, 2)));
    }
    heard.extend(arrives(&mut node, &role, lead(3, 67)));
    let claimed = heard.iter().filter_map(|(epoch, control)| match control {
        Control::Joined(joined) if *epoch == 67 => Some(joined.matched),
        _ => None,
    });
    let claimed = claimed.max().expect("it joins");

    // The power fails before the turn ends.
    drop(log);
    disk.power_cut(inband_storage::Cut::Unsynced, &mut |_| 0);
    let (_, replayed) = LogOnDisk::open(Box::new(disk), 1, 0).expect("whole");
    let of_epoch_67 = replayed.records.iter().filter(|r| r.epoch == 67).count();
    assert!(
        claimed <= 2 + of_epoch_67 as u64,
        "it told its leader that it has everything up to {claimed}, and has {of_epoch_67} records of this epoch on disk"
    );
}

/// The next leader's announcement, its records and the news that they are committed may arrive in one turn.
#[test]
fn records_that_are_committed_before_they_are_synced_replace_others_on_disk() {
    let (mut node, role, mut log, disk) = with_ten_records();
    arrives(&mut node, &role, lead(3, 67));
    for zxid in 3..=6 {
        arrives(&mut node, &role, propose(3, 67, zxid, zxid - 1));
    }
    assert_eq!((role.view().matched, role.view().committed), (6, 5));
    syncs(&mut node, &role, &mut log);

    // It is started again; no power fails.
    drop(log);
    let (_, replayed) = LogOnDisk::open(Box::new(disk), 1, 0).expect("whole");
    let found: Vec<_> = replayed.records.iter().map(|r| (r.zxid, r.epoch)).collect();
    let right = [(1, 34), (2, 34), (3, 67), (4, 67), (5, 67), (6, 67)];
    assert_eq!(found, right, "committed up to {}", replayed.committed);
}
