//! Random histories of commands over several partitions.

use std::collections::BTreeMap;

use crate::common::world::{encoded, exec, World};
use crate::common::{self, any_apart, key_of_each, show, Apart};
use inband_resp::reply::Reply;
use proptest::prelude::*;

/// One step of a random run.
#[derive(Debug, Clone)]
enum Step {
    /// A command for one partition.
    Single(u8, u8),
    /// Set all keys of a group, over all partitions, to the same value.
    SetAll,
    GetAll,
    /// A transaction that appends to the lists of several partitions.
    Append(u8, u8),
    /// `DEL` of the whole group, `FLUSHALL`, `DBSIZE` or `KEYS`.
    Other(u8),
    /// A marker somewhere before the end, or the last one.
    Mark(u8, u8),
    Deliver(u8, u8, u8),
    Crash(u8),
    /// Write applied instances.
    Write(u8),
    /// Begin to write them, continue, or note the end.
    WriteApart(u8, Apart),
    /// Fail one of the next writes.
    Fault(u8, u8),
    Copy(u8, u8),
    Sync(u8),
    Time(u8),
    /// A client of a replica appends to a partition's list, with the knowledge that it has.
    Item(u8, u8),
    /// Read all these lists at once.
    GetItems(u8),
    /// Read one of them without going through the log.
    Look(u8, u8),
    /// Keys in all partitions that expire together.
    SetExpiring(u8),
    GetExpiring,
    /// The wall clock of a replica jumps ahead.
    Skew(u8, u8),
    /// The replica that syncs loses power.
    PowerCut(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let b = any::<u8>;
    prop_oneof![
        8 => (b(), b()).prop_map(|(a, c)| Step::Single(a, c)),
        4 => Just(Step::SetAll),
        4 => Just(Step::GetAll),
        6 => (b(), b()).prop_map(|(a, c)| Step::Append(a, c)),
        2 => b().prop_map(Step::Other),
        10 => (b(), b()).prop_map(|(a, c)| Step::Mark(a, c)),
        30 => (b(), b(), b()).prop_map(|(a, c, d)| Step::Deliver(a, c, d)),
        2 => b().prop_map(Step::Crash),
        4 => b().prop_map(Step::Write),
        12 => (b(), any_apart()).prop_map(|(a, how)| Step::WriteApart(a, how)),
        4 => (b(), b()).prop_map(|(a, c)| Step::Fault(a, c)),
        2 => (b(), b()).prop_map(|(a, c)| Step::Copy(a, c)),
        6 => b().prop_map(Step::Sync),
        1 => b().prop_map(Step::Time),
        12 => (b(), b()).prop_map(|(a, c)| Step::Item(a, c)),
        6 => b().prop_map(Step::GetItems),
        6 => (b(), b()).prop_map(|(a, c)| Step::Look(a, c)),
        2 => b().prop_map(Step::SetExpiring),
        3 => Just(Step::GetExpiring),
        1 => (b(), b()).prop_map(|(a, c)| Step::Skew(a, c)),
        2 => any::<u64>().prop_map(Step::PowerCut),
    ]
}

/// Replies must show the same value for all keys of the group.
fn check_whole(replies: &BTreeMap<u64, Reply>, reads: &[u64]) {
    for entry in reads {
        let Some(reply) = replies.get(entry) else {
            continue;
        };
        let Reply::Array(values) = reply else {
            panic!("{reply:?}")
        };
        let is_whole = values.iter().all(|value| *value == values[0]);
        assert!(is_whole, "entry {entry} saw {}", show(reply));
    }
}

/// Lists that contain the same items must have them in the same order.
fn check_order(lists: &[Vec<String>]) {
    for (i, one) in lists.iter().enumerate() {
        for other in &lists[i + 1..] {
            let common = |list: &[String], of: &[String]| -> Vec<String> {
                list.iter().filter(|m| of.contains(m)).cloned().collect()
            };
            assert_eq!(common(one, other), common(other, one));
        }
    }
}

fn run(partitions: usize, steps: &[Step]) {
    let replicas = 3;
    let mut is_syncing = [false; 3];
    let mut world = World::new(partitions, replicas);
    let (group, lists) = (key_of_each("g", partitions), key_of_each("l", partitions));
    let expiring = key_of_each("e", partitions);
    let mut reads = Vec::new();
    let mut appended: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let owner = at % (replicas + 1);
        match step {
            Step::Single(which, kind) => {
                let key = &lists[usize::from(*which) % partitions];
                match kind % 4 {
                    0 => world.decide_line(&format!("APPEND {key} s{at},"), owner),
                    1 => world.decide_line(&format!("SET x{key} {at} PX {}", 1 + kind), owner),
                    2 => world.decide_line(&format!("INCR n{which}"), owner),
                    _ => world.decide_line(&format!("GET {key}"), owner),
                }
            }
            Step::SetAll => {
                let pairs: Vec<_> = group.iter().map(|key| format!("{key} v{at}")).collect();
                world.decide_several(encoded(&format!("MSET {}", pairs.join(" "))), owner);
            }
            Step::GetAll => {
                let command = encoded(&format!("MGET {}", group.join(" ")));
                reads.push(world.decide_several(command, owner));
            }
            Step::Append(one, two) => {
                let mut of = vec![
                    usize::from(*one) % partitions,
                    usize::from(*two) % partitions,
                ];
                of.push((of[0] + 1) % partitions);
                of.sort_unstable();
                of.dedup();
                let lines: Vec<_> = of
                    .iter()
                    .map(|partition| format!("APPEND {} m{at},", lists[*partition]))
                    .collect();
                if one % 4 == 0 {
                    world.decide_chunks(&exec(&lines), 1 + usize::from(*two) % 4, owner);
                } else {
                    world.decide_several(exec(&lines), owner);
                }
                appended.push((format!("m{at}"), of));
            }
            Step::Other(kind) => {
                let line = match kind % 8 {
                    0 => "FLUSHALL".into(),
                    1 => "KEYS *".into(),
                    2 => "DBSIZE".into(),
                    _ => format!("DEL {}", group.join(" ")),
                };
                if line == "FLUSHALL" {
                    appended.clear();
                    world.lists_are_deleted();
                }
                world.decide_several(encoded(&line), owner);
            }
            Step::Mark(partition, back) => {
                let entry = world.entries.saturating_sub(u64::from(*back) / 64);
                world.mark(usize::from(*partition) % partitions, entry);
            }
            Step::Deliver(replica, log, count) => {
                let replica = usize::from(*replica) % replicas;
                let log = usize::from(*log) % (partitions + 1);
                if let Err(error) = world.deliver(replica, log, usize::from(*count) % 8) {
                    world.crash(replica, error);
                }
            }
            Step::Write(replica) => {
                let replica = usize::from(*replica) % replicas;
                if let Err(error) = world.machine(replica).flush() {
                    world.crash(replica, error);
                }
            }
            Step::WriteApart(replica, how) => {
                let replica = usize::from(*replica) % replicas;
                if let Err(error) = how.act(world.machine(replica)) {
                    world.crash(replica, error);
                }
            }
            Step::Crash(replica) => world.reopen(usize::from(*replica) % replicas),
            Step::Fault(replica, writes) => {
                let machine = world.machine(usize::from(*replica) % replicas);
                machine.faults().fail_after(u64::from(*writes) % 12);
            }
            Step::Copy(from, to) => {
                let (from, to) = (usize::from(*from) % replicas, usize::from(*to) % replicas);
                if from != to {
                    world.copy(from, to);
                }
            }
            Step::Sync(replica) => {
                let replica = usize::from(*replica) % replicas;
                // As a replica does: it syncs what is written, and a write under way goes on.
                let machine = world.machine(replica);
                if is_syncing[replica] {
                    machine.sync_ends();
                } else {
                    machine.sync_begins();
                    machine.shared().sync().unwrap();
                }
                is_syncing[replica] = !is_syncing[replica];
            }
            Step::Time(ms) => world.now_ms += u64::from(*ms),
            Step::Item(partition, owner) => {
                let owner = usize::from(*owner) % replicas;
                world.append(usize::from(*partition) % partitions, owner);
            }
            Step::GetItems(owner) => {
                world.read_lists(usize::from(*owner) % replicas);
            }
            Step::Look(replica, partition) => {
                let replica = usize::from(*replica) % replicas;
                world.look(replica, usize::from(*partition) % partitions);
            }
            Step::SetExpiring(ms) => {
                let lines = expiring
                    .iter()
                    .map(|key| format!("SET {key} {at} PX {}", 1 + u64::from(*ms)));
                world.decide_several(exec(&lines.collect::<Vec<_>>()), owner);
            }
            Step::GetExpiring => {
                let command = encoded(&format!("MGET {}", expiring.join(" ")));
                reads.push(world.decide_several(command, owner));
            }
            Step::Skew(replica, ms) => {
                world.skew_ms[usize::from(*replica) % replicas] += u64::from(*ms);
            }
            Step::PowerCut(seed) => {
                let mut state = *seed | 1;
                world.power_cut(&mut |choices| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as usize % choices
                });
            }
        }
    }
    for replica in 0..replicas {
        // From here on no write fails.
        world.reopen(replica);
    }
    world.settle();
    check_whole(&world.replies, &reads);
    let reply = world.ask(&format!("MGET {}", lists.join(" ")));
    let lists: Vec<Vec<String>> = reply
        .trim_matches(|c| c == '[' || c == ']')
        .split(' ')
        .map(|list| {
            let list = list.trim_matches('\'').trim_end_matches(',');
            let is_item = |item: &&str| item.starts_with(['m', 's']);
            list.split(',').filter(is_item).map(str::to_owned).collect()
        })
        .collect();
    check_order(&lists);
    // Atomic, and here exactly once.
    for (item, of) in &appended {
        for partition in of {
            let count = lists[*partition].iter().filter(|m| *m == item).count();
            assert_eq!(count, 1, "{item} in partition {partition}: {lists:?}");
        }
    }
}

proptest! {
    #![proptest_config(common::cases(12))]

    /// Whatever the delivery order, wherever replicas crash and whichever checkpoint they start from: all replicas
    /// converge, no client sees a partial command, and all agree on one order of commands.
    #[test]
    fn whole_and_in_one_order(
        partitions in 2..5usize,
        steps in prop::collection::vec(any_step(), 20..160),
    ) {
        run(partitions, &steps);
    }
}
