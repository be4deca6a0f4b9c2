//! `inband bench box FIGURE`: consensus in a box (docs/box.md), compared with ZooKeeper, etcd, an unreplicated memcached,
//! and libpaxos.

mod failures;
mod gets;
mod kernel;
mod memcached;
mod network;
mod rates;
mod round;
mod sets;
mod testbed;
mod udp;
mod zookeeper;

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use inband_host::config::Dataplane;

use super::figures::run_each;
use super::libpaxos;
use super::row::{machine, number, Output, Row};

/// Options of `inband bench box`.
#[derive(Debug, Args)]
pub struct BoxArgs {
    /// The figure to measure.
    #[arg(value_enum, default_value = "throughput")]
    figure: Figure,
    /// Rounds of `throughput`, `latency`, `gets` and `sets`; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// `election`: leaders to kill.
    #[arg(long, default_value_t = 100)]
    kills: usize,
    /// `joiner`: bytes of items that the node must receive.
    #[arg(long, default_value_t = 256 << 20)]
    items_bytes: u64,
    /// Requests in flight, each on its own connection, the same for all systems.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Authenticate packets between nodes with tags, as `inband up box` does. Without this option only the protocol is
    /// measured.
    #[arg(long)]
    secure: bool,
    /// Where our nodes' roles run: udp (in their processes, on loopback), or in the kernel: xdp, xdp-generic, or auto.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// `throughput` and `latency`: also measure three nodes with a dedicated link between each two of them.
    #[arg(long)]
    direct: bool,
    /// Do not measure ZooKeeper, etcd or memcached.
    #[arg(long)]
    alone: bool,
    /// `throughput` and `latency`: another system to measure in the same run: libpaxos=DIR, where DIR is its build
    /// directory.
    #[arg(long, value_name = "NAME=DIR")]
    peer: Option<libpaxos::Peer>,
    /// Fewer sizes, rounds, kills and bytes, as a smoke test.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// SETs, GETs and mixes per second, by value size, number of nodes and quorum.
    Throughput,
    /// The same with one request in flight: median and 99th percentile.
    Latency,
    /// From the leader's proposal to a majority's acknowledgement, in the kernel, over a network of namespaces.
    Round,
    /// The cost of a round's packets in the kernel, at the leader and at a follower.
    Kernel,
    /// GETs over UDP that the packet program answers, compared with memcached over UDP on the same network.
    Gets,
    /// SETs over UDP that the leader's packet program proposes, compared with those that its process proposes, and with
    /// memcached over UDP on the same network.
    Sets,
    /// Leaders killed: how long no write is acknowledged.
    Election,
    /// A node killed and restarted empty: how long it takes to catch up, and how the others perform meanwhile.
    Joiner,
    /// All of them.
    All,
}

const FIGURES: [Figure; 8] = [
    Figure::Throughput,
    Figure::Latency,
    Figure::Round,
    Figure::Kernel,
    Figure::Gets,
    Figure::Sets,
    Figure::Election,
    Figure::Joiner,
];

const BENCH: &str = "box";
const QUICK_KILLS: usize = 10;
const QUICK_ITEMS_BYTES: u64 = 16 << 20;
/// How long to measure the load of other processes.
const LOOK_FOR: Duration = Duration::from_millis(500);
/// If other processes use more of the machine than this, no verdict is given.
const OTHERS_MAX: f64 = 0.1;
/// The first fields of /proc/stat's first line; later ones are included in these.
const TICKS_FIELDS: usize = 8;
const DIFFERENCE: &str = "Conditions differ: the paper's nodes are FPGAs with links of 10 Gb/s, and clients on machines of their \
     own; here nodes, peers and the load share one machine, joined by loopback";

/// The settings for a figure.
struct Run<'a> {
    args: &'a BoxArgs,
    machine: String,
    /// The largest share of the machine's time that other processes used while none of ours ran.
    others: Cell<f64>,
    /// Where our nodes' roles ran.
    place: RefCell<String>,
}

impl Run<'_> {
    fn quick<T>(&self, quick: T, whole: T) -> T {
        match self.args.quick {
            true => quick,
            false => whole,
        }
    }

    /// Measures the share of the machine that other processes use. None of ours may be running.
    fn look_for_others(&self) -> Result<()> {
        let before = busy_and_all()?;
        thread::sleep(LOOK_FOR);
        let after = busy_and_all()?;
        let share = (after.0 - before.0) / (after.1 - before.1).max(1.0);
        self.others.set(self.others.get().max(share));
        Ok(())
    }

    fn note_place(&self, place: &str) {
        place.clone_into(&mut self.place.borrow_mut());
    }

    /// Returns the end of every row's conditions.
    fn conditions(&self) -> String {
        let tags = match self.args.secure {
            true => "with tags",
            false => "without tags",
        };
        format!(
            "our roles {}, packets between our nodes {tags}; all in main memory, without sync; {}, others used {:.0} % of it",
            self.place.borrow(),
            self.machine,
            self.others.get() * 100.0
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

/// Ticks of all processors since boot: busy, and total.
fn busy_and_all() -> Result<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    let ticks = line.split_whitespace().skip(1);
    let ticks: Vec<f64> = ticks.filter_map(|field| field.parse().ok()).collect();
    let idle = |at: usize| ticks.get(at).copied().unwrap_or(0.0);
    let all = ticks.iter().take(TICKS_FIELDS).sum();
    // idle and iowait
    Ok((all - idle(3) - idle(4), all))
}

/// Prints whether a goal of the project is met; nothing if other processes were using the machine.
fn goal(
    (run, output): (&Run<'_>, &Output),
    what: &str,
    (value, unit): (f64, &str),
    is_met: bool,
    bound: &str,
) {
    let others = run.others.get();
    let verdict = match is_met {
        _ if others > OTHERS_MAX => format!(
            "not judged (others used {:.0} % of the machine; run it on a quiet one)",
            others * 100.0
        ),
        true => "met".to_owned(),
        false => "MISSED".to_owned(),
    };
    output.note(&format!(
        "goal {verdict}: {what}: {} {unit}, {bound}",
        number(value)
    ));
}

fn goal_at_least(to: (&Run<'_>, &Output), what: &str, value: f64, limit: f64, unit: &str) {
    let bound = format!("at least {}", number(limit));
    goal(to, what, (value, unit), value >= limit, &bound);
}

fn goal_at_most(to: (&Run<'_>, &Output), what: &str, value: f64, limit: f64, unit: &str) {
    let bound = format!("at most {}", number(limit));
    goal(to, what, (value, unit), value <= limit, &bound);
}

/// Measures and writes one figure or all. If one fails, the others are still measured.
pub fn run(args: &BoxArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    for (option, value) in [
        ("--rounds", args.rounds),
        ("--kills", args.kills),
        ("--clients", args.clients),
    ] {
        ensure!(value >= 1, "{option} {value}: at least 1");
    }
    if let Some(peer) = &args.peer {
        peer.check()?;
    }
    let figures: &[Figure] = match args.figure {
        Figure::All => &FIGURES,
        ref one => std::slice::from_ref(one),
    };
    let run = Run {
        args,
        machine: machine(),
        others: Cell::new(0.0),
        place: RefCell::default(),
    };
    run_each(
        figures,
        |_, name| format!("{BENCH} {name}"),
        output_of,
        |figure, output| {
            output.note(DIFFERENCE);
            run.look_for_others()?;
            match figure {
                Figure::Throughput => rates::throughput(&run, output),
                Figure::Latency => rates::latency(&run, output),
                Figure::Round => round::measure(&run, output),
                Figure::Kernel => kernel::measure(&run, output),
                Figure::Gets => gets::measure(&run, output),
                Figure::Sets => sets::measure(&run, output),
                Figure::Election => failures::election(&run, output),
                Figure::Joiner => failures::joiner(&run, output),
                Figure::All => Ok(()),
            }
        },
    )
}
