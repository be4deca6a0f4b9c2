//! Commands that do not fit in one value.

use std::time::Duration;

use crate::common::{self, encode, key_of_each, open, resp, scratch, wait_for, Client, Served};
use inband_host::log::{Origin, SubmitFailure, Ticket, ValueKind};
use inband_host::session::SESSIONS_MAX;
use inband_kv::limits::{
    COMMAND_LEN_BYTES_MAX, KEY_LEN_BYTES_MAX, OUTPUT_HARD_BYTES_MAX, STORED_VALUE_LEN_BYTES_MAX,
    TRANSFERS_MAX, TRANSFER_AGE_MS_MAX, VALUES_REPLY_BYTES_MAX,
};
use inband_kv::machine::Machine;
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::store::{ChunkFate, Outcomes};
use inband_kv::testing::MemoryCluster;
use inband_kv::value::Chunk;
use inband_resp::reply::Reply;
use proptest::prelude::*;

fn set(key: &str, value: &str) -> String {
    let (key_len, value_len) = (key.len(), value.len());
    format!("*3\r\n$3\r\nSET\r\n${key_len}\r\n{key}\r\n${value_len}\r\n{value}\r\n")
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

#[test]
fn values_up_to_the_limit() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    let mut client = one.client();
    for len in [1400, 3000, 70_000, STORED_VALUE_LEN_BYTES_MAX] {
        let value = "v".repeat(len);
        client.send(set("key", &value));
        client.expect("+OK\r\n");
        client.send(resp("GET key"));
        client.expect(bulk(&value));
    }
    client.send(set("key", &"w".repeat(STORED_VALUE_LEN_BYTES_MAX + 1)));
    client.expect("-ERR value of 1048577 bytes is over the limit of 1048576 bytes\r\n");
    client.send(resp("APPEND key x"));
    client.expect("-ERR value of 1048577 bytes is over the limit of 1048576 bytes\r\n");
    let long_key = "k".repeat(COMMAND_LEN_BYTES_MAX);
    client.send(resp(&format!("GET {long_key}")));
    assert!(client.line().starts_with("-ERR command of 111"));
    client.send(resp(&format!("GET {long_key}")).repeat(3));
    (0..3).for_each(|_| assert!(client.line().starts_with("-ERR command of")));
    client.send(set("key", &"w".repeat(COMMAND_LEN_BYTES_MAX * 3)));
    assert!(client.line().starts_with("-ERR request of"));
    let mut other = two.client();
    other.send(resp("STRLEN key"));
    other.expect(":1048576\r\n");
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
    // No chunk is left.
    assert_eq!(client.ask("FLUSHALL"), "+OK");
    assert_eq!(client.ask("DBSIZE"), ":0");
}

#[test]
fn keys_up_to_the_limit() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    let key = "k".repeat(KEY_LEN_BYTES_MAX);
    client.send(set(&key, &"v".repeat(STORED_VALUE_LEN_BYTES_MAX)));
    client.expect("+OK\r\n");
    let error = "-ERR key of 32769 bytes is over the limit of 32768 bytes\r\n";
    for line in [
        "SET key+ v",
        "APPEND key+ v",
        "INCR key+",
        "MSET a 1 key+ 2",
    ] {
        client.send(resp(&line.replace("key+", &format!("{key}+"))));
        client.expect(error);
    }
    client.send(resp(&format!("GET {key}+")));
    client.expect("$-1\r\n");
    client.send("MULTI\r\n");
    client.send(set(&format!("{key}+"), "v"));
    client.expect(format!("+OK\r\n{error}"));
    client.send("EXEC\r\n");
    assert!(client.line().starts_with("-EXECABORT"));
    // It sorts below the end of all keys.
    client.send("FLUSHALL\r\n");
    client.send(resp(&format!("GET {key}")));
    client.expect("+OK\r\n$-1\r\n");
}

/// Requests whose replies exceed what a connection may have unsent.
fn many_gets(of: &str) -> (String, usize) {
    let count = 2 * OUTPUT_HARD_BYTES_MAX / STORED_VALUE_LEN_BYTES_MAX;
    (resp(&format!("GET {of}")).repeat(count), count)
}

#[test]
fn pipelined_reads_of_large_values_wait_for_the_client() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    let value = "v".repeat(STORED_VALUE_LEN_BYTES_MAX);
    client.send(set("key", &value));
    client.expect("+OK\r\n");
    let (requests, count) = many_gets("key");
    client.send(requests + "APPEND n 1\r\n");
    // The replica serves others, but nothing more of this client's.
    let mut other = served.client();
    assert_eq!(other.ask("SET small 1"), "+OK");
    assert_eq!(other.ask("STRLEN n"), ":0");
    (0..count).for_each(|_| client.expect(bulk(&value)));
    assert_eq!(client.line(), ":1");
}

#[test]
fn replies_that_wait_for_one_before_them_are_bounded() {
    let (cluster, dir) = (MemoryCluster::with_partitions(2), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let keys = key_of_each("k", 2);
    let mut client = served.client();
    let value = "v".repeat(STORED_VALUE_LEN_BYTES_MAX);
    client.send(set(&keys[1], &value));
    client.expect("+OK\r\n");
    cluster.hold();
    let before = served.control.status().reads_total;
    let (requests, count) = many_gets(&keys[1]);
    client.send(set(&keys[0], "1") + &requests);
    wait_for("it is held", || cluster.held() > 0);
    wait_for("some are read", || {
        served.control.status().reads_total > before
    });
    cluster.release_reversed();
    client.expect("+OK\r\n");
    (0..count).for_each(|_| client.expect(bulk(&value)));
}

#[test]
fn replies_of_one_command_are_bounded() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    let value = "v".repeat(STORED_VALUE_LEN_BYTES_MAX);
    client.send(set("key", &value));
    client.expect("+OK\r\n");
    let fitting = VALUES_REPLY_BYTES_MAX / STORED_VALUE_LEN_BYTES_MAX - 1;
    client.send(resp(&format!("MGET{}", " key".repeat(fitting))));
    client.expect(format!("*{fitting}\r\n"));
    (0..fitting).for_each(|_| client.expect(bulk(&value)));
    client.send(resp(&format!("MGET{}", " key".repeat(fitting + 1))));
    assert!(client
        .line()
        .starts_with("-ERR the values are over the limit of 33554432 bytes"));
    client.send("MULTI\r\n".to_owned() + &"GET key\r\n".repeat(100));
    client.send("INCR n\r\nGETDEL key\r\nSTRLEN key\r\nINCR n\r\nEXEC\r\n");
    client.expect("+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(104));
    client.expect("*104\r\n");
    (0..fitting).for_each(|_| client.expect(bulk(&value)));
    let left_out = "-ERR the replies of the transaction are over the limit";
    (fitting..100).for_each(|_| assert!(client.line().starts_with(left_out)));
    client.expect(":1\r\n");
    (0..2).for_each(|_| assert!(client.line().starts_with(left_out)));
    client.expect(":2\r\n");
    assert_eq!(client.ask("EXISTS key"), ":0");
}

#[test]
fn many_large_commands_and_small_ones_between_them() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let clients: Vec<_> = (0..12)
        .map(|i| {
            let mut client = served[i % 2].client();
            std::thread::spawn(move || {
                for step in 0..4 {
                    let value = format!("{i}-{step}-{}", "x".repeat(100_000 + i * 1000));
                    client.send(set(&format!("key{i}"), &value));
                    client.send(resp("INCR n"));
                    client.send(resp(&format!("GET key{i}")));
                    client.expect("+OK\r\n");
                    assert!(client.line().starts_with(':'));
                    client.expect(bulk(&value));
                }
            })
        })
        .collect();
    clients
        .into_iter()
        .for_each(|client| client.join().expect("no panic"));
    assert_eq!(served[0].client().ask("INCR n"), ":49");
    wait_for("both are equal", || {
        served[0].control.digest().unwrap() == served[1].control.digest().unwrap()
    });
}

#[test]
fn large_commands_over_partitions() {
    let cluster = MemoryCluster::with_partitions(3);
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    let keys = key_of_each("k", 3);
    let (a, b) = (&keys[0], &keys[2]);
    let mut client = one.client();
    let value = "v".repeat(200_000);
    client.send(resp(&format!("MSET {a} {value} {b} {value}")));
    client.expect("+OK\r\n");
    client.send(resp(&format!("MGET {a} {b}")));
    client.expect(format!("*2\r\n{}{}", bulk(&value), bulk(&value)));
    client.send("MULTI\r\n");
    client.send(resp(&format!("APPEND {a} {value}")));
    client.send(resp(&format!("APPEND {b} {value}")));
    client.send(resp(&format!("STRLEN {b}")));
    client.send("EXEC\r\n");
    client
        .expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:400000\r\n:400000\r\n:400000\r\n");
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
}

/// A replica driven step by step.
struct Stage {
    replica: Replica,
    cluster: MemoryCluster,
    client: Client,
    other: Client,
    _dir: tempfile::TempDir,
}

impl Stage {
    fn new(prepare: impl FnOnce(&mut inband_kv::testing::MemoryLog)) -> Self {
        let (cluster, dir) = (MemoryCluster::new(), scratch());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut log = cluster.join(&[0]).unwrap();
        prepare(&mut log);
        let config = ReplicaConfig {
            spin_us: 0,
            deadline_ms: 1000,
            ..ReplicaConfig::default()
        };
        let (machine, log) = (open(dir.path()), Box::new(log));
        let replica = Replica::new(config, machine, log, vec![listener], None).unwrap();
        Self {
            replica,
            cluster,
            client: Client::connect(address),
            other: Client::connect(address),
            _dir: dir,
        }
    }

    /// Runs turns until a condition holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        for _ in 0..2000 {
            self.replica.poll_once(Duration::from_millis(1)).unwrap();
            if holds(self) {
                return;
            }
        }
        panic!("{what} did not come true");
    }

    fn send_large(&mut self) {
        self.client.send(set("key", &"v".repeat(40_000)));
    }

    /// Starts to send a large value, and holds the chunks after the first one.
    fn begin(&mut self) {
        self.send_large();
        // Only the first chunk is decided.
        self.cluster.pace();
        self.cluster.allow(0, 0, 1);
        self.until("it is begun", |stage| stage.cluster.last_instance() >= 2);
        self.cluster.hold();
        self.cluster.unpace();
        self.until("chunks are held", |stage| stage.cluster.held() > 0);
    }

    fn finish(&mut self, expected: &str) {
        let control = self.replica.control();
        self.until("it is answered", |_| control.status().values_in_flight == 0);
        let line = self.client.line();
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn chunks_take_a_quarter_of_the_window_at_most() {
    let mut stage = Stage::new(|log| log.set_window(16));
    stage.begin();
    stage.until("more turns", {
        let mut turns = 0;
        move |_| {
            turns += 1;
            turns > 10
        }
    });
    assert_eq!(stage.cluster.held(), 4);
    // Other clients continue.
    stage.other.send("SET small 1\r\n");
    stage.until("it is held", |stage| stage.cluster.held() == 5);
    stage.cluster.release_reversed();
    stage.finish("+OK");
    assert_eq!(stage.other.line(), "+OK");
    assert_eq!(stage.replica.machine().keys(), 2);
}

#[test]
fn an_expired_session_ends_a_large_command() {
    let mut stage = Stage::new(|_| {});
    stage.begin();
    stage.cluster.expire_proposer_sessions();
    stage.cluster.release_reversed();
    stage.finish("-TRYAGAIN not applied: the session in which it was sent in parts has expired");
    assert_eq!(stage.replica.machine().keys(), 0);
    // The proposer has a new session, in which the next command succeeds.
    stage.client.send(set("key", &"w".repeat(40_000)));
    stage.finish("+OK");
    assert_eq!(stage.replica.machine().keys(), 1);
}

#[test]
fn a_session_that_expires_before_the_first_chunk_does_no_harm() {
    let mut stage = Stage::new(|_| {});
    stage.other.send("SET small 1\r\n");
    stage.until("it is applied", |stage| stage.replica.machine().keys() == 1);
    stage.cluster.expire_proposer_sessions();
    stage.send_large();
    stage.until("it is applied", |stage| stage.replica.machine().keys() == 2);
    stage.finish("+OK");
}

#[test]
fn a_chunk_that_fails_ends_its_command() {
    let failure = SubmitFailure::NotApplied("the leader has stepped down");
    let mut stage = Stage::new(|log| log.fail_next(failure, false));
    stage.send_large();
    stage.finish("-TRYAGAIN not applied: the leader has stepped down");
    // Not decided in time, but the other chunks were never sent, so it can no longer be applied.
    let failure = SubmitFailure::OutcomeUnknown(7);
    let mut stage = Stage::new(|log| log.fail_next(failure, true));
    stage.send_large();
    stage.finish("-TRYAGAIN not applied: a part of the command was not decided in time");
    assert_eq!(stage.replica.machine().keys(), 0);
}

#[test]
fn chunks_that_are_never_decided_end_in_an_error() {
    let mut stage = Stage::new(|_| {});
    stage.begin();
    stage.cluster.lose_held();
    stage.cluster.hold();
    stage.finish("-UNKNOWN outcome unknown");
    assert_eq!(stage.replica.machine().keys(), 0);
}

/// What happens to the logs in the model below.
#[derive(Debug, Clone)]
enum Step {
    /// Begin a command of this many bytes in this many chunks, in one of the sessions.
    Begin(u8, u16, u8),
    /// Another chunk of one of the started commands.
    Chunk(u8, u8),
    /// The same chunk again, decided in another instance.
    Repeat(u8),
    /// A chunk of a command that was never started.
    Stray(u8),
    /// Abandon a command.
    GiveUp(u8),
    /// A small command.
    Small,
    /// Expire all sessions and open new ones.
    Expire,
    /// Nothing happens for so long that incomplete commands are dropped.
    Wait,
    /// Close and open the machine.
    Reopen,
    /// A second machine starts from a checkpoint of the first.
    Checkpoint,
}

fn any_step() -> impl Strategy<Value = Step> {
    let b = any::<u8>;
    prop_oneof![
        8 => (b(), 1..3000u16, 1..9u8).prop_map(|(s, len, n)| Step::Begin(s, len, n)),
        60 => (b(), b()).prop_map(|(t, i)| Step::Chunk(t, i)),
        6 => b().prop_map(Step::Repeat),
        2 => b().prop_map(Step::Stray),
        2 => b().prop_map(Step::GiveUp),
        4 => Just(Step::Small),
        1 => Just(Step::Expire),
        1 => Just(Step::Wait),
        2 => Just(Step::Reopen),
        2 => Just(Step::Checkpoint),
    ]
}

/// A command of the model.
struct Sent {
    session: u64,
    transfer: u64,
    item: String,
    chunks: Vec<Vec<u8>>,
    /// Chunks not decided yet.
    left: Vec<u16>,
    is_dead: bool,
}

struct Model {
    values: Vec<(Origin, Vec<u8>)>,
    sessions: [u64; 2],
    next_seq: u64,
    now_ms: u64,
    sent: Vec<Sent>,
    /// The list that the log must produce.
    list: String,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            values: Vec::new(),
            sessions: [0; 2],
            next_seq: 1,
            now_ms: 1,
            sent: Vec::new(),
            list: String::new(),
        };
        model.open_sessions();
        model
    }

    fn open(&mut self) -> u64 {
        let origin = Origin {
            client_id: 77,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        self.values.push((origin, Vec::new()));
        self.values.len() as u64
    }

    fn open_sessions(&mut self) {
        self.sessions = [self.open(), self.open()];
    }

    fn decide(&mut self, session: u64, bytes: Vec<u8>) {
        let origin = Origin {
            client_id: session,
            client_seq: self.next_seq,
            client_low: 1,
            kind: ValueKind::Command,
        };
        self.next_seq += 1;
        self.values.push((origin, bytes));
    }

    fn decide_chunk(&mut self, at: usize, index: u16) {
        let sent = &mut self.sent[at];
        sent.left.retain(|left| *left != index);
        let chunk = Chunk {
            version: 1,
            time_ms: self.now_ms,
            transfer: sent.transfer,
            index,
            count: sent.chunks.len() as u16,
            bytes: &sent.chunks[usize::from(index)],
        };
        let mut value = Vec::new();
        chunk.write(&mut value);
        if sent.left.is_empty() && !sent.is_dead {
            self.list += &sent.item;
            sent.is_dead = true;
        }
        let session = sent.session;
        self.decide(session, value);
    }

    fn begin(&mut self, session: u64, len: usize, count: usize) {
        let transfer = self.sent.len() as u64 + 1;
        let item = format!("{transfer}:{},", "x".repeat(len));
        let line = format!("APPEND list {item}");
        let command = encode(&common::words(&line), None).expect("parses");
        let chunk_len = command.len().div_ceil(count);
        let chunks: Vec<Vec<u8>> = command.chunks(chunk_len).map(<[u8]>::to_vec).collect();
        let is_alive = |sent: &&mut Sent| !sent.is_dead;
        let alive: Vec<&mut Sent> = self.sent.iter_mut().filter(is_alive).collect();
        if alive.len() >= TRANSFERS_MAX {
            if let Some(oldest) = alive.into_iter().next() {
                oldest.is_dead = true;
            }
        }
        self.sent.push(Sent {
            session,
            transfer,
            item,
            left: (0..chunks.len() as u16).collect(),
            chunks,
            is_dead: false,
        });
        self.decide_chunk(self.sent.len() - 1, 0);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Begin(session, len, count) => {
                let session = self.sessions[usize::from(*session) % 2];
                self.begin(session, usize::from(*len), usize::from(*count));
            }
            Step::Chunk(which, index) => {
                let is_open = |at: &usize| !self.sent[*at].left.is_empty();
                let open: Vec<usize> = (0..self.sent.len()).filter(is_open).collect();
                if !open.is_empty() {
                    let at = open[usize::from(*which) % open.len()];
                    let left = &self.sent[at].left;
                    let index = left[usize::from(*index) % left.len()];
                    self.decide_chunk(at, index);
                }
            }
            Step::Repeat(which) => {
                let again = self.values[usize::from(*which) % self.values.len()].clone();
                if again.0.kind == ValueKind::Command {
                    self.values.push(again);
                }
            }
            Step::Stray(which) => {
                let chunk = Chunk {
                    version: 1,
                    time_ms: self.now_ms,
                    transfer: 1 << 40 | u64::from(*which),
                    index: 1,
                    count: 2,
                    bytes: b"stray",
                };
                let mut value = Vec::new();
                chunk.write(&mut value);
                self.decide(self.sessions[0], value);
            }
            Step::GiveUp(which) => {
                let count = self.sent.len();
                if count == 0 {
                    return;
                }
                let sent = &mut self.sent[usize::from(*which) % count];
                // A complete command is not abandoned; its proposer knows it is complete.
                if sent.is_dead {
                    return;
                }
                sent.is_dead = true;
                let chunk = Chunk {
                    version: 1,
                    time_ms: self.now_ms,
                    transfer: sent.transfer,
                    index: 0,
                    count: 0,
                    bytes: &[],
                };
                let mut value = Vec::new();
                chunk.write(&mut value);
                let session = sent.session;
                self.decide(session, value);
            }
            Step::Small => {
                let item = format!("s{},", self.next_seq);
                let line = format!("APPEND list {item}");
                let command = encode(&common::words(&line), None).expect("parses");
                let mut writer = inband_kv::value::ValueWriter::new();
                writer.push(&command);
                let value = writer.finish(self.now_ms).to_vec();
                self.decide(self.sessions[1], value);
                self.list += &item;
            }
            Step::Expire => {
                (0..SESSIONS_MAX).for_each(|_| {
                    self.open();
                });
                self.sent.iter_mut().for_each(|sent| sent.is_dead = true);
                self.open_sessions();
            }
            Step::Wait => {
                self.now_ms += TRANSFER_AGE_MS_MAX + 1;
                self.sent.iter_mut().for_each(|sent| sent.is_dead = true);
            }
            Step::Reopen | Step::Checkpoint => {}
        }
    }
}

fn apply(machine: &mut Machine, values: &[(Origin, Vec<u8>)], burst_len: usize) -> Vec<ChunkFate> {
    let mut fates = Vec::new();
    let from = machine.store(0).applied() as usize;
    let missing: Vec<_> = values.iter().enumerate().skip(from).collect();
    for burst in missing.chunks(burst_len) {
        for (at, (origin, bytes)) in burst {
            let (instance, ticket) = (*at as u64 + 1, Ticket(*at as u64));
            machine.bursts()[0].push(instance, *origin, Some(ticket), bytes);
        }
        let mut outcomes = Outcomes::default();
        machine.run(&mut outcomes).expect("applies");
        fates.extend(outcomes.values.iter().filter_map(|outcome| outcome.chunk));
        for outcome in &outcomes.values {
            let is_complete = outcome.chunk == Some(ChunkFate::Complete);
            assert!(outcome.chunk.is_none() || outcome.reply_count == usize::from(is_complete));
        }
    }
    fates
}

/// A machine that writes only on request.
fn deferring(dir: &std::path::Path) -> Machine {
    let mut machine = open(dir);
    machine.defer_writes();
    machine
}

fn list_of(machine: &mut Machine) -> String {
    let get = encode(&[b"GET", b"list"], None).expect("parses");
    match machine.reader(0, 0).unwrap().read(&get).unwrap() {
        Some(Reply::Bulk(bytes)) => String::from_utf8(bytes).unwrap(),
        Some(Reply::Nil) => String::new(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(common::cases(12))]

    /// Whatever the chunking, the order and the repetitions, whichever sessions expire and wherever a machine starts
    /// from: a chunked command is applied once, with its last chunk, or not at all.
    #[test]
    fn whole_or_not_at_all(
        steps in prop::collection::vec(any_step(), 10..250),
        burst_len in 1..9usize,
    ) {
        let mut model = Model::new();
        let dirs = [scratch(), scratch(), scratch()];
        let mut one = deferring(dirs[0].path());
        let mut two: Option<Machine> = None;
        for step in &steps {
            model.step(step);
            match step {
                Step::Reopen => {
                    apply(&mut one, &model.values, burst_len);
                    // The directory is locked while it is open. Unwritten data is lost.
                    one = open(dirs[2].path());
                    one = { drop(one); deferring(dirs[0].path()) };
                }
                Step::Checkpoint => {
                    apply(&mut one, &model.values, burst_len);
                    let mut machine = two.take().unwrap_or_else(|| open(dirs[1].path()));
                    one.flush().unwrap();
                    let incoming = machine.incoming();
                    if one.store(0).applied() > machine.store(0).applied() {
                        one.shared().checkpoint(&incoming).unwrap();
                        machine.install().unwrap();
                    }
                    two = Some(machine);
                }
                _ => {}
            }
        }
        let mut two = two.unwrap_or_else(|| open(dirs[1].path()));
        apply(&mut one, &model.values, burst_len);
        one.flush().unwrap();
        apply(&mut two, &model.values, 1);
        prop_assert_eq!(list_of(&mut one), model.list.clone());
        prop_assert_eq!(list_of(&mut two), model.list);
        prop_assert_eq!(one.digest().unwrap(), two.digest().unwrap());
    }
}

#[test]
fn too_many_at_once_drop_the_oldest() {
    let mut model = Model::new();
    let dir = scratch();
    let mut machine = open(dir.path());
    for _ in 0..=TRANSFERS_MAX {
        model.begin(model.sessions[0], 100, 2);
    }
    model.decide_chunk(0, 1);
    model.decide_chunk(1, 1);
    let fates = apply(&mut machine, &model.values, 5);
    let (begun, ended) = fates.split_at(TRANSFERS_MAX + 1);
    assert!(begun.iter().all(|fate| *fate == ChunkFate::Stored));
    assert_eq!(ended, [ChunkFate::Dropped, ChunkFate::Complete]);
    assert_eq!(list_of(&mut machine), model.list);
}

#[test]
fn what_stays_incomplete_is_dropped() {
    let mut model = Model::new();
    let dir = scratch();
    let mut machine = open(dir.path());
    model.begin(model.sessions[0], 100, 2);
    apply(&mut machine, &model.values, 5);
    let with_chunk = machine.digest().unwrap();
    drop(machine);
    // The age survives a restart.
    let mut machine = open(dir.path());
    model.now_ms += TRANSFER_AGE_MS_MAX;
    model.begin(model.sessions[0], 100, 2);
    model.now_ms += 1;
    model.decide_chunk(1, 1);
    model.sent[0].is_dead = true;
    model.decide_chunk(0, 1);
    let fates = apply(&mut machine, &model.values, 1);
    let expected = [ChunkFate::Stored, ChunkFate::Complete, ChunkFate::Dropped];
    assert_eq!(fates, expected);
    assert_eq!(list_of(&mut machine), model.list);
    assert_ne!(machine.digest().unwrap(), with_chunk);
}
