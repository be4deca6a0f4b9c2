//! How reads are spread over the replicas that hold the value, also with one slow follower (the paper's figure 26).

use std::time::Duration;

use anyhow::Result;
use inband_flair::config::Balance;

use super::load::Workload;
use super::{note_errors, row, Run, System, TestbedSpec, YCSB_B, YCSB_C};
use crate::row::{quote, Baseline, Output, Quoted};

const BALANCES: [Balance; 3] = [Balance::Random, Balance::LeaderAvoidance, Balance::Load];
/// Weights are updated every second.
const WARM_UP: Duration = Duration::from_millis(2500);

fn name(balance: Balance) -> &'static str {
    match balance {
        Balance::Random => "random",
        Balance::LeaderAvoidance => "leader avoidance",
        Balance::Load => "leader avoidance and load",
    }
}

/// Name, percentage of reads, the slow node's quota, and the paper's figure for each way to balance.
type Case = (&'static str, f64, Option<u32>, [Option<Quoted>; 3]);

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let half = run.args.quota_percent / 2;
    let cases: [Case; 2] = [
        (
            "YCSB B, equal nodes",
            YCSB_B,
            None,
            [
                None,
                Some(quote("section 4.5.6, figure 26a", "over random", 1.4)),
                Some(quote(
                    "section 4.5.6, figure 26a",
                    "over random, \"comparable\" to leader avoidance",
                    1.4,
                )),
            ],
        ),
        (
            "YCSB C, one follower at half the quota",
            YCSB_C,
            Some(half),
            [
                None,
                Some(quote(
                    "section 4.5.6, figure 26b",
                    "\"equivalent\" to random, a follower 10 % slower",
                    1.0,
                )),
                Some(quote(
                    "section 4.5.6, figure 26b",
                    "over random, a follower 10 % slower",
                    1.17,
                )),
            ],
        ),
    ];
    for (case, percent, slow_quota_percent, quoted) in cases {
        let spec = |balance| TestbedSpec {
            balance,
            slow_quota_percent,
            ..run.testbed_spec(System::Flair)
        };
        let contest = run.contest(&BALANCES, spec)?;
        let backend = contest.backend();
        let workload = Workload {
            warm_up: if run.args.quick {
                super::QUICK
            } else {
                WARM_UP
            },
            ..run.workload(percent, 0.0)
        };
        let measured = contest.measure(run, case, &workload)?;
        let random = &measured[0].1;
        for ((balance, samples), quoted) in measured.iter().zip(quoted) {
            let variant = format!("{case}, {}", name(*balance));
            note_errors(output, &variant, samples);
            let conditions = run.conditions(&workload, &spec(*balance), samples);
            let per_s = (samples.per_s(), "requests/s");
            let row_of = |metric, figure| {
                row(
                    metric,
                    &backend,
                    variant.clone(),
                    figure,
                    conditions.clone(),
                )
            };
            let mut per_s = row_of("requests_per_s", per_s);
            if *balance != Balance::Random {
                per_s = per_s.beside(Some(Baseline {
                    name: name(Balance::Random).into(),
                    value: random.per_s(),
                }));
                per_s.ratio = Some(samples.ratio_to(random));
            }
            output.row(&per_s)?;
            if let Some(quoted) = quoted {
                let ratio = (samples.ratio_to(random), "x");
                output.row(&row_of("over_random", ratio).quoting(quoted))?;
            }
            let p99 = samples.median(|sample| sample.report.reads.p99_us);
            output.row(&row_of("read_p99_us", (p99, "us")))?;
        }
    }
    Ok(())
}
