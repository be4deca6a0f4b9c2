//! Replicas over real sockets and an in-memory log.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{self, resp, wait_for, Client, Served};
use inband_kv::limit_hits::LimitHit;
use inband_kv::limits::{PENDING_COMMANDS_MAX, UNWRITTEN_BEHIND_INSTANCES_MAX};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

/// A time limit that is not reached.
const LONG: Duration = Duration::from_secs(60);

pub struct One {
    pub served: Served,
    pub cluster: MemoryCluster,
    _dir: tempfile::TempDir,
}

pub fn one_with(config: ReplicaConfig) -> One {
    let (cluster, dir) = (MemoryCluster::new(), tempfile::tempdir().unwrap());
    One {
        served: Served::start(&cluster, dir.path(), config),
        cluster,
        _dir: dir,
    }
}

pub fn one() -> One {
    one_with(ReplicaConfig::default())
}

#[test]
fn commands_answered_here() {
    let one = one();
    let mut client = one.served.client();
    for (line, expected) in [
        ("PING", "+PONG\r\n"),
        ("PING hi", "$2\r\nhi\r\n"),
        (
            "PING a b",
            "-ERR wrong number of arguments for 'ping' command\r\n",
        ),
        ("ECHO hi", "$2\r\nhi\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        ("SELECT x", "-ERR invalid DB index\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT SETNAME me", "+OK\r\n"),
        ("CLIENT GETNAME", "$2\r\nme\r\n"),
        ("CLIENT ID", ":1\r\n"),
        ("CLIENT SETINFO LIB-NAME x", "+OK\r\n"),
        (
            "CLIENT SETINFO LIB-FOO x",
            "-ERR Unrecognized option 'LIB-FOO'\r\n",
        ),
        ("CLIENT NO-EVICT ON", "+OK\r\n"),
        ("CLIENT NO-TOUCH MAYBE", "-ERR syntax error\r\n"),
        ("CLIENT REPLY ON", "+OK\r\n"),
        (
            "CLIENT FOO",
            "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n",
        ),
        (
            "CLIENT SETNAME",
            "-ERR wrong number of arguments for 'client|setname' command\r\n",
        ),
        ("COMMAND COUNT", ":182\r\n"),
        ("COMMAND INFO nosuch", "*1\r\n$-1\r\n"),
        ("COMMAND DOCS nosuch", "*0\r\n"),
        ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        (
            "CONFIG GET appendonl?",
            "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n",
        ),
        (
            "CONFIG GET",
            "-ERR wrong number of arguments for 'config|get' command\r\n",
        ),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        (
            "HELLO x",
            "-ERR Protocol version is not an integer or out of range\r\n",
        ),
        ("HELLO 2 FOO", "-ERR Syntax error in HELLO option 'FOO'\r\n"),
        ("SCAN x", "-ERR invalid cursor\r\n"),
        ("SCAN 0 COUNT 0", "-ERR syntax error\r\n"),
        ("SCAN 0 COUNT", "-ERR syntax error\r\n"),
        ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("KEYS *", "*0\r\n"),
        ("SET k1 v", "+OK\r\n"),
        (
            "SCAN 0 MATCH k? TYPE string",
            "*2\r\n$1\r\n0\r\n*1\r\n$2\r\nk1\r\n",
        ),
        ("SCAN 0 TYPE list", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("KEYS k[1]", "*1\r\n$2\r\nk1\r\n"),
        (
            "FOO a",
            "-ERR unknown command 'FOO', with args beginning with: 'a' \r\n",
        ),
        ("RESET", "+RESET\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("QUIT", "+OK\r\n"),
    ] {
        client.send(if line.len() % 2 == 0 {
            resp(line)
        } else {
            format!("{line}\r\n")
        });
        client.expect(expected);
    }
    assert_eq!(client.rest(), "");
    let mut client = one.served.client();
    assert!(client.ask("HELLO 3 AUTH a b").starts_with("-WRONGPASS"));
    assert_eq!(client.ask("AUTH default anything"), "+OK");
    // Without a configured password, the default user may send any password, as in Redis.
    client.send("HELLO 2 AUTH default anything SETNAME me\r\n");
    assert_eq!(client.line(), "*14");
    (0..25).for_each(|_| drop(client.line()));
    assert_eq!(client.ask("CLIENT GETNAME"), "$2");
    assert_eq!(client.line(), "me");
    assert!(client
        .ask("AUTH x")
        .starts_with("-ERR AUTH <password> called without"));
    client.send("HELLO 3 SETNAME you\r\nGET nosuch\r\nCONFIG GET save\r\nCLIENT GETNAME\r\n");
    client.expect("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:2\r\n");
    client.expect(
        "$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
    );
    client.expect("_\r\n%1\r\n$4\r\nsave\r\n$0\r\n\r\n$3\r\nyou\r\n");
}

#[test]
fn info_tells_what_is_there() {
    let one = one();
    let mut client = one.served.client();
    client.ask("SET a 1");
    client.ask("SET b 1 EX 100");
    one.served.control.sync().unwrap();
    client.send("INFO\r\nINFO keyspace\r\nCLIENT LIST\r\nQUIT\r\n");
    let text = client.rest();
    let number = |field: &str| {
        let value = text
            .split(&format!("\r\n{field}:"))
            .nth(1)
            .expect("it is there");
        let end = value.find('\r').unwrap_or(value.len());
        value[..end].parse::<f64>().expect("a number")
    };
    assert!(number("used_memory") > 1e6 && number("used_memory_rss") > 1e6);
    assert!(number("used_cpu_user") > 0.0);
    for part in [
        "# Server",
        "redis_version:7.2.0",
        "connected_clients:1",
        "role:master",
        "# Inband",
        "applied_instance:3",
        "db0:keys=2,expires=1,avg_ttl=0",
        "$",
        "id=1 addr=127.0.0.1:",
        "resp=2",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert_eq!(text.matches("# Server").count(), 1);
    assert_eq!(text.matches("# Keyspace").count(), 2);
}

#[test]
fn pipelined_replies_come_in_order() {
    let one = one();
    let mut client = one.served.client();
    let (mut sent, mut expected) = (String::new(), String::new());
    for i in 1..=3000 {
        sent += &resp("INCR n");
        expected += &format!(":{i}\r\n");
        if i % 10 == 0 {
            sent += "PING\r\n";
            expected += "+PONG\r\n";
            sent += &resp("FOO");
            expected += "-ERR unknown command 'FOO', with args beginning with: \r\n";
            sent += &resp(&format!("SET k{} {}", i % 7, "v".repeat(i % 900)));
            expected += "+OK\r\n";
            sent += &resp(&format!("STRLEN k{}", i % 7));
            expected += &format!(":{}\r\n", i % 900);
        }
    }
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(sent.as_bytes()).unwrap());
    client.expect(expected);
    sender.join().unwrap();
    wait_for("nothing in flight", || {
        one.served.control.status().values_in_flight == 0
    });
    let status = one.served.control.status();
    assert_eq!(status.latency_us_buckets.iter().sum::<u64>(), 3000 + 600);
}

#[test]
fn many_connections_share_values() {
    let one = one();
    let mut clients: Vec<Client> = (0..40).map(|_| one.served.client()).collect();
    wait_for("all are accepted", || {
        one.served.control.status().connected_clients == 40
    });
    one.cluster.hold();
    for client in &mut clients {
        client.send(resp("INCR n").repeat(5));
    }
    wait_for("all is read", || {
        one.served.control.status().requests_total == 200
    });
    // A few were submitted at once; the others wait to fill values.
    let held_max = inband_kv::limits::VALUES_IN_FLIGHT_BEFORE_FILLING;
    assert!(
        (1..=held_max).contains(&one.cluster.held()),
        "{} values",
        one.cluster.held()
    );
    one.cluster.release_reversed();
    let mut seen: Vec<u64> = Vec::new();
    for client in &mut clients {
        let replies: Vec<u64> = (0..5)
            .map(|_| client.line()[1..].parse().expect("a number"))
            .collect();
        assert!(replies.is_sorted(), "{replies:?}");
        seen.extend(replies);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=200).collect::<Vec<_>>());
}

#[test]
fn a_connection_has_one_undecided_value() {
    let one = one();
    let mut client = one.served.client();
    one.cluster.hold();
    let big = "v".repeat(1000);
    client.send(
        (1..=5)
            .map(|i| resp(&format!("SET k {i}{big}")))
            .collect::<String>(),
    );
    wait_for("a value is held", || one.cluster.held() == 1);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(one.cluster.held(), 1);
    one.cluster.release_reversed();
    client.expect("+OK\r\n".repeat(5));
    client.send(resp("GET k"));
    client.expect(format!("$1001\r\n5{big}\r\n"));
}

#[test]
fn clients_over_the_limit_are_told_so() {
    let one = one_with(ReplicaConfig {
        clients_max: 3,
        ..ReplicaConfig::default()
    });
    let mut clients: Vec<Client> = (0..3).map(|_| one.served.client()).collect();
    assert!(clients
        .iter_mut()
        .all(|client| client.ask("PING") == "+PONG"));
    for _ in 0..20 {
        assert_eq!(
            one.served.client().rest(),
            "-ERR max number of clients reached\r\n"
        );
    }
    drop(clients);
    wait_for("they are gone", || {
        one.served.control.status().connected_clients == 0
    });
    assert_eq!(one.served.client().ask("PING"), "+PONG");
    assert_eq!(one.served.control.status().hits(LimitHit::Clients), 20);
}

#[test]
fn half_commands_garbage_and_hangups() {
    let one = one();
    let mut bystander = one.served.client();
    let mut half = one.served.client();
    half.send("*2\r\n$3\r\nGET\r\n$100\r\nabc");
    for garbage in [
        "*1\r\n*1\r\n*1\r\n",
        "*99999999\r\n",
        "$5\r\n\r\n*1\r\n$x\r\n",
        "*1\r\n$1\r\nabcd",
    ] {
        let mut client = one.served.client();
        client.send(garbage);
        let rest = client.rest();
        assert!(rest.contains("Protocol error"), "{garbage:?}: {rest}");
    }
    // Nested arrays would overflow the stack of a parser that recurses.
    let mut client = one.served.client();
    client.send("*1\r\n".repeat(10_000));
    assert!(client.rest().contains("expected '$', got '*'"));
    for seed in 0..50u64 {
        let mut client = one.served.client();
        let bytes: Vec<u8> = (0..500u64)
            .map(|i| {
                (seed * 7919 + i * i * 31)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .to_be_bytes()[0]
            })
            .collect();
        // The server may close the connection while we still send.
        let _ = client.stream.write_all(&bytes);
    }
    // Requests before the end of the stream are answered.
    let mut client = one.served.client();
    client.send("SET a 1\r\nGET a\r\nGET");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.rest(), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(bystander.ask("PING"), "+PONG");
    drop(half);
    wait_for("they are gone", || {
        one.served.control.status().connected_clients == 1
    });
    // A disconnect with a value in flight.
    one.cluster.hold();
    let mut client = one.served.client();
    client.send(resp("INCR n"));
    wait_for("it is held", || one.cluster.held() == 1);
    drop(client);
    let mut next = one.served.client();
    one.cluster.release_reversed();
    assert_eq!(next.ask("INCR n"), ":2");
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let one = one();
    let mut client = one.served.client();
    client.send(resp(&format!("SET k {}", "v".repeat(1200))));
    client.expect("+OK\r\n");
    client
        .stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let gets = resp("GET k").repeat(1000);
    let mut sent = 0;
    while client.stream.write_all(gets.as_bytes()).is_ok() {
        sent += 1000;
        assert!(sent < 1_000_000, "it takes everything");
    }
    let mut other = one.served.client();
    let list = other.ask("PING");
    assert_eq!(list, "+PONG");
    other.send("CLIENT LIST\r\nQUIT\r\n");
    let list = other.rest();
    let line = list
        .lines()
        .find(|line| line.starts_with("id=1 "))
        .expect("the first client");
    let unsent: usize = line
        .split("obl=")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(unsent < 512 * 1024 + PENDING_COMMANDS_MAX * 1300, "{line}");
    // Once it reads, it gets all its replies.
    let reply = format!("$1200\r\n{}\r\n", "v".repeat(1200));
    for _ in 0..5000 {
        client.expect(&reply);
    }
}

#[test]
fn outcomes_that_are_not_known() {
    use inband_host::log::{ReplicatedLog, SubmitFailure};
    // Driven step by step, because failures are injected into the log between the turns.
    let (cluster, dir) = (MemoryCluster::new(), tempfile::tempdir().unwrap());
    let machine = common::open(dir.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut log = cluster.join(&[0]).unwrap();
    log.fail_next(SubmitFailure::OutcomeUnknown(250), true);
    assert!(log.submit_room(0) > 0);
    let config = ReplicaConfig::default();
    let mut replica =
        inband_kv::replica::Replica::new(config, machine, Box::new(log), vec![listener], None)
            .unwrap();
    let mut client = Client::connect(address);
    client.send("INCR n\r\n");
    let control = replica.control();
    while control.status().outcomes_unknown_total == 0 {
        replica.poll_once(Duration::from_millis(10)).unwrap();
    }
    let reply = client.line();
    assert!(
        reply.starts_with("-UNKNOWN outcome unknown: no decision within 250 ms"),
        "{reply}"
    );
    client.send("INCR n\r\n");
    while replica.machine().store(0).applied() < 3 {
        replica.poll_once(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(client.line(), ":2");
}

#[test]
fn replies_do_not_wait_for_what_logs_are_told() {
    let (cluster, dir) = (MemoryCluster::new(), tempfile::tempdir().unwrap());
    let machine = common::open(dir.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let log = Box::new(cluster.join(&[0]).unwrap());
    let config = ReplicaConfig::default();
    let mut replica =
        inband_kv::replica::Replica::new(config, machine, log, vec![listener], None).unwrap();
    let mut client = Client::connect(address);
    client.send("SET a 1\r\n");
    while replica.machine().keys() == 0 {
        assert_eq!(cluster.applied(0, 0), replica.machine().written()[0]);
        replica.poll_once(Duration::from_millis(10)).unwrap();
    }
    // A crash of this replica would lose it here, but the acceptors still have it.
    assert_eq!(client.line(), "+OK");
    let machine = replica.machine();
    assert!(machine.written()[0] < machine.applied()[0]);
    assert_eq!(cluster.applied(0, 0), machine.written()[0]);
    // Without further commands it is written soon.
    while replica.machine().unwritten() > 0 {
        replica.poll_once(Duration::from_secs(1)).unwrap();
    }
    assert_eq!(cluster.applied(0, 0), replica.machine().applied()[0]);
    // With many commands it is written before long, and reports never run ahead of writes.
    let mut others: Vec<Client> = (0..20).map(|_| Client::connect(address)).collect();
    for round in 0..200 {
        for other in &mut others {
            other.send(resp(&format!("SET key{round} {}", "v".repeat(700))));
        }
        replica.poll_once(Duration::ZERO).unwrap();
        let machine = replica.machine();
        // One write under way, and what is applied meanwhile; each may exceed the limit by a turn's commands.
        let limit = UNWRITTEN_BEHIND_INSTANCES_MAX + others.len() as u64;
        assert!(machine.unwritten() <= 2 * limit);
        assert!(cluster.applied(0, 0) <= machine.written()[0]);
    }
    assert!(cluster.applied(0, 0) > 1000);
}

#[test]
fn sessions_retry_exactly_once_over_replicas() {
    let cluster = MemoryCluster::new();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let config = ReplicaConfig {
        replica_index: 1,
        ..ReplicaConfig::default()
    };
    let two = Served::start(&cluster, dirs[1].path(), config);
    let mut client = one.client();
    let id = client.ask("INBAND.SESSION NEW")[1..].to_string();
    assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
    assert_eq!(client.ask("INCR n"), ":1");
    assert_eq!(client.ask("PING"), "+PONG");
    assert_eq!(client.ask("INCR n"), ":2");
    assert_eq!(
        client.ask("INCR n nonsense"),
        "-ERR wrong number of arguments for 'incr' command"
    );
    assert_eq!(client.ask("INCR n"), ":3");
    drop(client);
    // The connection was lost; the client retries the last two at the other replica.
    let mut client = two.client();
    assert_eq!(client.ask(&format!("INBAND.SESSION {id} 2")), "+OK");
    assert_eq!(client.ask("INCR n"), ":2");
    assert_eq!(client.ask("INCR n"), ":3");
    assert_eq!(client.ask("INCR n"), ":4");
    assert_eq!(client.ask(&format!("INBAND.SESSION {id} 1")), "+OK");
    assert!(client.ask("INCR n").starts_with("-FORGOTTEN"));
    assert_eq!(client.ask("INBAND.SESSION 99 1"), "+OK");
    assert!(client.ask("INCR n").starts_with("-NOSESSION"));
    assert_eq!(two.client().ask("GET n"), "$1");
    wait_for("both applied it all", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
}

#[test]
fn proposers_that_repeat_or_lose_their_session() {
    let cluster = MemoryCluster::new();
    cluster.decide_twice();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    let mut client = one.client();
    for i in 1..=20 {
        assert_eq!(client.ask("INCR n"), format!(":{i}"));
    }
    cluster.decide_noops(5);
    cluster.expire_proposer_sessions();
    for i in 21..=30 {
        assert_eq!(client.ask("INCR n"), format!(":{i}"));
    }
    assert_eq!(two.client().ask("INCR n"), ":31");
    wait_for("both applied it all", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
}

#[test]
fn an_idle_replica_ticks_while_keys_are_due() {
    let one = one();
    let mut client = one.served.client();
    assert_eq!(client.ask("SET a 1 PX 60000"), "+OK");
    assert_eq!(client.ask("SET b 1"), "+OK");
    let before = one.cluster.last_instance();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(
        one.cluster.last_instance(),
        before,
        "nothing is due, nobody ticks"
    );
    one.served.clock_offset_ms.store(61_000, Ordering::Relaxed);
    wait_for("the key is deleted", || {
        one.served.control.status().keys == 1
    });
    assert_eq!(one.cluster.last_instance(), before + 1);
    assert_eq!(client.ask("KEYS *"), "*1");
}

/// A replica is told to stop while a command is in flight.
#[test]
fn who_waits_is_answered_before_the_end() {
    let one = one();
    let mut client = one.served.client();
    assert_eq!(client.ask("PING"), "+PONG");
    one.cluster.hold();
    client.send("SET a 1\r\n");
    wait_for("it is held", || one.cluster.held() == 1);
    let control = one.served.control.clone();
    let stops = std::thread::spawn(move || control.drain_and_stop(LONG));
    std::thread::sleep(Duration::from_millis(100));
    one.cluster.release_reversed();
    assert_eq!(client.line(), "+OK");
    stops.join().unwrap();
    one.served.stop();
}

#[test]
fn nobody_is_waited_for_longer_than_the_bound() {
    let one = one();
    let mut client = one.served.client();
    one.cluster.hold();
    client.send("SET a 1\r\n");
    wait_for("it is held", || one.cluster.held() == 1);
    let begun = std::time::Instant::now();
    one.served
        .control
        .drain_and_stop(Duration::from_millis(200));
    one.served.stop();
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn draining_answers_what_was_taken() {
    let one = one();
    let mut client = one.served.client();
    one.cluster.hold();
    client.send(resp("INCR n"));
    wait_for("it is held", || one.cluster.held() == 1);
    one.served.control.drain();
    assert!(!one.served.control.drain_and_wait(Duration::from_millis(30)));
    client.send("INCR n\r\nPING\r\n");
    one.cluster.release_reversed();
    let refused = "-LOADING this replica takes no more commands because it is to be stopped; use another replica";
    client.expect(format!(":1\r\n{refused}\r\n+PONG\r\n"));
    assert!(one.served.control.drain_and_wait(LONG));
    one.served.control.sync().unwrap();
    // A new client is refused, and not left waiting.
    let mut late = one.served.client();
    assert_eq!(late.ask("PING"), "+PONG");
    assert_eq!(late.ask("GET n"), refused);
    one.served.stop();
}

#[test]
fn a_host_that_was_removed_answers_what_was_taken_and_disconnects_its_clients() {
    let one = one();
    let [mut client, mut idle, mut waiting] = [(); 3].map(|()| one.served.client());
    assert_eq!(idle.ask("PING"), "+PONG");
    waiting.send("BLPOP list 0\r\n");
    wait_for("it waits", || {
        one.served.control.status().waiting_clients == 1
    });
    one.cluster.hold();
    client.send("INCR n\r\n");
    wait_for("it is held", || one.cluster.held() == 1);
    one.cluster.remove(0);
    assert_eq!(idle.line(), "closed after \"\"");
    let refused = "-LOADING this host is in no configuration of its cluster: it was removed, or is not a member yet; use another replica";
    assert_eq!(waiting.line(), refused);
    assert_eq!(waiting.line(), "closed after \"\"");
    one.cluster.release_reversed();
    assert_eq!(client.line(), ":1");
    assert_eq!(client.line(), "closed after \"\"");
    // New clients are told why; a load balancer's PING fails.
    for request in ["GET n", "PING"] {
        let mut late = one.served.client();
        assert_eq!(late.ask(request), refused);
        assert_eq!(late.line(), "closed after \"\"");
    }
    one.served.stop();
}

/// A listener may be held for the successor process.
#[test]
fn who_comes_when_the_process_ends_is_left_to_the_next_one() {
    let one = one();
    let mut client = one.served.client();
    one.cluster.hold();
    client.send("SET a 1\r\n");
    wait_for("it is held", || one.cluster.held() == 1);
    let control = one.served.control.clone();
    let ends = std::thread::spawn(move || control.drain_and_stop(LONG));
    wait_for("it drains", || one.served.control.status().is_draining);
    std::thread::sleep(Duration::from_millis(50));
    let mut late = one.served.client();
    late.stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    late.send("PING\r\n");
    assert!(std::io::Read::read(&mut late.stream, &mut [0; 8]).is_err());
    one.cluster.release_reversed();
    ends.join().unwrap();
    one.served.stop();
}

/// `PING` concerns only the process; only a command for a key shows whether there is a majority.
#[test]
fn without_a_majority_only_what_needs_none_is_answered() {
    let one = one();
    let mut client = one.served.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    one.cluster.hold();
    client.send("SET a 2\r\n");
    wait_for("it is held", || one.cluster.held() == 1);
    let mut other = one.served.client();
    assert_eq!(other.ask("PING"), "+PONG");
    one.cluster.release_reversed();
    assert_eq!(client.line(), "+OK");
    one.served.stop();
}

#[test]
fn two_processes_share_a_listener() {
    let cluster = MemoryCluster::new();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let again = listener.try_clone().unwrap();
    let one = Served::start_on(&cluster, dirs[0].path(), ReplicaConfig::default(), listener);
    let two = Served::start_on(&cluster, dirs[1].path(), ReplicaConfig::default(), again);
    let mut clients: Vec<Client> = (0..50).map(|_| one.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask("INCR n"), format!(":{}", i + 1));
    }
    let accepted = |served: &Served| served.control.status().connections_total;
    assert_eq!(accepted(&one) + accepted(&two), 50);
}
