//! `inband bench paper FIGURE`: the experiments of *Partitioned Paxos via the Network Data Plane* and *Network
//! Hardware-Accelerated Consensus* (CAANS), each with the paper's own figures.
//!
//! One file per figure. The papers' numbers are taken from their text; values that only a curve shows are not quoted.

mod beside;
mod bypass;
mod distribution;
mod failures;
mod partitions;
mod roles;
mod throughput;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use inband_paxos::config::Dataplane;

use super::cluster;
use super::figures::run_each;
use super::libpaxos::Peer;
use super::node::Load;
use super::plot::{Chart, Series};
use super::row::{machine, median, progress, Output, Row};
use super::testbed::{Job, Outcome, Testbed, TestbedSpec};
use inband_cluster::scratch::ScratchDir;

/// Options of `inband bench paper`.
#[derive(Debug, Args)]
pub struct PaperArgs {
    /// The figure to measure.
    #[arg(value_enum)]
    figure: Figure,
    /// Time counted in each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of each measurement; the median is reported. The papers have three.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Fewer points and one round of half a second, as a smoke test.
    #[arg(long)]
    quick: bool,
    /// A directory on a disk, for the measurements that do not use tmpfs.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    disk: PathBuf,
    /// Another system to measure in the same run: libpaxos=DIR.
    #[arg(long, value_name = "NAME=DIR")]
    peer: Option<Peer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Throughput against 99th percentile latency, no-op and RocksDB, 1 to 12 clients (8a, 8c).
    Throughput,
    /// Latency distribution and inter-quartile range at 25, 50, 75% load, 1 to 4 partitions (8b, 8d).
    Distribution,
    /// Throughput of 1, 2, 4, 8 partitions on disk and on tmpfs (9).
    Partitions,
    /// Kernel bypass against sockets (10).
    Bypass,
    /// CPU use per role at peak, and over the number of learners (1; CAANS section 2.2, 6.3).
    Roles,
    /// Failure of an acceptor and of the leader, over time in buckets of 50 ms (11).
    Failures,
    /// Ordinary traffic alongside full consensus load (section 5.2).
    Beside,
    /// All of them.
    All,
}

const FIGURES: [Figure; 7] = [
    Figure::Throughput,
    Figure::Distribution,
    Figure::Partitions,
    Figure::Bypass,
    Figure::Roles,
    Figure::Failures,
    Figure::Beside,
];

const BENCH: &str = "paper";
const TMPFS: &str = "/dev/shm";
/// Counted time in a quick run.
const QUICK: Duration = Duration::from_millis(500);
const DIFFERENCE: &str = "Conditions differ: the paper's machines: two Tofino switches, a client and three replicas of \
     12 cores at 1.6 GHz each, 10 Gb/s links, DPDK; here one machine is switches, client and replicas, \
     joined by veth, so a packet's whole way is in its sender's CPU time";

/// Values in flight per client. The paper says that its clients have one; but 447,000 per second at 147 us means 66 in
/// flight (Little's law), which 12 clients reach with 6 each.
const OUTSTANDING_EACH: [usize; 2] = [1, 6];
/// A window that saturates a proposer: 12 clients with 6 values each.
const PEAK_WINDOW: usize = 72;

/// What executes the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum App {
    /// Nothing.
    NoOp,
    /// One put per value, with the write-ahead log on.
    RocksDb,
}

impl App {
    const ALL: [App; 2] = [App::NoOp, App::RocksDb];

    fn name(self) -> &'static str {
        match self {
            App::NoOp => "no-op",
            App::RocksDb => "RocksDB",
        }
    }
}

struct Run {
    duration: Duration,
    rounds: usize,
    quick: bool,
    disk: PathBuf,
    peer: Option<Peer>,
    machine: String,
    /// Submissions that failed, summed over all jobs.
    failed: Rc<Cell<u64>>,
}

impl Run {
    /// Returns all points, or the first and the last in a quick run.
    fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match (self.quick, all) {
            (true, [first, .., last]) => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    fn conditions(&self, what: &str) -> String {
        format!(
            "{what}, 64 B values, 3 acceptors, durability memory, veth, median of {} x {} ms; {}",
            self.rounds,
            self.duration.as_millis(),
            self.machine
        )
    }

    fn row(
        &self,
        metric: &'static str,
        backend: impl ToString,
        variant: impl Into<String>,
        figure: (f64, &'static str),
        what: &str,
    ) -> Row {
        let backend = backend.to_string();
        Row::new(
            (BENCH, metric),
            backend,
            variant,
            figure,
            self.conditions(what),
        )
    }

    /// Runs a job for every round. Returns the median of each figure.
    fn medians<const N: usize>(
        &self,
        testbed: &mut Testbed,
        job: &AppJob,
        picks: [fn(&Outcome) -> f64; N],
    ) -> Result<[f64; N]> {
        let mut values = [const { Vec::new() }; N];
        for _ in 0..self.rounds {
            let outcome = job.run(testbed)?;
            for (values, pick) in values.iter_mut().zip(picks) {
                values.push(pick(&outcome));
            }
        }
        Ok(values.map(|mut values| median(&mut values)))
    }

    fn job(&self, dataplane: Dataplane, app: App, load: Load) -> AppJob {
        AppJob {
            job: Job::new(dataplane, load, self.duration),
            app,
            store_parent: self.disk.clone(),
            failed: self.failed.clone(),
        }
    }
}

/// A job whose stores are in a directory that is removed afterwards.
#[derive(Debug, Clone)]
struct AppJob {
    job: Job,
    app: App,
    store_parent: PathBuf,
    failed: Rc<Cell<u64>>,
}

impl AppJob {
    fn run(&self, testbed: &mut Testbed) -> Result<Outcome> {
        let outcome = self.run_in(testbed)?;
        self.failed.set(self.failed.get() + outcome.failed());
        Ok(outcome)
    }

    fn run_in(&self, testbed: &mut Testbed) -> Result<Outcome> {
        if self.app == App::NoOp {
            return testbed.run(&self.job);
        }
        let dir = ScratchDir::create(&self.store_parent, "stores")?;
        let rocksdb = Some(dir.path().to_owned());
        testbed.run(&Job {
            rocksdb,
            ..self.job.clone()
        })
    }
}

fn p50_us(outcome: &Outcome) -> f64 {
    outcome.reports[0].latency.p50_us
}

fn p99_us(outcome: &Outcome) -> f64 {
    outcome.reports[0].latency.p99_us
}

/// Measures and writes one figure or all. If one fails, the others are still measured.
pub fn run(args: PaperArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    let duration = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    ensure!(
        duration >= QUICK,
        "--seconds {}: at least 0.5",
        args.seconds
    );
    if let Some(peer) = &args.peer {
        peer.check()?;
    }
    let figures: &[Figure] = match args.figure {
        Figure::All => &FIGURES,
        ref one => std::slice::from_ref(one),
    };
    run_each(
        figures,
        |_, name| format!("paper {name}"),
        output_of,
        |figure, output| {
            let run = Run {
                duration: if args.quick { QUICK } else { duration },
                rounds: if args.quick { 1 } else { args.rounds },
                quick: args.quick,
                disk: args.disk.clone(),
                peer: args.peer.clone(),
                machine: machine(),
                failed: Rc::default(),
            };
            output.note(DIFFERENCE);
            measure(*figure, &run, output)
        },
    )
}

fn measure(figure: Figure, run: &Run, output: &mut Output) -> Result<()> {
    let measured = match figure {
        Figure::Throughput => throughput::measure(run, output),
        Figure::Distribution => distribution::measure(run, output),
        Figure::Partitions => partitions::measure(run, output),
        Figure::Bypass => bypass::measure(run, output),
        Figure::Roles => roles::measure(run, output),
        Figure::Failures => failures::measure(run, output),
        Figure::Beside => beside::measure(run, output),
        Figure::All => Ok(()),
    };
    progress("");
    if run.failed.get() > 0 {
        output.note(&format!(
            "{} submissions failed: the cluster did not keep up; they are in no latency",
            run.failed.get()
        ));
    }
    measured
}

fn line(name: impl Into<String>, points: Vec<[f64; 2]>) -> Series {
    Series {
        name: name.into(),
        points,
        is_quoted: false,
    }
}

/// Points from a paper's text.
fn quoted(name: &str, points: &[[f64; 2]]) -> Series {
    Series {
        name: format!("paper: {name}"),
        points: points.to_vec(),
        is_quoted: true,
    }
}

fn lines(title: &str, x: &str, y: &str, series: Vec<Series>) -> Chart {
    Chart::Lines {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        series,
        events: Vec::new(),
    }
}

/// Returns the usual tmpfs mount, if this machine has it.
fn tmpfs() -> Option<&'static Path> {
    Some(Path::new(TMPFS)).filter(|dir| dir.is_dir())
}

/// Returns the fast backend, if it works here.
fn backends(output: &Output) -> Vec<Dataplane> {
    cluster::usable(&[Dataplane::Xdp, Dataplane::Udp], &mut |what| {
        output.skipped(&what);
    })
}

/// Returns a lab with this many learners.
fn testbed(learners: usize) -> Result<Testbed> {
    Testbed::create(TestbedSpec {
        learners,
        ..TestbedSpec::default()
    })
}
