//! Three nodes in the kernel, over a network of namespaces: records that a gateway submits are committed on all of them
//! without any process, and sleeping processes are woken.
#![allow(missing_docs)]

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::spec;
use crate::net::{address, Net, PORT, TIMEOUT};
use clap::Parser;
use inband_box::role::{Record, Role};
use inband_box::wire::{emit, Header, Type};
use inband_box::xdp::{Attached, Spec};
use inband_box::{Zab, GROUPS};
use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::xdp::multicast::Peer;
use inband_ground::xdp::XdpMode;
use inband_host::config::Dataplane;
use inband_host::role_process::RoleArgs;
use inband_testing::frame::may_load_bpf;
use inband_testing::role::two_keys;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

/// Node ids are hosts of the network.
const NODES: [u8; 3] = [1, 2, 3];
const MEMBERS: u64 = 0b1110;
const EPOCH: u64 = 33;
const RECORDS: u64 = 200;

struct Testbed {
    nodes: Vec<Attached>,
    sockets: Vec<UdpSocket>,
    gate: Gate,
    net: Net,
}

impl Testbed {
    fn new(mode: XdpMode, keys: Option<Keys>) -> Testbed {
        let net = Net::new();
        let attach = |node: u8| {
            let others = NODES.into_iter().filter(|other| *other != node);
            let others: Vec<_> = others
                .map(|node| Peer {
                    node,
                    address: address(node.into()),
                    local: false,
                })
                .collect();
            let spec = Spec {
                node,
                capacity: 1024,
                address: address(node.into()),
                mode,
                ..spec(keys)
            };
            net.on(node.into(), || spec.attach("eth0", &others).unwrap())
        };
        let mut nodes: Vec<_> = NODES.into_iter().map(attach).collect();
        let sockets = NODES.map(|node| net.socket(node.into(), PORT));
        let deadline = Instant::now() + TIMEOUT;
        for (node, attached) in NODES.into_iter().zip(&mut nodes) {
            let refresh = || attached.refresh_neighbours().unwrap();
            net.on(node.into(), || {
                let mut refresh = refresh;
                while !refresh().is_empty() {
                    assert!(Instant::now() < deadline, "neighbours of {node}");
                    thread::sleep(Duration::from_millis(20));
                }
            });
            attached.role().set_quorum(MEMBERS, 2);
        }
        Testbed {
            nodes,
            sockets: sockets.into(),
            gate: Gate::of::<Zab>(keys, GROUPS),
            net,
        }
    }

    fn send(&self, from: usize, to: usize, mut packet: Vec<u8>) {
        self.gate.sign(&mut packet);
        let to = address(usize::from(NODES[to]));
        self.sockets[from].send_to(&packet, to).unwrap();
    }

    fn until_committed(&self, node: usize, zxid: u64) {
        let deadline = Instant::now() + TIMEOUT;
        while self.nodes[node].role().committed() < zxid {
            let counters: Vec<_> = self.nodes.iter().map(|n| n.counters().unwrap()).collect();
            let view = self.nodes[node].role().view();
            assert!(Instant::now() < deadline, "{node}: {view:?} {counters:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Does what the leader's process does: sends its no-op through its socket.
    fn lead(&self) {
        let leader = self.nodes[0].role();
        leader.raise_epoch(EPOCH);
        assert!(leader.lead(EPOCH));
        for follower in &self.nodes[1..] {
            assert!(follower.role().follow(EPOCH, false, 0));
        }
        let zxid = leader.append(&Record::default()).unwrap();
        for to in 1..NODES.len() {
            self.send(0, to, leader.propose(zxid).unwrap());
        }
        (0..NODES.len()).for_each(|node| self.until_committed(node, zxid));
    }

    fn submit(&self, seq: u64) {
        let header = Header {
            node: 3,
            origin: 3,
            origin_session: 9,
            origin_seq: seq,
            ..Header::of(Type::Submit)
        };
        let value = vec![seq as u8; seq as usize * 6];
        self.send(2, 0, emit(&header, &value));
    }

    fn is_woken(&mut self, node: usize, within_ms: u16) -> bool {
        let notes = self.nodes[node].notes();
        let mut polled = [PollFd::new(notes.fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::from(within_ms)).unwrap() == 1
    }

    fn sleeping_processes_are_woken(&mut self, next: u64) {
        for node in 0..NODES.len() {
            self.nodes[node].take_notes();
            assert!(!self.is_woken(node, 0), "node {node} before");
        }
        self.submit(next - 1);
        for node in 0..NODES.len() {
            assert!(self.is_woken(node, 2000), "node {node}");
            self.nodes[node].take_notes();
            self.until_committed(node, next);
        }
        (0..NODES.len()).for_each(|node| self.nodes[node].take_notes());
        self.nodes.iter().for_each(|node| node.set_polling(true));
        self.submit(next);
        for node in 0..NODES.len() {
            self.until_committed(node, next + 1);
            assert!(!self.is_woken(node, 20), "node {node} polls");
        }
        self.nodes.iter().for_each(|node| node.set_polling(false));
    }
}

#[test]
fn records_are_committed_over_a_network() {
    if !may_load_bpf() {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for keys in [None, Some(two_keys())] {
            let mut testbed = Testbed::new(mode, keys);
            testbed.lead();
            for seq in 1..RECORDS {
                testbed.submit(seq);
                testbed.until_committed(0, seq + 1);
            }
            for (at, node) in testbed.nodes.iter().enumerate() {
                testbed.until_committed(at, RECORDS);
                for zxid in 2..=RECORDS {
                    let record = node.role().read(zxid).unwrap();
                    assert_eq!((record.origin, record.origin_session), (3, 9));
                    assert_eq!(record.origin_seq, zxid - 1);
                    assert_eq!(
                        record.value,
                        vec![(zxid - 1) as u8; (zxid as usize - 1) * 6]
                    );
                }
            }
            testbed.sleeping_processes_are_woken(RECORDS + 1);
            // The leader and one follower are a quorum.
            testbed.net.cable(NODES[1].into(), "down");
            testbed.submit(RECORDS + 2);
            testbed.until_committed(0, RECORDS + 3);
            testbed.until_committed(2, RECORDS + 3);
            let counters = testbed.nodes[0].counters().unwrap();
            eprintln!("{mode:?}, keys {}: {counters:?}", keys.is_some());
            assert_eq!(counters["box_submitted"], RECORDS + 2);
        }
    }
}

#[derive(Parser)]
struct RoleOptions {
    #[command(flatten)]
    role: RoleArgs,
}

/// No route leads elsewhere, so only the other nodes can say what arrives.
#[test]
fn whether_an_interface_sends_is_tried_with_the_other_nodes() {
    if !may_load_bpf() {
        return;
    }
    let mut net = Net::new();
    let words = ["test", "--dataplane", "auto", "--interface", "eth0"];
    let options = RoleOptions::parse_from(words);
    let chosen = |net: &Net| {
        let others = [address(2), address(3)];
        let choose = || {
            let chosen = options.role.choose(address(1), others, |_, _, _| Ok(()));
            chosen.expect("one of them works").0
        };
        net.on(1, choose)
    };
    let choice = chosen(&net);
    assert_eq!(choice.dataplane, Dataplane::Xdp, "{}", choice.why);
    net.lose_what_xdp_sends();
    let choice = chosen(&net);
    assert_eq!(choice.dataplane, Dataplane::XdpGeneric, "{}", choice.why);
}

/// Several packets in one message, which the kernel is to split, cross a virtual link as one frame.
#[test]
fn a_program_in_generic_mode_gets_packets_that_are_sent_each_by_itself() {
    if !may_load_bpf() {
        return;
    }
    let mut net = Net::new();
    // No program on the links, which would make the sender's kernel split messages.
    net.lose_what_xdp_sends();
    let attached = net.on(2, || {
        let spec = Spec {
            node: 2,
            capacity: 1024,
            address: address(2),
            mode: XdpMode::Generic,
            ..spec(None)
        };
        spec.attach("eth0", &[]).expect("it attaches")
    });
    let socket = net.on(1, || HostSocket::bind(address(1)).expect("it is free"));
    let gate = Gate::of::<Zab>(None, GROUPS);
    let header = Header {
        node: 1,
        epoch: EPOCH,
        ..Header::of(Type::Commit)
    };
    let mut packet = emit(&header, &[]);
    gate.sign(&mut packet);
    const PACKETS: u64 = 8;
    let arrived = |what: &str| {
        for _ in 0..PACKETS {
            socket.queue(&packet, address(2));
        }
        socket.flush();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let counters = attached.counters().expect("it runs");
            let count = counters.get(what).copied().unwrap_or_default();
            // Of joined packets one frame arrives.
            if count == PACKETS || count > 0 && what == "bad_length" {
                return count;
            }
            assert!(Instant::now() < deadline, "{what}: {counters:?}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    assert!(arrived("bad_length") < PACKETS, "joined packets");
    socket.join_no_packets();
    assert_eq!(arrived("box_not_member"), PACKETS);
}
