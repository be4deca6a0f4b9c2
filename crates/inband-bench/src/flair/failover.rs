//! Throughput over time when the switch, the leader or a follower is killed (the paper's figures 23 to 25). Storage
//! nodes have no quota here: a node that waits for its share would appear dead.

use std::time::Duration;

use anyhow::Result;
use inband_flair::timing::{HEARTBEAT_MS, STEP_DOWN_MS};

use super::load::{LoadReport, Workload, BUCKET};
use super::{row, Run, System, TestbedSpec, YCSB_B, YCSB_C};
use crate::plot::{Chart, Series};
use crate::row::{median, number, progress, quote, Output, Quoted};

const DURATION: Duration = Duration::from_secs(3);
const DURATION_QUICK: Duration = Duration::from_millis(1200);
/// Delay after the failure before throughput is compared with that before it.
const SETTLING_S: f64 = 0.5;

/// The process to kill, the percentage of reads, and the paper's figure.
const FAILURES: [(&str, f64, Option<Quoted>); 4] = [
    (
        "switch",
        YCSB_C,
        Some(quote("section 4.5.4, figure 23", "", 750.0)),
    ),
    ("leader", YCSB_C, None),
    ("leader", YCSB_B, None),
    ("follower/0", YCSB_C, None),
];

struct Seen {
    rates: Vec<[f64; 2]>,
    killed_s: f64,
    pause_ms: f64,
    errors: u64,
}

impl Seen {
    fn of(report: &LoadReport, killed_s: f64) -> Seen {
        let bucket_s = BUCKET.as_secs_f64();
        let rate = |(at, count): (usize, &u64)| [at as f64 * bucket_s, *count as f64 / bucket_s];
        Seen {
            rates: report.buckets.iter().enumerate().map(rate).collect(),
            killed_s,
            pause_ms: report.longest_pause_ms,
            errors: report.errors,
        }
    }

    fn rate(&self, is_in: impl Fn(f64) -> bool) -> f64 {
        let rates = self.rates.iter().filter(|rate| is_in(rate[0]));
        median(&mut rates.map(|rate| rate[1]).collect::<Vec<_>>())
    }

    /// Throughput after the failure, in percent of that before.
    fn after_percent(&self) -> f64 {
        let before = self.rate(|at| at + BUCKET.as_secs_f64() < self.killed_s);
        let after = self.rate(|at| at > self.killed_s + SETTLING_S);
        after * 100.0 / before
    }
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let spec = TestbedSpec {
        switches: 2,
        quota_percent: None,
        heartbeat_ms: HEARTBEAT_MS,
        step_down_ms: STEP_DOWN_MS,
        ..run.testbed_spec(System::Flair)
    };
    for (role, read_percent, quoted) in FAILURES {
        let workload = Workload {
            duration: if run.args.quick {
                DURATION_QUICK
            } else {
                DURATION
            },
            ..run.workload(read_percent, 0.0)
        };
        let mut all = Vec::new();
        let mut backend = String::new();
        for round in 0..run.rounds {
            progress(&format!(
                "{role} killed, {read_percent} % reads, round {} of {}",
                round + 1,
                run.rounds
            ));
            let testbed = run.start(&spec)?;
            backend = testbed.backend();
            let (report, killed_s) = testbed.measure_killing(&workload, role)?;
            all.push(Seen::of(&report, killed_s));
        }
        let of = |pick: fn(&Seen) -> f64| median(&mut all.iter().map(pick).collect::<Vec<_>>());
        let pauses: Vec<String> = all.iter().map(|seen| number(seen.pause_ms)).collect();
        let conditions = format!(
            "{} storage nodes without a quota, two switches, heartbeats every {HEARTBEAT_MS} ms, step-down {STEP_DOWN_MS} ms, \
             {} clients with one request each, {} % reads, uniform; pauses of the rounds {} ms; {} requests failed; {}",
            spec.replicas,
            workload.clients,
            read_percent,
            pauses.join(", "),
            all.iter().map(|seen| seen.errors).sum::<u64>(),
            run.machine
        );
        let variant = format!("{role} killed, {read_percent} % reads");
        let pause = (of(|seen| seen.pause_ms), "ms");
        let row_of = |metric, figure| {
            row(
                metric,
                &backend,
                variant.clone(),
                figure,
                conditions.clone(),
            )
        };
        output.row(&row_of("longest_pause_ms", pause).quoting(quoted))?;
        output.row(&row_of(
            "after_failure",
            (of(Seen::after_percent), "% of before"),
        ))?;
        if let Some(seen) = all.iter().find(|seen| seen.pause_ms == pause.0) {
            output.chart(Chart::Lines {
                title: variant.clone(),
                x: "seconds".into(),
                y: format!("requests/s in {} ms", BUCKET.as_millis()),
                series: vec![Series {
                    name: "FLAIR".into(),
                    points: seen.rates.clone(),
                    is_quoted: false,
                }],
                events: vec![(seen.killed_s, format!("{role} killed"))],
            });
        }
    }
    output.note(
        "the paper (section 4.5.4, heartbeats not given): nobody served for 750 ms after the switch failed; without a follower \
         throughput is 33 % less",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_compared_around_the_failure() {
        let rate = |at: usize| if at < 50 { 1000.0 } else { 670.0 };
        let seen = Seen {
            rates: (0..100).map(|at| [at as f64 * 0.02, rate(at)]).collect(),
            killed_s: 1.01,
            pause_ms: 40.0,
            errors: 0,
        };
        assert!((seen.after_percent() - 67.0).abs() < 1e-9);
    }
}
