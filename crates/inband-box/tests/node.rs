//! What a node stores, and when.
#![allow(missing_docs)]

use inband_box::control::Control;
use inband_box::node::{Config, Node, Out, Quorum, Start, SUSPECT_AFTER_NS};
use inband_box::promise::Stored;
use inband_box::role::{Mode, Role};
use inband_box::wire;

fn started(start: Start, stored: Stored, role: &impl Role) -> Node {
    let config = Config {
        node: 1,
        nodes: 3,
        quorum: Quorum::Majority,
        suspect_after_ns: SUSPECT_AFTER_NS,
    };
    Node::new(config, start, stored, 7, 0, role)
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

#[test]
fn a_promise_is_stored_with_what_says_it_and_is_given_once() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let out = gets(&mut node, 2, 34, &Control::Elect, &role);
    assert_eq!(out.store.map(|stored| stored.promise), Some(34));
    let is_promise = |(epoch, control): &(u64, Control)| {
        *epoch == 34 && matches!(control, Control::Promise { .. })
    };
    assert!(said(&out).iter().any(is_promise), "{:?}", said(&out));
    let view = role.view();
    assert_eq!((view.epoch, view.mode), (34, Mode::Idle));
    // From a node that does not own it, and a lower one.
    for (from, epoch) in [(3, 34), (2, 2)] {
        let out = gets(&mut node, from, epoch, &Control::Elect, &role);
        assert!(!said(&out).iter().any(is_promise), "{:?}", said(&out));
    }
}

#[test]
fn nothing_is_acknowledged_in_an_epoch_before_it_is_stored() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let out = gets(&mut node, 2, 34, &Control::Lead, &role);
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
    let is_joined = |(_, control): &(u64, Control)| matches!(control, Control::Joined { .. });
    assert!(said(&out).iter().any(is_joined), "{:?}", said(&out));
}

#[test]
fn a_node_that_lost_its_log_votes_for_nobody_and_joins_no_leader_below_its_promise() {
    let stored = Stored {
        promise: 66,
        session: 4,
        has_log: false,
    };
    // It has promised something, so its cluster is not new.
    for start in [Start::Recovering, Start::Founding] {
        let role = inband_box::soft::soft(1, 64);
        let mut node = started(start, stored, &role);
        assert_eq!((node.is_recovering(), node.session()), (true, 5));
        let out = gets(&mut node, 3, 99, &Control::Elect, &role);
        let is_promise = |(_, c): &(u64, Control)| matches!(c, Control::Promise { .. });
        assert!(!said(&out).iter().any(is_promise), "{:?}", said(&out));
        let out = gets(&mut node, 2, 34, &Control::Lead, &role);
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
    gets(&mut node, 2, 34, &Control::Elect, &role);
    let absurd = (1 << 63) + 2;
    for control in [
        Control::Elect,
        Control::Lead,
        Control::Hello,
        Control::Denied,
        Control::PreElect { id: 1 },
    ] {
        let out = gets(&mut node, 2, absurd, &control, &role);
        assert_eq!(out.store, None, "{control:?}");
        assert_eq!(said(&out), [], "{control:?}");
    }
    let status = node.status(&role);
    assert_eq!((status.epoch, status.epochs_refused), (34, 5));
    // One that has lost its log may have missed any number of epochs, but not all.
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Recovering, Stored::default(), &role);
    gets(&mut node, 2, absurd, &Control::Lead, &role);
    assert_eq!(node.epoch(), 0);
    gets(&mut node, 2, (1 << 40) + 2, &Control::Lead, &role);
    assert_eq!(node.epoch(), (1 << 40) + 2);
}

#[test]
fn a_node_that_hears_a_leader_wants_no_other() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let is_willing = |out: &Out| {
        said(out)
            .iter()
            .any(|(_, c)| *c == Control::Willing { id: 8 })
    };
    let asked = Control::PreElect { id: 8 };
    let out = gets(&mut node, 3, 0, &asked, &role);
    assert!(is_willing(&out), "it knows of no leader: {:?}", said(&out));
    gets(&mut node, 2, 34, &Control::Lead, &role);
    let out = gets(&mut node, 3, 0, &asked, &role);
    assert!(!is_willing(&out), "{:?}", said(&out));
    assert_eq!(node.epoch(), 34);
}

/// A quorum may hold what is not committed yet, by what the recovering node acknowledged before it lost its log.
#[test]
fn a_recovering_node_counts_again_with_all_that_the_leader_has_in_flight() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let mut now = 0;
    let id = loop {
        now += SUSPECT_AFTER_NS;
        assert!(now < 100 * SUSPECT_AFTER_NS, "it asks for no votes");
        let mut out = Out::default();
        node.on_tick(now, &role, &mut out);
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
    gets(&mut node, 2, 0, &Control::Willing { id }, &role);
    node.on_tick(now, &role, &mut Out::default());
    let epoch = node.epoch();
    let promise = Control::Promise {
        last_epoch: 0,
        last: 0,
        committed: 0,
        first: 1,
    };
    gets(&mut node, 2, epoch, &promise, &role);
    let view = role.view();
    assert_eq!((view.mode, view.committed), (Mode::Leading, 0));
    assert!(view.last > 0, "its first record is in flight");
    let joined = Control::Joined {
        matched: 0,
        nonce: 5,
        recovering: true,
    };
    let out = gets(&mut node, 3, epoch, &joined, &role);
    let target = Control::Target {
        nonce: 5,
        zxid: view.last,
    };
    assert!(said(&out).contains(&(epoch, target)), "{:?}", said(&out));
}
