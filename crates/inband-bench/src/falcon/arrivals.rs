//! Arrival times of jobs.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::SeedableRng;
use rand_distr::{Distribution as _, Exp};

/// The distribution of interarrival times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// Constant, as in the paper.
    Periodic,
    /// Exponential, as for jobs of many independent users.
    Poisson,
}

impl Arrivals {
    /// Returns the name on the command line and in figures.
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Periodic => "periodic",
            Arrivals::Poisson => "poisson",
        }
    }
}

/// An endless sequence of arrival times in nanoseconds.
pub struct JobTimes {
    arrivals: Arrivals,
    mean_ns: f64,
    next_ns: f64,
    between: Exp<f64>,
    rng: SmallRng,
}

impl JobTimes {
    /// Starts at `begin_ns`, with this rate.
    pub fn new(arrivals: Arrivals, jobs_per_s: f64, begin_ns: u64, seed: u64) -> JobTimes {
        JobTimes {
            arrivals,
            mean_ns: 1e9 / jobs_per_s,
            next_ns: begin_ns as f64,
            between: Exp::new(1.0).expect("1 is a rate"),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns the jobs before `end_ns` that have tasks, with this many tasks per job on average: the time and the
    /// number of tasks.
    pub fn jobs(self, tasks_per_job: f64, end_ns: u64) -> impl Iterator<Item = (u64, u64)> {
        let times = self.take_while(move |due_ns| *due_ns < end_ns);
        let mut tasks = 0;
        (1_u32..).zip(times).filter_map(move |(number, due_ns)| {
            let until = (f64::from(number) * tasks_per_job) as u64;
            let of_job = until - tasks;
            tasks = until;
            (of_job > 0).then_some((due_ns, of_job))
        })
    }
}

impl Iterator for JobTimes {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let at_ns = self.next_ns as u64;
        self.next_ns += self.mean_ns
            * match self.arrivals {
                Arrivals::Periodic => 1.0,
                Arrivals::Poisson => self.between.sample(&mut self.rng),
            };
        Some(at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_as_often_as_they_are_to() {
        let times = |arrivals| JobTimes::new(arrivals, 100.0, 1_000_000_000, 7);
        let periodic: Vec<u64> = times(Arrivals::Periodic).take(3).collect();
        assert_eq!(periodic, [1_000_000_000, 1_010_000_000, 1_020_000_000]);
        let poisson: Vec<u64> = times(Arrivals::Poisson).take(10_001).collect();
        let mean_ns = (poisson[10_000] - poisson[0]) / 10_000;
        assert!((9_500_000..10_500_000).contains(&mean_ns), "{mean_ns}");
        let again: Vec<u64> = times(Arrivals::Poisson).take(10_001).collect();
        assert_eq!(poisson, again, "by its seed");
    }

    #[test]
    fn tasks_are_divided_among_jobs_and_none_is_empty() {
        let jobs = |tasks_per_job| {
            let times = JobTimes::new(Arrivals::Periodic, 100.0, 0, 7);
            let jobs: Vec<(u64, u64)> = times.jobs(tasks_per_job, 40_000_000).collect();
            jobs
        };
        let ms = [0, 10, 20, 30].map(|ms| ms * 1_000_000);
        let several = [(ms[0], 2), (ms[1], 3), (ms[2], 2), (ms[3], 3)];
        assert_eq!(jobs(2.5), several);
        assert_eq!(jobs(0.5), [(ms[1], 1), (ms[3], 1)]);
    }
}
