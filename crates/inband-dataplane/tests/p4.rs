//! Tests the roles in P4 (`dataplane/paxos/p4`) on bmv2's `simple_switch` against the packet vectors and, with random
//! packets, against the native build.
//!
//! The programs are found in PATH or under P4_TOOLCHAIN; without them each test reports that it did not run, and fails
//! with INBAND_REQUIRE_P4=1. `INBAND_P4=all` (`make p4-test`) compares 10,000 packets per role.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::script::{self, Block, Op, Script};
use crate::common::seed;
use crate::common::simple_switch::{SimpleSwitch, HOST_PORT};
use crate::common::{sequence, vectors};
use inband_ground::System as _;
use inband_paxos::dataplane::soft::Geometry;
use inband_paxos::dataplane::Paxos;

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
/// Register arrays by space and word, as the script numbers them.
const OF_ACCEPTOR: [&[&str]; 2] = [
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
];
const OF_LEADER: [&[&str]; 2] = [&["round", "next", "floor", "epoch"], &[]];
/// Exit status of `scripts/p4`.
const CANNOT_RUN: i32 = 77;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `scripts/p4`; its output, or `None` if a program cannot be found.
fn p4(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(root().join("scripts/p4"));
    let done = command.args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(CANNOT_RUN) {
        let required = std::env::var_os("INBAND_REQUIRE_P4").is_some_and(|v| !v.is_empty());
        assert!(!required, "{errors}");
        return None;
    }
    assert!(done.status.success(), "{arguments:?}: {errors}");
    Some(String::from_utf8(done.stdout).unwrap().trim().to_owned())
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

/// What `simple_switch` says of a register with this word: its interface has signed numbers, and it gives the largest
/// for all above. Packets that show the register (PHASE1B, PHASE2B) have all of its bits.
fn readable(word: u64) -> u64 {
    word.min(i64::MAX as u64)
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

/// Runs the script on the role, in a switch of these sizes.
fn replay(script: &Script, geometry: Geometry, name: &str) {
    let role = script.block.name;
    let folder = root().join("target/p4");
    fs::create_dir_all(&folder).unwrap();
    let json = folder.join(format!("{name}-{role}.json"));
    // For scripts/portability: how many frames were right.
    let passed = folder.join(format!("{name}-{role}.passed"));
    let _ = fs::remove_file(&passed);
    let [partitions, slots] = [geometry.partitions, geometry.ring_slots].map(|n| n.to_string());
    let output = json.display().to_string();
    let compiled = p4(&["compile", "paxos", role, &partitions, &slots, &output]);
    let found = compiled.and_then(|_| p4(&["find", "simple_switch"]));
    let Some(program) = found else {
        let why = "p4c-bm2-ss or simple_switch is neither in PATH nor under P4_TOOLCHAIN";
        inband_testing::not_run_optional(why);
        return;
    };
    let mut switch = SimpleSwitch::start(Path::new(&program), &json);
    let arrays = if role == "leader" {
        OF_LEADER
    } else {
        OF_ACCEPTOR
    };
    let mut note = String::new();
    for op in &script.ops {
        match op {
            Op::Settings {
                node,
                address,
                port,
                group_mac,
                group_address,
                group_port,
                ..
            } => {
                let (address, port) = (unhex(address), port.to_be_bytes());
                let data: [&[u8]; 4] = [&[0, *node], &address, &port, &HOST_PORT.to_be_bytes()];
                switch.set_default("settings", "configure", &data);
                let from_mac = script::OWN_MAC;
                let (to_mac, to) = (unhex(group_mac), unhex(group_address));
                let to_port = group_port.to_be_bytes();
                let data: [&[u8]; 6] = [&to_mac, &from_mac, &to, &address, &to_port, &port];
                switch.add_entry("members", &[0, 1], "address", &data);
            }
            Op::Note { text } => note.clone_from(text),
            Op::Write {
                space,
                index,
                word,
                value,
            } => {
                let array = arrays[*space][*word];
                switch.write(array, *index, stored(array, *value));
            }
            Op::WriteValue { index, bytes } => {
                for (at, word) in words_of(&unhex(bytes)) {
                    switch.write(&format!("value{at}"), *index, word);
                }
            }
            Op::Check {
                space,
                index,
                word,
                value,
            } => {
                let array = arrays[*space][*word];
                let now = switch.register(array, *index);
                let value = readable(stored(array, *value));
                assert_eq!(now, value, "{array}[{index}] after {note}");
            }
            Op::CheckValue { index, bytes } => {
                for (at, word) in words_of(&unhex(bytes)) {
                    let now = switch.register(&format!("value{at}"), *index);
                    assert_eq!(now, readable(word), "value{at}[{index}] after {note}");
                }
            }
            Op::Frame {
                bytes, dest, out, ..
            } => {
                // To the host is port 1, to the sender port 0, to the group port 2.
                let port = dest.map(|dest| [1, 0, 2][usize::from(dest)]);
                switch.send(&unhex(bytes), port.map(|port| (port, unhex(out))), &note);
            }
        }
    }
    switch.settle();
    for number in 0..u32::from(u8::MAX) {
        let Some(reason) = Paxos::reason_name(number) else {
            continue;
        };
        let counted = switch.counter("reasons", number as usize);
        let right = script.reasons.get(reason).copied().unwrap_or(0);
        assert_eq!(counted, right as u64, "packets counted as {reason}");
    }
    fs::write(&passed, script.frames.to_string()).unwrap();
    println!("P4 {role}, {name}: {} frames", script.frames);
}

fn passes_every_vector(block: &'static Block) {
    let (script, summary) = script::vectors_script(block);
    replay(&script, vectors::GEOMETRY, "vectors");
    println!("P4 {summary}");
}

fn equals_the_native_build(block: &'static Block) {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let is_long = std::env::var("INBAND_P4").is_ok_and(|value| value == "all");
    let (packets, met) = match is_long {
        true => (10_000, script::met_by(block)),
        false => (400, Vec::new()),
    };
    let script = script::random_script(block, packets, &met, seed);
    replay(&script, sequence::GEOMETRY, "random");
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
