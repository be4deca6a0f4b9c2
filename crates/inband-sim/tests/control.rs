//! The real control plane: coordinator, members and replicated state of inband-control change the epochs
//! of the simulated cluster (schedules.md, 5 and 11).

use crate::common::worlds;
use crate::common::{self, acceptor, settle, sound, submit, MS};
use inband_sim::paxos::{counts, Layout, Options, Paxos, World};
use inband_sim::run_with_trace;

fn warm(mut layout: Layout) -> World {
    layout.plane = true;
    common::warm(layout)
}

/// An acceptor that restarts without memory votes again, in a later epoch and without an operator. After that the
/// cluster survives the loss of another acceptor.
#[test]
fn an_acceptor_without_memory_is_repaired() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6.
    let mut world = warm(Layout::dedicated(3, 1, 2));
    submit(&mut world, 5, 20);
    world.run_for(50 * MS);
    for (round, victim) in [2u64, 3, 4].into_iter().enumerate() {
        let victim = victim as u8;
        world.crash(victim);
        world.start(victim);
        assert!(!acceptor(&world, victim).voting);
        let until = world.now + 2_000 * MS;
        let votes = |w: &World| acceptor(w, victim).voting && w.is_settled();
        assert!(world.run_until(until, votes), "{}", world.explain());
        sound(&world);
        assert!(acceptor(&world, victim).epoch >= round as u64 + 2);
        submit(&mut world, 6, 20);
        world.run_for(50 * MS);
    }
    assert_eq!(world.system.ledger.ends.unknown, 0);
    settle(&mut world);
}

/// Schedule 11: a majority has lost its votes. No epoch opens, whatever the control plane tries.
#[test]
fn a_majority_without_memory_opens_no_epoch() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    let before = world.system.ledger.ends.success;
    for node in [2, 3] {
        world.crash(node);
        world.start(node);
    }
    submit(&mut world, 5, 3);
    world.run_for(world.system.layout.submit_deadline_us() + 1_000 * MS);
    sound(&world);
    let votes = |node: u8| acceptor(&world, node).voting;
    assert!(!votes(2) && !votes(3));
    assert_eq!(world.system.ledger.ends.success, before);
    assert_eq!(world.system.ledger.ends.unknown, 3, "it ends, and honestly");
}

/// The control plane is not on the packet path: without it the cluster keeps deciding.
#[test]
fn the_cluster_decides_while_all_controllers_are_down() {
    let mut world = warm(Layout::dedicated(3, 2, 2));
    world.stop_controllers(2_000 * MS);
    let before = world.system.ledger.ends.success;
    world.crash(3); // an acceptor; nothing repairs it now
    world.start(3);
    for _ in 0..10 {
        submit(&mut world, 6, 10);
        world.run_for(100 * MS);
    }
    sound(&world);
    assert_eq!(world.system.ledger.ends.success, before + 100);
    assert!(!acceptor(&world, 3).voting);
    world.run_for(3_000 * MS);
    assert!(acceptor(&world, 3).voting, "{}", world.explain());
    settle(&mut world);
}

#[test]
fn random_schedules_are_survived() {
    let options = Options {
        faulty_us: 500_000,
        plane: Some(true),
        ..Options::default()
    };
    let summary = worlds::survive::<Paxos>(2_001, 60, &options);
    assert!(summary.stats.of(counts::EPOCHS) > 40, "{summary:?}");
}

/// The same with journals: reconfigurations meet power failures, and disks that are full, fail or are damaged.
#[test]
fn random_schedules_with_journals_are_survived() {
    let options = Options {
        faulty_us: 500_000,
        plane: Some(true),
        sync: Some(true),
        store: Some(false),
        ..Options::default()
    };
    let summary = worlds::survive::<Paxos>(3_001, 60, &options);
    assert!(summary.stats.of(counts::EPOCHS) > 40, "{summary:?}");
}

/// Hosts stay down here when faults end in the middle of a reconfiguration.
#[test]
fn acceptors_that_have_installed_are_needed_until_the_epoch_opens() {
    let options = Options {
        plane: Some(true),
        sync: Some(true),
        ..Options::default()
    };
    worlds::survive::<Paxos>(700_287, 1, &options);
}

#[test]
fn a_seed_is_one_schedule() {
    let options = Options {
        faulty_us: 300_000,
        plane: Some(true),
        store: Some(false),
        ..Options::default()
    };
    for seed in 1..=4 {
        let first = run_with_trace::<Paxos>(seed, &options, usize::MAX);
        assert!(first.violation.is_none(), "{first}");
        assert!(
            first == run_with_trace::<Paxos>(seed, &options, usize::MAX),
            "seed {seed}"
        );
    }
}
