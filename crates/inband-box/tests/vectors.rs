//! The packet vectors through the native role and, as real frames, through the kernel's program.
#![allow(missing_docs)]

use crate::common::{rig, role, Rig, Tested};
use inband_box::registers::Registers;
use inband_box::role::{Mode, Peer, Record, View};
use inband_box::wire::{emit, flag, Header, Type};
use inband_box::{c, Zab, GROUPS};
use inband_ground::auth::{Gate, Keys};
use inband_ground::soft::{Arrival, Soft};
use inband_testing::frame::{NODE, THERE};
use inband_testing::vector::{self, flags_of, type_of, value_of, Damage, Step};
use serde::Deserialize;

/// When packets arrive, by the role's clock.
const NOW_NS: u64 = 1000;
/// Epochs of node 1 and of the node under test.
const EPOCH_OF_1: u64 = 33;
const OWN_EPOCH: u64 = 34;
/// Times of records are this plus their zxid.
const RECORD_TIME_MS: u64 = 500;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    why: String,
    #[serde(default)]
    before: State,
    packet: Vec<Packet>,
}

/// Registers; in `after`, only those that have changed.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct State {
    mode: Option<String>,
    epoch: Option<u64>,
    leader: Option<u8>,
    first: Option<u64>,
    last: Option<u64>,
    last_epoch: Option<u64>,
    last_time_ms: Option<u64>,
    matched: Option<u64>,
    committed: Option<u64>,
    established_at: Option<u64>,
    members: Option<Vec<u8>>,
    guests: Option<Vec<u8>>,
    quorum: Option<usize>,
    window: Option<u64>,
    recovering: Option<bool>,
    acks_by_process: Option<bool>,
    heard_ns: Option<u64>,
    process_heard_ns: Option<u64>,
    higher_epoch: Option<u64>,
    applied: Option<u64>,
    time_ms: Option<u64>,
    advances: Option<u64>,
    peer: Vec<PeerFields>,
    /// Zxid, epoch, value.
    log: Vec<(u64, u64, String)>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct PeerFields {
    node: usize,
    matched: Option<u64>,
    recovered: Option<u64>,
    committed: Option<u64>,
    round: Option<u64>,
    heard_ns: Option<u64>,
}

fn set<T: Copy>(at: &mut T, value: Option<T>) {
    *at = value.unwrap_or(*at);
}

impl State {
    fn over(&self, view: &mut View) {
        if let Some(mode) = &self.mode {
            view.mode = match &**mode {
                "idle" => Mode::Idle,
                "following" => Mode::Following,
                "leading" => Mode::Leading,
                other => panic!("there is no mode {other}"),
            };
        }
        let bitmap = |nodes: &Vec<u8>| nodes.iter().map(|node| 1 << node).sum();
        set(&mut view.members, self.members.as_ref().map(bitmap));
        set(&mut view.guests, self.guests.as_ref().map(bitmap));
        set(&mut view.epoch, self.epoch);
        set(&mut view.leader, self.leader);
        set(&mut view.first, self.first);
        set(&mut view.last, self.last);
        set(&mut view.last_epoch, self.last_epoch);
        set(&mut view.last_time_ms, self.last_time_ms);
        set(&mut view.matched, self.matched);
        set(&mut view.committed, self.committed);
        set(&mut view.established_at, self.established_at);
        set(&mut view.quorum, self.quorum);
        set(&mut view.window, self.window);
        set(&mut view.recovering, self.recovering);
        set(&mut view.acks_by_process, self.acks_by_process);
        set(&mut view.heard_ns, self.heard_ns);
        set(&mut view.process_heard_ns, self.process_heard_ns);
        set(&mut view.higher_epoch, self.higher_epoch);
        set(&mut view.applied, self.applied);
        set(&mut view.time_ms, self.time_ms);
        set(&mut view.advances, self.advances);
        for fields in &self.peer {
            let peer: &mut Peer = &mut view.peers[fields.node];
            set(&mut peer.matched, fields.matched);
            set(&mut peer.recovered, fields.recovered);
            set(&mut peer.committed, fields.committed);
            set(&mut peer.round, fields.round);
            set(&mut peer.heard_ns, fields.heard_ns);
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Packet {
    #[serde(rename = "in")]
    input: Fields,
    #[serde(default)]
    damage: Damage,
    verdict: String,
    reason: String,
    /// Differences from the incoming packet, apart from the sender. A value stays with a PROPOSE.
    #[serde(default)]
    out: Fields,
    #[serde(default)]
    after: State,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
struct Fields {
    r#type: Option<String>,
    flags: Vec<String>,
    node: Option<u16>,
    epoch: Option<u64>,
    zxid: Option<u64>,
    record_epoch: Option<u64>,
    committed: Option<u64>,
    time_ms: Option<u64>,
    round: Option<u64>,
    origin: Option<u16>,
    origin_session: Option<u64>,
    origin_seq: Option<u64>,
    leader: Option<u16>,
    value: Option<String>,
}

impl Fields {
    fn over(&self, header: &mut Header) {
        if let Some(name) = &self.r#type {
            header.kind = type_of(&Type::ALL, name);
        }
        header.flags = flags_of(flag::ALL, &self.flags);
        set(&mut header.node, self.node);
        set(&mut header.epoch, self.epoch);
        set(&mut header.zxid, self.zxid);
        set(&mut header.record_epoch, self.record_epoch);
        set(&mut header.committed, self.committed);
        set(&mut header.time_ms, self.time_ms);
        set(&mut header.round, self.round);
        set(&mut header.origin, self.origin);
        set(&mut header.origin_session, self.origin_session);
        set(&mut header.origin_seq, self.origin_seq);
        set(&mut header.leader, self.leader);
    }

    /// Returns the header as a sender would send it, unless the case says otherwise.
    fn header(&self) -> Header {
        let kind = type_of(&Type::ALL, self.r#type.as_ref().expect("a type"));
        let mut header = Header {
            node: 1,
            ..Header::of(kind)
        };
        match kind {
            Type::Propose | Type::Commit => header.epoch = EPOCH_OF_1,
            Type::Ack => (header.node, header.epoch) = (3, OWN_EPOCH),
            Type::Submit => (header.node, header.origin, header.origin_seq) = (3, 3, 1),
            Type::Refused | Type::Control => {}
        }
        if kind == Type::Propose {
            header.record_epoch = EPOCH_OF_1;
            header.time_ms = RECORD_TIME_MS + self.zxid.unwrap_or(0);
        }
        self.over(&mut header);
        header
    }

    fn value(&self) -> Vec<u8> {
        value_of(self.value.as_deref().unwrap_or(""))
    }
}

fn record(zxid: u64, epoch: u64, value: &str) -> Record {
    Record {
        zxid,
        epoch,
        time_ms: RECORD_TIME_MS + zxid,
        value: value_of(value),
        ..Record::default()
    }
}

impl vector::Case for Case {
    type System = Tested;
    type Expected = View;

    fn name(&self) -> &str {
        &self.name
    }

    fn why(&self) -> &str {
        &self.why
    }

    fn packets(&self) -> usize {
        self.packet.len()
    }

    fn reason(&self, at: usize) -> &str {
        &self.packet[at].reason
    }

    fn step(&self, at: usize, keys: Option<&Keys>) -> Step<u32> {
        let packet = &self.packet[at];
        let gate = Gate::of::<Zab>(keys.copied(), GROUPS);
        let given = packet.input.header();
        let value = packet.input.value();
        let mut sent = emit(&given, &value);
        gate.sign(&mut sent);
        let sent = packet.damage.of(sent);
        let verdict = match &*packet.verdict {
            "drop" => c::IB_DROP,
            "pass" => c::IB_PASS,
            "reply" => c::IB_REPLY,
            "others" => c::IB_BOX_TO_OTHERS,
            other => panic!("there is no verdict {other}"),
        };
        let out = match verdict {
            c::IB_DROP => Vec::new(),
            c::IB_PASS => sent.clone(),
            _ => {
                let mut header = Header {
                    node: NODE.into(),
                    ..given
                };
                packet.out.over(&mut header);
                let keeps = header.kind == Type::Propose;
                let mut out = emit(&header, if keeps { &value } else { &[] });
                gate.sign(&mut out);
                out
            }
        };
        Step {
            packet: sent,
            frame: None,
            arrival: Arrival {
                from: THERE,
                now_ns: NOW_NS,
                random: 0,
            },
            verdict,
            reason: packet.reason.clone(),
            out,
        }
    }

    fn native(&self) -> (Box<Soft<Zab>>, usize) {
        (role(), GROUPS)
    }

    fn rig(&self, keys: Option<Keys>) -> Rig {
        rig(keys)
    }

    fn prepare(&self, registers: &Registers) -> View {
        registers.restart();
        let leads = self.before.mode.as_deref() == Some("leading");
        let epoch = if leads { OWN_EPOCH } else { EPOCH_OF_1 };
        let mut view = View {
            mode: Mode::Following,
            epoch,
            leader: (epoch % 32) as u8,
            first: 1,
            members: 0b1110,
            quorum: 2,
            window: 4,
            established_at: if leads { 1 } else { 0 },
            ..View::default()
        };
        for (zxid, epoch, value) in &self.before.log {
            registers.restore_record(&record(*zxid, *epoch, value));
            (view.last, view.last_epoch) = (*zxid, *epoch);
            view.last_time_ms = RECORD_TIME_MS + zxid;
        }
        view.matched = if leads { 0 } else { view.last };
        view.peers[usize::from(NODE)].matched = if leads { view.last } else { 0 };
        self.before.over(&mut view);
        registers.restore(&view);
        view
    }

    fn check(&self, at: usize, registers: &Registers, expected: &mut View) {
        let after = &self.packet[at].after;
        after.over(expected);
        assert_eq!(registers.view(), *expected);
        for (zxid, epoch, value) in &after.log {
            let found = registers.record(*zxid).expect("it is in the ring");
            assert_eq!((found.epoch, found.value), (*epoch, value_of(value)));
        }
    }
}

#[test]
fn every_vector_runs_natively() {
    vector::run_natively::<Case>("box");
}

#[test]
fn every_vector_runs_in_the_kernel() {
    vector::run_in_kernel::<Case>("box", None);
    vector::run_in_kernel::<Case>("box", Some(1));
}

#[test]
fn every_reason_has_a_vector() {
    vector::every_reason_has_a_vector::<Case>("box", "box_", &[]);
}
