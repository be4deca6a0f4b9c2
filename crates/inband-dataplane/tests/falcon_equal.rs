//! Checks that the kernel's Falcon program and the native build behave identically over sequences of packets: same
//! verdicts, output packets, registers and counters, with every policy. The sequences are random ones (`INBAND_SEED=N`
//! repeats a run) and the fuzzer's corpus (`fuzz/corpus/falcon.tar.gz`).

use std::collections::BTreeSet;

use crate::common::falcon::{rig, FalconUnderTest};
use crate::common::falcon_sequence::{config, Sequence, INCARNATION, NODE};
use crate::common::{self, seed, Prng};
use inband_falcon::dataplane::{Falcon, FalconRegisters, FalconSwitch, Policy};
use inband_ground::auth::Keys;
use inband_ground::soft::Arrival;
use inband_testing::role::{self, missing, two_keys, Equal, Pair};

/// For each policy.
const STEPS: usize = 20_000;
/// ... for a scheduler with a key.
const STEPS_WITH_KEYS: usize = 10_000;
/// Steps after which the scheduler is replaced by a new one without state.
const RESTART_EVERY: usize = 5_000;
/// Reasons that need another CPU, or are counted in addition to another one.
const NOT_HERE: [&str; 3] = [
    "falcon_push_contended",
    "falcon_busy",
    "falcon_executor_by_host",
];

impl role::Sequence for Sequence {
    type System = FalconUnderTest;

    fn packet(
        &mut self,
        record: &[u8; 16],
        registers: [&FalconRegisters; 2],
    ) -> (Vec<u8>, Arrival) {
        let step = self.step(record);
        registers
            .into_iter()
            .for_each(|registers| step.register_at(registers));
        let arrival = Arrival {
            from: step.from,
            now_ns: step.now_ns,
            random: 0,
        };
        (step.packet, arrival)
    }

    fn words(registers: &FalconRegisters) -> Vec<(String, Vec<u64>)> {
        let all = registers.words().into_iter();
        let named = all.map(|(name, at, words)| (format!("{name} {at}"), words));
        named.collect()
    }

    fn clear(registers: &FalconRegisters) {
        registers.clear();
    }
}

fn equal(policy: Policy, keys: Option<Keys>) -> Equal<Sequence> {
    let config = config(policy);
    let scheduler = FalconSwitch::new(NODE, config, INCARNATION);
    Equal::new(Pair::new(scheduler, rig(config, keys), keys, config.sets))
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    let mut prng = Prng(seed);
    let mut met = BTreeSet::new();
    for policy in Policy::ALL {
        let what = format!("{policy:?}, INBAND_SEED={seed}");
        let mut equal = equal(policy, None);
        equal.random(&mut prng, STEPS, RESTART_EVERY, &what, &mut |packet| {
            common::tag(packet);
        });
        eprintln!("{what}: {:?}", equal.pair.compare_counters(&what));
        met.append(&mut equal.pair.met);
    }
    let missing = missing::<Falcon>("falcon_", &NOT_HERE, &met);
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn schedulers_with_keys_are_equal_too() {
    if !common::may_load_bpf() {
        return;
    }
    let reasons = ["bad_key", "bad_tag", "falcon_given", "falcon_woken"];
    equal(Policy::Fifo, Some(two_keys())).random_with_keys(STEPS_WITH_KEYS, &reasons);
}

#[test]
fn what_the_fuzzer_has_kept_leaves_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let mut all = Policy::ALL.map(|policy| equal(policy, None));
    for (at, bytes) in inband_testing::corpus("falcon") {
        // As in the fuzz target, the first byte selects the policy.
        let Some((first, records)) = bytes.split_first() else {
            continue;
        };
        all[usize::from(*first) % Policy::ALL.len()].records(records, &at);
    }
}
