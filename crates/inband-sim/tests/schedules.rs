//! The schedules of schedules.md that concern Paxos, as directed tests.

use crate::common::{
    self, acceptor, active, applied, filter, lose, settle, sound, submit, warm, MS,
};
use inband_paxos::dataplane::wire::{flag, Type};
use inband_sim::paxos::{counts, Invariant, Layout, Mutation, Passing, World};
use inband_sim::Fate;

/// Schedule 1: a floor reaches only one acceptor; the next leader hears that one and one that never voted.
#[test]
fn trim_meets_leader_change() {
    // Leaders 1, 2; acceptors 3, 4, 5; replicas 6, 7, 8.
    let mut world = warm(Layout::dedicated(3, 2, 3));
    let before = acceptor(&world, 3).floor;
    // Acceptor 4 gets no votes and no floors, 5 no floors.
    lose(&mut world, |p| {
        (p.to == 4 && matches!(p.header().kind, Type::Phase2A | Type::Trim))
            || (p.to == 5 && p.header().kind == Type::Trim)
    });
    submit(&mut world, 6, 40);
    world.run_for(300 * MS);
    sound(&world);
    assert!(acceptor(&world, 3).floor > before + 30);
    assert!(acceptor(&world, 5).floor <= before + 3);
    // The new leader hears 3 (trimmed) and 4 (never voted) first, and 5, which voted, late.
    world.crash(1);
    lose(&mut world, |p| {
        p.to == 4 && matches!(p.header().kind, Type::Trim) || p.to == 5
    });
    world.run_for(600 * MS);
    sound(&world);
    settle(&mut world);
    assert!(!active(&world).is_empty());
}

/// Schedule 2: the same round is created twice, by a learner that recovers, crashes and recovers again.
fn round_used_twice(mutation: Option<Mutation>) -> World {
    // Leader 1; acceptors 2, 3, 4; replica 5.
    let mut world = common::world(Layout::dedicated(3, 1, 1), mutation);
    submit(&mut world, 5, 1);
    world.run_for(300 * MS);
    let instance = applied(&world, 5) + 1;
    // The no-op "x" gets only the vote of acceptor 2.
    lose(&mut world, |p| {
        p.from == 5 && p.to != 2 && p.header().kind == Type::Phase2A
    });
    world.recover(5, instance, b"x");
    world.run_for(2 * MS);
    world.crash(5);
    // The restarted process asks the other two, with another no-op.
    lose(&mut world, |p| p.from == 5 && p.to == 2);
    world.start(5);
    world.run_for(150 * MS); // it learns of the leader's round and goes above it, as before
    world.recover(5, instance, b"y");
    world.run_for(200 * MS);
    world
}

#[test]
fn an_incarnation_makes_rounds_unique() {
    let mut kept = round_used_twice(None);
    settle(&mut kept);
    let broken = round_used_twice(Some(Mutation::IncarnationReused));
    let violation = broken
        .violation
        .as_ref()
        .expect("a round used twice is noticed");
    assert_eq!(
        violation.invariant,
        Invariant::RoundsUnique,
        "{violation:?}"
    );
}

/// Schedule 2 on one host: leader and recovering learner share one source of rounds.
#[test]
fn leader_and_recoverer_on_one_host() {
    let mut world = warm(Layout::combined(3));
    let leader = active(&world)[0];
    for _ in 0..20 {
        let next = applied(&world, leader) + 1;
        world.recover(leader, next, b"n");
        submit(&mut world, leader, 2);
        world.run_for(3 * MS);
        sound(&world);
    }
    settle(&mut world);
}

/// Schedule 3: the phase 1 answers for one slot are lost. Without them nothing is proposed there.
#[test]
fn silence_is_not_no_vote() {
    let mut world = warm(Layout::dedicated(3, 2, 2));
    let value_at = applied(&world, 6) + 1;
    // 3 and 4 have voted for the value, and no learner learns it.
    lose(&mut world, |p| {
        p.header().kind == Type::Phase2B || (p.to == 5 && p.header().kind == Type::Phase2A)
    });
    submit(&mut world, 6, 1);
    world.run_for(5 * MS);
    world.crash(1);
    // 4 and 5 are heard, but 4 not about this slot; 3 is cut off.
    lose(&mut world, move |p| {
        p.from == 3
            || (p.from == 4
                && p.header().kind == Type::Phase1B
                && p.header().instance == value_at
                && p.header().has(flag::SLOT))
    });
    world.run_for(150 * MS);
    sound(&world);
    assert!(
        active(&world).is_empty(),
        "a slot nobody answered for is open"
    );
    settle(&mut world);
    assert_eq!(
        world.system.ledger.ends.success, 5,
        "the value was chosen and is kept"
    );
}

/// Schedule 6: a PHASE2A arrives so late that its instance's slot has been reused. The acceptor may have learned of the
/// floor from a TRIM, or only from the vote requests that it gets.
#[test]
fn late_vote_over_a_reused_slot() {
    for hears_trim in [true, false] {
        // Leader 1; acceptors 2, 3, 4; replica 5.
        let mut world = warm(Layout::dedicated(3, 1, 1));
        let late = applied(&world, 5) + 1;
        filter(&mut world, move |p| match p.header().kind {
            Type::Phase2A if p.to == 4 && p.header().instance == late => Fate::Keep,
            Type::Trim if p.to == 4 && !hears_trim => Fate::Lose,
            _ => Fate::Pass,
        });
        let ring = world.system.layout.ring_slots;
        for _ in 0..6 {
            submit(&mut world, 5, ring / 2);
            world.run_for(60 * MS);
        }
        sound(&world);
        assert!(world.kept() > 0 && applied(&world, 5) > late + 2 * ring as u64);
        let reused = acceptor(&world, 4).highest >= late + ring as u64;
        assert_eq!(reused, hears_trim, "without a floor the ring is full");
        world.release();
        world.run_for(5 * MS);
        sound(&world);
        settle(&mut world);
    }
}

/// Schedule 7: votes arrive many times, and a replica that is far behind asks for old ones.
#[test]
fn one_acceptor_two_votes() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    world.links.rates.duplicate_ppm = 900_000;
    // Replica 6 gets only the votes of acceptor 2, duplicated: it must learn nothing from them.
    lose(&mut world, |p| {
        p.to == 6 && p.from != 2 && matches!(p.from, 3 | 4)
    });
    let before = applied(&world, 6);
    submit(&mut world, 5, 10);
    world.run_for(20 * MS);
    sound(&world);
    assert_eq!(applied(&world, 6), before);
    // Its LEARN answers now meet a quorum slot that has moved on by more than a ring.
    for _ in 0..10 {
        submit(&mut world, 5, 10);
        world.run_for(20 * MS);
    }
    settle(&mut world);
}

/// Schedule 9: every vote request of a full window is lost.
#[test]
fn frozen_window() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    lose(&mut world, |p| p.header().kind == Type::Phase2A);
    submit(&mut world, 5, 100);
    world.run_for(40 * MS);
    assert!(world.stats.of(counts::BUSY) > 0, "the window is full");
    let activations = world.stats.of(counts::ACTIVATIONS);
    world.links.filter = None;
    world.run_for(400 * MS);
    sound(&world);
    assert!(
        world.stats.of(counts::ACTIVATIONS) > activations,
        "the leader takes over from itself"
    );
    assert!(world.is_settled(), "{}", world.explain());
    assert_eq!(world.system.ledger.ends.unknown, 0, "nobody had to give up");
}

/// Schedule 10: a learner recovers what the leader is about to propose.
#[test]
fn recovery_does_not_depose() {
    let mut world = warm(Layout::dedicated(3, 2, 2));
    let activations = world.stats.of(counts::ACTIVATIONS);
    for _ in 0..10 {
        let next = applied(&world, 6) + 1;
        world.recover(6, next, b"");
        submit(&mut world, 7, 3);
        world.run_for(10 * MS);
    }
    settle(&mut world);
    assert_eq!(world.stats.of(counts::ACTIVATIONS), activations);
    assert_eq!(active(&world), [1]);
}

/// Schedules 5 and 11: an acceptor without memory does not vote; with two of them, nothing is decided, and nothing is
/// lost.
#[test]
fn amnesiac_acceptors_do_not_vote() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    world.crash(2);
    world.start(2);
    world.run_for(50 * MS);
    assert!(!acceptor(&world, 2).voting);
    submit(&mut world, 5, 5);
    world.run_for(100 * MS);
    assert!(world.is_settled(), "two of three are a majority");
    world.crash(3);
    world.start(3);
    let before = applied(&world, 5);
    submit(&mut world, 5, 1);
    world.run_for(world.system.layout.submit_deadline_us() + 100 * MS);
    sound(&world);
    assert_eq!(applied(&world, 5), before);
    assert_eq!(world.system.ledger.ends.unknown, 1, "it ends, and honestly");
}

/// Schedule 12: what the leader has stamped is not necessarily decided. Stamped values that no acceptor has seen do not
/// delay a read.
#[test]
fn a_read_does_not_wait_for_what_is_only_stamped() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6.
    let mut world = warm(Layout::dedicated(3, 1, 2));
    lose(&mut world, |p| p.header().kind == Type::Phase2A);
    submit(&mut world, 5, 10);
    world.run_for(2 * MS);
    assert!(world.read_from(6, 0));
    let answered = |w: &World| w.system.ledger.ends.reads == 1;
    assert!(
        world.run_until(world.now + 2 * MS, answered),
        "{}",
        world.explain()
    );
    sound(&world);
    settle(&mut world);
}

/// Schedule 12: a value that one acceptor has voted for may be decided. A read waits for it, and the learner recovers
/// the hole, because no leader decides it.
#[test]
fn a_read_recovers_the_hole_it_meets() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    lose(&mut world, |p| {
        p.header().kind == Type::Phase2A && !p.header().has(flag::RECOVERY) && p.to != 2
    });
    submit(&mut world, 5, 1);
    world.run_for(MS);
    // Acceptor 2 is in the majority that answers.
    let others = |p: &Passing| p.from == 4 && p.header().kind == Type::Position;
    lose(&mut world, move |p| {
        others(p)
            || (p.header().kind == Type::Phase2A && !p.header().has(flag::RECOVERY) && p.to != 2)
    });
    let before = applied(&world, 6);
    assert!(world.read_from(6, 0));
    world.run_for(10 * MS);
    assert_eq!(world.system.ledger.ends.reads, 0, "it may be decided");
    world.run_for(90 * MS);
    sound(&world);
    assert_eq!(world.system.ledger.ends.reads, 1, "{}", world.explain());
    assert_eq!(applied(&world, 6), before + 1);
    settle(&mut world);
}

/// An old leader that is cut off still believes that it leads; its successor has decided more.
fn read_beside_an_old_leader(mutation: Option<Mutation>) -> World {
    // Leaders 1, 2; acceptors 3, 4, 5; replicas 6, 7.
    let mut world = common::world(Layout::dedicated(3, 2, 2), mutation);
    submit(&mut world, 6, 1);
    world.run_for(300 * MS);
    lose(&mut world, |p| p.from == 1 || p.to == 1);
    world.run_for(400 * MS);
    assert_eq!(active(&world), [1, 2]);
    submit(&mut world, 6, 10);
    world.run_for(5 * MS);
    assert_eq!(world.system.ledger.ends.success, 11);
    world.read_from(7, 0);
    world.run_for(20 * MS);
    world
}

/// Schedule 12: what a leader has stamped is no index for a read; the leader may have been replaced.
#[test]
fn a_read_sees_what_another_leader_decided() {
    let mut kept = read_beside_an_old_leader(None);
    sound(&kept);
    assert_eq!(kept.system.ledger.ends.reads, 1);
    settle(&mut kept);
    let broken = read_beside_an_old_leader(Some(Mutation::ReadOfStamped));
    let violation = broken
        .violation
        .as_ref()
        .expect("the old leader stamped less");
    let rule = violation.invariant;
    assert_eq!(rule, Invariant::ReadsLinearizable, "{violation:?}");
}

/// A replica that lacks what another one has acknowledged returns no older state to a read.
#[test]
fn a_read_waits_for_what_was_acknowledged_elsewhere() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    lose(&mut world, |p| {
        p.to == 6 && matches!(p.header().kind, Type::Phase2B | Type::Reply)
    });
    submit(&mut world, 5, 5);
    world.run_for(2 * MS);
    assert_eq!(world.system.ledger.ends.success, 2 + 5);
    assert!(world.read_from(6, 0));
    world.run_for(50 * MS);
    assert_eq!(world.system.ledger.ends.reads, 0);
    world.links.filter = None;
    world.run_for(50 * MS);
    sound(&world);
    assert_eq!(world.system.ledger.ends.reads, 1, "{}", world.explain());
    settle(&mut world);
}

/// Acceptor 2 voted and lost its vote, 3 never received the value, 4 cannot be heard.
fn read_without_memory(mutation: Option<Mutation>) -> World {
    let mut world = common::world(Layout::dedicated(3, 1, 2), mutation);
    submit(&mut world, 5, 1);
    world.run_for(300 * MS);
    lose(&mut world, |p| {
        p.to == 3 && p.header().kind == Type::Phase2A
    });
    submit(&mut world, 5, 1);
    world.run_for(5 * MS);
    assert_eq!(world.system.ledger.ends.success, 2);
    world.crash(2);
    lose(&mut world, |p| p.from == 4 || p.to == 4);
    world.start(2);
    world.read_from(6, 0);
    world.run_for(20 * MS);
    world
}

#[test]
fn an_acceptor_without_memory_counts_for_no_read() {
    let mut kept = read_without_memory(None);
    sound(&kept);
    assert_eq!(kept.system.ledger.ends.reads, 0);
    settle(&mut kept);
    assert!(kept.system.ledger.ends.reads > 0);
    let broken = read_without_memory(Some(Mutation::ReadOfRecovering));
    let violation = broken.violation.as_ref().expect("the read misses a value");
    let rule = violation.invariant;
    assert_eq!(rule, Invariant::ReadsLinearizable, "{violation:?}");
}

/// Without a majority a read fails at its deadline, and not before.
#[test]
fn a_read_without_a_majority_fails() {
    let mut world = warm(Layout::dedicated(3, 1, 1));
    lose(&mut world, |p| p.to == 2 || p.to == 3);
    assert!(world.read_from(5, 0));
    world.run_for(world.system.layout.submit_deadline_us() - MS);
    assert_eq!(world.system.ledger.ends.reads_failed, 0);
    world.run_for(2 * MS);
    sound(&world);
    let ends = world.system.ledger.ends;
    assert_eq!((ends.reads, ends.reads_failed), (0, 1));
    settle(&mut world);
}

/// Thousands of reads cost the acceptors only a few questions.
#[test]
fn reads_share_rounds_of_questions() {
    let mut world = warm(Layout::dedicated(3, 1, 1));
    let before = world.stats.links.sent;
    for _ in 0..5_000 {
        assert!(world.read_from(5, 0));
    }
    world.run_for(MS);
    for _ in 0..5_000 {
        assert!(world.read_from(5, 0));
    }
    world.run_for(2 * MS);
    sound(&world);
    assert_eq!(world.system.ledger.ends.reads, 10_000);
    let packets = world.stats.links.sent - before;
    assert!(packets < 40, "{packets} packets");
}

/// Schedule 13: the values of one session are decided in another order than they were sent.
#[test]
fn sequence_4_after_5() {
    let mut world = warm(Layout::dedicated(3, 1, 1));
    // The first request of every pair is delayed.
    let mut odd = false;
    filter(&mut world, move |p| {
        odd ^= p.header().kind == Type::Request;
        if odd && p.header().kind == Type::Request {
            Fate::Keep
        } else {
            Fate::Pass
        }
    });
    submit(&mut world, 5, 10);
    world.run_for(2 * MS);
    assert_eq!(world.system.ledger.ends.success, 1 + 5);
    world.links.filter = None;
    world.release();
    world.run_for(5 * MS);
    sound(&world);
    assert_eq!(
        world.system.ledger.ends.success,
        1 + 10,
        "the overtaken ones are applied too"
    );
    settle(&mut world);
}

/// Schedule 13: a request of a process that has ended is decided after its successor's, in the session that is no
/// longer used. It counts at most once.
#[test]
fn an_old_session_speaks_late() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    world.links.rates.duplicate_ppm = 500_000;
    filter(&mut world, |p| match p.header().kind {
        Type::Request if p.from == 5 => Fate::Keep,
        _ => Fate::Pass,
    });
    submit(&mut world, 5, 10);
    world.run_for(20 * MS);
    assert!(world.kept() > 0);
    world.crash(5);
    world.links.filter = None;
    world.start(5);
    submit(&mut world, 5, 10);
    world.run_for(50 * MS);
    let before = world.system.ledger.len();
    world.release();
    world.run_for(50 * MS);
    sound(&world);
    assert!(
        world.system.ledger.len() > before,
        "the old ones were decided"
    );
    settle(&mut world);
}

/// Schedule 17: stopping its loader does not pause a packet program, so its links are held instead. What the old leader
/// and an acceptor had sent arrives all at once, long after another leader has decided more.
#[test]
fn held_links_let_old_packets_go_later() {
    // Leaders 1, 2; acceptors 3, 4, 5; replicas 6, 7.
    let mut world = warm(Layout::dedicated(3, 2, 2));
    submit(&mut world, 6, 20);
    world.run_for(MS / 4);
    for node in [1, 3] {
        world.hold_links(node);
    }
    world.run_for(500 * MS);
    assert_eq!(active(&world), [2]);
    submit(&mut world, 7, 20);
    world.run_for(50 * MS);
    let held = world.stats.links.held;
    assert!(held > 20);
    for node in [1, 3] {
        world.release_links(node);
    }
    world.run_for(400 * MS);
    sound(&world);
    assert_eq!(active(&world), [2]);
    settle(&mut world);
    assert_eq!(world.system.ledger.ends.unknown, 0, "{}", world.explain());
}

/// Two leaders at the same time: the old one is stopped with packets queued, replaced, and continues.
#[test]
fn old_leader_paused_and_resumed() {
    let mut world = warm(Layout::dedicated(3, 2, 3));
    filter(&mut world, |p| {
        if p.from == 1 && p.header().kind == Type::Phase2A {
            Fate::Keep
        } else {
            Fate::Pass
        }
    });
    submit(&mut world, 6, 20);
    world.run_for(MS);
    assert!(world.kept() > 0);
    world.freeze(1);
    world.run_for(500 * MS);
    assert!(active(&world).contains(&2));
    submit(&mut world, 7, 20);
    world.run_for(50 * MS);
    // Its old vote requests and the host itself return at the same time.
    world.links.filter = None;
    world.release();
    world.thaw(1);
    submit(&mut world, 8, 20);
    world.run_for(400 * MS);
    sound(&world);
    assert_eq!(active(&world).len(), 1, "one of them has stepped down");
    settle(&mut world);
    assert_eq!(
        world.system.ledger.ends.success,
        world.stats.of(counts::SUBMITTED)
    );
}

/// A vote is a promise: a delayed PHASE2A of an older round does not replace a newer vote at an
/// acceptor that the newer leader's PHASE1A never reached.
#[test]
fn a_vote_is_a_promise() {
    // Leaders 1, 2; acceptors 3, 4, 5.
    let mut world = warm(Layout::dedicated(3, 2, 2));
    filter(&mut world, |p| {
        if p.from == 1 && p.header().kind == Type::Phase2A {
            Fate::Keep
        } else {
            Fate::Pass
        }
    });
    submit(&mut world, 6, 1);
    world.run_for(MS);
    world.freeze(1);
    // The new leader's promise comes from 4 and 5; 3 hears it only when it proposes.
    let kept = |p: &Passing| p.from == 1 && p.header().kind == Type::Phase2A;
    filter(&mut world, move |p| {
        if kept(p) {
            Fate::Keep
        } else if p.to == 3 && p.header().kind == Type::Phase1A {
            Fate::Lose
        } else {
            Fate::Pass
        }
    });
    world.run_for(400 * MS);
    assert_eq!(active(&world).last(), Some(&2));
    submit(&mut world, 7, 1);
    world.run_for(5 * MS);
    assert!(acceptor(&world, 3).promise < acceptor(&world, 4).promise);
    world.release();
    world.run_for(5 * MS);
    settle(&mut world);
}

/// The window ends exactly one ring above the floor, and the first slot used again is the right one.
#[test]
fn ring_wraps_to_the_slot() {
    let mut world = warm(Layout::dedicated(3, 1, 1));
    let ring = world.system.layout.ring_slots as u64;
    // No floor reaches any acceptor: the ring fills to the last slot and no further.
    lose(&mut world, |p| p.header().kind == Type::Trim);
    let floor = acceptor(&world, 2).floor;
    submit(&mut world, 5, 3 * ring as usize);
    world.run_for(60 * MS);
    sound(&world);
    for node in [2, 3, 4] {
        let view = acceptor(&world, node);
        assert_eq!((view.floor, view.highest), (floor, floor + ring - 1));
    }
    assert!(world.stats.of(counts::BUSY) > 0);
    world.links.filter = None;
    world.run_for(500 * MS);
    sound(&world);
    assert!(world.is_settled(), "{}", world.explain());
    assert_eq!(world.system.ledger.ends.success, 1 + 3 * ring);
}

/// A replica restarts further behind than the ring: its peers' logs have what it lacks.
#[test]
fn replica_further_behind_than_the_ring() {
    let mut world = warm(Layout::dedicated(3, 1, 3));
    world.crash(7);
    for _ in 0..20 {
        submit(&mut world, 5, 20);
        world.run_for(20 * MS);
    }
    world.start(7);
    world.run_for(100 * MS);
    sound(&world);
    assert!(world.is_settled(), "{}", world.explain());
    assert_eq!(
        world.stats.of(counts::CHECKPOINTS),
        0,
        "the log of a peer is enough"
    );
}

/// A replica is further behind than its peers' logs, which restarts have emptied: only a checkpoint helps.
#[test]
fn replica_further_behind_than_the_logs() {
    let mut world = warm(Layout::dedicated(3, 1, 3));
    world.crash(7);
    for _ in 0..10 {
        submit(&mut world, 5, 20);
        world.run_for(20 * MS);
    }
    for node in [5, 6] {
        world.run_for(20 * MS);
        world.crash(node);
        world.start(node);
    }
    world.start(7);
    world.run_for(600 * MS);
    sound(&world);
    assert_eq!(world.stats.of(counts::CHECKPOINTS), 1);
    settle(&mut world);
}

/// A replica that receives nothing for a while, and then no traffic at all, still catches up.
#[test]
fn behind_without_traffic() {
    let mut world = warm(Layout::dedicated(3, 1, 3));
    lose(&mut world, |p| p.to == 7);
    submit(&mut world, 5, 50);
    world.run_for(100 * MS);
    world.links.filter = None;
    world.run_for(100 * MS);
    sound(&world);
    assert!(world.is_settled(), "{}", world.explain());
}
