//! The scheduler alone: scheduling delay with executors that are timers of one polling worker, next to the same load on
//! executors that are threads.

use anyhow::Result;

use super::arrivals::Arrivals;
use super::testbed::{self, quantile_us, Load, Measured};
use super::{row, Run, DIFFERENCE};
use crate::row::{median, number, progress, quote, Baseline, Output, Quoted};

const UTILISATIONS_PERCENT: [f64; 2] = [80.0, 95.0];
const PAPER_AT_PERCENT: f64 = 95.0;
const PLACE: &str = "section 3.5, figure 8";
const QUANTILES: [(&str, f64, Quoted); 2] = [
    (
        "scheduler_p50_us",
        0.5,
        quote(PLACE, "Falcon at 95 %", 90.0),
    ),
    (
        "scheduler_p95_us",
        0.95,
        quote(PLACE, "Falcon at 95 %", 250.0),
    ),
];
const DEFINITION: &str = "a task's delay ends when its packet is at the worker, which has one thread that polls on a CPU of its own and \
     runs tasks as timers; the baseline's tasks are threads, and their delay ends at their first instruction";

/// The same load on timers and, directly after it, on threads.
struct Round {
    timers: Measured,
    threads: Measured,
}

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    output.note(DIFFERENCE);
    output.note(DEFINITION);
    for arrivals in run.arrivals() {
        for percent in run.points(&UTILISATIONS_PERCENT) {
            at(run, percent, arrivals, output)?;
        }
    }
    Ok(())
}

fn at(run: &Run<'_>, percent: f64, arrivals: Arrivals, output: &mut Output) -> Result<()> {
    let load = run.load(percent, arrivals);
    let mut rounds = Vec::new();
    for round in 0..run.rounds {
        progress(&format!(
            "{} arrivals, {percent} % utilisation, round {} of {}",
            arrivals.name(),
            round + 1,
            run.rounds
        ));
        let seed = load.seed + 100 * round as u64;
        let timers = Load {
            seed,
            timers: true,
            workers: 1,
            ..load
        };
        rounds.push(Round {
            timers: testbed::measure(&timers)?,
            threads: testbed::measure(&Load { seed, ..load })?,
        });
    }
    let of =
        |pick: &dyn Fn(&Round) -> f64| median(&mut rounds.iter().map(pick).collect::<Vec<_>>());
    for (metric, quantile, paper) in QUANTILES {
        let us = |measured: &Measured| quantile_us(&measured.delays, quantile);
        let all = rounds.iter().map(|round| us(&round.timers));
        let conditions = format!(
            "{} executors, tasks that sleep {} ms, {} clients, {} tasks/s; {} rounds of {} ms, medians from {} to {} us; a zero-cost \
             scheduler: {} us; CPU a task: scheduler {} us, clients {}; {} tasks failed; packets without tags; {}",
            load.executors,
            load.sleep.as_millis(),
            load.clients,
            load.tasks_per_s(),
            run.rounds,
            load.duration.as_millis(),
            number(all.clone().fold(f64::INFINITY, f64::min)),
            number(all.fold(0.0, f64::max)),
            number(of(&|round| quantile_us(&round.timers.ideal, quantile))),
            number(of(&|round| round.timers.cpu[0] * 1e6 / load.tasks_per_s())),
            number(of(&|round| round.timers.cpu[2] * 1e6 / load.tasks_per_s())),
            rounds.iter().map(|round| round.timers.failed).sum::<u64>(),
            run.machine
        );
        let baseline = Baseline {
            name: "executors that are threads".into(),
            value: of(&|round| us(&round.threads)),
        };
        let is_papers = percent == PAPER_AT_PERCENT && arrivals == Arrivals::Periodic;
        let row = row(
            metric,
            &load.dataplane.to_string(),
            format!("{}, {percent} %", arrivals.name()),
            (of(&|round| us(&round.timers)), "us"),
            conditions,
        );
        output.row(
            &row.beside(Some(baseline))
                .quoting(is_papers.then_some(paper)),
        )?;
    }
    Ok(())
}
