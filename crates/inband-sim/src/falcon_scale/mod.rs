//! Simulates schedulers of a cluster too large for the machines at hand: Falcon's real role, and simple models of the
//! schedulers it is compared with. It produces figures: nothing is lost and nothing fails.

mod central;
mod falcon;
mod random;
mod sparrow;
mod world;

use central::Central;
use falcon::Falcon;
use random::Random;
use sparrow::Sparrow;

pub type Nanos = u64;
const US: Nanos = 1000;
const MS: Nanos = 1_000_000;

/// Tasks per job, uniform in this range, as in the Falcon paper (section 3.1.1).
pub const JOB_TASKS: (u64, u64) = (8, 64);
/// All submit at the same rate.
pub const USERS: u64 = 1000;
pub const RUN_NS: Nanos = 10 * MS;

/// Delays apart from decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// One way between a host and a scheduler in the network (a switch, or a host's interface), including the host's
    /// own stack.
    pub to_scheduler_ns: Nanos,
    /// One way between two hosts, including both stacks.
    pub to_host_ns: Nanos,
    /// From a task's packet at its host to its first instruction.
    pub start_ns: Nanos,
}

impl Default for Delays {
    /// Creates a data centre: 5 us in each host's stack and driver, 1 us for each of up to three switches, 3 us to wake
    /// a thread.
    fn default() -> Delays {
        Delays {
            to_scheduler_ns: 7 * US,
            to_host_ns: 13 * US,
            start_ns: 3 * US,
        }
    }
}

/// Which scheduler decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The role decides; executors pull. Users and nodes are divided among the schedulers.
    Falcon {
        /// Each has its own queues.
        schedulers: usize,
        /// Packets that a scheduler handles in parallel.
        cores: usize,
        /// Time that a scheduler takes per packet.
        packet_ns: Nanos,
    },
    /// Probes to `2 m` nodes for `m` tasks, late binding, cancellation. Schedulers run on their clients' hosts and take
    /// no time.
    Sparrow,
    /// One scheduler with full knowledge.
    Central { decision_ns: Nanos },
    /// A random executor, idle or not.
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub nodes: usize,
    /// Per node.
    pub executors: usize,
    pub delays: Delays,
    pub policy: Policy,
    /// Load: arriving tasks, in thousandths of what the executors can run.
    pub utilisation_permille: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Time before measurement starts.
    pub warm_up_ns: Nanos,
    /// Only tasks submitted in this time are measured.
    pub duration_ns: Nanos,
}

impl Options {
    pub fn executors_in_all(&self) -> usize {
        self.nodes * self.executors
    }

    /// Mean arrival rate.
    pub fn tasks_per_s(&self) -> f64 {
        let at_most = self.executors_in_all() as f64 * 1e9 / RUN_NS as f64;
        at_most * self.utilisation_permille as f64 / 1000.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// From submission to start of the measured tasks, sorted. A task that never started counts until the end of the
    /// simulation.
    pub delays_ns: Vec<Nanos>,
    pub submitted: u64,
    pub begun: u64,
    /// Tasks started within the measured time.
    pub begun_counted: u64,
    /// Tasks arrived faster than they were started.
    pub is_saturated: bool,
}

impl Report {
    /// Returns the delay at this permille of the distribution.
    ///
    /// # Panics
    /// If no task was measured.
    pub fn delay_ns(&self, permille: usize) -> Nanos {
        let last = self.delays_ns.len() - 1;
        self.delays_ns[last * permille / 1000]
    }
}

/// Runs the simulation. Equal options give equal reports.
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
