//! One seed, one schedule.

use std::fmt;

use inband_falcon::task::{TaskSpec, Work};
use inband_falcon::timing::{Nanos, MS};

use super::layout::Layout;
use super::limits::{EVENTS_MAX, FAULTY_NS, PROMPT_NS, SETTLE_NS};
use super::rule::{Rule, Violation};
use super::stats::Stats;
use super::work::{Ends, Plan};
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
}

impl Default for Options {
    fn default() -> Options {
        Options {
            faulty_ns: FAULTY_NS,
            trace_events: 0,
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
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// The last events, one a line.
    pub trace: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layout, stats) = (&self.layout, &self.stats);
        let ends: Vec<String> = stats
            .ends
            .iter()
            .map(|(how, n)| format!("{n} {how}"))
            .collect();
        write!(
            f,
            "seed {}: {:?}{}, {} schedulers, {} workers of {}, {} clients; {} events, {} fault events; {}; trace {:016x}",
            self.seed,
            layout.falcon.policy,
            if layout.is_calm { ", calm" } else { "" },
            layout.schedulers,
            layout.workers,
            layout.executors,
            layout.clients,
            stats.events,
            stats.fault_events(),
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
    let mut rng = Rng::new(seed, 200);
    let layout = Layout::random(seed, &mut rng);
    let mut world = World::new(seed, layout);
    world.keep_trace(options.trace_events);
    let panic = panic_of(|| {
        if !layout.is_calm {
            let rates = &mut world.links.rates;
            rates.loss_ppm = [0, 1_000, 20_000, 100_000][rng.below(4) as usize];
            rates.duplicate_ppm = [0, 10_000, 100_000][rng.below(3) as usize];
            rates.hold_up_ppm = [0, 1_000, 30_000][rng.below(3) as usize];
            let flip_ppm = [0, 0, 10_000][rng.below(3) as usize];
            rates.flip_ppm = if layout.may_be_damaged() { flip_ppm } else { 0 };
            world.be_unkind([10 * MS, 30 * MS, 80 * MS][rng.below(3) as usize]);
        }
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
    Report {
        seed,
        layout,
        violation: world.violation.take(),
        trace_hash: world.trace.hash(),
        trace: world.trace.lines(),
        stats: world.stats,
    }
}

impl World {
    /// Does nobody wait for anything?
    fn is_at_rest(&self) -> bool {
        self.tasks_left() == 0 && self.queued() == 0 && self.busy() == 0 && self.all_registered()
    }

    /// Does every executor wait with its scheduler?
    fn is_all_parked(&self) -> bool {
        let executors = u32::from(self.layout.workers) * u32::from(self.layout.executors);
        self.is_at_rest() && self.parked() >= executors
    }

    /// Nothing goes wrong any more: every task of a living client must end, every executor be there for the next.
    pub fn must_settle(&mut self) {
        self.set_load(false);
        let until = self.now + SETTLE_NS;
        let enough = |world: &World| world.is_all_parked() || world.stats.events > EVENTS_MAX;
        if !self.run_until(until, enough) || !self.is_all_parked() {
            let what = format!(
                "{} tasks left, {} queued, {} executors busy, {} wait; all registered: {}; {} events",
                self.tasks_left(),
                self.queued(),
                self.busy(),
                self.parked(),
                self.all_registered(),
                self.stats.events
            );
            return self.broken(Rule::Liveness, what);
        }
        if self.layout.is_calm {
            self.nobody_was_given_up();
        }
        // Bits of executors that are gone are cleared by and by, and cost an answer each.
        self.run_for(4 * self.layout.worker_lease_ns);
        for client in 0..self.layout.clients {
            self.must_be_prompt(client);
        }
    }

    fn nobody_was_given_up(&mut self) {
        for number in 0..self.layout.clients {
            let lost = self
                .client_counters(number)
                .map_or(0, |counters| counters.lost);
            if lost > 0 {
                let what = format!("client {number} gave up {lost} executors that were well");
                self.broken(Rule::Prompt, what);
            }
        }
    }

    /// Everybody is idle: a job has its executors at once.
    fn must_be_prompt(&mut self, client: u8) {
        let takes_ns = MS;
        let task = |number| {
            let ends = Ends::Output(8);
            let plan = Plan {
                number,
                takes_ns,
                ends,
            };
            TaskSpec::new(Work::Inline(plan.work(0)))
        };
        let tasks = (0..self.layout.tasks_at_once()).map(task).collect();
        self.submit(client, tasks, &[], None);
        let until = self.now + takes_ns + PROMPT_NS;
        if !self.run_until(until, |world| world.tasks_left() == 0) {
            let what = format!("client {client} waits for tasks that nobody begins");
            self.broken(Rule::Prompt, what);
        }
    }
}
