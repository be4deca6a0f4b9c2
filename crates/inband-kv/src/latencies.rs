//! How long requests take, by command: from when a request was read until its reply was handed to the socket.
//!
//! Written by the thread that serves the clients, read by any.

#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::control::{add, set};
use crate::table::COMMANDS;

/// The first bucket is for requests of up to 2^6 us; each further one reaches twice as far.
const FIRST_BOUND_BITS: u32 = 6;
/// Buckets with an upper bound; the last bound is 8.4 s, longer than a command may take.
pub const BUCKETS: usize = 18;

/// Upper bound of a bucket.
pub fn bound(bucket: usize) -> Duration {
    Duration::from_micros(1 << (FIRST_BOUND_BITS as usize + bucket))
}

/// The requests for one command.
#[derive(Debug, Default)]
struct Histogram {
    /// Not cumulative; the last one has no bound.
    buckets: [AtomicU64; BUCKETS + 1],
    sum_us: AtomicU64,
}

/// A request that is not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Its place in [`COMMANDS`]; not in it if there is no such command.
    command: u16,
    at_us: u64,
}

/// What was measured for one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// Name in upper case.
    pub command: &'static str,
    /// Requests by bucket; the last one is for those above all bounds.
    pub buckets: [u64; BUCKETS + 1],
    pub sum: Duration,
}

#[derive(Debug)]
pub struct Latencies {
    begun: Instant,
    now_us: AtomicU64,
    /// In the order of [`COMMANDS`].
    commands: Vec<Histogram>,
    #[cfg(any(test, feature = "testing"))]
    is_off: AtomicBool,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            now_us: AtomicU64::new(0),
            commands: COMMANDS.iter().map(|_| Histogram::default()).collect(),
            #[cfg(any(test, feature = "testing"))]
            is_off: AtomicBool::new(false),
        }
    }
}

impl Latencies {
    /// Requests that are read, or answered, from now on were so at this time: reading the clock for each would cost more
    /// than some of them take.
    pub(crate) fn set_now(&self, now: Instant) {
        let us = now.saturating_duration_since(self.begun).as_micros();
        set(&self.now_us, u64::try_from(us).unwrap_or(u64::MAX));
    }

    /// Measures nothing, to show what measuring costs.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn set_off(&self, is_off: bool) {
        self.is_off.store(is_off, Ordering::Relaxed);
    }

    /// A request was read. `command`: its place in [`COMMANDS`].
    pub(crate) fn ask(&self, command: Option<usize>) -> Asked {
        Asked {
            command: command
                .and_then(|at| u16::try_from(at).ok())
                .unwrap_or(u16::MAX),
            at_us: self.now_us.load(Ordering::Relaxed),
        }
    }

    /// It is answered.
    pub(crate) fn answer(&self, asked: Asked) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_off.load(Ordering::Relaxed) {
            return;
        }
        let Some(histogram) = self.commands.get(usize::from(asked.command)) else {
            return;
        };
        let now_us = self.now_us.load(Ordering::Relaxed);
        let us = now_us.saturating_sub(asked.at_us);
        // Up to and including the bound.
        let bits = u64::BITS - us.saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(FIRST_BOUND_BITS) as usize;
        add(&histogram.buckets[bucket.min(BUCKETS)], 1);
        add(&histogram.sum_us, us);
    }

    /// Returns what was measured, for the commands that were used.
    pub fn all(&self) -> Vec<Latency> {
        let measured = |(spec, histogram): (&crate::table::CommandSpec, &Histogram)| Latency {
            command: spec.name,
            buckets: std::array::from_fn(|at| histogram.buckets[at].load(Ordering::Relaxed)),
            sum: Duration::from_micros(histogram.sum_us.load(Ordering::Relaxed)),
        };
        let all = COMMANDS.iter().zip(&self.commands).map(measured);
        all.filter(|of| of.buckets.iter().any(|count| *count > 0))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn a_request_counts_in_the_bucket_that_it_fits_in() {
        let latencies = Latencies::default();
        let get = table::place(b"get").expect("a command");
        for us in [0, 1, 64, 65, 128, 8_388_608, 8_388_609, 1 << 40] {
            latencies.set_now(latencies.begun);
            let asked = latencies.ask(Some(get));
            latencies.set_now(latencies.begun + Duration::from_micros(us));
            latencies.answer(asked);
        }
        // Unknown commands are not measured.
        latencies.answer(latencies.ask(None));
        let all = latencies.all();
        let [of_get] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(of_get.command, "GET");
        let mut expected = [0; BUCKETS + 1];
        (expected[0], expected[1]) = (3, 2);
        (expected[BUCKETS - 1], expected[BUCKETS]) = (1, 2);
        assert_eq!(of_get.buckets, expected);
        assert_eq!(bound(0), Duration::from_micros(64));
        assert_eq!(bound(BUCKETS - 1), Duration::from_micros(8_388_608));
    }
}
