//! The program of a gate on frames without an interface, in the kernel and natively: the same packets come out.

use std::collections::BTreeMap;

use inband_ground::auth::{sign, Keys, Secret};
use inband_ground::c;
use inband_ground::wire::HEADER_LEN_BYTES;
use inband_ground::xdp::gate::{pass, Gate, Program, Side};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::System;
use inband_testing::frame::{check_ip, may_load_bpf, HERE};
use inband_testing::random::{seed, Prng};

const FRAME_LEN_BYTES: usize = c::IB_XDP_FRAME_LEN_BYTES as usize;
const PARTITIONS: usize = c::IB_PARTITIONS_MAX as usize;
const XDP_DROP: u32 = 1;
const XDP_REDIRECT: u32 = 4;
/// The interface of test runs.
const IFINDEX: u32 = 1;
const KEY_ID_AT: usize = std::mem::offset_of!(c::ib_header, key_id);
const TAG_AT: usize = std::mem::offset_of!(c::ib_header, tag);
const SIDES: [Side; 3] = [Side::Keyed, Side::Keyless, Side::Unchecked];
const CHECKSUM_AT: usize = FRAME_LEN_BYTES - 2;

fn keys() -> Keys {
    let secrets = [(6, Secret([6; 16])), (7, Secret([7; 16]))];
    Keys::new(7, &secrets).expect("two keys")
}

/// A packet of some type, with this value and no tag.
fn packet(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN_BYTES];
    packet[..4].copy_from_slice(&c::IB_MAGIC.to_be_bytes());
    packet[4] = c::IB_VERSION as u8;
    packet[5] = kind;
    packet[11] = 3; // node
    packet[12..14].copy_from_slice(&(value.len() as u16).to_be_bytes());
    packet.extend(value);
    packet
}

fn signed(keys: Option<&Keys>, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut packet = packet(kind, value);
    sign(keys, &mut packet);
    packet
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let from = "10.0.0.9:7000".parse().expect("an address");
    udp_frame(from, HERE, payload)
}

#[test]
fn a_packet_gets_the_tag_of_the_segment_that_it_enters() {
    let keys = keys();
    let before = signed(Some(&keys), 1, b"value");
    let mut there = before.clone();
    assert_eq!(pass(Side::Keyed, &keys, &mut there), c::IB_R_tag_removed);
    assert_eq!(there, signed(None, 1, b"value"));
    assert_eq!(Gate::check(None, &there, PARTITIONS), c::IB_R_none);
    let mut back = there;
    assert_eq!(pass(Side::Keyless, &keys, &mut back), c::IB_R_tag_made);
    assert_eq!(back, before);
}

#[test]
fn a_packet_with_another_tag_than_that_of_its_segment_is_dropped() {
    let keys = keys();
    let foreign = Keys::new(7, &[(7, Secret([8; 16]))]).expect("a key");
    let unknown = Keys::new(5, &[(5, Secret([5; 16]))]).expect("a key");
    let mut damaged = signed(Some(&keys), 1, b"value");
    damaged[20] ^= 1;
    let mut damaged_sum = signed(None, 1, b"value");
    damaged_sum[20] ^= 1;
    for (side, mut packet, reason) in [
        (Side::Keyed, signed(None, 1, b"value"), c::IB_R_bad_key),
        (
            Side::Keyed,
            signed(Some(&foreign), 1, b"value"),
            c::IB_R_bad_tag,
        ),
        (
            Side::Keyed,
            signed(Some(&unknown), 1, b"value"),
            c::IB_R_bad_key,
        ),
        (Side::Keyed, damaged, c::IB_R_bad_tag),
        (
            Side::Keyless,
            signed(Some(&keys), 1, b"value"),
            c::IB_R_bad_key,
        ),
        (Side::Keyless, damaged_sum, c::IB_R_bad_tag),
        (Side::Keyless, signed(None, 0, b"value"), c::IB_R_bad_type),
    ] {
        let before = packet.clone();
        assert_eq!(pass(side, &keys, &mut packet), reason, "{side:?}");
        assert_eq!(packet, before);
    }
    // A key that is still accepted, but does not sign any more.
    let old = Keys::new(6, &[(6, Secret([6; 16]))]).expect("a key");
    let mut packet = signed(Some(&old), 1, b"value");
    assert_eq!(pass(Side::Keyed, &keys, &mut packet), c::IB_R_tag_removed);
}

/// A switch without products has changed the packet, and left the checksum that the gate had made.
#[test]
fn the_checksum_of_a_changed_packet_is_not_checked_if_its_segment_cannot_make_it() {
    let keys = keys();
    let changed = |by: Option<&Keys>, kind: u8| {
        let mut packet = signed(by, 1, b"value");
        packet[5] = kind;
        packet
    };
    let mut out = changed(None, 2);
    assert_eq!(pass(Side::Unchecked, &keys, &mut out), c::IB_R_tag_made);
    assert_eq!(out, signed(Some(&keys), 2, b"value"));
    // It is not a packet, or was not made by a gate: it claims a key.
    let mut cut = changed(None, 2);
    cut.pop();
    for (packet, reason) in [
        (changed(None, 0), c::IB_R_bad_type),
        (cut, c::IB_R_bad_length),
        (changed(Some(&keys), 2), c::IB_R_bad_key),
        (signed(Some(&keys), 2, b"value"), c::IB_R_bad_key),
    ] {
        let mut after = packet.clone();
        assert_eq!(pass(Side::Unchecked, &keys, &mut after), reason);
        assert_eq!(after, packet);
    }
}

/// A random packet: often right, sometimes damaged, cut, or with another key.
fn random_payload(random: &mut Prng, keys: &Keys) -> Vec<u8> {
    let foreign = Keys::new(6, &[(6, Secret([8; 16]))]).expect("a key");
    let value = vec![random.below(256) as u8; random.below(200) as usize];
    let by = [Some(keys), None, Some(&foreign)][[0, 0, 1, 1, 2][random.below(5) as usize]];
    let mut packet = signed(by, random.below(70) as u8, &value);
    match random.below(8) {
        0 => {
            let at = random.below(packet.len() as u64) as usize;
            packet[at] ^= 1 << random.below(8);
        }
        1 => packet.truncate(random.below(packet.len() as u64) as usize),
        2 => packet.extend([0; 5]),
        _ => {}
    }
    packet
}

#[test]
fn the_kernel_does_as_the_native_build() {
    if !may_load_bpf() {
        return inband_testing::not_run("loading BPF programs needs root");
    }
    let keys = keys();
    let mut random = Prng(seed());
    for side in SIDES {
        let program = Program::load(side, &keys, IFINDEX).expect("it loads");
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        for _ in 0..2000 {
            let mut payload = random_payload(&mut random, &keys);
            let before = frame(&payload);
            let run = program.run(&before, 1).expect("it runs");
            if payload.len() < 4 || payload[..4] != c::IB_MAGIC.to_be_bytes() {
                assert_eq!((run.action, run.frame), (XDP_REDIRECT, before));
                continue;
            }
            let reason = pass(side, &keys, &mut payload);
            let name = Gate::reason_name(reason).expect("a reason");
            *expected.entry(name).or_default() += 1;
            if reason != c::IB_R_tag_made && reason != c::IB_R_tag_removed {
                assert_eq!((run.action, run.frame), (XDP_DROP, before), "{name}");
                continue;
            }
            assert_eq!(run.action, XDP_REDIRECT);
            check_ip(&run.frame);
            let mut after = before;
            after[CHECKSUM_AT..FRAME_LEN_BYTES].fill(0);
            let (key_id, tag) = (KEY_ID_AT..KEY_ID_AT + 2, TAG_AT..TAG_AT + 8);
            for changed in [key_id, tag] {
                after[FRAME_LEN_BYTES..][changed.clone()].copy_from_slice(&payload[changed]);
            }
            assert_eq!(run.frame, after);
        }
        assert_eq!(program.counters().expect("counters"), expected);
        let passed = match side {
            Side::Keyed => "tag_removed",
            Side::Keyless | Side::Unchecked => "tag_made",
        };
        for name in [passed, "bad_key", "bad_type", "bad_length"] {
            assert!(expected.contains_key(name), "{side:?}: no {name}");
        }
        let is_checked = side != Side::Unchecked;
        assert_eq!(expected.contains_key("bad_tag"), is_checked, "{side:?}");
    }
}

/// A host finds a packet in a frame with IP options, in fragments, behind a VLAN tag, and in a tunnel.
#[test]
fn frames_that_cannot_be_checked_are_dropped_and_others_pass_unchanged() {
    if !may_load_bpf() {
        return inband_testing::not_run("loading BPF programs needs root");
    }
    let keys = keys();
    let ours = frame(&signed(None, 1, b"value"));
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = ours.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let refused = [
        ("IPv6", changed(12, &[0x86, 0xdd])),
        ("a VLAN tag", changed(12, &[0x81, 0x00])),
        ("a provider's VLAN tag", changed(12, &[0x88, 0xa8])),
        ("IP options", changed(14, &[0x46])),
        ("a first fragment", changed(20, &[0x20])),
        ("a later fragment", changed(21, &[0x01])),
        ("IP in IP", changed(23, &[4])),
        ("GRE", changed(23, &[47])),
        ("UDP-Lite", changed(23, &[136])),
        ("no whole IP header", ours[..33].to_vec()),
    ];
    let others = [
        ("ARP", changed(12, &[0x08, 0x06])),
        ("TCP", changed(23, &[6])),
        ("ICMP", changed(23, &[1])),
        ("other UDP", changed(FRAME_LEN_BYTES, b"X")),
    ];
    for side in SIDES {
        let program = Program::load(side, &keys, IFINDEX).expect("it loads");
        for (what, frame) in &others {
            let run = program.run(frame, 1).expect("it runs");
            assert_eq!((run.action, &run.frame), (XDP_REDIRECT, frame), "{what}");
        }
        assert_eq!(program.counters().expect("counters"), BTreeMap::new());
        for (what, frame) in &refused {
            let run = program.run(frame, 1).expect("it runs");
            assert_eq!(run.action, XDP_DROP, "{what}");
        }
        let expected = BTreeMap::from([("frame_refused", refused.len() as u64)]);
        assert_eq!(program.counters().expect("counters"), expected);
    }
}
