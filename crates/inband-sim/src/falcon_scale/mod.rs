//! Schedulers of a cluster too large for any machine here, in simulated time: Falcon's real role, and simple models of
//! what it is compared with. For figures: nothing is lost, nothing dies.

mod central;
mod falcon;
mod random;
mod sparrow;
mod world;

use central::Central;
use falcon::Falcon;
use random::Random;
use sparrow::Sparrow;

/// Nanoseconds.
pub type Nanos = u64;
const US: Nanos = 1000;
const MS: Nanos = 1_000_000;

/// Tasks of a job, as in the Falcon paper (section 3.1.1): evenly from the first to the second.
pub const JOB_TASKS: (u64, u64) = (8, 64);
/// Users, who submit equally much.
pub const USERS: u64 = 1000;
/// How long tasks run.
pub const RUN_NS: Nanos = 10 * MS;

/// How long things take that are no decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// One way between a host and a scheduler on its way (a switch, or a host's interface), with the host's own stack.
    pub to_scheduler_ns: Nanos,
    /// One way between two hosts, with both stacks.
    pub to_host_ns: Nanos,
    /// From a task's packet at its host to its first instruction.
    pub start_ns: Nanos,
}

impl Default for Delays {
    /// Of a data centre: 5 us in each host's stack and driver, 1 us for each of up to three switches, 3 us to wake a thread.
    fn default() -> Delays {
        Delays {
            to_scheduler_ns: 7 * US,
            to_host_ns: 13 * US,
            start_ns: 3 * US,
        }
    }
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The role decides; executors pull. Users and nodes are divided among the schedulers.
    Falcon {
        /// Queues of their own.
        schedulers: usize,
        /// Packets that each one handles at a time,
        cores: usize,
        /// and how long one of them takes.
        packet_ns: Nanos,
    },
    /// Probes to `2 m` nodes for `m` tasks, late binding, cancellation; schedulers beside their clients, that take no time.
    Sparrow,
    /// One that knows everything, and takes this long for each decision.
    Central {
        /// A decision.
        decision_ns: Nanos,
    },
    /// Any executor, whether it is free or not.
    Random,
}

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Machines.
    pub nodes: usize,
    /// Of each machine.
    pub executors: usize,
    /// See there.
    pub delays: Delays,
    /// See there.
    pub policy: Policy,
    /// Tasks that come, in thousandths of those that the executors can run.
    pub utilisation_permille: u64,
    /// Of everything that is drawn.
    pub seed: u64,
    /// Not counted.
    pub warm_up_ns: Nanos,
    /// Counted: tasks that are submitted then.
    pub duration_ns: Nanos,
}

impl Options {
    /// All executors.
    pub fn executors_in_all(&self) -> usize {
        self.nodes * self.executors
    }

    /// Tasks that come in a second.
    pub fn tasks_per_s(&self) -> f64 {
        let at_most = self.executors_in_all() as f64 * 1e9 / RUN_NS as f64;
        at_most * self.utilisation_permille as f64 / 1000.0
    }
}

/// What became of the tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// From submission to start, of the tasks counted, the shortest first. Those that have not begun count to the end.
    pub delays_ns: Vec<Nanos>,
    /// Tasks submitted, all.
    pub submitted: u64,
    /// Tasks begun, all.
    pub begun: u64,
    /// Tasks begun in the time counted.
    pub begun_counted: u64,
    /// More came than were begun.
    pub is_saturated: bool,
}

impl Report {
    /// A part of a thousand has no longer delay.
    ///
    /// # Panics
    /// If no task was counted.
    pub fn delay_ns(&self, permille: usize) -> Nanos {
        let last = self.delays_ns.len() - 1;
        self.delays_ns[last * permille / 1000]
    }
}

/// Simulate. Equal options give equal reports.
pub fn run(options: &Options) -> Report {
    match options.policy {
        Policy::Falcon {
            schedulers,
            cores,
            packet_ns,
        } => world::play(
            options,
            &mut Falcon::new(options, schedulers, cores, packet_ns),
        ),
        Policy::Sparrow => world::play(options, &mut Sparrow::new(options)),
        Policy::Central { decision_ns } => {
            world::play(options, &mut Central::new(options, decision_ns))
        }
        Policy::Random => world::play(options, &mut Random::new(options)),
    }
}
