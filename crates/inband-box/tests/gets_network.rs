//! A cluster of three processes whose packet programs answer the GETs of a memcached client over UDP, in a network of
//! namespaces.
#![allow(missing_docs)]

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use inband_box::process::{socket_of, status_at, Status};
use inband_host::config::Dataplane;
use inband_testing::frame::may_load_bpf;

use crate::net::{address, Net};

/// How long anything may take here; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A datagram may be lost; then it is sent again.
const RESEND_AFTER: Duration = Duration::from_millis(500);
/// Where no answer is expected, one would have arrived within this time.
const SILENCE: Duration = Duration::from_millis(300);
const NODES: usize = 3;
/// The host of the clients that are answered, and one that is not.
const CLIENT: usize = 4;
const STRANGER: usize = 5;
const GETS_PORT: u16 = 11213;
/// Where GETs are linearizable.
const STRONG_PORT: u16 = 11214;

struct Cluster {
    processes: Vec<Child>,
    dir: tempfile::TempDir,
    net: Net,
}

impl Cluster {
    fn start() -> Cluster {
        let (net, dir) = (Net::new(), tempfile::tempdir().unwrap());
        let nodes: Vec<_> = (1..=NODES).map(|n| address(n).to_string()).collect();
        let mut cluster = Cluster {
            processes: Vec::new(),
            dir,
            net,
        };
        for node in 1..=NODES {
            let mut command = Command::new(env!("CARGO_BIN_EXE_inband-box"));
            command
                .args(["node", "--node", &node.to_string()])
                .args(["--nodes", &nodes.join(",")])
                .args(["--dataplane", "xdp", "--interface", "eth0", "--no-key"])
                .args(["--memcached", "127.0.0.1:11211"])
                .args(["--memcached-local-udp", &at(node, GETS_PORT).to_string()])
                .args(["--memcached-udp", &at(node, STRONG_PORT).to_string()])
                .args([
                    "--memcached-udp-from",
                    &format!("{}/32", address(CLIENT).ip()),
                ])
                // Other tests take the CPUs at the same time.
                .args(["--suspect-after-us", "250000", "--log-records", "1024"])
                .arg("--data")
                .arg(cluster.data(node))
                .args(["--new"])
                .stdout(Stdio::null());
            let child = cluster.net.on(node, || command.spawn().unwrap());
            cluster.processes.push(child);
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let statuses: Vec<_> = (1..=NODES).filter_map(|n| cluster.status(n)).collect();
            let are = |state| statuses.iter().filter(|s| s.state == state).count();
            if are("leading") == 1 && are("following") == NODES - 1 {
                for status in &statuses {
                    assert_eq!(status.dataplane, Dataplane::Xdp, "{status:?}");
                }
                return cluster;
            }
            assert!(Instant::now() < deadline, "{statuses:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn data(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("node-{node}"))
    }

    fn status(&self, node: usize) -> Option<Status> {
        status_at(&socket_of(&self.data(node))).ok()
    }

    fn counter(&self, node: usize, name: &str) -> u64 {
        // A node that waits for a CPU does not answer in time.
        let answers = || self.status(node);
        let status = until_some("it runs", answers);
        status.counters.get(name).copied().unwrap_or(0)
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.status(*node).is_some_and(|s| s.state == "leading");
        until_some("one leads", || (1..=NODES).find(leads))
    }

    /// Has SETs sent to the leader until its packet program has proposed all of them. A leader that stalls is suspected:
    /// then processes propose some, and that is tried again.
    fn all_are_proposed(&self, count: u64, mut sets: impl FnMut(usize)) {
        let are_proposed = |_| {
            let leader = self.leader();
            let epoch = until_some("it runs", || Some(self.status(leader)?.epoch));
            let before = self.counter(leader, "sets_proposed");
            sets(leader);
            let deadline = Instant::now() + TIMEOUT;
            loop {
                let proposed = self.counter(leader, "sets_proposed");
                if proposed >= before + count {
                    return true;
                }
                let status = until_some("it runs", || self.status(leader));
                if status.epoch != epoch || status.state != "leading" {
                    return false;
                }
                assert!(Instant::now() < deadline, "{proposed} after {before}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        assert!((0..5).any(are_proposed), "another leader each time");
    }

    /// Returns the reply to a strong read at a node, over TCP.
    fn read(&self, node: usize, key: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let stream = self
                .net
                .on(node, || TcpStream::connect("127.0.0.1:11211").unwrap());
            stream.set_read_timeout(Some(RESEND_AFTER)).unwrap();
            write!(&stream, "get {key}\r\n").unwrap();
            let (mut reply, mut buffer) = (String::new(), [0; 4096]);
            while !reply.ends_with("END\r\n") {
                match (&stream).read(&mut buffer) {
                    Ok(len) if len > 0 => reply += &String::from_utf8_lossy(&buffer[..len]),
                    _ => break,
                }
            }
            if reply.ends_with("END\r\n") {
                return reply;
            }
            assert!(Instant::now() < deadline, "{reply:?} from {node}");
        }
    }

    /// Waits until a node's status, which is renewed now and then, shows this counter beyond a value.
    fn until_beyond(&self, node: usize, name: &str, before: u64) {
        let deadline = Instant::now() + TIMEOUT;
        while self.counter(node, name) <= before {
            assert!(Instant::now() < deadline, "{name} of {node} stays {before}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn at(node: usize, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*address(node).ip(), port)
}

struct Client {
    socket: UdpSocket,
    /// The nodes' port.
    port: u16,
    request: u16,
}

impl Client {
    fn new(net: &Net, host: usize) -> Client {
        Client::of_port(net, host, GETS_PORT)
    }

    fn of_port(net: &Net, host: usize, port: u16) -> Client {
        Client {
            socket: net.socket(host, 0),
            port,
            request: 0,
        }
    }

    fn send(&mut self, node: usize, text: &[u8]) {
        self.request += 1;
        let [high, low] = self.request.to_be_bytes();
        let datagram = [&[high, low, 0, 0, 0, 1, 0, 0], text].concat();
        self.socket.send_to(&datagram, at(node, self.port)).unwrap();
    }

    /// Returns the reply to the last request, from this node.
    fn receive(&self, node: usize, timeout: Duration) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        let mut reply = [0; 2048];
        loop {
            let (len, from) = self.socket.recv_from(&mut reply).ok()?;
            assert_eq!(from, at(node, self.port).into());
            if reply[..2] == self.request.to_be_bytes() {
                assert_eq!(reply[2..8], [0, 0, 0, 1, 0, 0]);
                return Some(reply[8..len].to_vec());
            }
        }
    }

    /// Also asks again if the leader has changed meanwhile, as after a stall.
    fn ask(&mut self, node: usize, text: &[u8]) -> Vec<u8> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.send(node, text);
            let reply = self.receive(node, RESEND_AFTER);
            if let Some(reply) = reply.filter(|reply| !is_unserved(reply)) {
                return reply;
            }
            let what = text.escape_ascii();
            assert!(Instant::now() < deadline, "no answer of {node} to {what}");
        }
    }

    /// Asks until this is the reply: a node's own copy may be behind.
    fn until(&mut self, node: usize, text: &[u8], expected: &[u8]) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let reply = self.ask(node, text);
            if reply == expected {
                return;
            }
            let what = reply.escape_ascii();
            assert!(Instant::now() < deadline, "{what} from {node}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether this is the reply of a node without a leader, or whose leader has changed meanwhile.
fn is_unserved(reply: &[u8]) -> bool {
    let replies = [
        &b"SERVER_ERROR no quorum; "[..],
        b"SERVER_ERROR whether it was done is unknown",
    ];
    replies.iter().any(|begin| reply.starts_with(begin))
}

/// Writes a value in parts to a key that has none. False: it is not known whether one of them was appended.
fn append_all(client: &mut Client, node: usize, key: &str, value: &[u8]) -> bool {
    let set = format!("set {key} 0 0 0\r\n\r\n");
    assert_eq!(client.ask(node, set.as_bytes()), b"STORED\r\n");
    value.chunks(1200).all(|part| {
        let append = format!("append {key} 0 0 {}\r\n", part.len());
        // Not sent again, which would append twice: this network loses nothing.
        client.send(node, &[append.as_bytes(), part, b"\r\n"].concat());
        let reply = client.receive(node, TIMEOUT).unwrap();
        assert!(reply == b"STORED\r\n" || is_unserved(&reply), "{reply:?}");
        reply == b"STORED\r\n"
    })
}

fn until_some<T>(what: &str, value: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} is not so");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_reads_from_the_packet_programs_of_all_nodes() {
    if !may_load_bpf() {
        return;
    }
    let cluster = Cluster::start();
    let mut client = Client::new(&cluster.net, CLIENT);
    // Where this node does not lead, SETs pass to the process, and so does a GET of two keys.
    assert_eq!(client.ask(1, b"set k 9 0 5\r\nhello\r\n"), b"STORED\r\n");
    let reply = b"VALUE k 9 5\r\nhello\r\nEND\r\n";
    for node in 1..=NODES {
        client.until(node, b"get k other\r\n", reply);
        client.until(node, b"get k\r\n", reply);
        for _ in 0..20 {
            assert_eq!(client.ask(node, b"get k\r\n"), reply);
            assert_eq!(client.ask(node, b"get nothing\r\n"), b"END\r\n");
        }
        // All of them were answered by the program, which has counted at least as many.
        cluster.until_beyond(node, "gets_hit", 19);
        cluster.until_beyond(node, "gets_miss", 19);
    }
    // The program reads what the process writes, whatever the length; a reply is one datagram at most.
    for len in [0, 1, 150, 184, 500, 1300, 1400, 100_000] {
        let value = vec![b'a' + (len % 26) as u8; len];
        let mut keys = (0..5).map(|attempt| format!("v{attempt}"));
        let key = keys.find(|key| append_all(&mut client, 2, key, &value));
        let key = key.expect("a leader that stays");
        let head = format!("VALUE {key} 0 {len}\r\n");
        let whole = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
        let expected = match whole.len() + 8 <= 1400 {
            true => whole,
            false => b"SERVER_ERROR the reply is longer than a datagram; ask over TCP\r\n".to_vec(),
        };
        for node in 1..=NODES {
            client.until(node, format!("get {key}\r\n").as_bytes(), &expected);
        }
    }
    // Items expire by the log's time, and the program no longer finds them.
    assert_eq!(client.ask(3, b"set soon 0 1 1\r\nx\r\n"), b"STORED\r\n");
    for node in 1..=NODES {
        client.until(node, b"get soon\r\n", b"END\r\n");
    }
    // Nobody else is answered, by the program or the process.
    let mut stranger = Client::new(&cluster.net, STRANGER);
    stranger.send(1, b"get k\r\n");
    assert_eq!(stranger.receive(1, SILENCE), None);
    cluster.until_beyond(1, "gateway_datagrams_refused", 0);
}

#[test]
fn what_the_leaders_packet_program_proposes_is_at_all_nodes_and_survives_it() {
    if !may_load_bpf() {
        return;
    }
    let mut cluster = Cluster::start();
    let mut client = Client::new(&cluster.net, CLIENT);
    let mut leader = cluster.leader();
    cluster.all_are_proposed(50, |node| {
        leader = node;
        for n in 0..50 {
            let value = "v".repeat(n * 20);
            let set = format!("set k{n} {n} 0 {}\r\n{value}\r\n", value.len());
            assert_eq!(client.ask(leader, set.as_bytes()), b"STORED\r\n", "{n}");
            // Exactly one answer.
            if n % 10 == 0 {
                assert_eq!(client.receive(leader, SILENCE), None, "a second answer");
            }
        }
    });
    for node in 1..=NODES {
        for n in 0..50 {
            let value = "v".repeat(n * 20);
            let expected = format!("VALUE k{n} {n} {}\r\n{value}\r\nEND\r\n", value.len());
            assert_eq!(cluster.read(node, &format!("k{n}")), expected, "at {node}");
        }
    }
    let mut stranger = Client::new(&cluster.net, STRANGER);
    stranger.send(leader, b"set k0 0 0 1\r\nx\r\n");
    assert_eq!(stranger.receive(leader, SILENCE), None);
    // The leader is killed while SETs are under way.
    let leader = cluster.leader();
    let mut acknowledged = Vec::new();
    for n in 0..400 {
        client.send(leader, format!("set l{n} 0 0 1\r\nx\r\n").as_bytes());
        if n == 300 {
            cluster.processes[leader - 1].kill().unwrap();
        }
        if n < 300 && client.receive(leader, RESEND_AFTER).as_deref() == Some(b"STORED\r\n") {
            acknowledged.push(n);
        }
    }
    assert!(acknowledged.len() > 200, "{}", acknowledged.len());
    let other = (1..=NODES).find(|node| *node != leader).unwrap();
    for n in acknowledged {
        let expected = format!("VALUE l{n} 0 1\r\nx\r\nEND\r\n");
        assert_eq!(cluster.read(other, &format!("l{n}")), expected);
    }
    assert_eq!(cluster.read(other, "k0"), "VALUE k0 0 0\r\n\r\nEND\r\n");
}

/// At the port of linearizable GETs, the leader's packet program proposes SETs, and the process answers them and all GETs
/// from that port.
#[test]
fn a_set_at_the_strong_port_is_proposed_by_the_packet_program_and_read_by_all() {
    if !may_load_bpf() {
        return;
    }
    let cluster = Cluster::start();
    let mut client = Client::of_port(&cluster.net, CLIENT, STRONG_PORT);
    let mut leader = cluster.leader();
    let mut round = 0;
    cluster.all_are_proposed(20, |node| {
        (leader, round) = (node, round + 1);
        for n in 0..20 {
            let set = format!("set k{n} {round} 0 1\r\nx\r\n");
            assert_eq!(client.ask(leader, set.as_bytes()), b"STORED\r\n", "{n}");
            // No read at any node is older than the reply.
            for node in 1..=NODES {
                let expected = format!("VALUE k{n} {round} 1\r\nx\r\nEND\r\n");
                let reply = client.ask(node, format!("get k{n}\r\n").as_bytes());
                assert_eq!(String::from_utf8_lossy(&reply), expected, "at {node}");
            }
        }
    });
    for node in 1..=NODES {
        assert_eq!(cluster.counter(node, "gets_hit"), 0, "{node}");
    }
    // Elsewhere the process submits them.
    let follower = leader % NODES + 1;
    assert_eq!(
        client.ask(follower, b"set k0 0 0 1\r\ny\r\n"),
        b"STORED\r\n"
    );
    let mut stranger = Client::of_port(&cluster.net, STRANGER, STRONG_PORT);
    stranger.send(leader, b"set k0 0 0 1\r\nx\r\n");
    assert_eq!(stranger.receive(leader, SILENCE), None);
    let reply = client.ask(leader, b"get k0\r\n");
    assert_eq!(reply, b"VALUE k0 0 1\r\ny\r\nEND\r\n");
}
