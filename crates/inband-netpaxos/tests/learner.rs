//! Tests of a learner's recovery.
#![allow(missing_docs)]

use inband_netpaxos::control::Control;
use inband_netpaxos::learner::{Config, Learner, Out, RECOVER_AFTER_NS};
use inband_netpaxos::quorum::{Generations, Sizes};
use inband_netpaxos::request::Request;
use inband_netpaxos::wire::node;

/// Returns the rounds that a learner begins for an instance of which it only knows that it is in use.
fn rounds(incarnation: u32, number: u8) -> Vec<u64> {
    let sizes = Sizes { failures: 1 };
    let mut learner = Learner::new(Config {
        number,
        sizes,
        incarnation,
    });
    let mut out = Out::default();
    let in_use = Control::Position {
        highest: 1,
        generations: Generations::default(),
    };
    learner.on_control(1, node::storage(1), in_use, &mut out);
    for step in 0..8 {
        learner.tick(1 + step * RECOVER_AFTER_NS, &mut out);
    }
    let said = out
        .packets
        .iter()
        .filter_map(|(_, packet)| Control::of(packet));
    let rounds = said.filter_map(|(_, control)| match control {
        Control::Prepare { instance: 1, round } => Some(round),
        _ => None,
    });
    rounds.collect()
}

/// Otherwise two values could be proposed in one round, and acknowledgements of one be counted for the other.
#[test]
fn no_round_is_used_by_two_learners_or_two_starts_of_one() {
    let first = rounds(1, 1);
    assert!(!first.is_empty());
    for other in [rounds(2, 1), rounds(1, 2)] {
        assert!(!other.is_empty());
        assert!(
            other.iter().all(|round| !first.contains(round)),
            "{first:?} {other:?}"
        );
    }
}

/// Lets a minion give a request its first number, and its storage confirm a vote for it in instance 1.
fn vote(learner: &mut Learner, minion: u8, generations: Generations) -> Out {
    let request = Request {
        client: 7,
        number: 1,
        low: 1,
        opens: false,
        reply_to: 0,
        value: b"value".to_vec(),
    };
    let mut out = Out::default();
    learner.on_numbered(1, minion, (1, 1), request, &mut out);
    let stored = Control::Stored {
        incarnation: 1,
        base: 0,
        first: 1,
        mask: 1,
        generations,
    };
    learner.on_control(1, node::storage(minion), stored, &mut out);
    out
}

#[test]
fn a_vote_of_a_superseded_generation_does_not_count() {
    let mut learner = Learner::new(Config {
        number: 1,
        sizes: Sizes { failures: 1 },
        incarnation: 1,
    });
    let before = Generations::default();
    let mut after = before;
    // The first storage server has lost its memory since then, as the third one knows.
    after.raise(1, 1);
    for (minion, generations) in [(1, before), (2, before), (3, after)] {
        assert_eq!(vote(&mut learner, minion, generations).fast, [], "{minion}");
    }
    assert_eq!(learner.position(), 0);
    assert_eq!(vote(&mut learner, 4, after).fast.len(), 1);
    assert_eq!(learner.position(), 1);
}

/// Minions 1 to 3 give requests 1 to 8 these numbers, and their storage servers vote accordingly; the fourth one
/// numbers the requests in the given order. Returns how often its storage is told to move its numbers.
fn corrections(order: &[u64]) -> u64 {
    let mut learner = Learner::new(Config {
        number: 1,
        sizes: Sizes { failures: 1 },
        incarnation: 1,
    });
    let mut out = Out::default();
    let mut give = |minion: u8, number: u64, request: u64| {
        let request = Request {
            client: 7,
            number: request,
            low: 1,
            opens: false,
            reply_to: 0,
            value: b"value".to_vec(),
        };
        learner.on_numbered(1, minion, (1, number), request, &mut out);
        let stored = Control::Stored {
            incarnation: 1,
            base: 0,
            first: number,
            mask: 1,
            generations: Generations::default(),
        };
        learner.on_control(1, node::storage(minion), stored, &mut out);
    };
    for request in 1..=8 {
        (1..=3).for_each(|minion| give(minion, request, request));
    }
    for (number, request) in (1..).zip(order) {
        give(4, number, *request);
    }
    assert_eq!(learner.position(), 8);
    learner.counts().aligned
}

#[test]
fn a_minion_is_corrected_if_its_numbers_are_off_but_not_for_its_order() {
    assert_eq!(corrections(&[1, 2, 3, 4, 5, 6, 7, 8]), 0);
    assert_eq!(corrections(&[2, 1, 3, 5, 4, 6, 8, 7]), 0);
    // It has missed the second request.
    assert!(corrections(&[1, 3, 4, 5, 6, 7, 8]) > 0);
}
