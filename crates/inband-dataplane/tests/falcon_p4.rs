//! Falcon's scheduler in P4 (`dataplane/falcon/p4`) on bmv2's `simple_switch` against the packet vectors and, with random
//! packets, against the native build.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::common::falcon::{bytes, pull, task, FalconUnderTest, INCARNATION};
use crate::common::falcon_sequence::{self, Sequence};
use crate::common::{seed, tag, Prng, NODE, THERE};
use crate::falcon_vectors::Case;
use inband_falcon::dataplane::wire::{flag, Header, Task, Type, TASKS_MAX};
use inband_falcon::dataplane::{
    c, Falcon, FalconConfig, FalconRegisters, FalconSwitch, Policy, Verdict, EXECUTORS,
};
use inband_ground::auth::Gate;
use inband_ground::soft::Arrival;
use inband_ground::xdp::rig::udp_frame;
use inband_testing::frame::{turned, HERE};
use inband_testing::p4::{packets, Running, GROUP_PORT, HOST_PORT, SENDER_PORT};
use inband_testing::role::{native, Outcome};
use inband_testing::vector::{cases, named, unsupported, Case as _};

/// The policies in P4.
const POLICIES: [Policy; 4] = [
    Policy::Fifo,
    Policy::Priority,
    Policy::Resources,
    Policy::Fair,
];
const SETS: usize = 2;
const WORKERS: usize = 70;
const QUEUES: usize = 64;
/// The most per queue.
const SLOTS: usize = 16;
const USERS: usize = c::IB_FALCON_USERS as usize;
const SIZES: [(&str, usize); 4] = [
    ("PARTITIONS", SETS),
    ("WORKERS", WORKERS),
    ("QUEUES", QUEUES),
    ("SLOTS", SLOTS),
];
/// Counts passes after which a packet is resubmitted: IB_P4_ANOTHER_PASS.
const ANOTHER_PASS: usize = 1023;
/// The cases that the scheduler may fail. May only become smaller.
const UNSUPPORTED_MAX: usize = 3;
/// Random packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;
/// What a long random run must meet.
const MET: [&str; 19] = [
    "bad_length",
    "bad_partition",
    "bad_tag",
    "bad_type",
    "falcon_asked",
    "falcon_bad_digest",
    "falcon_bad_executor",
    "falcon_bad_task",
    "falcon_empty",
    "falcon_given",
    "falcon_given_again",
    "falcon_not_registered",
    "falcon_other_incarnation",
    "falcon_overtaken",
    "falcon_parked",
    "falcon_queue_full",
    "falcon_queued",
    "falcon_user_full",
    "falcon_woken",
];

/// A task's words in slots and records.
const TASK_WORDS: [[&str; 12]; 2] = [
    [
        "slot_whose",
        "slot_which",
        "slot_where",
        "slot_digest",
        "slot_d0",
        "slot_d1",
        "slot_d2",
        "slot_d3",
        "slot_d4",
        "slot_d5",
        "slot_d6",
        "slot_d7",
    ],
    [
        "task_whose",
        "task_which",
        "task_where",
        "task_digest",
        "task_d0",
        "task_d1",
        "task_d2",
        "task_d3",
        "task_d4",
        "task_d5",
        "task_d6",
        "task_d7",
    ],
];

/// The register arrays that have a counterpart in the native build, with their sizes.
fn arrays() -> Vec<(&'static str, usize)> {
    let mut arrays: Vec<_> = [
        "not_empty",
        "turn",
        "given",
        "woken",
        "waiting0",
        "waiting1",
    ]
    .map(|array| (array, SETS))
    .into();
    arrays.push(("user_tasks", SETS * USERS));
    arrays.extend(["add", "retrieve"].map(|array| (array, SETS * QUEUES)));
    arrays.push(("slot_sequence", SETS * QUEUES * SLOTS));
    arrays.extend(TASK_WORDS[0].map(|array| (array, SETS * QUEUES * SLOTS)));
    arrays.extend(
        ["parked", "incarnation", "resources", "worker_turn"].map(|array| (array, SETS * WORKERS)),
    );
    let of_executors = ["pull_seq", "state", "address"].into_iter();
    let of_executors = of_executors.chain(TASK_WORDS[1]);
    arrays.extend(of_executors.map(|array| (array, SETS * WORKERS * EXECUTORS)));
    arrays
}

/// Words by register array and index. Those that are missing are zero.
type Words = BTreeMap<(&'static str, usize), u64>;

/// The registers of the native build as the switch has them.
fn words(registers: &FalconRegisters) -> Words {
    let config = registers.config();
    let (queues, slots) = (config.policy.queues(), config.queue_slots());
    let mut all = Words::new();
    let mut put = |array, index, word: u64| {
        if word != 0 {
            *all.entry((array, index)).or_default() |= word;
        }
    };
    macro_rules! at {
        ($words:ident, $struct:ident, $field:ident) => {
            $words[offset_of!(c::$struct, $field) / 8]
        };
    }
    for (name, index, words) in registers.words() {
        match name {
            "set" => {
                for queue in 0..queues {
                    let places = words[offset_of!(c::ib_falcon_set, queue) / 8 + queue];
                    let (add, retrieve) = (places >> 32, u64::from(places as u32));
                    put("add", index * QUEUES + queue, add);
                    put("retrieve", index * QUEUES + queue, retrieve);
                    put("not_empty", index, u64::from(add != retrieve) << queue);
                }
                put("turn", index, at!(words, ib_falcon_set, turn));
                put("given", index, at!(words, ib_falcon_set, given));
                put("woken", index, at!(words, ib_falcon_set, woken));
                let users = &words[offset_of!(c::ib_falcon_set, user_tasks) / 8..];
                for (user, tasks) in users.iter().enumerate() {
                    put("user_tasks", index * USERS + user, *tasks);
                }
            }
            "slot" => {
                let index = index / slots / queues * QUEUES * SLOTS
                    + index / slots % queues * SLOTS
                    + index % slots;
                let sequence = at!(words, ib_falcon_slot, sequence);
                put("slot_sequence", index, sequence);
                let task = &words[offset_of!(c::ib_falcon_slot, task) / 8..];
                for (array, word) in TASK_WORDS[0].into_iter().zip(task) {
                    put(array, index, u64::from_be(*word));
                }
            }
            "group" => {
                let groups = config.workers.div_ceil(64);
                for (n, words) in words.chunks(4).enumerate() {
                    let (set, worker) = (index / groups, index % groups * 64 + n);
                    let index = set * WORKERS + worker;
                    let parked = at!(words, ib_falcon_worker, parked);
                    put("parked", index, parked);
                    put(
                        "incarnation",
                        index,
                        at!(words, ib_falcon_worker, incarnation),
                    );
                    put("resources", index, at!(words, ib_falcon_worker, resources));
                    put("worker_turn", index, at!(words, ib_falcon_worker, turn));
                    let waiting = ["waiting0", "waiting1"][worker / 64];
                    put(waiting, set, u64::from(parked != 0) << (worker % 64));
                }
            }
            _ => {
                put("pull_seq", index, at!(words, ib_falcon_executor, pull_seq));
                put("state", index, at!(words, ib_falcon_executor, state));
                put("address", index, at!(words, ib_falcon_executor, address));
                let task = &words[offset_of!(c::ib_falcon_executor, task) / 8..];
                for (array, word) in TASK_WORDS[1].into_iter().zip(task) {
                    put(array, index, u64::from_be(*word));
                }
            }
        }
    }
    all
}

/// The words that differ, as they are now.
fn changed(known: &Words, now: &Words) -> Words {
    let ended = known.keys().filter(|at| !now.contains_key(at));
    let mut changed: Words = ended.map(|at| (*at, 0)).collect();
    changed.extend(now.iter().filter(|(at, word)| known.get(at) != Some(word)));
    changed
}

/// The scheduler in P4, and the same one built natively, to compare with.
struct Both {
    running: Running,
    native: FalconSwitch,
    gate: Gate,
    /// The registers of both when they were last set or compared.
    known: Words,
    /// Where a task leaves that is for an executor other than the sender.
    executor_port: usize,
}

impl Both {
    /// Returns `None` if there is no toolchain.
    fn start(test: &str) -> Option<Both> {
        let running = Running::start(test, "falcon", "scheduler", NODE, &SIZES)?;
        let config = falcon_sequence::config(Policy::Fifo);
        Some(Both {
            running,
            native: FalconSwitch::new(NODE, config, INCARNATION),
            gate: Gate::of::<Falcon>(None, SETS),
            known: Words::new(),
            executor_port: SENDER_PORT,
        })
    }

    /// Replaces the scheduler by another.
    fn restart(&mut self, native: FalconSwitch) {
        self.native = native;
        let config = self.native.registers().config();
        assert_eq!((config.sets, config.workers), (SETS, WORKERS));
        assert!(POLICIES.contains(&config.policy) && config.queue_slots() <= SLOTS);
        self.running.switch.settle();
        let data: [&[u8]; 4] = [
            &[config.policy as u8],
            &[config.queue_slots().ilog2() as u8],
            &config.user_tasks_max.to_be_bytes(),
            &INCARNATION.to_be_bytes(),
        ];
        let table = "scheduler";
        self.running.switch.set_default(table, "schedule", &data);
        self.set();
    }

    /// Sets the registers in P4 that differ from the native ones: the control plane's part.
    fn set(&mut self) {
        let now = words(self.native.registers());
        for ((array, index), word) in changed(&self.known, &now) {
            self.running.switch.write(array, index, word);
        }
        self.known = now;
    }

    /// Passes a packet through both.
    fn handle(&mut self, packet: &[u8], arrival: Arrival, what: &dyn Display) -> Outcome<Verdict> {
        let outcome = native::<FalconUnderTest>(&mut self.gate, &self.native, packet, arrival);
        let frame = udp_frame(arrival.from, HERE, packet);
        let out = match outcome.verdict {
            Verdict::Drop => None,
            Verdict::Pass => Some((HOST_PORT, frame.clone())),
            Verdict::Reply => Some((SENDER_PORT, turned(&frame, &outcome.packet, None))),
            Verdict::ToExecutor(to) => {
                let of_pull = udp_frame(to, HERE, packet);
                let out = turned(&of_pull, &outcome.packet, None);
                Some((self.executor_port, out))
            }
        };
        self.running.frame(&frame, out, outcome.reason, what);
        outcome
    }

    /// Compares the registers that have changed.
    fn compare(&mut self, what: &dyn Display) {
        let now = words(self.native.registers());
        for ((array, index), word) in changed(&self.known, &now) {
            self.running.check(array, index, word, what);
        }
        self.known = now;
    }

    /// Compares all registers.
    fn compare_all(&mut self, what: &dyn Display) {
        self.known = words(self.native.registers());
        for (array, size) in arrays() {
            for index in 0..size {
                let word = self.known.get(&(array, index)).copied().unwrap_or(0);
                self.running.check(array, index, word, what);
            }
        }
    }

    /// Returns how many passes after the first one there were.
    fn further_passes(&mut self) -> u64 {
        self.running.switch.settle();
        self.running.switch.counter("reasons", ANOTHER_PASS)
    }
}

fn from(from: SocketAddrV4) -> Arrival {
    Arrival {
        from,
        now_ns: 0,
        random: 0,
    }
}

#[test]
fn the_scheduler_in_p4_passes_every_vector() {
    let cases = cases::<Case>("falcon");
    let names: Vec<&str> = cases.iter().map(|case| case.name()).collect();
    let listed = unsupported("falcon", "p4", "scheduler", &names);
    assert!(listed.len() <= UNSUPPORTED_MAX, "it may only shrink");
    let Some(mut both) = Both::start("vectors") else {
        return;
    };
    for case in cases.iter().filter(|case| !listed.contains(case.name())) {
        named(case.name(), || {
            let (native, _) = case.native();
            let mut expected = case.prepare(native.registers());
            both.restart(native);
            for at in 0..case.packets() {
                let what = format!("packet {at} of \"{}\"", case.name());
                case.before(at, both.native.registers());
                both.set();
                let step = case.step(at, None);
                let got = both.handle(&step.packet, step.arrival, &what);
                let right = (step.verdict, &*step.reason, &step.out);
                assert_eq!((got.verdict, got.reason, &got.packet), right, "{what}");
                case.check(at, both.native.registers(), &mut expected);
                both.compare(&what);
            }
            both.compare_all(&case.name());
        });
    }
    let (passed, total) = (cases.len() - listed.len(), cases.len());
    println!("P4 falcon scheduler: {passed} of {total} vectors");
    both.running.end::<Falcon>();
}

#[test]
fn the_scheduler_in_p4_equals_the_native_build() {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let Some(mut both) = Both::start("random") else {
        return;
    };
    let mut prng = Prng(seed);
    let (count, must_meet) = packets();
    let mut met = BTreeSet::new();
    for policy in POLICIES {
        let mut sequence = Sequence::default();
        let config = falcon_sequence::config(policy);
        both.restart(FalconSwitch::new(NODE, config, INCARNATION));
        for number in 0..count {
            let what = format!("packet {number} with {policy:?}, INBAND_SEED={seed}");
            let mut step = sequence.step(&prng.record());
            if step.register.is_some() {
                both.compare(&what);
                step.register_at(both.native.registers());
                both.set();
            }
            tag(&mut step.packet);
            if prng.below(40) == 0 && !step.packet.is_empty() {
                let at = prng.below(step.packet.len() as u64) as usize;
                step.packet[at] ^= 1 << prng.below(8);
            }
            met.insert(both.handle(&step.packet, from(step.from), &what).reason);
            if number % COMPARE_EVERY == 0 {
                both.compare(&what);
            }
        }
        both.compare_all(&format!("{policy:?}, INBAND_SEED={seed}"));
    }
    if must_meet {
        let missing: Vec<_> = MET.iter().filter(|name| !met.contains(**name)).collect();
        assert!(missing.is_empty(), "not met: {missing:?}");
    }
    both.running.end::<Falcon>();
}

fn submit(count: usize) -> Vec<u8> {
    let mut header = Header::new(Type::Submit, 1, 0);
    (header.user, header.job) = (5, 6);
    let tasks: Vec<Task> = (0..count).map(|n| task(5, 6, n as u32, "a")).collect();
    bytes(&header, &tasks)
}

fn fifo() -> FalconConfig {
    FalconConfig {
        slots: SLOTS,
        user_tasks_max: 1000,
        ..falcon_sequence::config(Policy::Fifo)
    }
}

/// A FIFO scheduler with one worker; `None`: the test is reported as not run.
fn with_a_worker(test: &str) -> Option<Both> {
    let mut both = Both::start(test)?;
    let native = FalconSwitch::new(NODE, fifo(), INCARNATION);
    native.registers().register(1, 0, 1, 0);
    both.restart(native);
    Some(both)
}

#[test]
fn a_task_leaves_by_the_port_of_its_executor() {
    let Some(mut both) = with_a_worker("port") else {
        return;
    };
    let mut parks = pull(1, 3, 1, 1);
    parks.flags = flag::PARK;
    both.handle(&bytes(&parks, &[]), from(THERE), &"the PULL");
    let index = WORKERS * EXECUTORS + 3;
    let port = SENDER_PORT as u64;
    both.running
        .check("executor_port", index, port, &"the PULL");
    let switch = &mut both.running.switch;
    switch.write("executor_port", index, GROUP_PORT as u64);
    both.executor_port = GROUP_PORT;
    let woken = both.handle(&submit(1), from(HERE), &"the SUBMIT");
    assert_eq!(woken.verdict, Verdict::ToExecutor(THERE));
    both.running.end::<Falcon>();
}

#[test]
fn a_task_takes_a_pass_and_so_does_waking() {
    let Some(mut both) = with_a_worker("passes") else {
        return;
    };
    for (count, further) in [(0, 0), (1, 0), (TASKS_MAX, TASKS_MAX as u64 - 1)] {
        let before = both.further_passes();
        both.handle(&submit(count), from(THERE), &format!("{count} tasks"));
        assert_eq!(both.further_passes() - before, further, "{count} tasks");
    }
    for seq in 1..=TASKS_MAX as u64 + 2 {
        let before = both.further_passes();
        let mut header = pull(1, 0, 1, seq);
        header.flags = flag::PARK;
        both.handle(&bytes(&header, &[]), from(THERE), &"a PULL");
        assert_eq!(both.further_passes(), before, "a PULL");
    }
    let before = both.further_passes();
    let woken = both.handle(&submit(1), from(THERE), &"a SUBMIT that wakes");
    assert_eq!(woken.reason, "falcon_woken");
    assert_eq!(both.further_passes() - before, 1);
    both.running.end::<Falcon>();
}

/// The switch also forwards frames for others, by the destination's hardware address or to the host.
#[test]
fn a_submit_for_another_scheduler_is_forwarded_unchanged() {
    let Some(mut both) = Both::start("elsewhere") else {
        return;
    };
    let elsewhere = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 77), HERE.port());
    for count in [1, 2, 3, TASKS_MAX] {
        let mut packet = submit(count);
        tag(&mut packet);
        let frame = udp_frame(THERE, elsewhere, &packet);
        let out = Some((HOST_PORT, frame.clone()));
        both.running
            .switch
            .send(&frame, out, &format!("{count} tasks"));
    }
    both.running.end::<Falcon>();
}

/// Its address is 0 until it is configured.
#[test]
fn a_switch_without_settings_has_no_packets_of_its_own() {
    let Some(mut both) = Both::start("settings") else {
        return;
    };
    both.running.switch.set_default("settings", "NoAction", &[]);
    let nowhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let mut packet = submit(1);
    tag(&mut packet);
    let frame = udp_frame(THERE, nowhere, &packet);
    both.running
        .switch
        .send(&frame, Some((0, frame.clone())), "a SUBMIT");
    both.running.end::<Falcon>();
}
