//! Cross-partition reads show one point in time for all partitions, on every replica and after every crash.

use crate::common::world::{encoded, exec, World, SYNCED};
use crate::common::{self, any_apart, key_of_each, show, Apart};
use inband_host::log::Ticket;
use inband_kv::export::ExportError;
use inband_kv::import::read;
use inband_kv::machine::Machine;
use inband_kv::store::StoreError;
use inband_resp::reply::Reply;
use proptest::prelude::*;

/// A replica that neither syncs nor writes at once.
const DEFERRING: usize = 2;

/// Schedule 18: replica 0 was asked for a read for which no client of replica 1 waits. A client of replica 1 writes `a`
/// and, after its OK, `b`, while the read's marker is missing in the partition of `b`.
#[test]
fn a_read_is_not_torn_by_a_replica_where_nobody_waits_for_it() {
    let mut world = World::new(2, 2);
    let [a, b] = [0, 1].map(|p| key_of_each("k", 2)[p].clone());
    let entry = world.decide_several(encoded(&format!("MGET {a} {b}")), 0);
    world.mark(0, entry);
    world.decide_line(&format!("SET {a} 1"), 1);
    let written = Ticket::new(0, world.logs[0].len() as u64);
    world.deliver(1, 2, usize::MAX).unwrap();
    world.deliver(1, 0, usize::MAX).unwrap();
    if world.ended.contains(&written) {
        world.decide_line(&format!("SET {b} 1"), 1);
    }
    world.mark(1, entry);
    world.settle();
    assert_eq!(show(&world.replies[&entry]), "[nil nil]");
    assert!(world.ended.contains(&written));
}

/// The same with a read-only transaction.
#[test]
fn a_transaction_that_only_reads_is_awaited_everywhere() {
    let mut world = World::new(3, 3);
    let keys = key_of_each("k", 3);
    let lines: Vec<_> = keys.iter().map(|key| format!("GET {key}")).collect();
    let entry = world.decide_several(exec(&lines), 0);
    for (partition, key) in keys.iter().take(2).enumerate() {
        world.mark(partition, entry);
        world.decide_line(&format!("SET {key} 1"), 1);
    }
    for log in 0..4 {
        world.deliver(1, log, usize::MAX).unwrap();
    }
    assert_eq!(world.machine(1).applied(), [1, 1, 1, 2], "it stands");
    world.mark(2, entry);
    world.settle();
    assert_eq!(show(&world.replies[&entry]), "[nil nil nil]");
}

/// Two keys in two partitions expire at the same time; one of the partitions has seen that time has advanced.
#[test]
fn keys_that_expire_together_are_read_together() {
    let mut world = World::new(2, 3);
    let keys = key_of_each("k", 2);
    let lines: Vec<_> = keys
        .iter()
        .map(|key| format!("SET {key} 1 PX 100"))
        .collect();
    world.decide_several(exec(&lines), 0);
    world.settle();
    world.now_ms += 100;
    world.decide_line(&format!("EXISTS {}", keys[1]), 0);
    world.now_ms -= 100;
    let reply = world.ask(&format!("MGET {} {}", keys[0], keys[1]));
    assert_eq!(reply, "[nil nil]");
    // A key that has expired for one reader has expired for all later readers.
    world.decide_line(&format!("EXISTS {}", keys[0]), 0);
    world.deliver(0, 0, usize::MAX).unwrap();
    let now_ms = world.now_ms;
    let mut reader = world.machine(0).reader(0, now_ms).unwrap();
    let reply = reader.read(&encoded(&format!("GET {}", keys[0]))).unwrap();
    assert_eq!(reply.map(|reply| show(&reply)).as_deref(), Some("nil"));
}

/// A cross-partition read advances its partitions' time. Its replica is killed before that is written.
#[test]
fn a_kill_does_not_take_the_time_of_a_read() {
    for later in [false, true] {
        let mut world = World::new(2, 3);
        let keys = key_of_each("k", 2);
        world.decide_line(&format!("SET {} 1", keys[0]), 0);
        world.settle();
        world.skew_ms[0] = 5_000;
        let entry = world.decide_several(encoded(&format!("MGET {} {}", keys[0], keys[1])), 0);
        (0..2).for_each(|partition| world.mark(partition, entry));
        world.skew_ms[0] = 0;
        // It expires 100 ms after the read.
        world.decide_line(&format!("SET {} 2 PX 100", keys[0]), 1);
        world.deliver_all(DEFERRING);
        if later {
            // The next value of the log of cross-partition commands is written at once, together with pending removals.
            world.decide_several(encoded(&format!("MGET {} {}", keys[0], keys[1])), 1);
            world.deliver(DEFERRING, 2, usize::MAX).unwrap();
        }
        world.reopen(DEFERRING);
        world.settle();
    }
}

/// The same without a kill: another replica starts from what is written.
#[test]
fn a_checkpoint_does_not_lose_the_time_of_a_read() {
    let mut world = World::new(2, 4);
    let keys = key_of_each("k", 2);
    world.decide_line(&format!("SET {} 1", keys[0]), 0);
    world.deliver_all(DEFERRING);
    world.machine(DEFERRING).flush().unwrap();
    world.skew_ms[0] = 5_000;
    let mget = encoded(&format!("MGET {} {}", keys[0], keys[1]));
    let entry = world.decide_several(mget.clone(), 0);
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.skew_ms[0] = 0;
    world.decide_line(&format!("SET {} 2 PX 100", keys[0]), 1);
    world.deliver_all(DEFERRING);
    world.decide_several(mget, 1);
    world.deliver(DEFERRING, 2, usize::MAX).unwrap();
    world.copy(DEFERRING, 3);
    world.settle();
}

/// A replica is killed after it has written only some of the stores that a read involves. The time of the read is that
/// of one of them, which has advanced since.
#[test]
fn a_crash_between_the_writes_of_a_read() {
    let keys = key_of_each("k", 3);
    let mut crashes = 0;
    for writes in 0.. {
        let mut world = World::new(3, 3);
        let mget = encoded(&format!("MGET {}", keys.join(" ")));
        for round in 0..3 {
            // A different partition is ahead of the others each time.
            world.skew_ms[1] = 1_000 * (round + 1);
            world.decide_line(&format!("SET {} 1 PX 700", keys[round as usize]), 1);
            world.decide_several(
                exec(&[format!("SET {} 1", keys[0]), format!("SET {} 1", keys[1])]),
                0,
            );
            let entry = world.decide_several(mget.clone(), 0);
            (0..3).for_each(|partition| world.mark(partition, entry));
            world.decide_line(&format!("SET {} 1 PX 900", keys[round as usize]), 1);
        }
        world.machine(DEFERRING).faults().fail_after(writes);
        let mut has_failed = false;
        for step in 0..40 {
            let log = [3, 0, 1, 2][step % 4];
            let flushes = step % 5 == 4;
            let machine_fails = world.deliver(DEFERRING, log, 1 + step % 2).err();
            let failed = match machine_fails {
                None if flushes => world.machine(DEFERRING).flush().err(),
                failed => failed,
            };
            if let Some(error) = failed {
                world.crash(DEFERRING, error);
                has_failed = true;
                crashes += 1;
            }
        }
        world.machine(DEFERRING).faults().fail_after(u64::MAX);
        world.settle();
        if !has_failed {
            break;
        }
    }
    assert!(crashes > 10, "{crashes} crashes only");
}

/// A power failure takes the queue and the second partition back to before a command that the first one has executed
/// and synced with its redo record: the log delivers the command again.
#[test]
fn a_power_cut_that_takes_the_queue_leaves_the_redo_record() {
    let mut world = World::new(2, 2);
    let keys = key_of_each("k", 2);
    let entry = world.decide_several(encoded(&format!("MSET {} 1 {} 1", keys[0], keys[1])), 0);
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.deliver_all(SYNCED);
    // Only what was synced is left.
    world.power_cut(&mut |_| 0);
    assert_eq!(
        world.machine(SYNCED).applied(),
        [2, 0, 0],
        "the first partition alone"
    );
    // Records that are not needed any more are removed with the first write after the next sync.
    for value in 2..4 {
        world.decide_line(&format!("SET {} {value}", keys[0]), 0);
        world.deliver(SYNCED, 0, usize::MAX).unwrap();
        world.machine(SYNCED).sync().unwrap();
    }
    world.settle();
    let reply = world.ask(&format!("MGET {} {}", keys[0], keys[1]));
    assert_eq!(reply, "['3' '1']");
}

/// A replica has executed a command over two partitions, and not synced it in the second one, when it installs a peer's
/// checkpoint. Its second store is not behind that, so it is kept; the peer needs no record of the command any more. A
/// power failure must not take the command from the second store then.
#[test]
fn a_power_cut_after_a_checkpoint_takes_nothing_from_the_stores_that_are_kept() {
    let mut world = World::new(2, 2);
    let keys = key_of_each("k", 2);
    let mset = encoded(&format!("MSET {} 1 {} 1", keys[0], keys[1]));
    let entry = world.decide_several(mset.clone(), 0);
    (0..2).for_each(|partition| world.mark(partition, entry));
    (0..2).for_each(|replica| world.deliver_all(replica));
    // The peer goes on in the first partition and in the queue.
    world.decide_several(mset, 0);
    world.decide_line(&format!("SET {} 2", keys[0]), 0);
    world.deliver_all(0);
    world.copy(0, SYNCED);
    assert_eq!(world.machine(SYNCED).applied(), [3, 2, 3]);
    world.power_cut(&mut |_| 0);
    let reply = world.ask(&format!("MGET {} {}", keys[0], keys[1]));
    assert_eq!(reply, "['1' '1']");
}

fn keys_of(stream: &[u8]) -> Vec<String> {
    let mut keys = Vec::new();
    let summary = read(stream, &mut |key| {
        keys.push(String::from_utf8(key.key.to_vec()).unwrap());
        Ok(())
    });
    summary.unwrap();
    keys.sort();
    keys
}

/// An export shows one point in time, too: a client of replica 1 writes `a` and, after its OK, `b`, while replica 0,
/// which is asked for the export, receives only the log of `b`.
#[test]
fn an_export_is_not_torn() {
    let mut world = World::new(2, 2);
    let [a, b] = [0, 1].map(|p| key_of_each("k", 2)[p].clone());
    world.decide_line(&format!("SET {a} 1"), 1);
    world.deliver(1, 0, usize::MAX).unwrap();
    assert_eq!(world.ended, [Ticket::new(0, 2)], "it is acknowledged");
    world.decide_line(&format!("SET {b} 1"), 1);
    world.deliver(0, 1, usize::MAX).unwrap();
    let mut torn = Vec::new();
    world.machine(0).shared().export(&mut torn).unwrap();
    assert_eq!(keys_of(&torn).join(" "), b, "as the stores happen to be");
    let entry = world.decide_several(Machine::barrier(), 0);
    let ticket = Ticket::new(2, world.logs[2].len() as u64);
    let cut = world.machine(0).cut_at(ticket);
    let export = std::thread::spawn(move || {
        let mut stream = Vec::new();
        let limit = std::time::Duration::from_secs(20);
        cut.export(&mut stream, limit).map(|_| stream)
    });
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.decide_line(&format!("SET later{a} 1"), 1);
    world.decide_line(&format!("SET later{b} 1"), 1);
    world.settle();
    let mut both = [a, b];
    both.sort();
    assert_eq!(keys_of(&export.join().unwrap().unwrap()), both);
}

/// An export does not wait forever for a partition that makes no progress.
#[test]
fn an_export_that_comes_to_no_moment_ends() {
    let mut world = World::new(2, 1);
    let entry = world.decide_several(Machine::barrier(), 0);
    let ticket = Ticket::new(2, world.logs[2].len() as u64);
    let cut = world.machine(0).cut_at(ticket);
    world.mark(0, entry);
    world.deliver_all(0);
    let error = cut.export(Vec::new(), std::time::Duration::from_millis(50));
    assert!(
        matches!(error, Err(ExportError::NoCut { limit_ms: 50 })),
        "{error:?}"
    );
    world.settle();
}

/// A process that crashed between the partitions of a read does not wait for those that have advanced.
#[test]
fn a_read_is_passed_where_a_crash_left_it_half_done() {
    let mut world = World::new(2, 3);
    let keys = key_of_each("k", 2);
    let entry = world.decide_several(encoded(&format!("MGET {} {}", keys[0], keys[1])), 0);
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.deliver_all(DEFERRING);
    // One store is written, the next one is not.
    world.machine(DEFERRING).faults().fail_after(1);
    let error = world.machine(DEFERRING).flush().unwrap_err();
    world.crash(DEFERRING, error);
    let done = [0, 1].map(|p| world.machine(DEFERRING).store(p).done_entry());
    assert_eq!(done, [entry, 0]);
    world.settle();
}

/// One step of a random run in which most cross-partition commands are reads.
#[derive(Debug, Clone)]
enum Step {
    /// A client appends to one list and, after the reply, to another one.
    Chain {
        replica: usize,
        first: usize,
        then: usize,
    },
    /// A client reads all lists at once.
    ReadLists {
        replica: usize,
    },
    /// A client reads one list without going through the log.
    Look {
        replica: usize,
        partition: usize,
    },
    /// Keys in all partitions are set to expire together, or read.
    SetExpiring {
        ms: u64,
    },
    ReadExpiring,
    /// A command for one partition from a replica whose clock is ahead, which advances time there.
    Touch {
        partition: usize,
        ms: u64,
    },
    Mark {
        partition: usize,
        back: u64,
    },
    Deliver {
        replica: usize,
        log: usize,
        count: usize,
    },
    Write {
        replica: usize,
    },
    WriteApart {
        replica: usize,
        how: Apart,
    },
    Fault {
        replica: usize,
        writes: u64,
    },
    Crash {
        replica: usize,
    },
    Copy {
        from: usize,
        to: usize,
    },
    PowerCut {
        seed: u64,
    },
}

const REPLICAS: usize = 3;

fn any_step(partitions: usize) -> impl Strategy<Value = Step> {
    let (replica, partition) = (0..REPLICAS, 0..partitions);
    let at = move || (replica.clone(), partition.clone());
    prop_oneof![
        8 => (at(), 0..partitions).prop_map(|((replica, first), then)| Step::Chain { replica, first, then }),
        6 => at().prop_map(|(replica, _)| Step::ReadLists { replica }),
        4 => at().prop_map(|(replica, partition)| Step::Look { replica, partition }),
        1 => (1..200u64).prop_map(|ms| Step::SetExpiring { ms }),
        3 => Just(Step::ReadExpiring),
        2 => (at(), 1..400u64).prop_map(|((_, partition), ms)| Step::Touch { partition, ms }),
        12 => (at(), 0..3u64).prop_map(|((_, partition), back)| Step::Mark { partition, back }),
        24 => (at(), 0..=partitions, 1..20usize)
            .prop_map(|((replica, _), log, count)| Step::Deliver { replica, log, count }),
        2 => at().prop_map(|(replica, _)| Step::Write { replica }),
        8 => (0..REPLICAS, any_apart()).prop_map(|(replica, how)| Step::WriteApart { replica, how }),
        1 => (at(), 0..6u64).prop_map(|((replica, _), writes)| Step::Fault { replica, writes }),
        1 => at().prop_map(|(replica, _)| Step::Crash { replica }),
        1 => (0..REPLICAS, 0..REPLICAS).prop_map(|(from, to)| Step::Copy { from, to }),
        1 => any::<u64>().prop_map(|seed| Step::PowerCut { seed }),
    ]
}

/// The world of a random run, and the reads that must show one time.
struct Run {
    world: World,
    expiring: Vec<String>,
    whole: Vec<u64>,
}

impl Run {
    fn or_crash<T>(&mut self, replica: usize, result: Result<T, StoreError>) {
        if let Err(error) = result {
            self.world.crash(replica, error);
        }
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Chain {
                replica,
                first,
                then,
            } => {
                self.world.append(first, replica);
                let asked = Ticket::new(first, self.world.logs[first].len() as u64);
                for log in [self.world.partitions, first] {
                    let delivered = self.world.deliver(replica, log, usize::MAX);
                    self.or_crash(replica, delivered);
                }
                if self.world.ended.contains(&asked) {
                    self.world.append(then, replica);
                }
            }
            Step::ReadLists { replica } => {
                self.world.read_lists(replica);
            }
            Step::Look { replica, partition } => self.world.look(replica, partition),
            Step::SetExpiring { ms } => {
                let lines = self.expiring.iter();
                let lines: Vec<_> = lines.map(|key| format!("SET {key} {ms} PX {ms}")).collect();
                self.world.decide_several(exec(&lines), 0);
            }
            Step::ReadExpiring => {
                let command = encoded(&format!("MGET {}", self.expiring.join(" ")));
                self.whole.push(self.world.decide_several(command, 0));
            }
            Step::Touch { partition, ms } => {
                self.world.skew_ms[0] = ms;
                let key = &self.expiring[partition];
                self.world.decide_line(&format!("SET x{key} 1 PX {ms}"), 0);
                self.world.skew_ms[0] = 0;
                self.world.now_ms += ms / 8;
            }
            Step::Mark { partition, back } => {
                let entry = self.world.entries.saturating_sub(back);
                self.world.mark(partition, entry);
            }
            Step::Deliver {
                replica,
                log,
                count,
            } => {
                let delivered = self.world.deliver(replica, log, count);
                self.or_crash(replica, delivered);
            }
            Step::Write { replica } => {
                let flushed = self.world.machine(replica).flush();
                self.or_crash(replica, flushed);
            }
            Step::WriteApart { replica, how } => {
                let written = how.act(self.world.machine(replica));
                self.or_crash(replica, written);
            }
            Step::Fault { replica, writes } => {
                self.world.machine(replica).faults().fail_after(writes);
            }
            Step::Crash { replica } => self.world.reopen(replica),
            Step::Copy { from, to } if from != to => self.world.copy(from, to),
            Step::Copy { .. } => {}
            Step::PowerCut { seed } => {
                let mut state = seed | 1;
                self.world.power_cut(&mut |choices| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as usize % choices
                });
            }
        }
    }
}

fn run() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (2..4usize).prop_flat_map(|partitions| {
        let steps = prop::collection::vec(any_step(partitions), 40..160);
        (Just(partitions), steps)
    })
}

proptest! {
    #![proptest_config(common::cases(16))]

    /// A cross-partition read shows everything that was known when it was requested, everything that the writers of
    /// what it shows knew, and one time. All replicas converge.
    #[test]
    fn reads_are_of_one_moment((partitions, steps) in run()) {
        let mut run = Run {
            world: World::new(partitions, REPLICAS),
            expiring: key_of_each("e", partitions),
            whole: Vec::new(),
        };
        steps.iter().for_each(|step| run.play(step));
        // From here on no write fails.
        for replica in 0..REPLICAS {
            run.world.machine(replica).faults().fail_after(u64::MAX);
            // One may have failed already that nothing has waited for.
            let written = run.world.machine(replica).wait_for_write();
            run.or_crash(replica, written);
        }
        run.world.settle();
        for entry in &run.whole {
            let Some(Reply::Array(values)) = run.world.replies.get(entry) else {
                continue;
            };
            prop_assert!(values.iter().all(|value| *value == values[0]), "entry {entry}: {values:?}");
        }
    }
}
