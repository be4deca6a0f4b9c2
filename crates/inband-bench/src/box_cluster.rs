//! `inband bench box FIGURE`: consensus in a box (docs/box.md), beside ZooKeeper, etcd and a memcached that is not replicated.

mod failures;
mod kernel;
mod memcached;
mod rates;
mod testbed;
mod zookeeper;

use anyhow::{ensure, Result};
use clap::{Args, ValueEnum};

use super::figures::run_each;
use super::row::{machine, number, Output, Row};

/// Options of `inband bench box`.
#[derive(Debug, Args)]
pub struct BoxArgs {
    /// Which figure.
    #[arg(value_enum, default_value = "throughput")]
    figure: Figure,
    /// Rounds of `throughput` and `latency`; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// `election`: leaders that are killed.
    #[arg(long, default_value_t = 100)]
    kills: usize,
    /// `joiner`: bytes of items that it gets.
    #[arg(long, default_value_t = 256 << 20)]
    items_bytes: u64,
    /// Requests outstanding, each on a connection of its own, the same for all systems.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Packets between nodes carry tags, as `inband up box` has it. Without this they do not: then what is measured is the protocol.
    #[arg(long)]
    secure: bool,
    /// No ZooKeeper, etcd or memcached beside it.
    #[arg(long)]
    alone: bool,
    /// Fewer sizes, rounds and kills, and fewer bytes: to see that it works.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// SETs, GETs and mixes a second, by the size of values, number of nodes and quorum.
    Throughput,
    /// The same with one request outstanding: median and 99th percentile.
    Latency,
    /// What a round's packets cost in the kernel, at the leader and at a follower.
    Kernel,
    /// Leaders killed: how long no write is acknowledged.
    Election,
    /// A node killed that comes back empty: until it is equal, and what the others do meanwhile.
    Joiner,
    /// All of them.
    All,
}

const FIGURES: [Figure; 5] = [
    Figure::Throughput,
    Figure::Latency,
    Figure::Kernel,
    Figure::Election,
    Figure::Joiner,
];

const BENCH: &str = "box";
const QUICK_KILLS: usize = 10;
const QUICK_ITEMS_BYTES: u64 = 16 << 20;
const DIFFERENCE: &str = "Conditions differ: the paper's nodes are FPGAs with links of 10 Gb/s, and clients on machines of their \
     own; here nodes, peers and the load share one machine, joined by loopback";

/// How a figure is to be measured.
struct Run<'a> {
    args: &'a BoxArgs,
    machine: String,
}

impl Run<'_> {
    fn quick<T>(&self, quick: T, whole: T) -> T {
        match self.args.quick {
            true => quick,
            false => whole,
        }
    }

    /// What all conditions end with.
    fn conditions(&self) -> String {
        let tags = match self.args.secure {
            true => "with tags",
            false => "without tags",
        };
        format!(
            "packets between our nodes {tags}; all in main memory; {}",
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

/// Say whether a goal of the project is met.
fn goal(output: &Output, what: &str, value: f64, unit: &str, is_met: bool, bound: &str) {
    let verdict = if is_met { "met" } else { "MISSED" };
    output.note(&format!(
        "goal {verdict}: {what}: {} {unit}, {bound}",
        number(value)
    ));
}

fn goal_at_least(output: &Output, what: &str, value: f64, limit: f64, unit: &str) {
    let bound = format!("at least {}", number(limit));
    goal(output, what, value, unit, value >= limit, &bound);
}

fn goal_at_most(output: &Output, what: &str, value: f64, limit: f64, unit: &str) {
    let bound = format!("at most {}", number(limit));
    goal(output, what, value, unit, value <= limit, &bound);
}

/// Measure and write one figure or all; the others are still measured when one fails.
pub fn run(args: &BoxArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    for (option, value) in [
        ("--rounds", args.rounds),
        ("--kills", args.kills),
        ("--clients", args.clients),
    ] {
        ensure!(value >= 1, "{option} {value}: at least 1");
    }
    let figures: &[Figure] = match args.figure {
        Figure::All => &FIGURES,
        ref one => std::slice::from_ref(one),
    };
    let run = Run {
        args,
        machine: machine(),
    };
    run_each(
        figures,
        |_, name| format!("{BENCH} {name}"),
        output_of,
        |figure, output| {
            output.note(DIFFERENCE);
            match figure {
                Figure::Throughput => rates::throughput(&run, output),
                Figure::Latency => rates::latency(&run, output),
                Figure::Kernel => kernel::measure(&run, output),
                Figure::Election => failures::election(&run, output),
                Figure::Joiner => failures::joiner(&run, output),
                Figure::All => Ok(()),
            }
        },
    )
}
