//! Handover of the lead on SIGTERM.

use super::*;

const MS: u64 = 1_000_000;

fn is_candidacy((_, control): &(u64, Control)) -> bool {
    matches!(control, Control::Elect { .. })
}

/// A leader of three that both others follow; node 3 has less of its log.
fn followed(role: &impl Role) -> (Node, u64) {
    let mut node = started(Start::Founding, Stored::default(), role);
    let now = leads(&mut node, role);
    let epoch = node.epoch();
    for (from, matched) in [(2, 1), (3, 0)] {
        let joined = Control::Joined(Joined {
            matched,
            nonce: 5,
            recovering: false,
            durable: false,
            new_id: 0,
        });
        gets(&mut node, from, epoch, &joined, role);
        acks(&mut node, role, now, from, 0, matched);
    }
    (node, now)
}

#[test]
fn a_leader_asks_the_follower_with_the_most_and_stops_once_another_one_leads() {
    let role = inband_box::soft::soft(1, 64);
    let (mut node, now) = followed(&role);
    let epoch = node.epoch();
    let asks = |node: &mut Node, now: u64| {
        let mut out = Out::default();
        let may_stop = node.hand_over(now, &role, &mut out);
        let to: Vec<To> = out.packets.iter().map(|(to, _)| *to).collect();
        let asked = said(&out);
        assert!(asked
            .iter()
            .all(|(at, c)| (*at, c) == (epoch, &Control::TakeOver)));
        (may_stop, to)
    };
    assert_eq!(asks(&mut node, now), (false, vec![To::Node(2)]));
    assert_eq!(asks(&mut node, now + 1), (false, vec![]), "too soon");
    let again = now + SUSPECT_AFTER_NS;
    assert_eq!(asks(&mut node, again), (false, vec![To::Node(2)]));
    // The candidate may need the records that only this node has.
    gets(&mut node, 2, epoch + 1, &ELECT, &role);
    assert_eq!(asks(&mut node, again), (false, vec![]));
    gets(&mut node, 2, epoch + 1, &LEAD, &role);
    node.on_tick(again, &role, &mut Out::default());
    assert_eq!(asks(&mut node, again), (true, vec![]));
}

#[test]
fn a_leader_that_nobody_follows_stops_at_once() {
    let role = inband_box::soft::soft(1, 64);
    let (mut node, now) = followed(&role);
    let unheard = now + 100 * SUSPECT_AFTER_NS;
    let mut out = Out::default();
    assert!(node.hand_over(unheard, &role, &mut out));
    assert_eq!(said(&out), []);
}

#[test]
fn a_follower_stands_for_election_if_its_leader_asks_for_it() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    gets(&mut node, 2, 34, &LEAD, &role);
    node.on_tick(MS, &role, &mut Out::default());
    assert_eq!(node.leader(), Some(2));
    for (from, epoch) in [(3, 34), (2, 2), (3, 35)] {
        let out = gets(&mut node, from, epoch, &Control::TakeOver, &role);
        assert!(!said(&out).iter().any(is_candidacy), "{from} {epoch}");
    }
    let out = gets(&mut node, 2, 34, &Control::TakeOver, &role);
    assert!(said(&out).iter().any(is_candidacy), "{:?}", said(&out));
    assert!(node.epoch() > 34);
}

#[test]
fn a_node_without_its_log_does_not_take_over() {
    let role = inband_box::soft::soft(1, 64);
    let stored = Stored {
        promise: 33,
        session: 4,
        has_log: false,
        new_id: 0,
        founders: FOUNDERS,
    };
    let mut node = started(Start::Recovering, stored, &role);
    gets(&mut node, 2, 34, &LEAD, &role);
    node.on_tick(MS, &role, &mut Out::default());
    assert_eq!(node.leader(), Some(2));
    let out = gets(&mut node, 2, 34, &Control::TakeOver, &role);
    assert!(!said(&out).iter().any(is_candidacy), "{:?}", said(&out));
}
