//! memcached clients over UDP: the same replies as memcached, in one datagram, and only to permitted networks.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_box::gateway::datagrams::Listener;
use inband_box::gateway::{Counters, Gateway, Settings};
use inband_box::local::Local;
use inband_box::network::Network;
use inband_testing::not_run;

/// How long an answer may take; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Where no answer is expected, one would have arrived within this time.
const SILENCE: Duration = Duration::from_millis(200);

struct Served {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(network: Network) -> Served {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = socket.local_addr().expect("an address");
        let local = Local::new(10_000).expect("memory");
        let reader = local.machine().reader();
        let listener = Listener {
            socket,
            network,
            is_local: false,
        };
        let settings = Settings::default();
        let gateway = Gateway::with_datagrams(vec![tcp], vec![listener], reader, local, settings);
        let mut gateway = gateway.expect("a gateway");
        let (counters, stop) = (gateway.counters(), Arc::new(AtomicBool::new(false)));
        let is_over = stop.clone();
        let thread = std::thread::spawn(move || gateway.run(&is_over).expect("it runs"));
        Served {
            address,
            counters,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let joined = self.thread.take().expect("it was started").join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

struct Client {
    socket: UdpSocket,
    request: u16,
}

fn frame(request: u16, text: &[u8]) -> Vec<u8> {
    let [high, low] = request.to_be_bytes();
    [&[high, low, 0, 0, 0, 1, 0, 0], text].concat()
}

impl Client {
    fn new(server: SocketAddr) -> Client {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        socket.connect(server).expect("connected");
        Client { socket, request: 0 }
    }

    fn send(&mut self, text: &[u8]) {
        self.request += 1;
        self.socket
            .send(&frame(self.request, text))
            .expect("it is sent");
    }

    fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(timeout)).expect("set");
        let mut reply = [0; 65536];
        let len_bytes = self.socket.recv(&mut reply).ok()?;
        assert!(len_bytes <= 1400, "{len_bytes} bytes");
        assert_eq!(reply[..8], frame(self.request, b"")[..], "one datagram");
        Some(reply[8..len_bytes].to_vec())
    }

    fn ask(&mut self, text: &[u8]) -> Vec<u8> {
        self.send(text);
        let reply = self.receive(TIMEOUT);
        reply.unwrap_or_else(|| panic!("no answer to {}", text.escape_ascii()))
    }

    fn is_ignored(&mut self, text: &[u8]) {
        self.send(text);
        let reply = self.receive(SILENCE);
        assert_eq!(reply, None, "{}", text.escape_ascii());
    }
}

struct Memcached(Child);

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts memcached over UDP, if it is installed.
fn memcached() -> Option<(Memcached, SocketAddr)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = socket.local_addr().expect("an address");
    drop(socket);
    let started = Command::new("memcached")
        .args(["-l", "127.0.0.1", "-p", "0", "-u", "root", "-U"])
        .arg(address.port().to_string())
        .stderr(Stdio::null())
        .spawn();
    match started {
        Ok(child) => Some((Memcached(child), address)),
        Err(error) => {
            not_run(format!("memcached: {error}"));
            None
        }
    }
}

#[test]
fn replies_over_udp_are_memcached_s() {
    let Some((_process, address)) = memcached() else {
        return;
    };
    let mut theirs = Client::new(address);
    let until = Instant::now() + TIMEOUT;
    loop {
        // Until it listens, the kernel refuses datagrams.
        let _ = theirs.socket.send(&frame(0, b"version\r\n"));
        theirs.request = 0;
        if theirs.receive(SILENCE).is_some() {
            break;
        }
        assert!(Instant::now() < until, "memcached does not answer");
    }
    while theirs.socket.recv(&mut [0; 100]).is_ok() {}
    let served = Served::start(Network::LOOPBACK);
    let mut ours = Client::new(served.address);
    let long = format!("set long 0 0 1200\r\n{}\r\n", "x".repeat(1200));
    let requests = [
        "get k\r\n",
        "set k 5 0 5\r\nhello\r\n",
        "get k\r\n",
        "add k 0 0 1\r\nx\r\n",
        "append k 0 0 1\r\nx\r\n",
        "get k\r\n",
        "delete k\r\n",
        "delete k\r\n",
        "set n 0 0 2\r\n41\r\n",
        "incr n 1\r\n",
        "touch n 100\r\n",
        "set n 0 0 x\r\n",
        "get n\r\nget n\r\n",
        &long,
        "get long\r\n",
    ];
    for request in requests {
        // memcached answers each request of a datagram; here only one is allowed.
        if request.matches("get").count() > 1 {
            assert_eq!(ours.ask(request.as_bytes()), ours.ask(b"get n\r\n"));
            continue;
        }
        let (ours, theirs) = (ours.ask(request.as_bytes()), theirs.ask(request.as_bytes()));
        let (ours, theirs) = (ours.escape_ascii(), theirs.escape_ascii());
        assert_eq!(ours.to_string(), theirs.to_string(), "{request}");
    }
}

#[test]
fn a_reply_is_one_datagram_and_nothing_answers_a_reply() {
    let served = Served::start(Network::LOOPBACK);
    let mut client = Client::new(served.address);
    for key in ["a", "b"] {
        let value = "x".repeat(1300);
        let stored = client.ask(format!("set {key} 0 0 1300\r\n{value}\r\n").as_bytes());
        assert_eq!(stored, b"STORED\r\n");
    }
    let refused = client.ask(b"get a b\r\n");
    assert!(refused.starts_with(b"SERVER_ERROR the reply is longer than a datagram"));
    assert_eq!(
        client.ask(b"get a\r\n").len(),
        "VALUE a 0 1300\r\nEND\r\n".len() + 1302
    );
    let refused = client.ask(b"gat 0 a\r\n");
    assert!(refused.starts_with(b"SERVER_ERROR not over UDP"));

    let before = served.counters.datagrams_refused.load(Ordering::Relaxed);
    let replies = [
        "STORED\r\n",
        "END\r\n",
        "ERROR\r\n",
        "SERVER_ERROR x\r\n",
        "41\r\n",
    ];
    let others = ["", "get a", "nothing\r\n"];
    for text in replies.iter().chain(&others) {
        client.is_ignored(text.as_bytes());
    }
    // Not a frame with one datagram.
    client.socket.send(b"get a\r\n").expect("sent");
    client
        .socket
        .send(&[0, 1, 0, 1, 0, 2, 0, 0, b'g'])
        .expect("sent");
    client.is_ignored(b"set quiet 0 0 1 noreply\r\nx\r\n");
    assert_eq!(
        client.ask(b"get quiet\r\n"),
        b"VALUE quiet 0 1\r\nx\r\nEND\r\n"
    );
    let refused = served.counters.datagrams_refused.load(Ordering::Relaxed) - before;
    assert_eq!(refused, 10);
}

#[test]
fn strangers_are_not_answered() {
    let served = Served::start("127.0.0.2/32".parse().expect("a network"));
    let mut stranger = Client::new(served.address);
    stranger.is_ignored(b"version\r\n");
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("loopback");
    socket.connect(served.address).expect("connected");
    let mut client = Client { socket, request: 7 };
    assert!(client.ask(b"version\r\n").starts_with(b"VERSION "));
    assert_eq!(served.counters.datagrams_refused.load(Ordering::Relaxed), 1);
    assert_eq!(served.counters.datagrams.load(Ordering::Relaxed), 1);
}
