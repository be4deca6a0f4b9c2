//! Many seeds, one after the other or several at once.

use crate::campaign::Seeds;
use crate::paxos::ledger::Ends;
use crate::paxos::run::{run, Options, Report};
use crate::paxos::stats::Stats;

/// Which seeds to play, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// How many; `None`: until somebody says stop.
    pub count: Option<u64>,
    /// Threads. A seed is played by one of them, so what it does is the same with any number.
    pub jobs: usize,
    /// How each is played.
    pub options: Options,
}

/// Many runs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Seeds played.
    pub seeds: u64,
    /// Seeds in which replicas ran the real store.
    pub with_store: u64,
    /// Seeds with a violation.
    pub failures: u64,
    /// What happened, in all of them.
    pub stats: Stats,
    /// How submissions ended.
    pub ends: Ends,
    /// Instances applied.
    pub applied: u64,
}

impl Summary {
    /// One more.
    pub fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.with_store += u64::from(report.store);
        self.failures += u64::from(report.violation.is_some());
        self.stats += report.stats;
        self.ends += report.ends;
        self.applied += report.applied;
    }
}

impl Campaign {
    /// Play them until all are played or `stop` says so, which every thread asks before a seed.
    /// `progress` sees each report as it comes: with several threads not in the order of seeds.
    pub fn play(
        &self,
        stop: impl Fn() -> bool + Sync,
        mut progress: impl FnMut(&Report),
    ) -> Summary {
        let mut summary = Summary::default();
        let seeds = Seeds {
            first: self.first,
            count: self.count,
            jobs: self.jobs,
        };
        seeds.play(
            |seed| run(seed, &self.options),
            stop,
            |report| {
                summary.add(&report);
                progress(&report);
            },
        );
        summary
    }
}
