//! Throughput and latency over one varied parameter (the paper's figures 18 to 20, and the number of key groups).

use anyhow::Result;

use super::load::Workload;
use super::{note_errors, row, Contest, Run, Samples, System, YCSB_A, YCSB_B};
use crate::plot::{Chart, Series};
use crate::row::{number, Output};

const CLIENTS: [usize; 6] = [8, 16, 32, 64, 128, 256];
const SKEWS: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.99];
const READ_PERCENTS: [f64; 7] = [50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 100.0];
const GROUPS: [u32; 7] = [256, 512, 1024, 2048, 4096, 8192, 16_384];

/// The lines of a chart, one per system, while points are added.
struct Lines(Vec<Series>);

impl Lines {
    fn new() -> Lines {
        Lines(Vec::new())
    }

    fn add(&mut self, name: &str, x: f64, y: f64) {
        let at = self.0.iter().position(|series| series.name == name);
        let at = at.unwrap_or_else(|| {
            self.0.push(Series {
                name: name.into(),
                points: Vec::new(),
                is_quoted: false,
            });
            self.0.len() - 1
        });
        self.0[at].points.push([x, y]);
    }

    fn plot(self, title: &str, x: &str, y: &str, output: &mut Output) {
        output.chart(Chart::Lines {
            title: title.into(),
            x: x.into(),
            y: y.into(),
            series: self.0,
            events: Vec::new(),
        });
    }
}

fn mean_us(samples: &Samples) -> f64 {
    samples.median(|sample| {
        let (reads, writes) = (&sample.report.reads, &sample.report.writes);
        let all = (reads.samples + writes.samples).max(1) as f64;
        (reads.mean_us * reads.samples as f64 + writes.mean_us * writes.samples as f64) / all
    })
}

/// One curve per system: `workloads` over x.
fn curve(
    run: &Run<'_>,
    contest: &Contest<System>,
    (title, x_label): (&str, &str),
    workloads: &[(f64, Workload)],
    output: &mut Output,
) -> Result<()> {
    let backend = contest.backend();
    let (mut throughput, mut latency) = (Lines::new(), Lines::new());
    for (x, workload) in workloads {
        let what = format!("{title}, {x_label} {}", number(*x));
        for (system, samples) in contest.measure(run, &what, workload)? {
            let variant = format!("{what}, {}", system.name());
            note_errors(output, &variant, &samples);
            let conditions = run.conditions(workload, &run.testbed_spec(system), &samples);
            let (per_s, mean_us) = (samples.per_s(), mean_us(&samples));
            let per_s_row = (per_s, "requests/s");
            let mean_row = (mean_us, "us");
            output.row(&row(
                "requests_per_s",
                &backend,
                variant.clone(),
                per_s_row,
                conditions.clone(),
            ))?;
            output.row(&row(
                "latency_mean_us",
                &backend,
                variant,
                mean_row,
                conditions,
            ))?;
            throughput.add(system.name(), *x, per_s);
            latency.add(system.name(), *x, mean_us);
        }
    }
    throughput.plot(
        &format!("{title}: throughput"),
        x_label,
        "requests/s",
        output,
    );
    latency.plot(&format!("{title}: mean latency"), x_label, "us", output);
    Ok(())
}

/// Varies the number of clients.
pub fn clients(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let contest = run.contest(&System::ALL, |system| run.testbed_spec(system))?;
    for (title, zipf) in [("YCSB B, uniform", 0.0), ("YCSB B, zipf", run.args.zipf)] {
        let of = |clients| {
            let workload = Workload {
                clients,
                ..run.workload(YCSB_B, zipf)
            };
            (clients as f64, workload)
        };
        let workloads: Vec<_> = run.points(&CLIENTS).into_iter().map(of).collect();
        curve(run, &contest, (title, "clients"), &workloads, output)?;
    }
    output.note(
        "the paper (section 4.5.1, figure 18): over FLeases up to 1.42 (uniform) and 1.26 (Zipf), over optimised Raft and \
         unreplicated 1.3 to 2.1 and 1.5 to 1.8; at 300 clients the leader served 2 % of FLAIR's reads and 34 % of FLeases' \
         (uniform), 21 % and 37 % (Zipf)",
    );
    Ok(())
}

/// Varies the skew of the keys.
pub fn skew(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let contest = run.contest(&System::ALL, |system| run.testbed_spec(system))?;
    let of = |zipf| (zipf, run.workload(YCSB_B, zipf));
    let workloads: Vec<_> = run.points(&SKEWS).into_iter().map(of).collect();
    curve(run, &contest, ("YCSB B", "skew"), &workloads, output)?;
    output.note(
        "the paper (section 4.5.2, figure 19): 1.26 to 2.25 times the throughput of all others, latency 1.13 to 2.48 times lower",
    );
    Ok(())
}

/// Varies the share of reads.
pub fn reads(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let contest = run.contest(&System::ALL, |system| run.testbed_spec(system))?;
    let of = |percent| (percent, run.workload(percent, 0.0));
    let workloads: Vec<_> = run.points(&READ_PERCENTS).into_iter().map(of).collect();
    curve(run, &contest, ("uniform", "% reads"), &workloads, output)?;
    output.note(
        "the paper (section 4.5.3, figure 20): up to 1.5 times FLeases (read-only: the same), 1.25 to 2.8 times optimised \
         Raft, up to 2.8 times unreplicated from 70 % of reads on",
    );
    Ok(())
}

/// Varies the number of key groups: how FLAIR's switch routes the reads.
pub fn groups(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let spec = |groups| super::TestbedSpec {
        groups,
        ..run.testbed_spec(System::Flair)
    };
    let contest = run.contest(&run.points(&GROUPS), spec)?;
    let backend = contest.backend();
    let (mut at_leader, mut unstable) = (Lines::new(), Lines::new());
    let zipf = run.args.zipf;
    for (name, percent, zipf) in [
        ("YCSB A, uniform", YCSB_A, 0.0),
        ("YCSB A, zipf", YCSB_A, zipf),
        ("YCSB B, uniform", YCSB_B, 0.0),
        ("YCSB B, zipf", YCSB_B, zipf),
    ] {
        let workload = run.workload(percent, zipf);
        for (groups, samples) in contest.measure(run, name, &workload)? {
            let variant = format!("{name}, {groups} groups");
            note_errors(output, &variant, &samples);
            let conditions = run.conditions(&workload, &spec(groups), &samples);
            let of_leader = samples.median(super::Sample::leader_percent);
            let of_unstable = samples.median(super::Sample::unstable_percent);
            for (metric, figure) in [
                ("reads_at_leader", (of_leader, "%")),
                ("reads_unstable", (of_unstable, "%")),
                ("requests_per_s", (samples.per_s(), "requests/s")),
            ] {
                output.row(&row(
                    metric,
                    &backend,
                    variant.clone(),
                    figure,
                    conditions.clone(),
                ))?;
            }
            at_leader.add(name, f64::from(groups), of_leader);
            unstable.add(name, f64::from(groups), of_unstable);
        }
    }
    at_leader.plot("reads at the leader", "key groups", "% of reads", output);
    unstable.plot(
        "reads of groups being written",
        "key groups",
        "% of reads",
        output,
    );
    output.note(
        "the paper (section 4.5.2, 4,096 groups): 29 % of reads found an unstable group under YCSB A with Zipf 0.99",
    );
    Ok(())
}
