//! Tests the roles in RTL (`dataplane/paxos/rtl`) against the packet vectors and, with random packets, against the
//! native build. This program writes inputs and expected results; `inband_testing::rtl` replays them.

use crate::common::script::{self, Block, NO_ROLES};
use crate::common::seed;
use inband_paxos::dataplane::wire::VALUE_LEN_MAX_BYTES;
use inband_testing::rtl::{packets, replay};

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
fn passes_every_vector(block: &Block) {
    let (script, summary) = script::vectors_script(block);
    replay("paxos", block.name, "vectors", &script.ops);
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

fn equals_the_native_build(block: &Block) {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let (packets, must_meet) = packets();
    let met = match must_meet {
        true => script::met_by(block.roles),
        false => Vec::new(),
    };
    let script = script::random_script(block, packets, &met, seed);
    replay("paxos", block.name, "random", &script.ops);
}

#[test]
fn the_acceptor_equals_the_native_build() {
    equals_the_native_build(&ACCEPTOR);
}

#[test]
fn the_leader_equals_the_native_build() {
    equals_the_native_build(&LEADER);
}
