//! Statistics: distributions, time buckets, and pacing.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Steps of a plotted distribution function.
const CDF_STEPS: usize = 100;

/// Latencies in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The number of samples.
    pub samples: u64,
    /// The lower quartile, in microseconds.
    pub p25_us: f64,
    pub p50_us: f64,
    pub p75_us: f64,
    pub p99_us: f64,
    pub mean_us: f64,
    pub stdev_us: f64,
    /// Latency at 0, 1, ... 100 percent.
    pub cdf_us: Vec<f64>,
}

impl Distribution {
    /// From samples in nanoseconds. All zero if there are none.
    pub fn of(samples_ns: &Histogram<u64>) -> Distribution {
        if samples_ns.is_empty() {
            return Distribution::default();
        }
        let at = |quantile: f64| samples_ns.value_at_quantile(quantile) as f64 / 1000.0;
        Distribution {
            samples: samples_ns.len(),
            p25_us: at(0.25),
            p50_us: at(0.5),
            p75_us: at(0.75),
            p99_us: at(0.99),
            mean_us: samples_ns.mean() / 1000.0,
            stdev_us: samples_ns.stdev() / 1000.0,
            cdf_us: (0..=CDF_STEPS)
                .map(|step| at(step as f64 / CDF_STEPS as f64))
                .collect(),
        }
    }

    /// Returns the inter-quartile range.
    pub fn iqr_us(&self) -> f64 {
        self.p75_us - self.p25_us
    }

    /// Points of the distribution function: latency, percent.
    pub fn cdf(&self) -> Vec<[f64; 2]> {
        let steps = self.cdf_us.iter().enumerate();
        steps
            // The slowest percent would compress the rest.
            .take(CDF_STEPS)
            .map(|(percent, us)| [*us, percent as f64])
            .collect()
    }
}

/// Counts per time interval of equal length.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    len: Duration,
    counts: Vec<u64>,
}

impl Buckets {
    /// Creates empty buckets of this length.
    pub fn new(len: Duration) -> Buckets {
        let counts = Vec::new();
        Buckets { len, counts }
    }

    /// Adds `count` at this time.
    pub fn add(&mut self, at: Duration, count: u64) {
        let bucket = (at.as_nanos() / self.len.as_nanos()) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += count;
    }

    /// The counts, from the first bucket.
    pub fn counts(&self) -> Vec<u64> {
        self.counts.clone()
    }

    /// For each bucket that ended by `end`: its start in seconds, and its rate per second.
    pub fn rates(&self, end: Duration) -> Vec<[f64; 2]> {
        let len_s = self.len.as_secs_f64();
        let whole = (end.as_nanos() / self.len.as_nanos()) as usize;
        (0..whole)
            .map(|at| {
                let count = self.counts.get(at).copied().unwrap_or(0);
                [at as f64 * len_s, count as f64 / len_s]
            })
            .collect()
    }
}

/// Equidistant points of time. A caller that is late gets the missed ones immediately.
#[derive(Debug, Clone)]
pub struct Pace {
    interval_ns: f64,
    taken: u64,
    first_ns: Option<u64>,
}

impl Pace {
    /// Creates a pace with this rate.
    pub fn new(rate_per_s: f64) -> Pace {
        Pace {
            interval_ns: 1e9 / rate_per_s.max(f64::MIN_POSITIVE),
            taken: 0,
            first_ns: None,
        }
    }

    /// Returns the next point of time, if it is not in the future.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let first_ns = *self.first_ns.get_or_insert(now_ns);
        let due_ns = first_ns + (self.taken as f64 * self.interval_ns) as u64;
        (due_ns <= now_ns).then(|| {
            self.taken += 1;
            due_ns
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_and_the_range_between_them() {
        let mut samples = Histogram::new(3).expect("a histogram");
        for us in 1..=100u64 {
            samples.record(us * 1000).expect("in range");
        }
        let of = Distribution::of(&samples);
        let near = |value: f64, expected: f64| (value - expected).abs() < 0.1;
        assert!(near(of.p25_us, 25.0) && near(of.p50_us, 50.0));
        assert!(near(of.p75_us, 75.0) && near(of.p99_us, 99.0));
        assert!(near(of.iqr_us(), 50.0) && near(of.mean_us, 50.5));
        assert_eq!((of.samples, of.cdf().len()), (100, 100));
        assert!(of.cdf().windows(2).all(|w| w[0][0] <= w[1][0]));
        let none = Distribution::of(&Histogram::new(3).expect("a histogram"));
        assert_eq!(none, Distribution::default());
    }

    #[test]
    fn buckets_of_50_ms() {
        let ms = Duration::from_millis;
        let mut buckets = Buckets::new(ms(50));
        buckets.add(ms(0), 1);
        buckets.add(ms(49), 2);
        buckets.add(ms(120), 5);
        buckets.add(ms(60), 4);
        buckets.add(ms(210), 9);
        // The last bucket has not ended; an empty bucket is included.
        let rates = buckets.rates(ms(249));
        let expected = [[0.0, 60.0], [0.05, 80.0], [0.1, 100.0], [0.15, 0.0]];
        assert_eq!(rates.len(), 4);
        for (rate, expected) in rates.iter().zip(expected) {
            assert!((rate[0] - expected[0]).abs() < 1e-9 && (rate[1] - expected[1]).abs() < 1e-6);
        }
    }

    #[test]
    fn a_pace_is_kept_by_one_who_comes_late() {
        let mut pace = Pace::new(1000.0);
        assert_eq!(pace.take(5_000_000), Some(5_000_000));
        assert_eq!(pace.take(5_900_000), None);
        assert_eq!(pace.take(8_100_000), Some(6_000_000));
        assert_eq!(pace.take(8_100_000), Some(7_000_000));
        assert_eq!(pace.take(8_100_000), Some(8_000_000));
        assert_eq!(pace.take(8_100_000), None);
    }
}
