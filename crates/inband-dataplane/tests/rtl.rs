//! Tests the roles in RTL (`dataplane/paxos/rtl`) against the packet vectors and, with random packets, against the
//! native build. This program writes inputs and expected results, and `scripts/rtl replay` runs them under Verilator.
//!
//! `make test` runs a short form. `INBAND_RTL=all` (`make rtl-test`) runs every width and 10,000 packets per role.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::sequence::{self, Sequence};
use crate::common::vectors::{self, expected_packet, packet_of, verdict_of, Case};
use crate::common::{self, seed, Outcome, Prng, Registers, HERE, NODE, THERE};
use inband_ground::auth::Gate;
use inband_ground::xdp::rig::udp_frame;
use inband_paxos::dataplane::soft::{Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::Paxos;
use serde::Serialize;

/// A role in RTL, by its name in `dataplane/paxos/rtl/roles.py`, and the number of cases that it may fail. These lists
/// may only become shorter.
struct Block {
    name: &'static str,
    roles: Roles,
    unsupported_max: usize,
}

const NO_ROLES: Roles = Roles {
    leader: false,
    acceptor: false,
    quorum: false,
};
const ACCEPTOR: Block = Block {
    name: "acceptor",
    roles: Roles {
        acceptor: true,
        ..NO_ROLES
    },
    unsupported_max: 5,
};
const LEADER: Block = Block {
    name: "leader",
    roles: Roles {
        leader: true,
        ..NO_ROLES
    },
    unsupported_max: 6,
};
/// Checks packets and passes them on.
const NONE: Block = Block {
    name: "none",
    roles: NO_ROLES,
    unsupported_max: 1,
};
/// Packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;
/// Exit status of `scripts/rtl`.
const CANNOT_RUN: i32 = 77;
/// The destination of copies for a group.
const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
const GROUP: ([u8; 4], u16) = ([239, 1, 2, 3], 7708);

/// The bench's operations, in order. Bytes are hexadecimal.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Op {
    Settings {
        node: u8,
        address: String,
        port: u16,
        partitions: usize,
        group_mac: String,
        group_address: String,
        group_port: u16,
    },
    /// Labels the following operations.
    Note {
        text: String,
    },
    Write {
        space: usize,
        index: usize,
        word: usize,
        value: u64,
    },
    WriteValue {
        index: usize,
        bytes: String,
    },
    Check {
        space: usize,
        index: usize,
        word: usize,
        value: u64,
    },
    CheckValue {
        index: usize,
        bytes: String,
    },
    /// `dest` and `out` describe the output frame, if there is one; `reason` is the counted reason, if any.
    Frame {
        bytes: String,
        dest: Option<u8>,
        out: String,
        reason: String,
    },
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The words accessible through the host's port: a role's registers; for an acceptor also votes and values.
#[derive(Clone, Default, PartialEq)]
struct Words {
    spaces: [Vec<Vec<u64>>; 2],
    values: Vec<Vec<u8>>,
}

impl Words {
    fn of(registers: &Registers, roles: Roles, partitions: usize) -> Words {
        let words = |p| match (roles.leader, roles.acceptor) {
            (true, _) => registers.leader.words(p)[..4].to_vec(),
            (_, true) => registers.acceptor.words(p)[..5].to_vec(),
            _ => Vec::new(),
        };
        let slots = match roles.acceptor {
            true => registers.ring.slots().count(),
            false => 0,
        };
        let slots: Vec<_> = (0..slots).map(|i| registers.ring.words(i)).collect();
        let value = |slot: &Vec<u64>| {
            let bytes: Vec<u8> = slot[9..].iter().flat_map(|w| w.to_le_bytes()).collect();
            bytes[..usize::from(slot[8] as u16)].to_vec()
        };
        Words {
            values: slots.iter().map(value).collect(),
            spaces: [
                (0..partitions).map(words).collect(),
                slots.iter().map(|slot| slot[1..9].to_vec()).collect(),
            ],
        }
    }

    /// The words that differ from `before`, one operation each.
    fn changed(
        &self,
        before: &Words,
        word: impl Fn(usize, usize, usize, u64) -> Op,
        value: impl Fn(usize, String) -> Op,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        for (space, all) in self.spaces.iter().enumerate() {
            for (index, words) in all.iter().enumerate() {
                for (at, now) in words.iter().enumerate() {
                    let old = before.spaces[space].get(index).map_or(0, |words| words[at]);
                    if *now != old {
                        ops.push(word(space, index, at, *now));
                    }
                }
            }
        }
        for (index, bytes) in self.values.iter().enumerate() {
            if !bytes.is_empty() && before.values.get(index) != Some(bytes) {
                ops.push(value(index, hex(bytes)));
            }
        }
        ops
    }
}

fn write(space: usize, index: usize, word: usize, value: u64) -> Op {
    Op::Write {
        space,
        index,
        word,
        value,
    }
}

fn check(space: usize, index: usize, word: usize, value: u64) -> Op {
    Op::Check {
        space,
        index,
        word,
        value,
    }
}

/// The operations for the bench, and the contents of the block's memory after them.
struct Script {
    block: &'static Block,
    ops: Vec<Op>,
    partitions: usize,
    known: Words,
    /// The state at the last comparison of registers.
    compared: Words,
    frames: usize,
    reasons: BTreeMap<String, usize>,
}

impl Script {
    fn new(block: &'static Block, partitions: usize) -> Script {
        let settings = Op::Settings {
            node: NODE,
            address: hex(&HERE.ip().octets()),
            port: HERE.port(),
            partitions,
            group_mac: hex(&GROUP_MAC),
            group_address: hex(&GROUP.0),
            group_port: GROUP.1,
        };
        Script {
            block,
            ops: vec![settings],
            partitions,
            known: Words::default(),
            compared: Words::default(),
            frames: 0,
            reasons: BTreeMap::new(),
        }
    }

    fn note(&mut self, text: String) {
        self.ops.push(Op::Note { text });
    }

    /// The host sets the registers to these.
    fn set(&mut self, registers: &Registers) {
        let now = Words::of(registers, self.block.roles, self.partitions);
        let value = |index, bytes| Op::WriteValue { index, bytes };
        self.ops.extend(now.changed(&self.known, write, value));
        self.compared = now.clone();
        self.known = now;
    }

    /// A frame arrives, after which the registers must be as given.
    fn frame(&mut self, frame: &[u8], outcome: &Outcome, is_ours: bool) {
        let (dest, out) = match outcome.verdict {
            Verdict::Drop => (None, Vec::new()),
            Verdict::Pass | Verdict::Up => (Some(0), frame.to_vec()),
            Verdict::Back => (Some(1), turned(frame, &outcome.packet, None)),
            _ => (Some(2), turned(frame, &outcome.packet, Some(GROUP))),
        };
        let reason = if is_ours { outcome.reason } else { "" };
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
        self.frames += 1;
        self.ops.push(Op::Frame {
            bytes: hex(frame),
            dest,
            out: hex(&out),
            reason: reason.to_owned(),
        });
    }

    /// Compares the registers. Those that have not changed since the last comparison are not read again.
    fn compare(&mut self, registers: &Registers) {
        let now = Words::of(registers, self.block.roles, self.partitions);
        let value = |index, bytes| Op::CheckValue { index, bytes };
        self.ops.extend(now.changed(&self.compared, check, value));
        self.compared = now.clone();
        self.known = now;
    }

    /// Compares all registers.
    fn compare_all(&mut self, registers: &Registers) {
        let now = Words::of(registers, self.block.roles, self.partitions);
        for (space, all) in now.spaces.iter().enumerate() {
            for (index, words) in all.iter().enumerate() {
                let ops = words.iter().enumerate();
                self.ops
                    .extend(ops.map(|(at, word)| check(space, index, at, *word)));
            }
        }
        self.compare(registers);
    }

    /// Runs the script on a block.
    fn replay(&self, width_bits: usize, name: &str) {
        let role = self.block.name;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("target/rtl");
        fs::create_dir_all(&folder).unwrap();
        let path: PathBuf = folder.join(format!("{name}-{role}-{width_bits}.jsonl"));
        let mut file = BufWriter::new(File::create(&path).unwrap());
        for op in &self.ops {
            serde_json::to_writer(&mut file, op).unwrap();
            file.write_all(b"\n").unwrap();
        }
        file.into_inner().unwrap();
        let mut replay = Command::new(root.join("scripts/rtl"));
        replay.args(["replay", "paxos", role]);
        let status = replay.arg(width_bits.to_string()).arg(&path).status();
        let status = status.unwrap();
        if status.code() == Some(CANNOT_RUN) {
            inband_testing::not_run(
                "Verilator or the RTL's Python packages cannot be had (see above)",
            );
            return;
        }
        assert!(status.success(), "{role}, {width_bits} bits: {path:?}");
    }
}

/// The frame that answers `frame` with a packet, to its sender or to a group.
fn turned(frame: &[u8], packet: &[u8], group: Option<([u8; 4], u16)>) -> Vec<u8> {
    let mut out = [&frame[..42], packet].concat();
    out[..6].copy_from_slice(&frame[6..12]);
    out[6..12].copy_from_slice(&frame[..6]);
    out[26..30].copy_from_slice(&frame[30..34]);
    out[30..34].copy_from_slice(&frame[26..30]);
    out[34..36].copy_from_slice(&frame[36..38]);
    out[36..38].copy_from_slice(&frame[34..36]);
    if let Some((address, port)) = group {
        out[..6].copy_from_slice(&GROUP_MAC);
        out[30..34].copy_from_slice(&address);
        out[36..38].copy_from_slice(&port.to_be_bytes());
    }
    let len = out.len() as u16;
    out[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    out[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    (out[22], out[24], out[25], out[40], out[41]) = (64, 0, 0, 0, 0);
    let halves = out[14..34].chunks(2);
    let sum: u32 = halves
        .map(|h| u32::from(u16::from_be_bytes([h[0], h[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    out[24..26].copy_from_slice(&sum.to_be_bytes());
    inband_testing::frame::check_sizes(&out);
    inband_testing::frame::check_ip(&out);
    out
}

fn widths() -> &'static [usize] {
    if is_long() {
        &[64, 128, 512]
    } else {
        &[128]
    }
}

fn is_long() -> bool {
    std::env::var("INBAND_RTL").is_ok_and(|value| value == "all")
}

/// Cases that a block does not pass, with the reason.
fn unsupported(block: &Block) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane/paxos/rtl");
    let text = fs::read_to_string(root.join("unsupported.toml")).unwrap();
    let mut all: BTreeMap<String, BTreeMap<String, String>> = toml::from_str(&text).unwrap();
    all.remove(block.name).unwrap_or_default()
}

/// The cases of hosts with this role.
fn cases_of(block: &Block) -> Vec<(String, Case)> {
    let mut cases = vectors::cases();
    cases.retain(|(_, case)| match block.name {
        "none" => case.roles.is_empty(),
        name => case.roles.iter().any(|role| role == name),
    });
    cases
}

/// Adds a case to the bench's script.
fn add_case(script: &mut Script, name: &str, case: &Case) {
    let roles = vectors::roles_of(&case.roles);
    let expected = SoftSwitch::new(NODE, roles, vectors::GEOMETRY);
    case.before.apply(expected.registers());
    script.set(expected.registers());
    for (i, step) in case.packet.iter().enumerate() {
        script.note(format!("{name}, packet {i}: {}", case.why));
        let frame = udp_frame(THERE, HERE, &packet_of(step).2);
        let frame = step
            .frame
            .as_ref()
            .map_or(frame.clone(), |damage| damage.of(frame));
        let outcome = Outcome {
            verdict: verdict_of(&step.verdict),
            reason: Box::leak(step.reason.clone().into_boxed_str()),
            packet: expected_packet(case, step),
        };
        script.frame(&frame, &outcome, step.verdict != "untouched");
        step.after.apply(expected.registers());
        script.compare(expected.registers());
    }
    script.compare_all(expected.registers());
}

fn passes_every_vector(block: &'static Block) {
    let listed = unsupported(block);
    let cases = cases_of(block);
    for name in listed.keys() {
        assert!(
            cases.iter().any(|(known, _)| known == name),
            "no such case: {name}"
        );
    }
    assert!(
        listed.len() <= block.unsupported_max,
        "the list may only become shorter"
    );
    let mut script = Script::new(block, vectors::GEOMETRY.partitions);
    for (name, case) in &cases {
        if !listed.contains_key(name) {
            add_case(&mut script, name, case);
        }
    }
    for width in widths() {
        script.replay(*width, "vectors");
    }
    println!(
        "RTL {}: {} of {} vectors",
        block.name,
        cases.len() - listed.len(),
        cases.len()
    );
}

#[test]
fn the_acceptor_passes_every_vector() {
    passes_every_vector(&ACCEPTOR);
}

#[test]
fn the_leader_passes_every_vector() {
    passes_every_vector(&LEADER);
}

#[test]
fn a_block_without_a_role_passes_every_vector() {
    passes_every_vector(&NONE);
}

/// What a long random run must cover for any role.
const MET: [&str; 14] = [
    "bad_checksum",
    "bad_instance",
    "bad_length",
    "bad_magic",
    "bad_node",
    "bad_partition",
    "bad_round",
    "bad_tag",
    "bad_truncated",
    "bad_version",
    "floor_known",
    "floor_raised",
    "passed_up",
    "position_answered",
];
/// ... and for the acceptor.
const MET_BY_ACCEPTOR: [&str; 12] = [
    "acceptor_below_floor",
    "acceptor_beyond_ring",
    "acceptor_learn_answered",
    "acceptor_learn_no_vote",
    "acceptor_nack",
    "acceptor_nack_slot",
    "acceptor_promised",
    "acceptor_promised_slot",
    "acceptor_recovering",
    "acceptor_vote_repeated",
    "acceptor_voted",
    "wrong_epoch",
];
const MET_BY_LEADER: [&str; 4] = [
    "leader_deposed",
    "leader_not_active",
    "leader_stamped",
    "leader_window_full",
];

/// Random packets and steps of the host, with the results of the native build.
fn random_script(block: &'static Block, packets: usize, seed: u64) -> Script {
    let partitions = sequence::GEOMETRY.partitions;
    // The sequence is derived from an acceptor's registers, whichever role it is for.
    let native = SoftSwitch::new(NODE, block.roles, sequence::GEOMETRY);
    let registers = native.registers();
    sequence::restart_all(registers);
    let mut gate = Gate::of::<Paxos>(None, partitions);
    let (mut prng, mut sequence) = (Prng(seed), Sequence::default());
    let mut script = Script::new(block, partitions);
    script.set(registers);
    while script.frames < packets {
        let record = prng.record();
        match sequence.step(&record, registers) {
            sequence::Step::Host(partition, step) => {
                script.compare(registers);
                step.apply(partition, registers);
                script.set(registers);
            }
            sequence::Step::Packet(mut packet) => {
                // Some are damaged in transit.
                common::tag(&mut packet);
                if record[15] >= 0xfc && !packet.is_empty() {
                    let at = usize::from(record[14]) % packet.len();
                    packet[at] ^= 1 << (record[13] % 8);
                }
                let frame = udp_frame(THERE, HERE, &packet);
                let outcome = common::native_behind(&mut gate, &native, &packet);
                script.note(format!("packet {} of INBAND_SEED={seed}", script.frames));
                script.frame(&frame, &outcome, true);
                if !matches!(outcome.verdict, Verdict::Drop | Verdict::Pass) {
                    sequence.answered(&outcome.packet);
                }
                if script.frames % COMPARE_EVERY == 0 {
                    script.compare(registers);
                }
            }
        }
    }
    script.compare_all(registers);
    script
}

fn equals_the_native_build(block: &'static Block, met: &[&str]) {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let packets = if is_long() { 10_000 } else { 400 };
    let script = random_script(block, packets, seed);
    if is_long() {
        let all = MET.iter().chain(met);
        let missing: Vec<_> = all.filter(|r| !script.reasons.contains_key(**r)).collect();
        assert!(missing.is_empty(), "not met: {missing:?}");
    }
    for width in widths() {
        script.replay(*width, "random");
    }
}

#[test]
fn the_acceptor_equals_the_native_build() {
    equals_the_native_build(&ACCEPTOR, &MET_BY_ACCEPTOR);
}

#[test]
fn the_leader_equals_the_native_build() {
    equals_the_native_build(&LEADER, &MET_BY_LEADER);
}
