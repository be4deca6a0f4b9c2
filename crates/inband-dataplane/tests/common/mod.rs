//! Shared by the tests that need root.
#![allow(dead_code, missing_docs, unused_imports)]

pub mod falcon;
pub mod falcon_sequence;
pub mod flair;
pub mod flair_sequence;
pub mod net;
pub mod objects;
pub mod script;
pub mod sequence;
pub mod vectors;

use std::cell::Cell;
use std::collections::BTreeMap;

use inband_ground::auth::{Gate, Keys};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::System as _;
use inband_paxos::dataplane::soft::{Geometry, Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::{
    digest, emit, Header, Type, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES,
};
use inband_paxos::dataplane::xdp::rig::Rig;
use inband_paxos::dataplane::Paxos;

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;

pub use inband_paxos::dataplane::soft::Registers;
pub use inband_testing::frame::{
    check_sizes, check_turned, may_load_bpf, tag, FRAME_LEN_BYTES, HERE, NODE, THERE, XDP_DROP,
    XDP_PASS, XDP_REDIRECT, XDP_TX,
};
pub use inband_testing::random::{seed, Prng};
pub use inband_testing::role::refused_for;

/// Pins the calling thread to a CPU: the `index`-th of the allowed ones, modulo their number. In a race whose threads
/// never sleep, the kernel has no reason to migrate them, so two threads that must interleave could stay on one CPU for
/// the whole test.
pub fn stay_on_cpu(index: usize) {
    let this = Pid::from_raw(0);
    let may_use = sched_getaffinity(this).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| may_use.is_set(*cpu).unwrap())
        .collect();
    let mut one = CpuSet::new();
    one.set(cpus[index % cpus.len()]).unwrap();
    sched_setaffinity(this, &one).unwrap();
}

/// The epoch of all tests.
pub const EPOCH: u32 = 3;

/// The outcome of a packet.
pub type Outcome = inband_testing::role::Outcome<Verdict>;

/// Passes a packet through the native roles.
pub fn native(switch: &SoftSwitch, packet: &[u8]) -> Outcome {
    let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(packet);
    let (verdict, reason, len) = switch.handle(&mut buffer, packet.len());
    let packet = if verdict == Verdict::Drop {
        Vec::new()
    } else {
        buffer[..len].to_vec()
    };
    Outcome {
        verdict,
        reason: Paxos::reason_name(reason).unwrap(),
        packet,
    }
}

/// The same behind a gate, as in a real host.
pub fn native_behind(gate: &mut Gate, switch: &SoftSwitch, packet: &[u8]) -> Outcome {
    if let Some(reason) = refused_for(gate, packet) {
        return Outcome {
            verdict: Verdict::Drop,
            reason,
            packet: Vec::new(),
        };
    }
    let mut outcome = native(switch, packet);
    if !matches!(
        outcome.verdict,
        Verdict::Drop | Verdict::Pass | Verdict::Deliver
    ) {
        gate.sign(&mut outcome.packet);
    }
    outcome
}

/// The XDP programs, run with test runs.
pub struct Kernel {
    rig: Rig,
    full: Cell<bool>,
}

impl Kernel {
    /// Loads the programs of these roles.
    pub fn load(roles: Roles, geometry: Geometry) -> Kernel {
        Kernel::load_with_keys(roles, geometry, None)
    }

    /// The same with keys, so that packets carry tags.
    pub fn load_with_keys(roles: Roles, geometry: Geometry, keys: Option<&Keys>) -> Kernel {
        let rig = Rig::load_with_keys(NODE, HERE, roles, geometry, None, keys)
            .unwrap_or_else(|e| panic!("{e}"));
        Kernel {
            rig,
            full: Cell::new(false),
        }
    }

    pub fn registers(&self) -> &Registers {
        self.rig.registers()
    }

    pub fn set_keys(&self, keys: &Keys) {
        self.rig.set_keys(keys).unwrap();
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.rig.counters().unwrap()
    }

    /// The frame that carries a packet.
    pub fn frame(&self, packet: &[u8]) -> Vec<u8> {
        udp_frame(THERE, HERE, packet)
    }

    /// Passes a packet through the programs; the reason is taken from the counters.
    pub fn handle(&self, packet: &[u8]) -> Outcome {
        self.handle_frame(&self.frame(packet), packet)
    }

    /// Passes a frame through the programs. It carries `packet` unless it is damaged.
    pub fn handle_frame(&self, frame: &[u8], packet: &[u8]) -> Outcome {
        let before = self.counters();
        let (verdict, out) = self.run(frame, packet);
        let after = self.counters();
        let mut counted = after
            .iter()
            .filter(|(name, n)| before.get(*name).copied().unwrap_or(0) + 1 == **n);
        let reason = counted.next().map_or("", |(name, _)| *name);
        assert_eq!(counted.next(), None, "one reason a packet");
        Outcome {
            verdict,
            reason,
            packet: out,
        }
    }

    /// Returns verdict and packet without looking at counters.
    pub fn run(&self, frame: &[u8], packet: &[u8]) -> (Verdict, Vec<u8>) {
        let run = self.rig.run(frame, 1).unwrap();
        let mut up = None;
        if !self.full.replace(false) {
            self.rig
                .decided(|packet| assert_eq!(up.replace(packet.to_vec()), None));
        } else {
            self.rig.decided(|_| ()); // the filler values
        }
        match (run.action, up) {
            (XDP_DROP, Some(packet)) => (Verdict::Deliver, packet),
            (XDP_DROP, None) => (Verdict::Drop, Vec::new()),
            (XDP_PASS, None) => {
                assert_eq!(run.frame, frame, "passed untouched");
                (Verdict::Pass, packet.to_vec())
            }
            (XDP_TX, None) => {
                check_sizes(&run.frame);
                check_turned(frame, &run.frame);
                (Verdict::Reply, run.frame[FRAME_LEN_BYTES..].to_vec())
            }
            (XDP_REDIRECT, None) => {
                check_sizes(&run.frame);
                let packet = run.frame[FRAME_LEN_BYTES..].to_vec();
                let to_acceptors = packet[5] == Type::Phase2A as u8;
                (
                    if to_acceptors {
                        Verdict::ToAcceptors
                    } else {
                        Verdict::ToLearners
                    },
                    packet,
                )
            }
            other => panic!("unexpected: {other:?}"),
        }
    }

    /// Fills the ring buffer of decided values with values of partition 0, so that there is no space for the next one.
    pub fn fill_ring_buffer(&self, members: &[u8]) {
        let value = vec![7; VALUE_LEN_MAX_BYTES];
        for instance in 1.. {
            for member in members {
                let mut header = Header::new(Type::Phase2B, u16::from(*member), EPOCH);
                (header.instance, header.round, header.digest) = (instance, 1, digest(&value));
                let mut packet = Vec::new();
                emit(&header, &value, &mut packet);
                tag(&mut packet);
                self.rig.run(&self.frame(&packet), 1).unwrap();
            }
            if self.counters().contains_key("quorum_hand_off_failed") {
                self.full.set(true);
                return;
            }
        }
    }
}
