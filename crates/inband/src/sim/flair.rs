//! The world of FLAIR: switches, replicas, clients.

use std::collections::BTreeMap;

use inband_flair::reads::Reads;
use inband_sim::flair::{run, Options, Report, Rule, Stats};
use indicatif::HumanCount;

use super::{tell_counts, World};

/// See the module.
#[derive(Default)]
pub struct Flair {
    reads: Reads,
    stats: Stats,
    ends: BTreeMap<&'static str, u64>,
}

impl Flair {
    /// Where reads are answered so.
    pub fn new(reads: Reads) -> Flair {
        Flair {
            reads,
            ..Flair::default()
        }
    }
}

impl World for Flair {
    type Report = Report;
    type Setup = Reads;

    fn setup(&self) -> Reads {
        self.reads
    }

    fn option(&self) -> String {
        match self.reads {
            Reads::Flair => "--flair ".into(),
            reads => format!("--flair --reads {reads} "),
        }
    }

    fn play(reads: Reads, seed: u64, last: Option<usize>) -> Report {
        let options = Options {
            trace_events: last.unwrap_or(0),
            reads,
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
        for (how, count) in &report.ends {
            *self.ends.entry(how).or_default() += count;
        }
    }

    fn tell(&self) {
        let (stats, replicas, links) = (&self.stats, &self.stats.replicas, &self.stats.links);
        let ended = |how| HumanCount(self.ends.get(how).copied().unwrap_or(0));
        println!(
            "{} reads and {} writes answered, {} of unknown outcome; {} reads of followers, {} of leaders, {} refreshes; \
             {} sessions activated, {} replicas and {} switches came back empty",
            ended("read"),
            ended("written"),
            ended("unknown"),
            HumanCount(replicas.reads_follower),
            HumanCount(replicas.reads_leader),
            HumanCount(replicas.refreshes),
            HumanCount(stats.activations),
            HumanCount(stats.restarts),
            HumanCount(stats.resets),
        );
        let packets = [
            ("lost", links.lost),
            ("duplicated", links.duplicated),
            ("held-up", links.held_up),
        ];
        tell_counts(packets);
        tell_counts(stats.faults.iter().map(|(name, count)| (*name, *count)));
    }
}
