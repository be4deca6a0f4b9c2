//! A Falcon scheduler as a program on an interface, with sockets as clients and executors, between network namespaces.

use crate::common;
use std::net::{SocketAddr, UdpSocket};

use crate::common::falcon::{bytes, pull, task, INCARNATION};
use crate::common::net::{address, Net, PORT};
use inband_falcon::dataplane::wire::{flag, parse, Header, Task, Type};
use inband_falcon::dataplane::xdp::{
    allow_forwarding, forward_of, may_look_up_clients, FalconXdp, FalconXdpSpec,
};
use inband_falcon::dataplane::FalconConfig;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

/// Hosts of the network.
const SCHEDULER: usize = 1;
const EXECUTOR: usize = 2;
const CLIENT: usize = 3;

fn spec(mode: XdpMode) -> FalconXdpSpec {
    FalconXdpSpec {
        node: SCHEDULER as u8,
        config: FalconConfig {
            slots: 1024,
            ..FalconConfig::default()
        },
        incarnation: INCARNATION,
        address: address(SCHEDULER),
        interface: "eth0".into(),
        mode,
        keys: None,
    }
}

/// The next packet of a socket.
fn receive(socket: &UdpSocket) -> (Header, Vec<Task>, SocketAddr) {
    let mut buffer = [0; PACKET_LEN_MAX_BYTES];
    let (len, from) = socket.recv_from(&mut buffer).expect("a packet in time");
    let (header, tasks) = parse(&buffer[..len]).unwrap();
    (header, tasks.iter().collect(), from)
}

/// The sockets around a scheduler.
struct Testbed {
    net: Net,
    scheduler: FalconXdp,
    /// The socket of the scheduler's own process.
    process: UdpSocket,
    executor: UdpSocket,
    client: UdpSocket,
}

impl Testbed {
    fn new(mode: XdpMode) -> Testbed {
        let net = Net::new();
        let scheduler = net.on(SCHEDULER, || FalconXdp::load(spec(mode)).unwrap());
        scheduler.registers().register(0, 0, 1, 0);
        let socket = |node| net.socket(node, PORT);
        Testbed {
            process: socket(SCHEDULER),
            executor: socket(EXECUTOR),
            client: socket(CLIENT),
            scheduler,
            net,
        }
    }

    fn pull(&self, seq: u64, flags: u16) {
        let mut header = pull(0, 3, 1, seq);
        header.flags = flags;
        let packet = bytes(&header, &[]);
        self.executor.send_to(&packet, address(SCHEDULER)).unwrap();
    }

    fn submit(&self, tasks: &[Task]) {
        let mut header = Header::new(Type::Submit, 0, 0);
        (header.user, header.submit_seq) = (5, 9);
        let packet = bytes(&header, tasks);
        self.client.send_to(&packet, address(SCHEDULER)).unwrap();
    }

    /// Waits until the scheduler has received the PULL with this number: packets of two sockets may be reordered.
    fn until_it_waits(&self, seq: u64) {
        let deadline = std::time::Instant::now() + common::net::TIMEOUT;
        while self.scheduler.registers().executor(0, 3).pull_seq != seq {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    /// Forwards what the kernel could not send, as the scheduler's process does.
    fn forward_one(&self) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let (len, _) = self.process.recv_from(&mut buffer).expect("it comes up");
        let to = forward_of(&buffer[..len], SCHEDULER as u8, self.scheduler.registers());
        let to = to.expect("it was handled");
        self.process.send_to(&buffer[..len], to).unwrap();
    }

    /// Submits a task for a waiting executor.
    fn wakes(&self, seq: u64, by_host: bool) {
        self.pull(seq, flag::PARK);
        self.until_it_waits(seq);
        self.submit(&[task(5, 0, seq as u32, "at once"), task(5, 0, 99, "later")]);
        if by_host {
            self.forward_one();
        }
        let (header, tasks, from) = receive(&self.executor);
        assert_eq!(from, SocketAddr::V4(address(SCHEDULER)));
        assert_eq!((header.kind, header.pull_seq), (Type::Task, seq));
        assert!(header.has(flag::ORIGIN) && !header.has(flag::PARKED));
        assert_eq!((header.taken, header.submit_seq), (3, 9));
        assert_eq!(tasks[0].task, seq as u32);
        assert_eq!(tasks[0].client, address(CLIENT));
        assert_eq!(header.client, address(CLIENT));
        self.pull(seq + 1, 0);
        let (header, tasks, _) = receive(&self.executor);
        assert_eq!((header.kind, tasks[0].task), (Type::Task, 99));
    }
}

fn tasks_go_to_executors(mode: XdpMode) {
    let testbed = Testbed::new(mode);
    // Submit first, pull later; also with a packet full of tasks.
    let tasks: Vec<Task> = (0..14).map(|n| task(5, 0, n, "something to do")).collect();
    testbed.submit(&tasks);
    let (reply, _, from) = receive(&testbed.client);
    assert_eq!(from, SocketAddr::V4(address(SCHEDULER)));
    assert_eq!(
        (reply.kind, reply.taken),
        (Type::SubmitReply, (1 << 14) - 1)
    );
    assert_eq!((reply.tail, reply.head), (14, 0));
    for number in 0..14 {
        testbed.pull(1 + number, flag::PARK);
        let (header, got, _) = receive(&testbed.executor);
        assert_eq!((header.kind, header.pull_seq), (Type::Task, 1 + number));
        assert_eq!(got[0].desc, tasks[number as usize].desc);
        assert_eq!(got[0].task, number as u32);
    }
    testbed.pull(15, 0);
    assert_eq!(receive(&testbed.executor).0.kind, Type::NoTask);
    let by_host = || {
        let counters = testbed.scheduler.counters().unwrap();
        counters
            .get("falcon_executor_by_host")
            .copied()
            .unwrap_or(0)
    };
    assert!(!testbed.net.on(SCHEDULER, || may_look_up_clients("eth0")));
    testbed.wakes(20, true);
    assert_eq!(by_host(), 1);
    testbed
        .net
        .on(SCHEDULER, || allow_forwarding("eth0").unwrap());
    testbed.wakes(30, false);
    testbed.wakes(40, false);
    assert_eq!(by_host(), 1, "the kernel knows the way");
    assert_eq!(testbed.scheduler.counters().unwrap()["falcon_woken"], 3);
    // The process received nothing else.
    testbed.process.set_nonblocking(true).unwrap();
    assert!(testbed.process.recv(&mut [0; 64]).is_err());
}

#[test]
fn tasks_go_to_executors_native() {
    if common::may_load_bpf() {
        tasks_go_to_executors(XdpMode::Native);
    }
}

#[test]
fn tasks_go_to_executors_generic() {
    if common::may_load_bpf() {
        tasks_go_to_executors(XdpMode::Generic);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    if !common::may_load_bpf() {
        return;
    }
    let net = Net::new();
    let why = |change: &dyn Fn(&mut FalconXdpSpec)| {
        let mut spec = spec(XdpMode::Native);
        change(&mut spec);
        let loaded = net.on(SCHEDULER, || FalconXdp::load(spec).map(drop));
        loaded.expect_err("is refused")
    };
    let said = |change: &dyn Fn(&mut FalconXdpSpec)| match why(change) {
        XdpError::Spec(text) => text,
        other => panic!("{other}"),
    };
    assert!(said(&|spec| spec.node = 255).contains("254"));
    assert!(said(&|spec| spec.config.sets = 17).contains("16"));
    assert!(said(&|spec| spec.config.workers = 1025).contains("1024"));
    assert!(said(&|spec| spec.config.slots = 1000).contains("power of two"));
    assert!(said(&|spec| spec.config.slots = 1).contains("2..="));
    assert!(said(&|spec| spec.config.user_tasks_max = 0).contains("none"));
    let no_address = why(&|spec| spec.address = address(EXECUTOR));
    assert!(matches!(no_address, XdpError::NoAddress { .. }));
    let first = net.on(SCHEDULER, || {
        FalconXdp::load(spec(XdpMode::Native)).unwrap()
    });
    assert!(matches!(why(&|_| ()), XdpError::Busy { .. }));
    assert!(first.memory_bytes() >= 1024 * 128);
}
