//! Ray and Dask on the same machine under the same load, and Inband at the rates that they sustain. One client submits
//! 200 jobs per second, with as many tasks as the rate requires.

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::python::{self, Environment};
use super::testbed::{self, quantile_us, Load};
use super::{row, Arrivals, Run, BENCH, EXECUTORS, JOBS_PER_S, SLEEP};
use crate::plot::{Chart, Series};
use crate::row::{number, progress, Baseline, Output};

/// Tasks per second, tried in ascending order until one is not sustained.
const RATES_PER_S: [f64; 11] = [
    125.0, 250.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 5700.0,
];
/// Rates of a quick run.
const QUICK_RATES_PER_S: [f64; 1] = [200.0];
const RUST: &str = "Inband, Rust";
const DIFFERENCE: &str = "a rate is held if 97 % of the tasks submitted in the time counted begin in it; Ray has a process for each \
     of 60 CPUs that it is told of, Dask two processes of 30 threads, Inband's Executor an interpreter an executor, Inband in Rust \
     threads; all on one machine over loopback";

/// A line printed by `peer.py`.
#[derive(Debug, Clone, Deserialize)]
struct Measured {
    rate_per_s: f64,
    begun: u64,
    is_held: bool,
    p50_us: f64,
    p95_us: f64,
    late_p50_us: f64,
}

/// The systems measured through Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Ray,
    Dask,
    Inband,
}

impl Peer {
    const ALL: [Peer; 3] = [Peer::Ray, Peer::Dask, Peer::Inband];

    /// Returns the argument for `peer.py`.
    fn argument(self) -> &'static str {
        match self {
            Peer::Ray => "ray",
            Peer::Dask => "dask",
            Peer::Inband => "inband",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Peer::Ray => "Ray",
            Peer::Dask => "Dask",
            Peer::Inband => "Inband, Python",
        }
    }
}

/// The points of one system.
struct Curve {
    name: &'static str,
    points: Vec<Measured>,
}

impl Curve {
    fn highest_held(&self) -> Option<&Measured> {
        self.points.iter().rev().find(|point| point.is_held)
    }

    fn at(&self, rate_per_s: f64) -> Option<&Measured> {
        self.points
            .iter()
            .find(|point| point.rate_per_s == rate_per_s)
    }
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    output.note(DIFFERENCE);
    let rates: &[f64] = match run.args.quick {
        true => &QUICK_RATES_PER_S,
        false => &RATES_PER_S,
    };
    let mut curves = vec![rust_curve(run, rates)?];
    match Environment::of(run.args.python.as_deref()) {
        Err(error) => output.skipped(&format!("Ray, Dask and Inband's Executor: {error:#}")),
        Ok(environment) => {
            for peer in Peer::ALL {
                progress(&format!(
                    "{} at up to {} tasks/s",
                    peer.name(),
                    RATES_PER_S[10]
                ));
                match peer_curve(run, &environment, peer, rates) {
                    Ok(curve) => curves.push(curve),
                    Err(error) => output.skipped(&format!("{}: {error:#}", peer.name())),
                }
            }
        }
    }
    print(run, &curves, output)?;
    plot(curves, output);
    Ok(())
}

fn load(run: &Run<'_>, rate_per_s: f64) -> Load {
    Load {
        clients: 1,
        tasks_per_job: rate_per_s / JOBS_PER_S,
        ..run.load(0.0, Arrivals::Periodic)
    }
}

fn rust_curve(run: &Run<'_>, rates: &[f64]) -> Result<Curve> {
    let mut points = Vec::new();
    for rate_per_s in rates {
        progress(&format!("{RUST} at {rate_per_s} tasks/s"));
        let load = load(run, *rate_per_s);
        let measured = testbed::measure(&load)?;
        let point = Measured {
            rate_per_s: *rate_per_s,
            begun: measured.begun_counted,
            is_held: testbed::is_held(&load, &measured),
            p50_us: quantile_us(&measured.delays, 0.5),
            p95_us: quantile_us(&measured.delays, 0.95),
            late_p50_us: quantile_us(&measured.late, 0.5),
        };
        let is_held = point.is_held;
        points.push(point);
        if !is_held {
            break;
        }
    }
    Ok(Curve { name: RUST, points })
}

fn peer_curve(
    run: &Run<'_>,
    environment: &Environment,
    peer: Peer,
    rates: &[f64],
) -> Result<Curve> {
    if peer == Peer::Inband {
        environment.install_inband()?;
    }
    let load = load(run, 0.0);
    let rates: Vec<String> = rates.iter().map(f64::to_string).collect();
    let arguments = [
        peer.argument().to_owned(),
        format!("--executors={EXECUTORS}"),
        format!("--sleep-ms={}", SLEEP.as_millis()),
        format!("--jobs-per-s={JOBS_PER_S}"),
        format!("--rates={}", rates.join(",")),
        format!("--seconds={}", load.duration.as_secs_f64()),
        format!("--warm-up-s={}", load.warm_up.as_secs_f64()),
    ];
    let lines = environment.run(python::PEER, &arguments)?;
    let points = lines.iter().map(|line| serde_json::from_str(line));
    let points: Vec<Measured> = points.collect::<Result<_, _>>().context("what it says")?;
    ensure!(!points.is_empty(), "it said nothing");
    let name = peer.name();
    Ok(Curve { name, points })
}

fn print(run: &Run<'_>, curves: &[Curve], output: &mut Output) -> Result<()> {
    let load = load(run, 0.0);
    let conditions = |point: &Measured| {
        format!(
            "{EXECUTORS} executors, tasks that sleep {} ms, one client, {JOBS_PER_S} jobs/s, {} tasks/s for {} ms, of which {} began; \
             jobs were submitted {} us too late; packets without tags; {}",
            SLEEP.as_millis(),
            number(point.rate_per_s),
            load.duration.as_millis(),
            point.begun,
            number(point.late_p50_us),
            run.machine
        )
    };
    for curve in curves {
        let backend = curve.name;
        let Some(highest) = curve.highest_held() else {
            output.note(&format!(
                "{backend} does not hold even {} tasks/s here",
                number(curve.points[0].rate_per_s)
            ));
            continue;
        };
        let held = (highest.rate_per_s, "tasks/s");
        let said = conditions(highest);
        output.row(&row("held_tasks_per_s", backend, String::new(), held, said))?;
        // The other systems at that rate; this one comes first.
        let there = |other: &&Curve| other.at(highest.rate_per_s).is_some_and(|p| p.is_held);
        for other in curves.iter().filter(there) {
            let Some(point) = other.at(highest.rate_per_s) else {
                continue;
            };
            let variant = format!("at {backend}'s highest");
            for (metric, us, beside_us) in [
                ("delay_p50_us", point.p50_us, highest.p50_us),
                ("delay_p95_us", point.p95_us, highest.p95_us),
            ] {
                let baseline = (other.name != backend).then(|| Baseline {
                    name: backend.into(),
                    value: beside_us,
                });
                let row = row(
                    metric,
                    other.name,
                    variant.clone(),
                    (us, "us"),
                    conditions(point),
                );
                output.row(&row.beside(baseline))?;
            }
        }
    }
    Ok(())
}

fn plot(curves: Vec<Curve>, output: &mut Output) {
    for (what, pick) in [
        ("median", (|p: &Measured| p.p50_us) as fn(&Measured) -> f64),
        ("p95", |p: &Measured| p.p95_us),
    ] {
        let series = curves.iter().map(|curve| Series {
            name: curve.name.into(),
            points: curve
                .points
                .iter()
                .filter(|p| p.is_held)
                .map(|p| [p.rate_per_s, pick(p)])
                .collect(),
            is_quoted: false,
        });
        output.chart(Chart::Lines {
            title: format!("{BENCH}: {what} scheduling delay, at rates that are held"),
            x: "tasks/s".into(),
            y: "us".into(),
            series: series.collect(),
            events: Vec::new(),
        });
    }
}
