//! The guarantees of each policy, over many tasks.

use std::collections::BTreeMap;

use crate::common::falcon::{bytes, pull, task, INCARNATION};
use crate::common::{seed, Prng, NODE, THERE};
use inband_falcon::dataplane::wire::{flag, parse, Header, Task, Type, PRIORITIES};
use inband_falcon::dataplane::{FalconConfig, FalconSwitch, Policy};
use inband_ground::auth::Digest;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

const SLOTS: usize = 1024;
/// Every 16th task is assigned in queue order.
const TURN_EVERY: usize = 16;

struct Bench {
    switch: FalconSwitch,
    now_ns: u64,
    pulls: BTreeMap<u32, u64>,
    submitted: u32,
}

impl Bench {
    fn new(policy: Policy, user_tasks_max: u32) -> Bench {
        let config = FalconConfig {
            slots: SLOTS,
            policy,
            user_tasks_max,
            locality_wait_ns: 100,
            ..FalconConfig::default()
        };
        Bench {
            switch: FalconSwitch::new(NODE, config, INCARNATION),
            now_ns: 1,
            pulls: BTreeMap::new(),
            submitted: 0,
        }
    }

    fn answer(&self, packet: &[u8]) -> (Header, Option<Task>) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (_, _, len) = self
            .switch
            .handle(&mut buffer, packet.len(), THERE, self.now_ns);
        let (header, tasks) = parse(&buffer[..len]).unwrap();
        (header, tasks.first())
    }

    /// Submits a task. Returns its number if it was accepted.
    fn submit(&mut self, user: u32, change: impl FnOnce(&mut Task)) -> Option<u32> {
        let mut task = task(user, 0, self.submitted, "");
        change(&mut task);
        let mut header = Header::new(Type::Submit, 0, 0);
        header.user = user;
        let (reply, _) = self.answer(&bytes(&header, &[task.sealed(&Digest::PLAIN)]));
        self.submitted += 1;
        assert_eq!(
            reply.taken == 0,
            reply.flags & (flag::FULL | flag::USER_FULL) != 0
        );
        (reply.taken == 1).then_some(self.submitted - 1)
    }

    fn register(&self, worker: u32, resources: u64) {
        self.switch
            .registers()
            .register(0, worker as usize, worker + 1, resources);
    }

    fn pull(&mut self, worker: u32) -> Option<Task> {
        let seq = self.pulls.entry(worker).or_default();
        *seq += 1;
        let header = pull(0, worker * 64, worker + 1, *seq);
        self.answer(&bytes(&header, &[])).1
    }
}

#[test]
fn no_class_starves_and_the_first_goes_first() {
    let mut bench = Bench::new(Policy::Priority, 1 << 20);
    bench.register(0, 0);
    for priority in 0..PRIORITIES {
        bench.submit(0, |task| task.priority = priority).unwrap();
    }
    let mut last = [0; PRIORITIES as usize];
    let mut given = [0; PRIORITIES as usize];
    const PULLS: usize = 20 * TURN_EVERY * PRIORITIES as usize;
    for i in 0..PULLS {
        let priority = bench.pull(0).expect("there is always one").priority;
        given[usize::from(priority)] += 1;
        last[usize::from(priority)] = i;
        for (class, last) in last.iter().enumerate() {
            let waited = i - last;
            assert!(waited <= TURN_EVERY * usize::from(PRIORITIES), "{class}");
        }
        bench.submit(0, |task| task.priority = priority).unwrap();
    }
    assert!(given[0] >= PULLS * 15 / 16, "{given:?}");
}

#[test]
fn a_task_goes_only_to_who_has_what_it_needs() {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    let mut bench = Bench::new(Policy::Resources, 1 << 20);
    let resources = [0, 0b10, 0b110, 1 << 63];
    for (worker, resources) in resources.iter().enumerate() {
        bench.register(worker as u32, *resources);
    }
    let mut left = BTreeMap::new();
    for _ in 0..4000 {
        if prng.below(2) == 0 {
            let resource = [0, 1, 2, 63, 5][prng.below(5) as usize];
            if let Some(number) = bench.submit(0, |task| task.resource = resource) {
                left.insert(number, resource);
            }
        } else {
            let worker = prng.below(4) as usize;
            let may = |r: u8| r == 0 || resources[worker] >> r & 1 == 1;
            match bench.pull(worker as u32) {
                Some(task) => {
                    assert!(may(task.resource), "{task:?} to {worker}");
                    assert_eq!(left.remove(&task.task), Some(task.resource));
                }
                None => assert!(!left.values().any(|r| may(*r)), "{worker} got nothing"),
            }
        }
    }
}

#[test]
fn no_resource_starves_beside_workers_that_have_others() {
    let mut bench = Bench::new(Policy::Resources, 1 << 20);
    bench.register(0, 0b1100);
    bench.register(1, 0b10_0000);
    let mut given = BTreeMap::new();
    let mut refill = |bench: &mut Bench, resource: u8| {
        bench.submit(0, |task| task.resource = resource).unwrap();
        *given.entry(resource).or_insert(-1) += 1;
    };
    for resource in [0, 2, 3, 5] {
        refill(&mut bench, resource);
    }
    for _ in 0..30 {
        for worker in [0, 1] {
            let task = bench.pull(worker).expect("there is always one");
            refill(&mut bench, task.resource);
        }
    }
    // The first worker's three executors in turn, and the second's two.
    assert_eq!(given, BTreeMap::from([(0, 25), (2, 10), (3, 10), (5, 15)]));
}

#[test]
fn users_take_turns_however_much_they_submit() {
    let mut bench = Bench::new(Policy::Fair, 1 << 20);
    bench.register(0, 0);
    let users = [(3, 16), (10, 8), (11, 4), (62, 8)];
    for (user, tasks) in users {
        for _ in 0..tasks {
            bench.submit(user, |_| ()).unwrap();
        }
    }
    let order: Vec<u32> = std::iter::from_fn(|| bench.pull(0).map(|task| task.user)).collect();
    assert_eq!(order.len(), 36);
    for (round, users) in order.chunks(4).take(4).enumerate() {
        assert_eq!(users, [3, 10, 11, 62], "round {round}");
    }
    for users in order[16..28].chunks(3) {
        assert_eq!(users, [3, 10, 62]);
    }
    assert_eq!(order[28..], [3; 8]);
}

#[test]
fn a_task_waits_for_its_worker_and_then_goes_to_any() {
    let mut bench = Bench::new(Policy::Locality, 1 << 20);
    for worker in [0, 1, 2] {
        bench.register(worker, 0);
    }
    let near = bench.submit(0, |task| task.worker = Some(1)).unwrap();
    bench.now_ns += 99;
    let any = bench.submit(0, |_| ()).unwrap();
    let got = |task: Option<Task>| task.map(|task| task.task);
    assert_eq!(got(bench.pull(0)), Some(any), "the other is not for it yet");
    assert_eq!(got(bench.pull(0)), None);
    bench.now_ns += 1;
    assert_eq!(got(bench.pull(2)), Some(near), "it has waited long enough");
    // Of nearby tasks the older one goes first, and all of them before distant ones.
    let far = bench.submit(0, |task| task.worker = Some(2)).unwrap();
    bench.now_ns += 100;
    let any = bench.submit(0, |_| ()).unwrap();
    bench.now_ns += 1;
    let near = bench.submit(0, |task| task.worker = Some(1)).unwrap();
    let order = [any, near, far].map(Some);
    assert_eq!([(); 3].map(|()| got(bench.pull(1))), order);
}

#[test]
fn the_task_of_a_worker_that_is_gone_comes_to_those_that_are_never_idle() {
    let mut bench = Bench::new(Policy::Locality, 1 << 20);
    bench.register(0, 0);
    for worker in [5, 7] {
        bench.submit(0, |task| task.worker = Some(worker)).unwrap();
    }
    bench.now_ns += 100;
    for worker in [None, Some(0)] {
        bench.submit(0, |task| task.worker = worker).unwrap();
    }
    let (mut far, mut pulls) = (0, 0);
    while far < 2 {
        pulls += 1;
        // One full rotation over the kinds of tasks: for no worker, its own, and these two.
        assert!(pulls <= 4 * TURN_EVERY, "they starve");
        match bench.pull(0).expect("there is always one").worker {
            Some(5 | 7) => far += 1,
            near => assert!(bench.submit(0, |task| task.worker = near).is_some()),
        }
    }
}

#[test]
fn a_user_cannot_fill_the_queues_for_others() {
    for policy in Policy::ALL {
        let config = FalconConfig::of(policy);
        config.validate().unwrap();
        assert!((config.user_tasks_max as usize) < config.queue_slots());
    }
    for policy in Policy::ALL {
        let mut bench = Bench::new(policy, 10);
        bench.register(0, 0);
        let taken = (0..100).filter_map(|_| bench.submit(7, |_| ())).count();
        assert_eq!(taken, 10, "{policy:?}");
        assert!(bench.submit(8, |_| ()).is_some());
        assert_eq!(bench.switch.registers().user_tasks(0, 7), 10);
        assert!(bench.pull(0).is_some() && bench.pull(0).is_some());
        let left = bench.switch.registers().user_tasks(0, 7);
        let taken = (0..100).filter_map(|_| bench.submit(7, |_| ())).count();
        assert_eq!(
            taken as u64,
            10 - left,
            "{policy:?}: a place for each that has left"
        );
    }
}
