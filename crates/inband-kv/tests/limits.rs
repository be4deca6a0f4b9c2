//! Every limit of a replica's listeners, tested at the limit, over real sockets. See docs/limits.md.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, resp, wait_for, Client, Served};
use inband_kv::control::Status;
use inband_kv::limit_hits::LimitHit;
use inband_kv::limits::{
    CHECKPOINT_TRANSFERS_MAX, COMMAND_LEN_BYTES_MAX, IN_FLIGHT_COMMAND_BYTES_MAX,
    OUTPUT_SOFT_BYTES_MAX, PENDING_COMMAND_BYTES_MAX, READ_REPLIES_BYTES_MAX,
    READ_STEPS_PER_TURN_MAX, REQUEST_KEYS_MAX, STORED_VALUE_LEN_BYTES_MAX, VALUES_REPLY_BYTES_MAX,
    WATCHED_BYTES_MAX,
};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;
use inband_resp::limits::{IDLE_BUFFER_BYTES_MAX, REQUEST_LEN_BYTES_MAX};
use inband_resp::timeouts::ClientTimeouts;

/// Effectively forever in a test.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(400);
const PATIENT: ClientTimeouts = ClientTimeouts {
    incomplete: LONG,
    password: LONG,
    unread: LONG,
    idle: None,
};

struct One {
    served: Served,
    cluster: MemoryCluster,
    _dir: tempfile::TempDir,
}

impl One {
    fn start(change: impl FnOnce(&mut ReplicaConfig)) -> One {
        let mut config = ReplicaConfig {
            timeouts: PATIENT,
            ..ReplicaConfig::default()
        };
        change(&mut config);
        let (cluster, dir) = (MemoryCluster::new(), common::scratch());
        One {
            served: Served::start(&cluster, dir.path(), config),
            cluster,
            _dir: dir,
        }
    }

    fn client(&self) -> Client {
        self.served.client()
    }

    fn status(&self) -> Status {
        self.served.control.status()
    }

    fn hits(&self, limit: LimitHit) -> u64 {
        self.status().hits(limit)
    }
}

/// Pings a replica continuously and reports the longest response time.
struct Bystander {
    stop: std::sync::mpsc::Sender<()>,
    thread: thread::JoinHandle<Duration>,
}

impl Bystander {
    fn start(one: &One) -> Self {
        let mut client = one.client();
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while stopped.try_recv().is_err() {
                let asked = Instant::now();
                assert_eq!(client.ask("SET bystander 1"), "+OK");
                longest = longest.max(asked.elapsed());
            }
            longest
        });
        Self { stop, thread }
    }

    fn stop(self) -> Duration {
        self.stop.send(()).expect("it lives");
        self.thread.join().expect("it was served all the time")
    }
}

/// Sends as much as is accepted within a while.
fn send_what_is_taken(client: &mut Client, bytes: &[u8]) -> usize {
    let limit = Some(Duration::from_millis(300));
    client.stream.set_write_timeout(limit).expect("set");
    let mut sent = 0;
    while let Ok(len @ 1..) = client.stream.write(&bytes[sent % bytes.len()..]) {
        sent += len;
        assert!(sent < 1 << 30, "it takes everything");
    }
    sent
}

/// Returns whether the peer closes the connection within the time limit of a test.
fn is_closed(mut stream: &TcpStream) -> bool {
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("set");
    let mut sink = vec![0; 1 << 16];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

#[test]
fn a_client_that_reads_nothing_is_not_read_from_and_then_closed() {
    let one = One::start(|config| config.timeouts.unread = SHORT);
    let bystander = Bystander::start(&one);
    let mut slow = one.client();
    slow.send(resp(&format!("SET k {}", "v".repeat(1200))));
    slow.expect("+OK\r\n");
    let gets = resp("GET k").repeat(1000);
    send_what_is_taken(&mut slow, gets.as_bytes());
    // Its replies, its requests, and the reads in progress.
    let bound = 2 * (OUTPUT_SOFT_BYTES_MAX + PENDING_COMMAND_BYTES_MAX);
    assert!(one.status().clients_memory_bytes < bound as u64 + 1024 * 1300);
    wait_for("it is closed", || one.hits(LimitHit::Unread) == 1);
    assert!(is_closed(&slow.stream));
    wait_for("its memory is back", || {
        one.status().clients_memory_bytes < 1 << 16
    });
    // A client that reads, however late, is not disconnected.
    for trial in 1.. {
        assert!(
            trial < 100,
            "it is closed, or the machine stalls all the time"
        );
        let before = one.hits(LimitHit::Unread);
        if let Some(longest) = read_late(&one) {
            if longest >= SHORT {
                continue;
            }
            assert_eq!(one.hits(LimitHit::Unread), before);
            break;
        }
    }
    bystander.stop();
}

/// Sends requests and reads the replies after a while, for longer than [`SHORT`]. Returns the longest time from sending
/// to having read; `None` if disconnected after that time, as a client may be that a stall of the machine has kept from
/// reading.
fn read_late(one: &One) -> Option<Duration> {
    let mut late = one.client();
    let expected = format!("$1200\r\n{}\r\n", "v".repeat(1200)).repeat(100);
    let mut longest = Duration::ZERO;
    for _ in 0..4 {
        let sent = Instant::now();
        let is_sent = late.stream.write_all(resp("GET k").repeat(100).as_bytes());
        thread::sleep(SHORT / 3);
        let mut got = vec![0; expected.len()];
        let is_read = is_sent.and_then(|()| late.stream.read_exact(&mut got));
        longest = longest.max(sent.elapsed());
        if let Err(error) = is_read {
            assert!(longest >= SHORT, "{error} after {longest:?}");
            return None;
        }
        assert!(got == expected.as_bytes());
    }
    Some(longest)
}

#[test]
fn half_a_request_times_out() {
    let one = One::start(|config| config.timeouts.incomplete = SHORT);
    let bystander = Bystander::start(&one);
    let mut silent = one.client();
    let begun = Instant::now();
    let mut halves = Vec::new();
    for half in [
        "*2\r\n$3\r\nGET\r\n$100\r\nabc",
        "*3\r\n",
        "GET",
        "*2\r\n$3\r\nGET\r\n",
    ] {
        let mut client = one.client();
        client.send(half);
        halves.push(client);
    }
    // Sending an occasional byte does not help.
    let mut trickle = one.client();
    trickle.send("*2\r\n$3\r\nGET\r\n$100000\r\n");
    while trickle.stream.write_all(b"x").is_ok() {
        assert!(begun.elapsed() < 150 * SHORT, "it goes on forever");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(begun.elapsed() >= SHORT);
    assert!(halves.iter().all(|half| is_closed(&half.stream)));
    wait_for("they are counted", || one.hits(LimitHit::Incomplete) == 5);
    // A client that has not started a request may take any time, and so may one whose commands wait.
    assert_eq!(silent.ask("PING"), "+PONG");
    bystander.stop();
    one.cluster.hold();
    silent.send(resp("INCR n").repeat(5000));
    thread::sleep(2 * SHORT);
    one.cluster.release_reversed();
    let all: String = (1..=5000).map(|i| format!(":{i}\r\n")).collect();
    silent.expect(all);
    assert_eq!(one.hits(LimitHit::Incomplete), 5);
}

#[test]
fn idle_clients_are_closed_if_asked_for() {
    let (one, idle, asked, mut waits) = with_idle_clients();
    wait_for("both are closed", || one.hits(LimitHit::Idle) == 2);
    assert!(is_closed(&idle.stream) && is_closed(&asked.stream));
    // It waits for the replica, not the other way round.
    thread::sleep(SHORT);
    one.cluster.release_reversed();
    assert_eq!(waits.line(), ":1");
    assert_eq!(one.hits(LimitHit::Idle), 2);
}

/// A replica that closes idle clients, one that has sent nothing, one that was answered, and one that waits.
fn with_idle_clients() -> (One, Client, Client, Client) {
    for _ in 0..100 {
        let one = One::start(|config| config.timeouts.idle = Some(SHORT));
        let begun = Instant::now();
        let [idle, mut asked, mut waits] = [(); 3].map(|()| one.client());
        let mut pong = [0; 7];
        let is_answered = asked.stream.write_all(b"PING\r\n");
        let is_answered = is_answered.and_then(|()| asked.stream.read_exact(&mut pong));
        one.cluster.hold();
        let is_sent = waits.stream.write_all(resp("INCR n").as_bytes());
        while one.cluster.held() == 0 && begun.elapsed() < SHORT {
            thread::sleep(Duration::from_millis(1));
        }
        // After a stall of the machine they may have been closed before they could send anything.
        if begun.elapsed() < SHORT {
            is_answered.and(is_sent).expect("they are connected");
            assert_eq!(&pong, b"+PONG\r\n");
            return (one, idle, asked, waits);
        }
    }
    panic!("the machine stalls all the time");
}

#[test]
fn clients_together_hold_no_more_than_they_may() {
    let limit = 8 << 20;
    let one = One::start(|config| config.clients_memory_bytes_max = limit);
    let bystander = Bystander::start(&one);
    // A megabyte of an unfinished request from each of many clients.
    let half = format!(
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n{}",
        "v".repeat(1_000_000)
    );
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = one.client();
        // It may be disconnected while it sends.
        let _ = client.stream.write_all(half.as_bytes());
        assert!(one.status().clients_memory_bytes <= limit as u64);
        clients.push(client);
    }
    wait_for("most are closed", || one.hits(LimitHit::Memory) >= 30);
    let longest = bystander.stop();
    // A client that holds little is never chosen.
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    assert!(one.hits(LimitHit::Memory) < 40);
    drop(clients);
    wait_for("it is given back", || one.status().connected_clients == 0);
    wait_for("it is given back", || {
        one.status().clients_memory_bytes == 0
    });
}

#[test]
fn memory_of_what_was_long_is_given_back() {
    let one = One::start(|_| {});
    let mut client = one.client();
    let value = "v".repeat(1 << 20);
    // The long request followed by the next one, in one write.
    client.send(resp(&format!("SET k {value}")) + &resp("PING") + "*1\r\n$4\r\n");
    client.expect("+OK\r\n+PONG\r\n");
    client.send(resp("PING")[8..].to_string() + &resp(&"MGET".to_string().add_keys("k", 20)));
    client.expect("+PONG\r\n");
    let reply = format!("$1048576\r\n{value}\r\n").repeat(20);
    client.expect(format!("*20\r\n{reply}"));
    assert_eq!(client.ask("PING"), "+PONG");
    wait_for("it is given back", || {
        one.status().clients_memory_bytes <= 4 * IDLE_BUFFER_BYTES_MAX as u64
    });
}

/// Builds command lines.
trait AddKeys {
    fn add_keys(self, key: &str, count: usize) -> String;
}

impl AddKeys for String {
    fn add_keys(mut self, key: &str, count: usize) -> String {
        for _ in 0..count {
            self.push(' ');
            self += key;
        }
        self
    }
}

/// A name of at most four letters for each number below a million.
fn short_name(mut number: usize) -> String {
    let mut name = String::new();
    for _ in 0..4 {
        name.push((b'a' + (number % 26) as u8) as char);
        number /= 26;
    }
    name
}

/// A command with this many distinct keys.
fn command_of(name: &str, keys: usize) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n${}\r\n{name}\r\n", keys + 1, name.len());
    for key in 0..keys {
        bytes += &format!("$4\r\n{}\r\n", short_name(key));
    }
    bytes.into_bytes()
}

#[test]
fn very_many_keys_in_one_command() {
    let one = One::start(|_| {});
    let mut client = one.client();
    client.send(resp("SET aaaa 1"));
    client.expect("+OK\r\n");
    let bystander = Bystander::start(&one);
    let max = REQUEST_KEYS_MAX;
    let all = command_of("MGET", max);
    assert!(all.len() < REQUEST_LEN_BYTES_MAX, "{} bytes", all.len());
    let begun = Instant::now();
    client.send(&all);
    client.expect(format!("*{max}\r\n$1\r\n1\r\n") + &"$-1\r\n".repeat(max - 1));
    println!("MGET of {max} keys: {:?}", begun.elapsed());
    client.send(command_of("EXISTS", max));
    client.expect(":1\r\n");
    client.send(command_of("DEL", max));
    client.expect(":1\r\n");
    let refused = format!(
        "-ERR {} keys are over the limit of {max} keys; use several commands\r\n",
        max + 1
    );
    for name in ["MGET", "EXISTS", "DEL"] {
        client.send(command_of(name, max + 1));
        client.expect(&refused);
    }
    // In a transaction they are counted together.
    client.send(resp("MULTI"));
    client.expect("+OK\r\n");
    client.send(command_of("MGET", max / 2));
    client.send(command_of("MGET", max - max / 2));
    client.expect("+QUEUED\r\n+QUEUED\r\n");
    client.send(resp("GET a") + &resp("EXEC"));
    client.expect(&refused);
    assert!(client.line().starts_with("-EXECABORT"));
    // Longer names exceed the length limit of a request first.
    let long = resp(&"MGET".to_string().add_keys(&"k".repeat(40), max));
    client.send(&long);
    let said = client.line();
    assert!(
        said.contains("is over the limit of") && said.contains("bytes"),
        "{said}"
    );
    wait_for("they are counted", || one.hits(LimitHit::Request) == 5);
    let longest = bystander.stop();
    println!("the longest that others waited: {longest:?}");
    assert!(longest < Duration::from_secs(20), "{longest:?}");
}

#[test]
fn a_hundred_thousand_commands_in_one_write() {
    let one = One::start(|_| {});
    let bystander = Bystander::start(&one);
    let mut client = one.client();
    let mut writer = client.stream.try_clone().expect("cloned");
    let all = resp("INCR n").repeat(100_000);
    let sender = thread::spawn(move || writer.write_all(all.as_bytes()).expect("sends"));
    // The client reads nothing for a while: the replica stops reading from it, or replies would pile up.
    let bound =
        (OUTPUT_SOFT_BYTES_MAX + PENDING_COMMAND_BYTES_MAX + IN_FLIGHT_COMMAND_BYTES_MAX) * 2;
    for _ in 0..30 {
        assert!(one.status().clients_memory_bytes < bound as u64);
        thread::sleep(Duration::from_millis(10));
    }
    let expected: String = (1..=100_000).map(|i| format!(":{i}\r\n")).collect();
    client.expect(expected);
    sender.join().expect("all was taken");
    bystander.stop();
}

#[test]
fn lengths_that_lie_reserve_nothing() {
    let one = One::start(|_| {});
    let bystander = Bystander::start(&one);
    let oversized = [
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n",
        "*1048576\r\n",
        "*1048576\r\n$536870912\r\n",
        "*2\r\n$4\r\nECHO\r\n$536870912\r\nabc",
    ];
    let clients: Vec<Client> = oversized
        .iter()
        .cycle()
        .take(200)
        .map(|request| {
            let mut client = one.client();
            client.send(request);
            client
        })
        .collect();
    wait_for("all are read", || one.status().connected_clients == 201);
    thread::sleep(Duration::from_millis(50));
    assert!(one.status().clients_memory_bytes < 200 * 200);
    drop(clients);
    // Very many empty arguments: their positions take memory until the request is too long.
    let mut client = one.client();
    let flood = "$0\r\n\r\n".repeat(300_000);
    client.send(format!("*300001\r\n$4\r\nMGET\r\n{flood}"));
    let said = client.line();
    assert!(said.starts_with("-ERR request of "), "{said}");
    wait_for("it is given back", || {
        one.status().clients_memory_bytes < 1 << 17
    });
    // Input that cannot be a request ends the connection at once.
    let closed = [
        "*1048577\r\n".to_string(),
        "*2\r\n$4\r\nECHO\r\n$536870913\r\n".to_string(),
        "*2\r\n$4\r\nECHO\r\n$-1\r\n".to_string(),
        "*1\r\n$99999999999999999999999999999999999999\r\n".to_string(),
        "*".repeat(100),
        "x".repeat(1 << 20),
        "\0".repeat(1 << 20),
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_string(),
    ];
    for (at, bytes) in closed.iter().enumerate() {
        let mut client = one.client();
        // It may be disconnected before everything is sent.
        let _ = client.stream.write_all(bytes.as_bytes());
        assert!(is_closed(&client.stream), "{at}");
        wait_for("it is counted", || {
            one.hits(LimitHit::Protocol) == at as u64 + 1
        });
    }
    bystander.stop();
}

#[test]
fn a_transaction_is_bounded_whoever_answers_its_commands() {
    let one = One::start(|_| {});
    let mut client = one.client();
    // Arguments of commands that do not go through the log count as well.
    client.send(resp("MULTI"));
    client.expect("+OK\r\n");
    let echo = resp(&format!("ECHO {}", "x".repeat(300_000)));
    let fit = COMMAND_LEN_BYTES_MAX / 300_000;
    client.send(echo.repeat(fit));
    client.expect("+QUEUED\r\n".repeat(fit));
    client.send(&echo);
    let said = client.line();
    assert!(said.contains("is over the limit of"), "{said}");
    wait_for("it is given back", || {
        one.status().clients_memory_bytes < 1 << 20
    });
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    // Short commands with long replies: the replies are bounded.
    client.send(resp("MULTI"));
    client.expect("+OK\r\n");
    let many = 10_000;
    client.send(resp("COMMAND DOCS").repeat(many));
    client.expect("+QUEUED\r\n".repeat(many));
    client.send(resp("EXEC") + "QUIT\r\n");
    let said = client.rest_bytes();
    assert!(said.starts_with(format!("*{many}\r\n").as_bytes()));
    let text = String::from_utf8_lossy(&said);
    assert!(text.contains("this command was not executed"));
    // On the wire a reply is a little longer than it is counted.
    assert!(
        said.len() < 2 * VALUES_REPLY_BYTES_MAX,
        "{} bytes",
        said.len()
    );

    let mut client = one.client();
    let long = "k".repeat(WATCHED_BYTES_MAX / 2 - 100);
    client.send(resp(&format!("WATCH a{long}")) + &resp(&format!("WATCH b{long}")));
    client.expect("+OK\r\n+OK\r\n");
    client.send(resp(&format!("WATCH c{long}")));
    let said = client.line();
    assert!(said.contains("bytes of keys would be watched"), "{said}");
    assert!(one.status().clients_memory_bytes < 4 * WATCHED_BYTES_MAX as u64);
}

#[test]
fn long_answers_of_many_come_one_after_the_other() {
    let one = One::start(|_| {});
    let mut client = one.client();
    client.send(resp(&format!("SET k {}", "v".repeat(1 << 20))));
    client.expect("+OK\r\n");
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let mut client = one.client();
            thread::spawn(move || {
                client.send(resp(&"MGET".to_string().add_keys("k", 30)));
                let mut left = 30 * ((1 << 20) + 12) + 5;
                let mut sink = vec![0; 1 << 20];
                while left > 0 {
                    let room = sink.len().min(left);
                    match client.stream.read(&mut sink[..room]).expect("its answer") {
                        0 => panic!("closed with {left} bytes to come"),
                        len => left -= len,
                    }
                }
            })
        })
        .collect();
    let bound = 8 * (32 << 20);
    while !readers.iter().all(|reader| reader.is_finished()) {
        assert!(one.status().clients_memory_bytes < bound);
        thread::sleep(Duration::from_millis(5));
    }
    for reader in readers {
        reader.join().expect("it got its answer");
    }
    // When clients do not read, the limits are what one turn reads and what all clients may hold.
    let limit = 96 << 20;
    let one = One::start(|config| config.clients_memory_bytes_max = limit);
    let mut client = one.client();
    client.send(resp(&format!("SET k {}", "v".repeat(1 << 20))));
    client.expect("+OK\r\n");
    one.cluster.hold();
    let mut others: Vec<Client> = (0..8).map(|_| one.client()).collect();
    for other in &mut others {
        other.send(resp(&"MGET".to_string().add_keys("k", 30)));
    }
    let mut highest = 0;
    wait_for("most are closed", || {
        highest = highest.max(one.status().clients_memory_bytes);
        one.hits(LimitHit::Memory) >= 5
    });
    assert!(
        highest <= (limit + READ_REPLIES_BYTES_MAX) as u64,
        "{highest}"
    );
    assert_eq!(client.ask("PING"), "+PONG");
}

#[test]
fn reads_with_much_work_do_not_hold_up_the_others() {
    const READS: usize = 200;
    let one = One::start(|_| {});
    let mut client = one.client();
    let last = STORED_VALUE_LEN_BYTES_MAX as u64 * 8 - 1;
    assert_eq!(client.ask(&format!("SETBIT b {last} 1")), ":0");
    let steps = READS as u64 * STORED_VALUE_LEN_BYTES_MAX as u64 / 8;
    let turns = steps / READ_STEPS_PER_TURN_MAX;
    assert!(turns > 20);
    let bystander = Bystander::start(&one);
    let mut others: Vec<Client> = (0..2).map(|_| one.client()).collect();
    for other in &mut others {
        other.send("BITPOS b 1\r\n".repeat(READS));
    }
    assert_eq!(client.ask("GETBIT b 0"), ":0");
    for other in &mut others {
        for _ in 0..READS {
            assert_eq!(other.line(), format!(":{last}"));
        }
    }
    // What each of them sends at once arrives in two parts at most.
    assert!(one.hits(LimitHit::TurnReplies) > turns / 2);
    bystander.stop();
}

#[test]
fn a_flood_of_clients_leaves_the_others_alone() {
    let one = One::start(|config| config.clients_max = 20);
    let bystander = Bystander::start(&one);
    let inside: Vec<Client> = (0..19).map(|_| one.client()).collect();
    wait_for("it is full", || one.status().connected_clients == 20);
    let mut told = 0;
    for _ in 0..500 {
        let mut late = one.client();
        told += u64::from(late.rest() == "-ERR max number of clients reached\r\n");
    }
    assert_eq!(told, 500);
    // The counter is updated shortly after the reply.
    wait_for("all are counted", || one.hits(LimitHit::Clients) == 500);
    assert_eq!(one.status().connected_clients, 20);
    bystander.stop();
    drop(inside);
    wait_for("they are gone", || one.status().connected_clients == 0);
    assert_eq!(one.client().ask("PING"), "+PONG");
}

#[test]
fn strangers_at_the_checkpoint_listener() {
    let one = One::start(|_| {});
    let mut client = one.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    let connect = || TcpStream::connect(one.served.checkpoint_address).expect("connects");
    // Garbage is disconnected at once.
    for nonsense in [
        "GET / HTTP/1.1\r\n\r\n",
        "IBCKPT9\n",
        "*1\r\n$4\r\nPING\r\n",
    ] {
        let mut stream = connect();
        stream.write_all(nonsense.as_bytes()).expect("sends");
        assert!(is_closed(&stream));
    }
    let mut stream = connect();
    stream
        .write_all(b"IBCKPT2\n\xff\xff\xff\xff\xff\xff\xff\xff")
        .expect("sends");
    assert!(is_closed(&stream));
    assert_eq!(one.hits(LimitHit::CheckpointProtocol), 4);
    // As many connections as are served at a time, which send nothing, or a few bytes now and then.
    let begun = Instant::now();
    let silent: Vec<TcpStream> = (0..CHECKPOINT_TRANSFERS_MAX).map(|_| connect()).collect();
    let late = connect();
    assert!(is_closed(&late));
    assert_eq!(one.hits(LimitHit::CheckpointTransfers), 1);
    let mut open = silent;
    while !open.is_empty() {
        open.retain_mut(|stream| stream.write_all(b"I").is_ok());
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "they stay forever"
        );
        thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(client.ask("PING"), "+PONG");
    // A client that sends eight bytes has sent a wrong greeting or is too slow: either way the slot is freed.
    let ended = one.hits(LimitHit::CheckpointPace) + one.hits(LimitHit::CheckpointProtocol);
    assert_eq!(ended, 4 + CHECKPOINT_TRANSFERS_MAX as u64);
    let mut peer = connect();
    peer.write_all(b"IBCKPT2\n").expect("sends");
    for number in [1u64, 0, 0] {
        peer.write_all(&number.to_be_bytes()).expect("sends");
    }
    let mut greeting = [0; 9];
    peer.read_exact(&mut greeting).expect("a checkpoint");
    assert_eq!(&greeting, b"IBCKPT2\n\0");
    // The whole checkpoint, until the server closes: a thread that still sends it when the program ends uses a RocksDB that
    // is being torn down, which aborts.
    peer.read_to_end(&mut Vec::new()).expect("all of it");
}
