//! Time, the arrival of jobs, and when each task started.

use super::{Delays, Nanos, Options, Report, JOB_TASKS, MS, RUN_NS, USERS};
use crate::queue::Queue;
use crate::Rng;

/// How long after the last submission tasks may still start.
const DRAIN_NS: Nanos = 100 * MS;
/// Below this share of tasks started within the measured time, of those submitted in it, the scheduler counts as
/// saturated. It is less than all because queues still grow at first.
const KEPT_UP_PERMILLE: u64 = 800;
/// Random streams.
const PURPOSE_JOBS: u64 = 1;
const PURPOSE_SCHEDULER: u64 = 2;

#[derive(Debug, Clone)]
pub struct Job {
    pub user: u32,
    pub number: u32,
    /// Task numbers, unique across jobs.
    pub tasks: std::ops::Range<u32>,
}

/// A scheduler under test.
pub trait Scheduler {
    type Event;
    /// Called once, before anything else.
    fn begin(&mut self, world: &mut World<Self::Event>);
    fn submit(&mut self, now: Nanos, job: &Job, world: &mut World<Self::Event>);
    /// Handles an event that it planned.
    fn on(&mut self, now: Nanos, event: Self::Event, world: &mut World<Self::Event>);
}

enum Happens<E> {
    Arrival,
    Of(E),
}

struct TaskTimes {
    submitted_at: Nanos,
    begun_at: Option<Nanos>,
}

/// Shared state of a simulation.
pub struct World<E> {
    pub delays: Delays,
    pub rng: Rng,
    events: Queue<Happens<E>>,
    tasks: Vec<TaskTimes>,
    begun: u64,
}

impl<E> World<E> {
    /// Schedules an event.
    pub fn plan(&mut self, at: Nanos, event: E) {
        self.events.push(at, Happens::Of(event));
    }

    /// Starts a task whose packet has reached an executor. Returns when it will be done.
    ///
    /// # Panics
    /// If the task was already started.
    pub fn begin_task(&mut self, now: Nanos, task: u32) -> Nanos {
        let begun_at = now + self.delays.start_ns;
        let before = self.tasks[task as usize].begun_at.replace(begun_at);
        assert_eq!(before, None, "task {task} was given twice");
        self.begun += 1;
        begun_at + RUN_NS
    }
}

/// Jobs with exponentially distributed gaps.
struct Jobs {
    rng: Rng,
    mean_ns: f64,
    next: u32,
}

impl Jobs {
    fn new(options: &Options) -> Jobs {
        let tasks = (JOB_TASKS.0 + JOB_TASKS.1) as f64 / 2.0;
        Jobs {
            rng: Rng::new(options.seed, PURPOSE_JOBS),
            mean_ns: tasks * 1e9 / options.tasks_per_s(),
            next: 0,
        }
    }

    fn wait_ns(&mut self) -> Nanos {
        // In (0, 1].
        let drawn = (self.rng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
        (-drawn.ln() * self.mean_ns) as Nanos
    }

    fn next(&mut self, first_task: u32) -> Job {
        let count = self.rng.between(JOB_TASKS.0, JOB_TASKS.1) as u32;
        self.next += 1;
        Job {
            user: self.rng.below(USERS) as u32,
            number: self.next,
            tasks: first_task..first_task + count,
        }
    }
}

/// Runs until all tasks have started, or the time to start is over.
pub fn play<S: Scheduler>(options: &Options, scheduler: &mut S) -> Report {
    let mut world = World {
        delays: options.delays,
        rng: Rng::new(options.seed, PURPOSE_SCHEDULER),
        events: Queue::default(),
        tasks: Vec::new(),
        begun: 0,
    };
    let mut jobs = Jobs::new(options);
    let last_at = options.warm_up_ns + options.duration_ns;
    let ends_at = last_at + DRAIN_NS;
    scheduler.begin(&mut world);
    world.events.push(jobs.wait_ns(), Happens::Arrival);
    let mut has_more = true;
    while let Some((now, happens)) = world.events.pop().filter(|(at, _)| *at < ends_at) {
        match happens {
            Happens::Of(event) => scheduler.on(now, event, &mut world),
            Happens::Arrival if now >= last_at => has_more = false,
            Happens::Arrival => {
                let job = jobs.next(world.tasks.len() as u32);
                world.tasks.extend(job.tasks.clone().map(|_| TaskTimes {
                    submitted_at: now,
                    begun_at: None,
                }));
                scheduler.submit(now, &job, &mut world);
                world.events.push(now + jobs.wait_ns(), Happens::Arrival);
            }
        }
        if !has_more && world.begun == world.tasks.len() as u64 {
            break;
        }
    }
    report(options, &world.tasks, world.begun, ends_at)
}

fn report(options: &Options, tasks: &[TaskTimes], begun: u64, ends_at: Nanos) -> Report {
    let counted = options.warm_up_ns..options.warm_up_ns + options.duration_ns;
    let of_time = tasks.iter().filter(|t| counted.contains(&t.submitted_at));
    let delay_ns = |task: &TaskTimes| task.begun_at.unwrap_or(ends_at) - task.submitted_at;
    let mut delays_ns: Vec<Nanos> = of_time.map(delay_ns).collect();
    delays_ns.sort_unstable();
    let has_begun = |task: &&TaskTimes| task.begun_at.is_some_and(|at| counted.contains(&at));
    let begun_counted = tasks.iter().filter(has_begun).count() as u64;
    Report {
        is_saturated: begun_counted * 1000 < delays_ns.len() as u64 * KEPT_UP_PERMILLE,
        delays_ns,
        submitted: tasks.len() as u64,
        begun,
        begun_counted,
    }
}
