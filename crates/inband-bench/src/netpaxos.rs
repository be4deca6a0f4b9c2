//! `inband bench netpaxos FIGURE`: NetPaxos (docs/netpaxos.md).

mod failures;
mod ordering;
mod performance;
mod reordering;
mod testbed;

use anyhow::{ensure, Result};
use clap::{Args, ValueEnum};
use inband_host::config::Dataplane;

use super::figures::run_each;
use super::libpaxos;
use super::row::Output;

const BENCH: &str = "netpaxos";
const QUICK_KILLS: usize = 2;

/// Options of `inband bench netpaxos`.
#[derive(Debug, Args)]
pub struct NetPaxosArgs {
    /// The figure to measure.
    #[arg(value_enum, default_value = "ordering")]
    figure: Figure,
    /// `ordering`: messages per point.
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1000..=20_000_000))]
    messages: u32,
    /// `ordering`: target rates in messages per second, one point each.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10000,20000,40000,57457,65328"
    )]
    rates: Vec<u32>,
    /// `ordering`: queues of every link, as many as CPUs that send; one point of each rate with 1, and one with this
    /// many.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// `ordering`: jitter of the faulty switch's links, in microseconds.
    #[arg(long, value_delimiter = ',', default_value = "20,100")]
    jitter_us: Vec<u32>,
    /// `ordering`: target rate of the points with jitter; the faulty switch is in user space and loses frames above it.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    jitter_rate: u32,
    /// `failures`: number of serializers to kill, and of minions.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// `performance`: requests in flight, one point each.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256")]
    outstanding: Vec<usize>,
    /// `performance`: rounds; the median is reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// `performance`: counted time of each point in each round, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// `performance`: another system to measure in the same run, on loopback: libpaxos=DIR, where DIR is its build
    /// directory.
    #[arg(long, value_name = "NAME=DIR")]
    peer: Option<libpaxos::Peer>,
    /// `failures`, `performance`: where serializers and minions run: udp (in processes, on loopback), xdp, xdp-generic,
    /// or auto; with auto, `performance` measures xdp and udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Shorter, as a smoke test.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// How often two learners disagree or cannot decide, by order and equality alone, over the rate.
    Ordering,
    /// Serializers and minions killed: how long nothing is delivered, and how many requests fail.
    Failures,
    /// Throughput and latency compared with our Paxos and libpaxos, and the cost of reordering.
    Performance,
}

/// Measures and writes a figure.
pub fn run(args: &NetPaxosArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    ensure!(
        args.rates
            .iter()
            .all(|rate| (1000..=10_000_000).contains(rate)),
        "--rates: 1000 to 10000000 messages a second"
    );
    ensure!(args.kills >= 1, "--kills {}: at least 1", args.kills);
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(
        args.outstanding.iter().all(|n| (1..=1000).contains(n)),
        "--outstanding: 1 to 1000"
    );
    let name = |_: &Figure, name: &str| format!("{BENCH}-{name}");
    run_each(
        &[args.figure],
        name,
        output_of,
        |figure, output| match figure {
            Figure::Ordering => ordering::measure(args, output),
            Figure::Failures => failures::measure(args, output),
            Figure::Performance => performance::measure(args, output),
        },
    )
}
