//! Latency distribution of reads under YCSB B (the paper's figure 21).

use anyhow::Result;

use super::{note_errors, of_system, row, Run, Sample, Samples, System, YCSB_B};
use crate::plot::{Chart, Series};
use crate::row::{quote, Baseline, Output, Quoted};

const SYSTEMS: [System; 4] = [
    System::Majority,
    System::Leader,
    System::FollowerLeases,
    System::Flair,
];
/// FLAIR's latency relative to that of follower leases: how much lower it is, at least, for the slower part.
const UNIFORM: Quoted = quote(
    "section 4.5.1, figure 21a",
    "slowest 40 %: \"at least 38 %\" less",
    0.62,
);
const ZIPF: Quoted = quote(
    "section 4.5.1, figure 21b",
    "slowest half: \"up to 35 %\" less",
    0.65,
);

/// A percentile: its name and its value.
type Pick = (&'static str, fn(&Sample) -> f64);

/// Returns the round with the median.
fn middle(samples: &Samples) -> Option<&Sample> {
    let median = samples.median(|sample| sample.report.reads.p50_us);
    let mut samples = samples.0.iter();
    samples.find(|sample| sample.report.reads.p50_us == median)
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let contest = run.contest(&SYSTEMS, |system| run.testbed_spec(system))?;
    let backend = contest.backend();
    for (name, zipf, quoted) in [
        ("YCSB B, uniform", 0.0, UNIFORM),
        ("YCSB B, zipf", run.args.zipf, ZIPF),
    ] {
        let workload = run.workload(YCSB_B, zipf);
        let measured = contest.measure(run, name, &workload)?;
        let mut series = Vec::new();
        for (system, samples) in &measured {
            let variant = format!("{name}, {}", system.name());
            note_errors(output, &variant, samples);
            let conditions = run.conditions(&workload, &run.testbed_spec(*system), samples);
            let leases = of_system(&measured, System::FollowerLeases);
            let leases = leases.filter(|_| *system == System::Flair);
            let picks: [Pick; 4] = [
                ("read_p25_us", |s| s.report.reads.p25_us),
                ("read_p50_us", |s| s.report.reads.p50_us),
                ("read_p75_us", |s| s.report.reads.p75_us),
                ("read_p99_us", |s| s.report.reads.p99_us),
            ];
            for (metric, pick) in picks {
                let figure = (samples.median(pick), "us");
                let baseline = leases.map(|leases| Baseline {
                    name: System::FollowerLeases.name().into(),
                    value: leases.median(pick),
                });
                let row = row(
                    metric,
                    &backend,
                    variant.clone(),
                    figure,
                    conditions.clone(),
                );
                output.row(&row.beside(baseline))?;
            }
            if let Some(leases) = leases {
                let of = |samples: &Samples| samples.median(|s| s.report.reads.p75_us);
                let figure = (of(samples) / of(leases), "x");
                let variant = format!("{name}, over followers' leases");
                let row = row("flair_read_p75", &backend, variant, figure, conditions);
                output.row(&row.quoting(quoted))?;
            }
            series.extend(middle(samples).map(|sample| Series {
                name: system.name().into(),
                points: sample.report.reads.cdf(),
                is_quoted: false,
            }));
        }
        output.chart(Chart::Lines {
            title: format!("{name}: latency of reads"),
            x: "latency, us".into(),
            y: "percent of reads".into(),
            series,
            events: Vec::new(),
        });
    }
    Ok(())
}
