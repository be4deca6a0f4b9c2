//! When jobs come.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::SeedableRng;
use rand_distr::{Distribution as _, Exp};

/// How far jobs are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// Equally, as in the paper.
    Periodic,
    /// By chance, as many people's jobs are.
    Poisson,
}

impl Arrivals {
    /// Its name on the command line and in figures.
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Periodic => "periodic",
            Arrivals::Poisson => "poisson",
        }
    }
}

/// Points of time in nanoseconds, without end.
pub struct JobTimes {
    arrivals: Arrivals,
    mean_ns: f64,
    next_ns: f64,
    between: Exp<f64>,
    rng: SmallRng,
}

impl JobTimes {
    /// So many a second, from `begin_ns` on.
    pub fn new(arrivals: Arrivals, jobs_per_s: f64, begin_ns: u64, seed: u64) -> JobTimes {
        JobTimes {
            arrivals,
            mean_ns: 1e9 / jobs_per_s,
            next_ns: begin_ns as f64,
            between: Exp::new(1.0).expect("1 is a rate"),
            rng: SmallRng::seed_from_u64(seed),
        }
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
}
