//! A Falcon scheduler under test.

use inband_falcon::dataplane::rig::FalconRig;
use inband_falcon::dataplane::wire::{emit, Description, Header, Task, Type};
use inband_falcon::dataplane::xdp::{forward_of, FalconXdpSpec};
use inband_falcon::dataplane::{Falcon, FalconConfig, FalconRegisters, FalconSwitch, Verdict};
use inband_ground::auth::{Digest, Keys};
use inband_ground::soft::Arrival;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::XdpMode;
use inband_testing::frame::{HERE, NODE};
use inband_testing::role::UnderTest;

pub const INCARNATION: u64 = 77;

pub struct FalconUnderTest;

impl UnderTest for FalconUnderTest {
    type System = Falcon;
    type Role = FalconSwitch;
    type Rig = FalconRig;
    type Verdict = Verdict;
    const DROP: Verdict = Verdict::Drop;
    const PASS: Verdict = Verdict::Pass;
    const REPLY: Verdict = Verdict::Reply;
    const BY_HOST: Option<&'static str> = Some("falcon_executor_by_host");

    fn handle(
        switch: &FalconSwitch,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        arrival: Arrival,
    ) -> (Verdict, u32, usize) {
        switch.handle(buffer, len_bytes, arrival.from, arrival.now_ns)
    }

    fn by_host(packet: &[u8], registers: &FalconRegisters) -> Option<Verdict> {
        forward_of(packet, NODE, registers).map(Verdict::ToExecutor)
    }
}

/// A task with its digest.
pub fn task(user: u32, job: u32, number: u32, desc: &str) -> Task {
    let desc = Description::new(desc.as_bytes()).unwrap();
    Task::new(user, job, number, desc).sealed(&Digest::PLAIN)
}

/// The bytes of a packet in a cluster without a key.
pub fn bytes(header: &Header, tasks: &[Task]) -> Vec<u8> {
    let mut packet = Vec::new();
    emit(header, tasks, &mut packet);
    super::tag(&mut packet);
    packet
}

/// A PULL from a registered worker.
pub fn pull(set: u16, executor: u32, worker_incarnation: u32, pull_seq: u64) -> Header {
    Header {
        incarnation: INCARNATION,
        executor,
        worker_incarnation,
        pull_seq,
        ..Header::new(Type::Pull, set, 0)
    }
}

/// The configuration of the scheduler under test.
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

/// Its program. With keys, packets carry tags.
pub fn rig(config: FalconConfig, keys: Option<Keys>) -> FalconRig {
    FalconRig::load_given(spec(config, keys)).unwrap_or_else(|e| panic!("{e}"))
}
