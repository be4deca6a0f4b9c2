//! The world of Paxos: logs, stores, control plane.

use inband_sim::paxos::{run, FaultKind, Invariant, Options, Report, Summary};
use indicatif::HumanCount;

use super::{tell_counts, World};

/// See the module.
#[derive(Default)]
pub struct Paxos(Summary);

impl World for Paxos {
    type Report = Report;
    type Setup = ();

    fn setup(&self) {}

    fn option(&self) -> String {
        String::new()
    }

    fn play((): (), seed: u64, last: Option<usize>) -> Report {
        let default = Options::default();
        let options = Options {
            trace_events: last.unwrap_or(default.trace_events),
            ..default
        };
        run(seed, &options)
    }

    fn seed(report: &Report) -> u64 {
        report.seed
    }

    fn broken_rule(report: &Report) -> Option<(String, &'static str)> {
        let violation = report.violation.as_ref()?;
        let rule = violation.invariant;
        Some((rule.to_string(), rule.describe()))
    }

    fn trace(report: &Report) -> &[String] {
        &report.trace
    }

    fn events(report: &Report) -> u64 {
        report.stats.events
    }

    fn fault_events(report: &Report) -> u64 {
        report.stats.fault_events()
    }

    fn rules() -> Vec<(String, &'static str)> {
        let all = Invariant::ALL.into_iter();
        all.map(|rule| (rule.to_string(), rule.describe()))
            .collect()
    }

    fn add(&mut self, report: &Report) {
        self.0.add(report);
    }

    fn special_seeds(&self) -> String {
        format!(" ({} with the real store)", HumanCount(self.0.with_store))
    }

    fn tell(&self) {
        let (summary, stats) = (&self.0, &self.0.stats);
        println!(
            "{} instances applied, {} commands and {} reads answered, {} leaders activated; settled \
             within {} ms",
            HumanCount(summary.applied),
            HumanCount(summary.ends.success),
            HumanCount(summary.ends.reads),
            HumanCount(stats.activations),
            stats.settled_after_us / 1000
        );
        tell_counts(stats.packet_faults());
        tell_counts(FaultKind::ALL.map(|kind| (kind.name(), stats.faults.of(kind))));
    }
}
