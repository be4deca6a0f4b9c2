//! The world of consensus in a box: it is played, and deliberate faults in it are noticed.

use crate::common::worlds;
use inband_box::membership::{Change, Membership};
use inband_box::node::Quorum;
use inband_sim::zab::{Fault, Invariant, Mistake, Options, Zab};
use inband_sim::{run, run_with_trace, World};

/// Seeds played by every test run; `make soak` plays thousands.
const SEEDS: u64 = 1_000;
const MS: u64 = 1_000_000;

#[test]
fn nothing_committed_is_lost_and_reads_are_as_declared() {
    let sound = worlds::survive::<Zab>(1, SEEDS, &Options::default());
    assert_eq!((sound.seeds, sound.failures), (SEEDS, 0));
    for fault in Fault::ALL {
        assert!(sound.stats.faults.of(fault.name()) > SEEDS / 4, "{fault}");
    }
    assert!(sound.stats.of("leaders") > 2 * SEEDS, "leaders");
    assert!(sound.stats.of("writes") > 50 * SEEDS, "writes");
    assert!(sound.stats.of("strong reads") > 50 * SEEDS, "strong reads");
    assert!(sound.stats.of("local reads") > 10 * SEEDS, "local reads");
    for what in [
        "SETs proposed by roles",
        "SETs of datagrams submitted",
        "datagrams answered",
    ] {
        let count = sound.stats.of(what);
        assert!(count > 5 * SEEDS, "{what}: {count}");
    }
    for what in [
        "SETs executed unanswered",
        "SETs of datagrams executed twice",
        "SETs proposed and lost",
        "leads handed over",
    ] {
        let count = sound.stats.of(what);
        assert!(count > SEEDS / 10, "{what}: {count}");
    }
    assert!(
        sound.stats.of("nodes that kept their log") > SEEDS / 2,
        "kept"
    );
    assert!(sound.stats.of("checkpoints") > SEEDS / 2, "checkpoints");
    for what in ["nodes added", "quorums asked for", "quorums forced"] {
        assert!(sound.stats.of(what) > SEEDS / 4, "{what}");
    }
    for what in [
        "snapshots installed",
        "nodes that began again",
        "nodes removed",
        "nodes that left",
    ] {
        assert!(sound.stats.of(what) > SEEDS / 20, "{what}");
    }
    assert!(sound.stats.of("damaged logs") > 0, "damaged logs");
}

#[test]
fn a_node_that_sends_but_hears_nothing_deposes_no_leader() {
    for seed in 1..=20 {
        let mut world = World::<Zab>::quiet(seed);
        world.run_for(60 * MS);
        let leader = world.leader().expect("a leader after 60 ms");
        let led = world.epochs_led();
        let deaf = leader % world.nodes() + 1;
        world.deafen(deaf);
        world.run_for(150 * MS);
        let since = world.epochs_led() - led;
        assert_eq!(since, 0, "seed {seed}: node {deaf} deposed {since} leaders");
        assert!(world.violation.is_none(), "{:?}", world.violation);
    }
}

/// Nobody has to suspect it first.
#[test]
fn a_leader_that_is_told_to_stop_hands_over_its_lead() {
    for seed in 1..=40 {
        let mut world = World::<Zab>::quiet(seed);
        world.run_for(60 * MS);
        let leader = world.leader().expect("a leader after 60 ms");
        let (led, records) = (world.epochs_led(), world.records());
        world.tell_to_stop(leader);
        // The shortest time after which a leader is suspected.
        world.run_for(2 * MS);
        let standing = world.standing();
        assert_eq!(world.epochs_led(), led + 1, "seed {seed}: {standing}");
        assert_ne!(world.leader(), Some(leader), "seed {seed}: {standing}");
        world.run_for(200 * MS);
        let standing = world.standing();
        assert_eq!(world.epochs_led(), led + 1, "seed {seed}: {standing}");
        assert!(world.records() > records + 20, "seed {seed}: {standing}");
        assert!(
            world.violation.is_none(),
            "seed {seed}: {:?}",
            world.violation
        );
    }
}

/// A leader that is cut off goes on to propose the SETs that reach it. None of them is acknowledged, and what the next
/// leader proposes at their places is not taken for them.
#[test]
fn the_sets_of_a_leader_that_is_cut_off_are_not_acknowledged() {
    let mut lost = 0;
    for seed in 1..=60 {
        let mut world = World::<Zab>::quiet(seed);
        world.run_for(60 * MS);
        let leader = world.leader().expect("a leader after 60 ms");
        let before = world.sets_proposed_and_lost();
        world.isolate(&[leader]);
        world.run_for(100 * MS);
        world.reconnect();
        world.run_for(300 * MS);
        lost += world.sets_proposed_and_lost() - before;
        assert!(
            world.violation.is_none(),
            "seed {seed}: {:?}",
            world.violation
        );
    }
    assert!(lost > 10, "only {lost} SETs were proposed and lost");
}

/// Two of three nodes have a write, one of them loses its directory and the other one does not answer: the third cannot
/// know of the write.
#[test]
fn a_founding_node_whose_directory_was_lost_elects_nobody() {
    let mut played = 0;
    for seed in 1..=100 {
        let mut world = World::<Zab>::quiet(seed);
        // With a short log the third node could not follow before the second one is back.
        let is_long = world.log_records() > 1_000;
        if (world.nodes(), world.membership().quorum) != (3, Quorum::Majority) || !is_long {
            continue;
        }
        world.run_for(60 * MS);
        let leader = world.leader().expect("a leader after 60 ms");
        let lost = leader % 3 + 1;
        let third = lost % 3 + 1;
        world.isolate(&[third]);
        let records = world.records();
        world.run_for(60 * MS);
        assert!(world.records() > records, "seed {seed}: two of three write");
        let led = world.epochs_led();
        world.pause_node(leader, 200 * MS);
        world.lose_directory(lost);
        world.reconnect();
        world.run_for(190 * MS);
        assert!(
            world.violation.is_none(),
            "seed {seed}: {:?}",
            world.violation
        );
        assert_eq!(world.epochs_led(), led, "seed {seed}: somebody else leads");
        let records = world.records();
        world.run_for(500 * MS);
        let standing = world.standing();
        assert!(world.records() > records, "seed {seed}: {standing}");
        assert!(!world.is_up(lost), "seed {seed}: its operator must know");
        assert!(
            world.violation.is_none(),
            "seed {seed}: {:?}",
            world.violation
        );
        played += 1;
    }
    assert!(played > 2, "{played} of 100 seeds");
}

/// Asks the current leader for a change until it begins, then waits for it.
fn changes(world: &mut World<Zab>, change: Change, is_done: impl Fn(&Membership) -> bool) {
    for _ in 0..30 {
        world.asks_for(change);
        world.run_for(20 * MS);
        if is_done(&world.membership()) {
            return;
        }
    }
    panic!("{change:?} is not done: {}", world.standing());
}

#[test]
fn a_cluster_grows_to_seven_nodes_and_shrinks_to_three() {
    for seed in 1..=20 {
        let mut world = World::<Zab>::quiet(seed);
        world.run_for(60 * MS);
        for count in world.nodes() + 1..=7 {
            changes(&mut world, Change::Add, |m| m.count() == count);
        }
        let records = world.records();
        // The leader among them.
        for count in (3..7).rev() {
            let node = world.leader().expect("somebody leads");
            changes(&mut world, Change::Remove { node }, |m| m.count() == count);
            world.run_for(100 * MS);
        }
        world.run_for(100 * MS);
        assert!(
            world.records() > records + 20,
            "seed {seed}: they do not write any more"
        );
        assert!(
            !world.asks_for(Change::Remove { node: 7 }),
            "three are the fewest"
        );
        assert!(!world.asks_for(Change::Add), "an id is not used again");
        assert!(
            world.violation.is_none(),
            "seed {seed}: {:?}",
            world.violation
        );
    }
}

#[test]
fn a_switch_from_all_waits_for_every_node_unless_it_is_forced() {
    let to = |quorum, force| Change::Quorum { quorum, force };
    for seed in 1..=20 {
        let mut world = World::<Zab>::quiet(seed);
        world.run_for(60 * MS);
        let is_all = |m: &Membership| m.quorum == Quorum::All;
        changes(&mut world, to(Quorum::All, false), is_all);
        let leader = world.leader().expect("somebody leads");
        let deaf = leader % world.nodes() + 1;
        world.deafen(deaf);
        // What it has got is committed by then.
        world.run_for(100 * MS);
        // Clients write, and wait for the node that gets nothing.
        let records = world.records();
        assert!(world.asks_for(to(Quorum::Majority, false)), "seed {seed}");
        world.run_for(100 * MS);
        let standing = world.standing();
        assert_eq!(
            world.records(),
            records,
            "seed {seed}: node {deaf}: {standing}"
        );
        assert!(is_all(&world.membership()), "seed {seed}");
        assert!(
            !world.asks_for(Change::Add),
            "seed {seed}: one change at a time"
        );
        assert!(world.asks_for(to(Quorum::Majority, true)), "seed {seed}");
        world.run_for(30 * MS);
        assert!(!is_all(&world.membership()), "seed {seed}");
        assert!(world.records() > records + 2, "seed {seed}");
        assert!(
            world.violation.is_none(),
            "seed {seed}: {:?}",
            world.violation
        );
    }
}

#[test]
fn what_is_done_wrong_is_noticed() {
    for (mistake, count, at_least, expected) in [
        (Mistake::StaleRead, 400, 3, Some(Invariant::Linearizable)),
        (Mistake::ForgottenSession, 30, 2, None),
    ] {
        let mistakes = Options {
            mistake: Some(mistake),
        };
        let (summary, broken) = worlds::broken::<Zab>(count, at_least, &mistakes);
        eprintln!("{mistake:?}: {} of {count}: {broken:?}", summary.failures);
        assert!(summary.failures >= at_least, "{mistake:?}: {summary:?}");
        if let Some(expected) = expected {
            assert!(broken.contains(&expected), "{mistake:?}: {broken:?}");
        }
    }
}

#[test]
fn a_seed_is_one_schedule_with_a_trace() {
    let options = Options::default();
    let first = run_with_trace::<Zab>(2, &options, 400_000);
    assert_eq!(first, run_with_trace::<Zab>(2, &options, 400_000));
    for kind in ["Propose", "Ack", "Commit", "ELECT", "FAULT ", "leads epoch"] {
        assert!(first.trace.iter().any(|line| line.contains(kind)), "{kind}");
    }
    assert!(run::<Zab>(2, &options).trace.is_empty());
}
