//! The packet vectors of Falcon (`dataplane/falcon/vectors/scheduler.toml`) through the native role and, as real
//! frames, through the XDP program.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use crate::common::falcon::{bytes, rig, FalconUnderTest, INCARNATION};
use crate::common::{NODE, THERE};
use inband_falcon::dataplane::registers::{ExecutorState, QueueView, SlotView};
use inband_falcon::dataplane::rig::FalconRig;
use inband_falcon::dataplane::wire::{self, flag, Description, Header, Task, Type};
use inband_falcon::dataplane::{FalconConfig, FalconRegisters, FalconSwitch, Policy, Verdict};
use inband_ground::auth::{sign, Digest, Keys};
use inband_ground::soft::Arrival;
use inband_testing::vector::{self, flags_of, keys_of, type_of, value_of, Damage};
use serde::Deserialize;

/// The default set of packets in cases.
const SET: usize = 1;
/// The default user of tasks, and the default incarnation of workers.
const USER: u32 = 5;
const JOB: u32 = 6;
const WORKER_INCARNATION: u32 = 1;
/// The default arrival time of packets.
const NOW_NS: u64 = 1000;
/// Users whose tasks are compared.
const USERS: std::ops::Range<u32> = 0..70;

/// Reasons that a single packet cannot trigger, and the test that does.
const ELSEWHERE: [(&str, &str); 2] = [
    (
        "falcon_executor_by_host",
        "counted besides another reason; tests/falcon_network.rs",
    ),
    (
        "falcon_push_contended",
        "needs another CPU; tests/falcon_race.rs",
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    why: String,
    #[serde(default)]
    policy: String,
    #[serde(default = "queue_slots_default")]
    queue_slots: usize,
    #[serde(default = "user_tasks_max_default")]
    user_tasks_max: u32,
    #[serde(default)]
    locality_wait_ns: u64,
    /// Ids of the keys that the scheduler accepts; it sends with the last one.
    #[serde(default)]
    keys: Vec<u16>,
    #[serde(default)]
    before: Before,
    packet: Vec<Step>,
}

fn queue_slots_default() -> usize {
    4
}

fn user_tasks_max_default() -> u32 {
    1000
}

/// The state before the first packet.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Before {
    /// [worker, resources] registered as their first incarnation.
    worker: Vec<(usize, u64)>,
    /// [queue, position] of empty queues through which this many tasks have passed.
    start: Vec<(usize, u32)>,
    /// [queue, add, retrieve]
    queue: Vec<(usize, u32, u32)>,
    /// [queue, position, sequence] of slots that another packet is still using.
    slot: Vec<(usize, u32, u64)>,
    /// Executors whose record is locked by another packet.
    taken: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "in")]
    input: Fields,
    /// The key that the packet is tagged with, before any damage.
    #[serde(default)]
    signed_by: Option<u16>,
    #[serde(default)]
    damage: Damage,
    #[serde(default)]
    from: Option<SocketAddrV4>,
    #[serde(default)]
    now_ns: Option<u64>,
    /// A registration between the previous packet and this one: [worker, incarnation, resources]; 0: unregistered.
    #[serde(default)]
    register: Option<(usize, u32, u64)>,
    verdict: String,
    /// For the verdict `to_executor`.
    #[serde(default)]
    to: Option<SocketAddrV4>,
    reason: String,
    /// Differences from the packet that came in, except the sender.
    #[serde(default)]
    out: Fields,
    #[serde(default)]
    after: After,
}

/// The expected changes.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct After {
    /// [queue, add, retrieve]
    queue: Vec<(usize, u32, u32)>,
    /// [executor, state, pull_seq]
    executor: Vec<(usize, String, u64)>,
    /// All parked executors.
    parked: Option<Vec<usize>>,
    /// [user, tasks in the queues]
    user: Vec<(u32, u64)>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Fields {
    r#type: Option<String>,
    flags: Option<Vec<String>>,
    set: Option<u16>,
    node: Option<u16>,
    incarnation: Option<u64>,
    user: Option<u32>,
    job: Option<u32>,
    client: Option<SocketAddrV4>,
    queue: Option<u8>,
    executor: Option<u32>,
    worker_incarnation: Option<u32>,
    pull_seq: Option<u64>,
    taken: Option<u64>,
    submit_seq: Option<u64>,
    tail: Option<u32>,
    head: Option<u32>,
    tasks: Option<Vec<TaskFields>>,
}

/// In `in`, the task's number is its index, and the task belongs to the packet's sender.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct TaskFields {
    d: String,
    #[serde(default)]
    number: Option<u32>,
    #[serde(default)]
    user: Option<u32>,
    #[serde(default)]
    job: Option<u32>,
    #[serde(default)]
    client: Option<SocketAddrV4>,
    #[serde(default)]
    priority: u8,
    #[serde(default)]
    resource: u8,
    #[serde(default)]
    worker: Option<u16>,
}

impl TaskFields {
    fn task(&self, place: usize, header: &Header) -> Task {
        let desc = Description::new(&value_of(&self.d)).unwrap();
        let user = self.user.unwrap_or(header.user);
        let job = self.job.unwrap_or(header.job);
        let number = self.number.unwrap_or(place as u32);
        let task = Task {
            priority: self.priority,
            resource: self.resource,
            worker: self.worker,
            ..Task::new(user, job, number, desc)
        };
        let client = self.client.unwrap_or(wire::NO_CLIENT);
        Task {
            client,
            ..task.sealed(&Digest::PLAIN)
        }
    }
}

impl Fields {
    /// The input packet of a step, before any damage.
    fn packet(&self) -> (Header, Vec<Task>) {
        let kind = type_of(&Type::ALL, self.r#type.as_deref().expect("a type"));
        let mut header = Header::new(kind, SET as u16, 0);
        (header.user, header.job) = (USER, JOB);
        if kind == Type::Pull {
            header.incarnation = INCARNATION;
            header.worker_incarnation = WORKER_INCARNATION;
        } else if kind != Type::Submit {
            header.node = 9;
        }
        self.apply(&mut header);
        let tasks = self.tasks.iter().flatten().enumerate();
        let tasks = tasks.map(|(n, task)| task.task(n, &header)).collect();
        (header, tasks)
    }

    fn apply(&self, h: &mut Header) {
        macro_rules! set {
            ($($field:ident),*) => { $(if let Some(v) = self.$field { h.$field = v; })* };
        }
        set!(
            set,
            node,
            incarnation,
            user,
            job,
            client,
            queue,
            executor,
            worker_incarnation
        );
        set!(pull_seq, taken, submit_seq, tail, head);
        if let Some(name) = &self.r#type {
            h.kind = type_of(&Type::ALL, name);
        }
        if let Some(names) = &self.flags {
            h.flags = flags_of(flag::ALL, names);
        }
    }
}

impl Case {
    fn config(&self) -> FalconConfig {
        let policy = match self.policy.as_str() {
            "" => Policy::Fifo,
            "priority" => Policy::Priority,
            "resources" => Policy::Resources,
            "fair" => Policy::Fair,
            "locality" => Policy::Locality,
            other => panic!("there is no policy {other}"),
        };
        FalconConfig {
            sets: 2,
            slots: self.queue_slots * policy.queues(),
            workers: 70,
            policy,
            user_tasks_max: self.user_tasks_max,
            locality_wait_ns: self.locality_wait_ns,
        }
    }

    /// Sets the registers to the state before the first packet.
    fn set(&self, registers: &FalconRegisters) {
        let before = &self.before;
        for (worker, resources) in &before.worker {
            registers.register(SET, *worker, WORKER_INCARNATION, *resources);
        }
        for (queue, position) in &before.start {
            registers.start_at(SET, *queue, *position);
        }
        for (queue, add, retrieve) in &before.queue {
            let (add, retrieve) = (*add, *retrieve);
            registers.restore_queue(SET, *queue, QueueView { add, retrieve });
        }
        for (queue, position, sequence) in &before.slot {
            let slot = SlotView {
                sequence: *sequence,
                ..registers.slot(SET, *queue, *position)
            };
            registers.restore_slot(SET, *queue, *position, slot);
        }
        for executor in &before.taken {
            registers.take_executor(SET, *executor);
        }
    }
}

/// The visible state of the registers, by name.
fn snapshot(registers: &FalconRegisters) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let config = registers.config();
    let mut see = |name: String, value: String| seen.insert(name, value);
    for set in 0..config.sets {
        let name = |what: &str, n: usize| match set {
            SET => format!("{what} {n}"),
            _ => format!("{what} {n} of another set"),
        };
        for queue in 0..config.policy.queues() {
            let QueueView { add, retrieve } = registers.queue(set, queue);
            see(name("queue", queue), format!("{add} {retrieve}"));
        }
        for user in USERS {
            let tasks = registers.user_tasks(set, user);
            see(name("user", user as usize), tasks.to_string());
        }
        let executors = 0..config.workers * 64;
        let parked = executors.clone().filter(|e| {
            let worker = registers.worker(set, e / 64);
            worker.parked >> (e % 64) & 1 == 1
        });
        see(
            name("parked", 0),
            format!("{:?}", parked.collect::<Vec<_>>()),
        );
        for executor in executors {
            let view = registers.executor(set, executor);
            let state = state_name(view.state);
            let value = format!("{state} {}", view.pull_seq);
            see(name("executor", executor), value);
        }
    }
    seen
}

fn state_name(state: ExecutorState) -> &'static str {
    match state {
        ExecutorState::Idle => "idle",
        ExecutorState::Waits => "waits",
        ExecutorState::Busy => "busy",
    }
}

impl After {
    fn apply(&self, seen: &mut BTreeMap<String, String>) {
        let mut change = |name: String, value: String| {
            let before = seen.insert(name.clone(), value.clone()).expect("known");
            assert_ne!(before, value, "{name} has changed");
        };
        for (queue, add, retrieve) in &self.queue {
            change(format!("queue {queue}"), format!("{add} {retrieve}"));
        }
        for (executor, state, pull_seq) in &self.executor {
            change(
                format!("executor {executor}"),
                format!("{state} {pull_seq}"),
            );
        }
        if let Some(parked) = &self.parked {
            change("parked 0".into(), format!("{parked:?}"));
        }
        for (user, tasks) in &self.user {
            change(format!("user {user}"), tasks.to_string());
        }
    }
}

impl Step {
    /// The UDP payload that arrives.
    fn packet(&self) -> Vec<u8> {
        let (header, tasks) = self.input.packet();
        let mut packet = bytes(&header, &tasks);
        sign(keys_of(self.signed_by.as_slice()).as_ref(), &mut packet);
        self.damage.of(packet)
    }

    fn arrival(&self) -> Arrival {
        Arrival {
            from: self.from.unwrap_or(THERE),
            now_ns: self.now_ns.unwrap_or(NOW_NS),
            random: 0,
        }
    }

    /// The expected output, and where it goes.
    fn expected(&self, keys: Option<&Keys>) -> (Verdict, Vec<u8>) {
        let (mut header, _) = self.input.packet();
        let submitted = header.kind == Type::Submit;
        header.node = NODE.into();
        header.flags = 0;
        header.incarnation = INCARNATION;
        if submitted {
            header.client = self.arrival().from;
        }
        self.out.apply(&mut header);
        let verdict = match self.verdict.as_str() {
            "drop" => return (Verdict::Drop, Vec::new()),
            "pass" => return (Verdict::Pass, self.packet()),
            "reply" => Verdict::Reply,
            "to_executor" => Verdict::ToExecutor(self.to.expect("who")),
            other => panic!("there is no verdict {other}"),
        };
        let tasks = self.out.tasks.iter().flatten().map(|fields| {
            let client = Some(fields.client.unwrap_or(THERE));
            let user = Some(fields.user.unwrap_or(USER));
            let job = Some(fields.job.unwrap_or(JOB));
            let fields = TaskFields {
                client,
                user,
                job,
                ..fields.clone()
            };
            fields.task(0, &header)
        });
        let tasks: Vec<Task> = tasks.collect();
        let mut packet = bytes(&header, &tasks);
        sign(keys, &mut packet);
        (verdict, packet)
    }
}

impl vector::Case for Case {
    type System = FalconUnderTest;
    type Expected = BTreeMap<String, String>;

    inband_testing::case_fields!();

    fn step(&self, at: usize, keys: Option<&Keys>) -> vector::Step<Verdict> {
        let step = &self.packet[at];
        let (verdict, out) = step.expected(keys);
        vector::Step {
            packet: step.packet(),
            frame: None,
            arrival: step.arrival(),
            verdict,
            reason: step.reason.clone(),
            out,
        }
    }

    fn native(&self) -> (FalconSwitch, usize) {
        let config = self.config();
        let scheduler = FalconSwitch::new(NODE, config, INCARNATION);
        (scheduler, config.sets)
    }

    fn rig(&self, keys: Option<Keys>) -> FalconRig {
        rig(self.config(), keys)
    }

    fn shares_rig(&self, other: &Case) -> bool {
        self.config() == other.config()
    }

    fn prepare(&self, registers: &FalconRegisters) -> BTreeMap<String, String> {
        registers.clear();
        self.set(registers);
        snapshot(registers)
    }

    fn before(&self, at: usize, registers: &FalconRegisters) {
        match self.packet[at].register {
            Some((worker, 0, _)) => registers.unregister(SET, worker),
            Some((worker, incarnation, resources)) => {
                registers.register(SET, worker, incarnation, resources);
            }
            None => {}
        }
    }

    fn check(
        &self,
        at: usize,
        registers: &FalconRegisters,
        expected: &mut BTreeMap<String, String>,
    ) {
        self.packet[at].after.apply(expected);
        let seen = snapshot(registers);
        let other = seen.iter().find(|(name, value)| expected[*name] != **value);
        let what = other.map(|(name, _)| &expected[name]);
        assert_eq!(other, None, "what is expected: {what:?}");
    }
}

#[test]
fn every_vector_runs_natively() {
    vector::run_natively::<Case>("falcon");
}

#[test]
fn every_vector_runs_in_the_kernel() {
    vector::run_in_kernel::<Case>("falcon", None);
}

#[test]
fn every_reason_has_a_vector_or_an_exception() {
    let elsewhere = ELSEWHERE.map(|(name, _)| name);
    vector::every_reason_has_a_vector::<Case>("falcon", "falcon_", &elsewhere);
}
