//! Cross-partition commands as executed by the state machine: atomically, in one order, and identically on every
//! replica, whatever the delivery order and wherever replicas crash.

mod random;

use crate::common::world::{encoded, exec, World};
use crate::common::{self, encode, key_of_each, scratch, show, words};
use inband_host::log::Ticket;
use inband_kv::command::SessionStamp;
use inband_kv::limits::{STORED_VALUE_LEN_BYTES_MAX, TRANSACTION_WRITTEN_BYTES_MAX};
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::store::{Outcomes, StoreError};
use inband_resp::reply::Reply;
use inband_resp::request::Args;

/// A partition stands at a marker, with own values delivered behind it, when a checkpoint is installed that covers the
/// first of them and not the last.
#[test]
fn own_values_that_a_checkpoint_overtakes_end_too() {
    let mut world = World::new(2, 2);
    let [a, b] = [0, 1].map(|p| key_of_each("k", 2)[p].clone());
    let entry = world.decide_several(encoded(&format!("MSET {a} 1 {b} 1")), 1);
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.decide_line(&format!("SET {a} 2"), 0);
    world.decide_line(&format!("SET {a} 3"), 0);
    // The first instance opened the session; the second is the marker.
    world.deliver(0, 0, usize::MAX).unwrap();
    assert_eq!(world.machine(0).applied(), [1, 0, 0]);
    world.deliver(1, 2, usize::MAX).unwrap();
    world.deliver(1, 1, usize::MAX).unwrap();
    world.deliver(1, 0, 3).unwrap();
    world.machine(1).flush().unwrap();
    world.copy(1, 0);
    assert_eq!(world.machine(0).applied(), [3, 2, 2]);
    world.deliver_all(0);
    world.ended.retain(|ticket| ticket.partition() == 0);
    assert_eq!(world.ended, [3, 4].map(|instance| Ticket::new(0, instance)));
}

#[test]
fn one_command_waits_for_all_its_partitions() {
    let mut world = World::new(3, 1);
    let [a, b, c] = [0, 1, 2].map(|p| key_of_each("k", 3)[p].clone());
    world.decide_line(&format!("SET {a} old"), 0);
    let entry = world.decide_several(encoded(&format!("MSET {a} 1 {b} 1")), 0);
    world.mark(0, entry);
    world.decide_line(&format!("SET {a} new"), 0);
    world.decide_line(&format!("SET {c} 3"), 0);
    // Partition 0 stops at the marker; partition 2 is not involved.
    for log in [0, 2] {
        world.deliver(0, log, usize::MAX).unwrap();
    }
    assert_eq!(world.machine(0).applied(), [2, 0, 2, 0]);
    world.deliver(0, 3, usize::MAX).unwrap();
    assert_eq!(world.machine(0).applied(), [2, 0, 2, 2]);
    let wanted = world.machine(0).wanted_marker(1).expect("it is missing");
    assert_eq!((wanted.entry, wanted.is_own), (entry, true));
    assert_eq!(world.machine(0).wanted_marker(0), None);
    assert_eq!(world.machine(0).wanted_marker(2), None);
    // A lower marker is not enough.
    world.mark(1, entry - 1);
    world.deliver(0, 1, usize::MAX).unwrap();
    assert_eq!(world.machine(0).applied(), [2, 2, 2, 2]);
    world.mark(1, entry + 5);
    world.deliver(0, 1, usize::MAX).unwrap();
    assert_eq!(world.machine(0).wanted_marker(1), None);
    // The marker covers entries that have not been delivered yet: partition 1 waits for them.
    assert_eq!(world.machine(0).applied(), [2, 2, 2, 2]);
    for _ in 0..5 {
        world.decide_several(exec(&[format!("GET {b}")]), usize::MAX);
    }
    world.deliver(0, 3, usize::MAX).unwrap();
    assert_eq!(world.machine(0).applied(), [4, 3, 2, 7]);
    assert_eq!(show(&world.replies[&entry]), "OK");
    assert_eq!(world.ask(&format!("MGET {a} {b} {c}")), "['new' '1' '3']");
}

#[test]
fn commands_over_all_partitions() {
    let mut world = World::new(4, 2);
    let keys = key_of_each("k", 4);
    for key in &keys {
        world.decide_line(&format!("SET {key} 1"), 1);
    }
    assert_eq!(world.ask("DBSIZE"), "4");
    let found = world.ask("KEYS k*");
    assert_eq!(found.matches("'k").count(), 4, "{found}");
    assert_eq!(world.ask(&format!("EXISTS {}", keys.join(" "))), "4");
    assert_eq!(world.ask(&format!("DEL {} {}", keys[0], keys[3])), "2");
    assert_eq!(world.ask("DBSIZE"), "2");
    assert_eq!(world.ask("FLUSHALL"), "OK");
    assert_eq!(world.ask("DBSIZE"), "0");
    let first = exec(&[
        format!("SET {} 5", keys[1]),
        format!("INCR {}", keys[1]),
        format!("INCR {}", keys[2]),
        format!("SET {} text", keys[3]),
        format!("INCR {}", keys[3]),
        format!("GET {}", keys[3]),
    ]);
    let entry = world.decide_several(first, 1);
    world.settle();
    assert_eq!(
        show(&world.replies[&entry]),
        "[OK 6 1 OK -ERR value is not an integer or out of range 'text']"
    );
}

#[test]
fn a_key_expires_for_all_partitions_of_a_command_at_one_time() {
    let mut world = World::new(2, 2);
    let keys = key_of_each("k", 2);
    for key in &keys {
        world.decide_line(&format!("SET {key} 1 PX 100"), 0);
    }
    world.settle();
    // Only the second partition has seen that time has advanced.
    world.now_ms += 100;
    world.decide_line(&format!("EXISTS {}", keys[1]), 0);
    world.now_ms -= 100;
    let entry = world.decide_several(exec(&[format!("DEL {}", keys[0]), "DBSIZE".into()]), 0);
    world.settle();
    assert_eq!(show(&world.replies[&entry]), "[0 0]", "both are gone");
    let entry = world.decide_several(
        exec(&[
            format!("SET {} 1 PX 50", keys[0]),
            format!("PTTL {}", keys[0]),
            format!("EXISTS {}", keys[1]),
        ]),
        0,
    );
    world.settle();
    assert_eq!(show(&world.replies[&entry]), "[OK 50 0]");
}

#[test]
fn sessions_are_exactly_once_over_partitions_too() {
    let mut world = World::new(3, 2);
    let all = key_of_each("k", 3);
    let Reply::Integer(id) = ({
        let entry = world.decide_several(encoded("INBAND.SESSION NEW"), 0);
        world.settle();
        world.replies[&entry].clone()
    }) else {
        panic!("no session")
    };
    let stamped = |line: &str, seq: u64| {
        let stamp = SessionStamp {
            id: id as u64,
            seq,
            low: 1,
        };
        encode(&words(line), Some(stamp)).expect("parses")
    };
    let line = format!("DEL {}", all.join(" "));
    world.decide_line(&format!("SET {} 1", all[2]), 0);
    world.settle();
    let first = world.decide_several(stamped(&line, 1), 0);
    world.settle();
    world.decide_line(&format!("SET {} 2", all[2]), 0);
    // The retry, decided twice more on different replicas before either is executed.
    let again = world.decide_several(stamped(&line, 1), 0);
    let and_again = world.decide_several(stamped(&line, 1), 1);
    world.settle();
    for entry in [first, again, and_again] {
        assert_eq!(show(&world.replies[&entry]), "1", "entry {entry}");
    }
    assert_eq!(world.ask("DBSIZE"), "1");
    // In one partition, in the same session, which was opened there as well.
    let mut replies = Vec::new();
    for _ in 0..2 {
        let partition = 1;
        world.decide(partition, &[stamped(&format!("INCR {}", all[1]), 2)], 0);
        let from = world.delivered[0][partition];
        let value = world.logs[partition][from].clone();
        let machine = world.machines[0].as_mut().unwrap();
        let (instance, ticket) = (from as u64 + 1, Some(Ticket::new(partition, 99)));
        machine.bursts()[partition].push(instance, value.origin, ticket, &value.bytes);
        let mut outcomes = Outcomes::default();
        machine.run(&mut outcomes).unwrap();
        world.delivered[0][partition] += 1;
        replies.extend(outcomes.replies.iter().map(show));
    }
    assert_eq!(replies, ["1", "1"]);
    // Another session gets another id, and unknown ones are refused.
    let other = world.ask("INBAND.SESSION NEW");
    assert_ne!(other, id.to_string());
    let unknown = SessionStamp {
        id: 9999,
        seq: 1,
        low: 1,
    };
    let command = encode(&words(&line), Some(unknown)).unwrap();
    let entry = world.decide_several(command, 0);
    world.settle();
    assert!(show(&world.replies[&entry]).starts_with("-NOSESSION"));
}

/// What a client reads, one key after the other, from the stores of a replica that has crashed: the replica must be
/// able to continue and converge with the others.
#[test]
fn a_crash_at_every_write() {
    let all = key_of_each("k", 3);
    let play = |world: &mut World| {
        for i in 0..3 {
            for key in &all {
                world.decide_line(&format!("APPEND {key} s{i},"), 0);
            }
            let lines: Vec<_> = all
                .iter()
                .map(|key| format!("APPEND {key} m{i},"))
                .collect();
            world.decide_several(exec(&lines), 0);
            world.decide_several(exec(&lines[1..]), 0);
            for partition in [1, 0, 2] {
                world.mark(partition, world.entries);
            }
        }
    };
    let mut expected = World::new(3, 1);
    play(&mut expected);
    let expected_digest = expected.settle();
    let mut crashes = 0;
    for writes in 0.. {
        let mut world = World::new(3, 1);
        play(&mut world);
        let mut order = Vec::new();
        for _ in 0..12 {
            order.extend([0, 3, 1, 2]);
        }
        world.machine(0).faults().fail_after(writes);
        let mut has_failed = false;
        for log in order {
            if let Err(error) = world.deliver(0, log, 1) {
                assert!(matches!(error, StoreError::Fault), "{error}");
                assert!(!has_failed);
                has_failed = true;
                crashes += 1;
                world.reopen(0);
                // Nothing waits for the own entries of the process that crashed.
                world.logs[3].iter_mut().for_each(|v| v.owner = usize::MAX);
            }
        }
        world.machine(0).faults().fail_after(u64::MAX);
        assert_eq!(
            world.settle(),
            expected_digest,
            "crash after {writes} writes"
        );
        if !has_failed {
            break;
        }
    }
    assert!(crashes > 20, "{crashes} crashes only");
}

#[test]
fn a_lost_redo_record_is_noticed() {
    let mut world = World::new(2, 1);
    let all = key_of_each("k", 2);
    let entry = world.decide_several(encoded(&format!("MSET {} 1 {} 1", all[0], all[1])), 0);
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.deliver(0, 2, usize::MAX).unwrap();
    world.deliver(0, 0, usize::MAX).unwrap();
    // An earlier copy of the second partition's store, as a power failure could leave it.
    let dir = world.dirs[0].path().to_path_buf();
    let old = scratch();
    let copies: Vec<_> = (0..3).map(|log| old.path().join(log.to_string())).collect();
    world.machine(0).shared().checkpoint(&copies).unwrap();
    world.deliver(0, 1, usize::MAX).unwrap();
    world.decide_several(encoded("DBSIZE"), 0);
    world.settle();
    world.decide_line(&format!("SET {} 2", all[0]), 0);
    world.decide_line(&format!("SET {} 2", all[1]), 0);
    world.settle();
    world.machines[0] = None;
    std::fs::remove_dir_all(dir.join("p1/db-0")).unwrap();
    std::fs::rename(&copies[1], dir.join("p1/db-0")).unwrap();
    let result = Machine::open(MachineConfig {
        dirs: vec![dir],
        partitions: 2,
        sync: false,
    });
    assert!(
        matches!(result, Err(StoreError::Torn { entry: e }) if e == entry),
        "it is refused"
    );
}

/// Without syncs a power failure can also take the command from its lowest partition, with its record, and from the
/// queue, and leave it in another partition. The log delivers it again.
#[test]
fn a_command_that_only_a_higher_partition_has_executed_is_noticed() {
    let mut world = World::new(2, 1);
    let all = key_of_each("k", 2);
    let dir = world.dirs[0].path().to_path_buf();
    let old = scratch();
    let copies: Vec<_> = (0..3).map(|log| old.path().join(log.to_string())).collect();
    world.machine(0).shared().checkpoint(&copies).unwrap();
    let entry = world.decide_several(encoded(&format!("MSET {} 1 {} 1", all[0], all[1])), 0);
    (0..2).for_each(|partition| world.mark(partition, entry));
    world.deliver_all(0);
    world.machines[0] = None;
    for (log, home) in [(0, "p0"), (2, "m")] {
        let place = dir.join(home).join("db-0");
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::rename(&copies[log], place).unwrap();
    }
    world.reopen(0);
    let applied = world.machine(0).applied();
    assert_eq!(applied, [0, 2, 0]);
    let results: Vec<_> = (0..3)
        .map(|log| world.deliver(0, log, usize::MAX))
        .collect();
    let is_torn = |result: &Result<(), StoreError>| matches!(result, Err(StoreError::Torn { entry: e }) if *e == entry);
    assert!(results.iter().any(is_torn), "{results:?}");
}

#[test]
fn a_lost_tail_of_one_store_comes_back_from_the_redo_record() {
    let mut world = World::new(2, 2);
    let all = key_of_each("k", 2);
    for key in &all {
        world.decide_line(&format!("SET {key} 0"), 0);
    }
    (0..3).for_each(|log| world.deliver(1, log, usize::MAX).unwrap());
    // Replica 1 keeps local records until a sync, which never happens here.
    let dir = world.dirs[1].path().to_path_buf();
    let old = scratch();
    let copies: Vec<_> = (0..3).map(|log| old.path().join(log.to_string())).collect();
    world.machine(1).shared().checkpoint(&copies).unwrap();
    for i in 1..4 {
        world.decide_line(&format!("APPEND {} s{i}", all[1]), 0);
        let lines: Vec<_> = all.iter().map(|key| format!("APPEND {key} m{i}")).collect();
        let entry = world.decide_several(exec(&lines), 0);
        (0..2).for_each(|partition| world.mark(partition, entry));
        (0..3).for_each(|log| world.deliver(1, log, usize::MAX).unwrap());
    }
    world.machines[1] = None;
    std::fs::remove_dir_all(dir.join("p1/db-0")).unwrap();
    std::fs::rename(&copies[1], dir.join("p1/db-0")).unwrap();
    world.reopen(1);
    assert!(world.machine(1).applied()[1] < world.machine(1).applied()[0]);
    world.settle();
    assert_eq!(
        world.ask(&format!("MGET {} {}", all[0], all[1])),
        "['0m1m2m3' '0s1m1s2m2s3m3']"
    );
}

#[test]
fn checkpoints_taken_while_commands_are_executed() {
    let partitions = 3;
    let mut world = World::new(partitions, 1);
    let all = key_of_each("k", partitions);
    for i in 0..1500 {
        world.decide_line(&format!("APPEND {} s{i},", all[i % 3]), 0);
        let (from, to) = (i % 2, 2 + i % 2);
        let lines: Vec<_> = all[from..to]
            .iter()
            .map(|key| format!("APPEND {key} m{i},"))
            .collect();
        let entry = world.decide_several(exec(&lines), 0);
        // One partition is always a few markers behind.
        world.mark(from, entry);
        world.mark(to - 1, entry.saturating_sub(3));
    }
    let shared = world.machine(0).shared();
    let dir = scratch();
    let is_done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let made = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (done, base, makes) = (is_done.clone(), dir.path().to_path_buf(), made.clone());
    let cutter = std::thread::spawn(move || {
        let mut count = 0;
        while !done.load(std::sync::atomic::Ordering::Acquire) && count < 12 {
            let base = base.join(count.to_string());
            let dirs: Vec<_> = ["p0/db-0", "p1/db-0", "p2/db-0", "m/db-0"]
                .iter()
                .map(|place| base.join(place))
                .collect();
            dirs.iter()
                .for_each(|dir| std::fs::create_dir_all(dir.parent().unwrap()).unwrap());
            shared.checkpoint(&dirs).unwrap();
            std::fs::write(base.join("ACTIVE"), "db-0\ndb-0\ndb-0\ndb-0").unwrap();
            count += 1;
            makes.store(count, std::sync::atomic::Ordering::Release);
        }
        count
    });
    let lens: Vec<usize> = world.logs.iter().map(Vec::len).collect();
    let steps = lens.iter().copied().max().unwrap();
    for step in 0..steps {
        // However slow the disk is, a few of them in the middle.
        if step == steps / 3 || step == steps / 2 {
            let before = made.load(std::sync::atomic::Ordering::Acquire);
            common::wait_for("a checkpoint", || {
                made.load(std::sync::atomic::Ordering::Acquire) > before.min(10)
            });
        }
        for log in [3, 1, 0, 2] {
            world.deliver(0, log, 1 + step % 2).unwrap();
        }
    }
    is_done.store(true, std::sync::atomic::Ordering::Release);
    let count = cutter.join().unwrap();
    assert!(count > 1, "{count} checkpoints");
    let digest = world.settle();
    for checkpoint in 0..count {
        let mut machine = Machine::open(MachineConfig {
            dirs: vec![dir.path().join(checkpoint.to_string())],
            partitions,
            sync: false,
        })
        .unwrap();
        for (log, from) in machine.applied().into_iter().enumerate() {
            for (at, value) in world.logs[log].iter().enumerate().skip(from as usize) {
                machine.bursts()[log].push(at as u64 + 1, value.origin, None, &value.bytes);
            }
        }
        machine.run(&mut Outcomes::default()).unwrap();
        assert_eq!(machine.digest().unwrap(), digest, "checkpoint {checkpoint}");
    }
}

#[test]
fn a_command_without_an_argument_is_no_entry() {
    let mut world = World::new(2, 1);
    let args = Args::new(b"", &[]);
    assert!(args.is_empty());
    let entry = world.decide_several(vec![0x7f, 1, 2], 0);
    let after = world.decide_several(encoded("DBSIZE"), 0);
    world.settle();
    assert!(show(&world.replies[&entry]).starts_with("-ERR malformed"));
    assert_eq!(show(&world.replies[&after]), "0");
}

/// The limit applies to the sum of what a transaction writes in all its partitions, identically on every replica.
#[test]
fn what_a_transaction_writes_in_all_partitions_is_bounded() {
    let mut world = World::new(3, 2);
    let limit = TRANSACTION_WRITTEN_BYTES_MAX / STORED_VALUE_LEN_BYTES_MAX;
    let offset = STORED_VALUE_LEN_BYTES_MAX - 1;
    let lines: Vec<_> = (0..limit + 5)
        .map(|key| format!("SETRANGE k{key} {offset} x"))
        .collect();
    let entry = world.decide_several(exec(&lines), 0);
    world.settle();
    let reply = show(&world.replies[&entry]);
    assert_eq!(reply.matches("1048576").count(), limit);
    assert_eq!(reply.matches("-ERR transaction has written").count(), 5);
    assert_eq!(world.ask("DBSIZE"), limit.to_string());
    let digests = [0, 1].map(|replica| world.machine(replica).digest().unwrap());
    assert_eq!(digests[0], digests[1]);
}
