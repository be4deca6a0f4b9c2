//! What a leader sends to a node whose next record it no longer has.

use super::*;

/// Otherwise it would discard its log, and no majority would have one.
#[test]
fn a_node_is_told_that_it_is_behind_when_a_majority_of_logs_is_left() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let now = leads(&mut node, &role);
    let epoch = node.epoch();
    acks(&mut node, &role, now, 2, 0, 1);
    let own = Record {
        origin: 1,
        origin_session: 1,
        ..Record::default()
    };
    for zxid in 2..=200 {
        role.append(&own).expect("there is room");
        acks(&mut node, &role, now, 2, 0, zxid);
        role.set_applied(zxid);
    }
    let is_told = |out: Out, to: u8| {
        let packets = out.packets.into_iter();
        let out = Out {
            packets: packets.filter(|(node, _)| *node == To::Node(to)).collect(),
            ..Out::default()
        };
        let behind = |(_, c): &(u64, Control)| matches!(c, Control::Behind { .. });
        said(&out).iter().any(behind)
    };
    let mut at = now;
    let mut joins = |from, matched, recovering, durable| {
        let joined = Control::Joined(Joined {
            matched,
            nonce: 5,
            recovering,
            durable,
            new_id: 0,
        });
        let (header, value) = joined.encode(from, epoch);
        let packet = wire::emit(&header, &value);
        let (header, value) = wire::parse(&packet).expect("a packet");
        let mut out = Out::default();
        at += SUSPECT_AFTER_NS / 2;
        node.on_packet(at, &header, value, &role, &mut out);
        is_told(out, from)
    };
    assert!(!joins(3, 1, false, false), "of 2 nothing is known");
    assert!(joins(2, 0, true, false), "it has none to lose");
    assert!(!joins(3, 1, false, false), "2 has lost its log");
    assert!(joins(3, 1, false, true), "it keeps its own on disk");
    joins(2, 200, false, false);
    assert!(joins(3, 1, false, false), "1 and 2 have it");
}

/// What the leader remembers of it from before is no more than what it has now.
#[test]
fn a_node_that_has_recovered_exactly_what_it_had_is_sent_what_follows() {
    let role = inband_box::soft::soft(1, 64);
    role.set_window(64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let now = leads(&mut node, &role);
    let epoch = node.epoch();
    acks(&mut node, &role, now, 2, 0, 1);
    for zxid in 2..=200 {
        appends(&role, 1);
        for from in [2, 3] {
            acks(&mut node, &role, now, from, 0, zxid);
        }
        role.set_applied(zxid);
    }
    // It restarts without its log, and installs the table up to 200.
    gets(&mut node, 3, epoch, &JOINED_EMPTY, &role);
    acks(&mut node, &role, now, 3, flag::RECOVERING, 150);
    let joined = match JOINED_EMPTY {
        Control::Joined(joined) => Control::Joined(Joined {
            matched: 200,
            recovering: false,
            ..joined
        }),
        other => panic!("{other:?}"),
    };
    gets(&mut node, 3, epoch, &joined, &role);
    appends(&role, 60);
    let later = now + SUSPECT_AFTER_NS;
    let sent = sent_again(&acks(&mut node, &role, later, 3, 0, 200), 3);
    assert_eq!(sent.first(), Some(&201), "{sent:?}");
}
