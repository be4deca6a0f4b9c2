//! 1,000 nodes of 32 executors in simulated time: scheduling delay over utilisation, for the real role and for other
//! schedulers.

use anyhow::Result;
use inband_sim::falcon_scale::{self, Delays, Options, Policy, Report, JOB_TASKS, RUN_NS, USERS};

use super::{row, Run};
use crate::plot::{Chart, Series};
use crate::row::{number, progress, Baseline, Output};

const NODES: usize = 1000;
const QUICK_NODES: usize = 50;
const EXECUTORS: usize = 32;
const UTILISATIONS_PERMILLE: [u64; 8] = [20, 200, 500, 700, 800, 900, 950, 980];
const QUICK_UTILISATION_PERMILLE: u64 = 800;
const US: u64 = 1000;
const MS: u64 = 1000 * US;
const WARM_UP_NS: u64 = 50 * MS;
const DURATION_NS: u64 = 100 * MS;
const QUICK_DURATION_NS: u64 = 30 * MS;
/// A switch processes packets at line rate: 5 billion per second are 0.2 ns each (the paper, chapter 3). 1 ns is the
/// minimum here.
const SWITCH_PACKET_NS: u64 = 1;
/// In the kernel: the cost of a SUBMIT of one task as measured by `inband bench neighbour`, plus as much for the
/// driver.
const XDP_PACKET_NS: u64 = 300;
const XDP_SCHEDULERS: usize = 4;
const XDP_CORES: usize = 2;
/// A thread of a user-space scheduler that only makes decisions: half the packets' time through two sockets.
const CENTRAL_DECISION_NS: u64 = 5 * US;
const SIMULATED: &str = "simulated";

const POLICIES: [(&str, Policy); 5] = [
    (
        "Falcon, a switch",
        Policy::Falcon {
            schedulers: 1,
            cores: 1,
            packet_ns: SWITCH_PACKET_NS,
        },
    ),
    (
        "Falcon, 4 Linux hosts",
        Policy::Falcon {
            schedulers: XDP_SCHEDULERS,
            cores: XDP_CORES,
            packet_ns: XDP_PACKET_NS,
        },
    ),
    ("Sparrow", Policy::Sparrow),
    (
        "central, in software",
        Policy::Central {
            decision_ns: CENTRAL_DECISION_NS,
        },
    ),
    (RANDOM, Policy::Random),
];
const RANDOM: &str = "random";

fn options(run: &Run<'_>, policy: Policy, utilisation_permille: u64) -> Options {
    let quick = run.args.quick;
    Options {
        nodes: if quick { QUICK_NODES } else { NODES },
        executors: EXECUTORS,
        delays: Delays::default(),
        policy,
        utilisation_permille,
        seed: run.args.seed,
        warm_up_ns: WARM_UP_NS,
        duration_ns: if quick {
            QUICK_DURATION_NS
        } else {
            DURATION_NS
        },
    }
}

fn conditions(options: &Options, report: &Report) -> String {
    let Delays {
        to_scheduler_ns,
        to_host_ns,
        start_ns,
    } = options.delays;
    let own = match options.policy {
        Policy::Falcon {
            schedulers,
            cores,
            packet_ns,
        } => format!(
            "the real role; {schedulers} schedulers of {cores} cores, {packet_ns} ns a packet"
        ),
        Policy::Sparrow => {
            "2 probes a task, late binding, cancellation; its schedulers take no time".into()
        }
        Policy::Central { decision_ns } => {
            format!("{decision_ns} ns a decision, one after the other")
        }
        Policy::Random => "a queue an executor".into(),
    };
    format!(
        "{} nodes of {} executors, tasks of {} ms, {} tasks/s in jobs of {} to {} by chance (Poisson) of {USERS} users; {own}; one way: \
         {to_scheduler_ns} ns host to scheduler, {to_host_ns} ns host to host, {start_ns} ns to start; {} tasks counted in {} \
         simulated ms, {} decisions/s; seed {}",
        options.nodes,
        options.executors,
        RUN_NS / MS,
        number(options.tasks_per_s()),
        JOB_TASKS.0,
        JOB_TASKS.1,
        report.delays_ns.len(),
        options.duration_ns / MS,
        number(report.begun_counted as f64 * 1e9 / options.duration_ns as f64),
        options.seed
    )
}

/// Simulates, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let lines = || POLICIES.map(|(name, _)| (name, Vec::new()));
    let (mut medians, mut slowest) = (lines(), lines());
    let points: &[u64] = match run.args.quick {
        true => &[QUICK_UTILISATION_PERMILLE],
        false => &UTILISATIONS_PERMILLE,
    };
    for permille in points.iter().copied() {
        let percent = permille as f64 / 10.0;
        let mut reports = Vec::new();
        for (name, policy) in POLICIES {
            progress(&format!("{name}, {percent} % utilisation"));
            let options = options(run, policy, permille);
            reports.push((name, options, falcon_scale::run(&options)));
        }
        let random = reports.iter().find(|(name, ..)| *name == RANDOM);
        let random = random.map(|(_, _, report)| report.clone());
        for (at, (name, options, report)) in reports.iter().enumerate() {
            let variant = format!("{percent} %, {name}");
            if report.is_saturated {
                output.note(&format!(
                    "{variant}: saturated at {} decisions/s; delay grows without end",
                    number(report.begun_counted as f64 * 1e9 / options.duration_ns as f64)
                ));
                continue;
            }
            for (metric, of, line) in [
                ("scale_delay_p50_us", 500, &mut medians[at].1),
                ("scale_delay_p99_us", 990, &mut slowest[at].1),
            ] {
                let us = |report: &Report| report.delay_ns(of) as f64 / US as f64;
                let beside = random.as_ref().filter(|_| *name != RANDOM);
                let beside = beside.map(|random| Baseline {
                    name: RANDOM.into(),
                    value: us(random),
                });
                let conditions = conditions(options, report);
                let figure = (us(report), "us");
                let row = row(metric, SIMULATED, variant.clone(), figure, conditions);
                output.row(&row.beside(beside))?;
                line.push([percent, us(report)]);
            }
        }
    }
    for (what, lines) in [("median", medians), ("p99", slowest)] {
        // Random would compress the other lines.
        let shown = lines.into_iter().filter(|(name, _)| *name != RANDOM);
        let series = shown.map(|(name, points)| Series {
            name: name.into(),
            points,
            is_quoted: false,
        });
        output.chart(Chart::Lines {
            title: format!("{what} scheduling delay (random: see the rows)"),
            x: "utilisation, %".into(),
            y: "us".into(),
            series: series.collect(),
            events: Vec::new(),
        });
    }
    Ok(())
}
