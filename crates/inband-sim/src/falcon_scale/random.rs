//! A random executor, idle or not; each has its own queue.

use super::world::{Job, Scheduler, World};
use super::{Nanos, Options};

/// A task reaches its executor, which starts it after those queued before it.
#[derive(Debug)]
pub struct Turn(usize, u32);

pub struct Random {
    free_at: Vec<Nanos>,
}

impl Random {
    pub fn new(options: &Options) -> Random {
        Random {
            free_at: vec![0; options.executors_in_all()],
        }
    }
}

impl Scheduler for Random {
    type Event = Turn;

    fn begin(&mut self, _: &mut World<Turn>) {}

    fn submit(&mut self, now: Nanos, job: &Job, world: &mut World<Turn>) {
        for task in job.tasks.clone() {
            let executor = world.rng.below(self.free_at.len() as u64) as usize;
            world.plan(now + world.delays.to_host_ns, Turn(executor, task));
        }
    }

    fn on(&mut self, now: Nanos, Turn(executor, task): Turn, world: &mut World<Turn>) {
        let free_at = &mut self.free_at[executor];
        *free_at = world.begin_task(now.max(*free_at), task);
    }
}
