//! YCSB A, B and C, uniform and Zipf, on all systems (the paper's section 4.5.1).

use anyhow::Result;

use super::{note_errors, of_system, row, Run, Samples, System, YCSB_A, YCSB_B, YCSB_C};
use crate::plot::{Bar, Chart};
use crate::row::{quote, Baseline, Output, Quoted};

const WORKLOADS: [(&str, f64); 3] = [("A", YCSB_A), ("B", YCSB_B), ("C", YCSB_C)];

/// FLAIR's throughput relative to other systems for workload B, from the paper's text.
const UNIFORM: [(System, Quoted); 2] = [
    (
        System::Leader,
        quote(
            "section 4.5.1, figure 18a",
            "\"1.3 to 2.1\", also over unreplicated",
            2.1,
        ),
    ),
    (
        System::FollowerLeases,
        quote("section 4.5.1, figure 18a", "\"up to\"", 1.42),
    ),
];
const ZIPF: [(System, Quoted); 2] = [
    (
        System::Leader,
        quote(
            "section 4.5.1, figure 18b",
            "\"1.5 to 1.8\", also over unreplicated",
            1.8,
        ),
    ),
    (
        System::FollowerLeases,
        quote("section 4.5.1, figure 18b", "\"up to\"", 1.26),
    ),
];

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let contest = run.contest(&System::ALL, |system| run.testbed_spec(system))?;
    let backend = contest.backend();
    let mut bars = Vec::new();
    for (name, read_percent) in WORKLOADS {
        for (skew, zipf, quoted) in [("uniform", 0.0, &UNIFORM), ("zipf", run.args.zipf, &ZIPF)] {
            let name = format!("YCSB {name}, {skew}");
            let workload = run.workload(read_percent, zipf);
            let measured = contest.measure(run, &name, &workload)?;
            let leader = of_system(&measured, System::Leader);
            for (system, samples) in &measured {
                let variant = format!("{name}, {}", system.name());
                note_errors(output, &variant, samples);
                let conditions = run.conditions(&workload, &run.testbed_spec(*system), samples);
                let mut of = |metric, unit, pick: fn(&Samples) -> f64, is_ratio: bool| {
                    let figure = (pick(samples), unit);
                    let mut row = row(
                        metric,
                        &backend,
                        variant.clone(),
                        figure,
                        conditions.clone(),
                    );
                    if let Some(leader) = leader.filter(|_| *system != System::Leader) {
                        row = row.beside(Some(Baseline {
                            name: System::Leader.name().into(),
                            value: pick(leader),
                        }));
                        // The ratio of each round's two figures, not of the medians.
                        row.ratio = row.ratio.map(|r| {
                            if is_ratio {
                                samples.ratio_to(leader)
                            } else {
                                r
                            }
                        });
                    }
                    output.row(&row)
                };
                of("requests_per_s", "requests/s", Samples::per_s, true)?;
                of(
                    "read_p50_us",
                    "us",
                    |s| s.median(|s| s.report.reads.p50_us),
                    false,
                )?;
                of(
                    "read_p99_us",
                    "us",
                    |s| s.median(|s| s.report.reads.p99_us),
                    false,
                )?;
                bars.push(Bar {
                    name: variant.clone(),
                    value: samples.per_s(),
                    is_baseline: *system != System::Flair,
                });
            }
            for (other, quoted) in quoted {
                let flair = of_system(&measured, System::Flair);
                let (Some(flair), Some(samples)) = (flair, of_system(&measured, *other)) else {
                    continue;
                };
                let variant = format!("{name}, over {}", other.name());
                let conditions = run.conditions(&workload, &run.testbed_spec(System::Flair), flair);
                let figure = (flair.ratio_to(samples), "x");
                let row = row("flair_throughput", &backend, variant, figure, conditions);
                let quoted = (read_percent == YCSB_B).then_some(*quoted);
                output.row(&row.quoting(quoted))?;
            }
        }
    }
    output.chart(Chart::Bars {
        title: "requests/s".into(),
        bars,
    });
    Ok(())
}
