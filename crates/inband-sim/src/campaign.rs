//! Plays many seeds, one at a time or several in parallel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::run::{run, Report};
use crate::stats::Stats;
use crate::system::System;

/// Which seeds to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    pub first: u64,
    /// How many; `None`: until told to stop.
    pub count: Option<u64>,
    /// Threads. One thread plays a whole seed, so its schedule does not depend on their number.
    pub jobs: usize,
}

/// The totals of many runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    pub seeds: u64,
    /// Seeds with a violation.
    pub failures: u64,
    /// The sum over all seeds.
    pub stats: Stats,
}

impl Summary {
    pub fn add<I>(&mut self, report: &Report<I>) {
        self.seeds += 1;
        self.failures += u64::from(report.violation.is_some());
        self.stats += &report.stats;
    }
}

impl Seeds {
    /// Plays the seeds until all are played or `stop` returns true; each thread calls it before each seed. `progress`
    /// sees each report as its run ends, so with several threads not in the order of seeds.
    pub fn play<S: System>(
        &self,
        options: &S::Options,
        stop: impl Fn() -> bool + Sync,
        mut progress: impl FnMut(&Report<S::Invariant>),
    ) -> Summary {
        let mut summary = Summary::default();
        let played = AtomicU64::new(0);
        let next = || {
            let number = played.fetch_add(1, Ordering::Relaxed);
            let is_left = self.count.is_none_or(|count| number < count);
            (is_left && !stop()).then_some(self.first + number)
        };
        let (reports, arriving) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let (reports, next) = (reports.clone(), &next);
                scope.spawn(move || {
                    while let Some(seed) = next() {
                        if reports.send(run::<S>(seed, options)).is_err() {
                            return; // the receiver is gone
                        }
                    }
                });
            }
            drop(reports);
            for report in arriving {
                summary.add(&report);
                progress(&report);
            }
        });
        summary
    }
}
