//! `sync` mode: power cuts, full disks and damaged journals (schedules.md, 8 and 11).

use crate::common::worlds;
use crate::common::{self, acceptor, applied, settle, sound, submit, world, MS};
use inband_sim::paxos::{Invariant, Layout, Options, Paxos, World};

fn sync(mut layout: Layout) -> Layout {
    layout.sync = true;
    layout
}

fn warm(layout: Layout) -> World {
    common::warm(sync(layout))
}

fn start_all(world: &mut World) {
    for node in world.system.layout.nodes() {
        world.start(node);
    }
}

/// The power of all hosts is cut again and again under load. The simulator's ledger knows what was acknowledged, and
/// its observer what was chosen.
#[test]
fn power_cuts_of_everything_lose_nothing_acknowledged() {
    let layouts = [
        Layout::combined(3),
        Layout::dedicated(3, 2, 2),
        Layout::replicas_lead(5, 3),
    ];
    for layout in layouts {
        let mut world = warm(layout);
        let before = world.system.ledger.ends.success;
        for round in 1..=25u64 {
            world.load(300);
            world.run_for(20 * MS + round * 777);
            world.power_cut();
            world.run_for(MS);
            sound(&world);
            start_all(&mut world);
        }
        assert!(
            world.system.ledger.ends.success > before + 100,
            "{:?}",
            world.system.ledger.ends
        );
        settle(&mut world);
        let node = world.system.layout.acceptors[0];
        assert!(acceptor(&world, node).voting, "nobody had to recover");
    }
}

/// The same without a journal: a majority that has lost its votes decides nothing more. So the test above does test the
/// journal.
#[test]
fn without_a_journal_a_power_cut_of_everything_ends_the_epoch() {
    let mut world = common::warm(Layout::combined(3));
    world.power_cut();
    start_all(&mut world);
    world.must_settle();
    let violation = world.violation.as_ref().expect("nothing can be decided");
    assert_eq!(violation.invariant, Invariant::Liveness, "{violation:?}");
}

/// An acceptor that restarts with its journal continues to vote in its epoch: another one is down for good, so the
/// majority needs it.
#[test]
fn a_restarted_acceptor_counts_again() {
    // Leader 1; acceptors 2, 3, 4; replicas 5, 6.
    let mut world = warm(Layout::dedicated(3, 1, 2));
    world.crash(2);
    world.run_for(100 * MS);
    submit(&mut world, 5, 10);
    world.run_for(100 * MS);
    world.start(2);
    world.crash(3);
    let before = applied(&world, 5);
    submit(&mut world, 5, 10);
    world.run_for(500 * MS);
    assert!(applied(&world, 5) >= before + 10);
    world.must_settle();
    sound(&world);
}

#[test]
fn a_damaged_journal_means_recovering() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    world.load(500);
    world.run_for(100 * MS);
    world.crash(2);
    // At random places in the files, until it matters: most of a file is records.
    while !recovers(&mut world, 2) {
        world.crash(2);
    }
    world.run_for(100 * MS);
    sound(&world);
    assert!(!acceptor(&world, 2).voting);
    // It stays so after another restart, with either kind of fault.
    world.crash(2);
    world.start(2);
    assert!(!acceptor(&world, 2).voting);
    settle(&mut world);
}

fn recovers(world: &mut World, node: u8) -> bool {
    world.damage_journal(node);
    world.start(node);
    !acceptor(world, node).voting
}

/// Full disks at a majority stop all votes. Nothing is lost, and voting resumes when there is space.
#[test]
fn full_disks_stop_votes_and_nothing_else() {
    let mut world = warm(Layout::dedicated(3, 1, 2));
    for node in [2, 3] {
        world.fill_disk(node, true);
    }
    world.load(1_000);
    // Until the preallocated space is used up.
    world.run_for(1_500 * MS);
    let stopped = applied(&world, 5);
    world.run_for(1_000 * MS);
    sound(&world);
    assert_eq!(applied(&world, 5), stopped, "no majority votes");
    for node in [2, 3] {
        world.fill_disk(node, false);
    }
    world.load(0);
    settle(&mut world);
    assert!(applied(&world, 5) > stopped);
}

/// A disk that lies is detected; otherwise the tests above would not detect a lost record either.
#[test]
fn a_lying_disk_is_found_out() {
    let mut world = world(
        sync(Layout::combined(3)),
        Some(inband_sim::paxos::Mutation::LyingDisk),
    );
    for round in 1..=10u64 {
        world.load(300);
        world.run_for(100 * MS + round * 777);
        world.power_cut();
        start_all(&mut world);
    }
    let violation = world.violation.as_ref().expect("votes are lost");
    assert_eq!(violation.invariant, Invariant::DiskKept, "{violation:?}");
}

/// Random schedules of power cuts, and of journals that are damaged where the journal promises to notice it.
#[test]
fn random_schedules_with_journals_are_survived() {
    let options = Options {
        plane: Some(false),
        sync: Some(true),
        store: Some(false),
        ..Options::default()
    };
    worlds::survive::<Paxos>(800_021, 20, &options);
}
