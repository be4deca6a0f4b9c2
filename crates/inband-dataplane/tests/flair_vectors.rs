//! The packet vectors of FLAIR (`dataplane/flair/vectors/switch.toml`) through the native role and, as real
//! frames, through the XDP program.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;

use crate::common::flair::{rig, FlairUnderTest, GEOMETRY, INCARNATION};
use crate::common::{NODE, THERE};
use inband_flair::dataplane::registers::{GroupView, SessionView};
use inband_flair::dataplane::rig::FlairRig;
use inband_flair::dataplane::wire::{digest, emit, flag, key_hash, Header, Type};
use inband_flair::dataplane::{FlairRegisters, FlairSwitch, Verdict};
use inband_ground::auth::{sign, Keys};
use inband_ground::soft::Arrival;
use inband_testing::vector::{self, flags_of, keys_of, type_of, value_of, Damage};
use serde::Deserialize;

/// The default set of packets in cases.
const SET: usize = 1;
/// The sender of replicas' packets.
const REPLICA: u16 = 9;
/// The default key of data packets, and the default arrival time.
const KEY: &str = "key";
const NOW_NS: u64 = 1000;

/// Reasons that a single packet cannot trigger, and the test that does.
const ELSEWHERE: [(&str, &str); 1] = [(
    "flair_client_by_host",
    "counted besides another reason; tests/flair_network.rs",
)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    why: String,
    /// Ids of the keys that the switch accepts; it sends with the last one.
    #[serde(default)]
    keys: Vec<u16>,
    #[serde(default)]
    before: State,
    packet: Vec<Step>,
}

/// Registers of set 1. In `after`, only those that changed.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct State {
    session: SessionFields,
    group: Vec<GroupFields>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct SessionFields {
    session: Option<u64>,
    term: Option<u32>,
    leader: Option<u8>,
    log_index: Option<u64>,
    followers: Option<u8>,
    replicas: Option<u8>,
    weights: Option<[u8; 8]>,
    policy: Option<u8>,
    step_down_ns: Option<u64>,
    deadline_ns: Option<u64>,
    seq: Option<u64>,
    replied: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct GroupFields {
    key: String,
    session: Option<u64>,
    seq: Option<u64>,
    stable: Option<bool>,
    log_index: Option<u64>,
    followers: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "in")]
    input: Fields,
    /// The key that the packet is tagged with, before any damage.
    #[serde(default)]
    signed_by: Option<u16>,
    #[serde(default)]
    damage: Damage,
    /// Damage to the frame around it; only for the kernel.
    #[serde(default)]
    frame: Option<Damage>,
    #[serde(default)]
    now_ns: Option<u64>,
    #[serde(default)]
    random: u32,
    verdict: String,
    reason: String,
    /// Differences from the packet that came in, except the sender.
    #[serde(default)]
    out: Fields,
    #[serde(default)]
    after: State,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Fields {
    r#type: Option<String>,
    flags: Option<Vec<String>>,
    set: Option<u16>,
    node: Option<u16>,
    term: Option<u32>,
    client: Option<SocketAddrV4>,
    session: Option<u64>,
    seq: Option<u64>,
    log_index: Option<u64>,
    client_id: Option<u64>,
    client_seq: Option<u64>,
    followers: Option<u8>,
    replica: Option<u8>,
    window: Option<u16>,
    weights: Option<[u8; 8]>,
    key: Option<String>,
    data: Option<String>,
}

/// The parts of a packet.
#[derive(Debug, PartialEq)]
struct Parts {
    header: Header,
    key: Vec<u8>,
    data: Vec<u8>,
}

impl Parts {
    fn emit(&self) -> Vec<u8> {
        let mut packet = Vec::new();
        emit(&self.header, &self.key, &self.data, &mut packet);
        packet
    }
}

impl Fields {
    /// The input packet of a step, before any damage.
    fn packet(&self) -> Parts {
        let kind = type_of(&Type::ALL, self.r#type.as_deref().expect("a type"));
        let of_client = matches!(kind, Type::Read | Type::Write);
        let of_leader = matches!(kind, Type::Heartbeat | Type::Install);
        let node = if of_client { 0 } else { REPLICA };
        let mut parts = Parts {
            header: Header::new(kind, SET as u16, node),
            key: Vec::new(),
            data: Vec::new(),
        };
        if !of_leader {
            parts.key = KEY.into();
            parts.header.key_hash = key_hash(&parts.key);
        }
        self.apply(&mut parts);
        parts
    }

    fn apply(&self, parts: &mut Parts) {
        let h = &mut parts.header;
        macro_rules! set {
            ($($field:ident),*) => { $(if let Some(v) = self.$field { h.$field = v; })* };
        }
        set!(set, node, term, client, session, seq, log_index, client_id, client_seq, followers);
        set!(replica, window);
        if let Some(name) = &self.r#type {
            h.kind = type_of(&Type::ALL, name);
        }
        if let Some(names) = &self.flags {
            h.flags = flags_of(flag::ALL, names);
        }
        if let Some(weights) = self.weights {
            h.set_weights(weights);
        }
        if let Some(text) = &self.key {
            parts.key = value_of(text);
            h.key_hash = key_hash(&parts.key);
        }
        if let Some(text) = &self.data {
            parts.data = value_of(text);
            h.digest = digest(&parts.data);
        }
    }
}

fn group_of(key: &str) -> usize {
    SET * GEOMETRY.groups + GEOMETRY.group_of(key_hash(&value_of(key)))
}

impl State {
    /// Applies this to the registers.
    fn apply(&self, registers: &FlairRegisters) {
        let mut view = registers.sessions.session(SET).unwrap();
        let fields = &self.session;
        macro_rules! set {
            ($fields:ident, $($field:ident),*) => {
                $(if let Some(v) = $fields.$field { view.$field = v; })*
            };
        }
        set!(fields, session, term, leader, log_index, followers, replicas, weights, policy);
        set!(fields, step_down_ns, deadline_ns, seq, replied);
        registers.sessions.restore(SET, view);
        let groups: BTreeSet<usize> = self.group.iter().map(|g| group_of(&g.key)).collect();
        assert_eq!(groups.len(), self.group.len(), "two keys of one group");
        for fields in &self.group {
            let index = group_of(&fields.key);
            let mut view = registers.groups.group(index).unwrap();
            macro_rules! set {
                ($($field:ident),*) => { $(if let Some(v) = fields.$field { view.$field = v; })* };
            }
            set!(session, seq, stable, log_index, followers);
            registers.groups.restore(index, view);
        }
    }
}

fn snapshot(registers: &FlairRegisters) -> (Vec<SessionView>, Vec<GroupView>) {
    let sessions = 0..registers.sessions.count();
    let groups = 0..registers.groups.count();
    (
        sessions
            .map(|set| registers.sessions.session(set).unwrap())
            .collect(),
        groups
            .map(|group| registers.groups.group(group).unwrap())
            .collect(),
    )
}

impl Step {
    /// The UDP payload that arrives.
    fn packet(&self) -> Vec<u8> {
        let mut packet = self.input.packet().emit();
        sign(keys_of(self.signed_by.as_slice()).as_ref(), &mut packet);
        self.damage.of(packet)
    }

    /// The expected output, and where it goes.
    fn expected(&self, keys: Option<&Keys>) -> (Verdict, Vec<u8>) {
        let mut parts = self.input.packet();
        parts.header.node = NODE.into();
        self.out.apply(&mut parts);
        let verdict = match self.verdict.as_str() {
            "drop" => return (Verdict::Drop, Vec::new()),
            "untouched" => return (Verdict::Pass, self.packet()),
            "reply" => Verdict::Reply,
            "to_replica" => Verdict::ToReplica {
                set: parts.header.set.into(),
                replica: parts.header.replica.into(),
            },
            "to_client" => Verdict::ToClient(parts.header.client),
            other => panic!("there is no verdict {other}"),
        };
        let mut packet = parts.emit();
        sign(keys, &mut packet);
        (verdict, packet)
    }
}

impl vector::Case for Case {
    type System = FlairUnderTest;
    /// Registers of the native kind.
    type Expected = FlairRegisters;

    inband_testing::case_fields!();

    fn step(&self, at: usize, keys: Option<&Keys>) -> vector::Step<Verdict> {
        let step = &self.packet[at];
        let (verdict, out) = step.expected(keys);
        vector::Step {
            packet: step.packet(),
            frame: step.frame.clone(),
            arrival: Arrival {
                from: THERE,
                now_ns: step.now_ns.unwrap_or(NOW_NS),
                random: step.random,
            },
            verdict,
            reason: step.reason.clone(),
            out,
        }
    }

    fn native(&self) -> (FlairSwitch, usize) {
        let switch = FlairSwitch::new(NODE, GEOMETRY, INCARNATION);
        (switch, GEOMETRY.sets)
    }

    fn rig(&self, keys: Option<Keys>) -> FlairRig {
        rig(keys)
    }

    fn prepare(&self, registers: &FlairRegisters) -> FlairRegisters {
        registers.clear();
        let expected = FlairRegisters::zeroed(GEOMETRY);
        for registers in [registers, &expected] {
            self.before.apply(registers);
        }
        expected
    }

    fn check(&self, at: usize, registers: &FlairRegisters, expected: &mut FlairRegisters) {
        self.packet[at].after.apply(expected);
        assert_eq!(snapshot(registers), snapshot(expected));
    }
}

#[test]
fn every_vector_runs_natively() {
    vector::run_natively::<Case>("flair");
}

#[test]
fn every_vector_runs_in_the_kernel() {
    vector::run_in_kernel::<Case>("flair", None);
}

#[test]
fn every_reason_has_a_vector_or_an_exception() {
    let elsewhere = ELSEWHERE.map(|(name, _)| name);
    vector::every_reason_has_a_vector::<Case>("flair", "flair_", &elsewhere);
}
