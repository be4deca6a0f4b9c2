//! Transactions and other multi-key commands, in one partition and over several.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{key_of_each, resp, scratch, wait_for, Client, Served};
use inband_kv::limits::COLLECTION_STEPS_MAX;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

/// Requests by client, and the replies; `1>` and `2>` are two connections.
const SCRIPT: &str = "
    1> MULTI -> +OK
    1> SET a 1 -> +QUEUED
    1> INCR a -> +QUEUED
    1> INCR b -> +QUEUED
    1> EXEC -> *3 +OK :2 :1
    1> EXEC -> -ERR EXEC without MULTI
    1> DISCARD -> -ERR DISCARD without MULTI
    1> MULTI -> +OK
    1> EXEC -> *0
    1> MULTI -> +OK
    1> SET a 5 -> +QUEUED
    1> DISCARD -> +OK
    1> GET a -> $1 2
    1> MULTI -> +OK
    1> MULTI -> -ERR MULTI calls can not be nested
    1> WATCH a -> -ERR WATCH inside MULTI is not allowed
    1> GET a -> +QUEUED
    1> EXEC -> *1 $1 2
    1> MULTI -> +OK
    1> SET a 7 -> +QUEUED
    1> NOSUCH x -> -ERR unknown command 'NOSUCH', with args beginning with: 'x' 
    1> SET a 8 -> +QUEUED
    1> EXEC -> -EXECABORT Transaction discarded because of previous errors.
    1> GET a -> $1 2
    1> MULTI -> +OK
    1> GET -> -ERR wrong number of arguments for 'get' command
    1> EXEC -> -EXECABORT Transaction discarded because of previous errors.
    1> MULTI -> +OK
    1> SET a 9 -> +QUEUED
    1> EXEC x -> -EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command
    1> EXEC -> -ERR EXEC without MULTI
    1> GET a -> $1 2
    1> SET t text -> +OK
    1> MULTI -> +OK
    1> SET a 10 -> +QUEUED
    1> INCR t -> +QUEUED
    1> SET a 11 NONSENSE -> +QUEUED
    1> PING -> +QUEUED
    1> ECHO hi -> +QUEUED
    1> UNWATCH -> +QUEUED
    1> INCR a -> +QUEUED
    1> EXEC -> *7 +OK -ERR value is not an integer or out of range -ERR syntax error +PONG $2 hi +OK :11
    1> WATCH a b -> +OK
    2> GET a -> $2 11
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *1 :12
    1> WATCH a b -> +OK
    2> SET b 1 -> +OK
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *-1
    1> GET a -> $2 12
    1> WATCH a -> +OK
    1> INCR a -> :13
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *-1
    1> WATCH a -> +OK
    2> SET a 13 -> +OK
    1> MULTI -> +OK
    1> EXEC -> *-1
    1> WATCH a -> +OK
    2> INCR a -> :14
    1> UNWATCH -> +OK
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *1 :15
    1> WATCH a -> +OK
    2> INCR a -> :16
    1> MULTI -> +OK
    1> DISCARD -> +OK
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *1 :17
    1> WATCH nosuch -> +OK
    2> SET nosuch 1 -> +OK
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *-1
    1> WATCH nosuch -> +OK
    2> DEL nosuch -> :1
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *-1
    1> WATCH a -> +OK
    2> EXPIRE a 100 -> :1
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *-1
    1> WATCH a -> +OK
    2> FLUSHALL -> +OK
    1> MULTI -> +OK
    1> INCR a -> +QUEUED
    1> EXEC -> *-1
    1> WATCH a a b -> +OK
    1> MULTI -> +OK
    1> MSET a 1 b 2 c 3 -> +QUEUED
    1> MGET a b c d -> +QUEUED
    1> DEL a b -> +QUEUED
    1> EXISTS a b c -> +QUEUED
    1> DBSIZE -> +QUEUED
    1> EXEC -> *5 +OK *4 $1 1 $1 2 $1 3 $-1 :2 :1 :1
    1> MULTI -> +OK
    1> SET a 1 PX 100000 -> +QUEUED
    1> PERSIST a -> +QUEUED
    1> TTL a -> +QUEUED
    1> KEYS a* -> +QUEUED
    1> FLUSHALL -> +QUEUED
    1> KEYS * -> +QUEUED
    1> EXEC -> *6 +OK :1 :-1 *1 $1 a +OK *0
    1> MULTI -> +OK
    1> SET a 9 -> +QUEUED
    1> RESET -> +RESET
    1> EXEC -> -ERR EXEC without MULTI
    1> EXISTS a -> :0
    1> MULTI now -> -ERR wrong number of arguments for 'multi' command
    1> WATCH -> -ERR wrong number of arguments for 'watch' command
";

fn play(clients: &mut [Client; 2]) {
    for line in SCRIPT
        .lines()
        .map(str::trim_start)
        .filter(|l| !l.is_empty())
    {
        let (who, rest) = line.split_once("> ").expect("a client");
        let (command, expected) = rest.split_once(" -> ").expect("an arrow");
        let client = &mut clients[who.parse::<usize>().expect("a number") - 1];
        client.send(resp(command));
        for part in expected_lines(expected) {
            assert_eq!(client.line(), part.trim_end(), "{line}");
        }
    }
}

/// Splits the lines of a reply that are written as one.
fn expected_lines(expected: &str) -> Vec<String> {
    if expected.starts_with('-') {
        return vec![expected.into()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in expected.split(' ') {
        let is_text = lines.last().is_some_and(|l| l.starts_with("-ERR"))
            && !word.starts_with(['+', '-', ':', '*', '$']);
        match lines.last_mut().filter(|_| is_text) {
            Some(last) => *last += &format!(" {word}"),
            None => lines.push(word.into()),
        }
    }
    lines
}

fn start(partitions: usize) -> (MemoryCluster, tempfile::TempDir, Served) {
    let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    (cluster, dir, served)
}

#[test]
fn transactions_in_one_partition() {
    let (_cluster, _dir, served) = start(1);
    play(&mut [served.client(), served.client()]);
}

#[test]
fn transactions_over_partitions() {
    for partitions in [2, 3, 8] {
        let (_cluster, _dir, served) = start(partitions);
        play(&mut [served.client(), served.client()]);
    }
}

#[test]
fn a_real_redis_answers_the_same() {
    let dir = scratch();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let redis = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn();
    let Ok(mut redis) = redis else {
        inband_testing::not_run("redis-server is not on the PATH");
        return;
    };
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    wait_for("it is up", || std::net::TcpStream::connect(address).is_ok());
    let outcome = std::panic::catch_unwind(|| {
        play(&mut [Client::connect(address), Client::connect(address)]);
    });
    redis.kill().unwrap();
    redis.wait().unwrap();
    outcome.expect("the script is what Redis does");
}

#[test]
fn a_pipeline_sees_its_own_writes_over_partitions() {
    let (_cluster, _dir, served) = start(4);
    let keys = key_of_each("k", 4);
    let mut client = served.client();
    let (mut sent, mut expected) = (String::new(), String::new());
    for i in 10..60 {
        for key in &keys {
            sent += &resp(&format!("SET {key} {i}"));
            expected += "+OK\r\n";
        }
        sent += &resp(&format!("MGET {}", keys.join(" ")));
        expected += &format!("*4\r\n{}", format!("$2\r\n{i}\r\n").repeat(4));
        sent += &resp(&format!("MSET {} 1 {} 2", keys[0], keys[3]));
        sent += &resp("DBSIZE");
        sent += &resp(&format!("GET {}", keys[3]));
        expected += "+OK\r\n:4\r\n$1\r\n2\r\n";
        sent += "PING\r\n";
        expected += "+PONG\r\n";
    }
    client.send(sent);
    client.expect(expected);
}

#[test]
fn many_connections_over_partitions() {
    let cluster = MemoryCluster::with_partitions(3);
    let dirs = [scratch(), scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let keys = key_of_each("k", 3);
    let clients: Vec<_> = (0..12)
        .map(|i| {
            let (mut client, keys) = (served[i % 3].client(), keys.clone());
            std::thread::spawn(move || {
                for step in 0..60 {
                    match (i + step) % 3 {
                        0 => {
                            let value = format!("{i}-{step}");
                            let pairs: Vec<_> =
                                keys.iter().map(|key| format!("{key} {value}")).collect();
                            client.send(resp(&format!("MSET {}", pairs.join(" "))));
                            client.expect("+OK\r\n");
                        }
                        1 => {
                            client.send(resp(&format!("MGET {}", keys.join(" "))));
                            assert_eq!(client.line(), "*3");
                            let mut seen = Vec::new();
                            for _ in 0..3 {
                                if client.line() != "$-1" {
                                    seen.push(client.line());
                                }
                            }
                            assert!(seen.is_empty() || seen.len() == 3, "{seen:?}");
                            assert!(seen.iter().all(|v| *v == seen[0]), "{seen:?}");
                        }
                        _ => {
                            let key = format!("n{}", (i + step) % 5);
                            client.send(resp(&format!("INCR {key}")));
                            assert!(client.line().starts_with(':'));
                        }
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("no panic");
    }
    wait_for("all are equal", || {
        let digests: Vec<_> = served.iter().map(|s| s.control.digest().unwrap()).collect();
        digests.iter().all(|digest| *digest == digests[0])
    });
}

#[test]
fn another_replica_repeats_a_marker() {
    let cluster = MemoryCluster::with_partitions(2);
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let config = ReplicaConfig {
        replica_index: 1,
        ..ReplicaConfig::default()
    };
    let two = Served::start(&cluster, dirs[1].path(), config);
    let keys = key_of_each("k", 2);
    let mut client = one.client();
    assert_eq!(client.ask(&format!("SET {} 1", keys[0])), "+OK");
    // The marker for the second partition is lost, together with its sender.
    cluster.hold_log(1);
    client.send(resp(&format!("MSET {} 2 {} 2", keys[0], keys[1])));
    wait_for("it is held", || cluster.held() > 0);
    drop(one);
    cluster.lose_held();
    let mut client = two.client();
    client.send(resp(&format!("MGET {} {}", keys[0], keys[1])));
    client.expect("*2\r\n$1\r\n2\r\n$1\r\n2\r\n");
    // The first replica comes back and converges.
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
}

#[test]
fn a_partition_that_is_gone_ends_in_an_error_not_in_silence() {
    let (cluster, dir) = (MemoryCluster::with_partitions(2), scratch());
    let config = ReplicaConfig {
        deadline_ms: 300,
        ..ReplicaConfig::default()
    };
    let served = Served::start(&cluster, dir.path(), config);
    let keys = key_of_each("k", 2);
    let mut client = served.client();
    cluster.hold_log(1);
    client.send(resp(&format!("MSET {} 2 {} 2", keys[0], keys[1])));
    let unknown = "-UNKNOWN outcome unknown: not applied here within 300 ms";
    assert!(client.line().starts_with(unknown));
    // The other partition stands at its marker.
    client.send(resp(&format!("APPEND {} x", keys[0])));
    assert!(client.line().starts_with(unknown));
    assert_eq!(served.control.status().outcomes_unknown_total, 2);
    cluster.release_log_reversed(1);
    // On a machine that stalls, the first ones take longer than the deadline.
    wait_for("it is read", || {
        client.send(resp(&format!("MGET {} {}", keys[0], keys[1])));
        client.line() == "*2"
    });
    client.expect("$2\r\n2x\r\n$1\r\n2\r\n");
}

#[test]
fn a_late_replica_of_several_partitions_catches_up() {
    let cluster = MemoryCluster::with_partitions(3);
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let keys = key_of_each("k", 3);
    let mut client = one.client();
    for i in 0..100 {
        client.send(resp(&format!("SET {}{i} v", keys[i % 3])));
        client.expect("+OK\r\n");
    }
    client.send(resp(&format!("MSET {} 1 {} 1", keys[0], keys[2])));
    client.expect("+OK\r\n");
    cluster.keep_entries(8);
    cluster.set_checkpoint_peers(vec![one.checkpoint_address]);
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    wait_for("it is installed", || {
        two.control.status().checkpoints_installed_total > 0
    });
    client.send(resp(&format!("MSET {} 2 {} 2", keys[1], keys[2])));
    client.expect("+OK\r\n");
    let mut client = two.client();
    client.send(resp(&format!("MGET {}", keys.join(" "))));
    client.expect("*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n2\r\n");
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
    let status = two.control.status();
    assert!(status.loading_bytes_total > 0);
    assert_eq!(status.loading_bytes, status.loading_bytes_total);
    // It restarts from what it installed.
    let two = two.restart(&cluster, dirs[1].path(), ReplicaConfig::default());
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
}

#[test]
fn sessions_over_partitions_retry_at_another_replica() {
    let cluster = MemoryCluster::with_partitions(3);
    let dirs = [scratch(), scratch()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let config = ReplicaConfig {
        replica_index: 1,
        ..ReplicaConfig::default()
    };
    let two = Served::start(&cluster, dirs[1].path(), config);
    let keys = key_of_each("k", 3);
    let mut client = one.client();
    let id = client.ask("INBAND.SESSION NEW")[1..].to_string();
    let other = client.ask("INBAND.SESSION NEW")[1..].to_string();
    assert_ne!(id, other);
    let all = keys.join(" ");
    let script = |client: &mut Client| -> Vec<String> {
        client.send(resp(&format!("INBAND.SESSION {id} 1")));
        client.send(resp(&format!("INCR {}", keys[0])));
        client.send(resp(&format!("INCR {}", keys[1])));
        client.send(resp(&format!("DEL {all}")));
        client.send("MULTI\r\n");
        client.send(resp(&format!("INCR {}", keys[0])));
        client.send(resp(&format!("INCR {}", keys[2])));
        client.send("EXEC\r\n");
        (0..10).map(|_| client.line()).collect()
    };
    let first = script(&mut client);
    let expected = [
        "+OK", ":1", ":1", ":2", "+OK", "+QUEUED", "+QUEUED", "*2", ":1", ":1",
    ];
    assert_eq!(first, expected);
    drop(client);
    assert_eq!(script(&mut two.client()), expected);
    let mut client = two.client();
    client.send(resp(&format!("MGET {all}")));
    client.expect("*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n1\r\n");
}

/// Replicas visit keys in different orders; the reply that a session keeps is a part of their common state.
#[test]
fn keys_in_a_session_are_the_same_on_every_replica() {
    let cluster = MemoryCluster::with_partitions(2);
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let id = served[0].client().ask("INBAND.SESSION NEW")[1..].to_string();
    let script = |served: &Served| -> Vec<String> {
        let mut client = served.client();
        client.send(resp(&format!("INBAND.SESSION {id} 1")));
        client.send("MULTI\r\n");
        (0..12).for_each(|n| client.send(resp(&format!("SET k:{n} v"))));
        client.send("KEYS k:*\r\nEXEC\r\nKEYS k:*\r\n");
        let lines = 2 + 13 + 1 + 12 + 2 * (1 + 2 * 12);
        (0..lines).map(|_| client.line()).collect()
    };
    let first = script(&served[0]);
    let keys: Vec<&String> = first[29..].iter().filter(|l| l.starts_with("k:")).collect();
    assert!(
        keys[..12].is_sorted() && keys[..12] == keys[12..],
        "{keys:?}"
    );
    assert_eq!(script(&served[1]), first);
}

/// Every replica executes a transaction in one step.
#[test]
fn keys_in_a_transaction_are_bounded() {
    let (_cluster, _dir, served) = start(1);
    let mut client = served.client();
    (0..2000).for_each(|n| client.send(resp(&format!("SET {n} v"))));
    (0..2000).for_each(|_| client.expect("+OK\r\n"));
    // Each of these visits all keys.
    let count = usize::try_from(COLLECTION_STEPS_MAX / (4 * 2000)).unwrap() + 2;
    client.send("MULTI\r\nSET written 1\r\n");
    client.send("KEYS nosuch\r\n".repeat(count));
    client.send("EXEC\r\n");
    client.expect("+OK\r\n");
    (0..=count).for_each(|_| client.expect("+QUEUED\r\n"));
    client.expect(format!("*{}\r\n+OK\r\n", count + 1));
    let replies: Vec<String> = (0..count).map(|_| client.line()).collect();
    assert_eq!(replies[0], "*0");
    let last = replies.last().unwrap();
    assert!(last.contains("over the limit of 16000000 steps"), "{last}");
    assert_eq!(client.ask("EXISTS written"), ":1");
    let text = "a".repeat(30_000);
    (0..20).for_each(|n| client.send(resp(&format!("SET {text}{n} v"))));
    (0..20).for_each(|_| client.expect("+OK\r\n"));
    let slow = format!("*{}b", &text[..15_000]);
    let refused = client.ask(&format!("KEYS {slow}"));
    assert!(refused.starts_with("-ERR a command"), "{refused}");
    let refused = client.ask(&format!("SCAN 0 COUNT 1000 MATCH {slow}"));
    assert!(refused.starts_with("-ERR a command"), "{refused}");
}

#[test]
fn draining_waits_for_commands_over_partitions() {
    let (cluster, _dir, served) = start(2);
    let keys = key_of_each("k", 2);
    let mut client = served.client();
    cluster.hold_log(1);
    client.send(resp(&format!("MSET {} 2 {} 2", keys[0], keys[1])));
    wait_for("it is held", || cluster.held() > 0);
    assert!(!served.control.drain_and_wait(Duration::from_millis(50)));
    cluster.release_log_reversed(1);
    client.expect("+OK\r\n");
    assert!(served.control.drain_and_wait(Duration::from_secs(60)));
}

#[test]
fn a_transaction_is_bounded() {
    let (_cluster, _dir, served) = start(2);
    let mut client = served.client();
    assert_eq!(client.ask("MULTI"), "+OK");
    let mut last = String::new();
    for i in 0..3000 {
        last = client.ask(&format!("SET key{i} {}", "v".repeat(5000)));
        if last != "+QUEUED" {
            break;
        }
    }
    assert!(last.starts_with("-ERR transaction of"), "{last}");
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("DBSIZE"), ":0");
    assert_eq!(client.ask("MULTI"), "+OK");
    assert_eq!(
        client.ask("SCAN 0"),
        "-ERR SCAN is not allowed inside a transaction"
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
}
