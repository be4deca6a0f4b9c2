//! Real packets between network namespaces: one per host, each with a veth to a common bridge.

use crate::common;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::net::{address, Net, PORT, TIMEOUT};
use inband_ground::xdp::XdpMode;
use inband_paxos::dataplane::registers::LeaderView;
use inband_paxos::dataplane::round::round;
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::dataplane::wire::{self, digest, emit, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_paxos::dataplane::xdp::{Peer, XdpHost, XdpSpec};

const GEOMETRY: Geometry = Geometry {
    partitions: 2,
    ring_slots: 64,
};
const EPOCH: u32 = 3;

const LEADER: Roles = Roles {
    leader: true,
    acceptor: false,
    quorum: false,
};
const ACCEPTOR: Roles = Roles {
    leader: false,
    acceptor: true,
    quorum: false,
};
const QUORUM: Roles = Roles {
    leader: false,
    acceptor: false,
    quorum: true,
};
const ALL: Roles = Roles {
    leader: true,
    acceptor: true,
    quorum: true,
};

trait Hosts {
    fn host(&self, node: usize, spec: XdpSpec) -> XdpHost;
}

impl Hosts for Net {
    fn host(&self, node: usize, spec: XdpSpec) -> XdpHost {
        self.on(node, || XdpHost::load(spec))
            .unwrap_or_else(|e| panic!("node {node}: {e}"))
    }
}

fn peers(me: usize, nodes: &[usize]) -> Vec<Peer> {
    let peer = |n: &usize| Peer {
        node: *n as u8,
        address: address(*n),
        local: *n == me,
    };
    nodes.iter().map(peer).collect()
}

fn spec(
    node: usize,
    roles: Roles,
    mode: XdpMode,
    acceptors: &[usize],
    learners: &[usize],
) -> XdpSpec {
    XdpSpec {
        node: node as u8,
        roles,
        geometry: GEOMETRY,
        address: address(node),
        interface: "eth0".into(),
        mode,
        acceptors: peers(node, acceptors),
        learners: peers(node, learners),
        ring_buffer_bytes: 64 * 1024,
        loopback: false,
        keys: None,
    }
}

/// Waits until the kernel has resolved every peer.
fn resolve(host: &mut XdpHost) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let unresolved = host.refresh_neighbours().unwrap();
        if unresolved.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{unresolved:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn start_leader(host: &XdpHost) {
    let round = round(1, 1, host.spec().node).unwrap();
    let view = LeaderView {
        round,
        next: 1,
        floor: 1,
        epoch: u64::from(EPOCH),
    };
    host.registers().leader.activate(1, view);
}

fn start_acceptor(host: &XdpHost) {
    host.registers()
        .acceptor
        .start(1, u64::from(EPOCH), 1, true);
}

fn request(seq: u64, value: &[u8]) -> Vec<u8> {
    let mut header = Header::new(Type::Request, 99, EPOCH);
    header.partition = 1;
    header.client_id = 7;
    header.client_seq = seq;
    header.digest = digest(value);
    let mut packet = Vec::new();
    emit(&header, value, &mut packet);
    common::tag(&mut packet);
    packet
}

/// Collects decided packets while they arrive, for at most `TIMEOUT`, then a little longer to check that there are no
/// more.
fn collect(learner: &mut XdpHost, expected: usize) -> Vec<(Header, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    let mut settle = None;
    while Instant::now() < settle.unwrap_or(deadline) {
        learner.decided(|packet| {
            let (header, value) = wire::parse(packet).unwrap();
            got.push((header, value.to_vec()));
        });
        if got.len() >= expected && settle.is_none() {
            settle = Some(Instant::now() + Duration::from_millis(100));
        }
        thread::sleep(Duration::from_millis(1));
    }
    got
}

fn check(got: &[(Header, Vec<u8>)], first: u64, values: &[Vec<u8>]) {
    let instances: Vec<u64> = got.iter().map(|(h, _)| h.instance).collect();
    let expected: Vec<u64> = (first..first + values.len() as u64).collect();
    assert_eq!(instances, expected, "each instance once, in order");
    for ((header, value), sent) in got.iter().zip(values) {
        assert_eq!((value, header.digest), (sent, digest(sent)));
        assert_eq!(
            (header.kind, header.client_id, header.partition),
            (Type::Phase2B, 7, 1)
        );
    }
}

fn values(n: usize) -> Vec<Vec<u8>> {
    let len = |i: usize| [0, 1, 16, 64, 500, wire::VALUE_LEN_MAX_BYTES][i % 6];
    (0..n).map(|i| vec![i as u8 + 1; len(i)]).collect()
}

/// Client 1, leader 2, acceptors 3, 4, 5, learner 6.
fn spread(mode: XdpMode) {
    let net = Net::new();
    let mut leader = net.host(2, spec(2, LEADER, mode, &[3, 4, 5], &[]));
    let mut acceptors: Vec<XdpHost> = (3..=5)
        .map(|n| net.host(n, spec(n, ACCEPTOR, mode, &[], &[6])))
        .collect();
    let mut learner = net.host(6, spec(6, QUORUM, mode, &[], &[]));
    for host in acceptors.iter_mut().chain([&mut leader]) {
        resolve(host);
    }
    start_leader(&leader);
    acceptors.iter().for_each(start_acceptor);
    learner
        .registers()
        .quorum
        .configure(u64::from(EPOCH), &[3, 4, 5]);

    let client = net.socket(1, PORT);
    let sent = values(48);
    for (i, value) in sent.iter().enumerate() {
        client
            .send_to(&request(i as u64, value), address(2))
            .unwrap();
    }
    check(&collect(&mut learner, sent.len()), 1, &sent);
    for (host, name) in acceptors
        .iter()
        .chain([&leader, &learner])
        .zip(["a", "b", "c", "l", "q"])
    {
        eprintln!("{mode} {name}: {:?}", host.counters().unwrap());
    }
    for acceptor in &acceptors {
        assert_eq!(
            acceptor.counters().unwrap()["acceptor_voted"],
            sent.len() as u64
        );
        assert_eq!(
            acceptor.registers().acceptor.acceptor(1).highest,
            sent.len() as u64
        );
    }
    let counters = learner.counters().unwrap();
    assert_eq!(counters["quorum_reached"], sent.len() as u64);
    assert_eq!(
        counters["quorum_late"] + counters["quorum_counted"],
        2 * sent.len() as u64
    );
    malformed(&client, &acceptors[0]);
}

/// The groups of a running host change: fewer acceptors, more, and a different learner.
fn regroup(mode: XdpMode) {
    let net = Net::new();
    let mut leader = net.host(2, spec(2, LEADER, mode, &[3, 4, 5], &[]));
    let mut acceptors: Vec<XdpHost> = (3..=5)
        .map(|n| net.host(n, spec(n, ACCEPTOR, mode, &[], &[6])))
        .collect();
    for host in acceptors.iter_mut().chain([&mut leader]) {
        resolve(host);
    }
    start_leader(&leader);
    acceptors.iter().for_each(start_acceptor);
    let mut learners: Vec<XdpHost> = [6, 7]
        .map(|n| net.host(n, spec(n, QUORUM, mode, &[], &[])))
        .into();
    for learner in &learners {
        let quorum = &learner.registers().quorum;
        quorum.configure(u64::from(EPOCH), &[3, 4, 5]);
    }
    let client = net.socket(1, PORT);
    let decide = |learner: &mut XdpHost, first: u64| {
        let sent = values(12);
        for (i, value) in sent.iter().enumerate() {
            let packet = request(first + i as u64, value);
            client.send_to(&packet, address(2)).unwrap();
        }
        check(&collect(learner, sent.len()), first, &sent);
    };
    let voted = |acceptors: &[XdpHost]| {
        let voted = |a: &XdpHost| a.counters().unwrap()["acceptor_voted"];
        acceptors.iter().map(voted).collect::<Vec<u64>>()
    };
    decide(&mut learners[0], 1);
    assert_eq!(voted(&acceptors), [12, 12, 12]);
    // Interface numbers are local to a namespace.
    let mut lead = |acceptors: &[usize]| {
        let acceptors = peers(2, acceptors);
        net.on(2, || leader.set_groups(acceptors, Vec::new()).unwrap());
    };
    lead(&[4, 5]);
    decide(&mut learners[0], 13);
    assert_eq!(voted(&acceptors), [12, 24, 24]);
    lead(&[5, 4, 3]);
    for (acceptor, node) in acceptors.iter_mut().zip(3..) {
        let learner = peers(node, &[7]);
        net.on(node, || acceptor.set_groups(Vec::new(), learner).unwrap());
        resolve(acceptor);
    }
    decide(&mut learners[1], 25);
    assert_eq!(voted(&acceptors), [24, 36, 36]);
    assert_eq!(collect(&mut learners[0], 0), [], "no learner any more");
    let error = leader.set_groups(peers(4, &[4, 5]), Vec::new());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no way to this host"), "{error}");
}

/// Damage on the path to a role is counted by kind and has no other effect.
fn malformed(client: &UdpSocket, acceptor: &XdpHost) {
    let before = acceptor.registers().acceptor.acceptor(1);
    let good = request(1, b"value");
    let mut bad: Vec<(&str, Vec<u8>)> = vec![
        ("bad_truncated", good[..40].to_vec()),
        ("bad_truncated", Vec::new()),
        ("bad_length", good[..good.len() - 1].to_vec()),
    ];
    for (at, reason) in [
        (0, "bad_magic"),
        (4, "bad_version"),
        (5, "bad_type"),
        (8, "bad_partition"),
    ] {
        let mut packet = good.clone();
        packet[at] = 0xee;
        bad.push((reason, packet));
    }
    let mut no_node = good.clone();
    no_node[10..12].fill(0);
    bad.push(("bad_node", no_node));
    for (_, packet) in &bad {
        client.send_to(packet, address(3)).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let counters = acceptor.counters().unwrap();
        let expected = |reason: &str| bad.iter().filter(|(r, _)| *r == reason).count() as u64;
        let arrived = |(reason, _): &(&str, Vec<u8>)| {
            counters.get(reason).copied().unwrap_or(0) == expected(reason)
        };
        if bad.iter().all(arrived) {
            break;
        }
        assert!(Instant::now() < deadline, "{counters:?}");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(acceptor.registers().acceptor.acceptor(1), before);
}

/// Client 1; leader, acceptor and learner on 2; acceptors 3, 4; learner 6.
fn together(mode_here: XdpMode, mode_there: XdpMode) {
    let net = Net::new();
    let mut here = net.host(2, spec(2, ALL, mode_here, &[2, 3, 4], &[2, 6]));
    let mut there: Vec<XdpHost> = (3..=4)
        .map(|n| net.host(n, spec(n, ACCEPTOR, mode_there, &[], &[2, 6])))
        .collect();
    let mut learner = net.host(6, spec(6, QUORUM, mode_there, &[], &[]));
    for host in there.iter_mut().chain([&mut here]) {
        resolve(host);
        start_acceptor(host);
    }
    start_leader(&here);
    for host in [&here, &learner] {
        host.registers()
            .quorum
            .configure(u64::from(EPOCH), &[2, 3, 4]);
    }
    let client = net.socket(1, PORT);
    let sent = values(24);
    for (i, value) in sent.iter().enumerate() {
        client
            .send_to(&request(i as u64, value), address(2))
            .unwrap();
    }
    check(&collect(&mut here, sent.len()), 1, &sent);
    check(&collect(&mut learner, sent.len()), 1, &sent);
    eprintln!("{mode_here}: {:?}", here.counters().unwrap());
    for acceptor in there.iter().chain([&here]) {
        assert_eq!(
            acceptor.counters().unwrap()["acceptor_voted"],
            sent.len() as u64
        );
    }

    // The host's own process uses its own roles,
    let own = net.socket(2, PORT);
    for (i, value) in sent.iter().enumerate() {
        here.send_local(&request(100 + i as u64, value)).unwrap();
    }
    let first = sent.len() as u64 + 1;
    check(&collect(&mut here, sent.len()), first, &sent);
    check(&collect(&mut learner, sent.len()), first, &sent);
    answers(&own, |packet| here.send_local(packet).unwrap());
    // ... and so does another host.
    answers(&client, |packet| {
        let _ = client.send_to(packet, address(2)).unwrap();
    });

    let near = format!("ib{}-loop0", 2);
    let there_is = |name: &str| net.on(2, || nix::net::if_::if_nametoindex(name).is_ok());
    assert!(there_is(&near));
    drop(here);
    assert!(!there_is(&near), "the pair goes with its host");
}

/// POSITION of leader and acceptor, LEARN of an instance, and a promise of it: answers go to `socket`.
fn answers(socket: &UdpSocket, send: impl Fn(&[u8])) {
    let ask = |kind, flags, instance, round| {
        let mut header = Header::new(kind, 99, EPOCH);
        (
            header.partition,
            header.flags,
            header.instance,
            header.round,
        ) = (1, flags, instance, round);
        let mut packet = Vec::new();
        emit(&header, b"", &mut packet);
        common::tag(&mut packet);
        send(&packet);
        let mut answer = [0u8; PACKET_LEN_MAX_BYTES];
        let (len, _) = socket.recv_from(&mut answer).unwrap();
        let (header, value) = wire::parse(&answer[..len]).unwrap();
        (header, value.to_vec())
    };
    let (leader, _) = ask(Type::Position, flag::LEADER, 0, 0);
    assert_eq!((leader.node, leader.instance), (2, 49));
    assert!(leader.has(flag::ANSWER | flag::LEADER));
    let (acceptor, _) = ask(Type::Position, 0, 0, 0);
    assert_eq!((acceptor.node, acceptor.instance), (2, 48));
    let (learned, value) = ask(Type::Learn, 0, 30, 0);
    assert_eq!(
        (learned.kind, learned.instance, value),
        (Type::Phase2B, 30, values(24)[5].clone())
    );
    assert!(learned.has(flag::REPEAT));
    let (promised, value) = ask(Type::Phase1A, flag::SLOT, 30, round(2, 1, 9).unwrap());
    assert!(promised.has(flag::SLOT | flag::VOTE) && promised.kind == Type::Phase1B);
    assert_eq!(value, values(24)[5]);
}

#[test]
fn a_request_is_decided_across_hosts_native() {
    if common::may_load_bpf() {
        spread(XdpMode::Native);
    }
}

#[test]
fn a_request_is_decided_across_hosts_generic() {
    if common::may_load_bpf() {
        spread(XdpMode::Generic);
    }
}

#[test]
fn members_of_groups_change() {
    regroup(XdpMode::Native);
    regroup(XdpMode::Generic);
}

#[test]
fn roles_on_one_host_talk_to_each_other() {
    if common::may_load_bpf() {
        together(XdpMode::Native, XdpMode::Native);
        together(XdpMode::Generic, XdpMode::Generic);
        together(XdpMode::Native, XdpMode::Generic);
    }
}

/// TCP, UDP to other ports, large (fragmented) UDP, and ICMP between two hosts with programs attached.
#[test]
fn other_traffic_is_unaffected() {
    if !common::may_load_bpf() {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let net = Net::new();
        let hosts = [2, 3].map(|n| net.host(n, spec(n, ALL, mode, &[2, 3], &[2, 3])));
        let (a, b) = (net.socket(2, 9000), net.socket(3, 9000));
        let mut buffer = [0u8; 65536];
        for len in [0usize, 1, 100, 1472, 1473, 9000] {
            a.send_to(&vec![7; len], (*address(3).ip(), 9000)).unwrap();
            let (got, from) = b.recv_from(&mut buffer).unwrap();
            assert_eq!((got, buffer[..got].iter().all(|b| *b == 7)), (len, true));
            b.send_to(&buffer[..got], from).unwrap();
            assert_eq!(a.recv_from(&mut buffer).unwrap().0, len);
        }
        // A fragmented packet to our port is not ours; the host gets it.
        let own = net.socket(3, PORT);
        a.send_to(&[7; 4000], address(3)).unwrap();
        assert_eq!(own.recv_from(&mut buffer).unwrap().0, 4000);
        tcp(&net);
        ping(&net);
        for host in &hosts {
            assert_eq!(
                host.counters().unwrap().len(),
                0,
                "nothing was taken for ours"
            );
        }
    }
}

fn tcp(net: &Net) {
    const BYTES: usize = 4 << 20;
    let listener = net.on(3, || TcpListener::bind((*address(3).ip(), PORT)).unwrap());
    let receiver = thread::spawn(move || {
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        got
    });
    let mut stream = net.on(2, || TcpStream::connect(address(3)).unwrap());
    let sent: Vec<u8> = (0..BYTES).map(|i| (i / 7) as u8).collect();
    stream.write_all(&sent).unwrap();
    drop(stream);
    assert!(receiver.join().unwrap() == sent);
}

fn ping(net: &Net) {
    use nix::sys::socket::{recv, sendto, setsockopt, socket, sockopt};
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn};
    use std::os::fd::AsRawFd;
    net.on(2, || {
        let raw = socket(
            AddressFamily::Inet,
            SockType::Raw,
            SockFlag::empty(),
            Some(SockProtocol::Icmp),
        )
        .unwrap();
        let timeout = nix::sys::time::TimeVal::new(TIMEOUT.as_secs() as i64, 0);
        setsockopt(&raw, sockopt::ReceiveTimeout, &timeout).unwrap();
        // Echo request, code 0, checksum, identifier 1, sequence 1.
        let request = [8u8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
        let to = SockaddrIn::from(address(3));
        sendto(raw.as_raw_fd(), &request, &to, MsgFlags::empty()).unwrap();
        let mut answer = [0u8; 128];
        let len = recv(raw.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        assert_eq!((len, answer[20]), (28, 0), "an echo reply");
    });
}

#[test]
fn errors_name_the_cure() {
    if !common::may_load_bpf() {
        return;
    }
    let net = Net::new();
    let load = |change: &dyn Fn(&mut XdpSpec)| {
        let mut spec = spec(2, ALL, XdpMode::Native, &[2, 3], &[2]);
        change(&mut spec);
        net.on(2, || {
            XdpHost::load(spec).map(|_| ()).map_err(|e| e.to_string())
        })
    };
    let missing = load(&|s| s.interface = "eth9".into()).unwrap_err();
    assert!(
        missing.contains("\"eth9\"") && missing.contains("eth0"),
        "{missing}"
    );
    let refused = load(&|s| {
        s.interface = "lo".into();
        s.address.set_ip(Ipv4Addr::LOCALHOST);
    });
    let refused = refused.unwrap_err();
    assert!(refused.contains("lo refuses native XDP"), "{refused}");
    let elsewhere = load(&|s| s.interface = "lo".into()).unwrap_err();
    assert!(elsewhere.contains("it has: 127.0.0.1"), "{elsewhere}");
    assert!(load(&|s| s.ring_buffer_bytes = 100)
        .unwrap_err()
        .contains("power of two"));
    assert!(load(&|s| s.geometry.ring_slots = 100)
        .unwrap_err()
        .contains("power of two"));
    assert!(load(&|s| s.node = 0).unwrap_err().contains("1..=254"));
    let mut first = net.host(2, spec(2, LEADER, XdpMode::Native, &[3], &[]));
    let busy = load(&|_| {}).unwrap_err();
    assert!(busy.contains("already has an XDP program"), "{busy}");
    assert!(first
        .send_local(b"")
        .unwrap_err()
        .to_string()
        .contains("loopback"));
    // A host that does not exist cannot answer.
    drop(first);
    let mut spec = spec(2, LEADER, XdpMode::Native, &[3], &[]);
    spec.acceptors[0]
        .address
        .set_ip(Ipv4Addr::new(10, 77, 0, 99));
    first = net.host(2, spec);
    let unresolved = first.refresh_neighbours().unwrap();
    assert_eq!(unresolved.len(), 1);
    assert!(unresolved[0].why.contains("ARP"), "{unresolved:?}");
    start_leader(&first);
    let client = net.socket(1, PORT);
    client.send_to(&request(1, b"x"), address(2)).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while !first.counters().unwrap().contains_key("copy_unresolved") {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    let probe = net.on(2, || inband_ground::xdp::probe("lo")).unwrap();
    assert!(!probe.native.works() && probe.generic.works(), "{probe:?}");
}
