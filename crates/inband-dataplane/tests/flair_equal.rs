//! Checks that the kernel's FLAIR program and the native build behave identically over sequences of packets: same
//! verdicts, output packets, registers and counters. The sequences are random ones (`INBAND_SEED=N` repeats a run) and
//! the fuzzer's corpus (`fuzz/corpus/flair.tar.gz`).

use crate::common::flair::{rig, spec, FlairUnderTest};
use crate::common::flair_sequence::{Sequence, GEOMETRY, INCARNATION, NODE};
use crate::common::{self, seed, Prng, HERE, THERE};
use inband_flair::dataplane::registers::SessionView;
use inband_flair::dataplane::rig::FlairRig;
use inband_flair::dataplane::wire::{emit, parse, Header, Type};
use inband_flair::dataplane::{Flair, FlairRegisters, FlairSwitch};
use inband_ground::auth::Keys;
use inband_ground::soft::Arrival;
use inband_ground::xdp::rig::udp_frame;
use inband_testing::role::{self, missing, two_keys, Equal, Pair};

const STEPS: usize = 100_000;
/// ... for switches of a cluster with a key.
const STEPS_WITH_KEYS: usize = 20_000;
/// Steps after which the switch is replaced by a new one without state.
const RESTART_EVERY: usize = 10_000;
/// Reads that the deployed program distributes with its own random numbers.
const READS: usize = 4_000;

impl role::Sequence for Sequence {
    type System = FlairUnderTest;

    fn packet(&mut self, record: &[u8; 16], _: [&FlairRegisters; 2]) -> (Vec<u8>, Arrival) {
        let step = self.step(record);
        let arrival = Arrival {
            from: step.from,
            now_ns: step.now_ns,
            random: step.random,
        };
        (step.packet, arrival)
    }

    fn answered(&mut self, packet: &[u8]) {
        Sequence::answered(self, packet);
    }

    fn words(registers: &FlairRegisters) -> Vec<(String, Vec<u64>)> {
        let (sessions, groups) = (&registers.sessions, &registers.groups);
        let sessions = (0..sessions.count()).map(|n| (format!("set {n}"), sessions.words(n)));
        let groups = (0..groups.count()).map(|n| (format!("group {n}"), groups.words(n)));
        sessions.chain(groups).collect()
    }

    fn clear(registers: &FlairRegisters) {
        registers.clear();
    }
}

fn equal(keys: Option<Keys>) -> Equal<Sequence> {
    let switch = FlairSwitch::new(NODE, GEOMETRY, INCARNATION);
    Equal::new(Pair::new(switch, rig(keys), keys, GEOMETRY.sets))
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let seed = seed();
    let what = format!("INBAND_SEED={seed}");
    let mut equal = equal(None);
    equal.random(
        &mut Prng(seed),
        STEPS,
        RESTART_EVERY,
        &what,
        &mut |packet| {
            common::tag(packet);
        },
    );
    eprintln!("{what} {:?}", equal.pair.compare_counters(&what));
    let missing = missing::<Flair>("flair_", &["flair_client_by_host"], &equal.pair.met);
    assert!(missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn switches_with_keys_are_equal_too() {
    if !common::may_load_bpf() {
        return;
    }
    let reasons = ["bad_key", "bad_tag", "flair_write_stable", "flair_renewed"];
    equal(Some(two_keys())).random_with_keys(STEPS_WITH_KEYS, &reasons);
}

#[test]
fn what_the_fuzzer_has_kept_leaves_kernel_and_native_equal() {
    if !common::may_load_bpf() {
        return;
    }
    let mut equal = equal(None);
    for (at, bytes) in inband_testing::corpus("flair") {
        equal.records(&bytes, &at);
    }
    equal.pair.compare_counters("at the end");
}

/// The program as deployed takes the time and random numbers from the kernel.
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
    // Reads are distributed approximately by weight.
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
