//! Reads the packet vectors of `dataplane/paxos/vectors/` and checks their expectations.

use std::collections::BTreeMap;

use super::{Outcome, Registers as All, EPOCH};
use inband_ground::auth::sign;
use inband_paxos::dataplane::registers::{AcceptorView, CountView, LeaderView, SlotView};
use inband_paxos::dataplane::soft::{Geometry, Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::{self, digest, emit, flag, Header, Type};
use inband_testing::vector::{files, flags_of, keys_of, named, type_of, value_of, Damage};
use serde::Deserialize;

pub const GEOMETRY: Geometry = Geometry {
    partitions: 2,
    ring_slots: 64,
};
/// The default partition of packets in cases.
pub const PARTITION: usize = 1;
/// The default value for which votes are counted.
const COUNTED_VALUE: &str = "v";
/// The sender of the packets in cases.
const SENDER: u16 = 9;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub why: String,
    pub roles: Vec<String>,
    /// Ids of the keys that the host accepts; it sends with the last one.
    #[serde(default)]
    pub keys: Vec<u16>,
    #[serde(default)]
    pub before: State,
    pub packet: Vec<Step>,
}

/// Registers of partition 1. In `after`, only those that changed.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    pub leader: BTreeMap<String, u64>,
    pub acceptor: BTreeMap<String, u64>,
    pub slot: Vec<Slot>,
    pub count: Vec<Count>,
    /// Members of the quorum counter's epoch, by node id.
    pub members: Vec<u8>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Slot {
    pub instance: u64,
    pub promise: u64,
    pub vround: u64,
    pub value: String,
    pub client_id: u64,
    pub client_seq: u64,
    pub client_low: u64,
    pub flags: Vec<String>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Count {
    pub instance: u64,
    pub epoch: Option<u64>,
    pub round: u64,
    pub value: Option<String>,
    pub members: u64,
    pub done: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(rename = "in")]
    pub input: Fields,
    /// The key that the packet is tagged with, before any damage.
    #[serde(default)]
    pub signed_by: Option<u16>,
    #[serde(default)]
    pub damage: Damage,
    /// Damage to the frame around it; only for the kernel.
    #[serde(default)]
    pub frame: Option<Damage>,
    /// Every delivery of a value fails, as with a full ring buffer.
    #[serde(default)]
    pub hand_off_fails: bool,
    pub verdict: String,
    pub reason: String,
    /// Differences from the packet that came in, except the sender.
    #[serde(default)]
    pub out: Fields,
    /// The tag of the output packet, in hexadecimal.
    #[serde(default)]
    pub tag: Option<String>,
    #[serde(default)]
    pub after: State,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Fields {
    pub r#type: Option<String>,
    pub flags: Option<Vec<String>>,
    pub partition: Option<u16>,
    pub node: Option<u16>,
    pub epoch: Option<u32>,
    pub instance: Option<u64>,
    pub floor: Option<u64>,
    pub round: Option<u64>,
    pub vround: Option<u64>,
    pub client_id: Option<u64>,
    pub client_seq: Option<u64>,
    pub client_low: Option<u64>,
    pub value: Option<String>,
}

impl Fields {
    fn apply(&self, header: &mut Header, value: &mut Vec<u8>) {
        let h = header;
        macro_rules! set {
            ($($field:ident),*) => { $(if let Some(v) = self.$field { h.$field = v; })* };
        }
        set!(partition, node, epoch, instance, floor, round, vround, client_id, client_seq);
        set!(client_low);
        if let Some(name) = &self.r#type {
            h.kind = type_of(&Type::ALL, name);
        }
        if let Some(names) = &self.flags {
            h.flags = flags_of(flag::ALL, names);
        }
        if let Some(text) = &self.value {
            *value = value_of(text);
            h.digest = digest(value);
        }
    }
}

pub fn index(instance: u64) -> usize {
    PARTITION * GEOMETRY.ring_slots + instance as usize % GEOMETRY.ring_slots
}

impl State {
    /// Applies this to the registers.
    pub fn apply(&self, registers: &All) {
        if !self.leader.is_empty() {
            let mut view = registers.leader.leader(PARTITION);
            overlay(&self.leader, &mut |name, v| match name {
                "round" => view.round = v,
                "next" => view.next = v,
                "floor" => view.floor = v,
                "epoch" => view.epoch = v,
                other => panic!("a leader has no register {other}"),
            });
            registers.leader.restore(PARTITION, view);
        }
        if !self.acceptor.is_empty() {
            let mut view = registers.acceptor.acceptor(PARTITION);
            overlay(&self.acceptor, &mut |name, v| match name {
                "promise" => view.promise = v,
                "floor" => view.floor = v,
                "highest" => view.highest = v,
                "epoch" => view.epoch = v,
                "voting" => view.voting = v != 0,
                other => panic!("an acceptor has no register {other}"),
            });
            registers.acceptor.restore(PARTITION, view);
        }
        for slot in &self.slot {
            let value = value_of(&slot.value);
            let view = SlotView {
                instance: slot.instance,
                promise: slot.promise,
                vround: slot.vround,
                digest: if slot.vround == 0 { 0 } else { digest(&value) },
                client_id: slot.client_id,
                client_seq: slot.client_seq,
                client_low: slot.client_low,
                flags: flags_of(flag::ALL, &slot.flags),
                value,
            };
            registers.ring.restore(index(slot.instance), &view);
        }
        for count in &self.count {
            let view = CountView {
                instance: count.instance,
                epoch: count.epoch.unwrap_or(u64::from(EPOCH)),
                round: count.round,
                digest: digest(&value_of(count.value.as_deref().unwrap_or(COUNTED_VALUE))),
                members: count.members,
                done: count.done,
            };
            registers.counts.restore(index(view.instance), view);
        }
        if !self.members.is_empty() {
            registers.quorum.configure(u64::from(EPOCH), &self.members);
        }
    }
}

fn overlay(changes: &BTreeMap<String, u64>, set: &mut dyn FnMut(&str, u64)) {
    changes.iter().for_each(|(name, value)| set(name, *value));
}

/// All of partition 1's registers that a case may change. Old votes in empty slots are left out.
#[derive(Debug, PartialEq)]
struct Snapshot {
    leader: LeaderView,
    acceptor: AcceptorView,
    slots: Vec<SlotView>,
    counts: Vec<CountView>,
}

fn snapshot(registers: &All, roles: Roles) -> Snapshot {
    let slots = |on: bool| {
        if on {
            index(0)..index(0) + GEOMETRY.ring_slots
        } else {
            0..0
        }
    };
    let mut snapshot = Snapshot {
        leader: registers.leader.leader(PARTITION),
        acceptor: registers.acceptor.acceptor(PARTITION),
        slots: slots(roles.acceptor)
            .map(|i| registers.ring.slot(i).unwrap())
            .collect(),
        counts: slots(roles.quorum)
            .map(|i| registers.counts.counted(i))
            .collect(),
    };
    for slot in snapshot.slots.iter_mut().filter(|s| s.vround == 0) {
        (
            slot.digest,
            slot.client_id,
            slot.client_seq,
            slot.client_low,
        ) = (0, 0, 0, 0);
    }
    snapshot
}

pub fn roles_of(names: &[String]) -> Roles {
    let has = |name: &str| names.iter().any(|n| n == name);
    for name in names {
        assert!(
            ["leader", "acceptor", "quorum"].contains(&name.as_str()),
            "no role {name}"
        );
    }
    Roles {
        leader: has("leader"),
        acceptor: has("acceptor"),
        quorum: has("quorum"),
    }
}

pub fn cases() -> Vec<(String, Case)> {
    files("paxos")
        .into_iter()
        .flat_map(|(stem, text)| {
            let file: File = toml::from_str(&text).unwrap_or_else(|e| panic!("{stem}: {e}"));
            file.case
                .into_iter()
                .map(move |case| (format!("{stem}: {}", case.name), case))
        })
        .collect()
}

/// The input packet of a step, and its header and value before any damage.
pub fn packet_of(step: &Step) -> (Header, Vec<u8>, Vec<u8>) {
    let mut header = Header::new(Type::Request, SENDER, EPOCH);
    header.partition = PARTITION as u16;
    let mut value = Vec::new();
    header.digest = digest(b"");
    step.input.apply(&mut header, &mut value);
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    sign(keys_of(step.signed_by.as_slice()).as_ref(), &mut packet);
    (header, value, step.damage.of(packet))
}

pub fn verdict_of(name: &str) -> Verdict {
    match name {
        "drop" => Verdict::Drop,
        "pass" | "untouched" => Verdict::Pass,
        "reply" => Verdict::Reply,
        "to_acceptors" => Verdict::ToAcceptors,
        "to_learners" => Verdict::ToLearners,
        "deliver" => Verdict::Deliver,
        other => panic!("there is no verdict {other}"),
    }
}

/// The expected output of a step: the input if it is passed on, nothing if it is dropped.
pub fn expected_packet(case: &Case, step: &Step) -> Vec<u8> {
    let (mut header, mut value, packet) = packet_of(step);
    match verdict_of(&step.verdict) {
        Verdict::Drop => Vec::new(),
        Verdict::Pass | Verdict::Deliver => packet,
        _ => {
            header.node = super::NODE.into();
            step.out.apply(&mut header, &mut value);
            let mut expected = Vec::new();
            emit(&header, &value, &mut expected);
            sign(keys_of(&case.keys).as_ref(), &mut expected);
            expected
        }
    }
}

/// Compares an outcome with the step's expectation.
pub fn check(case: &Case, step: &Step, got: &Outcome) {
    assert_eq!(
        got.verdict,
        verdict_of(&step.verdict),
        "reason {}",
        got.reason
    );
    assert_eq!(got.reason, step.reason);
    if !matches!(
        got.verdict,
        Verdict::Drop | Verdict::Pass | Verdict::Deliver
    ) {
        let (mut header, mut value, _) = packet_of(step);
        header.node = super::NODE.into();
        step.out.apply(&mut header, &mut value);
        let parsed = wire::parse(&got.packet).unwrap();
        assert_eq!(parsed, (header, &value[..]));
        assert_eq!(got.packet.len(), wire::HEADER_LEN_BYTES + value.len());
        if let Some(tag) = &step.tag {
            let tag_at = wire::HEADER_LEN_BYTES - 8;
            let in_packet = got.packet[tag_at..wire::HEADER_LEN_BYTES].iter();
            let in_packet: String = in_packet.map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(in_packet, *tag, "tag");
        }
    }
    if got.verdict != Verdict::Drop {
        assert_eq!(got.packet, expected_packet(case, step), "byte for byte");
    }
}

/// Runs a case. `handle` passes a step to the backend that owns these registers.
pub fn run(
    case: &Case,
    registers: &All,
    in_kernel: bool,
    handle: &mut dyn FnMut(&Step, &[u8]) -> Outcome,
) {
    let roles = roles_of(&case.roles);
    let expected = SoftSwitch::new(1, roles, GEOMETRY);
    for registers in [registers, expected.registers()] {
        case.before.apply(registers);
    }
    for (i, step) in case.packet.iter().enumerate() {
        if step.frame.is_some() && !in_kernel {
            continue;
        }
        let context = || format!("packet {i}: {}", case.why);
        let outcome = handle(step, &packet_of(step).2);
        check(case, step, &outcome);
        step.after.apply(expected.registers());
        let (now, then) = (
            snapshot(registers, roles),
            snapshot(expected.registers(), roles),
        );
        assert_eq!(now.leader, then.leader, "{}", context());
        assert_eq!(now.acceptor, then.acceptor, "{}", context());
        assert_eq!(now.counts, then.counts, "{}", context());
        assert_eq!(now.slots, then.slots, "{}", context());
    }
}
