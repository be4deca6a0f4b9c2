//! Checks that the packet path allocates no memory: soft switch, socket, packet programs.

use crate::common;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::time::{Duration, Instant};

use inband_flair::dataplane::registers::SessionView;
use inband_flair::dataplane::{self as flair_switch, wire as flair, FlairGeometry, FlairSwitch};
use inband_ground::socket::{HostSocket, BATCH_MAX};
use inband_ground::xdp::XdpMode;
use inband_paxos::dataplane::registers::LeaderView;
use inband_paxos::dataplane::soft::{Geometry, Registers, Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::{digest, emit, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_paxos::dataplane::xdp::{Peer, XdpHost, XdpSpec};

/// The number of allocations by this thread in `f`.
fn allocations(f: impl FnOnce()) -> u64 {
    allocation_counter::measure(f).count_total
}

const NODE: u8 = 1;
const EPOCH: u32 = 1;
const GEOMETRY: Geometry = Geometry {
    partitions: 1,
    ring_slots: 64,
};
const ALL: Roles = Roles {
    leader: true,
    acceptor: true,
    quorum: true,
};
/// Rounds, each with half a ring of instances followed by a trim.
const ROUNDS: u64 = 200;
const INSTANCES: u64 = GEOMETRY.ring_slots as u64 / 2;
const VALUE_LENS_BYTES: [usize; 3] = [0, 64, 1376];
const TIMEOUT: Duration = Duration::from_secs(10);

fn start(registers: &Registers) {
    let epoch = u64::from(EPOCH);
    registers.acceptor.start(0, epoch, 1, true);
    registers.acceptor.raise_promise(0, 1);
    registers.quorum.configure(epoch, &[NODE]);
    let leader = LeaderView {
        round: 1,
        next: 1,
        floor: 1,
        epoch,
    };
    registers.leader.activate(0, leader);
}

fn packet(kind: Type, change: impl FnOnce(&mut Header), value_len_bytes: usize) -> Vec<u8> {
    let value = vec![7; value_len_bytes];
    let mut header = Header::new(kind, u16::from(NODE), EPOCH);
    header.digest = digest(&value);
    change(&mut header);
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    common::tag(&mut packet);
    packet
}

/// Requests with values of all lengths.
fn requests() -> Vec<Vec<u8>> {
    let request = |len: &usize| packet(Type::Request, |h| h.client_id = 1, *len);
    VALUE_LENS_BYTES.iter().map(request).collect()
}

/// Packets other than requests: acceptor and leader answer or drop all of them.
fn others() -> Vec<Vec<u8>> {
    let slot = |kind| packet(kind, |h| (h.instance, h.flags) = (1, flag::SLOT), 1376);
    let leaders = |kind| packet(kind, |h| h.flags = flag::LEADER, 0);
    let acceptors = |kind| packet(kind, |_| (), 0);
    vec![
        slot(Type::Phase1A),
        slot(Type::Learn),
        leaders(Type::Position),
        acceptors(Type::Position),
    ]
}

/// TRIM for the acceptor and the leader; the floor is at the same offset in both.
fn trims(floor: u64) -> [Vec<u8>; 2] {
    [0, flag::LEADER].map(|flags| packet(Type::Trim, |h| (h.floor, h.flags) = (floor, flags), 0))
}

#[test]
fn the_count_counts() {
    let made = allocations(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(made, 1);
}

#[test]
fn a_soft_switch_allocates_nothing() {
    let switch = SoftSwitch::new(NODE, ALL, GEOMETRY);
    start(switch.registers());
    let (requests, others) = (requests(), others());
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    let mut handle = |packet: &[u8]| {
        buffer[..packet.len()].copy_from_slice(packet);
        let (mut verdict, _, mut len_bytes) = switch.handle(&mut buffer, packet.len());
        while matches!(verdict, Verdict::ToAcceptors | Verdict::ToLearners) {
            (verdict, _, len_bytes) = switch.handle(&mut buffer, len_bytes);
        }
        verdict
    };
    let mut up = 0;
    for round in 0..ROUNDS {
        let trims = trims(round * INSTANCES + 1);
        let made = allocations(|| {
            for at in 0..INSTANCES {
                let request = &requests[at as usize % requests.len()];
                up += u64::from(handle(request) == Verdict::Deliver);
            }
            for other in others.iter().chain(&trims) {
                handle(other);
            }
        });
        assert_eq!(made, 0, "round {round}");
    }
    assert_eq!(up, ROUNDS * INSTANCES, "{:?}", switch.counters());
}

#[test]
fn a_flair_switch_allocates_nothing() {
    let geometry = FlairGeometry { sets: 1, groups: 4 };
    let switch = FlairSwitch::new(NODE, geometry, 1);
    let session = SessionView {
        session: 5,
        followers: 7,
        replicas: 7,
        deadline_ns: u64::MAX,
        ..SessionView::default()
    };
    switch.registers().sessions.restore(0, session);
    let packets: Vec<Vec<u8>> = flair::Type::ALL
        .iter()
        .map(|kind| {
            let mut header = flair::Header::new(*kind, 0, 9);
            (header.session, header.flags) = (5, flair::flag::STABLE);
            let mut packet = Vec::new();
            flair::emit(&header, b"key", &[7; 1024], &mut packet);
            packet
        })
        .collect();
    let from = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    let mut sent = 0;
    let made = allocations(|| {
        for round in 0..ROUNDS {
            for packet in &packets {
                buffer[..packet.len()].copy_from_slice(packet);
                let (verdict, ..) = switch.handle(&mut buffer, packet.len(), from, 1, round);
                sent += u64::from(verdict != flair_switch::Verdict::Drop);
            }
        }
    });
    assert_eq!(made, 0);
    assert_eq!(sent, 6 * ROUNDS, "{:?}", switch.counters());
}

#[test]
fn a_socket_allocates_nothing() {
    let here = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    // Ephemeral ports, because tests run concurrently.
    let bind = || {
        (20_000..30_000)
            .find_map(|port| Some((HostSocket::bind(here(port)).ok()?, here(port))))
            .expect("a free port")
    };
    let ((from, _), (to, address)) = (bind(), bind());
    let packet = [7u8; 160];
    let batch = packet.repeat(BATCH_MAX);
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES + 1];
    let mut received = 0;
    let mut round = || {
        assert!(from.send(&packet, address));
        assert_eq!(from.send_batch(&batch, packet.len(), address), 0);
        let deadline = Instant::now() + TIMEOUT;
        let mut missing = 1 + BATCH_MAX;
        while missing > 0 && Instant::now() < deadline {
            if let Some((len_bytes, _)) = to.receive(&mut buffer).unwrap() {
                assert_eq!(buffer[..len_bytes], packet);
                missing -= 1;
                received += 1;
            }
        }
    };
    // The first round grows the queue to its final size.
    round();
    let made = allocations(|| (0..ROUNDS).for_each(|_| round()));
    assert_eq!(received, (1 + ROUNDS) * (1 + BATCH_MAX as u64));
    assert_eq!(made, 0);
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

#[test]
fn packet_programs_and_their_host_allocate_nothing() {
    if !common::may_load_bpf() {
        return;
    }
    // A network namespace for this thread only.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    run(
        "ip link add eth0 type veth peer name eth1 && ip addr add 10.79.0.1/24 dev eth0 && \
         ip link set lo up && ip link set eth0 up && ip link set eth1 up",
    );
    let address = SocketAddrV4::new(Ipv4Addr::new(10, 79, 0, 1), 7707);
    let me = Peer {
        node: NODE,
        address,
        local: true,
    };
    let mut host = XdpHost::load(XdpSpec {
        node: NODE,
        roles: ALL,
        geometry: GEOMETRY,
        address,
        interface: "eth0".into(),
        mode: XdpMode::Native,
        acceptors: vec![me],
        learners: vec![me],
        ring_buffer_bytes: 1 << 20,
        loopback: true,
        keys: None,
    })
    .unwrap();
    start(host.registers());
    host.set_polling(true);
    let requests = requests();
    for round in 0..ROUNDS {
        let trims = trims(round * INSTANCES + 1);
        let mut decided = 0;
        let made = allocations(|| {
            for at in 0..INSTANCES {
                let request = &requests[at as usize % requests.len()];
                host.send_local(request).unwrap();
            }
            let deadline = Instant::now() + TIMEOUT;
            while decided < INSTANCES && Instant::now() < deadline {
                decided += host.decided(|packet| assert!(!packet.is_empty())) as u64;
            }
            host.set_polling(host.has_decided());
            for trim in &trims {
                host.send_local(trim).unwrap();
            }
        });
        let counters = host.counters().unwrap();
        assert_eq!(decided, INSTANCES, "round {round}: {counters:?}");
        assert_eq!(made, 0, "round {round}");
    }
}
