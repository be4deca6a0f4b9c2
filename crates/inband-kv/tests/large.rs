//! Commands that do not fit in one value.

use std::time::Duration;

use crate::common::{key_of_each, open, resp, scratch, wait_for, Client, Served};
use inband_host::log::SubmitFailure;
use inband_kv::limits::{
    COMMAND_LEN_BYTES_MAX, KEY_LEN_BYTES_MAX, OUTPUT_HARD_BYTES_MAX, STORED_VALUE_LEN_BYTES_MAX,
    VALUES_REPLY_BYTES_MAX,
};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::testing::MemoryCluster;

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
