//! The broadcast among soft roles: records are committed by a quorum, in their leader's order.
#![allow(missing_docs)]

use inband_box::role::{Mode, Put, Record, Refused, Role, Verdict};
use inband_box::soft::soft;
use inband_box::wire::{self, flag, Type};
use inband_box::{Zab, PROPOSERS};
use inband_ground::auth::Gate;
use inband_ground::soft::Soft;

const MEMBERS: u64 = 0b1110;
const CAPACITY: usize = 16;

fn nodes() -> [Soft<Zab>; 3] {
    [1, 2, 3].map(|node| {
        let node = soft(node, CAPACITY);
        node.set_quorum(MEMBERS, 2);
        node
    })
}

fn record(origin: u8, value: &[u8]) -> Record {
    Record {
        origin,
        origin_session: 7,
        origin_seq: 1,
        value: value.to_vec(),
        ..Record::default()
    }
}

fn signed(mut packet: Vec<u8>) -> Vec<u8> {
    Gate::of::<Zab>(None, 1).sign(&mut packet);
    packet
}

/// Delivers a packet of node `from` to these nodes, then their answers, and so on.
fn deliver(nodes: &[Soft<Zab>], from: usize, to: &[usize], packet: &[u8]) {
    for at in to.iter().copied().filter(|at| *at != from) {
        let (verdict, left) = nodes[at].handled(packet, 5);
        match verdict {
            Verdict::Reply => deliver(nodes, at, &[from], &signed(left)),
            Verdict::ToOthers => deliver(nodes, at, &[0, 1, 2], &signed(left)),
            Verdict::Pass | Verdict::Drop => {}
        }
    }
}

fn lead(nodes: &[Soft<Zab>], leader: usize, epoch: u64) -> u64 {
    assert_eq!(nodes[leader].raise_epoch(epoch).mode, Mode::Idle);
    assert!(nodes[leader].lead(epoch));
    for (at, node) in nodes.iter().enumerate() {
        assert_eq!(node.follow(epoch, false, 0), at != leader);
    }
    append(nodes, leader, &record(0, b""))
}

fn append(nodes: &[Soft<Zab>], leader: usize, record: &Record) -> u64 {
    let zxid = nodes[leader].append(record).unwrap();
    let packet = signed(nodes[leader].propose(zxid).unwrap());
    deliver(nodes, leader, &[0, 1, 2], &packet);
    zxid
}

#[test]
fn records_are_committed_everywhere() {
    let nodes = nodes();
    assert_eq!(nodes[0].append(&record(1, b"x")), Err(Refused::NotLeading));
    assert_eq!(lead(&nodes, 0, PROPOSERS + 1), 1);
    for n in 2..100 {
        for node in &nodes {
            node.set_applied(node.committed());
        }
        let value = vec![n as u8; 3 * n as usize];
        assert_eq!(append(&nodes, 0, &record(1, &value)), n);
        for node in &nodes {
            assert_eq!(node.committed(), n);
            let read = node.read(n).unwrap();
            assert_eq!((read.epoch, read.value), (PROPOSERS + 1, value.clone()));
            assert_eq!(node.view().first, n.saturating_sub(15).max(1));
        }
    }
}

#[test]
fn a_gateway_elsewhere_submits() {
    let nodes = nodes();
    let header = wire::Header {
        node: 3,
        origin: 3,
        origin_session: 9,
        origin_seq: 1,
        ..wire::Header::of(Type::Submit)
    };
    let packet = signed(wire::emit(&header, b"hello"));
    let (verdict, refused) = nodes[0].handled(&packet, 0);
    assert_eq!(verdict, Verdict::Reply);
    let (refused, _) = wire::parse(&refused).unwrap();
    assert!(refused.kind == Type::Refused && refused.has(flag::NOT_LEADER));
    assert_eq!((refused.origin_session, refused.origin_seq), (9, 1));
    lead(&nodes, 0, PROPOSERS + 1);
    deliver(&nodes, 2, &[0], &packet);
    assert_eq!(nodes.each_ref().map(Role::committed), [2; 3]);
    assert_eq!(nodes[1].read(2).unwrap().value, b"hello");
}

/// Records that only the old leader has are overwritten, and those after them are gone; records in both logs are kept.
#[test]
fn a_new_leader_replaces_what_was_not_committed() {
    let nodes = nodes();
    lead(&nodes, 0, PROPOSERS + 1);
    for value in [b"a", b"b", b"c"] {
        nodes[0].append(&record(1, value)).unwrap();
    }
    let packet = signed(nodes[0].propose(2).unwrap());
    deliver(&nodes, 0, &[1], &packet);
    assert_eq!(nodes.each_ref().map(Role::committed), [2, 2, 1]);
    // Node 3 is behind: it pulls from node 2 what it misses.
    let epoch = 2 * PROPOSERS + 3;
    let promise = nodes[1].raise_epoch(epoch);
    assert_eq!((promise.last_epoch, promise.last), (PROPOSERS + 1, 2));
    assert_eq!(nodes[2].raise_epoch(epoch).last, 1);
    let pulled = nodes[1].read(2).unwrap();
    assert_eq!(nodes[2].put(epoch - 1, &pulled, 0), Put::Refused);
    assert_eq!(nodes[2].put(epoch, &pulled, 0), Put::Taken);
    assert_eq!(nodes[2].put(epoch, &pulled, 0), Put::Had);
    assert_eq!(nodes[2].append(&record(3, b"z")), Err(Refused::NotLeading));
    assert_eq!(lead(&nodes, 2, epoch), 3);
    // Node 1 had this record at 2, another one at 3, and one at 4.
    assert_eq!(nodes[0].view().last, 3);
    assert_eq!(nodes[0].read(3).unwrap().epoch, epoch);
    assert_eq!(nodes[0].read(4), None);
    // Node 2 was idle, and follows now.
    assert_eq!(nodes.each_ref().map(Role::committed), [3; 3]);
}

/// A table replaces the log up to a record; what both logs have after it stays.
#[test]
fn a_table_is_installed() {
    let nodes = nodes();
    lead(&nodes, 0, PROPOSERS + 1);
    append(&nodes, 0, &record(1, b"a"));
    nodes[1].raise_epoch(2 * PROPOSERS + 1);
    assert!(!nodes[1].install(2, PROPOSERS + 1, 1), "it is committed");
    assert!(!nodes[0].install(9, PROPOSERS + 1, 1), "it leads");
    assert!(nodes[1].install(9, 3 * PROPOSERS, 77));
    let view = nodes[1].view();
    assert_eq!(
        (view.first, view.last, view.last_epoch),
        (10, 9, 3 * PROPOSERS)
    );
    assert_eq!((view.committed, view.matched, view.applied), (9, 9, 9));
    assert_eq!(nodes[1].read(9), None);
}

/// Records after a table in the same log were acknowledged, and may be committed.
#[test]
fn a_table_of_the_same_log_leaves_what_follows() {
    let nodes = nodes();
    lead(&nodes, 0, PROPOSERS + 1);
    for value in [b"a", b"b", b"c"] {
        let zxid = nodes[0].append(&record(1, value)).unwrap();
        nodes[1].handled(&signed(nodes[0].propose(zxid).unwrap()), 0);
    }
    let idle = nodes[1].raise_epoch(2 * PROPOSERS + 1);
    assert_eq!((idle.committed, idle.matched, idle.last), (1, 1, 4));
    assert!(nodes[1].install(3, PROPOSERS + 1, 5));
    let view = nodes[1].view();
    assert_eq!((view.committed, view.applied, view.last), (3, 3, 4));
    assert_eq!(nodes[1].read(4).unwrap().value, b"c");
    // A record 4 of another epoch: from there on the log is a different one.
    assert!(nodes[1].install(4, 2 * PROPOSERS, 5));
    assert_eq!((nodes[1].view().first, nodes[1].read(4)), (5, None));
}

/// Actions of the leader's process may commit records: a smaller quorum, its own log becoming durable, a follower that
/// joins with records.
#[test]
fn the_leaders_process_commits() {
    let nodes = nodes();
    let leader = &nodes[0];
    leader.set_quorum(MEMBERS, 3);
    leader.set_acks_by_process(true);
    leader.raise_epoch(PROPOSERS + 1);
    assert!(!leader.lead(PROPOSERS + 2), "of another node");
    assert!(leader.lead(PROPOSERS + 1));
    assert!(!leader.lead(PROPOSERS + 1), "it leads");
    for value in ["", "a", "b"] {
        let origin = u8::from(!value.is_empty());
        match leader.append(&record(origin, value.as_bytes())) {
            Ok(zxid) => assert_eq!((zxid, origin), (1, 0)),
            Err(refused) => assert_eq!(refused, Refused::Busy, "not established"),
        }
    }
    assert_eq!(leader.append(&record(0, b"")), Ok(2));
    leader.set_joined(2, 2, false);
    leader.set_joined(3, 2, true);
    assert!(!leader.ack_own(2), "one recovers, and all are needed");
    assert_eq!(leader.view().peers[3].recovered, 2);
    leader.set_quorum(MEMBERS, 2);
    assert_eq!(leader.committed(), 2);
    assert_eq!(leader.append(&record(1, b"c")), Ok(3));
    leader.set_joined(3, 3, false);
    assert_eq!(leader.committed(), 2);
    assert!(leader.ack_own(3));
    assert!(!leader.ack_own(9), "there is no more");
    assert_eq!(leader.committed(), 3);
}

#[test]
fn the_ring_is_full_until_records_are_applied() {
    let nodes = nodes();
    lead(&nodes, 0, PROPOSERS + 1);
    for _ in 1..CAPACITY {
        append(&nodes, 0, &record(1, b"a"));
    }
    assert_eq!(nodes[0].append(&record(1, b"b")), Err(Refused::Busy));
    nodes[0].set_applied(1);
    assert_eq!(append(&nodes, 0, &record(1, b"b")), 17);
    // The followers have not applied anything.
    assert_eq!(nodes.each_ref().map(Role::committed), [16; 3]);
    assert!(nodes[1].counters_by_name()["box_not_applied"] > 0);
    nodes[0].set_window(1);
    nodes[0].set_applied(16);
    assert_eq!(nodes[0].append(&record(1, b"c")), Err(Refused::Busy));
}
