//! Leases for followers, and reads confirmed by a majority: directed schedules that break a careless implementation.
//! Each of them detects a missing rule (`mutants/flair-lease-*`, `mutants/flair-majority-*`).

use std::cell::Cell;
use std::rc::Rc;

use crate::common::flair::{end, filter, gets, put, verdict, wait};
use inband_flair::dataplane::wire::Type;
use inband_flair::reads::Reads;
use inband_flair::timing::{Nanos, MS};
use inband_sim::flair::{Act, Host, Layout, MessageKind, Passing, World};
use inband_sim::Fate;

/// How long a follower's lease lasts, from the time that the follower stated.
const LEASE_NS: Nanos = 200 * MS;

struct Spec {
    replicas: u8,
    reads: Reads,
    tick_ns: Nanos,
    step_down_ns: Nanos,
    log_entries: usize,
    sync: bool,
}

const LEASES: Spec = Spec {
    replicas: 3,
    reads: Reads::FollowerLeases,
    tick_ns: 10 * MS,
    step_down_ns: 100 * MS,
    log_entries: 1000,
    sync: false,
};

/// A world with one key of value 1 and no random operations, in which all followers have leases. Returns the leader and
/// a follower, too.
fn quiet(seed: u64, spec: &Spec) -> (World, u8, u8) {
    let layout = Layout {
        replicas: spec.replicas,
        switches: 2,
        clients: 4,
        outstanding: 0,
        keys: 1,
        groups: 2,
        reads: spec.reads,
        leader_avoidance: false,
        tick_ns: spec.tick_ns,
        step_down_ns: spec.step_down_ns,
        think_ns: MS,
        sync: spec.sync,
        log_entries: spec.log_entries,
    };
    let mut world = World::new(seed, layout, None);
    world.set_load(false);
    wait(&mut world, "whole", |w| w.is_whole() && w.active() == [0]);
    put(&mut world, 0, 1);
    world.run_for(100 * MS);
    let leader = world.leader().expect("it serves");
    (world, leader, (leader + 1) % spec.replicas)
}

fn goes(p: &Passing, from: u8, to: u8) -> Option<MessageKind> {
    let is_so = (p.from, p.to) == (Host::Replica(from), Host::Replica(to));
    p.message().filter(|_| is_so)
}

/// Between leader and follower only the messages that show that the other is alive get through.
fn is_cut(p: &Passing, leader: u8, follower: u8) -> bool {
    use MessageKind::{Announcement, Entries, Grant};
    matches!(goes(p, leader, follower), Some(Entries | Grant))
        || goes(p, follower, leader) == Some(Announcement)
}

/// A read in flight to a replica.
fn is_read(p: &Passing) -> bool {
    let kind = p.header().map(|header| header.kind);
    kind == Some(Type::Read) && matches!(p.to, Host::Replica(_))
}

/// Reads that a replica has answered and refused as a follower.
fn reads_at(world: &World, replica: u8) -> (u64, u64) {
    let counters = world.replica(replica).expect("up").counters();
    (counters.reads_follower, counters.reads_refused)
}

/// Three reads per millisecond, for this long.
fn read_for(world: &mut World, ns: Nanos) {
    let until = world.now + ns;
    while world.now < until {
        gets(world, 3);
        world.run_for(MS);
    }
}

#[test]
fn a_write_waits_for_a_holder_that_is_cut_off() {
    let (mut world, leader, holder) = quiet(31, &LEASES);
    filter(&mut world, move |p| match is_cut(p, leader, holder) {
        true => Fate::Lose,
        false => Fate::Pass,
    });
    let (before, put_before) = (reads_at(&world, holder).0, world.answered()[0]);
    world.request(0, 0, Act::Put(2));
    // Until just before the lease ends; it was granted at most 50 ms ago.
    read_for(&mut world, 100 * MS);
    if verdict(&world).is_ok() {
        assert_eq!(world.answered()[0], put_before, "the holder may answer");
        assert!(reads_at(&world, holder).0 > before + 20, "and does");
    }
    read_for(&mut world, 180 * MS);
    assert_eq!(end(world), Ok(()));
}

#[test]
fn a_read_at_the_leader_that_waits_does_not_show_a_write_that_came_meanwhile() {
    let (mut world, leader, holder) = quiet(49, &LEASES);
    // A client's first write waits for its session.
    put(&mut world, 3, 4);
    let began = world.now;
    filter(&mut world, move |p| match goes(p, leader, holder) {
        Some(MessageKind::Entries) => Fate::Delay(20 * MS),
        // At first only the leader is asked.
        None if p.now < began + 20 * MS && is_read(p) && p.to != Host::Replica(leader) => {
            Fate::Lose
        }
        _ => Fate::Pass,
    });
    let read_before = reads_at(&world, holder).0;
    world.request(0, 0, Act::Put(2));
    for at in 0..40 {
        if at == 10 {
            world.request(3, 0, Act::Put(3));
        }
        gets(&mut world, 2);
        world.run_for(MS);
    }
    // The holder has the first one, and a lease with it, ten milliseconds before it has the second one.
    assert_eq!(verdict(&world), Ok(()));
    assert!(reads_at(&world, holder).0 > read_before + 5);
    assert_eq!(end(world), Ok(()));
}

#[test]
fn an_entry_takes_the_lease_away_before_it_is_committed() {
    let (mut world, leader, holder) = quiet(32, &LEASES);
    let has_come = Cell::new(false);
    filter(&mut world, move |p| match goes(p, leader, holder) {
        // The entry arrives, and nothing that says whether it is committed.
        Some(MessageKind::Entries) if !has_come.replace(true) => Fate::Pass,
        Some(_) => Fate::Lose,
        None => Fate::Pass,
    });
    put(&mut world, 0, 2);
    let refused = reads_at(&world, holder).1;
    read_for(&mut world, 40 * MS);
    assert_eq!(verdict(&world), Ok(()));
    assert!(reads_at(&world, holder).1 > refused + 10);
    assert_eq!(end(world), Ok(()));
}

#[test]
fn a_grant_that_overtakes_entries_gives_no_lease_yet() {
    let (mut world, leader, behind) = quiet(33, &LEASES);
    let is_back = Rc::new(Cell::new(false));
    let back = is_back.clone();
    filter(&mut world, move |p| {
        let own = Host::Replica(behind);
        let is_to_or_from = p.message().is_some() && (p.from == own || p.to == own);
        match (is_to_or_from, back.get()) {
            (true, false) => Fate::Lose,
            (true, true) if goes(p, leader, behind) == Some(MessageKind::Entries) => Fate::Lose,
            _ => Fate::Pass,
        }
    });
    // Without a lease it is not waited for.
    world.run_for(LEASE_NS + 20 * MS);
    put(&mut world, 0, 2);
    is_back.set(true);
    world.run_for(60 * MS);
    let refused = reads_at(&world, behind).1;
    read_for(&mut world, 60 * MS);
    assert_eq!(verdict(&world), Ok(()));
    assert!(reads_at(&world, behind).1 > refused + 10);
    assert_eq!(end(world), Ok(()));
}

#[test]
fn a_grant_that_an_entry_has_overtaken_gives_no_lease_back() {
    let (mut world, leader, holder) = quiet(34, &LEASES);
    filter(&mut world, move |p| match goes(p, leader, holder) {
        Some(MessageKind::Grant) => Fate::Delay(30 * MS),
        // This would say what is committed.
        Some(MessageKind::Raft) => Fate::Lose,
        _ => Fate::Pass,
    });
    put(&mut world, 0, 2);
    world.run_for(10 * MS);
    put(&mut world, 0, 3);
    let refused = reads_at(&world, holder).1;
    read_for(&mut world, 29 * MS);
    if verdict(&world).is_ok() {
        assert!(reads_at(&world, holder).1 > refused + 10);
    }
    assert_eq!(end(world), Ok(()));
}

/// A holder with a slow clock is cut off right after it was granted a lease, and a write waits for the lease to end.
fn slow_holder(seed: u64, leader_ppm: u64, holder_ppm: u64) -> Result<(), String> {
    let (mut world, leader, holder) = quiet(seed, &LEASES);
    world.set_clock_rate(Host::Replica(leader), leader_ppm);
    world.set_clock_rate(Host::Replica(holder), holder_ppm);
    world.run_for(100 * MS);
    let granted: Rc<Cell<Option<Nanos>>> = Rc::default();
    let last = granted.clone();
    filter(&mut world, move |p| {
        match (last.get(), goes(p, leader, holder)) {
            (None, Some(MessageKind::Grant)) => last.set(Some(p.now)),
            (Some(_), _) if is_cut(p, leader, holder) => return Fate::Lose,
            _ => {}
        }
        Fate::Pass
    });
    wait(&mut world, "a lease", |_| granted.get().is_some());
    world.request(0, 0, Act::Put(2));
    world.run_for(LEASE_NS - 5 * MS);
    for _ in 0..200 {
        gets(&mut world, 3);
        world.run_for(MS / 10);
    }
    end(world)
}

#[test]
fn a_slow_clock_is_forgiven_within_the_drift() {
    for seed in 0..5 {
        assert_eq!(slow_holder(35 + seed, 1_004_900, 995_100), Ok(()));
    }
}

#[test]
fn a_clock_beyond_the_drift_is_noticed() {
    let noticed = slow_holder(35, 1_000_000, 960_000).expect_err("noticed");
    assert!(noticed.contains("no order"), "{noticed}");
}

/// Writes are decided without the two followers that have leases; one of these gets them as a snapshot, the other one
/// gets none of them.
#[test]
fn a_snapshot_takes_all_leases_away() {
    let spec = Spec {
        replicas: 5,
        tick_ns: 2 * MS,
        step_down_ns: 400 * MS,
        log_entries: 4,
        ..LEASES
    };
    let (mut world, leader, behind) = quiet(40, &spec);
    let other = (leader + 2) % 5;
    let is_let_in = Rc::new(Cell::new(false));
    let lets_in = is_let_in.clone();
    filter(&mut world, move |p| {
        let is_entries = goes(p, leader, behind) == Some(MessageKind::Entries);
        match is_cut(p, leader, behind) || is_cut(p, leader, other) {
            true if is_entries && lets_in.get() => Fate::Pass,
            true => Fate::Lose,
            false => Fate::Pass,
        }
    });
    let began = world.now;
    let applied = |world: &World, number: u8| world.replica(number).expect("up").applied();
    let first = applied(&world, leader);
    for value in 2..22 {
        world.request(0, 0, Act::Put(value));
        world.run_for(MS);
    }
    wait(&mut world, "applied", |w| applied(w, leader) >= first + 20);
    assert_eq!(applied(&world, behind), first);
    is_let_in.set(true);
    wait(&mut world, "a snapshot", |w| {
        applied(w, behind) >= first + 16
    });
    // A later entry would take the lease away, too.
    is_let_in.set(false);
    assert!(world.now < began + 120 * MS, "{} ns", world.now - began);
    read_for(&mut world, 30 * MS);
    assert_eq!(end(world), Ok(()));
}

/// The leader dies and another one serves. A follower holds the entry with which the new session began, so it is asked;
/// but it receives nothing that takes its previous lease away.
#[test]
fn a_lease_ends_with_the_session_of_its_leader() {
    let spec = Spec {
        replicas: 5,
        tick_ns: 2 * MS,
        ..LEASES
    };
    let (mut world, old, holder) = quiet(41, &spec);
    let (is_elected, is_written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (elected, written) = (is_elected.clone(), is_written.clone());
    filter(&mut world, move |p| {
        use MessageKind::{Announcement, Entries, Grant};
        let own = Host::Replica(holder);
        match p.message() {
            Some(_) if p.to == own && !elected.get() => Fate::Lose,
            Some(Grant) if p.to == own => Fate::Lose,
            Some(Entries) if p.to == own && written.get() => Fate::Lose,
            // Another lease would be waited for.
            Some(Announcement) if p.from == own => Fate::Lose,
            _ => Fate::Pass,
        }
    });
    let began = world.now;
    world.stop_replica(old);
    wait(&mut world, "another leader", |w| {
        w.leader().is_some() && w.active().len() == 1
    });
    is_elected.set(true);
    world.run_for(25 * MS);
    is_written.set(true);
    put(&mut world, 0, 2);
    let refused = reads_at(&world, holder).1;
    assert!(world.now < began + 110 * MS, "{} ns", world.now - began);
    read_for(&mut world, 30 * MS);
    if verdict(&world).is_ok() {
        assert!(reads_at(&world, holder).1 > refused + 5);
    }
    assert_eq!(end(world), Ok(()));
}

/// A follower receives grants and states its time, but gets no entries.
#[test]
fn one_that_gets_no_entries_holds_writes_up_for_one_lease() {
    let (mut world, leader, holder) = quiet(42, &LEASES);
    filter(&mut world, move |p| match goes(p, leader, holder) {
        Some(MessageKind::Entries) => Fate::Lose,
        _ => Fate::Pass,
    });
    put(&mut world, 0, 2);
    assert_eq!(world.system.history.ends.get("unknown"), None);
    let began = world.now;
    put(&mut world, 0, 3);
    assert!(world.now < began + 10 * MS, "and only once");
    assert_eq!(end(world), Ok(()));
}

/// A holder's machine restarts, so its clock begins anew, far behind. The leader hears that it lives before it hears
/// its time. Then it hears nothing that the leader writes.
#[test]
fn a_lease_does_not_outlive_the_clock_that_limits_it() {
    let spec = Spec {
        sync: true,
        ..LEASES
    };
    let mut reboots = 0;
    for seed in 50..60 {
        let (mut world, leader, holder) = quiet(seed, &spec);
        let own = Host::Replica(holder);
        let (is_announcing, is_cut_off) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (announces, cut_off) = (is_announcing.clone(), is_cut_off.clone());
        filter(&mut world, move |p| {
            use MessageKind::{Announcement, Entries, Grant};
            match p.message() {
                Some(Announcement) if p.from == own && !announces.get() => Fate::Lose,
                Some(Entries | Grant) if p.to == own && cut_off.get() => Fate::Lose,
                _ => Fate::Pass,
            }
        });
        let shown = world.local(own);
        world.stop_replica(holder);
        world.run_for(2 * LEASE_NS);
        world.restart_replica(holder, true);
        if world.local(own) + 10 * LEASE_NS < shown {
            reboots += 1;
        }
        world.run_for(60 * MS);
        put(&mut world, 0, 2);
        world.run_for(2 * MS);
        is_cut_off.set(true);
        is_announcing.set(true);
        world.run_for(2 * LEASE_NS);
        assert_eq!(world.leader(), Some(leader));
        put(&mut world, 0, 3);
        read_for(&mut world, 30 * MS);
        assert_eq!(end(world), Ok(()), "seed {seed}");
    }
    assert!(reboots > 1, "{reboots} clocks went back");
}

/// A process restarts while its lease lasts and a grant to it is under way. The grant is not for the next process, so
/// that one has no lease.
#[test]
fn a_grant_is_for_one_process() {
    let spec = Spec {
        sync: true,
        ..LEASES
    };
    let (mut world, leader, holder) = quiet(61, &spec);
    let own = Host::Replica(holder);
    let is_late = Rc::new(Cell::new(true));
    let late = is_late.clone();
    filter(&mut world, move |p| {
        use MessageKind::{Announcement, Grant};
        match goes(p, leader, holder) {
            Some(Grant) if late.get() => Fate::Delay(40 * MS),
            Some(Grant) => Fate::Lose,
            _ if p.message() == Some(Announcement) && p.from == own && !late.get() => Fate::Lose,
            _ => Fate::Pass,
        }
    });
    world.run_for(60 * MS);
    world.stop_replica(holder);
    is_late.set(false);
    world.restart_replica(holder, false);
    world.run_for(30 * MS);
    let (before, refused) = reads_at(&world, holder);
    read_for(&mut world, 60 * MS);
    assert_eq!(reads_at(&world, holder).0, before, "it has no lease");
    assert!(reads_at(&world, holder).1 > refused + 5, "and is asked");
    put(&mut world, 0, 2);
    assert_eq!(end(world), Ok(()));
}

/// A leader that no majority confirms, on a switch that still serves its session, gets reads for 50 ms. Returns how
/// many it answers.
fn unconfirmed(reads: Reads) -> u64 {
    let spec = Spec {
        reads,
        step_down_ns: 400 * MS,
        ..LEASES
    };
    let (mut world, leader, _) = quiet(43, &spec);
    filter(&mut world, move |p| match (p.message(), p.from, p.to) {
        (Some(_), Host::Replica(a), Host::Replica(b)) if a == leader || b == leader => Fate::Lose,
        _ => Fate::Pass,
    });
    let answered = |world: &World| world.answered().iter().sum::<u64>();
    let before = answered(&world);
    read_for(&mut world, 50 * MS);
    let count = answered(&world) - before;
    assert_eq!(end(world), Ok(()));
    count
}

#[test]
fn with_majority_a_leader_that_nobody_confirms_answers_nothing() {
    assert_eq!(unconfirmed(Reads::Majority), 0);
    assert!(unconfirmed(Reads::Leader) > 100);
}

#[test]
fn a_question_answers_no_read_that_came_after_it() {
    let spec = Spec {
        reads: Reads::Majority,
        step_down_ns: 400 * MS,
        ..LEASES
    };
    let (mut world, leader, _) = quiet(44, &spec);
    let is_alone = Rc::new(Cell::new(false));
    let alone = is_alone.clone();
    filter(&mut world, move |p| match (p.message(), p.from, p.to) {
        // The next questions are lost, and the answers to the first one are slow.
        (Some(_), Host::Replica(from), _) if from == leader && alone.get() => Fate::Lose,
        (Some(_), _, Host::Replica(to)) if to == leader => Fate::Delay(15 * MS),
        _ => Fate::Pass,
    });
    let before = world.answered();
    world.request(1, 0, Act::Get);
    world.run_for(2 * MS);
    is_alone.set(true);
    world.request(2, 0, Act::Get);
    world.run_for(40 * MS);
    assert_eq!(world.answered()[1], before[1] + 1);
    assert_eq!(world.answered()[2], before[2], "nobody was asked for it");
    assert_eq!(end(world), Ok(()));
}
