//! Sparrow: for m tasks, probes to 2 m nodes. A node queues the probes; when an executor is free, it asks the scheduler
//! of the first one for a task (late binding). Once all tasks of a job are given out, its remaining probes are
//! cancelled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::world::{Job, Scheduler, World};
use super::{Nanos, Options};

/// Probes per task.
const PROBES: usize = 2;

#[derive(Debug)]
pub enum Event {
    /// A job's probe reaches a node.
    Probe(usize, u32),
    /// A node asks for a task of a job.
    Ask(usize, u32),
    Answer(usize, Option<u32>),
    /// A job's probe is no longer needed.
    Cancel(usize, u32),
    Done(usize),
}

struct Node {
    free: usize,
    probes: VecDeque<u32>,
}

/// A job with tasks that are not yet given out.
struct Open {
    tasks: std::ops::Range<u32>,
    probed: Vec<usize>,
}

pub struct Sparrow {
    nodes: Vec<Node>,
    jobs: BTreeMap<u32, Open>,
}

impl Sparrow {
    pub fn new(options: &Options) -> Sparrow {
        let node = || Node {
            free: options.executors,
            probes: VecDeque::new(),
        };
        Sparrow {
            nodes: std::iter::repeat_with(node).take(options.nodes).collect(),
            jobs: BTreeMap::new(),
        }
    }

    /// If this node has an idle executor, its first probe gets it.
    fn next(&mut self, now: Nanos, at: usize, world: &mut World<Event>) {
        let node = &mut self.nodes[at];
        if node.free == 0 {
            return;
        }
        if let Some(job) = node.probes.pop_front() {
            node.free -= 1;
            world.plan(now + world.delays.to_host_ns, Event::Ask(at, job));
        }
    }

    fn on_ask(&mut self, now: Nanos, at: usize, number: u32, world: &mut World<Event>) {
        let answer_at = now + world.delays.to_host_ns;
        let job = self.jobs.get_mut(&number);
        let task = job.and_then(|job| job.tasks.next());
        world.plan(answer_at, Event::Answer(at, task));
        let is_over = self
            .jobs
            .get(&number)
            .is_some_and(|job| job.tasks.is_empty());
        if is_over {
            let job = self.jobs.remove(&number).expect("it was there");
            for node in job.probed {
                world.plan(answer_at, Event::Cancel(node, number));
            }
        }
    }
}

impl Scheduler for Sparrow {
    type Event = Event;

    fn begin(&mut self, _: &mut World<Event>) {}

    fn submit(&mut self, now: Nanos, job: &Job, world: &mut World<Event>) {
        let wanted = PROBES * job.tasks.len();
        let mut probed = Vec::with_capacity(wanted);
        // With more probes than nodes, every node gets several.
        while wanted - probed.len() >= self.nodes.len() {
            probed.extend(0..self.nodes.len());
        }
        let rest = wanted - probed.len();
        let mut drawn = BTreeSet::new();
        while drawn.len() < rest {
            drawn.insert(world.rng.below(self.nodes.len() as u64) as usize);
        }
        probed.extend(drawn);
        for node in &probed {
            world.plan(
                now + world.delays.to_host_ns,
                Event::Probe(*node, job.number),
            );
        }
        let tasks = job.tasks.clone();
        self.jobs.insert(job.number, Open { tasks, probed });
    }

    fn on(&mut self, now: Nanos, event: Event, world: &mut World<Event>) {
        match event {
            Event::Probe(at, job) => {
                self.nodes[at].probes.push_back(job);
                self.next(now, at, world);
            }
            Event::Ask(at, job) => self.on_ask(now, at, job, world),
            Event::Answer(at, Some(task)) => {
                let done_at = world.begin_task(now, task);
                world.plan(done_at, Event::Done(at));
            }
            Event::Answer(at, None) | Event::Done(at) => {
                self.nodes[at].free += 1;
                self.next(now, at, world);
            }
            Event::Cancel(at, job) => self.nodes[at].probes.retain(|other| *other != job),
        }
    }
}
