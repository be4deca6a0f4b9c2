//! What a node stores, and when.
#![allow(missing_docs)]

mod behind;
mod handover;
mod slow;
mod unsynced;

use inband_box::control::{Control, Joined};
use inband_box::membership::{Change, ChangeError, Membership};
use inband_box::node::{Config, Node, Out, Quorum, Start, To, SUSPECT_AFTER_NS};
use inband_box::promise::{Founders, Stored};
use inband_box::role::{Mode, Record, Role, Verdict};
use inband_box::snapshot::Snapshot;
use inband_box::wire::{self, flag, Header, Type};

fn started(start: Start, stored: Stored, role: &impl Role) -> Node {
    let config = Config {
        node: 1,
        nodes: 5,
        founding: Membership::founding(3, Quorum::Majority),
        suspect_after_ns: SUSPECT_AFTER_NS,
    };
    Node::new(config, start, stored, None, 7, 0, role)
}

fn gets(node: &mut Node, from: u8, epoch: u64, control: &Control, role: &impl Role) -> Out {
    let (header, value) = control.encode(from, epoch);
    let packet = wire::emit(&header, &value);
    let (header, value) = wire::parse(&packet).expect("a packet");
    let mut out = Out::default();
    node.on_packet(1, &header, value, role, &mut out);
    out
}

fn said(out: &Out) -> Vec<(u64, Control)> {
    let packets = out.packets.iter();
    packets
        .filter_map(|(_, packet)| {
            let (header, value) = wire::parse(packet).ok()?;
            Some((header.epoch, Control::decode(&header, value)?))
        })
        .collect()
}

const ELECT: Control = Control::Elect { candidate: 0 };
/// Begun by the nodes 1 to 3, of which node 1 is [`started`].
const FOUNDERS: Founders = [0, 7, 8, 9, 0, 0, 0, 0];
const LEAD: Control = Control::Lead { founders: FOUNDERS };

/// A node that has lost its log follows.
const JOINED_EMPTY: Control = Control::Joined(Joined {
    matched: 0,
    nonce: 5,
    recovering: true,
    durable: false,
    new_id: 0,
});

#[test]
fn a_promise_is_stored_with_what_says_it_and_is_given_once() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let out = gets(&mut node, 2, 34, &ELECT, &role);
    assert_eq!(out.store.map(|stored| stored.promise), Some(34));
    let is_promise = |(epoch, control): &(u64, Control)| {
        *epoch == 34 && matches!(control, Control::Promise { .. })
    };
    assert!(said(&out).iter().any(is_promise), "{:?}", said(&out));
    let view = role.view();
    assert_eq!((view.epoch, view.mode), (34, Mode::Idle));
    // From a node that does not own the epoch, and a lower epoch.
    for (from, epoch) in [(3, 34), (2, 2)] {
        let out = gets(&mut node, from, epoch, &ELECT, &role);
        assert!(!said(&out).iter().any(is_promise), "{:?}", said(&out));
    }
}

#[test]
fn nothing_is_acknowledged_in_an_epoch_before_it_is_stored() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let out = gets(&mut node, 2, 34, &LEAD, &role);
    assert_eq!(out.store.map(|stored| stored.promise), Some(34));
    assert_eq!(
        role.view().mode,
        Mode::Idle,
        "the host has not stored it yet"
    );
    // The host has performed what it was told, or it would not call again.
    let mut out = Out::default();
    node.on_tick(2, &role, &mut out);
    assert_eq!((role.view().epoch, role.view().mode), (34, Mode::Following));
    let is_joined = |(_, control): &(u64, Control)| matches!(control, Control::Joined(_));
    assert!(said(&out).iter().any(is_joined), "{:?}", said(&out));
}

#[test]
fn a_node_that_lost_its_log_votes_for_nobody_and_joins_no_leader_below_its_promise() {
    let stored = Stored {
        promise: 66,
        session: 4,
        has_log: false,
        new_id: 0,
        founders: FOUNDERS,
    };
    // It has promised something, so its cluster is not new.
    for start in [Start::Recovering, Start::Founding] {
        let role = inband_box::soft::soft(1, 64);
        let mut node = started(start, stored, &role);
        assert_eq!((node.is_recovering(), node.session()), (true, 5));
        let out = gets(&mut node, 3, 99, &ELECT, &role);
        let is_promise = |(_, c): &(u64, Control)| matches!(c, Control::Promise { .. });
        assert!(!said(&out).iter().any(is_promise), "{:?}", said(&out));
        let out = gets(&mut node, 2, 34, &LEAD, &role);
        assert!(
            said(&out).contains(&(66, Control::Denied)),
            "{:?}",
            said(&out)
        );
        assert_eq!(role.view().mode, Mode::Idle);
    }
}

#[test]
fn an_absurd_epoch_is_refused_and_counted() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    gets(&mut node, 2, 34, &ELECT, &role);
    let absurd = (1 << 63) + 2;
    for control in [
        ELECT,
        LEAD,
        Control::Hello { new_id: 0 },
        Control::Denied,
        Control::PreElect { id: 1 },
    ] {
        let out = gets(&mut node, 2, absurd, &control, &role);
        assert_eq!(out.store, None, "{control:?}");
        assert_eq!(said(&out), [], "{control:?}");
    }
    let status = node.status(&role);
    assert_eq!((status.epoch, status.epochs_refused), (34, 5));
    // A node that has lost its log may have missed any number of epochs, but not all of them.
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Recovering, Stored::default(), &role);
    gets(&mut node, 2, absurd, &LEAD, &role);
    assert_eq!(node.epoch(), 0);
    gets(&mut node, 2, (1 << 40) + 2, &LEAD, &role);
    assert_eq!(node.epoch(), (1 << 40) + 2);
}

#[test]
fn a_node_that_hears_a_leader_wants_no_other() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let is_willing = |out: &Out| {
        said(out)
            .iter()
            .any(|(_, c)| *c == Control::Willing { id: 8, new_id: 7 })
    };
    let asked = Control::PreElect { id: 8 };
    let out = gets(&mut node, 3, 0, &asked, &role);
    assert!(is_willing(&out), "it knows of no leader: {:?}", said(&out));
    gets(&mut node, 2, 34, &LEAD, &role);
    let out = gets(&mut node, 3, 0, &asked, &role);
    assert!(!is_willing(&out), "{:?}", said(&out));
    assert_eq!(node.epoch(), 34);
}

/// Lets node 1 ask for promises, at this time.
fn elects(node: &mut Node, role: &impl Role) -> u64 {
    let mut now = 0;
    let id = loop {
        now += SUSPECT_AFTER_NS;
        assert!(now < 100 * SUSPECT_AFTER_NS, "it asks for no votes");
        let mut out = Out::default();
        node.on_tick(now, role, &mut out);
        let asked = said(&out)
            .into_iter()
            .find_map(|(_, control)| match control {
                Control::PreElect { id } => Some(id),
                _ => None,
            });
        if let Some(id) = asked {
            break id;
        }
    };
    for (from, new_id) in [(2, 8), (3, 9), (2, 0)] {
        gets(node, from, 0, &Control::Willing { id, new_id }, role);
    }
    node.on_tick(now, role, &mut Out::default());
    now
}

fn promise(last_epoch: u64, last: u64, new_id: u64, candidate: u64) -> Control {
    Control::Promise {
        last_epoch,
        last,
        committed: 0,
        first: 1,
        new_id,
        candidate,
    }
}

/// Lets node 1 lead with the votes of all that begin together, at this time.
fn leads(node: &mut Node, role: &impl Role) -> u64 {
    let now = elects(node, role);
    let epoch = node.epoch();
    gets(node, 2, epoch, &promise(0, 0, 8, 7), role);
    assert_ne!(role.view().mode, Mode::Leading, "node 3 may not be new");
    let out = gets(node, 3, epoch, &promise(0, 0, 9, 7), role);
    assert_eq!(role.view().mode, Mode::Leading);
    let founders = out.store.map(|stored| (stored.new_id, stored.founders));
    assert_eq!(founders, Some((0, FOUNDERS)));
    now
}

/// A quorum may hold what is not committed yet, because of what the recovering node acknowledged before it lost its
/// log.
#[test]
fn a_recovering_node_counts_again_with_all_that_the_leader_has_in_flight() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    leads(&mut node, &role);
    let epoch = node.epoch();
    let view = role.view();
    assert_eq!(view.committed, 0);
    assert!(view.last > 0, "its first record is in flight");
    let out = gets(&mut node, 3, epoch, &JOINED_EMPTY, &role);
    let target = Control::Target {
        nonce: 5,
        zxid: view.last,
    };
    assert!(said(&out).contains(&(epoch, target)), "{:?}", said(&out));
}

/// It would have to repeat more than it would have to copy.
#[test]
fn a_node_that_begins_gets_no_table_that_is_longer_ago_than_it_is_long() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    leads(&mut node, &role);
    let epoch = node.epoch();
    let pull = |id| Control::PullSnapshot { id, offset: 0 };
    let is_asked =
        |node: &mut Node, from, id| gets(node, from, epoch, &pull(id), &role).takes_snapshot;
    let snapshot = |zxid| Snapshot {
        zxid,
        bytes: vec![1; 1_000],
    };
    let applies = |node: &mut Node, zxid| {
        let record = Record {
            zxid,
            value: vec![1; 1_000],
            ..Record::default()
        };
        node.on_applied(&record, true, 1);
    };
    assert!(is_asked(&mut node, 2, 0), "there is none");
    node.on_snapshot(snapshot(0));
    assert!(!is_asked(&mut node, 2, 0));
    applies(&mut node, 1);
    assert!(!is_asked(&mut node, 2, 0), "it may not have got the answer");
    assert!(is_asked(&mut node, 3, 0));
    assert!(!is_asked(&mut node, 2, 0), "one is being made");
    node.on_snapshot(snapshot(1));
    assert!(!is_asked(&mut node, 2, 1), "it has begun");
    assert!(!is_asked(&mut node, 3, 0), "nothing happened since");
}

/// Its directory may have been lost, and with it a record that only it and a node that does not answer had.
#[test]
fn a_new_node_counts_if_it_began_with_the_others() {
    let with_log = Stored {
        promise: 2,
        session: 1,
        has_log: true,
        new_id: 0,
        founders: FOUNDERS,
    };
    let unknown = Stored {
        founders: Founders::default(),
        ..with_log
    };
    for (stored, new_id, counts) in [
        (with_log, 8, true),
        (with_log, 10, false),
        (unknown, 8, false),
        (unknown, 0, true),
    ] {
        let role = inband_box::soft::soft(1, 64);
        let mut node = started(Start::WithLog, stored, &role);
        // Node 3 is willing, and promises nothing.
        let now = elects(&mut node, &role);
        let epoch = node.epoch();
        gets(&mut node, 2, epoch, &promise(0, 0, new_id, 0), &role);
        node.on_tick(now, &role, &mut Out::default());
        let leads = role.view().mode == Mode::Leading;
        assert_eq!(leads, counts, "{stored:?}, {new_id}");
    }
}

/// A late promise was given to the node that had the directory before.
#[test]
fn what_was_promised_to_a_lost_directory_does_not_count() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    elects(&mut node, &role);
    let epoch = node.epoch();
    gets(&mut node, 2, epoch, &promise(0, 0, 8, 6), &role);
    gets(&mut node, 3, epoch, &promise(0, 0, 9, 7), &role);
    assert_ne!(role.view().mode, Mode::Leading);
    gets(&mut node, 2, epoch, &promise(0, 0, 8, 7), &role);
    assert_eq!(role.view().mode, Mode::Leading);

    // And no epoch is promised to both.
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let mut is_promised = |candidate| {
        let out = gets(&mut node, 2, 34, &Control::Elect { candidate }, &role);
        let promises = |(_, c): &(u64, Control)| matches!(c, Control::Promise { .. });
        said(&out).iter().any(promises)
    };
    assert_eq!([6, 6, 8].map(&mut is_promised), [true, true, false]);
}

/// The leader that it began with may be gone before it has heard of it.
#[test]
fn a_node_learns_from_anybody_that_it_began_with_the_others() {
    let role = inband_box::soft::soft(1, 64);
    let stored = Stored {
        promise: 2,
        session: 1,
        has_log: false,
        new_id: 0,
        founders: FOUNDERS,
    };
    let mut node = started(Start::Recovering, stored, &role);
    let mut is_told = |new_id| {
        let out = gets(&mut node, 2, 0, &Control::Hello { new_id }, &role);
        said(&out).contains(&(2, Control::Founders(FOUNDERS)))
    };
    assert_eq!([8, 10, 0].map(&mut is_told), [true, false, false]);

    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let out = gets(&mut node, 2, 2, &Control::Founders(FOUNDERS), &role);
    let stored = out.store.expect("it has its place");
    assert_eq!((stored.new_id, stored.founders), (0, FOUNDERS));
}

/// Sends an ACK to the role, and to the process if the role passes it on.
fn acks(node: &mut Node, role: &impl Role, now: u64, from: u8, flags: u16, zxid: u64) -> Out {
    let header = Header {
        node: from.into(),
        flags,
        epoch: node.epoch(),
        zxid,
        ..Header::of(Type::Ack)
    };
    let packet = wire::emit(&header, &[]);
    let mut out = Out::default();
    if role.handled(&packet, now).0 == Verdict::Pass {
        let (header, value) = wire::parse(&packet).expect("a packet");
        node.on_packet(now, &header, value, role, &mut out);
    }
    node.on_tick(now, role, &mut out);
    out
}

/// Returns the records proposed to a node alone.
fn sent_again(out: &Out, to: u8) -> Vec<u64> {
    let to_it = out.packets.iter().filter(|(node, _)| *node == To::Node(to));
    let headers = to_it.filter_map(|(_, packet)| Some(wire::parse(packet).ok()?.0));
    let proposed = headers.filter(|header| header.kind == Type::Propose);
    proposed.map(|header| header.zxid).collect()
}

/// The node has lost its log, but not what the leader remembers about it, and new records are gaps to it.
#[test]
fn a_node_that_catches_up_gets_each_record_once_and_no_live_one_again() {
    const RECORDS: u64 = 3000;
    let role = inband_box::soft::soft(1, 4096);
    role.set_window(4096);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let mut now = leads(&mut node, &role);
    let epoch = node.epoch();
    let own = Record {
        origin: 1,
        origin_session: 1,
        ..Record::default()
    };
    acks(&mut node, &role, now, 2, 0, 1);
    for _ in 1..RECORDS {
        role.append(&own).expect("there is room");
    }
    for from in [2, 3] {
        acks(&mut node, &role, now, from, 0, RECORDS);
    }
    let out = gets(&mut node, 3, epoch, &JOINED_EMPTY, &role);
    let mut sent = sent_again(&out, 3);
    let (mut has, mut turns, mut most) = (0, 0, 0);
    let (recovering, gap) = (flag::RECOVERING, flag::RECOVERING | flag::GAP);
    while has < RECORDS {
        turns += 1;
        assert!(turns < 1000, "{has} of {RECORDS}");
        now += 1000;
        // A live record, for which the node reports a gap, and an acknowledgement of part of what is in flight.
        sent.extend(sent_again(&acks(&mut node, &role, now, 3, gap, has), 3));
        let on_the_way = sent.len() as u64 - has;
        most = most.max(on_the_way);
        has += on_the_way.min(100);
        sent.extend(sent_again(
            &acks(&mut node, &role, now, 3, recovering, has),
            3,
        ));
    }
    assert_eq!(sent, (1..=RECORDS).collect::<Vec<_>>());
    assert!(most > 256, "at most {most} were on their way");
    for _ in 0..5 {
        now += 1000;
        role.append(&own).expect("there is room");
        acks(&mut node, &role, now, 2, 0, role.view().last);
        let again = sent_again(&acks(&mut node, &role, now, 3, recovering, has), 3);
        assert!(again.is_empty(), "they are on their way to all: {again:?}");
    }
    // Lost records are retransmitted.
    now += SUSPECT_AFTER_NS;
    let again = sent_again(&acks(&mut node, &role, now, 3, recovering, has), 3);
    assert_eq!(again, (RECORDS + 1..=RECORDS + 5).collect::<Vec<_>>());
}

/// It takes records in their order only: what comes early is of no use to it.
#[test]
fn a_node_that_gets_packets_out_of_order_gets_few_again_and_does_not_wait() {
    let role = inband_box::soft::soft(1, 4096);
    role.set_window(4096);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let now = leads(&mut node, &role);
    let epoch = node.epoch();
    let own = Record {
        origin: 1,
        origin_session: 1,
        ..Record::default()
    };
    acks(&mut node, &role, now, 2, 0, 1);
    for _ in 1..1000 {
        role.append(&own).expect("there is room");
    }
    acks(&mut node, &role, now, 2, 0, 1000);
    let (recovering, gap) = (flag::RECOVERING, flag::RECOVERING | flag::GAP);
    gets(&mut node, 3, epoch, &JOINED_EMPTY, &role);
    acks(&mut node, &role, now, 3, recovering, 1);
    let first = sent_again(&acks(&mut node, &role, now, 3, gap, 1), 3);
    assert!(
        first.contains(&2),
        "nothing was sent to it before: {first:?}"
    );
    let (mut in_flight, mut reports) = (first.len(), 0);
    let again = loop {
        reports += 1;
        let sent = sent_again(&acks(&mut node, &role, now, 3, gap, 1), 3);
        if sent.contains(&2) {
            break sent;
        }
        in_flight += sent.len();
        assert!(reports < 64, "it has reported {reports} gaps");
    };
    assert!(
        reports >= in_flight,
        "only {reports} of {in_flight} have arrived"
    );
    assert!(in_flight + again.len() < 64, "{in_flight}, then {again:?}");
}

/// The schedule: a node had joined, and this one did not know.
#[test]
fn a_candidate_counts_again_by_the_members_of_the_log_that_it_takes_over() {
    let role = inband_box::soft::soft(1, 64);
    let stored = Stored {
        promise: 2,
        session: 1,
        has_log: true,
        new_id: 0,
        founders: FOUNDERS,
    };
    let mut node = started(Start::WithLog, stored, &role);
    elects(&mut node, &role);
    let epoch = node.epoch();
    gets(&mut node, 2, epoch, &promise(2, 1, 0, 0), &role);
    assert_ne!(role.view().mode, Mode::Leading, "node 2 has more");
    let grown = Membership {
        members: 0b11110,
        next: 5,
        ..Membership::founding(3, Quorum::Majority)
    };
    let record = Record {
        zxid: 1,
        epoch: 2,
        ..grown.record()
    };
    let record = Control::Record {
        record,
        committed: 0,
    };
    gets(&mut node, 2, epoch, &record, &role);
    assert_eq!(role.view().matched, 1);
    assert_ne!(
        role.view().mode,
        Mode::Leading,
        "two of four are no majority"
    );
    gets(&mut node, 4, epoch, &promise(0, 0, 0, 0), &role);
    assert_eq!(role.view().mode, Mode::Leading);
    assert_eq!((role.view().members, role.view().quorum), (0b11110, 3));
}

/// Lets node 4 join a leader, which has `records` then. Returns the leader's time.
fn joins(node: &mut Node, role: &impl Role, records: u64) -> u64 {
    let now = leads(node, role);
    for (from, nonce) in [(2, 2), (3, 3)] {
        let joined = Control::Joined(Joined {
            nonce,
            recovering: false,
            ..FIRST_START
        });
        gets(node, from, node.epoch(), &joined, role);
    }
    acks(node, role, now, 2, 0, 1);
    node.on_applied(&role.read(1).expect("it is there"), false, now);
    role.set_applied(1);
    let (zxid, now_joining) = node
        .change(now, Change::Add, role, &mut Out::default())
        .expect("it leads");
    assert_eq!((zxid, now_joining.joining), (2, 4));
    let mut out = Out::default();
    let early = node.change(now, Change::Add, role, &mut out);
    assert_eq!(early, Err(ChangeError::UnderWay));
    acks(node, role, now, 2, 0, 2);
    node.on_applied(&role.read(2).expect("it is there"), false, now);
    role.set_applied(2);
    node.on_tick(now, role, &mut Out::default());
    appends(role, records - 2);
    acks(node, role, now, 2, 0, records);
    acks(node, role, now, 3, 0, records);
    now
}

fn appends(role: &impl Role, count: u64) {
    let own = Record {
        origin: 1,
        origin_session: 1,
        ..Record::default()
    };
    for _ in 0..count {
        role.append(&own).expect("there is room");
    }
}

const FIRST_START: Joined = Joined {
    matched: 0,
    nonce: 5,
    recovering: true,
    durable: false,
    new_id: 9,
};

/// It would forget what it has promised, and use its first session again.
#[test]
fn a_node_whose_directory_was_lost_is_not_let_in_again() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    joins(&mut node, &role, 10);
    let epoch = node.epoch();
    let mut is_let_in = |from: u8, joined: Joined| {
        let out = gets(&mut node, from, epoch, &Control::Joined(joined), &role);
        let nonce = joined.nonce;
        let said = said(&out);
        let is_lost = said.contains(&(epoch, Control::Lost { nonce }));
        let is_target = |c: &Control| matches!(c, Control::Target { nonce: n, .. } if *n == nonce);
        let has_target = said.iter().any(|(_, control)| is_target(control));
        assert_ne!(is_lost, has_target, "{said:?}");
        has_target
    };
    let again = Joined {
        nonce: 6,
        new_id: 10,
        ..FIRST_START
    };
    assert!(is_let_in(4, FIRST_START), "it joins for the first time");
    assert!(is_let_in(4, FIRST_START), "its packet may come twice");
    let early = Joined {
        nonce: 7,
        ..FIRST_START
    };
    assert!(is_let_in(4, early), "restarted before it was answered");
    assert!(!is_let_in(4, again), "this leader has seen its first start");
    assert!(!is_let_in(3, again), "it is a member");
    let restarted = Joined { new_id: 0, ..again };
    assert!(is_let_in(4, restarted), "it has its directory");
    // A founding node that has its place has not lost anything at its first start.
    let founding = Joined {
        recovering: false,
        new_id: 0,
        ..again
    };
    assert!(is_let_in(2, founding));

    // The node itself: only what answers its own start is about it.
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let mut founders = FOUNDERS;
    founders[1] = 6;
    gets(&mut node, 2, 34, &Control::Lead { founders }, &role);
    let mut out = Out::default();
    node.on_tick(2, &role, &mut out);
    let said = said(&out);
    let joined = said.iter().find_map(|(_, control)| match control {
        Control::Joined(joined) => Some(*joined),
        _ => None,
    });
    let joined = joined.expect("it joins");
    assert!(joined.new_id == 7 && joined.recovering);
    let Joined { nonce, .. } = joined;
    let other = Control::Lost { nonce: nonce + 1 };
    assert!(!gets(&mut node, 2, 34, &other, &role).is_lost);
    let old = Control::Lost { nonce };
    assert!(!gets(&mut node, 2, 2, &old, &role).is_lost);
    assert!(gets(&mut node, 2, 34, &old, &role).is_lost);
}
