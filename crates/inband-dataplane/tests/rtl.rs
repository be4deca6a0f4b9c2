//! Tests the roles in RTL (`dataplane/paxos/rtl`) against the packet vectors and, with random packets, against the
//! native build. This program writes inputs and expected results, and `scripts/rtl replay` runs them under Verilator.
//!
//! `make test` runs a short form. `INBAND_RTL=all` (`make rtl-test`) runs every width and 10,000 packets per role.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::script::{self, Block, Script, NO_ROLES};
use crate::common::seed;
use inband_paxos::dataplane::wire::VALUE_LEN_MAX_BYTES;

/// The roles in RTL, by their names in `dataplane/paxos/rtl/roles.py`.
const ACCEPTOR: Block = Block {
    name: "acceptor",
    target: "rtl",
    roles: script::ACCEPTOR,
    value_len_max_bytes: VALUE_LEN_MAX_BYTES,
    unsupported_max: 5,
};
const LEADER: Block = Block {
    name: "leader",
    target: "rtl",
    roles: script::LEADER,
    value_len_max_bytes: VALUE_LEN_MAX_BYTES,
    unsupported_max: 6,
};
/// Checks packets and passes them on.
const NONE: Block = Block {
    name: "none",
    target: "rtl",
    roles: NO_ROLES,
    value_len_max_bytes: VALUE_LEN_MAX_BYTES,
    unsupported_max: 1,
};
/// Exit status of `scripts/rtl`.
const CANNOT_RUN: i32 = 77;

/// Runs the script on a block.
fn replay(script: &Script, width_bits: usize, name: &str) {
    let role = script.block.name;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("target/rtl");
    fs::create_dir_all(&folder).unwrap();
    let path: PathBuf = folder.join(format!("{name}-paxos-{role}-{width_bits}.jsonl"));
    let mut file = BufWriter::new(File::create(&path).unwrap());
    for op in &script.ops {
        serde_json::to_writer(&mut file, op).unwrap();
        file.write_all(b"\n").unwrap();
    }
    file.into_inner().unwrap();
    let mut replay = Command::new(root.join("scripts/rtl"));
    replay.args(["replay", "paxos", role]);
    let status = replay.arg(width_bits.to_string()).arg(&path).status();
    let status = status.unwrap();
    if status.code() == Some(CANNOT_RUN) {
        inband_testing::not_run("Verilator or the RTL's Python packages cannot be had (see above)");
        return;
    }
    assert!(status.success(), "{role}, {width_bits} bits: {path:?}");
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

fn passes_every_vector(block: &'static Block) {
    let (script, summary) = script::vectors_script(block);
    for width in widths() {
        replay(&script, *width, "vectors");
    }
    println!("RTL {summary}");
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

fn equals_the_native_build(block: &'static Block) {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let (packets, met) = match is_long() {
        true => (10_000, script::met_by(block.roles)),
        false => (400, Vec::new()),
    };
    let script = script::random_script(block, packets, &met, seed);
    for width in widths() {
        replay(&script, *width, "random");
    }
}

#[test]
fn the_acceptor_equals_the_native_build() {
    equals_the_native_build(&ACCEPTOR);
}

#[test]
fn the_leader_equals_the_native_build() {
    equals_the_native_build(&LEADER);
}
