//! A FLAIR switch as a program on an interface, with sockets as replicas and clients, between network namespaces.

use crate::common;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::net::{address, Net, PORT, TIMEOUT};
use inband_flair::dataplane::wire::{digest, emit, flag, key_hash, parse, Header, Type};
use inband_flair::dataplane::xdp::{
    allow_forwarding, forward_of, may_look_up_clients, FlairXdp, FlairXdpSpec,
};
use inband_flair::dataplane::FlairGeometry;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

const GEOMETRY: FlairGeometry = FlairGeometry {
    sets: 1,
    groups: 64,
};
/// Hosts of the network; the leader is replica 0.
const SWITCH: usize = 1;
const LEADER: usize = 2;
const FOLLOWER: usize = 3;
const CLIENT: usize = 4;
const INCARNATION: u64 = 0x1234_5678_9abc_def0;
const SESSION: u64 = 5;
const STEP_DOWN_NS: u64 = 30_000_000_000;
const KEY: &[u8] = b"a key of some 24 bytes.";

fn spec(mode: XdpMode) -> FlairXdpSpec {
    FlairXdpSpec {
        node: SWITCH as u8,
        geometry: GEOMETRY,
        incarnation: INCARNATION,
        address: address(SWITCH),
        interface: "eth0".into(),
        mode,
        replicas: vec![vec![address(LEADER), address(FOLLOWER)]],
        keys: None,
    }
}

/// The sockets around a switch.
struct Testbed {
    net: Net,
    switch: FlairXdp,
    /// The socket of the switch's own process.
    process: UdpSocket,
    leader: UdpSocket,
    follower: UdpSocket,
    client: UdpSocket,
}

fn packet(header: &Header, data: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let key = if header.key_hash == key_hash(KEY) {
        KEY
    } else {
        b""
    };
    emit(header, key, data, &mut packet);
    common::tag(&mut packet);
    packet
}

/// A packet for the key.
fn about_key(kind: Type, node: usize, data: &[u8]) -> Header {
    Header {
        key_hash: key_hash(KEY),
        digest: digest(data),
        ..Header::new(kind, 0, node as u16)
    }
}

/// The next packet of a socket: header, data and sender.
fn receive(socket: &UdpSocket) -> (Header, Vec<u8>, SocketAddr) {
    let mut buffer = [0; PACKET_LEN_MAX_BYTES];
    let (len, from) = socket.recv_from(&mut buffer).expect("a packet in time");
    let (header, _, data) = parse(&buffer[..len]).unwrap();
    (header, data.to_vec(), from)
}

impl Testbed {
    fn new(mode: XdpMode) -> Testbed {
        let net = Net::new();
        let mut switch = net.on(SWITCH, || FlairXdp::load(spec(mode)).unwrap());
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let unresolved = switch.refresh_neighbours().unwrap();
            if unresolved.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{unresolved:?}");
            thread::sleep(Duration::from_millis(20));
        }
        let socket = |node| net.socket(node, PORT);
        let testbed = Testbed {
            switch,
            process: socket(SWITCH),
            leader: socket(LEADER),
            follower: socket(FOLLOWER),
            client: socket(CLIENT),
            net,
        };
        testbed.begin_session();
        testbed
    }

    fn send(&self, socket: &UdpSocket, header: &Header, data: &[u8]) {
        socket
            .send_to(&packet(header, data), address(SWITCH))
            .unwrap();
    }

    /// Sends INSTALL, then a heartbeat with the time from its answer.
    fn begin_session(&self) {
        let mut install = Header::new(Type::Install, 0, LEADER as u16);
        (install.session, install.seq) = (SESSION, INCARNATION);
        (install.term, install.log_index) = (3, 10);
        (install.followers, install.window) = (0b11, 0b11);
        install.client_id = STEP_DOWN_NS;
        install.set_weights([0, 1, 0, 0, 0, 0, 0, 0]);
        self.send(&self.leader, &install, b"");
        let (answer, _, from) = receive(&self.leader);
        assert_eq!(from, SocketAddr::V4(address(SWITCH)));
        assert!(answer.has(flag::ANSWER) && answer.session == SESSION);
        let mut heartbeat = install;
        heartbeat.kind = Type::Heartbeat;
        heartbeat.client_seq = answer.switch_time_ns();
        self.send(&self.leader, &heartbeat, b"");
        let (answer, ..) = receive(&self.leader);
        assert!(answer.switch_time_ns() > heartbeat.client_seq);
    }

    /// Forwards a packet, as the switch's process does.
    fn forward_one(&self) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let (len, _) = self
            .process
            .recv_from(&mut buffer)
            .expect("a reply comes up");
        let to = forward_of(&buffer[..len], SWITCH as u8).expect("it was handled");
        self.process.send_to(&buffer[..len], to).unwrap();
    }

    fn client_address(&self) -> SocketAddrV4 {
        address(CLIENT)
    }

    /// Writes a value and reads it back. With `by_host`, replies go through the switch's process.
    fn write_and_read(&self, value: &[u8], seq: u64, by_host: bool) {
        let mut write = about_key(Type::Write, 0, value);
        (write.client_id, write.client_seq) = (7, seq);
        self.send(&self.client, &write, value);
        let (mut reply, data, from) = receive(&self.leader);
        assert_eq!(from, SocketAddr::V4(address(SWITCH)));
        assert_eq!(
            (reply.kind, reply.seq, &data[..]),
            (Type::Write, seq, value)
        );
        assert_eq!((reply.session, reply.term), (SESSION, 3));
        assert_eq!(reply.client, self.client_address());
        (reply.kind, reply.node) = (Type::WriteReply, LEADER as u16);
        (reply.log_index, reply.followers) = (10 + seq, 0b11);
        reply.digest = digest(b"");
        self.send(&self.leader, &reply, b"");
        if by_host {
            self.forward_one();
        }
        let (answer, _, from) = receive(&self.client);
        assert_eq!(from, SocketAddr::V4(address(SWITCH)));
        assert_eq!((answer.kind, answer.client_seq), (Type::WriteReply, seq));

        self.send(&self.client, &about_key(Type::Read, 0, b""), b"");
        let (mut reply, ..) = receive(&self.follower);
        assert!(reply.has(flag::STABLE));
        assert_eq!((reply.seq, reply.log_index), (seq, 10 + seq));
        (reply.kind, reply.node) = (Type::ReadReply, FOLLOWER as u16);
        reply.digest = digest(value);
        // A follower's refusal is redirected to the leader, whose answer passes.
        let mut refused = reply;
        refused.flags |= flag::REFUSED;
        self.send(&self.follower, &refused, value);
        let (again, data, _) = receive(&self.leader);
        assert_eq!((again.kind, again.flags, data.len()), (Type::Read, 0, 0));
        assert_eq!(
            (again.key_hash, again.client),
            (key_hash(KEY), self.client_address())
        );
        self.send(&self.follower, &reply, value);
        if by_host {
            self.forward_one();
        }
        let (answer, data, _) = receive(&self.client);
        assert_eq!((answer.kind, &data[..]), (Type::ReadReply, value));
    }
}

fn reads_and_writes(mode: XdpMode) {
    let testbed = Testbed::new(mode);
    let looks_up = || testbed.net.on(SWITCH, || may_look_up_clients("eth0"));
    let by_host = || {
        let counters = testbed.switch.counters().unwrap();
        counters.get("flair_client_by_host").copied().unwrap_or(0)
    };
    assert!(!looks_up(), "a new namespace does not forward");
    testbed.write_and_read(b"short", 1, true);
    assert_eq!(by_host(), 2);
    testbed.net.on(SWITCH, || allow_forwarding("eth0").unwrap());
    assert!(looks_up());
    testbed.write_and_read(&[7; 1024], 2, false);
    testbed.write_and_read(b"", 3, false);
    assert_eq!(by_host(), 2, "the kernel knows the way");
    let counters = testbed.switch.counters().unwrap();
    assert_eq!(counters["flair_write_stable"], 3);
    assert_eq!(counters["flair_read_of_follower"], 3);
    assert_eq!(
        testbed.switch.registers().sessions.session(0).unwrap().seq,
        3
    );
    // The process received nothing else.
    testbed.process.set_nonblocking(true).unwrap();
    assert!(testbed.process.recv(&mut [0; 64]).is_err());
}

#[test]
fn reads_and_writes_native() {
    if common::may_load_bpf() {
        reads_and_writes(XdpMode::Native);
    }
}

#[test]
fn reads_and_writes_generic() {
    if common::may_load_bpf() {
        reads_and_writes(XdpMode::Generic);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    if !common::may_load_bpf() {
        return;
    }
    let net = Net::new();
    let why = |change: &dyn Fn(&mut FlairXdpSpec)| {
        let mut spec = spec(XdpMode::Native);
        change(&mut spec);
        let loaded = net.on(SWITCH, || FlairXdp::load(spec).map(drop));
        loaded.expect_err("is refused")
    };
    let said = |change: &dyn Fn(&mut FlairXdpSpec)| match why(change) {
        XdpError::Spec(text) => text,
        other => panic!("{other}"),
    };
    assert!(said(&|spec| spec.node = 255).contains("254"));
    assert!(said(&|spec| spec.replicas.clear()).contains("0 sets"));
    assert!(said(&|spec| spec.geometry.groups = 65537).contains("65536"));
    let nine = vec![address(LEADER); 9];
    assert!(said(&|spec| spec.replicas = vec![nine.clone()]).contains("8"));
    let no_address = why(&|spec| spec.address = address(LEADER));
    assert!(matches!(no_address, XdpError::NoAddress { .. }));
    let first = net.on(SWITCH, || FlairXdp::load(spec(XdpMode::Native)).unwrap());
    assert!(matches!(why(&|_| ()), XdpError::Busy { .. }));
    assert!(first.memory_bytes() >= 64 * 64);
}
