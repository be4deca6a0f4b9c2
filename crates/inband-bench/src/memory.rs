//! `inband bench memory FIGURE`: replicated memory by page faults and by lines (docs/memory.md): the dissertation's
//! section 7.3 and more, compared with local memory and with an unreplicated memory.

mod failures;
mod latency;
pub mod pages;
pub mod programs;
mod swap;
mod testbed;
mod throughput;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Result};
use clap::{Args, ValueEnum};
use inband_host::program;
use inband_paxos::config::Dataplane;

use super::cluster;
use super::figures::run_each;
use super::row::{machine, number, Output, Row};

/// Options of `inband bench memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// The figure to measure.
    #[arg(value_enum, default_value = "latency")]
    figure: Figure,
    /// Rounds of each measurement: slices of `latency`, failures of `failures`.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// `latency`: accesses to different pages, for each kind of access.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=pages::ACCESSES_MAX as i64))]
    accesses: u32,
    /// Where the roles of switches and servers run: udp (processes on loopback), xdp, xdp-generic (root; network
    /// namespaces).
    #[arg(long, value_delimiter = ',', default_values_t = [Dataplane::Udp, Dataplane::Xdp])]
    dataplane: Vec<Dataplane>,
    /// Authenticate packets with tags, as `inband up memory` does. Without this option only the protocol is measured.
    #[arg(long)]
    secure: bool,
    /// Fewer accesses, points and rounds, as a smoke test.
    #[arg(long)]
    quick: bool,
    /// The library that `inband memory run` preloads, if it is not in the directory of `inband-memory`.
    #[arg(long, value_name = "FILE", hide = true)]
    library: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Latency distribution of pages by page fault and of lines: local memory, one server, three servers (7.2).
    Latency,
    /// Lines and pages per second over the number of requests in flight and of clients; the cost of a line in the
    /// kernel.
    Throughput,
    /// A server killed, the switch killed: the longest stall of a client.
    Failures,
    /// sqlite3, redis-benchmark, sort, Python and a hash join with 75, 50, 25 % of their heap in local memory, compared
    /// with swap; pages compared with Redis's values.
    Programs,
    /// All of them.
    All,
}

const FIGURES: [Figure; 4] = [
    Figure::Latency,
    Figure::Throughput,
    Figure::Failures,
    Figure::Programs,
];

const BENCH: &str = "memory";
/// Accesses in a quick run.
const QUICK_ACCESSES: u32 = 400;
const DIFFERENCE: &str = "Conditions differ: the paper's machines: a Tofino switch, three FPGAs as servers, a client in the \
     kernel, 10 Gb/s links; here one machine is all of that, joined by loopback (udp) or veth (xdp)";

/// The settings for a figure.
struct Run<'a> {
    args: &'a MemoryArgs,
    rounds: usize,
    accesses: u32,
    machine: String,
}

impl<'a> Run<'a> {
    fn new(args: &'a MemoryArgs) -> Run<'a> {
        Run {
            args,
            rounds: if args.quick { 1 } else { args.rounds },
            accesses: match args.quick {
                true => QUICK_ACCESSES,
                false => args.accesses,
            },
            machine: machine(),
        }
    }

    /// Returns the data planes to measure. Prints the reason for those that do not work here.
    fn dataplanes(&self, output: &Output) -> Vec<Dataplane> {
        cluster::usable(&self.args.dataplane, &mut |what| output.skipped(&what))
    }

    /// `inband memory run` with these options; the caller adds the program.
    fn memory_run(&self, options: &[&OsStr]) -> Result<Command> {
        let mut command = Command::new(program::find("inband-memory")?);
        command.arg("run").args(options);
        if let Some(library) = &self.args.library {
            command.arg("--library").arg(library);
        }
        command.arg("--");
        Ok(command)
    }

    /// Returns the end of every row's conditions.
    fn conditions(&self) -> String {
        let tags = match self.args.secure {
            true => "with tags",
            false => "without tags",
        };
        format!(
            "packets {tags}; all in main memory, nothing on disk; {}",
            self.machine
        )
    }
}

fn row(
    metric: &'static str,
    backend: &str,
    variant: impl Into<String>,
    figure: (f64, &'static str),
    conditions: impl Into<String>,
) -> Row {
    Row::new((BENCH, metric), backend, variant, figure, conditions)
}

/// Prints whether a goal of the project is met.
fn goal(output: &Output, what: &str, value: f64, unit: &str, is_met: bool, bound: &str) {
    let verdict = if is_met { "met" } else { "MISSED" };
    output.note(&format!(
        "goal {verdict}: {what}: {} {unit}, {bound}",
        number(value)
    ));
}

fn goal_at_most(output: &Output, what: &str, value: f64, limit: f64, unit: &str) {
    let bound = format!("at most {}", number(limit));
    goal(output, what, value, unit, value <= limit, &bound);
}

fn goal_at_least(output: &Output, what: &str, value: f64, limit: f64, unit: &str) {
    let bound = format!("at least {}", number(limit));
    goal(output, what, value, unit, value >= limit, &bound);
}

/// Measures and writes one figure or all. If one fails, the others are still measured.
pub fn run(args: &MemoryArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(
        !args.dataplane.contains(&Dataplane::Auto),
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
        |figure, output| {
            output.note(DIFFERENCE);
            measure(*figure, &Run::new(args), output)
        },
    )
}

fn measure(figure: Figure, run: &Run<'_>, output: &mut Output) -> Result<()> {
    match figure {
        Figure::Latency => latency::measure(run, output),
        Figure::Throughput => throughput::measure(run, output),
        Figure::Failures => failures::measure(run, output),
        Figure::Programs => programs::measure(run, output),
        Figure::All => Ok(()),
    }
}
