//! Tests the roles in P4 (`dataplane/paxos/p4`) on bmv2's `simple_switch` against the packet vectors and, with random
//! packets, against the native build (`inband_testing::p4`).

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use crate::common::script::{self, Block};
use crate::common::{seed, sequence, vectors};
use inband_paxos::dataplane::soft::Geometry;
use inband_paxos::dataplane::wire::VALUE_LEN_MAX_BYTES as ANY_LEN_BYTES;
use inband_paxos::dataplane::Paxos;
use inband_testing::frame::NODE;
use inband_testing::p4::{packets, Running, SimpleSwitch, GROUP_PORT, HOST_PORT, SENDER_PORT};
use inband_testing::script::{Op, Script};

/// IB_P4_VALUE_LEN_MAX_BYTES.
const VALUE_LEN_MAX_BYTES: usize = 127;
const ACCEPTOR: Block = Block {
    name: "acceptor",
    target: "p4",
    roles: script::ACCEPTOR,
    value_len_max_bytes: VALUE_LEN_MAX_BYTES,
    unsupported_max: 9,
};
const LEADER: Block = Block {
    name: "leader",
    target: "p4",
    roles: script::LEADER,
    value_len_max_bytes: VALUE_LEN_MAX_BYTES,
    unsupported_max: 7,
};
const QUORUM: Block = Block {
    name: "quorum",
    target: "p4",
    roles: script::QUORUM,
    value_len_max_bytes: ANY_LEN_BYTES,
    unsupported_max: 4,
};
/// Register arrays by space and word, as the script numbers them.
const OF_ACCEPTOR: [&[&str]; 3] = [
    &["promise", "floor", "highest", "epoch", "voting"],
    &[
        "slot_instance",
        "slot_promise",
        "slot_vround",
        "slot_digest",
        "slot_client_id",
        "slot_client_seq",
        "slot_client_low",
        "slot_last",
    ],
    &[],
];
const OF_LEADER: [&[&str]; 3] = [&["round", "next", "floor", "epoch"], &[], &[]];
/// A register array of leader.p4 besides those: the larger of `next` and `floor`.
const AVAILABLE: &str = "available";
/// Register arrays of quorum.p4. Those of a slot are in the order of a count's words, of which the last one, `done`, is
/// in `COUNT_LACKING`.
const OF_QUORUM_CONFIG: [&str; 2] = ["epoch", "majority"];
const OF_QUORUM_COUNT: [&str; 5] = [
    "count_instance",
    "count_epoch",
    "count_round",
    "count_digest",
    "count_members",
];
const COUNT_LACKING: &str = "count_lacking";
const MEMBER: &str = "member";
/// IB_P4_DECIDED.
const DECIDED: u64 = u32::MAX as u64;

/// The registers of the quorum counter's C role, as the script has them, and what they are in quorum.p4: a word there
/// depends on several of them.
#[derive(Default)]
struct QuorumRegisters {
    epoch_and_majority: [u64; 2],
    counts: BTreeMap<usize, [u64; 6]>,
    /// Slots that the script has written, or wants checked, since the last frame.
    written: BTreeSet<usize>,
    unchecked: BTreeSet<usize>,
}

impl QuorumRegisters {
    fn write(&mut self, switch: &mut SimpleSwitch, [space, index, word]: [usize; 3], value: u64) {
        match space {
            0 => {
                self.epoch_and_majority[word] = value;
                switch.write(OF_QUORUM_CONFIG[word], 0, value);
                self.written.extend(self.counts.keys());
            }
            1 => {
                self.counts.entry(index).or_default()[word] = value;
                self.written.insert(index);
            }
            _ => switch.write(MEMBER, index, (1 << value) >> 1),
        }
    }

    fn check(
        &mut self,
        running: &mut Running,
        [space, index, word]: [usize; 3],
        value: u64,
        what: &str,
    ) {
        match space {
            0 => running.check(OF_QUORUM_CONFIG[word], 0, value, &what),
            1 => {
                self.counts.entry(index).or_default()[word] = value;
                self.unchecked.insert(index);
            }
            _ => running.check(MEMBER, index, (1 << value) >> 1, &what),
        }
    }

    /// What `COUNT_LACKING` is for this count.
    fn lacking(&self, count: &[u64; 6]) -> u64 {
        let [.., members, done] = *count;
        let votes = u64::from(members.count_ones());
        match done {
            0 => self.epoch_and_majority[1].saturating_sub(votes + 1),
            _ => DECIDED,
        }
    }

    /// Compares slots with the counts that the script has for them. Only the instance of one that is decided: its other
    /// words may differ.
    fn compare(&mut self, running: &mut Running, what: &str) {
        for index in take(&mut self.unchecked) {
            let count = self.counts[&index];
            let is_decided = count[5] != 0;
            let is_empty = count[4] == 0;
            let words = if is_decided { 1 } else { OF_QUORUM_COUNT.len() };
            for (array, word) in OF_QUORUM_COUNT.iter().zip(count).take(words) {
                running.check(array, index, word, &what);
            }
            if !is_empty {
                running.check(COUNT_LACKING, index, self.lacking(&count), &what);
            }
        }
    }

    /// Writes the slots that the script has written, before a frame.
    fn settle(&mut self, switch: &mut SimpleSwitch) {
        for index in take(&mut self.written) {
            let count = self.counts[&index];
            for (array, word) in OF_QUORUM_COUNT.iter().zip(count) {
                switch.write(array, index, word);
            }
            switch.write(COUNT_LACKING, index, self.lacking(&count));
        }
    }
}

/// `next` and `floor` of the leader's C role, by partition, as the script has them.
#[derive(Default)]
struct LeaderRegisters(BTreeMap<usize, [u64; 2]>);

impl LeaderRegisters {
    fn note(&mut self, op: &Op) -> Option<usize> {
        let (&index, at, &value) = match op {
            Op::Write {
                index, word, value, ..
            }
            | Op::Check {
                index, word, value, ..
            } => (index, word.checked_sub(1)?, value),
            _ => return None,
        };
        *self.0.entry(index).or_default().get_mut(at)? = value;
        Some(index)
    }

    fn available(&self, index: usize) -> u64 {
        let [next, floor] = self.0[&index];
        next.max(floor)
    }

    /// After the operation on registers has been done: `AVAILABLE` has to follow a write, and nothing else.
    fn follow(&mut self, switch: &mut SimpleSwitch, op: &Op) {
        if let (Some(index), Op::Write { .. }) = (self.note(op), op) {
            switch.write(AVAILABLE, index, self.available(index));
        }
    }

    /// Compares `AVAILABLE` at the end, when the script has compared all registers.
    fn compare(&self, running: &mut Running, what: &str) {
        for index in self.0.keys() {
            running.check(AVAILABLE, *index, self.available(*index), &what);
        }
    }
}

/// A value's words in the registers value0 to value15, as acceptor.p4 places them.
fn words_of(value: &[u8]) -> Vec<(usize, u64)> {
    let mut words = Vec::new();
    let stripes = value.len() / 32 * 4;
    for (i, word) in value.chunks_exact(8).enumerate() {
        let at = if i < stripes { i } else { 12 + i - stripes };
        words.push((at, u64::from_be_bytes(word.try_into().unwrap())));
    }
    let mut rest = value.chunks_exact(8).remainder();
    let mut last = [0; 8];
    for (len, at) in [(4, 0), (2, 4), (1, 6)] {
        if rest.len() >= len {
            last[at..at + len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
        }
    }
    words.push((15, u64::from_be_bytes(last)));
    words
}

/// The word of a script as this register array has it: the last word of a vote is in another order.
fn stored(array: &str, word: u64) -> u64 {
    match array {
        "slot_last" => (word & 0xffff) << 48 | (word >> 16 & 0xffff) << 32 | word >> 32,
        _ => word,
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

/// The register arrays of an operation on registers or on a value: array, index, word.
fn registers_of(op: &Op, arrays: &[&[&str]; 3]) -> Vec<(String, usize, u64)> {
    match op {
        Op::Write {
            space,
            index,
            word,
            value,
        }
        | Op::Check {
            space,
            index,
            word,
            value,
        } => {
            let array = arrays[*space][*word];
            vec![(array.to_owned(), *index, stored(array, *value))]
        }
        Op::WriteValue { index, bytes } | Op::CheckValue { index, bytes } => {
            let words = words_of(&unhex(bytes)).into_iter();
            words
                .map(|(at, word)| (format!("value{at}"), *index, word))
                .collect()
        }
        Op::Settings { .. } | Op::Clock { .. } | Op::Note { .. } | Op::Frame { .. } => Vec::new(),
    }
}

/// Runs the script on the role, in a switch of these sizes.
fn replay(role: &str, script: &Script, geometry: Geometry, name: &str) {
    let sizes = [
        ("PARTITIONS", geometry.partitions),
        ("RING_SLOTS", geometry.ring_slots),
    ];
    let Some(mut running) = Running::start(name, "paxos", role, NODE, &sizes) else {
        return;
    };
    let arrays = match role {
        "leader" => OF_LEADER,
        _ => OF_ACCEPTOR,
    };
    let mut quorum = (role == QUORUM.name).then(QuorumRegisters::default);
    let mut leader = (role == LEADER.name).then(LeaderRegisters::default);
    let mut note = "";
    for op in &script.ops {
        if let Some(quorum) = &mut quorum {
            if !matches!(op, Op::Check { .. }) {
                quorum.compare(&mut running, note);
            }
            match op {
                Op::Write {
                    space,
                    index,
                    word,
                    value,
                } => {
                    quorum.write(&mut running.switch, [*space, *index, *word], *value);
                    continue;
                }
                Op::Check {
                    space,
                    index,
                    word,
                    value,
                } => {
                    quorum.settle(&mut running.switch);
                    quorum.check(&mut running, [*space, *index, *word], *value, note);
                    continue;
                }
                Op::Frame { .. } => quorum.settle(&mut running.switch),
                _ => {}
            }
        }
        match op {
            // As `Running::start` sets them. Paxos's roles have no clock.
            Op::Settings { .. } | Op::Clock { .. } => {}
            Op::Note { text } => note = text,
            Op::Write { .. } | Op::WriteValue { .. } => {
                for (array, index, word) in registers_of(op, &arrays) {
                    running.switch.write(&array, index, word);
                }
            }
            Op::Check { .. } | Op::CheckValue { .. } => {
                for (array, index, word) in registers_of(op, &arrays) {
                    running.check(&array, index, word, &note);
                }
            }
            Op::Frame {
                bytes,
                dest,
                out,
                reason,
            } => {
                let ports = [HOST_PORT, SENDER_PORT, GROUP_PORT];
                let out = dest.map(|dest| (ports[usize::from(dest)], unhex(out)));
                running.frame(&unhex(bytes), out, reason, &note);
            }
        }
        if let Some(leader) = &mut leader {
            leader.follow(&mut running.switch, op);
        }
    }
    if let Some(leader) = &leader {
        leader.compare(&mut running, note);
    }
    if let Some(quorum) = &mut quorum {
        quorum.compare(&mut running, note);
    }
    running.end::<Paxos>();
}

fn passes_every_vector(block: &Block) {
    let (script, summary) = script::vectors_script(block);
    replay(block.name, &script, vectors::GEOMETRY, "vectors");
    println!("P4 {summary}");
}

fn equals_the_native_build(block: &Block) {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let (packets, must_meet) = packets();
    let met = match must_meet {
        true => script::met_by(block.roles),
        false => Vec::new(),
    };
    let script = script::random_script(block, packets, &met, seed);
    replay(block.name, &script, sequence::GEOMETRY, "random");
}

#[test]
fn the_acceptor_in_p4_passes_every_vector() {
    passes_every_vector(&ACCEPTOR);
}

#[test]
fn the_leader_in_p4_passes_every_vector() {
    passes_every_vector(&LEADER);
}

#[test]
fn the_acceptor_in_p4_equals_the_native_build() {
    equals_the_native_build(&ACCEPTOR);
}

#[test]
fn the_leader_in_p4_equals_the_native_build() {
    equals_the_native_build(&LEADER);
}

#[test]
fn the_quorum_counter_in_p4_passes_every_vector() {
    passes_every_vector(&QUORUM);
}

#[test]
fn the_quorum_counter_in_p4_equals_the_native_build() {
    equals_the_native_build(&QUORUM);
}
