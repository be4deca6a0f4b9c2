//! One scheduler in software with full knowledge: exact decisions, made one after the other, each of which takes time.

use std::collections::VecDeque;

use super::world::{Job, Scheduler, World};
use super::{Nanos, Options};

#[derive(Debug)]
pub enum Event {
    /// Tasks reach the scheduler.
    Tasks(std::ops::Range<u32>),
    /// The scheduler hears that an executor is free.
    Free,
    /// A task reaches an executor.
    Given(u32),
}

pub struct Central {
    decision_ns: Nanos,
    busy_until: Nanos,
    free: usize,
    tasks: VecDeque<u32>,
}

impl Central {
    pub fn new(options: &Options, decision_ns: Nanos) -> Central {
        Central {
            decision_ns,
            busy_until: 0,
            free: options.executors_in_all(),
            tasks: VecDeque::new(),
        }
    }

    fn decide(&mut self, now: Nanos, world: &mut World<Event>) {
        while self.free > 0 {
            let Some(task) = self.tasks.pop_front() else {
                return;
            };
            self.free -= 1;
            self.busy_until = now.max(self.busy_until) + self.decision_ns;
            world.plan(
                self.busy_until + world.delays.to_host_ns,
                Event::Given(task),
            );
        }
    }
}

impl Scheduler for Central {
    type Event = Event;

    fn begin(&mut self, _: &mut World<Event>) {}

    fn submit(&mut self, now: Nanos, job: &Job, world: &mut World<Event>) {
        world.plan(
            now + world.delays.to_host_ns,
            Event::Tasks(job.tasks.clone()),
        );
    }

    fn on(&mut self, now: Nanos, event: Event, world: &mut World<Event>) {
        match event {
            Event::Tasks(tasks) => self.tasks.extend(tasks),
            Event::Free => self.free += 1,
            Event::Given(task) => {
                let done_at = world.begin_task(now, task);
                world.plan(done_at + world.delays.to_host_ns, Event::Free);
                return;
            }
        }
        self.decide(now, world);
    }
}
