//! Reads that do not go through the log.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{self, key_of_each, resp, scratch, wait_for, Client, Served};
use inband_host::log::SubmitFailure;
use inband_kv::machine::Machine;
use inband_kv::parse::ReadMode;
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::testing::MemoryCluster;

struct One {
    served: Served,
    cluster: MemoryCluster,
    _dir: tempfile::TempDir,
}

fn one(config: ReplicaConfig) -> One {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    One {
        served: Served::start(&cluster, dir.path(), config),
        cluster,
        _dir: dir,
    }
}

const READS: [(&str, &str); 9] = [
    ("GET a", "$1\r\n1\r\n"),
    ("GET nosuch", "$-1\r\n"),
    ("STRLEN a", ":1\r\n"),
    ("TTL a", ":-1\r\n"),
    ("TYPE a", "+string\r\n"),
    ("EXISTS a a", ":2\r\n"),
    ("MGET a nosuch", "*2\r\n$1\r\n1\r\n$-1\r\n"),
    ("DBSIZE", ":1\r\n"),
    ("KEYS *", "*1\r\n$1\r\na\r\n"),
];

#[test]
fn reads_leave_no_trace_in_the_log() {
    let one = one(ReplicaConfig::default());
    let mut client = one.served.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    let before = one.cluster.last_instance();
    for (line, expected) in READS {
        client.send(resp(line));
        client.expect(expected);
    }
    client.send("MULTI\r\nGET a\r\nTTL a\r\nEXEC\r\n");
    client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$1\r\n1\r\n:-1\r\n");
    client.send(resp("SCAN 0"));
    client.expect("*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n");
    assert_eq!(one.cluster.last_instance(), before);
    assert_eq!(
        one.served.control.status().reads_total,
        READS.len() as u64 + 2
    );
    client.send("INFO inband\r\nQUIT\r\n");
    assert!(client.rest().contains("reads:position"));
}

#[test]
fn reads_through_the_log_if_asked_for() {
    let one = one(ReplicaConfig::default());
    let mut client = one.served.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    assert_eq!(client.ask("INBAND.READS nonsense"), "-ERR syntax error");
    assert_eq!(client.ask("INBAND.READS Log"), "+OK");
    let before = one.cluster.last_instance();
    for (line, expected) in READS {
        client.send(resp(line));
        client.expect(expected);
    }
    assert_eq!(one.cluster.last_instance(), before + READS.len() as u64);
    assert_eq!(client.ask("INBAND.READS position"), "+OK");
    assert_eq!(client.ask("STRLEN a"), ":1");
    // A session stores its replies, so its reads go through the log.
    let id = client.ask("INBAND.SESSION NEW")[1..].to_string();
    assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
    assert_eq!(client.ask("STRLEN a"), ":1");
    assert_eq!(one.cluster.last_instance(), before + READS.len() as u64 + 2);
}

#[test]
fn a_replica_that_is_told_to_reads_through_the_log() {
    let one = one(ReplicaConfig {
        reads: ReadMode::Log,
        ..ReplicaConfig::default()
    });
    let mut client = one.served.client();
    let before = one.cluster.last_instance();
    assert_eq!(client.ask("STRLEN a"), ":0");
    assert_eq!(one.cluster.last_instance(), before + 1);
    assert_eq!(client.ask("INBAND.READS position"), "+OK");
    assert_eq!(client.ask("STRLEN a"), ":0");
    assert_eq!(client.ask("RESET"), "+RESET");
    assert_eq!(client.ask("STRLEN a"), ":0");
    assert_eq!(one.cluster.last_instance(), before + 2);
    client.send("INFO inband\r\nQUIT\r\n");
    assert!(client.rest().contains("reads:log"));
}

#[test]
fn a_replica_that_is_behind_does_not_answer_from_the_past() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    let (mut writer, mut reader) = (one.client(), two.client());
    assert_eq!(writer.ask("SET a 1"), "+OK");
    assert_eq!(reader.ask("STRLEN a"), ":1");
    cluster.pace();
    cluster.allow(0, 0, 1000);
    assert_eq!(writer.ask("SET a 22"), "+OK");
    assert_eq!(writer.ask("SET b 1"), "+OK");
    reader.send("STRLEN a\r\nSCAN 0\r\n");
    reader
        .stream
        .set_read_timeout(Some(Duration::from_millis(60)))
        .unwrap();
    assert!(std::io::Read::read(&mut reader.stream, &mut [0; 1]).is_err());
    // One of the two values is not enough.
    cluster.allow(1, 0, 1);
    assert!(std::io::Read::read(&mut reader.stream, &mut [0; 1]).is_err());
    cluster.unpace();
    reader
        .stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(reader.line(), ":2");
    reader.send("PING\r\n");
    let lines: Vec<String> = (0..9).map(|_| reader.line()).collect();
    assert_eq!(lines[3], "*2", "{lines:?}");
    assert_eq!(lines[8], "+PONG", "{lines:?}");
}

#[test]
fn a_connection_keeps_its_order() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    let mut client = two.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    // Its replica is behind: the read waits, and later commands must not overtake it.
    cluster.pace();
    cluster.allow(0, 0, 1000);
    assert_eq!(one.client().ask("SET b 1"), "+OK");
    let before = cluster.reads_asked();
    client.send("STRLEN a\r\n");
    wait_for("it is asked for", || cluster.reads_asked() > before);
    client.send("SET a 22\r\nSTRLEN a\r\nSET a 333\r\nSTRLEN a\r\n");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(cluster.last_instance(), 4, "the writes wait for the read");
    cluster.unpace();
    client.expect(":1\r\n+OK\r\n:2\r\n+OK\r\n:3\r\n");
    // In one pipeline, reads and writes go through the log together.
    let before = cluster.last_instance();
    client.send("STRLEN a\r\nSET a 1\r\nSTRLEN a\r\n");
    client.expect(":3\r\n+OK\r\n:1\r\n");
    assert!(cluster.last_instance() > before);
}

#[test]
fn reads_of_one_turn_share_one_question() {
    let one = one(ReplicaConfig::default());
    let mut client = one.served.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    let before = one.cluster.reads_asked();
    client.send(resp("GET a").repeat(200));
    client.expect("$1\r\n1\r\n".repeat(200));
    let asked = one.cluster.reads_asked() - before;
    assert!(asked <= 4, "{asked} questions for one pipeline");
}

#[test]
fn what_has_expired_by_the_clock_is_not_read() {
    let one = one(ReplicaConfig::default());
    let mut client = one.served.client();
    client.send("SET a 1 PX 50000\r\nSET b 1\r\nSET c 1 PX 900000\r\n");
    client.expect("+OK\r\n+OK\r\n+OK\r\n");
    let before = one.cluster.last_instance();
    assert_eq!(client.ask("EXISTS a b c"), ":3");
    assert_eq!(one.cluster.last_instance(), before);
    one.served.clock_offset_ms.store(60_000, Ordering::Relaxed);
    // The first doubtful read sends the rest of the pipeline through the log.
    client.send("GET b\r\nGET a\r\nGET b\r\nEXISTS a b c\r\nPING\r\n");
    client.expect("$1\r\n1\r\n$-1\r\n$1\r\n1\r\n:2\r\n+PONG\r\n");
    assert_eq!(one.cluster.last_instance(), before + 1);
    // After that the result is certain.
    client.send("GET a\r\nKEYS *\r\n");
    client.expect("$-1\r\n*2\r\n");
    client.line();
    client.line();
    client.line();
    client.line();
    assert_eq!(one.cluster.last_instance(), before + 1);
    one.served
        .clock_offset_ms
        .store(1_000_000, Ordering::Relaxed);
    client.send("KEYS *\r\nSET d 1\r\n");
    client.expect("*1\r\n$1\r\nb\r\n+OK\r\n");
}

/// There are no writes for 8 s, yet a key's remaining time decreases.
#[test]
fn what_a_key_has_left_goes_by_the_clock() {
    let one = one(ReplicaConfig::default());
    let mut client = one.served.client();
    let began = Instant::now();
    client.send("SET a 1 PX 60000\r\nSET b 1\r\n");
    client.expect("+OK\r\n+OK\r\n");
    // At most what the offset leaves; a slow machine has spent some more of it.
    // The replica reads its clock once per iteration of its loop, and cuts off fractions.
    let check = |answer: &str, unit_ms: u64, most_ms: u64| {
        let left_ms = answer[1..].parse::<u64>().unwrap() * unit_ms;
        let spent_ms = u64::try_from(began.elapsed().as_millis()).unwrap() + unit_ms + 10;
        assert!(left_ms <= most_ms, "{answer}: at most {most_ms} ms");
        assert!(
            left_ms + spent_ms >= most_ms,
            "{answer}: about {most_ms} ms"
        );
    };
    one.served.clock_offset_ms.store(8_000, Ordering::Relaxed);
    check(&client.ask("PTTL a"), 1, 52_000);
    check(&client.ask("TTL a"), 1_000, 52_000);
    one.served.clock_offset_ms.store(20_000, Ordering::Relaxed);
    client.send("MULTI\r\nGET b\r\nTTL a\r\nEXEC\r\n");
    client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$1\r\n1\r\n");
    check(&client.line(), 1_000, 40_000);
    // Commands that reveal no remaining time are answered without the log.
    let before = one.cluster.last_instance();
    one.served.clock_offset_ms.store(30_000, Ordering::Relaxed);
    assert_eq!(client.ask("TTL b"), ":-1");
    assert_eq!(client.ask("PTTL missing"), ":-2");
    assert_eq!(one.cluster.last_instance(), before);
}

#[test]
fn a_read_that_fails_says_so() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let machine: Machine = common::open(dir.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut log = cluster.join(&[0]).unwrap();
    // A replica asks when it starts, too.
    log.fail_next_reads(2, SubmitFailure::NotApplied("no majority answered"));
    let config = ReplicaConfig::default();
    let mut replica = Replica::new(config, machine, Box::new(log), vec![listener], None).unwrap();
    let control = replica.control();
    let mut client = Client::connect(address);
    client.send("GET n\r\nGET n\r\nPING\r\nGET n\r\n");
    while control.status().reads_total == 0 {
        replica.poll_once(Duration::from_millis(10)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(client.line(), "-TRYAGAIN not read: no majority answered");
    }
    client.expect("+PONG\r\n$-1\r\n");
}

#[test]
fn a_read_behind_a_marker_that_waits_ends_in_an_error() {
    let (cluster, dir) = (MemoryCluster::with_partitions(2), scratch());
    let config = ReplicaConfig {
        deadline_ms: 300,
        ..ReplicaConfig::default()
    };
    let served = Served::start(&cluster, dir.path(), config);
    let keys = key_of_each("k", 2);
    let (a, b) = (&keys[0], &keys[1]);
    cluster.hold_log(1);
    let mut writer = served.client();
    writer.send(resp(&format!("MSET {a} 2 {b} 2")));
    wait_for("it is held", || cluster.held() > 0);
    let mut client = served.client();
    client.send(resp(&format!("GET {a}")));
    assert_eq!(
        client.line(),
        "-TRYAGAIN not read: this replica is behind for 300 ms"
    );
    cluster.release_log_reversed(1);
    // On a machine that stalls, the first ones take longer than the deadline.
    wait_for("it is read", || {
        client.send(resp(&format!("GET {a}")));
        client.line() == "$1"
    });
    client.expect("2\r\n");
}

#[test]
fn a_client_that_hangs_up_while_it_reads() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    let mut client = two.client();
    assert_eq!(client.ask("PING"), "+PONG");
    cluster.pace();
    cluster.allow(0, 0, 1000);
    assert_eq!(one.client().ask("SET b 1"), "+OK");
    let before = cluster.reads_asked();
    client.send("GET b\r\nGET b\r\n");
    let mut scanner = two.client();
    scanner.send("SCAN 0\r\n");
    wait_for("they are taken", || {
        two.control.status().requests_total == 4 && cluster.reads_asked() > before
    });
    drop((client, scanner));
    cluster.unpace();
    wait_for("they are gone", || {
        two.control.status().connected_clients == 0
    });
    assert_eq!(two.client().ask("STRLEN b"), ":1");
    two.control.drain();
    assert!(two.control.drain_and_wait(Duration::from_secs(60)));
}
