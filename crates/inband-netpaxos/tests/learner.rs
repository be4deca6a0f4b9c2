//! Tests of a learner's recovery.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use inband_netpaxos::control::{Control, Question};
use inband_netpaxos::learner::{Config, Learner, Out, KEPT_MAX, RECOVER_AFTER_NS};
use inband_netpaxos::quorum::{Generations, Sizes};
use inband_netpaxos::request::Request;
use inband_netpaxos::wire::node;

fn enrolled(learner: &mut Learner, minion: u8, incarnation: u32, nonce: u64) -> Option<u32> {
    let enrolled = Control::Enrolled {
        incarnation,
        nonce,
        generations: Generations::default(),
    };
    learner.on_control(1, node::storage(minion), enrolled, &mut Out::default());
    learner.incarnation()
}

/// Storage servers grant a learner with the nonce 1 this incarnation, after an earlier start had the one before.
fn enrol(learner: &mut Learner, incarnation: u32) {
    enrolled(learner, 1, incarnation - 1, 2);
    (1..=3).for_each(|minion| {
        enrolled(learner, minion, incarnation, 1);
    });
    assert_eq!(learner.incarnation(), Some(incarnation));
}

#[test]
fn an_incarnation_is_granted_by_a_quorum_to_this_start() {
    let mut learner = Learner::new(config());
    assert_eq!(enrolled(&mut learner, 1, 1, 1), None);
    assert_eq!(enrolled(&mut learner, 1, 1, 1), None);
    assert_eq!(enrolled(&mut learner, 2, 1, 1), None, "two of four");
    // The third one has granted 5 to another start: 6 is asked for, from all.
    assert_eq!(enrolled(&mut learner, 3, 5, 2), None);
    assert_eq!(enrolled(&mut learner, 4, 1, 1), None, "an earlier answer");
    for (minion, granted) in [(1, None), (3, None), (4, Some(6))] {
        assert_eq!(enrolled(&mut learner, minion, 6, 1), granted, "{minion}");
    }
    // What earlier starts have changes it only if it is higher: then storage servers ignore the reports of this one.
    for (incarnation, nonce) in [(5, 2), (6, 0)] {
        assert_eq!(enrolled(&mut learner, 2, incarnation, nonce), Some(6));
    }
    assert_eq!(enrolled(&mut learner, 2, 9, 2), None);
    for (minion, granted) in [(1, None), (2, None), (3, Some(10))] {
        assert_eq!(enrolled(&mut learner, minion, 10, 1), granted, "{minion}");
    }
}

/// Otherwise a learner that has run for long would come to the highest counter, and use its rounds twice.
#[test]
fn the_counter_of_rounds_is_that_of_an_instance() {
    let mut learner = Learner::new(config());
    enrol(&mut learner, 1);
    let in_use = Control::Position {
        highest: 2,
        generations: Generations::default(),
        question: None,
    };
    learner.on_control(1, node::storage(1), in_use, &mut Out::default());
    let begun = |learner: &mut Learner, from_ns: u64| -> BTreeSet<(u64, u64)> {
        let mut out = Out::default();
        for step in 0..8 {
            learner.tick(from_ns + step * RECOVER_AFTER_NS, &mut out);
        }
        let said = out.packets.iter();
        let said = said.filter_map(|(_, packet)| Control::of(packet));
        said.filter_map(|(_, control)| match control {
            Control::Prepare { instance, round } => Some((instance, round)),
            _ => None,
        })
        .collect()
    };
    let first = begun(&mut learner, 1);
    let counters: Vec<(u64, u64)> = first.iter().map(|(i, round)| (*i, round >> 40)).collect();
    assert_eq!(counters, [(1, 1), (2, 1)]);

    let (instance, round) = *first.first().expect("as above");
    let promised = u64::MAX;
    let refused = Control::Refused {
        instance,
        round,
        promised,
    };
    let now = 10 * RECOVER_AFTER_NS;
    learner.on_control(now, node::storage(1), refused, &mut Out::default());
    let then = begun(&mut learner, now);
    assert!(then.iter().all(|(at, _)| *at == 2), "{then:?}");
}

/// Returns the rounds that a learner begins for an instance of which it only knows that it is in use.
fn rounds(incarnation: u32, number: u8) -> Vec<u64> {
    let sizes = Sizes { failures: 1 };
    let mut learner = Learner::new(Config {
        number,
        sizes,
        nonce: 1,
        incarnation: 1,
    });
    enrol(&mut learner, incarnation);
    let mut out = Out::default();
    let in_use = Control::Position {
        highest: 1,
        generations: Generations::default(),
        question: None,
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
        nonce: 1,
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
        nonce: 1,
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

fn config() -> Config {
    Config {
        number: 1,
        sizes: Sizes { failures: 1 },
        nonce: 1,
        incarnation: 1,
    }
}

/// Returns the last question that the learner has asked for reads.
fn question_of(out: &Out) -> Option<Question> {
    let said = out.packets.iter().rev();
    let mut said = said.filter_map(|(_, packet)| Control::of(packet));
    said.find_map(|(_, control)| match control {
        Control::Ask { question } => question,
        _ => None,
    })
}

fn decide(learner: &mut Learner, instance: u64, out: &mut Out) {
    let decided = Control::Decided {
        instance,
        value: None,
    };
    learner.on_control(1, node::learner(2), decided, out);
}

#[test]
fn a_read_waits_for_a_quorum_and_for_what_it_knows() {
    let mut learner = Learner::under_application(config());
    enrol(&mut learner, 1);
    let mut out = Out::default();
    learner.read(7);
    learner.tick(1, &mut out);
    let question = question_of(&out).expect("it asks at once");
    let answer = |minion, highest, question| {
        let position = Control::Position {
            highest,
            generations: Generations::default(),
            question: Some(question),
        };
        (node::storage(minion), position)
    };
    let others = [
        Question {
            learner: 2,
            ..question
        },
        Question {
            incarnation: 0,
            ..question
        },
        Question {
            number: question.number + 1,
            ..question
        },
    ];
    let stale = others.map(|other| answer(3, 0, other));
    let answers = [
        answer(1, 0, question),
        answer(2, 2, question),
        answer(2, 2, question),
    ];
    for (from, position) in stale.into_iter().chain(answers) {
        learner.on_control(1, from, position, &mut out);
    }
    (1..=3).for_each(|instance| decide(&mut learner, instance, &mut out));
    learner.tick(2, &mut out);
    assert_eq!(out.confirmed, [], "two of four have answered this question");
    let (from, position) = answer(4, 4, question);
    learner.on_control(2, from, position, &mut out);
    learner.tick(2, &mut out);
    assert_eq!(out.confirmed, [], "instance 4 is not delivered");
    decide(&mut learner, 4, &mut out);
    learner.tick(2, &mut out);
    assert_eq!(out.confirmed, [(7, 4)]);

    // Reads that began after the question was sent need another one.
    learner.read(8);
    learner.tick(3, &mut out);
    let next = question_of(&out).expect("it asks at once");
    assert_ne!(next, question);
    learner.read(9);
    for minion in 1..=3 {
        let (from, position) = answer(minion, 4, next);
        learner.on_control(3, from, position, &mut out);
    }
    learner.tick(4, &mut out);
    assert_eq!(out.confirmed[1..], [(8, 4)]);
    assert_ne!(question_of(&out), Some(next));
}

/// Storage servers that sync each turn would get more of them than they answer.
#[test]
fn a_question_that_nobody_answers_is_repeated_ever_more_rarely() {
    let mut learner = Learner::under_application(config());
    enrol(&mut learner, 1);
    learner.read(7);
    let questions = (0..10_000).filter(|ms| {
        let mut out = Out::default();
        learner.tick(ms * 1_000_000, &mut out);
        question_of(&out).is_some()
    });
    let count = questions.count();
    assert!((10..=60).contains(&count), "{count} in 10 s");
}

#[test]
fn what_the_application_has_applied_is_forgotten_and_others_are_told() {
    let mut learner = Learner::under_application(config());
    enrol(&mut learner, 1);
    let mut out = Out::default();
    let all = KEPT_MAX as u64 + 10;
    (1..=all).for_each(|instance| decide(&mut learner, instance, &mut out));
    assert_eq!(learner.position(), all);
    // Storage servers keep what has not been applied.
    let reported = |learner: &mut Learner, now| {
        let mut out = Out::default();
        learner.tick(now, &mut out);
        let said = out
            .packets
            .iter()
            .filter_map(|(_, packet)| Control::of(packet));
        said.filter_map(|(_, control)| match control {
            Control::Delivered { position, .. } => Some(position),
            _ => None,
        })
        .next_back()
    };
    assert_eq!(reported(&mut learner, 1), Some(0));
    learner.applied(5);
    assert_eq!(reported(&mut learner, 1_000_000_000), Some(5));
    assert_eq!(learner.decided(5), None);
    assert_eq!(learner.decided(6), Some(&None));

    let mut out = Out::default();
    let learn = |instance| Control::Learn { instance };
    learner.on_control(1, node::learner(2), learn(5), &mut out);
    let (_, answer) = Control::of(&out.packets[0].1).expect("a message");
    assert_eq!(answer, Control::Forgotten { floor: 5 });

    let mut behind = Learner::under_application(config());
    behind.reset(3);
    assert!(!behind.needs_checkpoint());
    behind.on_control(1, node::learner(2), answer, &mut out);
    assert!(behind.needs_checkpoint());
    behind.reset(5);
    assert!(!behind.needs_checkpoint());
    assert_eq!(behind.position(), 5);
    // Nothing is delivered while the application is busy.
    behind.pause(true);
    let mut out = Out::default();
    decide(&mut behind, 6, &mut out);
    assert_eq!((behind.position(), out.delivered.len()), (5, 0));
    behind.pause(false);
    behind.tick(1, &mut out);
    assert_eq!((behind.position(), out.delivered.len()), (6, 1));
}

/// Lets all minions send these requests in this order, each number confirmed if `is_stored`.
fn arrive(learner: &mut Learner, order: [u8; 2], is_stored: bool) -> Vec<(u64, Vec<u8>)> {
    let mut out = Out::default();
    for minion in 1..=4 {
        for (at, bytes) in (1..).zip(order) {
            let request = Request {
                client: 7,
                number: bytes.into(),
                low: 1,
                opens: false,
                reply_to: 0,
                value: vec![bytes],
            };
            // The minion has numbered them in the order of their bytes, whatever the order of arrival.
            learner.on_numbered(at, minion, (1, bytes.into()), request, &mut out);
        }
        let stored = Control::Stored {
            incarnation: 1,
            base: 0,
            first: 1,
            mask: 0b11,
            generations: Generations::default(),
        };
        if is_stored {
            learner.on_control(3, node::storage(minion), stored, &mut out);
        }
    }
    let delivered = out.delivered.into_iter();
    let values = delivered.filter_map(|d| Some((d.instance, d.value?.value.clone())));
    values.collect()
}

fn learner(number: u8) -> Learner {
    Learner::new(Config {
        number,
        sizes: Sizes { failures: 1 },
        nonce: 1,
        incarnation: 1,
    })
}

/// Assumption 2 fails: what learners that trust it make of it, and what others do.
#[test]
fn learners_that_go_by_the_order_of_arrival_disagree_where_others_do_not() {
    let one = |value: u8, other: u8| vec![(1, vec![value]), (2, vec![other])];
    let unsafe_logs = [[1, 2], [2, 1]].map(|order| {
        // Nothing is stored, and they decide all the same.
        arrive(&mut learner(1).by_order(), order, false)
    });
    assert_eq!(unsafe_logs, [one(1, 2), one(2, 1)]);
    for order in [[1, 2], [2, 1]] {
        assert_eq!(arrive(&mut learner(1), order, false), []);
        assert_eq!(arrive(&mut learner(1), order, true), one(1, 2));
    }
}

#[test]
fn by_order_of_arrival_a_lost_request_shifts_no_queue_and_a_conflict_is_recovered() {
    let request = |bytes: u8| Request {
        client: 7,
        number: bytes.into(),
        low: 1,
        opens: false,
        reply_to: 0,
        value: vec![bytes],
    };
    let mut learner = learner(1).by_order();
    enrol(&mut learner, 1);
    let mut out = Out::default();
    // Minion 4 does not get request 1.
    for bytes in 1..=3 {
        for minion in (1..=4).filter(|minion| bytes > 1 || *minion < 4) {
            learner.on_numbered(1, minion, (1, 0), request(bytes), &mut out);
        }
    }
    assert_eq!(learner.position(), 3);
    assert_eq!(learner.counts().conflicts, 0);
    // Two and two.
    for (minion, bytes) in [(1, 4), (2, 4), (3, 5), (4, 5)] {
        learner.on_numbered(2, minion, (1, 0), request(bytes), &mut out);
    }
    assert_eq!(learner.position(), 3);
    assert_eq!(learner.counts().conflicts, 1);
    out.packets.clear();
    learner.tick(2, &mut out);
    let prepared = out.packets.iter().any(|(_, packet)| {
        matches!(
            Control::of(packet),
            Some((_, Control::Prepare { instance: 4, .. }))
        )
    });
    assert!(prepared);
    // What recovery decides leaves the queues, and the other one is next.
    let decided = Control::Decided {
        instance: 4,
        value: Some(request(5).into()),
    };
    learner.on_control(3, node::learner(2), decided, &mut out);
    for minion in [3, 4] {
        learner.on_numbered(4, minion, (1, 0), request(4), &mut out);
    }
    assert_eq!(learner.position(), 5);
}

/// A learner that is far behind asks for the next instances as soon as it has the former ones: it is not limited to a
/// few of them each time that an instance is late.
#[test]
fn one_that_is_behind_asks_at_once() {
    let asked_at_once = |highest: u64| {
        let mut learner = Learner::new(config());
        enrol(&mut learner, 1);
        let in_use = Control::Position {
            highest,
            generations: Generations::default(),
            question: None,
        };
        learner.on_control(1, node::storage(1), in_use, &mut Out::default());
        let mut out = Out::default();
        learner.tick(1, &mut out);
        let said = out.packets.iter();
        let said = said.filter_map(|(_, packet)| Control::of(packet));
        said.filter(|(_, control)| matches!(control, Control::Learn { .. }))
            .count()
    };
    assert_eq!(asked_at_once(100), 0);
    assert_eq!(asked_at_once(10_000), 64);
}
