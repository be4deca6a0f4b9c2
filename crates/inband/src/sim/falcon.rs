//! The world of Falcon: schedulers, workers, clients.

use inband_sim::falcon::{run, Options, Report, Rule, Stats};
use indicatif::HumanCount;

use super::{tell_counts, World};

/// See the module.
#[derive(Default)]
pub struct Falcon {
    stats: Stats,
}

impl World for Falcon {
    type Report = Report;
    type Setup = ();

    fn setup(&self) {}

    fn option(&self) -> String {
        "--falcon ".into()
    }

    fn play((): (), seed: u64, last: Option<usize>) -> Report {
        let options = Options {
            trace_events: last.unwrap_or(0),
            ..Options::default()
        };
        run(seed, &options)
    }

    fn seed(report: &Report) -> u64 {
        report.seed
    }

    fn broken_rule(report: &Report) -> Option<(String, &'static str)> {
        let violation = report.violation.as_ref()?;
        Some((violation.rule.to_string(), violation.rule.describe()))
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
        let all = Rule::ALL.into_iter();
        all.map(|rule| (rule.to_string(), rule.describe()))
            .collect()
    }

    fn add(&mut self, report: &Report) {
        self.stats += &report.stats;
    }

    fn tell(&self) {
        let stats = &self.stats;
        let host = |name| HumanCount(stats.hosts.get(name).copied().unwrap_or(0));
        println!(
            "{} tasks submitted, {} taken by schedulers and {} given, {} run; {} given up with their executors; \
             {} schedulers, {} workers and {} clients ended",
            host("submitted"),
            host("taken"),
            host("given"),
            host("tasks run"),
            host("given up"),
            host("schedulers stopped"),
            host("workers stopped"),
            host("clients stopped"),
        );
        tell_counts(stats.ends.iter().map(|(name, count)| (*name, *count)));
        let links = &stats.links;
        let packets = [
            ("lost", links.lost),
            ("duplicated", links.duplicated),
            ("held-up", links.held_up),
            ("damaged", links.damaged),
        ];
        tell_counts(packets);
        tell_counts(stats.faults.iter().map(|(name, count)| (*name, *count)));
    }
}
