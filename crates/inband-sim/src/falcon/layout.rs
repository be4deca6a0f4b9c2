//! Which hosts a world has, and their settings.

use inband_falcon::dataplane::{FalconConfig, Policy};
use inband_falcon::limits::SUBMIT_TASKS_MAX;
use inband_falcon::timing::{ClientTiming, ExecutorTiming, Nanos, MS};

use crate::rng::Rng;

/// The hosts of a world and their settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Each has its own clients and workers.
    pub schedulers: u8,
    /// Of all schedulers together.
    pub workers: u8,
    /// Per worker.
    pub executors: u8,
    /// Of all schedulers together.
    pub clients: u8,
    pub falcon: FalconConfig,
    /// Schedulers wake executors, as those in user space do. If not, clients have to ask for it, as with schedulers in
    /// the kernel.
    pub wakes: bool,
    /// Queue positions start shortly before they wrap around.
    pub wraps: bool,
    pub tasks_per_submit: usize,
    /// Maximum per job.
    pub job_tasks: u64,
    /// Maximum tasks in flight per client.
    pub outstanding: usize,
    pub client: ClientTiming,
    pub executor: ExecutorTiming,
    /// Maximum total of the results that a worker keeps for clients to fetch.
    pub results_len_bytes_max: usize,
    /// How many executors may be lost with a task before it fails.
    pub losses_max: u32,
    /// A scheduler forgets a worker that is silent for this long.
    pub worker_lease_ns: Nanos,
    /// How long most tasks take.
    pub task_ns: Nanos,
    /// Mean time between two jobs of a client.
    pub think_ns: Nanos,
    /// One in this many tasks kills its worker; 0: none.
    pub killer_of: u64,
    /// No faults.
    pub is_calm: bool,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    *rng.pick(of).expect("there are some")
}

impl Layout {
    /// Returns a random layout; the policy follows from the seed.
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

    /// Returns whether bits may flip in packets. The scheduler does not look into tasks: if a flip changes a task's
    /// resource to one that no worker has, the task waits until its deadline, or forever if it has none.
    pub(super) fn may_be_damaged(&self) -> bool {
        self.falcon.policy != Policy::Resources
    }

    /// Returns how many tasks a client's executors begin at once when all are idle.
    pub(super) fn tasks_at_once(&self) -> u64 {
        let executors = u64::from(self.workers / self.schedulers) * u64::from(self.executors);
        let queued = self.falcon.queue_slots() as u64;
        executors
            .min(queued)
            .min(u64::from(self.falcon.user_tasks_max))
    }

    /// For directed tests: one scheduler, one worker with this many executors, one client, no faults.
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
