//! Liveness under faults that never make a majority impossible: directed schedules.

use crate::common::{
    acceptor, active, active_in, applied, filter, lose, settle, sound, submit, warm, MS,
};
use inband_paxos::dataplane::round;
use inband_paxos::dataplane::wire::{flag, Type};
use inband_sim::paxos::{counts, Layout};
use inband_sim::Fate;

/// A backup that only one acceptor can hear keeps suspecting the leader, which it cannot hear. It must not depose the
/// leader again and again.
#[test]
fn a_host_cut_off_from_the_majority_deposes_nobody() {
    // Leaders 1, 2; acceptors 3, 4, 5.
    let mut world = warm(Layout::dedicated(3, 2, 2));
    lose(&mut world, |p| {
        (p.from == 2 || p.to == 2) && p.from != 3 && p.to != 3
    });
    let activations = world.stats.of(counts::ACTIVATIONS);
    for _ in 0..40 {
        submit(&mut world, 6, 5);
        world.run_for(50 * MS);
    }
    sound(&world);
    assert_eq!(
        world.stats.of(counts::ACTIVATIONS),
        activations,
        "the leader was left alone"
    );
    assert_eq!(active(&world), [1]);
    settle(&mut world);
}

/// One acceptor has promised a round that no leader can use any more; the majority has not. A candidate does not give
/// way to that promise.
#[test]
fn one_refusal_does_not_stop_a_candidate() {
    // Leaders 1, 2, 3; acceptors 4, 5, 6.
    let mut world = warm(Layout::dedicated(3, 3, 2));
    // Leader 2 gets the promise of acceptor 4 and dies.
    world.crash(1);
    lose(&mut world, |p| {
        (p.header().kind == Type::Phase1A && p.to != 4) || (p.from == 3 || p.to == 3)
    });
    world.run_for(6_000 * MS);
    world.crash(2);
    // Higher than the round that leader 3 derives from those it can have seen.
    assert!(
        round::counter(acceptor(&world, 4).promise)
            > round::counter(acceptor(&world, 5).promise) + 1
    );
    // Leader 3 does not learn of it before it asks for promises.
    lose(&mut world, |p| {
        p.from == 4 && p.header().kind == Type::Position
    });
    // While it reached no acceptor its questions backed off, to 160 ms at most.
    assert!(
        world.run_until(world.now + 220 * MS, |w| active(w) == [3]),
        "{}",
        world.explain()
    );
    sound(&world);
    settle(&mut world);
}

/// A take-over over a large, full ring never has more questions in flight than receive buffers hold.
#[test]
fn take_over_of_a_large_ring() {
    let mut layout = Layout::dedicated(3, 2, 1);
    layout.ring_slots = 4096;
    layout.timing.submit_deadline_us = 60_000 * MS;
    let mut world = warm(layout);
    // Nothing is trimmed and the ring fills with decided values, so phase 1 must ask for all of them.
    lose(&mut world, |p| p.header().kind == Type::Trim);
    for _ in 0..40 {
        submit(&mut world, 6, 100);
        world.run_for(20 * MS);
    }
    assert!(acceptor(&world, 3).highest > 3_900);
    world.crash(1);
    let lost = world.stats.links.lost;
    assert!(
        world.run_until(world.now + 600 * MS, |w| active(w) == [2]),
        "{}",
        world.explain()
    );
    let trims_and_probes = 200;
    assert!(
        world.stats.links.lost < lost + trims_and_probes,
        "no buffer ran over"
    );
    settle(&mut world);
}

/// More commands than the window holds, without faults: BUSY must not become most of the traffic.
#[test]
fn busy_is_not_asked_for_without_pause() {
    let mut world = warm(Layout::dedicated(3, 2, 3));
    for _ in 0..5 {
        for node in [6, 7, 8] {
            submit(&mut world, node, 200);
        }
        world.run_for(100 * MS);
    }
    world.run_for(200 * MS);
    sound(&world);
    let done = world.system.ledger.ends.success;
    assert_eq!(
        done,
        world.stats.of(counts::SUBMITTED),
        "{}",
        world.explain()
    );
    let (busy, packets) = (world.stats.of(counts::BUSY), world.stats.links.sent);
    assert!(busy < 8 * done, "{busy} BUSY for {done} commands");
    assert!(
        packets < 100 * done,
        "{packets} packets for {done} commands"
    );
    let twice = world.system.ledger.len() - done;
    assert!(twice < done / 10, "{twice} instances more than commands");
}

/// Late packets of a host that no longer leads do not attract requests to it.
#[test]
fn requests_go_to_the_leader_of_the_highest_round() {
    let mut world = warm(Layout::replicas_lead(3, 3));
    // Leader 4 decides, then is cut off from the acceptors; its ALIVEs still reach the others.
    assert_eq!(active(&world), [4]);
    lose(&mut world, |p| {
        (p.from == 4 && p.to < 4)
            || (p.to == 4 && p.from < 4)
            || p.header().kind == Type::Position && (p.from == 4 || p.to == 4)
    });
    submit(&mut world, 6, 20);
    world.run_for(800 * MS);
    sound(&world);
    assert_eq!(active(&world), [5]);
    assert_eq!(world.system.ledger.ends.success, 3 + 20);
    // From now on requests go only to 5, whatever 4 sends.
    world.links.filter = None;
    filter(&mut world, |p| {
        let strays = p.header().kind == Type::Request && p.to != 5;
        assert!(!strays, "{p:?}");
        Fate::Pass
    });
    for _ in 0..20 {
        submit(&mut world, 6, 3);
        world.run_for(15 * MS);
    }
    assert_eq!(active(&world), [5]);
    settle(&mut world);
}

/// An old leader whose next instance was filled and trimmed by others uses up no instances below the floor.
#[test]
fn nothing_is_proposed_below_the_floor() {
    let mut world = warm(Layout::dedicated(3, 1, 1));
    let from = applied(&world, 5) + 1;
    for instance in from..from + 40 {
        world.recover(5, instance, b"");
        world.run_for(2 * MS);
    }
    world.run_for(250 * MS);
    filter(&mut world, |p| {
        let proposal = p.header().kind == Type::Phase2A && !p.header().has(flag::RECOVERY);
        assert!(
            !proposal || p.header().instance >= p.header().floor,
            "{:?}",
            p.header()
        );
        Fate::Pass
    });
    let (lost, before) = (world.stats.links.lost, world.now);
    submit(&mut world, 5, 1);
    assert!(
        world.run_until(before + 10 * MS, |w| w.system.ledger.is_idle(5)),
        "{}",
        world.explain()
    );
    assert_eq!(world.stats.links.lost, lost);
    settle(&mut world);
}

/// Two replicas, one of them dead: values are decided until the window is full, and again once the replica is back.
#[test]
fn two_replicas_one_dead() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    world.crash(6);
    submit(&mut world, 5, 200);
    world.run_for(2_000 * MS);
    sound(&world);
    let ring = world.system.layout.ring_slots as u64;
    let done = world.system.ledger.ends.success;
    assert!(
        (ring - 8..=ring + 2).contains(&done),
        "{done}: the floor needs both replicas"
    );
    world.start(6);
    world.run_for(500 * MS);
    assert_eq!(
        world.system.ledger.ends.success,
        2 + 200,
        "{}",
        world.explain()
    );
    settle(&mut world);
}

/// Five acceptors, two dead, one link between the leader and the third lossy.
#[test]
fn five_acceptors_two_dead() {
    let mut world = warm(Layout::dedicated(5, 1, 3));
    world.crash(2);
    world.crash(3);
    let mut count = 0u32;
    lose(&mut world, move |p| {
        count += u32::from(p.to == 4);
        p.to == 4 && count % 3 == 0
    });
    submit(&mut world, 7, 60);
    world.run_for(1_500 * MS);
    sound(&world);
    assert_eq!(
        world.system.ledger.ends.success,
        3 + 60,
        "{}",
        world.explain()
    );
    settle(&mut world);
}

/// An old leader that was stopped and has nothing outstanding when it continues learns that it was replaced. Otherwise
/// two leaders announce themselves and requests alternate between them.
#[test]
fn an_idle_old_leader_steps_down() {
    let mut world = warm(Layout::dedicated(3, 2, 2));
    world.freeze(1);
    world.run_for(400 * MS);
    world.thaw(1);
    world.run_for(200 * MS);
    assert_eq!(active(&world), [2]);
    settle(&mut world);
}

/// Replicas that take a second to write what they applied do not delay decisions: the leader does not take over from
/// itself.
#[test]
fn slow_disks_of_replicas_depose_nobody() {
    let mut layout = Layout::combined(3);
    layout.ring_slots = 1024;
    layout.flush_max_us = 1_000 * MS;
    let mut world = warm(layout);
    let activations = world.stats.of(counts::ACTIVATIONS);
    for _ in 0..60 {
        submit(&mut world, 2, 5);
        world.run_for(50 * MS);
    }
    sound(&world);
    assert_eq!(world.stats.of(counts::ACTIVATIONS), activations);
    settle(&mut world);
}

/// With one replica and many clients, the window advances as fast as the replica applies, not once per period.
#[test]
fn the_floor_is_told_at_once() {
    let mut world = warm(Layout::dedicated(3, 1, 1));
    let before = world.now;
    let ring = world.system.layout.ring_slots;
    submit(&mut world, 5, 8 * ring);
    assert!(
        world.run_until(before + 600 * MS, |w| w.system.ledger.is_idle(5)),
        "{}",
        world.explain()
    );
    let period_us = world.system.layout.timing.trim_repeat_us;
    assert!(world.now - before < period_us, "{} us", world.now - before);
    settle(&mut world);
}

/// A value that arrived before the checkpoint that precedes it is delivered after the checkpoint.
#[test]
fn the_value_right_behind_a_checkpoint() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6, 7.
    let mut world = warm(Layout::dedicated(3, 1, 3));
    world.crash(7);
    submit(&mut world, 5, 40);
    world.run_for(250 * MS);
    for node in [5, 6] {
        world.crash(node);
        world.start(node);
        world.run_for(20 * MS);
    }
    let checkpoint = applied(&world, 5);
    // Only 7 receives the next value; the others learn nothing for a while.
    lose(&mut world, |p| {
        p.header().kind == Type::Phase2B && matches!(p.to, 5 | 6)
    });
    world.start(7);
    world.recover(5, checkpoint + 1, b"");
    submit(&mut world, 7, 1);
    assert!(
        world.run_until(world.now + 600 * MS, |w| w.stats.of(counts::CHECKPOINTS)
            > 0)
    );
    assert_eq!(applied(&world, 7), checkpoint);
    world.run_for(60 * MS);
    sound(&world);
    assert!(applied(&world, 7) > checkpoint, "{}", world.explain());
    settle(&mut world);
}

fn several(partitions: usize, mut layout: Layout) -> Layout {
    layout.partitions = partitions;
    layout
}

/// Logs have their first leaders on different hosts. One host dies: its logs move to the next leader in their order,
/// and the others are not affected.
#[test]
fn leaders_share_the_logs() {
    let mut world = warm(several(5, Layout::replicas_lead(3, 3)));
    let leaders =
        |w: &inband_sim::paxos::World| (0..5).map(|p| active_in(w, p)).collect::<Vec<_>>();
    assert_eq!(leaders(&world), [[4], [5], [6], [4], [5]]);
    world.crash(5);
    let activations = world.stats.of(counts::ACTIVATIONS);
    world.run_for(300 * MS);
    sound(&world);
    assert_eq!(leaders(&world), [[4], [6], [6], [4], [6]]);
    assert_eq!(world.stats.of(counts::ACTIVATIONS), activations + 2);
    settle(&mut world);
}

/// What an idle cluster sends does not grow with the number of its logs.
#[test]
fn idle_logs_cost_nothing() {
    let packets = |partitions: usize| {
        let mut world = warm(several(partitions, Layout::replicas_lead(3, 3)));
        world.run_for(4_000 * MS);
        let before = world.stats.links.sent;
        world.run_for(1_000 * MS);
        sound(&world);
        world.stats.links.sent - before
    };
    let (one, many) = (packets(1), packets(64));
    // 50 ALIVEs per second from each of three replicas to two others; floors are sent rarely.
    assert!(one < 500, "{one} packets in a second");
    assert!(
        many < 6 * one,
        "{many} packets in a second, {one} with one log"
    );
}

/// A checkpoint that takes so long that more is decided meanwhile than peers usually keep. The replica that installs it
/// must get the rest from the peer that sent it, and not begin with another checkpoint again and again.
#[test]
fn a_replica_catches_up_behind_a_slow_checkpoint_under_load() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6, 7.
    let mut layout = Layout::dedicated(3, 1, 3);
    layout.peer_log_values = 1; // no more than a ring
    layout.checkpoint_copy_us = (400 * MS, 400 * MS);
    let mut world = warm(layout);
    let load = |world: &mut inband_sim::paxos::World, time_ms: u64| {
        for _ in 0..time_ms / 10 {
            submit(world, 5, 10);
            world.run_for(10 * MS);
        }
    };
    world.crash(7);
    load(&mut world, 1_000);
    world.start(7);
    load(&mut world, 4_000);
    sound(&world);
    let (own, theirs) = (applied(&world, 7), applied(&world, 5));
    assert!(theirs > 4_000, "{theirs}");
    assert!(own + 64 > theirs, "{own} of {theirs} applied");
    let checkpoints = world.stats.of(counts::CHECKPOINTS);
    assert!((1..=2).contains(&checkpoints), "{checkpoints} checkpoints");
    settle(&mut world);
}
