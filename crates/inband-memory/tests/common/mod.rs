//! Packet vectors of both roles: packets in, packets out.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::auth::{Gate, Keys, Secret};
use inband_ground::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};
use inband_ground::xdp::probe;
use inband_ground::xdp::rig::{udp_frame, TestRun};
use inband_ground::System as _;
use inband_memory::registers::{ServerRegisters, SwitchRegisters};
use inband_memory::soft_switch::{Handled, SwitchSpec, Verdict};
use inband_memory::wire::{self, Header};
use inband_memory::{Memory, SPACES};
use serde::Deserialize;

pub const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7707);
pub const THERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 9), 1234);
pub const SESSION: u64 = 7 << 16 | 1;
pub const EPOCH: u64 = 48;
pub const CHUNKS: u64 = 64;
pub const SERVER_NODE: u8 = 2;
/// The address of servers and switches, whose packets no client sends.
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 1), 7707);
pub const FROM_CLIENTS: [u8; 3] = [wire::HELLO, wire::READ_REQUEST, wire::WRITE_REQUEST];

pub fn switch_spec() -> SwitchSpec {
    SwitchSpec {
        node: 16,
        servers: 3,
        chunks: CHUNKS,
        block_lines: 32,
        sessions: 4,
        slots: 8,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<C> {
    case: Vec<C>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchCase {
    pub name: String,
    pub epoch: Option<u64>,
    pub block: Option<u64>,
    pub packet: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerCase {
    pub name: String,
    pub epoch: Option<u64>,
    pub serving: Option<bool>,
    pub after: Option<u64>,
    pub packet: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub set_epoch: Option<u64>,
    pub r#in: Packet,
    pub reason: String,
    #[serde(default)]
    pub to: To,
    pub out: Option<Packet>,
}

/// Where a packet goes.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum To {
    #[default]
    Nobody,
    Process,
    Sender,
    Servers,
    Client,
}

#[derive(Deserialize, Clone, Default)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    r#type: String,
    flags: Option<u16>,
    node: Option<u16>,
    epoch: Option<u64>,
    session: Option<u64>,
    request: Option<u64>,
    chunk: Option<u64>,
    timestamp: Option<u64>,
    lines: Option<u32>,
    slot: Option<u32>,
    phase: Option<u32>,
    at: Option<Vec<u64>>,
    line: Option<Vec<u8>>,
    #[serde(default)]
    damage: bool,
}

impl Packet {
    pub fn kind(&self) -> u8 {
        let kinds = wire::HELLO..=wire::EPOCH;
        let mut named = kinds.filter(|kind| wire::type_name(*kind) == self.r#type);
        named.next().unwrap_or_else(|| panic!("{}", self.r#type))
    }

    /// Returns `other` with the fields that this vector sets.
    fn header(&self, other: Header) -> Header {
        Header {
            kind: self.kind(),
            flags: self.flags.unwrap_or(0),
            node: self.node.unwrap_or(other.node),
            epoch: self.epoch.unwrap_or(other.epoch),
            session: self.session.unwrap_or(other.session),
            request: self.request.unwrap_or(other.request),
            chunk: self.chunk.unwrap_or(other.chunk),
            timestamp: self.timestamp.unwrap_or(other.timestamp),
            lines: self.lines.unwrap_or(other.lines),
            slot: self.slot.unwrap_or(other.slot),
            phase: self.phase.unwrap_or(other.phase),
            digest: 0,
        }
    }

    fn value(&self) -> Vec<u8> {
        let timestamps = self.at.iter().flatten().flat_map(|at| at.to_be_bytes());
        let lines = self.line.iter().flatten().flat_map(|byte| [*byte; 64]);
        timestamps.chain(lines).collect()
    }

    fn has_value(&self) -> bool {
        [wire::READ_REPLY, wire::WRITE, wire::WRITE_BACK].contains(&self.kind())
    }
}

pub fn packet(header: &Header, value: &[u8], gate: &Gate) -> Vec<u8> {
    let mut packet = Vec::new();
    wire::emit(header, value, &mut packet);
    gate.sign(&mut packet);
    packet
}

fn file<C: serde::de::DeserializeOwned>(text: &str) -> Vec<C> {
    toml::from_str::<File<C>>(text).unwrap().case
}

pub fn switch_cases() -> Vec<SwitchCase> {
    file(include_str!(
        "../../../../dataplane/memory/vectors/switch.toml"
    ))
}

pub fn server_cases() -> Vec<ServerCase> {
    file(include_str!(
        "../../../../dataplane/memory/vectors/server.toml"
    ))
}

pub fn reasons_shown() -> BTreeSet<String> {
    let switch = switch_cases().into_iter().flat_map(|case| case.packet);
    let server = server_cases().into_iter().flat_map(|case| case.packet);
    switch.chain(server).map(|step| step.reason).collect()
}

/// Handles a signed packet. Returns each outgoing packet and its destination.
type Handle<'a> = &'a mut dyn FnMut(&[u8]) -> (To, Vec<u8>);

/// A build of a role.
pub struct Role<'a> {
    pub handle: Handle<'a>,
    pub counters: &'a dyn Fn() -> BTreeMap<&'static str, u64>,
}

impl Role<'_> {
    fn step(&mut self, what: &str, step: &Step, default: Header, node: u8, gate: &mut Gate) {
        let given = step.r#in.header(default);
        let value = step.r#in.value();
        let mut sent = packet(&given, &value, gate);
        if step.r#in.damage {
            *sent.last_mut().unwrap() ^= 1;
        }
        let mut expected = (self.counters)();
        let name = Memory::reasons().find(|name| *name == step.reason);
        *expected.entry(name.expect("a reason")).or_default() += 1;
        let (to, left) = (self.handle)(&sent);
        assert_eq!((self.counters)(), expected, "{what}");
        assert_eq!(to, step.to, "{what}");
        match (&step.out, to) {
            (None, To::Nobody) => {}
            (None, To::Process) => assert_eq!(left, sent, "{what}: unchanged"),
            (None, _) => panic!("{what}: the vector lacks what leaves"),
            (Some(out), _) => {
                let value = match out.line {
                    Some(_) => out.value(),
                    None if out.has_value() => value,
                    None => Vec::new(),
                };
                let header = Header {
                    node: node.into(),
                    ..out.header(given)
                };
                assert!(gate.admits(&left), "{what}: its tag");
                let mut wanted = packet(&header, &value, gate);
                if given.kind == wire::WRITE_BACK && header.kind == wire::ACK {
                    wanted.resize(sent.len(), 0);
                    wanted[HEADER_LEN_BYTES..].copy_from_slice(&sent[HEADER_LEN_BYTES..]);
                }
                let [wanted_header, left_header] =
                    [&wanted, &left].map(|packet| wire::parse(packet).unwrap().0);
                assert_eq!(left_header, wanted_header, "{what}");
                assert!(left == wanted, "{what}: the value");
            }
        }
    }

    pub fn run_switch(
        &mut self,
        case: &SwitchCase,
        registers: &SwitchRegisters,
        keys: Option<Keys>,
    ) {
        let mut gate = Gate::of::<Memory>(keys, SPACES);
        registers.set_epoch(case.epoch.unwrap_or(EPOCH));
        registers.open_session(1, SESSION, 4, 4);
        registers.restore_block(0, case.block.unwrap_or(0));
        for (i, step) in case.packet.iter().enumerate() {
            if let Some(epoch) = step.set_epoch {
                registers.set_epoch(epoch);
            }
            let kind = step.r#in.kind();
            let from_client = FROM_CLIENTS.contains(&kind);
            let default = Header {
                session: SESSION,
                request: 1,
                lines: 1,
                epoch: if from_client { 0 } else { EPOCH },
                slot: if from_client { 0 } else { 5 },
                ..Header::default()
            };
            let what = format!("{}, packet {i}", case.name);
            self.step(&what, step, default, 16, &mut gate);
        }
    }

    pub fn run_server(
        &mut self,
        case: &ServerCase,
        registers: &ServerRegisters,
        keys: Option<Keys>,
    ) {
        let mut gate = Gate::of::<Memory>(keys, SPACES);
        let epoch = case.epoch.unwrap_or(EPOCH);
        registers.raise_epoch(epoch);
        registers.set_serving(case.serving.unwrap_or(true));
        for (i, step) in case.packet.iter().enumerate() {
            let default = Header {
                node: 16,
                session: SESSION,
                request: 1,
                lines: 1,
                epoch: EPOCH,
                slot: 5,
                phase: 9,
                ..Header::default()
            };
            let what = format!("{}, packet {i}", case.name);
            self.step(&what, step, default, SERVER_NODE, &mut gate);
        }
        let after = case.after.unwrap_or(epoch);
        assert_eq!(registers.epoch(), after, "{}", case.name);
    }
}

/// Returns whether programs can be loaded into this kernel; if not, reports the test as not run.
pub fn kernel_is_there() -> bool {
    match probe("lo") {
        Ok(probe) if probe.privileged => true,
        Ok(probe) => {
            inband_testing::not_run(probe.generic);
            false
        }
        Err(error) => {
            inband_testing::not_run(error);
            false
        }
    }
}

const FRAME_LEN_BYTES: usize = 42;

pub fn buffer_of(packet: &[u8]) -> [u8; PACKET_LEN_MAX_BYTES] {
    let mut buffer = [0xa5; PACKET_LEN_MAX_BYTES];
    buffer[..packet.len()].copy_from_slice(packet);
    buffer
}

pub fn leaves(handled: Handled, buffer: &[u8], gate: &Gate) -> (To, Vec<u8>) {
    let mut packet = buffer[..handled.len_bytes].to_vec();
    let to = match handled.verdict {
        Verdict::Drop => return (To::Nobody, packet),
        Verdict::Pass => return (To::Process, packet),
        Verdict::Reply => To::Sender,
        Verdict::ToServers => To::Servers,
        Verdict::ToClient(to) => {
            assert_eq!(*to.ip(), *THERE.ip());
            To::Client
        }
    };
    gate.sign(&mut packet);
    (to, packet)
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

/// Runs a program on a packet as a frame. Requests come from [`THERE`], packets of servers and switches from other
/// addresses.
pub fn in_the_kernel(packet: &[u8], run: impl Fn(&[u8]) -> TestRun) -> (To, Vec<u8>) {
    let from = match wire::parse(packet) {
        Ok((header, _)) if !FROM_CLIENTS.contains(&header.kind) => SERVER,
        _ => THERE,
    };
    let run = run(&udp_frame(from, HERE, packet));
    let left = run.frame[FRAME_LEN_BYTES..].to_vec();
    let to = match run.action {
        XDP_DROP => To::Nobody,
        XDP_PASS => To::Process,
        XDP_REDIRECT => To::Servers,
        XDP_TX => {
            let sent_to = |to| {
                let whole = udp_frame(HERE, to, &left);
                // Everything but the hardware addresses and the checksum, which is absent.
                run.frame[12..40] == whole[12..40]
            };
            if sent_to(from) {
                To::Sender
            } else {
                assert!(sent_to(THERE), "addresses {:?}", &run.frame[26..38]);
                To::Client
            }
        }
        other => panic!("action {other}"),
    };
    (to, left)
}

pub fn with_and_without_keys() -> [Option<Keys>; 2] {
    [None, Some(Keys::new(1, &[(1, Secret([7; 16]))]).unwrap())]
}
