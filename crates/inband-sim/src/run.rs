//! Runs a single seed.

use std::fmt;

use crate::panics::panic_of;
use crate::stats::Stats;
use crate::system::System;
use crate::violation::Violation;

/// Events kept for the trace of a violation.
const TRACE_EVENTS: usize = 400;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<I> {
    /// The seed: the same one gives the same run.
    pub seed: u64,
    /// A description of the cluster.
    pub layout: String,
    /// `None`: no invariant was broken.
    pub violation: Option<Violation<I>>,
    pub stats: Stats,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// The last events, one per line; always present after a violation.
    pub trace: Vec<String>,
}

impl<I: fmt::Display> fmt::Display for Report<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = &self.stats;
        write!(
            f,
            "seed {}: {}; {} events, {} fault events, {} faults; {}; trace {:016x}",
            self.seed,
            self.layout,
            stats.events,
            stats.fault_events(),
            stats.faults.total(),
            stats.counts,
            self.trace_hash
        )?;
        match &self.violation {
            None => Ok(()),
            Some(violation) => write!(f, "\n  {violation}"),
        }
    }
}

/// Plays a seed and keeps this many of its last events; 0: only if an invariant is broken.
pub fn run_with_trace<S: System>(
    seed: u64,
    options: &S::Options,
    keep: usize,
) -> Report<S::Invariant> {
    let report = play::<S>(seed, options, keep);
    match keep == 0 && report.violation.is_some() {
        true => play::<S>(seed, options, TRACE_EVENTS),
        false => report,
    }
}

pub fn run<S: System>(seed: u64, options: &S::Options) -> Report<S::Invariant> {
    run_with_trace::<S>(seed, options, 0)
}

fn play<S: System>(seed: u64, options: &S::Options, keep: usize) -> Report<S::Invariant> {
    let mut world = S::begin(seed, options);
    world.trace.keep = keep;
    let panic = panic_of(|| {
        let until = world.now + S::faulty(options);
        S::play(&mut world, until);
        if world.violation.is_none() {
            S::heal(&mut world);
            let began = world.now;
            S::settle(&mut world);
            world.stats.settled_after = world.now - began;
        }
    });
    if let Some(text) = panic {
        world.broken(S::NO_PANIC, format!("panicked: {text}"));
    }
    S::finish(&mut world);
    Report {
        seed,
        layout: world.system.describe(),
        violation: world.violation,
        stats: world.stats,
        trace_hash: world.trace.hash(),
        trace: world.trace.lines(),
    }
}
