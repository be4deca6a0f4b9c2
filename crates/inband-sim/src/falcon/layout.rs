//! Which hosts a world has, and their settings.

use inband_falcon::dataplane::{FalconConfig, Policy};
use inband_falcon::limits::SUBMIT_TASKS_MAX;
use inband_falcon::timing::{ClientTiming, ExecutorTiming, Nanos, MS};

use crate::rng::Rng;

/// Which hosts there are, and what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Each with clients and workers of its own.
    pub schedulers: u8,
    /// Of all schedulers together.
    pub workers: u8,
    /// Of each worker.
    pub executors: u8,
    /// Of all schedulers together.
    pub clients: u8,
    /// Of the schedulers.
    pub falcon: FalconConfig,
    /// Schedulers wake executors as those in user space do; else clients have to ask, as with those in the kernel.
    pub wakes: bool,
    /// Queues begin shortly before their positions wrap around.
    pub wraps: bool,
    /// Tasks of a SUBMIT, at most.
    pub tasks_per_submit: usize,
    /// Tasks of a job, at most.
    pub job_tasks: u64,
    /// Tasks that a client has under way, at most.
    pub outstanding: usize,
    /// Times of clients.
    pub client: ClientTiming,
    /// Times of executors.
    pub executor: ExecutorTiming,
    /// Of a worker's results that clients fetch, together.
    pub results_len_bytes_max: usize,
    /// Executors that a task may be lost with.
    pub losses_max: u32,
    /// A worker that is silent for so long is forgotten.
    pub worker_lease_ns: Nanos,
    /// How long a task takes, mostly.
    pub task_ns: Nanos,
    /// Time between two jobs of a client, on average.
    pub think_ns: Nanos,
    /// One of so many tasks kills its worker; 0: none.
    pub killer_of: u64,
    /// Nothing goes wrong.
    pub is_calm: bool,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    *rng.pick(of).expect("there are some")
}

impl Layout {
    /// One by chance; the policy goes by the seed.
    pub fn random(seed: u64, rng: &mut Rng) -> Layout {
        let policy = Policy::ALL[(seed % Policy::ALL.len() as u64) as usize];
        let is_calm = rng.below(8) == 0;
        let schedulers = pick(rng, &[1, 1, 1, 2]);
        let lease_ns = pick(rng, &[60 * MS, 120 * MS, 250 * MS]);
        let queue_slots = pick(rng, &[2, 4, 16, 64]);
        let workers = schedulers * rng.between(1, 4) as u8;
        Layout {
            schedulers,
            workers,
            executors: rng.between(1, 4) as u8,
            clients: schedulers * rng.between(1, 3) as u8,
            falcon: FalconConfig {
                sets: 1,
                slots: queue_slots * policy.queues(),
                workers: usize::from(workers) + pick(rng, &[0, 2, 64]),
                policy,
                user_tasks_max: rng.between(1, 2 * queue_slots as u64) as u32,
                locality_wait_ns: pick(rng, &[MS, 5 * MS, 20 * MS]),
            },
            wakes: seed % 2 == 0,
            wraps: rng.below(3) == 0,
            tasks_per_submit: pick(rng, &[1, 3, SUBMIT_TASKS_MAX]),
            job_tasks: pick(rng, &[1, 4, 20]),
            outstanding: pick(rng, &[4, 20, 60]),
            client: ClientTiming {
                retry_ns: 5 * MS,
                retry_max_ns: 40 * MS,
                ask_ns: pick(rng, &[5 * MS, 20 * MS]),
                lease_ns,
            },
            executor: ExecutorTiming {
                pull_ns: 5 * MS,
                pull_max_ns: 100 * MS,
                ask_ns: 5 * MS,
                client_silent_ns: lease_ns,
                client_probe_ns: 10 * MS,
                client_skip_ns: 60 * MS,
                lease_ns: lease_ns / 5,
                result_ns: 5 * MS,
                result_max_ns: lease_ns / 3,
                result_silent_ns: 500 * MS,
                result_keep_ns: 5_000 * MS,
            },
            // Two of the longest ones.
            results_len_bytes_max: if seed % 3 == 0 { 10_000 } else { 1 << 30 },
            losses_max: pick(rng, &[1, 3]),
            worker_lease_ns: pick(rng, &[50 * MS, 200 * MS]),
            task_ns: pick(rng, &[MS / 4, 2 * MS, 10 * MS]),
            think_ns: pick(rng, &[MS, 4 * MS, 15 * MS]),
            killer_of: if is_calm { 0 } else { pick(rng, &[0, 0, 100]) },
            is_calm,
        }
    }

    /// May bits flip on the way? The scheduler does not look into tasks: one whose resource becomes one that nobody
    /// has waits for it until its deadline, if it has one.
    pub(super) fn may_be_damaged(&self) -> bool {
        self.falcon.policy != Policy::Resources
    }

    /// As many tasks as a client's executors begin at once when all is well.
    pub(super) fn tasks_at_once(&self) -> u64 {
        let executors = u64::from(self.workers / self.schedulers) * u64::from(self.executors);
        let queued = self.falcon.queue_slots() as u64;
        executors
            .min(queued)
            .min(u64::from(self.falcon.user_tasks_max))
    }

    /// One scheduler, a worker with so many executors, a client; nothing goes wrong: for directed tests.
    pub fn plain(policy: Policy, executors: u8) -> Layout {
        let mut layout = Layout::random(0, &mut Rng::new(0, 0));
        layout.schedulers = 1;
        layout.workers = 1;
        layout.clients = 1;
        layout.executors = executors;
        layout.wakes = false;
        layout.wraps = false;
        layout.tasks_per_submit = 1;
        layout.losses_max = 3;
        layout.worker_lease_ns = 200 * MS;
        layout.client.ask_ns = 20 * MS;
        layout.client.lease_ns = 100 * MS;
        layout.executor.client_silent_ns = 100 * MS;
        layout.executor.lease_ns = 20 * MS;
        layout.executor.result_max_ns = 30 * MS;
        layout.results_len_bytes_max = 1 << 30;
        layout.killer_of = 0;
        layout.is_calm = true;
        layout.falcon = FalconConfig {
            slots: 8 * policy.queues(),
            workers: 8,
            policy,
            user_tasks_max: 64,
            locality_wait_ns: 5 * MS,
            ..FalconConfig::of(policy)
        };
        layout
    }
}
