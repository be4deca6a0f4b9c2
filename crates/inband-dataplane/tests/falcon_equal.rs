//! The kernel's Falcon program and the native build, held equal over sequences of packets: same
//! verdicts, same packets out, same registers, same counters, with every policy. Random ones
//! (`INBAND_SEED=N` repeats a run) and those that the fuzzer has kept (`fuzz/corpus/falcon.tar.gz`).
#![allow(missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::falcon::{native, Arrival, Kernel};
use common::falcon_sequence::{config, Record, Sequence, INCARNATION, NODE, RECORD_LEN_BYTES};
use common::{seed, Prng};
use inband_falcon::dataplane::Falcon;
use inband_falcon::dataplane::{FalconSwitch, Policy};
use inband_ground::auth::{Gate, Keys, Secret};
use inband_ground::System as _;
use inband_paxos::dataplane::wire::HEADER_LEN_BYTES;

/// Of each policy.
const STEPS: usize = 20_000;
/// ... of a scheduler with a key.
const STEPS_WITH_KEYS: usize = 10_000;
/// Steps between two comparisons of all registers.
const COMPARE_EVERY: usize = 2_000;
/// Steps between two schedulers: one that has forgotten everything takes the place of the other.
const RESTART_EVERY: usize = 5_000;
/// Reasons that need another CPU, or are counted besides another.
const NOT_HERE: [&str; 3] = [
    "falcon_push_contended",
    "falcon_busy",
    "falcon_executor_by_host",
];

/// Kernel and native build of one scheduler, side by side.
struct Pair {
    native: FalconSwitch,
    /// Before the native build, as in a host.
    gate: Gate,
    kernel: Kernel,
    sequence: Sequence,
    met: BTreeSet<&'static str>,
}

impl Pair {
    fn new(policy: Policy, keys: Option<Keys>) -> Pair {
        let config = config(policy);
        Pair {
            native: FalconSwitch::new(NODE, config, INCARNATION),
            gate: Gate::of::<inband_falcon::dataplane::Falcon>(keys, config.sets),
            kernel: Kernel::load(config, keys),
            sequence: Sequence::default(),
            met: BTreeSet::new(),
        }
    }

    fn step(&mut self, record: &Record, at: &str, sign: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut step = self.sequence.step(record);
        sign(&mut step.packet);
        step.register_at(self.native.registers());
        step.register_at(self.kernel.registers());
        let packet = &step.packet;
        let (from, now_ns) = (step.from, step.now_ns);
        let arrival = Arrival { from, now_ns };
        let expected = native(&mut self.gate, &self.native, packet, arrival);
        let frame = Kernel::frame(packet, arrival);
        let (verdict, out) = self.kernel.run(&frame, packet, arrival);
        let equal = (expected.verdict, &expected.packet) == (verdict, &out);
        assert!(
            equal,
            "{expected:?} is not {verdict:?} {out:?}: {step:?} {at}"
        );
        self.met.insert(expected.reason);
    }

    fn compare_all(&self, at: &str) {
        let kernel = self.kernel.registers().words();
        for (native, kernel) in self.native.registers().words().iter().zip(&kernel) {
            assert_eq!(native, kernel, "{at}");
        }
    }

    /// Both as after a start.
    fn restart(&mut self) {
        self.sequence = Sequence::default();
        self.native.registers().clear();
        self.kernel.registers().clear();
    }

    fn compare_counters(&self, at: &str) -> BTreeMap<&'static str, u64> {
        let mut counters = self.native.counters();
        counters.extend(self.gate.counters());
        let mut in_kernel = self.kernel.counters();
        in_kernel.remove("falcon_executor_by_host");
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
    let mut met = BTreeSet::new();
    for policy in Policy::ALL {
        let mut pair = Pair::new(policy, None);
        for i in 0..STEPS {
            let at = format!("in step {i} of {policy:?}, INBAND_SEED={seed}");
            pair.step(&record(&mut prng), &at, &mut |packet| common::tag(packet));
            if i % COMPARE_EVERY == 0 {
                pair.compare_all(&at);
            }
            if i % RESTART_EVERY == 0 {
                pair.restart();
            }
        }
        pair.compare_all("at the end");
        eprintln!("{policy:?}: {:?}", pair.compare_counters("at the end"));
        met.append(&mut pair.met);
    }
    let all = Falcon::reasons();
    let missing: Vec<_> = all
        .filter(|name| name.starts_with("falcon_") && !NOT_HERE.contains(name))
        .filter(|name| !met.contains(name))
        .collect();
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn schedulers_with_keys_are_equal_too() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    let mut signers = Prng(prng.next());
    let secret = |id: u16| (id, Secret([id as u8; 16]));
    let keys = Keys::new(2, &[secret(1), secret(2)]).unwrap();
    let mut pair = Pair::new(Policy::Fifo, Some(keys));
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
    for reason in ["bad_key", "bad_tag", "falcon_given", "falcon_woken"] {
        assert!(counters.contains_key(reason), "{reason}: {counters:?}");
    }
}

#[test]
fn what_the_fuzzer_has_kept_leaves_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let mut pairs = Policy::ALL.map(|policy| Pair::new(policy, None));
    for (at, bytes) in inband_testing::corpus("falcon") {
        // As the fuzz target does it: the first byte says which policy.
        let Some((first, records)) = bytes.split_first() else {
            continue;
        };
        let pair = &mut pairs[usize::from(*first) % Policy::ALL.len()];
        pair.restart();
        for record in records.chunks_exact(RECORD_LEN_BYTES) {
            pair.step(record.try_into().unwrap(), &at, &mut |packet| {
                common::tag(packet)
            });
        }
        pair.compare_all(&at);
    }
}
