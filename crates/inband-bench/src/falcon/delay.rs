//! Scheduling delay over utilisation, and its steps (the paper's figures 8 and 9).

use anyhow::Result;
use inband_paxos::config::Dataplane;

use super::arrivals::Arrivals;
use super::pool;
use super::testbed::{self, quantile_us, Delays, Load, Measured};
use super::{row, Run, DIFFERENCE};
use crate::plot::{Chart, Series};
use crate::row::{median, number, progress, quote, Baseline, Output, Quoted};

const UTILISATIONS_PERCENT: [f64; 6] = [50.0, 60.0, 70.0, 80.0, 90.0, 95.0];
/// The utilisations at which the paper breaks the delay down and gives numbers.
const STEPS_AT_PERCENT: [f64; 2] = [80.0, 95.0];
const PAPER_AT_PERCENT: f64 = 95.0;
const PLACE: &str = "section 3.5, figure 8";
const FALCON_P50: Quoted = quote(PLACE, "Falcon at 95 %; Sparrow 2,220", 90.0);
const FALCON_P95: Quoted = quote(PLACE, "Falcon at 95 %; Sparrow 2,680", 250.0);
const SPARROW_US: [(&str, f64); 2] = [("p50", 2220.0), ("p95", 2680.0)];
/// Charts of a distribution end here: the slowest few would compress the rest.
const SHOWN_QUANTILE: f64 = 0.99;
const STEPS_OF_PLOT: usize = 100;

/// A load, and directly after it the same load on threads of one process.
struct Round {
    testbed: Measured,
    pool: Delays,
}

/// The rounds of one load.
struct Rounds(Vec<Round>);

impl Rounds {
    fn all(&self, pick: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.0.iter().map(pick).collect()
    }

    fn median(&self, pick: impl Fn(&Round) -> f64) -> f64 {
        median(&mut self.all(pick))
    }

    fn quantile_us(&self, of: impl Fn(&Round) -> &Delays, quantile: f64) -> f64 {
        self.median(|round| quantile_us(of(round), quantile))
    }

    fn sum(&self, pick: fn(&Round) -> u64) -> u64 {
        self.0.iter().map(pick).sum()
    }
}

fn measure_rounds(run: &Run<'_>, load: &Load) -> Result<Rounds> {
    let mut rounds = Vec::new();
    for round in 0..run.rounds {
        progress(&format!(
            "{} arrivals, {} % utilisation, round {} of {}",
            load.arrivals.name(),
            load.utilisation_percent(),
            round + 1,
            run.rounds
        ));
        let seed = load.seed + 100 * round as u64;
        let load = Load { seed, ..*load };
        let testbed = testbed::measure(&load)?;
        let pool = pool::measure(&load)?;
        rounds.push(Round { testbed, pool });
    }
    Ok(Rounds(rounds))
}

fn conditions(run: &Run<'_>, load: &Load, rounds: &Rounds) -> String {
    let p50 = rounds.all(|m| quantile_us(&m.testbed.delays, 0.5));
    let [least, most] = [f64::min, f64::max].map(|of| p50.iter().copied().reduce(of));
    let cpu = |at: usize| number(rounds.median(|m| m.testbed.cpu[at] * 1e6 / load.tasks_per_s()));
    format!(
        "{} executors in {} processes, tasks that sleep {} ms, {} clients, {} jobs/s of {} tasks, {} tasks a packet; {} rounds of \
         {} ms, medians from {} to {} us; CPU a task: scheduler {} us, workers {}, clients {}; tasks slept {} us too long \
         (p95 {}), jobs came {} us too late (p95 {}); {} tasks failed, {} begun twice, {} packets sent again; packets without tags; {}",
        load.executors,
        load.workers,
        load.sleep.as_millis(),
        load.clients,
        load.jobs_per_s,
        load.tasks_per_job,
        load.tasks_per_submit,
        run.rounds,
        load.duration.as_millis(),
        number(least.unwrap_or(f64::NAN)),
        number(most.unwrap_or(f64::NAN)),
        cpu(0),
        cpu(1),
        cpu(2),
        number(rounds.quantile_us(|m| &m.testbed.overslept, 0.5)),
        number(rounds.quantile_us(|m| &m.testbed.overslept, 0.95)),
        number(rounds.quantile_us(|m| &m.testbed.late, 0.5)),
        number(rounds.quantile_us(|m| &m.testbed.late, 0.95)),
        rounds.sum(|m| m.testbed.failed),
        rounds.sum(|m| m.testbed.lost),
        rounds.sum(|m| m.testbed.repeated + m.testbed.refused),
        run.machine
    )
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    output.note(DIFFERENCE);
    for arrivals in run.arrivals() {
        over_utilisation(run, arrivals, output)?;
    }
    if run.args.dataplane != Dataplane::Udp {
        output.note("steps are noted by processes, and the scheduler's are in the kernel: they are measured with --dataplane udp");
        return Ok(());
    }
    for percent in run.points(&STEPS_AT_PERCENT) {
        steps(run, percent, output)?;
    }
    Ok(())
}

/// A line of the chart, a metric, and the part of the delays that it shows.
type Line = (&'static str, &'static str, f64, fn(&Round) -> &Delays);

const LINES: [Line; 8] = [
    ("median", "delay_p50_us", 0.5, |m| &m.testbed.delays),
    ("p95", "delay_p95_us", 0.95, |m| &m.testbed.delays),
    ("threads of one process, median", "pool_p50_us", 0.5, |m| {
        &m.pool
    }),
    ("threads of one process, p95", "pool_p95_us", 0.95, |m| {
        &m.pool
    }),
    ("zero-cost scheduler, median", "bound_p50_us", 0.5, |m| {
        &m.testbed.ideal
    }),
    ("zero-cost scheduler, p95", "bound_p95_us", 0.95, |m| {
        &m.testbed.ideal
    }),
    (
        "zero-cost, as slept, median",
        "bound_as_slept_p50_us",
        0.5,
        |m| &m.testbed.ideal_as_slept,
    ),
    (
        "zero-cost, as slept, p95",
        "bound_as_slept_p95_us",
        0.95,
        |m| &m.testbed.ideal_as_slept,
    ),
];

fn over_utilisation(run: &Run<'_>, arrivals: Arrivals, output: &mut Output) -> Result<()> {
    let mut series: Vec<Series> = LINES.iter().map(|line| named(line.0)).collect();
    for percent in run.points(&UTILISATIONS_PERCENT) {
        let load = run.load(percent, arrivals);
        let rounds = measure_rounds(run, &load)?;
        let conditions = conditions(run, &load, &rounds);
        for ((_, metric, quantile, of), series) in LINES.iter().zip(&mut series) {
            let us = rounds.quantile_us(of, *quantile);
            let baseline = matches!(*metric, "delay_p50_us" | "delay_p95_us").then(|| Baseline {
                name: "threads of one process".into(),
                value: rounds.quantile_us(|m| &m.pool, *quantile),
            });
            let is_papers = percent == PAPER_AT_PERCENT && arrivals == Arrivals::Periodic;
            let paper = match *metric {
                "delay_p50_us" => Some(FALCON_P50),
                "delay_p95_us" => Some(FALCON_P95),
                _ => None,
            };
            let variant = format!("{}, {percent} %", arrivals.name());
            let row = row(
                metric,
                &load.dataplane.to_string(),
                variant,
                (us, "us"),
                conditions.clone(),
            );
            output.row(&row.beside(baseline).quoting(paper.filter(|_| is_papers)))?;
            series.points.push([percent, us]);
        }
    }
    if arrivals == Arrivals::Periodic {
        for (name, us) in [("Falcon, p50", 90.0), ("Falcon, p95", 250.0)] {
            series.push(quoted(name, us));
        }
        for (name, us) in SPARROW_US {
            output.note(&format!(
                "the paper: Sparrow at 95 %: {name} {} us",
                number(us)
            ));
        }
    }
    output.chart(Chart::Lines {
        title: format!("{} arrivals: scheduling delay", arrivals.name()),
        x: "utilisation, %".into(),
        y: "us".into(),
        series,
        events: Vec::new(),
    });
    Ok(())
}

fn named(name: &str) -> Series {
    Series {
        name: name.into(),
        points: Vec::new(),
        is_quoted: false,
    }
}

fn quoted(name: &str, us: f64) -> Series {
    Series {
        name: format!("paper: {name}"),
        points: vec![[PAPER_AT_PERCENT, us]],
        is_quoted: true,
    }
}

/// The steps of the delay.
fn steps(run: &Run<'_>, percent: f64, output: &mut Output) -> Result<()> {
    let load = Load {
        steps: true,
        ..run.load(percent, Arrivals::Periodic)
    };
    let rounds = measure_rounds(run, &load)?;
    let conditions = conditions(run, &load, &rounds);
    let mut series = Vec::new();
    type Pick = fn(&testbed::Steps) -> &Delays;
    let picks: [(&str, Pick); 4] = [
        ("client to scheduler", |s| &s.to_scheduler),
        ("in the queue", |s| &s.queued),
        ("scheduler to worker", |s| &s.to_worker),
        ("worker to start", |s| &s.to_start),
    ];
    for (name, pick) in picks {
        for (metric, quantile) in [("step_p50_us", 0.5), ("step_p95_us", 0.95)] {
            let us = rounds.median(|m| {
                m.testbed
                    .steps
                    .as_ref()
                    .map_or(0.0, |s| quantile_us(pick(s), quantile))
            });
            let variant = format!("{percent} %, {name}");
            output.row(&row(
                metric,
                &load.dataplane.to_string(),
                variant,
                (us, "us"),
                conditions.clone(),
            ))?;
        }
        let last = rounds.0.last().and_then(|m| m.testbed.steps.as_ref());
        series.extend(last.map(|steps| Series {
            name: name.into(),
            points: cdf(pick(steps)),
            is_quoted: false,
        }));
    }
    output.note("each step is noted as it happens, which makes the whole a little longer than without; the paper (section 3.5, figure 9, at 80 %): all steps \"in under 100 us\"");
    output.chart(Chart::Lines {
        title: format!("steps of a task at {percent} % utilisation"),
        x: "us".into(),
        y: "percent of tasks".into(),
        series,
        events: Vec::new(),
    });
    Ok(())
}

fn cdf(delays: &Delays) -> Vec<[f64; 2]> {
    let at = |step: usize| step as f64 / STEPS_OF_PLOT as f64;
    let steps = (0..=STEPS_OF_PLOT).take_while(|step| at(*step) <= SHOWN_QUANTILE);
    steps
        .map(|step| [quantile_us(delays, at(step)), at(step) * 100.0])
        .collect()
}
