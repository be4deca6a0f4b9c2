//! Checks that the kernel and the native build behave identically over sequences of packets and host steps: same
//! verdicts, output packets, registers and counters. The sequences are random ones (`INBAND_SEED=N` repeats a run) and
//! the fuzzer's corpus (`fuzz/corpus/roles.tar.gz`).

use std::collections::{BTreeMap, BTreeSet};

use crate::common::script::met_by;
use crate::common::sequence::{self, Sequence, Step, GEOMETRY, NODE, RECORD_LEN_BYTES};
use crate::common::{self, seed, Kernel, Outcome, Prng, Registers};
use inband_ground::auth::{Gate, Keys, Secret};
use inband_paxos::dataplane::soft::{Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::HEADER_LEN_BYTES;

const STEPS: usize = 150_000;
/// ... for hosts with other roles, or with a single one, whose program is not preceded by dispatch.
const STEPS_OF_OTHERS: usize = 30_000;
const DAMAGED_FRAMES: usize = 30_000;
/// ... for hosts of a cluster with a key.
const STEPS_WITH_KEYS: usize = 30_000;
/// One packet in this many is unsigned, one has a wrong key, and one is damaged after signing.
const SIGN_WRONG_ONE_IN: u64 = 15;
/// The first key that signs packets, and the number of steps between two key changes.
const FIRST_KEY: u16 = 2;
const ROTATE_EVERY: usize = 1_000;
/// Steps between two comparisons of all registers.
const COMPARE_EVERY: usize = 3_000;
fn roles(leader: bool, acceptor: bool, quorum: bool) -> Roles {
    Roles {
        leader,
        acceptor,
        quorum,
    }
}

/// The native build and the kernel's programs of the same host.
struct Pair {
    roles: Roles,
    native: SoftSwitch,
    /// In front of the native build, as in a real host.
    gate: Gate,
    kernel: Kernel,
    sequence: Sequence,
    /// Verdicts and reasons seen so far.
    met: BTreeSet<&'static str>,
    wrapped: bool,
}

impl Pair {
    fn new(roles: Roles) -> Pair {
        Pair::with_keys(roles, None)
    }

    fn with_keys(roles: Roles, keys: Option<Keys>) -> Pair {
        let pair = Pair {
            roles,
            native: SoftSwitch::new(NODE, roles, GEOMETRY),
            gate: Gate::of::<inband_paxos::dataplane::Paxos>(keys, GEOMETRY.partitions),
            kernel: Kernel::load_with_keys(roles, GEOMETRY, keys.as_ref()),
            sequence: Sequence::default(),
            met: BTreeSet::new(),
            wrapped: false,
        };
        for registers in pair.registers() {
            sequence::restart_all(registers);
        }
        pair
    }

    fn registers(&self) -> [&Registers; 2] {
        [self.native.registers(), self.kernel.registers()]
    }

    fn step(&mut self, record: &sequence::Record, at: &str) {
        // Some are damaged in transit.
        let damaged = record[15] == 0xff;
        self.step_signed(record, at, &mut |packet| {
            common::tag(packet);
            if damaged && !packet.is_empty() {
                let at = usize::from(record[14]) % packet.len();
                packet[at] ^= 1 << (record[13] % 8);
            }
        });
    }

    /// The same; `sign` signs each packet, as its sender does.
    fn step_signed(
        &mut self,
        record: &sequence::Record,
        at: &str,
        sign: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        match self.sequence.step(record, self.native.registers()) {
            Step::Host(partition, step) => {
                for registers in self.registers() {
                    step.apply(partition, registers);
                }
            }
            Step::Packet(mut packet) => {
                sign(&mut packet);
                let native = common::native_behind(&mut self.gate, &self.native, &packet);
                let (verdict, out) = self.kernel.run(&self.kernel.frame(&packet), &packet);
                let equal = (native.verdict, &native.packet) == (verdict, &out);
                assert!(
                    equal,
                    "{native:?} is not {verdict:?} {out:?}: {packet:?} {at}"
                );
                self.met.insert(native.reason);
                if !matches!(verdict, Verdict::Drop | Verdict::Pass) {
                    self.sequence.answered(&out);
                }
            }
        }
    }

    fn compare_all(&mut self, at: &str) {
        let slots = GEOMETRY.partitions * GEOMETRY.ring_slots;
        let slots_of = |role: bool| if role { slots } else { 1 };
        let [native, kernel] = self.registers();
        for p in 0..GEOMETRY.partitions {
            let words = |all: &Registers| [all.leader.words(p), all.acceptor.words(p)];
            assert_eq!(words(native), words(kernel), "partition {p} {at}");
        }
        for i in 0..slots_of(self.roles.acceptor) {
            assert_eq!(native.ring.words(i), kernel.ring.words(i), "slot {i} {at}");
        }
        for i in 0..slots_of(self.roles.quorum) {
            let words = |all: &Registers| all.counts.words(i);
            assert_eq!(words(native), words(kernel), "count {i} {at}");
        }
        self.wrapped |= (0..slots_of(self.roles.acceptor)).any(|i| {
            let instance = native.ring.rounds(i)[0];
            (GEOMETRY.ring_slots as u64..1 << 20).contains(&instance)
        });
    }

    fn compare_counters(&self, at: &str) -> BTreeMap<&'static str, u64> {
        let mut counters = self.native.counters();
        counters.extend(self.gate.counters());
        assert_eq!(counters, self.kernel.counters(), "{at}");
        counters
    }
}

fn hold_equal(roles: Roles, steps: usize) -> Pair {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}, {roles:?}");
    let mut prng = Prng(seed);
    let mut pair = Pair::new(roles);
    for i in 0..steps {
        let at = format!("in step {i}, INBAND_SEED={seed}");
        let words = [prng.next(), prng.next()].map(u64::to_le_bytes);
        let record: sequence::Record = words.concat().try_into().unwrap();
        pair.step(&record, &at);
        if i % COMPARE_EVERY == 0 {
            pair.compare_all(&at);
        }
    }
    pair.compare_all("at the end");
    eprintln!("{:?}", pair.compare_counters("at the end"));
    pair
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let pair = hold_equal(roles(true, true, true), STEPS);
    // Everything that is possible on one CPU without a full ring buffer.
    let mut missing = met_by(pair.roles);
    missing.push("epoch_ahead");
    missing.retain(|reason| !pair.met.contains(reason));
    assert!(missing.is_empty(), "never met: {missing:?}");
    assert!(pair.wrapped, "no ring came round");
}

#[test]
fn hosts_with_other_roles_are_equal_too() {
    if !common::may_load_bpf() {
        return;
    }
    for [leader, acceptor, quorum] in [
        [true, false, false],
        [false, true, false],
        [false, false, true],
        [true, true, false],
        [true, false, true],
        [false, true, true],
        [false, false, false],
    ] {
        hold_equal(roles(leader, acceptor, quorum), STEPS_OF_OTHERS);
    }
}

/// Keys that both accept from now on: the ids around `active`; they send with `active`.
fn keys_around(active: u16) -> Keys {
    let ids = [active - 1, active, active + 1];
    Keys::new(active, &ids.map(|id| (id, Secret([id as u8; 16])))).unwrap()
}

/// Usually signs with an accepted key; sometimes with none or with an unknown one.
fn sign(prng: &mut Prng, keys: &Keys, packet: &mut [u8]) {
    if packet.len() < HEADER_LEN_BYTES {
        return;
    }
    let ids = keys.ids();
    let id = match prng.below(SIGN_WRONG_ONE_IN) {
        0 => return,
        1 => keys.active() + 2,
        _ => ids[prng.below(ids.len() as u64) as usize],
    };
    let secret = [(id, Secret([id as u8; 16]))];
    Keys::new(id, &secret).unwrap().sign(packet);
    if prng.below(SIGN_WRONG_ONE_IN) == 0 {
        packet[prng.below(HEADER_LEN_BYTES as u64) as usize] ^= 1 << prng.below(8);
    }
}

#[test]
fn hosts_with_keys_are_equal_while_keys_change() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    for roles in [roles(true, true, true), roles(false, true, false)] {
        let mut keys = keys_around(FIRST_KEY);
        let mut pair = Pair::with_keys(roles, Some(keys));
        for i in 0..STEPS_WITH_KEYS {
            let at = format!("in step {i}, INBAND_SEED={seed}");
            if i % ROTATE_EVERY == 0 {
                keys = keys_around(keys.active() + 1);
                pair.kernel.set_keys(&keys);
                pair.gate.set_keys(keys);
            }
            let words = [prng.next(), prng.next()].map(u64::to_le_bytes);
            let record: sequence::Record = words.concat().try_into().unwrap();
            let sign = &mut |packet: &mut Vec<u8>| sign(&mut prng, &keys, packet);
            pair.step_signed(&record, &at, sign);
            if i % COMPARE_EVERY == 0 {
                pair.compare_all(&at);
            }
        }
        pair.compare_all("at the end");
        let counters = pair.compare_counters("at the end");
        for reason in ["bad_key", "bad_tag", "acceptor_voted"] {
            assert!(counters.contains_key(reason), "{reason}: {counters:?}");
        }
    }
}

#[test]
fn what_the_fuzzer_has_kept_leaves_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let mut pair = Pair::new(roles(true, true, true));
    for (at, bytes) in inband_testing::corpus("roles") {
        for registers in pair.registers() {
            sequence::restart_all(registers);
        }
        pair.sequence = Sequence::default();
        for record in bytes.chunks_exact(RECORD_LEN_BYTES) {
            pair.step(record.try_into().unwrap(), &at);
        }
        pair.compare_all(&at);
    }
    pair.compare_counters("at the end");
}

/// The ones' complement sum of the IPv4 header, which is 0xffff if its checksum is right.
fn ip_sum(frame: &[u8]) -> u32 {
    let halves = frame[14..34].chunks_exact(2);
    let sum: u32 = halves
        .map(|half| u32::from(u16::from_be_bytes([half[0], half[1]])))
        .sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    (folded >> 16) + (folded & 0xffff)
}

/// Gives the IPv4 header the checksum that it should have.
fn set_ip_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let checksum = !ip_sum(frame) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// The expected outcome of a frame, according to an independent implementation of the rules of `validate.h`; `None` if
/// it is not ours.
fn expected(gate: &mut Gate, native: &SoftSwitch, frame: &[u8]) -> Option<Outcome> {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let is_ours = frame.len() >= 42
        && half(12) == 0x0800
        && frame[14] == 0x45
        && half(20) & 0x3fff == 0
        && frame[23] == 17
        && frame[30..34] == common::HERE.ip().octets()
        && half(36) == common::HERE.port();
    if !is_ours {
        return None;
    }
    let (ip_len, udp_len) = (usize::from(half(16)), usize::from(half(38)));
    let bad = |reason| Outcome {
        verdict: Verdict::Drop,
        reason,
        packet: Vec::new(),
    };
    Some(if 14 + ip_len > frame.len() {
        bad("bad_truncated")
    } else if udp_len < 8 || ip_len != 20 + udp_len {
        bad("bad_length")
    } else if ip_sum(frame) != 0xffff {
        bad("bad_checksum")
    } else {
        common::native_behind(gate, native, &frame[42..42 + udp_len - 8])
    })
}

#[test]
fn a_frame_damaged_around_its_packet_reaches_no_register() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    for roles in [roles(true, true, true), roles(false, true, false)] {
        let mut pair = Pair::new(roles);
        for i in 0..DAMAGED_FRAMES {
            let words = [prng.next() & !0xff, prng.next()].map(u64::to_le_bytes);
            let record: sequence::Record = words.concat().try_into().unwrap();
            let Step::Packet(mut packet) = pair.sequence.step(&record, pair.native.registers())
            else {
                unreachable!("the first byte is 0");
            };
            common::tag(&mut packet);
            let mut frame = pair.kernel.frame(&packet);
            for _ in 0..1 + prng.below(2) {
                frame[prng.below(42) as usize] ^= 1 << prng.below(8);
            }
            // Otherwise what is damaged in the IPv4 header would matter to nothing but its checksum.
            if prng.below(2) == 0 {
                set_ip_checksum(&mut frame);
            }
            match prng.below(8) {
                0 => frame.truncate(14 + prng.below(frame.len() as u64 - 13) as usize),
                1 => frame.resize((frame.len() + prng.below(40) as usize).min(1514), 0x55),
                _ => {}
            }
            let (verdict, out) = pair.kernel.run(&frame, &packet);
            let (expected, out) = match expected(&mut pair.gate, &pair.native, &frame) {
                Some(native) => ((native.verdict, native.packet), out),
                None => ((Verdict::Pass, Vec::new()), Vec::new()),
            };
            assert_eq!(
                (verdict, out),
                expected,
                "frame {i} {frame:?}, INBAND_SEED={seed}"
            );
            if i % COMPARE_EVERY == 0 {
                pair.compare_all("damaged frames");
            }
        }
        pair.compare_all("at the end");
    }
}
