//! A replica on a machine with any number of cores, simulated turn by turn from measured costs.
//!
//! Clients send their next command as soon as they have a reply, and consensus answers at once: only the replica's CPU
//! time limits it. In a turn the replica takes all commands that wait. It does a part of the work alone, and shares the
//! other with its workers, in rounds that each take a while to hand out. At the same time its writers write what the
//! turns before it have applied, and other threads do their part, on the cores that are left; the replica waits for the
//! writers where it is too far ahead of them, as the real one does.

/// Costs of one command, in microseconds of CPU time.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// What the replica's thread does alone.
    pub alone_us: f64,
    /// What workers can take part in.
    pub together_us: f64,
    /// Writing it to the database of its partition.
    pub write_us: f64,
    /// The process's other threads.
    pub other_us: f64,
    /// Commands in a round of the workers.
    pub commands_per_round: f64,
    /// How long a round takes besides the work: until sleeping workers run, and until the replica has noticed the end.
    pub round_us: f64,
}

#[derive(Debug, Clone, Copy)]
pub struct Machine {
    pub cores: usize,
    pub workers: usize,
    pub partitions: usize,
    /// Commands that clients have sent and not seen answered.
    pub in_flight: usize,
}

/// Commands that may be applied and not written: 1,024 instances (`UNWRITTEN_BEHIND_INSTANCES_MAX`) with 16 commands.
const UNWRITTEN_MAX: f64 = 1024.0 * 16.0;
const TURNS: usize = 20_000;

/// The work of threads besides the replica's and the workers.
struct Backlog {
    write_us: f64,
    other_us: f64,
    writers: f64,
}

impl Backlog {
    /// Lets time pass with this many cores free.
    fn advance(&mut self, elapsed_us: f64, free: f64) {
        let other = self.other_us.min(elapsed_us * free.min(1.0));
        let left = (free - other / elapsed_us.max(f64::MIN_POSITIVE)).max(0.0);
        self.other_us -= other;
        self.write_us -= self.write_us.min(elapsed_us * left.min(self.writers));
    }
}

/// Commands per second that the replica executes.
pub fn per_s(costs: Costs, machine: Machine) -> f64 {
    let cores = machine.cores as f64;
    let threads = (1 + machine.workers) as f64;
    let mut backlog = Backlog {
        write_us: 0.0,
        other_us: 0.0,
        writers: threads.min(machine.partitions as f64),
    };
    let commands = machine.in_flight as f64;
    let rounds = match machine.workers {
        0 => 0.0,
        _ => (commands / costs.commands_per_round).max(1.0),
    };
    // Partitions are what there is least of.
    let together = threads.min(machine.partitions as f64).min(cores);
    let (mut elapsed_us, mut executed) = (0.0, 0.0);
    for _ in 0..TURNS {
        let alone_us = commands * costs.alone_us + rounds * costs.round_us;
        let together_us = commands * costs.together_us / together;
        backlog.advance(alone_us, cores - 1.0);
        backlog.advance(together_us, cores - together);
        elapsed_us += alone_us + together_us;
        backlog.write_us += commands * costs.write_us;
        backlog.other_us += commands * costs.other_us;
        executed += commands;
        // Until it may go on: it writes, too.
        let ahead_us = (backlog.write_us - UNWRITTEN_MAX * costs.write_us).max(0.0);
        let behind_us = (backlog.other_us - UNWRITTEN_MAX * costs.other_us).max(0.0);
        let wait_us = (ahead_us / (backlog.writers + 1.0).min(cores)).max(behind_us);
        backlog.write_us -= ahead_us;
        backlog.other_us -= behind_us;
        elapsed_us += wait_us;
    }
    executed / elapsed_us * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        alone_us: 1.0,
        together_us: 3.0,
        write_us: 2.0,
        other_us: 0.0,
        commands_per_round: 400.0,
        round_us: 20.0,
    };

    fn machine(cores: usize, workers: usize) -> Machine {
        Machine {
            cores,
            workers,
            partitions: 8,
            in_flight: 800,
        }
    }

    fn is_about(got: f64, expected: f64) -> bool {
        (got / expected - 1.0).abs() < 0.02
    }

    #[test]
    fn one_thread_is_limited_by_its_own_work_however_many_cores_there_are() {
        for cores in [2, 4, 32] {
            let got = per_s(COSTS, machine(cores, 0));
            assert!(is_about(got, 250_000.0), "{cores}: {got}");
        }
    }

    #[test]
    fn workers_leave_what_the_replica_does_alone_and_the_rounds() {
        // 800 commands: 800 us alone, 2400 us by 4 threads, 2 rounds.
        let got = per_s(COSTS, machine(16, 3));
        assert!(is_about(got, 800.0 / 1440.0 * 1e6), "{got}");
    }

    #[test]
    fn writers_that_do_not_keep_up_limit_it() {
        let slow = Costs {
            write_us: 40.0,
            ..COSTS
        };
        let got = per_s(slow, machine(32, 3));
        let by_writers = 4.0 / 40.0 * 1e6;
        assert!(got > by_writers * 0.98 && got < by_writers * 1.4, "{got}");
        assert!(per_s(slow, machine(32, 0)) < got / 2.0);
    }

    #[test]
    fn more_cores_never_make_it_slower() {
        let rates = [2, 4, 8, 16].map(|cores| per_s(COSTS, machine(cores, 1)));
        assert!(rates.is_sorted(), "{rates:?}");
    }
}
