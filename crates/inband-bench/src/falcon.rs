//! `inband bench falcon FIGURE`: the experiments of the Falcon paper's section 3.5, other schedulers under the same
//! load, and simulations of clusters that are too large for one machine.

mod arrivals;
mod delay;
pub mod host;
mod ideal;
mod peers;
mod pool;
mod python;
mod scale;
mod scheduler;
mod tasks;
mod testbed;
mod virtual_worker;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Result};
use clap::{Args, ValueEnum};
use inband_paxos::config::Dataplane;

use super::figures::run_each;
use super::row::{machine, Output, Row};
use arrivals::Arrivals;
use testbed::Load;

/// Options of `inband bench falcon`.
#[derive(Debug, Args)]
pub struct FalconArgs {
    /// The figure to measure.
    #[arg(value_enum, default_value = "testbed")]
    figure: Figure,
    /// Rounds of each measurement; the median is reported, with the range.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Time counted in each measurement of a round.
    #[arg(long, default_value_t = 2000)]
    duration_ms: u64,
    /// Interarrival times of jobs; both kinds by default.
    #[arg(long, value_enum)]
    arrivals: Option<Arrivals>,
    /// Worker processes that the executors are divided among.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Tasks in one packet of a client, 1 to 14.
    #[arg(long, default_value_t = 14)]
    tasks_per_submit: usize,
    /// `testbed`: where the scheduler's role runs: udp (all on loopback), or xdp, xdp-generic (root; all on veth).
    #[arg(long, default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// Seed for Poisson arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `peers`, `python`: a Python interpreter with some or all of Ray, Dask and Inband's package. By default an environment is
    /// created in the user's cache directory.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Fewer points and one short round, as a smoke test.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Scheduling delay over utilisation, and its steps (the paper's figures 8 and 9).
    Testbed,
    /// The scheduler alone: the same delay with one worker that polls, whose executors are timers.
    Scheduler,
    /// Ray and Dask compared with Inband: the highest load that each sustains, and the delay at that load.
    Peers,
    /// Empty tasks per second and long arrays through Python's Executor, compared with ProcessPoolExecutor, Dask and Ray.
    Python,
    /// 1,000 nodes of 32 executors, simulated: the real role compared with other schedulers.
    Scale,
    /// All of them.
    All,
}

const FIGURES: [Figure; 5] = [
    Figure::Testbed,
    Figure::Scheduler,
    Figure::Peers,
    Figure::Python,
    Figure::Scale,
];

const BENCH: &str = "falcon";
/// As in the paper.
const EXECUTORS: usize = 60;
const CLIENTS: usize = 2;
const JOBS_PER_S: f64 = 200.0;
const SLEEP: Duration = Duration::from_millis(10);
const WARM_UP: Duration = Duration::from_millis(300);
/// Time counted in a quick run.
const QUICK: Duration = Duration::from_millis(400);
const DIFFERENCE: &str = "Conditions differ: the paper's machines: twelve of 10 cores, 100 Gb/s links, a Tofino switch; \
     here one machine is all of that, joined by loopback";

/// The settings for a figure.
struct Run<'a> {
    args: &'a FalconArgs,
    rounds: usize,
    machine: String,
}

impl<'a> Run<'a> {
    fn new(args: &'a FalconArgs) -> Run<'a> {
        Run {
            args,
            rounds: if args.quick { 1 } else { args.rounds },
            machine: machine(),
        }
    }

    /// Returns all points, or the last one in a quick run.
    fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match (self.args.quick, all) {
            (true, [.., last]) => vec![*last],
            _ => all.to_vec(),
        }
    }

    fn arrivals(&self) -> Vec<Arrivals> {
        match self.args.arrivals {
            Some(one) => vec![one],
            None => vec![Arrivals::Periodic, Arrivals::Poisson],
        }
    }

    /// Returns the paper's load at this utilisation.
    fn load(&self, utilisation_percent: f64, arrivals: Arrivals) -> Load {
        let args = self.args;
        let tasks_per_s = utilisation_percent / 100.0 * EXECUTORS as f64 / SLEEP.as_secs_f64();
        Load {
            executors: EXECUTORS,
            workers: args.workers,
            clients: CLIENTS,
            jobs_per_s: JOBS_PER_S,
            tasks_per_job: tasks_per_s / JOBS_PER_S,
            tasks_per_submit: args.tasks_per_submit,
            sleep: SLEEP,
            arrivals,
            seed: args.seed,
            warm_up: WARM_UP,
            duration: match args.quick {
                true => QUICK,
                false => Duration::from_millis(args.duration_ms),
            },
            steps: false,
            dataplane: args.dataplane,
            timers: false,
        }
    }
}

fn row(
    metric: &'static str,
    backend: &str,
    variant: String,
    figure: (f64, &'static str),
    conditions: String,
) -> Row {
    Row::new((BENCH, metric), backend, variant, figure, conditions)
}

/// Measures and writes one figure or all. If one fails, the others are still measured.
pub fn run(args: &FalconArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(
        (1..=EXECUTORS).contains(&args.workers),
        "--workers {}: 1 to {EXECUTORS}",
        args.workers
    );
    ensure!(
        args.dataplane != Dataplane::Auto,
        "--dataplane auto: choose udp, xdp or xdp-generic, because a figure is for one data plane"
    );
    let figures: &[Figure] = match args.figure {
        Figure::All => &FIGURES,
        ref one => std::slice::from_ref(one),
    };
    run_each(
        figures,
        |_, name| format!("{BENCH} {name}"),
        output_of,
        |figure, output| measure(*figure, &Run::new(args), output),
    )
}

fn measure(figure: Figure, run: &Run<'_>, output: &mut Output) -> Result<()> {
    match figure {
        Figure::Testbed => delay::measure(run, output),
        Figure::Scheduler => scheduler::measure(run, output),
        Figure::Peers => peers::measure(run, output),
        Figure::Python => tasks::measure(run, output),
        Figure::Scale => scale::measure(run, output),
        Figure::All => Ok(()),
    }
}
