//! Serializer and minion in P4 (`dataplane/netpaxos/p4`) on bmv2's `simple_switch` against the packet vectors and, with
//! random packets, against the native build.

use crate::common::Tested;
use crate::vectors::{random_packet, Case, Role, ARRIVAL, INCARNATION, MINION};
use inband_netpaxos::c::IB_NETPAXOS_TO_GROUP;
use inband_netpaxos::role::{soft, Kind, Registers};
use inband_netpaxos::LOGS;
use inband_testing::frame::{tag, NODE};
use inband_testing::p4::{Target, Words};
use inband_testing::random::Prng;

const SERIALIZER_IN_P4: Target<Tested> = Target {
    system: "netpaxos",
    role: "serializer",
    sizes: &[("PARTITIONS", LOGS)],
    prepare: |_| (),
    words,
    is_to_group: |verdict| *verdict == IB_NETPAXOS_TO_GROUP,
    unsupported_max: 0,
};
const MINION_IN_P4: Target<Tested> = Target {
    role: "minion",
    prepare: |switch| switch.write("incarnation", 0, INCARNATION),
    ..SERIALIZER_IN_P4
};
/// What a long random run must meet.
const MET: [&str; 6] = [
    "bad_length",
    "bad_node",
    "bad_partition",
    "bad_tag",
    "netpaxos_not_for_role",
    "netpaxos_value_too_long",
];

fn words(registers: &Registers) -> Words {
    vec![("passed", 0, registers.passed())]
}

/// One in twenty is damaged after it was signed.
fn packet(random: &mut Prng) -> Vec<u8> {
    let mut packet = random_packet(random);
    tag(&mut packet);
    match random.below(40) {
        0 => {
            let at = random.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << random.below(8);
        }
        1 => packet.truncate(random.below(packet.len() as u64) as usize),
        _ => {}
    }
    packet
}

fn equals_the_native_build(target: &Target<Tested>, kind: Kind, own: &str) {
    let native = (Box::new(soft(NODE, kind)), LOGS);
    let met = [&MET[..], &[own]].concat();
    target.equals_the_native_build(native, &met, &mut |random| (packet(random), ARRIVAL));
}

#[test]
fn the_serializer_in_p4_passes_every_vector() {
    SERIALIZER_IN_P4.passes_every_vector(|case: &Case| case.role == Role::Serializer);
}

#[test]
fn the_minion_in_p4_passes_every_vector() {
    MINION_IN_P4.passes_every_vector(|case: &Case| case.role == Role::Minion);
}

#[test]
fn the_serializer_in_p4_equals_the_native_build() {
    equals_the_native_build(&SERIALIZER_IN_P4, Kind::Serializer, "netpaxos_serialized");
}

#[test]
fn the_minion_in_p4_equals_the_native_build() {
    equals_the_native_build(&MINION_IN_P4, MINION, "netpaxos_numbered");
}
