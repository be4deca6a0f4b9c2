//! Epochs: acceptors, replicas and leaders change while the cluster serves.

use crate::common::{acceptor, active, applied, lose, settle, sound, submit, warm, world, MS};
use inband_paxos::dataplane::wire::Type;
use inband_sim::paxos::{Invariant, Layout, Members, Mutation, World};

fn members(world: &World) -> Members {
    Members {
        acceptors: world.system.layout.acceptors.clone(),
        replicas: world.system.layout.replicas.clone(),
        leaders: world.system.layout.leaders.clone(),
    }
}

/// Begins an epoch and waits until all acceptors that are up vote in it and all hosts have entered it.
fn reconfigure(world: &mut World, members: Members) {
    world.reconfigure(members);
    let epoch = world.epoch();
    let done = |w: &World| {
        let entered = |n: &u8| w.host(*n).host.is_none() || w.host(*n).epoch == epoch;
        let votes = |n: &u8| w.host(*n).host.is_none() || acceptor(w, *n).voting;
        w.is_open()
            && w.system.layout.nodes().iter().all(entered)
            && w.system.layout.acceptors.iter().all(votes)
    };
    let until = world.now + 400 * MS;
    assert!(world.run_until(until, done), "{}", world.explain());
    world.run_for(100 * MS);
    sound(world);
}

fn submit_all(world: &mut World, node: u8, count: usize) {
    let before = world.system.ledger.ends.success;
    submit(world, node, count);
    world.run_for(150 * MS);
    sound(world);
    let done = world.system.ledger.ends.success - before;
    assert_eq!(done, count as u64, "{}", world.explain());
}

/// An acceptor that was restarted empty votes again in the next epoch. After that the cluster survives the loss of
/// another acceptor.
#[test]
fn an_acceptor_without_memory_comes_back() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6.
    let mut world = warm(Layout::dedicated(3, 1, 2));
    submit_all(&mut world, 5, 20);
    world.crash(2);
    world.start(2);
    world.run_for(20 * MS);
    assert!(!acceptor(&world, 2).voting);
    let same = members(&world);
    reconfigure(&mut world, same);
    assert!(acceptor(&world, 2).voting);
    assert_eq!(acceptor(&world, 2).highest, acceptor(&world, 3).highest);
    submit_all(&mut world, 6, 20);
    world.crash(3);
    submit_all(&mut world, 5, 20);
    settle(&mut world);
}

/// Acceptors are replaced one after another under load, until none of the original ones is left.
#[test]
fn every_acceptor_is_replaced() {
    let mut layout = Layout::dedicated(3, 1, 2);
    let spares: Vec<u8> = (0..3).map(|_| layout.add_spare_acceptor()).collect();
    let mut world = warm(layout);
    world.load(2 * MS);
    for (old, new) in [2, 3, 4].into_iter().zip(spares) {
        let mut next = members(&world);
        next.acceptors.retain(|node| *node != old);
        next.acceptors.push(new);
        reconfigure(&mut world, next);
        world.crash(old);
        world.run_for(50 * MS);
    }
    world.load(0);
    world.run_for(world.system.layout.submit_deadline_us());
    sound(&world);
    assert!(world.system.ledger.ends.success > 300);
    assert_eq!(world.system.ledger.ends.unknown, 0, "{}", world.explain());
    settle(&mut world);
}

/// Schedule 2: the first leader of the next epoch does not skip phase 1. It finds a value that was decided in the old
/// epoch and that no replica has learned.
#[test]
fn what_the_old_epoch_decided_stays() {
    // Leaders 1, 2; acceptors 3, 4, 5; replicas 6, 7.
    let mut world = warm(Layout::dedicated(3, 2, 2));
    let before = world.system.ledger.ends.success;
    lose(&mut world, |p| p.header().kind == Type::Phase2B);
    submit(&mut world, 6, 10);
    world.run_for(5 * MS);
    assert_eq!(world.system.ledger.ends.success, before);
    let chosen = world.system.observers[0].chosen_highest();
    assert!(chosen >= applied(&world, 6) + 10);
    world.crash(1);
    world.links.filter = None;
    let mut next = members(&world);
    next.leaders = vec![2];
    reconfigure(&mut world, next);
    assert_eq!(active(&world), [2]);
    assert!(applied(&world, 7) >= chosen);
    assert_eq!(world.system.ledger.ends.success, before + 10);
    settle(&mut world);
}

/// Acceptor 2 voted and lost its vote, 3 never received the value, and the coordinator cannot reach 4.
fn sealed_without_memory(mutation: Option<Mutation>) -> World {
    let mut world = world(Layout::dedicated(3, 1, 2), mutation);
    submit(&mut world, 5, 1);
    world.run_for(300 * MS);
    world.crash(6); // so that nothing is trimmed
    lose(&mut world, |p| {
        p.to == 3 && p.header().kind == Type::Phase2A
    });
    submit(&mut world, 5, 3);
    world.run_for(5 * MS);
    assert_eq!(world.system.ledger.ends.success, 4);
    world.hold_links(4);
    world.crash(2);
    world.links.filter = None;
    world.start(2);
    let same = members(&world);
    world.reconfigure(same);
    world.run_for(400 * MS);
    submit(&mut world, 5, 3);
    world.run_for(100 * MS);
    world
}

/// Schedule 5, protocol.md, 4: an acceptor without memory does not count among the sealed.
#[test]
fn an_acceptor_without_memory_is_no_part_of_the_sealed_majority() {
    let mut kept = sealed_without_memory(None);
    sound(&kept);
    assert!(!kept.is_open());
    kept.release_links(4);
    settle(&mut kept);
    assert!(kept.is_open());
    let broken = sealed_without_memory(Some(Mutation::RecoveringSealed));
    let violation = broken.violation.as_ref().expect("three values are lost");
    let rule = violation.invariant;
    let rules = [Invariant::Agreement, Invariant::EpochFenced];
    assert!(rules.contains(&rule), "{violation:?}");
}

/// Schedule 5: the next epoch does not open before the previous one is sealed; until then the previous one decides.
#[test]
fn the_old_epoch_decides_until_it_is_shut() {
    // Leader 1; acceptors 2 to 6; replica 7.
    let mut world = warm(Layout::dedicated(5, 1, 1));
    world.system.hidden.extend([4, 5, 6]);
    let same = members(&world);
    world.reconfigure(same);
    world.run_until(world.now + 50 * MS, |w| {
        !acceptor(w, 2).voting && !acceptor(w, 3).voting
    });
    assert_eq!(world.host(1).epoch, 1, "the leader has not heard of it");
    let before = world.system.ledger.ends.success;
    submit(&mut world, 7, 5);
    world.run_for(2 * MS);
    assert_eq!(world.system.ledger.ends.success, before + 5);
    world.run_for(400 * MS);
    assert!(!world.is_open());
    submit(&mut world, 7, 5);
    world.run_for(50 * MS);
    assert_eq!(world.system.ledger.ends.success, before + 5);
    world.system.hidden.clear();
    world.run_for(200 * MS);
    sound(&world);
    assert!(world.is_open());
    assert_eq!(world.system.ledger.ends.success, before + 10);
    settle(&mut world);
}

/// Schedule 11: a majority of acceptors has lost its votes. No epoch opens, nothing is decided, and clients get
/// "outcome unknown".
#[test]
fn a_majority_without_memory_opens_no_epoch() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    for node in [2, 3] {
        world.crash(node);
        world.start(node);
    }
    let same = members(&world);
    world.reconfigure(same);
    let before = (applied(&world, 5), world.system.ledger.ends.success);
    submit(&mut world, 5, 3);
    world.run_for(world.system.layout.submit_deadline_us() + 100 * MS);
    sound(&world);
    assert!(!world.is_open());
    assert_eq!(
        (applied(&world, 5), world.system.ledger.ends.success),
        before
    );
    assert_eq!(world.system.ledger.ends.unknown, 3);
}

/// The leader continues in the new epoch, with hardly any delay for its clients.
#[test]
fn the_leader_goes_on() {
    let mut world = warm(Layout::dedicated(3, 3, 2));
    assert_eq!(active(&world), [1]);
    let same = members(&world);
    reconfigure(&mut world, same);
    assert_eq!(active(&world), [1]);
    submit_all(&mut world, 7, 20);
    // If the order names another leader, requests go there.
    let mut next = members(&world);
    next.leaders = vec![3, 2];
    reconfigure(&mut world, next);
    let requests_before = world.stats.links.sent;
    submit_all(&mut world, 7, 20);
    assert_eq!(active(&world), [3]);
    assert!(world.stats.links.sent - requests_before < 20 * 40);
    assert_eq!(world.system.ledger.ends.unknown, 0);
    settle(&mut world);
}

/// Within an epoch, another node is made the leader: it takes over at once although the current leader is healthy. A
/// node that cannot reach the acceptors does not take over, because it would only disturb.
#[test]
fn the_leader_is_moved() {
    let mut world = warm(Layout::dedicated(3, 3, 2));
    assert_eq!(active(&world), [1]);
    world.reorder_leaders(vec![3, 1, 2]);
    world.run_for(50 * MS);
    assert_eq!(active(&world), [3]);
    submit_all(&mut world, 7, 20);
    assert_eq!(world.system.ledger.ends.unknown, 0);
    lose(&mut world, |p| p.from == 2 && (p.to == 4 || p.to == 5));
    world.reorder_leaders(vec![2, 3, 1]);
    world.run_for(500 * MS);
    assert_eq!(active(&world), [3]);
    submit_all(&mut world, 7, 20);
    // It takes over as soon as it can reach them.
    lose(&mut world, |_| false);
    world.run_for(300 * MS);
    assert_eq!(active(&world), [2]);
    // One whose first attempts failed halfway tries again.
    let begun = world.now;
    lose(&mut world, move |p| {
        p.to == 1 && p.header().kind == Type::Phase1B && p.now < begun + 300 * MS
    });
    world.reorder_leaders(vec![1, 2, 3]);
    world.run_for(800 * MS);
    assert_eq!(active(&world), [1]);
    lose(&mut world, |_| false);
    submit_all(&mut world, 7, 20);
    assert_eq!((world.epoch(), world.system.ledger.ends.unknown), (1, 0));
    settle(&mut world);
}

/// A new replica copies the state and takes part. A node that is no longer a replica accepts no commands, and floors
/// advance without it.
#[test]
fn replicas_change() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6.
    let mut layout = Layout::dedicated(3, 1, 2);
    let new = layout.add_spare_replica();
    let mut world = warm(layout);
    for _ in 0..5 {
        submit_all(&mut world, 5, 40);
    }
    assert!(!world.submit(new), "it is no replica yet");
    let mut next = members(&world);
    next.replicas = vec![5, 6, new];
    reconfigure(&mut world, next);
    assert_eq!(applied(&world, new), applied(&world, 5));
    submit_all(&mut world, new, 5);
    let mut next = members(&world);
    next.replicas = vec![6, new];
    reconfigure(&mut world, next);
    assert!(!world.submit(5), "it is no replica any more");
    world.crash(5);
    for _ in 0..5 {
        submit_all(&mut world, 6, 40);
    }
    settle(&mut world);
}

/// A read that reached sealed acceptors is answered by those of the next epoch, and sees what was acknowledged in the
/// old one.
#[test]
fn a_read_spans_epochs() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    submit_all(&mut world, 5, 10);
    let same = members(&world);
    world.reconfigure(same);
    let sealed = |w: &World| [2, 3, 4].iter().all(|n| !acceptor(w, *n).voting);
    let between = |w: &World| sealed(w) || w.is_open();
    assert!(world.run_until(world.now + 100 * MS, between));
    assert!(world.read_from(6, 0));
    world.run_for(400 * MS);
    sound(&world);
    assert_eq!(world.system.ledger.ends.reads, 1, "{}", world.explain());
    settle(&mut world);
}

/// A host that was not told of the new epoch learns of it from its peers.
#[test]
fn a_late_host_hears_of_the_epoch() {
    let mut world = warm(Layout::replicas_lead(3, 3));
    world.hold_links(6);
    let same = members(&world);
    world.reconfigure(same);
    world.run_for(20 * MS);
    let heard = |w: &World| {
        let host = w.host(6).host.as_ref().expect("it is up");
        (host.config().epoch, host.highest_epoch_seen())
    };
    let (own, seen) = heard(&world);
    assert!(own == 2 || seen == 1, "no packet came through");
    world.release_links(6);
    let knows = |w: &World| heard(w).1 == 2;
    assert!(world.run_until(world.now + 300 * MS, knows));
    settle(&mut world);
}
