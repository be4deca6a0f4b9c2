//! The kernel's FLAIR program and the native build, held equal over sequences of packets: same verdicts,
//! same packets out, same registers, same counters. Random ones (`INBAND_SEED=N` repeats a run) and
//! those that the fuzzer has kept (`fuzz/corpus/flair.tar.gz`).
#![allow(missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::flair::{native, spec, Arrival, Kernel};
use common::flair_sequence::{Record, Sequence, GEOMETRY, INCARNATION, NODE, RECORD_LEN_BYTES};
use common::{seed, Prng, HERE, THERE};
use inband_flair::dataplane::registers::SessionView;
use inband_flair::dataplane::rig::FlairRig;
use inband_flair::dataplane::wire::{emit, parse, Header, Type};
use inband_flair::dataplane::Flair;
use inband_flair::dataplane::{FlairRegisters, FlairSwitch};
use inband_ground::auth::{Gate, Keys, Secret};
use inband_ground::xdp::rig::udp_frame;
use inband_ground::System as _;
use inband_paxos::dataplane::wire::HEADER_LEN_BYTES;

const STEPS: usize = 100_000;
/// ... of switches of a cluster with a key.
const STEPS_WITH_KEYS: usize = 20_000;
/// Steps between two comparisons of all registers.
const COMPARE_EVERY: usize = 2_000;
/// Steps between two switches: one that has forgotten everything takes the place of the other.
const RESTART_EVERY: usize = 10_000;
/// Reads that the program itself sends by chance.
const READS: usize = 4_000;

/// Kernel and native build of one switch, side by side.
struct Pair {
    native: FlairSwitch,
    /// Before the native build, as in a host.
    gate: Gate,
    kernel: Kernel,
    sequence: Sequence,
    met: BTreeSet<&'static str>,
}

impl Pair {
    fn new(keys: Option<Keys>) -> Pair {
        Pair {
            native: FlairSwitch::new(NODE, GEOMETRY, INCARNATION),
            gate: Gate::of::<inband_flair::dataplane::Flair>(keys, GEOMETRY.sets),
            kernel: Kernel::load(keys),
            sequence: Sequence::default(),
            met: BTreeSet::new(),
        }
    }

    fn step(&mut self, record: &Record, at: &str, sign: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut step = self.sequence.step(record);
        sign(&mut step.packet);
        let packet = &step.packet;
        let arrival = Arrival {
            from: step.from,
            now_ns: step.now_ns,
            random: step.random,
        };
        let expected = native(&mut self.gate, &self.native, packet, arrival);
        let frame = Kernel::frame(packet, arrival);
        let (verdict, out) = self.kernel.run(&frame, packet, arrival);
        let equal = (expected.verdict, &expected.packet) == (verdict, &out);
        assert!(
            equal,
            "{expected:?} is not {verdict:?} {out:?}: {step:?} {at}"
        );
        self.met.insert(expected.reason);
        self.sequence.answered(&out);
    }

    fn registers(&self) -> [&FlairRegisters; 2] {
        [self.native.registers(), self.kernel.registers()]
    }

    fn compare_all(&self, at: &str) {
        let [native, kernel] = self.registers();
        for set in 0..GEOMETRY.sets {
            let words = |all: &FlairRegisters| all.sessions.words(set);
            assert_eq!(words(native), words(kernel), "set {set} {at}");
        }
        for i in 0..GEOMETRY.sets * GEOMETRY.groups {
            let words = |all: &FlairRegisters| all.groups.words(i);
            assert_eq!(words(native), words(kernel), "group {i} {at}");
        }
    }

    /// Both as after a start.
    fn restart(&mut self) {
        self.sequence = Sequence::default();
        for registers in self.registers() {
            registers.clear();
        }
    }

    fn compare_counters(&self, at: &str) -> BTreeMap<&'static str, u64> {
        let mut counters = self.native.counters();
        counters.extend(self.gate.counters());
        let mut in_kernel = self.kernel.counters();
        in_kernel.remove("flair_client_by_host");
        assert_eq!(counters, in_kernel, "{at}");
        counters
    }
}

fn record(prng: &mut Prng) -> Record {
    let words = [prng.next(), prng.next()].map(u64::to_le_bytes);
    words.concat().try_into().unwrap()
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    let mut pair = Pair::new(None);
    for i in 0..STEPS {
        let at = format!("in step {i}, INBAND_SEED={seed}");
        pair.step(&record(&mut prng), &at, &mut |packet| common::tag(packet));
        if i % COMPARE_EVERY == 0 {
            pair.compare_all(&at);
        }
        if i % RESTART_EVERY == 0 {
            pair.restart();
        }
    }
    pair.compare_all("at the end");
    eprintln!("{:?}", pair.compare_counters("at the end"));
    let all = Flair::reasons();
    let missing: Vec<_> = all
        .filter(|name| name.starts_with("flair_") && *name != "flair_client_by_host")
        .filter(|name| !pair.met.contains(name))
        .collect();
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn switches_with_keys_are_equal_too() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    let mut signers = Prng(prng.next());
    let secret = |id: u16| (id, Secret([id as u8; 16]));
    let mut pair = Pair::new(Some(Keys::new(2, &[secret(1), secret(2)]).unwrap()));
    for i in 0..STEPS_WITH_KEYS {
        let at = format!("in step {i}, INBAND_SEED={seed}");
        pair.step(&record(&mut prng), &at, &mut |packet| {
            if packet.len() >= HEADER_LEN_BYTES {
                // A key that is not accepted now and then, and a bit that changes on the way.
                let id = [1, 2, 2, 2, 2, 2, 2, 3][signers.below(8) as usize];
                Keys::new(id, &[secret(id)]).unwrap().sign(packet);
                if signers.below(20) == 0 {
                    let at = signers.below(HEADER_LEN_BYTES as u64) as usize;
                    packet[at] ^= 1 << signers.below(8);
                }
            }
        });
        if i % COMPARE_EVERY == 0 {
            pair.compare_all(&at);
        }
    }
    pair.compare_all("at the end");
    let counters = pair.compare_counters("at the end");
    for reason in ["bad_key", "bad_tag", "flair_write_stable", "flair_renewed"] {
        assert!(counters.contains_key(reason), "{reason}: {counters:?}");
    }
}

#[test]
fn what_the_fuzzer_has_kept_leaves_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let mut pair = Pair::new(None);
    for (at, bytes) in inband_testing::corpus("flair") {
        pair.restart();
        for record in bytes.chunks_exact(RECORD_LEN_BYTES) {
            pair.step(record.try_into().unwrap(), &at, &mut |packet| {
                common::tag(packet)
            });
        }
        pair.compare_all(&at);
    }
    pair.compare_counters("at the end");
}

/// The program as it is deployed takes time and chance from the kernel.
#[test]
fn the_kernels_own_clock_and_chance() {
    if !common::may_load_bpf() {
        return;
    }
    let rig = FlairRig::load(spec(None)).unwrap();
    let now_ns = || {
        let clock = nix::time::ClockId::CLOCK_BOOTTIME;
        let now = nix::time::clock_gettime(clock).unwrap();
        now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
    };
    let mut packet = Vec::new();
    emit(&Header::new(Type::Heartbeat, 0, 9), b"", b"", &mut packet);
    common::tag(&mut packet);
    let before_ns = now_ns();
    let answer = rig.run(&udp_frame(THERE, HERE, &packet), 1).unwrap();
    let (header, ..) = parse(&answer.frame[42..]).unwrap();
    assert!((before_ns..=now_ns()).contains(&header.switch_time_ns()));
    // Who gets reads: by weight, roughly.
    rig.registers().sessions.restore(
        1,
        SessionView {
            session: 5,
            leader: 3,
            followers: 0b0111,
            replicas: 0b0111,
            weights: [1, 0, 3, 200, 0, 0, 0, 0],
            deadline_ns: u64::MAX,
            ..SessionView::default()
        },
    );
    packet.clear();
    emit(&Header::new(Type::Read, 1, 0), b"", b"", &mut packet);
    common::tag(&mut packet);
    let frame = udp_frame(THERE, HERE, &packet);
    let mut reads = [0usize; 8];
    for _ in 0..READS {
        let run = rig.run(&frame, 1).unwrap();
        assert_eq!(run.action, common::XDP_DROP, "no replica is resolved");
        let (header, ..) = parse(&run.frame[42..]).unwrap();
        assert_eq!(header.session, 5, "rewritten before it was dropped");
        reads[usize::from(header.replica)] += 1;
    }
    assert_eq!(reads[0] + reads[2], READS, "{reads:?}");
    assert!((READS / 5..READS / 3).contains(&reads[0]), "{reads:?}");
    let counters = rig.counters().unwrap();
    assert_eq!(counters["copy_unresolved"], READS as u64);
}
