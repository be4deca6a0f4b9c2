//! A Falcon scheduler under test: in this process, or in the kernel by test runs.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use inband_falcon::dataplane::rig::FalconRig;
use inband_falcon::dataplane::wire::{emit, Description, Header, Task, Type};
use inband_falcon::dataplane::xdp::{forward_of, FalconXdpSpec};
use inband_falcon::dataplane::Falcon;
use inband_falcon::dataplane::{FalconConfig, FalconRegisters, FalconSwitch, Verdict};
use inband_ground::auth::{Digest, Gate, Keys};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::XdpMode;
use inband_ground::System as _;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use super::{check_ip, check_sizes, check_turned, refused_for, FRAME_LEN_BYTES, HERE, NODE};
use super::{XDP_DROP, XDP_PASS, XDP_TX};

/// The number that the scheduler has drawn.
pub const INCARNATION: u64 = 77;

/// What comes with a packet.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub from: SocketAddrV4,
    pub now_ns: u64,
}

/// What became of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The name of the reason; "" if nothing was counted.
    pub reason: &'static str,
    /// The UDP payload that leaves; nothing for a dropped packet.
    pub packet: Vec<u8>,
}

/// A task with a digest.
pub fn task(user: u32, job: u32, number: u32, desc: &str) -> Task {
    let desc = Description::new(desc.as_bytes()).unwrap();
    Task::new(user, job, number, desc).sealed(&Digest::PLAIN)
}

/// The bytes of a packet, of a cluster without a key.
pub fn bytes(header: &Header, tasks: &[Task]) -> Vec<u8> {
    let mut packet = Vec::new();
    emit(header, tasks, &mut packet);
    super::tag(&mut packet);
    packet
}

/// A PULL of a registered worker.
pub fn pull(set: u16, executor: u32, worker_incarnation: u32, pull_seq: u64) -> Header {
    Header {
        incarnation: INCARNATION,
        executor,
        worker_incarnation,
        pull_seq,
        ..Header::new(Type::Pull, set, 0)
    }
}

/// Put a packet through the native role, behind a gate as a host has one.
pub fn native(gate: &mut Gate, switch: &FalconSwitch, packet: &[u8], arrival: Arrival) -> Outcome {
    if let Some(reason) = refused_for(gate, packet) {
        return Outcome {
            verdict: Verdict::Drop,
            reason,
            packet: Vec::new(),
        };
    }
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(packet);
    let Arrival { from, now_ns } = arrival;
    let (verdict, reason, len) = switch.handle(&mut buffer, packet.len(), from, now_ns);
    let mut packet = Vec::new();
    if verdict != Verdict::Drop {
        packet.extend_from_slice(&buffer[..len]);
    }
    // What passes does so as it came.
    if !matches!(verdict, Verdict::Drop | Verdict::Pass) {
        gate.sign(&mut packet);
    }
    Outcome {
        verdict,
        reason: Falcon::reason_name(reason).unwrap(),
        packet,
    }
}

/// What the scheduler under test is.
pub fn spec(config: FalconConfig, keys: Option<Keys>) -> FalconXdpSpec {
    FalconXdpSpec {
        node: NODE,
        config,
        incarnation: INCARNATION,
        address: HERE,
        interface: String::new(),
        mode: XdpMode::Native,
        keys,
    }
}

/// The XDP program, fed by test runs.
pub struct Kernel {
    rig: FalconRig,
}

impl Kernel {
    /// Load it; with keys, packets carry tags.
    pub fn load(config: FalconConfig, keys: Option<Keys>) -> Kernel {
        let rig = FalconRig::load_given(spec(config, keys)).unwrap_or_else(|e| panic!("{e}"));
        Kernel { rig }
    }

    pub fn registers(&self) -> &FalconRegisters {
        self.rig.registers()
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.rig.counters().unwrap()
    }

    /// The frame that brings a packet.
    pub fn frame(packet: &[u8], arrival: Arrival) -> Vec<u8> {
        udp_frame(arrival.from, HERE, packet)
    }

    /// Put a frame through the program, which carries `packet` unless it is damaged.
    pub fn handle(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> Outcome {
        let before = self.counters();
        let (verdict, packet) = self.run(frame, packet, arrival);
        let after = self.counters();
        let mut counted: Vec<_> = after
            .iter()
            .filter(|(name, n)| before.get(*name).copied().unwrap_or(0) + 1 == **n)
            .map(|(name, _)| *name)
            .collect();
        let by_host = counted.iter().position(|n| *n == "falcon_executor_by_host");
        assert_eq!(
            by_host.is_some(),
            matches!(verdict, Verdict::ToExecutor(_)),
            "nobody knows the way to the executors of test runs"
        );
        by_host.map(|at| counted.remove(at));
        assert!(counted.len() <= 1, "one reason a packet: {counted:?}");
        Outcome {
            verdict,
            reason: counted.first().copied().unwrap_or(""),
            packet,
        }
    }

    /// Without looking at counters: verdict and packet.
    pub fn run(&self, frame: &[u8], packet: &[u8], arrival: Arrival) -> (Verdict, Vec<u8>) {
        self.rig.set_given(arrival.now_ns).unwrap();
        let run = self.rig.run(frame, 1).unwrap();
        match run.action {
            XDP_DROP => (Verdict::Drop, Vec::new()),
            XDP_PASS if run.frame == frame => (Verdict::Pass, packet.to_vec()),
            XDP_PASS => {
                check_sizes(&run.frame);
                check_ip(&run.frame);
                assert_eq!(run.frame[..12], frame[..12], "still to this host");
                assert_eq!(run.frame[26..38], frame[26..38], "still to this host");
                let packet = run.frame[FRAME_LEN_BYTES..].to_vec();
                let to = forward_of(&packet, NODE, self.registers());
                (Verdict::ToExecutor(to.unwrap()), packet)
            }
            XDP_TX => {
                check_sizes(&run.frame);
                check_turned(frame, &run.frame);
                (Verdict::Back, run.frame[FRAME_LEN_BYTES..].to_vec())
            }
            other => panic!("unexpected: {other}"),
        }
    }
}
