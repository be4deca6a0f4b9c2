//! Replicas of the real key-value store: commands over several partitions, crashes, checkpoints
//! (schedules.md, 4).

use crate::common::worlds;
use crate::common::{self, active_in, applied, lose, settle, sound, submit, world, MS};
use inband_paxos::dataplane::wire::Type;
use inband_sim::paxos::{counts, run, Layout, Options, Paxos, World};

/// Three partitions, and the log of commands over several of them.
const SEVERAL: usize = 3;

fn warm(mut layout: Layout) -> World {
    layout.store = true;
    layout.partitions = 4;
    common::warm(layout)
}

fn submit_to(world: &mut World, node: u8, log: usize, count: usize) {
    for _ in 0..count {
        assert!(world.submit_to(node, log));
    }
}

/// Schedule 4: commands over several partitions come from all replicas at once, and each partition has a different
/// leader. There is no deadlock, and all replicas see one order.
#[test]
fn crossed_commands_over_several_partitions() {
    let mut world = warm(Layout::replicas_lead(3, 3));
    let leaders: Vec<Vec<u8>> = (0..3).map(|p| active_in(&world, p)).collect();
    assert_eq!(leaders, [[4], [5], [6]]);
    for _ in 0..20 {
        for node in [4, 5, 6] {
            submit_to(&mut world, node, SEVERAL, 2);
            for partition in 0..SEVERAL {
                submit_to(&mut world, node, partition, 1);
            }
        }
        world.run_for(3 * MS);
    }
    world.run_for(200 * MS);
    sound(&world);
    assert!(world.is_settled(), "{}", world.explain());
    assert_eq!(
        world.system.ledger.ends.success,
        world.stats.of(counts::SUBMITTED)
    );
    settle(&mut world);
}

/// Schedule 4: replicas crash again and again between commands over several partitions. What a crash loses is executed
/// again, completely and once.
#[test]
fn crashes_between_commands_over_several_partitions() {
    let mut world = warm(Layout::dedicated(3, 2, 3));
    for round in 0..30u64 {
        for node in [6, 7, 8] {
            if world.host(node).is_well() {
                submit_to(&mut world, node, SEVERAL, 3);
                submit_to(&mut world, node, (round % 3) as usize, 2);
            }
        }
        world.run_for(round * 137 % 1_500);
        let victim = [6, 7, 8][(round % 3) as usize];
        world.crash(victim);
        world.run_for(5 * MS);
        world.start(victim);
        sound(&world);
    }
    settle(&mut world);
}

/// The marker of a partition is lost with the replica that would have sent it: another replica sends it.
#[test]
fn another_replica_sends_the_marker() {
    let mut world = warm(Layout::dedicated(3, 1, 3));
    // Replica 5 learns that its command is decided in log M, and dies.
    lose(&mut world, |p| {
        p.to != 5 && p.header().kind == Type::Phase2B
    });
    submit_to(&mut world, 5, SEVERAL, 4);
    world.run_for(MS / 2);
    world.crash(5);
    lose(&mut world, |_| false);
    world.run_for(1_000 * MS);
    sound(&world);
    let logs = |node: u8| {
        let apps = &world.host(node).apps;
        apps.iter().map(|app| app.live.applied).collect::<Vec<_>>()
    };
    assert_eq!(logs(6), logs(7));
    assert!(world.is_settled(), "{}", world.explain());
    settle(&mut world);
}

/// A replica that is further behind than its peers' logs copies all of their stores, as of one moment.
#[test]
fn a_checkpoint_of_all_partitions() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6, 7.
    let mut world = warm(Layout::dedicated(3, 1, 3));
    world.crash(7);
    for _ in 0..12 {
        submit(&mut world, 5, 30);
        submit_to(&mut world, 6, SEVERAL, 3);
        world.run_for(25 * MS);
    }
    for node in [5, 6] {
        world.run_for(20 * MS);
        world.crash(node);
        world.start(node);
    }
    world.start(7);
    world.run_for(900 * MS);
    sound(&world);
    assert!(world.stats.of(counts::CHECKPOINTS) >= 1);
    assert_eq!(
        applied(&world, 7),
        applied(&world, 5),
        "{}",
        world.explain()
    );
    settle(&mut world);
}

/// A client of a replica that is behind reads nothing older than what another client was told.
#[test]
fn a_read_waits_for_what_was_acknowledged_elsewhere() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    lose(&mut world, |p| {
        p.to == 6 && matches!(p.header().kind, Type::Phase2B | Type::Reply)
    });
    let before = world.system.ledger.ends;
    submit_to(&mut world, 5, 1, 5);
    world.run_for(2 * MS);
    assert_eq!(world.system.ledger.ends.success, before.success + 5);
    assert!(world.read_from(6, 1));
    world.run_for(10 * MS);
    assert_eq!(world.system.ledger.ends.reads, before.reads);
    lose(&mut world, |_| false);
    world.run_for(100 * MS);
    sound(&world);
    assert_eq!(world.system.ledger.ends.reads, before.reads + 1);
    settle(&mut world);
}

fn options() -> Options {
    Options {
        faulty_us: 150_000,
        store: Some(true),
        ..Options::default()
    }
}

#[test]
fn a_seed_is_one_schedule() {
    for seed in 1..=2 {
        let first = run(seed, &options());
        assert!(
            first.stats.of(counts::WITH_STORE) == 1 && first.violation.is_none(),
            "{first}"
        );
        assert!(first == run(seed, &options()), "seed {seed}");
    }
}

/// Longer runs than those of the seeds in seeds.rs. `make soak` runs more.
#[test]
fn random_schedules_are_survived() {
    let options = Options {
        faulty_us: 400_000,
        ..options()
    };
    let summary = worlds::survive::<Paxos>(1_001, 6, &options);
    assert!(summary.stats.of(counts::SUCCESS) > 400, "{summary:?}");
}

#[test]
fn a_store_that_loses_what_it_wrote_is_noticed() {
    let mut layout = Layout::dedicated(3, 1, 2);
    layout.store = true;
    let mut world = world(layout, None);
    for node in [5, 6] {
        submit(&mut world, node, 10);
    }
    world.run_for(300 * MS);
    sound(&world);
    world.crash(6);
    world.lose_store(6);
    world.start(6);
    let violation = world.violation.as_ref().expect("it starts with less");
    assert_eq!(violation.invariant, inband_sim::paxos::Invariant::DiskKept);
}
