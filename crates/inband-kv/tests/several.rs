//! Commands over several partitions, as the state machine executes them: whole, in one order, and
//! the same on every replica, whatever is delivered when and whoever crashes where.

mod common;

use std::collections::BTreeMap;

use bytes::BytesMut;
use common::{encode, key_of_each, scratch, show, words, T0_MS};
use inband_kv::command::{Command, Queue, SessionStamp, Watched};
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::partition::{logs_of, partition_of};
use inband_kv::store::{Outcomes, StoreError};
use inband_kv::value::{marker, Chunk, ValueWriter};
use inband_paxos::log::{Origin, Ticket, ValueKind};
use inband_resp::reply::Reply;
use inband_resp::request::Args;
use proptest::prelude::*;

/// `EXEC` of some lines.
fn exec(lines: &[String]) -> Vec<u8> {
    let mut queue = BytesMut::new();
    for line in lines {
        let encoded = encode(&words(line), None).expect("parses");
        let (command, _) = Command::decode(&encoded).expect("decodes");
        Queue::push(&mut queue, &command);
    }
    let command = Command::Exec {
        watched: Watched::new(0, &[]),
        commands: Queue::new(lines.len(), &queue),
    };
    let mut out = BytesMut::new();
    command.encode(None, &mut out);
    out.to_vec()
}

#[derive(Clone)]
struct Value {
    bytes: Vec<u8>,
    origin: Origin,
    /// The replica whose client waits for it.
    owner: usize,
}

/// Some replicas and the logs that they all get.
struct World {
    partitions: usize,
    logs: Vec<Vec<Value>>,
    machines: Vec<Option<Machine>>,
    /// Removed after the machines are closed.
    dirs: Vec<tempfile::TempDir>,
    /// By replica and log: values delivered.
    delivered: Vec<Vec<usize>>,
    /// Entries decided so far.
    entries: u64,
    replies: BTreeMap<u64, Reply>,
    /// Own values that an outcome was told of.
    ended: Vec<Ticket>,
    now_ms: u64,
}

impl World {
    fn new(partitions: usize, replicas: usize) -> Self {
        let open = Origin {
            client_id: 1,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        let first = Value {
            bytes: Vec::new(),
            origin: open,
            owner: usize::MAX,
        };
        let mut world = Self {
            partitions,
            logs: vec![vec![first]; logs_of(partitions)],
            dirs: (0..replicas).map(|_| scratch()).collect(),
            machines: (0..replicas).map(|_| None).collect(),
            delivered: vec![vec![0; logs_of(partitions)]; replicas],
            entries: 0,
            replies: BTreeMap::new(),
            ended: Vec::new(),
            now_ms: T0_MS,
        };
        (0..replicas).for_each(|replica| world.reopen(replica));
        world
    }

    fn reopen(&mut self, replica: usize) {
        self.machines[replica] = None;
        let mut machine = Machine::open(MachineConfig {
            dirs: vec![self.dirs[replica].path().to_path_buf()],
            partitions: self.partitions,
            sync: replica == 1,
        })
        .expect("opens");
        // A crash takes what it has not written.
        if replica > 0 {
            machine.defer_writes();
        }
        self.delivered[replica] = machine.applied().iter().map(|at| *at as usize).collect();
        self.machines[replica] = Some(machine);
    }

    fn machine(&mut self, replica: usize) -> &mut Machine {
        self.machines[replica].as_mut().expect("it is open")
    }

    /// Decide a value.
    fn push(&mut self, log: usize, bytes: Vec<u8>, owner: usize) {
        let seq = self.logs[log].len() as u64;
        let origin = Origin {
            client_id: 1,
            client_seq: seq,
            client_low: seq,
            kind: ValueKind::Command,
        };
        self.logs[log].push(Value {
            bytes,
            origin,
            owner,
        });
    }

    /// Decide some commands in one value.
    fn decide(&mut self, log: usize, commands: &[Vec<u8>], owner: usize) {
        let mut writer = ValueWriter::new();
        commands.iter().for_each(|command| writer.push(command));
        let bytes = writer.finish(self.now_ms).to_vec();
        self.push(log, bytes, owner);
        if log == self.partitions {
            self.entries += commands.len() as u64;
        }
    }

    /// Decide a command in so many chunks.
    fn decide_chunks(&mut self, command: &[u8], count: usize, owner: usize) -> u64 {
        let log = self.partitions;
        let transfer = self.logs[log].len() as u64;
        let chunks: Vec<&[u8]> = command.chunks(command.len().div_ceil(count)).collect();
        for (index, bytes) in chunks.iter().enumerate() {
            let mut value = Vec::new();
            let chunk = Chunk {
                time_ms: self.now_ms,
                transfer,
                index: index as u16,
                count: chunks.len() as u16,
                bytes,
            };
            chunk.write(&mut value);
            self.push(log, value, owner);
        }
        self.entries += 1;
        self.entries
    }

    fn decide_several(&mut self, command: Vec<u8>, owner: usize) -> u64 {
        self.decide(self.partitions, &[command], owner);
        self.entries
    }

    fn decide_line(&mut self, line: &str, owner: usize) {
        let command = encode(&words(line), None).expect("parses");
        let key = line.split(' ').nth(1).expect("a key");
        let partition = partition_of(key.as_bytes(), self.partitions);
        self.decide(partition, &[command], owner);
    }

    fn mark(&mut self, partition: usize, entry: u64) {
        self.push(partition, marker(entry).to_vec(), usize::MAX);
    }

    /// Deliver the next values of a log. `Err`: a write failed, and with it the process.
    fn deliver(&mut self, replica: usize, log: usize, count: usize) -> Result<(), StoreError> {
        let from = self.delivered[replica][log];
        let values = &self.logs[log][from..];
        let count = count.min(values.len());
        let machine = self.machines[replica].as_mut().expect("it is open");
        for (at, value) in values[..count].iter().enumerate() {
            let instance = (from + at) as u64 + 1;
            let ticket = (value.owner == replica).then(|| Ticket::new(log, instance));
            machine.bursts()[log].push(instance, value.origin, ticket, &value.bytes);
        }
        self.delivered[replica][log] += count;
        let mut outcomes = Outcomes::default();
        let result = machine.run(&mut outcomes);
        self.ended.extend(outcomes.values.iter().map(|o| o.ticket));
        for (entry, reply) in outcomes.entries {
            let before = self.replies.insert(entry, reply);
            assert!(before.is_none(), "entry {entry} was answered twice");
        }
        result.map(|_| ())
    }

    fn deliver_all(&mut self, replica: usize) {
        for log in 0..self.logs.len() {
            self.deliver(replica, log, usize::MAX).expect("applies");
        }
    }

    /// Everybody gets everything, and all replicas are the same.
    fn settle(&mut self) -> u64 {
        for partition in 0..self.partitions {
            self.mark(partition, self.entries);
        }
        (0..self.machines.len()).for_each(|replica| self.deliver_all(replica));
        let lens: Vec<u64> = self.logs.iter().map(|log| log.len() as u64).collect();
        let mut digests = Vec::new();
        for replica in 0..self.machines.len() {
            let machine = self.machine(replica);
            assert_eq!(machine.applied(), lens, "replica {replica}");
            machine.flush().unwrap();
            assert_eq!(machine.written(), lens, "replica {replica}");
            digests.push(machine.digest().unwrap());
        }
        assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
        digests[0]
    }

    /// Copy a checkpoint from one replica to another and install it.
    fn copy(&mut self, from: usize, to: usize) {
        let shared = self.machine(from).shared();
        let machine = self.machine(to);
        let incoming = machine.incoming();
        for dir in incoming.iter().filter(|dir| dir.exists()) {
            std::fs::remove_dir_all(dir).unwrap();
        }
        shared.checkpoint(&incoming).unwrap();
        match machine.install() {
            Ok(reset) => {
                for (log, applied) in reset {
                    self.delivered[to][log] = applied as usize;
                }
            }
            Err(StoreError::CheckpointTooOld { .. }) => {}
            Err(error) => self.crash(to, error),
        }
    }

    /// A write failed, and with it the process.
    fn crash(&mut self, replica: usize, error: StoreError) {
        assert!(matches!(error, StoreError::Fault), "{error}");
        self.reopen(replica);
    }

    /// What one command over all partitions answers on replica 0, in a log that all have.
    fn ask(&mut self, line: &str) -> String {
        let command = encode(&words(line), None).expect("parses");
        let entry = self.decide_several(command, 0);
        self.settle();
        show(&self.replies[&entry])
    }
}

fn encoded(line: &str) -> Vec<u8> {
    encode(&words(line), None).expect("parses")
}

/// A partition stands at a marker, with own values delivered behind it, when a checkpoint is installed
/// that holds the first of them and not the last.
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
    // Partition 0 stops at the marker; partition 2 is not concerned.
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
    // A lower marker does not do.
    world.mark(1, entry - 1);
    world.deliver(0, 1, usize::MAX).unwrap();
    assert_eq!(world.machine(0).applied(), [2, 2, 2, 2]);
    world.mark(1, entry + 5);
    world.deliver(0, 1, usize::MAX).unwrap();
    assert_eq!(world.machine(0).wanted_marker(1), None);
    // The marker covers entries that are not there yet: partition 1 waits for them.
    assert_eq!(world.machine(0).applied(), [2, 2, 2, 2]);
    for _ in 0..5 {
        world.decide_several(encoded("DBSIZE"), usize::MAX);
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
    // Only the second partition has seen that time went on.
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
    // The retry, decided twice more before either is executed, over different replicas.
    let again = world.decide_several(stamped(&line, 1), 0);
    let and_again = world.decide_several(stamped(&line, 1), 1);
    world.settle();
    for entry in [first, again, and_again] {
        assert_eq!(show(&world.replies[&entry]), "1", "entry {entry}");
    }
    assert_eq!(world.ask("DBSIZE"), "1");
    // In one partition, under the same session: opened there as well.
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

/// What a client sees, one key after the other, in the stores of a replica that has crashed: it
/// must be able to go on from there and become as the others are.
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
                // The own entries of the process that crashed have nobody waiting for them.
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
    // A copy of the second partition's store from before, as a power cut could leave it.
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

#[test]
fn a_lost_tail_of_one_store_comes_back_from_the_redo_record() {
    let mut world = World::new(2, 2);
    let all = key_of_each("k", 2);
    for key in &all {
        world.decide_line(&format!("SET {key} 0"), 0);
    }
    (0..3).for_each(|log| world.deliver(1, log, usize::MAX).unwrap());
    // Replica 1 keeps local records until they are synced, which it never is here.
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
    let (done, base) = (is_done.clone(), dir.path().to_path_buf());
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
        }
        count
    });
    let lens: Vec<usize> = world.logs.iter().map(Vec::len).collect();
    for step in 0..lens.iter().copied().max().unwrap() {
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

/// One step of a random run.
#[derive(Debug, Clone)]
enum Step {
    /// A command of one partition.
    Single(u8, u8),
    /// The same value to all keys of a group, over all partitions.
    SetAll,
    /// The values of that group.
    GetAll,
    /// A transaction that appends to the lists of some partitions.
    Append(u8, u8),
    /// `DEL` of the whole group, `FLUSHALL`, `DBSIZE` or `KEYS`.
    Other(u8),
    /// A marker somewhere before the end, or the last one.
    Mark(u8, u8),
    Deliver(u8, u8, u8),
    Crash(u8),
    /// Write what is applied.
    Write(u8),
    /// Fail at one of the next writes.
    Fault(u8, u8),
    Copy(u8, u8),
    Sync(u8),
    Time(u8),
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
        4 => (b(), b()).prop_map(|(a, c)| Step::Fault(a, c)),
        2 => (b(), b()).prop_map(|(a, c)| Step::Copy(a, c)),
        1 => b().prop_map(Step::Sync),
        1 => b().prop_map(Step::Time),
    ]
}

/// Replies that must show one value for all keys of the group.
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

/// Lists in which the same things happened must show them in the same order.
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
    let mut world = World::new(partitions, replicas);
    let (group, lists) = (key_of_each("g", partitions), key_of_each("l", partitions));
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
                if let Err(error) = world.machine(replica).sync() {
                    world.crash(replica, error);
                }
            }
            Step::Time(ms) => world.now_ms += u64::from(*ms),
        }
    }
    for replica in 0..replicas {
        // No write fails any more.
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
    // Whole or not at all, and here: each exactly once.
    for (item, of) in &appended {
        for partition in of {
            let count = lists[*partition].iter().filter(|m| *m == item).count();
            assert_eq!(count, 1, "{item} in partition {partition}: {lists:?}");
        }
    }
}

proptest! {
    #![proptest_config(common::cases(12))]

    /// Whatever is delivered when, whoever crashes where and whoever starts from whose checkpoint:
    /// all replicas end the same, nobody sees half a command, and the order of commands is one.
    #[test]
    fn whole_and_in_one_order(
        partitions in 2..5usize,
        steps in prop::collection::vec(any_step(), 20..160),
    ) {
        run(partitions, &steps);
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
