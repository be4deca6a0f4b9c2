//! Directed schedules of FLAIR that break a careless implementation and detect a missing rule.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::flair::{end, filter, gets, is_control, put, verdict, wait};
use inband_flair::dataplane::wire::{flag, Type};
use inband_flair::reads::Reads;
use inband_flair::timing::{Nanos, MS};
use inband_sim::flair::{counts, Act, Host, Invariant, Layout, MessageKind, Mutation, World};
use inband_sim::Fate;

/// Hosts that have just started, with one key, one group and no random operations.
fn new_world(seed: u64, replicas: u8, mutation: Option<Mutation>, step_down_ns: Nanos) -> World {
    let layout = Layout {
        replicas,
        switches: 2,
        clients: 4,
        outstanding: 0,
        keys: 1,
        groups: 1,
        reads: Reads::Flair,
        leader_avoidance: false,
        tick_ns: 10 * MS,
        step_down_ns,
        think_ns: MS,
        sync: false,
        log_entries: 1000,
    };
    let mut world = World::new(seed, layout, mutation);
    world.set_load(false);
    world
}

/// The same, once it serves and has value 1.
fn quiet(seed: u64, mutation: Option<Mutation>, step_down_ns: Nanos) -> World {
    let mut world = new_world(seed, 3, mutation, step_down_ns);
    wait(&mut world, "whole", |w| w.is_whole() && w.active() == [0]);
    put(&mut world, 0, 1);
    world.run_for(100 * MS);
    world
}

/// Schedule 14: switch 0 is cut off from the leader and from the clients of switch 1, but reaches a follower. A
/// heartbeat that waited in a queue arrives late.
fn two_switches(mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = quiet(14, mutation, 100 * MS);
    let leader = Host::Replica(world.leader().expect("it serves"));
    let began = world.now;
    filter(&mut world, move |p| {
        let old = Host::Switch(0);
        let is_between = (p.from, p.to) == (leader, old) || (p.from, p.to) == (old, leader);
        let is_late = is_control(p) && p.from == leader && p.now < began + 12 * MS;
        match (is_between, is_late) {
            (true, true) => Fate::Delay(60 * MS),
            (true, false) => Fate::Lose,
            // Clients 1 to 3 know only the old switch, client 0 only the new one.
            _ => match (p.from, p.to) {
                (Host::Client(0), Host::Switch(0)) => Fate::Lose,
                (Host::Client(1..), Host::Switch(1)) => Fate::Lose,
                _ => Fate::Pass,
            },
        }
    });
    world.request(0, 0, Act::Put(2));
    for _ in 0..150 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    let reads = world.answered()[1..].iter().sum::<u64>();
    assert!(reads > 20, "the old switch serves for a while: {reads}");
    wait(&mut world, "the new switch serves", |w| {
        w.answered()[0] == 2
    });
    assert!(world.violation.is_some() || world.active() == [1]);
    end(world)
}

#[test]
fn two_switches_never_serve_at_once() {
    assert_eq!(two_switches(None), Ok(()));
    let forgotten = two_switches(Some(Mutation::OldSwitchForgotten));
    assert!(forgotten.expect_err("noticed").contains("serve sessions"));
}

/// Schedule 14 again: the leader is cut off from the other replicas, not from its switch.
fn old_leader(mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = quiet(15, mutation, 100 * MS);
    let old = world.leader().expect("it serves");
    filter(&mut world, move |p| match (p.from, p.to) {
        (Host::Replica(a), Host::Replica(b)) if a == old || b == old => Fate::Lose,
        (Host::Replica(a), Host::Switch(0)) if a != old && is_control(p) => Fate::Lose,
        (Host::Client(0), Host::Switch(0)) | (Host::Client(1..), Host::Switch(1)) => Fate::Lose,
        _ => Fate::Pass,
    });
    world.request(0, 0, Act::Put(2));
    for _ in 0..500 {
        gets(&mut world, 1);
        world.run_for(MS);
    }
    assert!(world.violation.is_some() || world.active() == [1]);
    end(world)
}

#[test]
fn a_leader_without_a_majority_cannot_lengthen_its_session() {
    assert_eq!(old_leader(None), Ok(()));
    // Leaders that are cut off usually step down before another one is elected, but not always.
    let unconfirmed = |seed| {
        let options = inband_sim::flair::Options {
            mutation: Some(Mutation::NotConfirmed),
            ..Default::default()
        };
        inband_sim::flair::run(seed, &options).violation
    };
    let noticed = (1..=100).find_map(unconfirmed).expect("noticed");
    assert_eq!(noticed.invariant, Invariant::OneSwitchServes, "{noticed}");
}

/// Schedule 15 at the leader: a group's later write overtakes the earlier one.
#[test]
fn a_write_that_was_overtaken_is_not_taken() {
    let mut world = quiet(16, None, 100 * MS);
    let delayed = Cell::new(false);
    filter(&mut world, move |p| {
        let is_write = p.header().is_some_and(|h| h.kind == Type::Write);
        let is_first = is_write && matches!(p.to, Host::Replica(_)) && !delayed.replace(true);
        if is_first {
            Fate::Delay(3 * MS)
        } else {
            Fate::Pass
        }
    });
    world.request(0, 0, Act::Put(2));
    world.run_for(MS);
    world.request(0, 0, Act::Put(3));
    for _ in 0..60 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    wait(&mut world, "both end", World::is_idle);
    let leader = world.leader().expect("it serves");
    let dropped = world.replica(leader).expect("up").counters().writes_dropped;
    assert_eq!(dropped, 1);
    assert_eq!(end(world), Ok(()));
}

/// A switch restarts and forgets which groups are being written; then a late INSTALL of its former session arrives.
fn late_install(mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = quiet(17, mutation, 100 * MS);
    let leader = world.leader().expect("it serves");
    let behind = (leader + 1) % 3;
    let session = world.session(0).session;
    // Another session on the same switch, whose INSTALL is duplicated, with one copy delayed.
    world.reset_switch(0, false);
    let slow = Rc::new(Cell::new(0));
    let (counted, is_behind) = (slow.clone(), Rc::new(Cell::new(false)));
    let lags = is_behind.clone();
    filter(&mut world, move |p| {
        let header = p
            .header()
            .filter(|h| h.kind == Type::Install && !h.has(flag::ANSWER));
        if header.is_some() && p.to == Host::Switch(0) && counted.get() == 0 {
            counted.set(p.now + 60 * MS);
            return Fate::Delay(60 * MS);
        }
        let is_to_follower = (p.from, p.to) == (Host::Replica(leader), Host::Replica(behind));
        // The leader learns late that the switch has restarted.
        let is_answer = p.header().is_some_and(|h| h.has(flag::ANSWER));
        match (is_to_follower, is_answer) {
            (true, _) if lags.get() => Fate::Delay(60 * MS),
            (_, true) if lags.get() => Fate::Delay(15 * MS),
            _ => Fate::Pass,
        }
    });
    wait(&mut world, "another session", |w| w.active() == [0]);
    assert!(world.session(0).session > session);
    let arrives = slow.get();
    world.run_until(arrives - 10 * MS, |_| false);
    is_behind.set(true);
    put(&mut world, 0, 2);
    world.run_until(arrives - MS, |_| false);
    world.reset_switch(0, false);
    let last = world.now;
    wait(&mut world, "it came", |w| w.now > last + 2 * MS);
    for _ in 0..100 {
        gets(&mut world, 3);
        world.run_for(MS / 4);
    }
    end(world)
}

#[test]
fn a_restarted_switch_takes_no_late_session() {
    assert_eq!(late_install(None), Ok(()));
    let noticed = late_install(Some(Mutation::LateInstallTaken));
    assert!(noticed.expect_err("noticed").contains("no order"));
}

/// A reply of an old session arrives when the new session has reached the same sequence number.
fn old_reply(seed: u64, mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = quiet(seed, mutation, 100 * MS);
    let leader = world.leader().expect("it serves");
    // The reply's sequence number, its arrival time, and the follower that it names.
    let delayed: Rc<Cell<Option<(u64, Nanos, u8)>>> = Rc::default();
    let is_behind = Rc::new(Cell::new(false));
    let (kept, lags) = (delayed.clone(), is_behind.clone());
    filter(&mut world, move |p| {
        let is_to_follower = kept.get().is_some_and(|(.., behind)| {
            (p.from, p.to) == (Host::Replica(leader), Host::Replica(behind))
        });
        let reply = p.header().filter(|h| h.kind == Type::WriteReply);
        match reply {
            Some(header) if kept.get().is_none() && p.to == Host::Switch(0) => {
                let named = header.followers & !(1 << leader);
                let behind = named.trailing_zeros() as u8;
                kept.set(Some((header.seq, p.now + 150 * MS, behind)));
                Fate::Delay(150 * MS)
            }
            _ if is_to_follower && lags.get() => Fate::Delay(80 * MS),
            _ => Fate::Pass,
        }
    });
    put(&mut world, 0, 2);
    let (seq, arrives, _) = delayed.get().expect("there was a reply");
    world.reset_switch(0, false);
    wait(&mut world, "another session", |w| !w.active().is_empty());
    world.run_until(arrives - 20 * MS, |_| false);
    is_behind.set(true);
    let mut value = 3;
    while world.session(0).seq < seq {
        put(&mut world, 0, value);
        value += 1;
    }
    assert_eq!(world.session(0).seq, seq);
    assert!(world.now < arrives, "not yet");
    world.run_until(arrives + MS, |_| false);
    for _ in 0..60 {
        gets(&mut world, 3);
        world.run_for(MS / 4);
    }
    end(world)
}

#[test]
fn no_session_is_mistaken_for_another() {
    // The switch picks a replica at random, and only the first reads can be wrong, because the leader refreshes the
    // group.
    let mut noticed = 0;
    for seed in 18..34 {
        assert_eq!(old_reply(seed, None), Ok(()), "{seed}");
        if let Err(what) = old_reply(seed, Some(Mutation::SessionReused)) {
            assert!(what.contains("no order"), "{seed}: {what}");
            noticed += 1;
        }
    }
    assert!(noticed > 2, "{noticed}");
}

/// A leader that is cut off has sent a write that the next leader commits while the old session is still served. A read
/// that waited at a follower returns it; the next read, at the old leader, must not return less.
fn early_read(seed: u64, mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = quiet(seed, mutation, 400 * MS);
    let leader = world.leader().expect("it serves");
    let is_cut = Rc::new(Cell::new(false));
    let cut = is_cut.clone();
    let turn = Cell::new(seed);
    let mut asked = BTreeSet::new();
    filter(&mut world, move |p| {
        turn.set(
            turn.get()
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        );
        let is_read = p.header().is_some_and(|h| h.kind == Type::Read);
        let is_again = p
            .header()
            .is_some_and(|h| !asked.insert((p.from, h.client_seq)));
        match (p.from, p.to) {
            // A read that waits is not retransmitted meanwhile.
            (Host::Client(_), _) if is_read && is_again => Fate::Lose,
            (Host::Replica(_), Host::Replica(to)) if to == leader => Fate::Lose,
            (Host::Replica(from), Host::Replica(_)) if from == leader && cut.get() => Fate::Lose,
            (Host::Replica(from), Host::Switch(_)) if from != leader && is_control(p) => Fate::Lose,
            (Host::Switch(_), Host::Replica(to)) if to != leader && is_read => {
                Fate::Delay(90 * MS + (turn.get() >> 33) % (110 * MS))
            }
            _ => Fate::Pass,
        }
    });
    for _ in 0..10 {
        gets(&mut world, 3);
    }
    world.run_for(MS / 2);
    world.request(0, 0, Act::Put(2));
    world.run_for(MS);
    is_cut.set(true);
    for _ in 0..150 {
        gets(&mut world, 3);
        world.run_for(2 * MS);
    }
    end(world)
}

#[test]
fn what_was_read_early_is_not_forgotten() {
    for seed in 1..=20 {
        assert_eq!(early_read(seed, None), Ok(()), "seed {seed}");
    }
    let unchecked = |seed| early_read(seed, Some(Mutation::ReplyNotChecked)).err();
    let noticed = (1..=60).find_map(unchecked).expect("noticed");
    assert!(noticed.contains("no order"), "{noticed}");
}

/// Reads sent to a follower that has died, until it has been silent for long enough.
fn reads_of_the_dead(mutation: Option<Mutation>) -> u64 {
    let mut world = quiet(19, mutation, 100 * MS);
    let dead = (world.leader().expect("it serves") + 1) % 3;
    world.stop_replica(dead);
    world.run_for(150 * MS);
    let before = world.stats.of(counts::READS_OF_THE_DEAD);
    for _ in 0..200 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    let reads = world.stats.of(counts::READS_OF_THE_DEAD) - before;
    assert_eq!(verdict(&world), Ok(()));
    reads
}

#[test]
fn the_dead_are_sent_no_reads() {
    assert_eq!(reads_of_the_dead(None), 0);
    let kept = reads_of_the_dead(Some(Mutation::DeadFollowerKept));
    assert!(kept > 100, "{kept}");
}

/// A follower restarts empty and for a while receives nothing from the others: it is still named as holding what it has
/// lost.
#[test]
fn a_follower_that_has_lost_everything_refuses() {
    let mut world = quiet(20, None, 100 * MS);
    // So that all are named.
    for _ in 0..40 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    let empty = (world.leader().expect("it serves") + 1) % 3;
    world.stop_replica(empty);
    world.restart_replica(empty, false);
    filter(&mut world, move |p| match (p.from, p.to) {
        (Host::Replica(_), Host::Replica(to)) if to == empty => Fate::Lose,
        _ => Fate::Pass,
    });
    for _ in 0..40 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    let counters = world.replica(empty).expect("up").counters();
    assert!(counters.reads_refused > 5, "{counters:?}");
    assert_eq!(counters.reads_follower, 0);
    assert_eq!(end(world), Ok(()));
}

/// How a session ends while its switch is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Succession {
    /// Its leader installs a session on the other switch; a follower gets the entry of that session and no other.
    OtherSwitch,
    /// The same, and the follower does not learn that the entry is committed.
    Unapplied,
    /// Its leader is gone; the follower has the next leader's entry, but does not learn that it is committed.
    OtherLeader,
}

/// The machine of a switch is suspended and later continues with a clock that had stopped. Meanwhile another session
/// has begun and a write was acknowledged. A follower that serves reads has that session's entry in its log, but has
/// not applied it.
fn suspended_switch(seed: u64, succession: Succession) -> Result<u64, String> {
    let mut world = quiet(seed, None, 100 * MS);
    // So that all are named.
    for _ in 0..40 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    let leader = world.leader().expect("it serves");
    let behind = (leader + 1) % 3;
    let old = world.session(0).session;
    let (has_session, wrote) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (has, has_written) = (has_session.clone(), wrote.clone());
    let resumes = world.now + 3000 * MS;
    filter(&mut world, move |p| match (p.from, p.to) {
        // A suspended machine has no timers.
        (_, Host::Switch(0)) if p.now < resumes => Fate::Lose,
        // Clients 1 to 3 know only the old switch, client 0 only the new one.
        (Host::Client(0), Host::Switch(0)) | (Host::Client(1..), Host::Switch(1)) => Fate::Lose,
        (Host::Replica(_), Host::Replica(to)) if to == behind => match (succession, p.message()) {
            (Succession::OtherSwitch, Some(MessageKind::Entries)) if has.get() => Fate::Lose,
            (Succession::Unapplied, Some(MessageKind::Raft)) => Fate::Lose,
            (Succession::Unapplied, _) if has.get() => Fate::Lose,
            (Succession::OtherLeader, Some(MessageKind::Raft)) if has_written.get() => Fate::Lose,
            _ => Fate::Pass,
        },
        _ => Fate::Pass,
    });
    world.suspend_switch(0, resumes - world.now);
    if succession == Succession::OtherLeader {
        world.stop_replica(leader);
        // So that the other replica leads.
        world.set_clock_rate(Host::Replica(behind), 300_000);
    }
    wait(&mut world, "another session", |w| {
        w.session(1).session > old
    });
    has_session.set(true);
    wait(&mut world, "it serves", |w| w.active().contains(&1));
    wrote.set(succession == Succession::OtherLeader);
    put(&mut world, 0, 2);
    assert!(
        world.now < resumes,
        "seed {seed}, {succession:?}: while the old switch is suspended"
    );
    world.run_until(resumes, |_| false);
    assert!(
        world.active().contains(&0),
        "seed {seed}, {succession:?}: it knows nothing of all that"
    );
    let refused = |world: &World| {
        world
            .replica(behind)
            .map_or(0, |r| r.counters().reads_refused)
    };
    let before = refused(&world);
    for _ in 0..60 {
        gets(&mut world, 3);
        world.run_for(MS);
    }
    let refused = refused(&world) - before;
    end(world).map(|()| refused)
}

#[test]
fn a_switch_whose_clock_stood_still_is_refused_by_who_has_a_later_session() {
    for seed in 1..=10 {
        for succession in [
            Succession::OtherSwitch,
            Succession::Unapplied,
            Succession::OtherLeader,
        ] {
            let refused = suspended_switch(seed, succession);
            let refused =
                refused.unwrap_or_else(|what| panic!("seed {seed}, {succession:?}: {what}"));
            assert!(refused > 0, "seed {seed}, {succession:?}: it was not asked");
        }
    }
}

/// A write of one session reaches the leader when the next session has begun and its group is stable there. A follower
/// that gets reads of the group learns late what is committed.
#[test]
fn a_new_leader_removes_no_voter_for_what_its_predecessor_announced() {
    let mut world = quiet(25, None, 100 * MS);
    let old = world.leader().expect("it serves");
    let [heir, reborn] = [1, 2].map(|n| (old + n) % 3);
    filter(&mut world, move |p| {
        let is_heard = (p.from, p.to) == (Host::Replica(reborn), Host::Replica(heir));
        match is_heard && p.message() == Some(MessageKind::Announcement) {
            true => Fate::Lose,
            false => Fate::Pass,
        }
    });
    world.stop_replica(reborn);
    world.restart_replica(reborn, false);
    wait(&mut world, "a voter again", World::is_whole);
    world.stop_replica(old);
    // So that the other replica leads.
    world.set_clock_rate(Host::Replica(reborn), 300_000);
    wait(&mut world, "another one leads", |w| {
        w.leader().is_some_and(|leader| leader != old)
    });
    assert_eq!(world.leader(), Some(heir));
    put(&mut world, 0, 2);
    world.run_for(500 * MS);
    put(&mut world, 0, 3);
    assert_eq!(end(world), Ok(()));
}

#[test]
fn a_write_of_an_old_session_is_not_taken() {
    let mut world = quiet(21, None, 100 * MS);
    let leader = world.leader().expect("it serves");
    let behind = (leader + 1) % 3;
    let arrives = Rc::new(Cell::new(0));
    let is_behind = Rc::new(Cell::new(false));
    let (late, lags) = (arrives.clone(), is_behind.clone());
    let mut is_sent = false;
    filter(&mut world, move |p| {
        let is_write = p.header().is_some_and(|h| h.kind == Type::Write);
        match (p.from, p.to) {
            // It is not sent again.
            (Host::Client(0), _) if is_write && is_sent => Fate::Lose,
            (Host::Client(0), _) if is_write => {
                is_sent = true;
                Fate::Pass
            }
            (Host::Switch(_), Host::Replica(_)) if is_write => {
                late.set(p.now + 90 * MS);
                Fate::Delay(90 * MS)
            }
            (Host::Replica(from), Host::Replica(to)) if (from, to) == (leader, behind) => {
                match lags.get() {
                    true => Fate::Delay(60 * MS),
                    false => Fate::Pass,
                }
            }
            _ => Fate::Pass,
        }
    });
    let dropped = |world: &World| world.replica(leader).expect("up").counters().writes_dropped;
    let (old, dropped_before) = (world.session(0).session, dropped(&world));
    world.request(0, 0, Act::Put(2));
    world.run_for(MS);
    world.reset_switch(0, false);
    wait(&mut world, "another session", |w| {
        w.session(0).session > old && w.active() == [0]
    });
    let until = arrives.get();
    assert!(world.now < until, "not yet");
    world.run_until(until - MS, |_| false);
    is_behind.set(true);
    for _ in 0..200 {
        gets(&mut world, 3);
        world.run_for(MS / 4);
    }
    assert_eq!(world.leader(), Some(leader));
    assert_eq!(verdict(&world), Ok(()));
    assert_eq!(dropped(&world), dropped_before + 1);
    assert_eq!(end(world), Ok(()));
}

/// A client is there from the start, and the founder fails as soon as the first write is acknowledged, then others, as
/// long as they are a minority. Logs are in memory.
#[test]
fn the_first_write_survives_any_minority() {
    for (seed, replicas) in [(60, 3), (61, 3), (62, 4), (63, 5), (64, 7)] {
        let mut world = new_world(seed, replicas, None, 100 * MS);
        world.request(0, 0, Act::Put(2));
        wait(&mut world, "an answer", |w| w.answered()[0] == 1);
        let lost = (replicas - 1) / 2;
        (0..lost).for_each(|number| world.stop_replica(number));
        wait(&mut world, "another leader", |w| {
            w.leader().is_some() && w.active().len() == 1
        });
        gets(&mut world, 3);
        wait(&mut world, "reads", World::is_idle);
        assert_eq!(world.answered()[1..], [1, 1, 1], "seed {seed}");
        assert_eq!(end(world), Ok(()), "seed {seed}");
    }
}
