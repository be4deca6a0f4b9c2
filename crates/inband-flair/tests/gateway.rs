//! The gateway's clients at their limits. No replica answers, so operations wait, and only the gateway's own answers
//! arrive. A well-behaved client must be served throughout.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_flair::config::{
    ClusterConfig, Config, HostConfig, ReplicaConfig, SwitchConfig, GATEWAY,
};
use inband_flair::dataplane::wire::{self, flag, Header, Type};
use inband_flair::gateway::{ClientSettings, Gateway};
use inband_ground::auth::Gate;
use inband_resp::password::Password;
use inband_resp::timeouts::ClientTimeouts;
use inband_testing::port::free_ports;

const TIMEOUT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(400);

/// After this time without a packet, none is coming; longer than the retransmission timeout of a write.
const QUIET: Duration = Duration::from_millis(300);
/// The session that the tests give to the gateway.
const SESSION: u64 = 7;

/// An operation as the switch receives it.
#[derive(Debug, Clone)]
struct Operation {
    header: Header,
    key: String,
    data: String,
    from: SocketAddr,
}

struct Served {
    address: SocketAddr,
    counters: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Receives the gateway's packets and answers only what a test sends.
    switch: UdpSocket,
}

fn free_address() -> std::net::SocketAddrV4 {
    std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, free_ports(1))
}

fn config(switch: std::net::SocketAddrV4) -> Config {
    Config {
        cluster: ClusterConfig {
            name: "test".into(),
            groups: 16,
            reads: Default::default(),
            balance: Default::default(),
            heartbeat_ms: 10,
            step_down_ms: 50,
            durability: Default::default(),
            key_file: None,
            replicas: vec![ReplicaConfig {
                name: "replica/0".into(),
                set: 0,
                address: switch,
                raft: SocketAddr::V4(switch),
            }],
            switches: vec![SwitchConfig {
                name: "switch/0".into(),
                address: switch,
            }],
        },
        host: HostConfig {
            name: GATEWAY.into(),
            socket: "/nowhere".into(),
            dataplane: Default::default(),
            interface: None,
            address: Some(free_address()),
            resp: Vec::new(),
            data: None,
            password_file: None,
            tls: None,
        },
    }
}

impl Served {
    fn new(settings: ClientSettings) -> Served {
        let switch = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let SocketAddr::V4(to) = switch.local_addr().expect("bound") else {
            unreachable!("asked for IPv4")
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let gateway = Gateway::open(&config(to), None, vec![listener], settings);
        let mut gateway = gateway.expect("it opens");
        let address = gateway.addresses()[0];
        let stop = Arc::new(AtomicBool::new(false));
        let counters: Arc<Mutex<BTreeMap<&'static str, u64>>> = Arc::default();
        let (stopped, published) = (stop.clone(), Arc::clone(&counters));
        let publish = move |gateway: &mut Gateway| {
            *published.lock().expect("unbroken") = gateway.counters();
        };
        let run = move || gateway.run(&stopped, publish).expect("it serves");
        Served {
            address,
            counters,
            stop,
            thread: Some(std::thread::spawn(run)),
            switch,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        stream.set_write_timeout(Some(TIMEOUT)).expect("set");
        stream
    }

    /// The next operation that the switch receives, ignoring retransmissions of those in `known`; `None` if none
    /// arrives for a while.
    fn next_write(&self, known: &[Operation]) -> Option<Operation> {
        self.next_write_within(QUIET, known)
    }

    /// The same with this limit. Answers requests for a session.
    fn next_write_within(&self, limit: Duration, known: &[Operation]) -> Option<Operation> {
        let mut buffer = [0; 2048];
        self.switch.set_read_timeout(Some(limit)).expect("set");
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            let Ok((len, from)) = self.switch.recv_from(&mut buffer) else {
                return None;
            };
            let (header, key, data) = wire::parse(&buffer[..len]).expect("a packet");
            let write = Operation {
                header,
                key: String::from_utf8(key.to_vec()).unwrap_or_default(),
                data: String::from_utf8(data.to_vec()).expect("letters"),
                from,
            };
            if header.has(flag::OPEN) {
                self.answer(&write, Type::WriteReply);
                continue;
            }
            let seq = header.client_seq;
            let is_known = known.iter().any(|w| w.header.client_seq == seq);
            if !is_known {
                return Some(write);
            }
        }
        None
    }

    fn expect_write(&self, known: &[Operation], data: &str) -> Operation {
        let write = self.next_write_within(TIMEOUT, known).expect("a write");
        assert_eq!(write.data, data);
        write
    }

    fn answer(&self, write: &Operation, kind: Type) {
        let mut header = Header::new(kind, 0, 1);
        header.client_seq = write.header.client_seq;
        header.client_id = SESSION;
        header.digest = wire::digest(b"");
        if kind == Type::ReadReply {
            (header.client_id, header.flags) = (0, flag::MISSING);
        }
        let mut packet = Vec::new();
        wire::emit(&header, write.key.as_bytes(), b"", &mut packet);
        Gate::of::<inband_flair::dataplane::Flair>(None, 1).sign(&mut packet);
        self.switch.send_to(&packet, write.from).expect("sent");
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.counters.lock().expect("unbroken");
        counters.get(name).copied().unwrap_or(0)
    }

    fn wait_for(&self, name: &str, count: u64) {
        let deadline = Instant::now() + TIMEOUT;
        while self.count(name) < count {
            assert!(Instant::now() < deadline, "{name}: {:?}", self.counters);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("it ran").expect("it did not panic");
        }
    }
}

fn request(parts: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", parts.len());
    for part in parts {
        request += &format!("${}\r\n{part}\r\n", part.len());
    }
    request.into_bytes()
}

fn line(stream: &mut TcpStream) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") && stream.read(&mut byte).expect("an answer") == 1 {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("letters").trim_end().into()
}

fn call(stream: &mut TcpStream, parts: &[&str]) -> String {
    stream.write_all(&request(parts)).expect("sends");
    line(stream)
}

/// Reads until the connection is closed.
fn wait_for_end(mut stream: TcpStream) {
    let mut sink = [0; 4096];
    while matches!(stream.read(&mut sink), Ok(len) if len > 0) {}
}

fn short_timeouts() -> ClientTimeouts {
    ClientTimeouts {
        incomplete: SHORT,
        password: SHORT,
        unread: SHORT,
        idle: None,
    }
}

#[test]
fn clients_are_as_many_as_may_come_and_a_flood_ends_nothing() {
    let served = Served::new(ClientSettings {
        clients_max: 16,
        ..ClientSettings::default()
    });
    let mut bystander = served.connect();
    assert_eq!(call(&mut bystander, &["PING"]), "+PONG");
    let others: Vec<_> = (0..15).map(|_| served.connect()).collect();
    served.wait_for("gateway_clients", 16);
    for _ in 0..200 {
        let mut further = served.connect();
        assert_eq!(line(&mut further), "-ERR max number of clients reached");
    }
    assert_eq!(call(&mut bystander, &["PING"]), "+PONG");
    served.wait_for("gateway_connections_refused", 200);
    assert_eq!(served.count("gateway_connections_refused"), 200);
    drop(others);
    let deadline = Instant::now() + TIMEOUT;
    while served.count("gateway_clients") > 1 {
        assert!(Instant::now() < deadline, "places become free");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(call(&mut served.connect(), &["PING"]), "+PONG");
}

#[test]
fn a_request_that_does_not_end_is_hung_up_on() {
    let served = Served::new(ClientSettings {
        timeouts: short_timeouts(),
        ..ClientSettings::default()
    });
    let mut bystander = served.connect();
    let mut half = served.connect();
    let begun = Instant::now();
    half.write_all(b"*2\r\n$3\r\nGET\r\n$5\r\nab")
        .expect("sends");
    wait_for_end(half);
    assert!(begun.elapsed() >= SHORT);
    served.wait_for("gateway_closed_incomplete", 1);
    assert_eq!(
        call(&mut bystander, &["PING"]),
        "+PONG",
        "silent, but it owes nothing"
    );
}

#[test]
fn who_reads_no_answers_is_hung_up_on() {
    let served = Served::new(ClientSettings {
        timeouts: short_timeouts(),
        ..ClientSettings::default()
    });
    let mut bystander = served.connect();
    let mut greedy = served.connect();
    let echo = request(&["ECHO", &"x".repeat(1 << 20)]);
    // More than the sockets' buffers hold.
    while served.count("gateway_closed_unread") == 0 {
        if greedy.write_all(&echo).is_err() {
            break;
        }
        assert_eq!(call(&mut bystander, &["PING"]), "+PONG");
    }
    served.wait_for("gateway_closed_unread", 1);
    let held = served.count("gateway_clients_memory_bytes");
    assert!(held < 1 << 20, "{held}");
}

#[test]
fn memory_of_all_clients_is_bounded_and_who_holds_most_goes() {
    const MAX: usize = 4 << 20;
    let served = Served::new(ClientSettings {
        memory_bytes_max: MAX,
        ..ClientSettings::default()
    });
    let mut bystander = served.connect();
    let mut others: Vec<_> = (0..16).map(|_| served.connect()).collect();
    // No replica answers, so these wait.
    let set = request(&["SET", "a key", &"x".repeat(1000)]).repeat(600);
    for other in &mut others {
        let _ = other.write_all(&set);
        assert_eq!(call(&mut bystander, &["PING"]), "+PONG");
    }
    served.wait_for("gateway_closed_memory", 1);
    assert!(served.count("gateway_clients_memory_bytes") <= MAX as u64);
    assert_eq!(call(&mut bystander, &["PING"]), "+PONG");
}

#[test]
fn requests_of_one_client_that_wait_are_bounded() {
    let served = Served::new(ClientSettings::default());
    let mut bystander = served.connect();
    let mut one = served.connect();
    one.set_write_timeout(Some(SHORT)).expect("set");
    let set = request(&["SET", "a key", &"x".repeat(1000)]).repeat(1000);
    // Until the socket is full: unread input uses no memory of the gateway.
    while one.write_all(&set).is_ok() {}
    assert_eq!(call(&mut bystander, &["PING"]), "+PONG");
    let held = served.count("gateway_clients_memory_bytes");
    assert!(held < 2 << 20, "{held}");
}

#[test]
fn too_much_is_said_with_size_and_limit() {
    let served = Served::new(ClientSettings::default());
    let mut one = served.connect();
    let key = "k".repeat(1025);
    let said = call(&mut one, &["GET", &key]);
    assert!(
        said.contains("1025 bytes is over the limit of 1024 bytes"),
        "{said}"
    );
    let said = call(&mut one, &["SET", "key", &"v".repeat(1374)]);
    assert!(
        said.contains("1377 bytes together are over the limit of 1376"),
        "{said}"
    );
    let keys: Vec<&str> = ["MGET"].into_iter().chain(vec!["k"; 4097]).collect();
    let said = call(&mut one, &keys);
    assert!(
        said.contains("4097 keys are over the limit of 4096"),
        "{said}"
    );
    let said = call(&mut one, &["SET", "key", &"v".repeat(2 << 20)]);
    assert!(said.contains("over the limit of"), "{said}");
    served.wait_for("gateway_requests_over_limit", 2);
    assert_eq!(call(&mut one, &["PING"]), "+PONG", "it goes on");
    one.write_all(b"*1\r\n:5\r\n").expect("sends");
    assert!(line(&mut one).contains("Protocol error"));
    wait_for_end(one);
    served.wait_for("gateway_closed_protocol", 1);
}

#[test]
fn without_the_password_nobody_is_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    std::fs::write(&file, "secret\n").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("set");
    let with_timeouts = |timeouts| {
        Served::new(ClientSettings {
            password: Some(Password::read(&file).expect("a password")),
            timeouts,
            ..ClientSettings::default()
        })
    };
    let served = with_timeouts(ClientTimeouts::default());
    let mut one = served.connect();
    for words in [&["PING"][..], &["GET", "a"], &["HELLO", "3"]] {
        let said = call(&mut one, words);
        assert!(said.starts_with("-NOAUTH"), "{said}");
    }
    for words in [&["AUTH", "wrong"][..], &["AUTH", "other", "secret"]] {
        let said = call(&mut one, words);
        assert!(said.starts_with("-WRONGPASS"), "{said}");
    }
    served.wait_for("gateway_passwords_refused", 2);
    assert_eq!(call(&mut one, &["AUTH", "secret"]), "+OK");
    assert_eq!(call(&mut one, &["PING"]), "+PONG");
    let mut other = served.connect();
    assert_eq!(
        call(&mut other, &["HELLO", "2", "AUTH", "default", "secret"]),
        "*4"
    );
    // Before authentication, a client may neither send much nor wait long.
    let mut long = served.connect();
    long.write_all(b"*2\r\n$4\r\nAUTH\r\n$20000\r\n")
        .expect("sends");
    assert!(line(&mut long).contains("unauthenticated bulk length"));
    assert_eq!(call(&mut one, &["PING"]), "+PONG");
    let served = with_timeouts(short_timeouts());
    wait_for_end(served.connect());
    served.wait_for("gateway_closed_unauthenticated", 1);
}

#[test]
fn a_write_that_was_given_up_is_not_done_after_what_comes_later() {
    let served = Served::new(ClientSettings::default());
    let mut first = served.connect();
    first
        .write_all(&request(&["SET", "key", "first"]))
        .expect("sends");
    let lost = served.expect_write(&[], "first");
    let lost = [lost];
    assert!(served.next_write(&lost).is_none());
    // The client gives up and reconnects. Another client writes the same key, and a third a different key.
    drop(first);
    let mut again = served.connect();
    let mut other = served.connect();
    again
        .write_all(&request(&["SET", "key", "again"]))
        .expect("sends");
    let later = served.next_write(&lost);
    assert!(
        later.is_none(),
        "the first may yet be done after it: {later:?}"
    );
    other
        .write_all(&request(&["SET", "elsewhere", "other"]))
        .expect("sends");
    served.answer(&served.expect_write(&lost, "other"), Type::WriteReply);
    assert_eq!(line(&mut other), "+OK");
    served.answer(&lost[0], Type::WriteReply);
    served.answer(&served.expect_write(&lost, "again"), Type::WriteReply);
    assert_eq!(line(&mut again), "+OK");
}

#[test]
fn pipelined_commands_take_effect_in_their_order() {
    let served = Served::new(ClientSettings::default());
    let mut one = served.connect();
    let commands = [
        &["SET", "a", "1"][..],
        &["SET", "b", "2"],
        &["GET", "c"],
        &["GET", "d"],
        &["MSET", "e", "3", "f", "4", "e", "5"],
    ];
    let pipelined: Vec<u8> = commands.iter().flat_map(|parts| request(parts)).collect();
    one.write_all(&pipelined).expect("sends");
    let mut known = Vec::new();
    for data in ["1", "2"] {
        let write = served.expect_write(&known, data);
        known.push(write.clone());
        let next = served.next_write(&known);
        assert!(next.is_none(), "before {data:?} has ended: {next:?}");
        served.answer(&write, Type::WriteReply);
    }
    // Concurrent reads, and then the operations that waited for them.
    let mut reads = Vec::new();
    for key in ["c", "d"] {
        let read = served
            .next_write_within(TIMEOUT, &[&known[..], &reads].concat())
            .expect("a read");
        assert_eq!((read.header.kind, &read.key[..]), (Type::Read, key));
        reads.push(read);
    }
    known.extend(reads.clone());
    served.answer(&reads[0], Type::ReadReply);
    assert!(
        served.next_write(&known).is_none(),
        "one read has not ended"
    );
    served.answer(&reads[1], Type::ReadReply);
    let mut last = Vec::new();
    for data in ["3", "4"] {
        let write = served.expect_write(&known, data);
        known.push(write.clone());
        last.push(write);
    }
    assert!(served.next_write(&known).is_none(), "a key twice, in order");
    served.answer(&last[0], Type::WriteReply);
    served.answer(&last[1], Type::WriteReply);
    served.answer(&served.expect_write(&known, "5"), Type::WriteReply);
    for said in ["+OK", "+OK", "$-1", "$-1", "+OK"] {
        assert_eq!(line(&mut one), said);
    }
}

#[test]
fn nothing_of_a_transaction_is_executed() {
    let served = Served::new(ClientSettings::default());
    let mut one = served.connect();
    let commands = [
        &["EXEC"][..],
        &["MULTI"],
        &["SET", "a", "1"],
        &["MULTI"],
        &["EXEC"],
        &["MULTI"],
        &["DEL", "a"],
        &["DISCARD"],
        &["CLIENT", "ID"],
        &["SET", "b", "2"],
    ];
    let pipelined: Vec<u8> = commands.iter().flat_map(|parts| request(parts)).collect();
    one.write_all(&pipelined).expect("sends");
    let write = served.expect_write(&[], "2");
    assert_eq!(write.key, "b", "the first operation");
    served.answer(&write, Type::WriteReply);
    for said in [
        "-ERR without MULTI",
        "-ERR FLAIR has no transactions; commands up to EXEC or DISCARD are not executed",
        "-ERR not executed: it follows MULTI, which was refused; send DISCARD to end this",
        "-ERR not executed: it follows MULTI, which was refused; send DISCARD to end this",
        "-EXECABORT Transaction discarded: FLAIR has no transactions",
        "-ERR FLAIR has no transactions; commands up to EXEC or DISCARD are not executed",
        "-ERR not executed: it follows MULTI, which was refused; send DISCARD to end this",
        "+OK",
    ] {
        assert_eq!(line(&mut one), said);
    }
    let id = line(&mut one);
    assert!(id.starts_with(':'), "{id}");
    assert_eq!(line(&mut one), "+OK");
}

#[test]
fn a_command_of_several_keys_says_what_was_done() {
    let served = Served::new(ClientSettings::default());
    let mut one = served.connect();
    let long = "k".repeat(1025);
    let said = call(&mut one, &["MSET", "a", "1", &long, "2"]);
    assert!(said.contains("1025 bytes is over the limit"), "{said}");
    assert!(served.next_write(&[]).is_none(), "nothing is done of it");
    one.write_all(&request(&["MSET", "a", "1", "b", "2", "c", "3"]))
        .expect("sends");
    let mut known = Vec::new();
    for data in ["1", "2", "3"] {
        let write = served.expect_write(&known, data);
        known.push(write);
    }
    served.answer(&known[1], Type::WriteReply);
    let said = line(&mut one);
    let expected = "not atomic: of 3 keys 1 were written, 2 are unknown";
    assert!(
        said.starts_with("-UNKNOWN") && said.ends_with(expected),
        "{said}"
    );
}
