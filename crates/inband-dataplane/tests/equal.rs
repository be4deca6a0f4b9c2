//! Kernel and native build, held equal over random packets: same packets out, same registers, same
//! counters. `INBAND_SEED=N` repeats a run.
#![allow(missing_docs)]

mod common;

use std::time::{SystemTime, UNIX_EPOCH};

use common::{Kernel, Prng, Registers, EPOCH, NODE};
use inband_dataplane::registers::LeaderView;
use inband_dataplane::soft::{Geometry, Roles, SoftSwitch, Verdict};
use inband_dataplane::wire::{
    digest, emit, flag, Header, Type, PACKET_LEN_MAX_BYTES, VALUE_LEN_MAX_BYTES,
};

const GEOMETRY: Geometry = Geometry {
    partitions: 3,
    ring_slots: 64,
};
const PACKETS: usize = 200_000;
/// ... of a host with a single role, whose program has no dispatch before it.
const PACKETS_ALONE: usize = 50_000;
/// Packets between two comparisons of all registers.
const COMPARE_EVERY: usize = 5_000;
/// One packet in so many is an earlier answer, sent on by one of the members.
const SENT_ON_ONE_IN: u64 = 3;
/// Answers kept for that.
const ANSWERS_KEPT: usize = 16;
/// One packet in so many is damaged, and one step in so many is the host's own.
const DAMAGE_ONE_IN: u64 = 20;
const HOST_STEP_ONE_IN: u64 = 100;
const MEMBERS: [u8; 5] = [3, 4, 5, 6, 7];

fn seed() -> u64 {
    if let Ok(seed) = std::env::var("INBAND_SEED") {
        return seed.parse().expect("INBAND_SEED is a number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as u64 | 1
}

fn random_value(prng: &mut Prng) -> Vec<u8> {
    let len = match prng.below(6) {
        0 => 0,
        1 => VALUE_LEN_MAX_BYTES as u64,
        2 => prng.below(VALUE_LEN_MAX_BYTES as u64 + 1),
        _ => prng.below(64),
    };
    let byte = prng.next() as u8;
    vec![byte; len as usize]
}

/// A number close to `base`, now and then far away.
fn near(prng: &mut Prng, base: u64, spread: u64) -> u64 {
    match prng.below(40) {
        0 => prng.next(),
        1 => 0,
        _ => (base + prng.below(2 * spread)).saturating_sub(spread),
    }
}

fn random_packet(prng: &mut Prng, registers: &Registers) -> Vec<u8> {
    use Type::*;
    let common = [
        Request, Request, Phase2A, Phase2A, Phase2A, Phase2A, Phase1A, Phase2B, Phase2B,
    ];
    let rare = [
        Phase1A, Nack, Learn, Position, Trim, Phase1B, Busy, Reply, Alive,
    ];
    let kind = if prng.below(3) > 0 {
        common[prng.below(common.len() as u64) as usize]
    } else {
        rare[prng.below(rare.len() as u64) as usize]
    };
    let partition = prng.below(GEOMETRY.partitions as u64);
    let acceptor = registers.acceptor.acceptor(partition as usize);
    let mut header = Header::new(kind, u16::from(MEMBERS[prng.below(5) as usize]), EPOCH);
    header.partition = partition as u16;
    if prng.below(30) == 0 {
        header.epoch = prng.below(6) as u32;
    }
    if prng.below(30) == 0 {
        header.node = prng.below(400) as u16;
    }
    if prng.below(50) == 0 {
        header.partition = prng.next() as u16;
    }
    header.flags = match prng.below(4) {
        0 => 1 << prng.below(16),
        1 => prng.next() as u16,
        _ => 0,
    };
    if matches!(kind, Phase1A) && prng.below(2) == 0 {
        header.flags |= flag::SLOT;
    }
    header.instance = near(prng, acceptor.highest.max(acceptor.floor), 12);
    header.floor = near(prng, acceptor.floor, 8);
    header.round = near(prng, acceptor.promise, 4);
    header.vround = prng.below(10);
    (header.client_id, header.client_seq, header.client_low) =
        (prng.below(5), prng.below(100), prng.below(100));
    let value = random_value(prng);
    header.digest = digest(&value);
    let mut packet = Vec::new();
    emit(&header, &value, &mut packet);
    if prng.below(DAMAGE_ONE_IN) == 0 {
        match prng.below(3) {
            0 => packet.truncate(prng.below(packet.len() as u64) as usize),
            1 => packet.resize(packet.len().min(PACKET_LEN_MAX_BYTES - 1) + 1, 0xaa),
            _ => {
                let at = prng.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << prng.below(8);
            }
        }
    }
    packet
}

/// What the host's own process does to its registers, to both alike.
fn host_step(prng: &mut Prng, both: [&Registers; 2]) {
    let partition = prng.below(GEOMETRY.partitions as u64) as usize;
    let now = both[0].acceptor.acceptor(partition);
    let choice = prng.below(3);
    let bump = prng.below(3);
    for registers in both {
        match choice {
            0 => drop(
                registers
                    .acceptor
                    .raise_promise(partition, now.promise + bump),
            ),
            1 => registers.leader.activate(
                partition,
                LeaderView {
                    round: now.promise + 1,
                    next: now.highest + 1,
                    floor: now.floor.min(now.highest + 1),
                    epoch: u64::from(EPOCH),
                },
            ),
            _ => registers
                .acceptor
                .start(partition, u64::from(EPOCH), now.floor.max(1), bump > 0),
        }
    }
}

fn compare(roles: Roles, native: &Registers, kernel: &Registers, at: &str) {
    let slots = GEOMETRY.partitions * GEOMETRY.ring_slots;
    let slots_of = |role: bool| if role { slots } else { 1 };
    for p in 0..GEOMETRY.partitions {
        assert_eq!(
            native.leader.words(p),
            kernel.leader.words(p),
            "leader {p} {at}"
        );
        assert_eq!(
            native.acceptor.words(p),
            kernel.acceptor.words(p),
            "acceptor {p} {at}"
        );
    }
    for i in 0..slots_of(roles.acceptor) {
        assert_eq!(native.ring.words(i), kernel.ring.words(i), "slot {i} {at}");
    }
    for i in 0..slots_of(roles.quorum) {
        assert_eq!(
            native.counts.words(i),
            kernel.counts.words(i),
            "count {i} {at}"
        );
    }
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    let all = Roles {
        leader: true,
        acceptor: true,
        quorum: true,
    };
    hold_equal(all, PACKETS);
}

#[test]
fn a_role_alone_on_its_host_is_equal_too() {
    let none = Roles::default();
    for roles in [
        Roles {
            leader: true,
            ..none
        },
        Roles {
            acceptor: true,
            ..none
        },
        Roles {
            quorum: true,
            ..none
        },
    ] {
        hold_equal(roles, PACKETS_ALONE);
    }
}

fn hold_equal(roles: Roles, packets: usize) {
    if !common::may_load_bpf("equal") {
        return;
    }
    let seed = seed();
    eprintln!("INBAND_SEED={seed}, {roles:?}");
    let mut prng = Prng(seed);
    let switch = SoftSwitch::new(NODE, roles, GEOMETRY);
    let kernel = Kernel::load(roles, GEOMETRY);
    let both = [switch.registers(), kernel.registers()];
    for registers in both {
        registers.quorum.configure(u64::from(EPOCH), &MEMBERS);
        for p in 0..GEOMETRY.partitions {
            registers.acceptor.start(p, u64::from(EPOCH), 1, true);
            registers.acceptor.raise_promise(p, 100);
        }
    }
    let mut answers: Vec<Vec<u8>> = Vec::new();
    for i in 0..packets {
        let at = format!("after packet {i}, INBAND_SEED={seed}");
        if prng.below(HOST_STEP_ONE_IN) == 0 {
            host_step(&mut prng, both);
        }
        let packet = match answers.len() {
            ANSWERS_KEPT if prng.below(SENT_ON_ONE_IN) == 0 => {
                let mut packet = answers[prng.below(ANSWERS_KEPT as u64) as usize].clone();
                packet[11] = MEMBERS[prng.below(MEMBERS.len() as u64) as usize];
                packet
            }
            _ => random_packet(&mut prng, both[0]),
        };
        let native = common::native(&switch, &packet);
        let (verdict, out) = kernel.run(&kernel.frame(&packet), &packet);
        assert_eq!(
            (native.verdict, &native.packet),
            (verdict, &out),
            "{packet:?} {at}"
        );
        if !matches!(verdict, Verdict::Drop | Verdict::Pass) {
            answers.truncate(ANSWERS_KEPT - 1);
            answers.insert(0, out);
        }
        if i % COMPARE_EVERY == 0 {
            compare(roles, both[0], both[1], &at);
        }
    }
    compare(roles, both[0], both[1], "at the end");
    assert_eq!(switch.counters(), kernel.counters(), "INBAND_SEED={seed}");
    eprintln!("{:?}", switch.counters());
}
