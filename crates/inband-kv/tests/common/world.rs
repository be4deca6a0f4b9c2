//! Several replicas with several partitions, and the hand-written logs that they all receive.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::BytesMut;
use inband_host::log::{Origin, Ticket, ValueKind};
use inband_kv::command::{Command, Queue, Watched};
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::partition::{logs_of, partition_of};
use inband_kv::store::{Outcomes, StoreError};
use inband_kv::value::{marker, Chunk, ValueWriter};
use inband_kv::workers::WorkerConfig;
use inband_resp::reply::Reply;

use super::{encode, key_of_each, scratch, show, words, T0_MS};

/// `EXEC` of some lines.
pub fn exec(lines: &[String]) -> Vec<u8> {
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

/// A decided value.
#[derive(Clone)]
pub struct Value {
    pub bytes: Vec<u8>,
    pub origin: Origin,
    /// The replica whose client waits for it.
    pub owner: usize,
}

/// Several replicas and the logs that they all receive.
pub struct World {
    pub partitions: usize,
    pub logs: Vec<Vec<Value>>,
    pub machines: Vec<Option<Machine>>,
    /// Dropped after the machines are closed.
    pub dirs: Vec<tempfile::TempDir>,
    /// By replica and log: number of values delivered.
    pub delivered: Vec<Vec<usize>>,
    /// Number of entries decided so far.
    pub entries: u64,
    pub replies: BTreeMap<u64, Reply>,
    /// Own values whose outcome was reported.
    pub ended: Vec<Ticket>,
    pub now_ms: u64,
    /// By replica: how far its wall clock is ahead.
    pub skew_ms: Vec<u64>,
    pub knowledge: Knowledge,
    /// For the replica that syncs: its disk contents when recording of its writes started.
    base: Option<tempfile::TempDir>,
}

/// The replica whose store survives power failures.
pub const SYNCED: usize = 1;

/// What clients know, in real time: the minimum lengths of the lists `t<n>`, one per partition. A client that sees an
/// item must see everything that the item's writer knew when it asked for the write.
#[derive(Default)]
pub struct Knowledge {
    pub keys: Vec<String>,
    /// By partition.
    known: Vec<usize>,
    /// Items in flight.
    asked: BTreeMap<Ticket, usize>,
    /// By item: what was known when its write was requested.
    knew: Vec<Vec<usize>>,
    /// By entry that reads all lists: what was known when it was requested.
    reads: BTreeMap<u64, Vec<usize>>,
    /// The lists have been deleted.
    is_over: bool,
}

/// Length of an item in a list.
const ITEM_LEN_BYTES: usize = 6;

impl Knowledge {
    fn learn(&mut self, partition: usize, len_bytes: usize) {
        let known = &mut self.known[partition];
        *known = (*known).max(len_bytes);
    }

    /// A read of all lists was answered.
    fn check(&mut self, entry: u64, reply: &Reply) {
        let Some(began) = self.reads.remove(&entry).filter(|_| !self.is_over) else {
            return;
        };
        let Reply::Array(values) = reply else {
            panic!("entry {entry}: {}", show(reply))
        };
        let lists: Vec<&[u8]> = values
            .iter()
            .map(|value| match value {
                Reply::Bulk(list) => &list[..],
                _ => &[],
            })
            .collect();
        let sees = |what: &str, knew: &[usize]| {
            let is_old = lists
                .iter()
                .zip(knew)
                .any(|(list, knew)| list.len() < *knew);
            assert!(
                !is_old,
                "entry {entry} saw {}: {what} knew {knew:?}",
                show(reply)
            );
        };
        sees("its client", &began);
        for item in lists.iter().flat_map(|list| list.chunks(ITEM_LEN_BYTES)) {
            let number = std::str::from_utf8(&item[..ITEM_LEN_BYTES - 1]).expect("text");
            let number: usize = number.parse().expect("a number");
            sees(&format!("the client of item {number}"), &self.knew[number]);
        }
        for (partition, list) in lists.iter().enumerate() {
            self.known[partition] = self.known[partition].max(list.len());
        }
    }
}

impl World {
    pub fn new(partitions: usize, replicas: usize) -> Self {
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
            skew_ms: vec![0; replicas],
            knowledge: Knowledge {
                keys: key_of_each("t", partitions),
                known: vec![0; partitions],
                ..Knowledge::default()
            },
            base: None,
        };
        (0..replicas).for_each(|replica| world.reopen(replica));
        world
    }

    /// The process ends and another one starts. Nothing waits for what the first one was asked.
    pub fn reopen(&mut self, replica: usize) {
        self.machines[replica] = None;
        let values = self.logs.iter_mut().flatten();
        let own = values.filter(|value| value.owner == replica);
        own.for_each(|value| value.owner = usize::MAX);
        let mut machine = Machine::open(MachineConfig {
            dirs: vec![self.dirs[replica].path().to_path_buf()],
            partitions: self.partitions,
            sync: replica == SYNCED,
        })
        .expect("opens");
        // What workers do together, the others do alone.
        if replica % 2 == 1 {
            let workers = WorkerConfig::eager(2);
            machine.start_workers(workers).expect("starts");
        }
        // A crash loses what it has not written.
        if replica > 0 {
            machine.defer_writes();
        }
        self.delivered[replica] = machine.applied().iter().map(|at| *at as usize).collect();
        self.machines[replica] = Some(machine);
        if replica == SYNCED {
            self.tape();
        }
    }

    /// Copies the disk of the replica that syncs.
    fn copy_disk(&mut self) -> tempfile::TempDir {
        let copy = scratch();
        let machine = self.machine(SYNCED);
        let logs: Vec<_> = (0..machine.logs())
            .map(|log| copy.path().join(log.to_string()))
            .collect();
        machine.shared().checkpoint(&logs).unwrap();
        copy
    }

    /// Copies the disk of the replica that syncs, and records its writes from now on.
    fn tape(&mut self) {
        self.base = Some(self.copy_disk());
        self.machine(SYNCED).faults().start_tape();
    }

    fn paths(&mut self, replica: usize) -> Vec<PathBuf> {
        let machine = self.machine(replica);
        let logs = 0..machine.logs();
        logs.map(|log| machine.store(log).path().to_path_buf())
            .collect()
    }

    /// The replica that syncs has installed a checkpoint. What it has received is synced; what it has kept need not be.
    fn tape_installed(&mut self, before: &[PathBuf]) {
        let (after, copy) = (self.paths(SYNCED), self.copy_disk());
        let base = self.base.as_ref().expect("it is taped");
        for log in (0..after.len()).filter(|log| before[*log] != after[*log]) {
            let name = log.to_string();
            std::fs::remove_dir_all(base.path().join(&name)).unwrap();
            std::fs::rename(copy.path().join(&name), base.path().join(&name)).unwrap();
        }
    }

    /// The host of the replica that syncs loses power. Each store keeps everything up to some write, at or after its
    /// last sync, chosen by `picks`.
    pub fn power_cut(&mut self, picks: &mut dyn FnMut(usize) -> usize) {
        let base = self.base.take().expect("it was taped");
        let paths = self.paths(SYNCED);
        let machine = self.machine(SYNCED);
        let tapes: Vec<_> = paths
            .iter()
            .map(|path| machine.faults().tape(path))
            .collect();
        self.machines[SYNCED] = None;
        for (log, (path, tape)) in paths.iter().zip(tapes).enumerate() {
            std::fs::remove_dir_all(path).unwrap();
            std::fs::rename(base.path().join(log.to_string()), path).unwrap();
            let left = tape.synced + picks(tape.writes.len() - tape.synced + 1);
            inband_kv::testing::replay(path, &tape.writes[..left]).unwrap();
        }
        self.reopen(SYNCED);
    }

    /// Decides that an item is appended to a partition's list.
    pub fn append(&mut self, partition: usize, owner: usize) {
        let item = self.knowledge.knew.len();
        self.knowledge.knew.push(self.knowledge.known.clone());
        let line = format!("APPEND {} {item:05},", self.knowledge.keys[partition]);
        self.decide_line(&line, owner);
        let instance = self.logs[partition].len() as u64;
        let ticket = Ticket::new(partition, instance);
        self.knowledge.asked.insert(ticket, item);
    }

    /// Decides that all lists are read at once.
    pub fn read_lists(&mut self, owner: usize) -> u64 {
        let line = format!("MGET {}", self.knowledge.keys.join(" "));
        let entry = self.decide_several(encoded(&line), owner);
        self.knowledge
            .reads
            .insert(entry, self.knowledge.known.clone());
        entry
    }

    /// Reads a partition's list without going through the log, if this replica has everything that is decided there.
    pub fn look(&mut self, replica: usize, partition: usize) {
        let (decided, now_ms) = (self.logs[partition].len() as u64, self.now_ms);
        let command = encoded(&format!("GET {}", self.knowledge.keys[partition]));
        let machine = self.machine(replica);
        if machine.store(partition).applied() < decided {
            return;
        }
        let reply = machine
            .reader(partition, now_ms)
            .unwrap()
            .read(&command)
            .unwrap();
        let Some(Reply::Bulk(list)) = reply else {
            return;
        };
        assert!(self.knowledge.is_over || list.len() >= self.knowledge.known[partition]);
        self.knowledge.learn(partition, list.len());
    }

    /// From now on lists may be missing.
    pub fn lists_are_deleted(&mut self) {
        self.knowledge.is_over = true;
    }

    pub fn machine(&mut self, replica: usize) -> &mut Machine {
        self.machines[replica].as_mut().expect("it is open")
    }

    /// Decides a value.
    pub fn push(&mut self, log: usize, bytes: Vec<u8>, owner: usize) {
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

    /// The wall clock of the replica that a client uses.
    fn time_of(&self, owner: usize) -> u64 {
        self.now_ms + self.skew_ms.get(owner).copied().unwrap_or(0)
    }

    /// Decides several commands in one value.
    pub fn decide(&mut self, log: usize, commands: &[Vec<u8>], owner: usize) {
        let mut writer = ValueWriter::new();
        commands.iter().for_each(|command| writer.push(command));
        let bytes = writer.finish(self.time_of(owner)).to_vec();
        self.push(log, bytes, owner);
        if log == self.partitions {
            self.entries += commands.len() as u64;
        }
    }

    /// Decides a command in `count` chunks.
    pub fn decide_chunks(&mut self, command: &[u8], count: usize, owner: usize) -> u64 {
        let log = self.partitions;
        let transfer = self.logs[log].len() as u64;
        let chunks: Vec<&[u8]> = command.chunks(command.len().div_ceil(count)).collect();
        for (index, bytes) in chunks.iter().enumerate() {
            let mut value = Vec::new();
            let chunk = Chunk {
                version: 1,
                time_ms: self.time_of(owner),
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

    pub fn decide_several(&mut self, command: Vec<u8>, owner: usize) -> u64 {
        self.decide(self.partitions, &[command], owner);
        self.entries
    }

    pub fn decide_line(&mut self, line: &str, owner: usize) {
        let command = encode(&words(line), None).expect("parses");
        let key = line.split(' ').nth(1).expect("a key");
        let partition = partition_of(key.as_bytes(), self.partitions);
        self.decide(partition, &[command], owner);
    }

    pub fn mark(&mut self, partition: usize, entry: u64) {
        self.push(partition, marker(entry).to_vec(), usize::MAX);
    }

    /// Delivers the next values of a log. `Err`: a write failed, which ends the process.
    pub fn deliver(&mut self, replica: usize, log: usize, count: usize) -> Result<(), StoreError> {
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
        for outcome in &outcomes.values {
            self.ended.push(outcome.ticket);
            let replies = &outcomes.replies[outcome.first_reply..][..outcome.reply_count];
            let was_asked = self.knowledge.asked.remove(&outcome.ticket).is_some();
            if let ([Reply::Integer(len_bytes)], true) = (replies, was_asked) {
                let partition = outcome.ticket.partition();
                self.knowledge.learn(partition, *len_bytes as usize);
            }
        }
        for (entry, reply) in outcomes.entries {
            self.knowledge.check(entry, &reply);
            let before = self.replies.insert(entry, reply);
            assert!(before.is_none(), "entry {entry} was answered twice");
        }
        result.map(|_| ())
    }

    pub fn deliver_all(&mut self, replica: usize) {
        for log in 0..self.logs.len() {
            self.deliver(replica, log, usize::MAX).expect("applies");
        }
    }

    /// Delivers everything to all replicas and checks that they are equal.
    pub fn settle(&mut self) -> u64 {
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

    /// Copies a checkpoint from one replica to another and installs it.
    pub fn copy(&mut self, from: usize, to: usize) {
        let shared = self.machine(from).shared();
        let before = self.paths(to);
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
            Err(error) => return self.crash(to, error),
        }
        if to == SYNCED {
            self.tape_installed(&before);
        }
    }

    /// A write failed, which ends the process.
    pub fn crash(&mut self, replica: usize, error: StoreError) {
        assert!(matches!(error, StoreError::Fault), "{error}");
        self.reopen(replica);
    }

    /// The reply on replica 0 to a command over all partitions, in a log that all replicas have.
    pub fn ask(&mut self, line: &str) -> String {
        let command = encode(&words(line), None).expect("parses");
        let entry = self.decide_several(command, 0);
        self.settle();
        show(&self.replies[&entry])
    }
}

/// One encoded command.
pub fn encoded(line: &str) -> Vec<u8> {
    encode(&words(line), None).expect("parses")
}
