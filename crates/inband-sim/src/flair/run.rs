//! One seed, one schedule.

use std::collections::BTreeMap;
use std::fmt;

use inband_flair::reads::Reads;
use inband_flair::timing::{Nanos, MS};

use super::layout::Layout;
use super::limits::{EVENTS_MAX, FAULTY_NS, REQUESTS_AFTER, SETTLE_NS};
use super::mutation::Mutation;
use super::rule::{Rule, Violation};
use super::stats::Stats;
use super::world::World;
use crate::panics::panic_of;
use crate::rng::Rng;

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Simulated time with faults.
    pub faulty_ns: Nanos,
    /// Events kept for the trace.
    pub trace_events: usize,
    /// A rule to break.
    pub mutation: Option<Mutation>,
    /// How reads are answered.
    pub reads: Reads,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            faulty_ns: FAULTY_NS,
            trace_events: 0,
            mutation: None,
            reads: Reads::Flair,
        }
    }
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The same seed gives the same run.
    pub seed: u64,
    /// The cluster.
    pub layout: Layout,
    /// `None`: all went well.
    pub violation: Option<Violation>,
    /// In numbers.
    pub stats: Stats,
    /// How requests ended.
    pub ends: BTreeMap<&'static str, u64>,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// The last events, one a line.
    pub trace: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layout, stats) = (&self.layout, &self.stats);
        let ends: Vec<String> = self
            .ends
            .iter()
            .map(|(how, n)| format!("{n} {how}"))
            .collect();
        write!(
            f,
            "seed {}: {} replicas, {} clients, {} keys in {} groups; {} events, {} fault events, {} activations, \
             {} restarts, {} resets; {}; trace {:016x}",
            self.seed,
            layout.replicas,
            layout.clients,
            layout.keys,
            layout.groups,
            stats.events,
            stats.fault_events(),
            stats.activations,
            stats.restarts,
            stats.resets,
            ends.join(", "),
            self.trace_hash
        )?;
        match &self.violation {
            None => Ok(()),
            Some(violation) => write!(f, "\n  {violation}"),
        }
    }
}

/// Play the schedule of a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut rng = Rng::new(seed, 100);
    let mut layout = Layout::random(&mut rng);
    layout.reads = options.reads;
    if layout.reads == Reads::FollowerLeases {
        layout.groups = layout.groups.max(2);
    }
    let mut world = World::new(seed, layout, options.mutation);
    world.trace.keep = options.trace_events;
    let rates = &mut world.links.rates;
    rates.loss_ppm = [0, 1_000, 20_000, 100_000][rng.below(4) as usize];
    rates.duplicate_ppm = [0, 10_000, 100_000][rng.below(3) as usize];
    rates.hold_up_ppm = [0, 1_000, 30_000][rng.below(3) as usize];
    let every_ns = [25 * MS, 60 * MS, 120 * MS][rng.below(3) as usize];
    let panic = panic_of(|| {
        world.be_unkind(every_ns);
        let until = world.now + options.faulty_ns;
        world.run_until(until, |w| w.stats.events > EVENTS_MAX);
        if world.violation.is_none() {
            world.heal();
            world.must_settle();
        }
    });
    if let Some(text) = panic {
        world.broken(Rule::NoPanic, text);
    }
    world.finish();
    if let Err(what) = world.history.check() {
        world.broken(Rule::Linearizable, what);
    }
    Report {
        seed,
        layout,
        violation: world.violation,
        stats: world.stats,
        ends: world.history.ends,
        trace_hash: world.trace.hash(),
        trace: world.trace.lines(),
    }
}

impl World {
    /// Nothing goes wrong any more: every client must finish, every replica be taken in, all be equal.
    pub fn must_settle(&mut self) {
        let until = self.now + SETTLE_NS;
        let before = self.answered();
        self.set_load(true);
        let is_done = |world: &World| {
            let after = world.answered();
            let mut both = before.iter().zip(&after);
            world.is_whole() && both.all(|(b, a)| *a >= b + REQUESTS_AFTER)
        };
        if !self.run_until(until, is_done) {
            let answered = self.answered();
            let replicas = (0..self.layout.replicas).filter_map(|r| self.replica(r));
            let replicas: Vec<_> = replicas.map(|r| (r.status(0), r.raft_ids())).collect();
            let active = self.active();
            return self.broken(
                Rule::Liveness,
                format!(
                "no end: answered {before:?}, then {answered:?}; active {active:?}; {replicas:#?}"
            ),
            );
        }
        self.set_load(false);
        if !self.run_until(until, World::is_idle) {
            return self.broken(Rule::Liveness, "a request never ends".into());
        }
        let replicas = 0..self.layout.replicas;
        let is_equal = |world: &World| {
            let first = world.replica(0).expect("it is whole");
            replicas
                .clone()
                .filter_map(|r| world.replica(r))
                .all(|r| r.applied() == first.applied())
        };
        if !self.run_until(until, is_equal) {
            return self.broken(
                Rule::Liveness,
                "replicas do not come to the same entry".into(),
            );
        }
        self.check_stores();
    }

    fn check_stores(&mut self) {
        let first = self.replica(0).expect("it is whole").store().clone();
        for number in 1..self.layout.replicas {
            let replica = self.replica(number).expect("it is whole");
            if replica.store() != &first {
                self.broken(Rule::SameState, format!("replicas 0 and {number} differ"));
                return;
            }
        }
        let (acknowledged, begun) = self.history.writes();
        let changes = first.changes();
        if !(acknowledged..=begun).contains(&changes) {
            self.broken(
                Rule::ExactlyOnce,
                format!(
                    "{changes} changes of {acknowledged} acknowledged and {begun} begun writes"
                ),
            );
        }
    }
}
