//! Throughput of reads over the number of replicas (the paper's figure 27).

use anyhow::Result;

use super::load::Workload;
use super::{note_errors, row, Run, System, TestbedSpec, YCSB_C};
use crate::plot::{Chart, Series};
use crate::row::{quote, Output, Quoted};

const REPLICAS: [usize; 4] = [1, 3, 5, 7];
/// Small enough that the nodes are the bottleneck even with seven of them on two cores.
const QUOTA_PERCENT: u32 = 8;
/// Nodes wait for their share at different times, so enough clients are needed to keep all of them busy.
const CLIENTS_PER_REPLICA: usize = 32;
const SCALING: Quoted = quote("section 4.5.5, figure 27", "\"scales linearly\"", 1.0);

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let counts = run.points(&REPLICAS);
    let spec = |replicas| TestbedSpec {
        replicas,
        quota_percent: Some(QUOTA_PERCENT.min(run.args.quota_percent)),
        ..run.testbed_spec(System::Flair)
    };
    let contest = run.contest(&counts, spec)?;
    let backend = contest.backend();
    // All get the same load; otherwise clusters with fewer clients would have less queueing.
    let most = counts.iter().max().copied().unwrap_or(1);
    let workload = Workload {
        clients: most * CLIENTS_PER_REPLICA,
        ..run.workload(YCSB_C, 0.0)
    };
    let measured = contest.measure(run, "YCSB C, uniform", &workload)?;
    let Some((_, one)) = measured.first() else {
        return Ok(());
    };
    let (mut ours, mut linear) = (Vec::new(), Vec::new());
    for (replicas, samples) in &measured {
        let variant = format!("YCSB C, uniform, {replicas} replicas");
        note_errors(output, &variant, samples);
        let conditions = run.conditions(&workload, &spec(*replicas), samples);
        let per_s = (samples.per_s(), "requests/s");
        output.row(&row(
            "requests_per_s",
            &backend,
            variant.clone(),
            per_s,
            conditions.clone(),
        ))?;
        let of_linear = samples.ratio_to(one) / *replicas as f64;
        let scaling = row(
            "read_scaling",
            &backend,
            variant,
            (of_linear, "of linear"),
            conditions,
        );
        output.row(&scaling.quoting(SCALING))?;
        ours.push([*replicas as f64, per_s.0]);
        linear.push([*replicas as f64, one.per_s() * *replicas as f64]);
    }
    let line = |name: &str, points| Series {
        name: name.into(),
        points,
        is_quoted: false,
    };
    output.chart(Chart::Lines {
        title: "YCSB C, uniform".into(),
        x: "replicas".into(),
        y: "requests/s".into(),
        series: vec![line("FLAIR", ours), line("linear from one replica", linear)],
        events: Vec::new(),
    });
    output.note(
        "the paper: 5.4 million requests a second with 6 followers, each node a machine of its own",
    );
    Ok(())
}
