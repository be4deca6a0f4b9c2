//! The paper's listings lose tasks (schedules.md, 16). The queue as implemented, in a form for switches that access
//! each register only once per packet, does not.

use std::collections::VecDeque;

use crate::common::falcon::{bytes, pull, task, INCARNATION};
use crate::common::{seed, Prng, NODE, THERE};
use inband_falcon::dataplane::wire::{parse, Header, Type};
use inband_falcon::dataplane::{FalconConfig, FalconSwitch};
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

const SIZE: usize = 4;
const STEPS: usize = 20_000;

/// Listings 1 to 3 of the paper: pointers are always incremented, whatever the state of the queue, and repaired by a
/// later packet.
#[derive(Default)]
struct Listing {
    add: usize,
    retrieve: usize,
    repairing_add: bool,
    repairing_retrieve: bool,
    tasks: [Option<u32>; SIZE],
    /// Repair packets in flight.
    repairs: VecDeque<Repair>,
}

enum Repair {
    Add(usize),
    Retrieve(usize),
}

impl Listing {
    /// Listing 1. Returns whether the task was accepted.
    fn submit(&mut self, task: u32) -> bool {
        let add = self.add;
        self.add += 1;
        let full = add >= self.retrieve + SIZE;
        if !full {
            self.tasks[add % SIZE] = Some(task);
        } else if !std::mem::replace(&mut self.repairing_add, true) {
            self.repairs.push_back(Repair::Add(add));
        }
        if self.retrieve > add && !std::mem::replace(&mut self.repairing_retrieve, true) {
            self.repairs.push_back(Repair::Retrieve(add));
        }
        !full
    }

    /// Listing 2.
    fn retrieve(&mut self) -> Option<u32> {
        let retrieve = self.retrieve;
        self.retrieve += 1;
        self.tasks[retrieve % SIZE].take()
    }

    /// Listing 3.
    fn repair(&mut self) {
        match self.repairs.pop_front().expect("a packet is on its way") {
            Repair::Add(value) => (self.add, self.repairing_add) = (value, false),
            Repair::Retrieve(value) => (self.retrieve, self.repairing_retrieve) = (value, false),
        }
    }

    fn full() -> Listing {
        let mut queue = Listing::default();
        assert!((0..SIZE as u32).all(|task| queue.submit(task)));
        queue
    }
}

#[test]
fn the_listings_lose_a_task_when_a_push_comes_before_the_repair() {
    let mut queue = Listing::full();
    assert!(
        !queue.submit(90),
        "full; a repair of add to 4 is on its way"
    );
    assert_eq!((queue.retrieve(), queue.retrieve()), (Some(0), Some(1)));
    assert!(queue.submit(91), "there is room: taken, at 5");
    queue.repair();
    assert!(queue.submit(92) && queue.submit(93), "at 4, and at 5");
    let left: Vec<u32> = (0..2 * SIZE).filter_map(|_| queue.retrieve()).collect();
    assert_eq!(left, [2, 3, 92, 93], "91 was taken, and is lost");
}

#[test]
fn the_listings_stay_broken_when_a_repair_is_lost() {
    let mut queue = Listing::full();
    assert!(!queue.submit(90));
    queue.repairs.clear();
    assert!((0..SIZE).all(|_| queue.retrieve().is_some()));
    assert!(queue.submit(91));
    assert_eq!(queue.retrieve(), None, "an empty answer beside a task");
    assert_eq!(queue.retrieve(), Some(91));
    assert!((0..SIZE as u32).all(|task| queue.submit(task)));
    assert!(!queue.submit(92) && queue.repairing_add);
    assert!(queue.repairs.is_empty(), "and nobody repairs add any more");
}

/// The form for switches: each packet accesses each register once, in this order, and changes it only if the previous
/// one allowed that. A pipeline processes packets in order, so each sees the registers as the previous one left them.
#[derive(Default)]
struct Pipeline {
    count: usize,
    add: usize,
    retrieve: usize,
    tasks: [u32; SIZE],
}

impl Pipeline {
    fn submit(&mut self, task: u32) -> bool {
        let allowed = self.count < SIZE;
        self.count += usize::from(allowed);
        let at = self.add % SIZE;
        self.add += usize::from(allowed);
        if allowed {
            self.tasks[at] = task;
        }
        allowed
    }

    fn retrieve(&mut self) -> Option<u32> {
        let allowed = self.count > 0;
        self.count -= usize::from(allowed);
        let at = self.retrieve % SIZE;
        self.retrieve += usize::from(allowed);
        allowed.then(|| self.tasks[at])
    }
}

/// The queue as implemented, with its positions about to wrap around.
struct Queue(FalconSwitch, u64);

impl Queue {
    fn new() -> Queue {
        let config = FalconConfig {
            slots: SIZE,
            ..FalconConfig::default()
        };
        let switch = FalconSwitch::new(NODE, config, INCARNATION);
        switch.registers().start_at(0, 0, u32::MAX - 100);
        switch.registers().register(0, 0, 1, 0);
        Queue(switch, 0)
    }

    fn answer(&self, packet: &[u8]) -> (Header, Option<u32>) {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (_, _, len) = self.0.handle(&mut buffer, packet.len(), THERE, 0);
        let (header, tasks) = parse(&buffer[..len]).unwrap();
        (header, tasks.first().map(|task| task.task))
    }

    fn submit(&mut self, number: u32) -> bool {
        let header = Header::new(Type::Submit, 0, 0);
        let (reply, _) = self.answer(&bytes(&header, &[task(0, 0, number, "")]));
        reply.taken == 1
    }

    fn retrieve(&mut self) -> Option<u32> {
        self.1 += 1;
        let (header, task) = self.answer(&bytes(&pull(0, 0, 1, self.1), &[]));
        assert_eq!(header.kind == Type::Task, task.is_some());
        task
    }
}

#[test]
fn the_form_for_switches_is_the_queue() {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let mut prng = Prng(seed);
    let (mut pipeline, mut queue) = (Pipeline::default(), Queue::new());
    let (mut refused, mut empty) = (0, 0);
    for number in 0..STEPS as u32 {
        if prng.below(2) == 0 {
            let taken = pipeline.submit(number);
            assert_eq!(taken, queue.submit(number), "{number}, INBAND_SEED={seed}");
            refused += u32::from(!taken);
        } else {
            let task = pipeline.retrieve();
            assert_eq!(task, queue.retrieve(), "{number}, INBAND_SEED={seed}");
            empty += u32::from(task.is_none());
        }
    }
    assert!(refused > 100 && empty > 100, "{refused} {empty}");
}
