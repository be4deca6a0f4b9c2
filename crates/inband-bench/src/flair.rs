//! `inband bench flair FIGURE`: the experiments of the FLAIR paper's section 4.5. Each storage node gets only a limited
//! share of a CPU, so that the nodes are the bottleneck, not the machine.
//!
//! The systems to compare run at the same time and are loaded in turn, in short rounds. So background noise affects all
//! of them equally, and a ratio is computed from figures of the same round.

mod balancing;
mod curves;
mod failover;
mod latency;
pub mod load;
mod quota;
mod replicas;
mod testbed;
mod workloads;

use std::time::Duration;

use anyhow::{ensure, Result};
use clap::{Args, ValueEnum};
use inband_flair::config::Balance;
use inband_flair::reads::Reads;
use inband_paxos::config::Dataplane;

use super::figures::run_each;
use super::row::{machine, median, number, progress, Output, Row};
use load::Workload;
use testbed::{Sample, Testbed, TestbedSpec};

/// Options of `inband bench flair`.
#[derive(Debug, Args)]
pub struct FlairArgs {
    /// The figure to measure.
    #[arg(value_enum, default_value = "workloads")]
    figure: Figure,
    /// Rounds of each measurement; the median is reported, with the range.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Time counted in each measurement of a round.
    #[arg(long, default_value_t = 600)]
    duration_ms: u64,
    /// Storage nodes, unless their number is varied.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Share of one CPU that each storage node may use, in percent.
    #[arg(long, default_value_t = 20)]
    quota_percent: u32,
    /// Clients, each with one request in flight.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Number of keys, of 24 bytes each, all set before measuring.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_len_bytes: usize,
    /// Skew of the keys under a Zipf distribution, measured in addition to uniform keys.
    #[arg(long, default_value_t = 0.99)]
    zipf: f64,
    /// Where the switch's role runs: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Authenticate packets with tags and use TLS between replicas, as `inband up flair` does. Without this option only
    /// the protocol is measured.
    #[arg(long)]
    secure: bool,
    /// Fewer points and keys and one short round, as a smoke test.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// YCSB A, B, C, uniform and Zipf: throughput and latency of all systems (section 4.5.1).
    Workloads,
    /// Throughput and latency over the number of clients, YCSB B (18).
    Clients,
    /// The same over the skew of the keys (19).
    Skew,
    /// The same over the share of reads (20).
    Reads,
    /// Latency distribution of reads, YCSB B (21).
    Latency,
    /// The switch, the leader or a follower killed: throughput over time (23 to 25).
    Failover,
    /// How reads are spread, also with one slow follower (26).
    Balancing,
    /// Throughput of reads over the number of replicas (27).
    Replicas,
    /// Share of reads at the leader, and of groups being written, over the number of key groups.
    Groups,
    /// All of them.
    All,
}

const FIGURES: [Figure; 9] = [
    Figure::Workloads,
    Figure::Clients,
    Figure::Skew,
    Figure::Reads,
    Figure::Latency,
    Figure::Failover,
    Figure::Balancing,
    Figure::Replicas,
    Figure::Groups,
];

const BENCH: &str = "flair";
const WARM_UP: Duration = Duration::from_millis(200);
/// Percentage of reads in YCSB's workloads.
const YCSB_A: f64 = 50.0;
const YCSB_B: f64 = 95.0;
const YCSB_C: f64 = 100.0;
/// Time counted in a quick run.
const QUICK: Duration = Duration::from_millis(200);
const QUICK_KEYS: u64 = 1000;
const DIFFERENCE: &str = "Conditions differ: the paper's machines: three servers of 10 cores, ten for clients, a Tofino \
     switch, 100 Gb/s links; here one machine is all of that, joined by veth";

/// The systems to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Unreplicated,
    Majority,
    Leader,
    FollowerLeases,
    Flair,
}

impl System {
    const ALL: [System; 5] = [
        System::Unreplicated,
        System::Majority,
        System::Leader,
        System::FollowerLeases,
        System::Flair,
    ];

    fn name(self) -> &'static str {
        match self {
            System::Unreplicated => "unreplicated",
            System::Majority => "Raft, majority",
            System::Leader => "Raft, leader's lease",
            System::FollowerLeases => "followers' leases",
            System::Flair => "FLAIR",
        }
    }

    fn reads(self) -> Reads {
        match self {
            System::Unreplicated | System::Leader => Reads::Leader,
            System::Majority => Reads::Majority,
            System::FollowerLeases => Reads::FollowerLeases,
            System::Flair => Reads::Flair,
        }
    }
}

/// The settings for a figure.
struct Run<'a> {
    args: &'a FlairArgs,
    rounds: usize,
    machine: String,
}

impl<'a> Run<'a> {
    fn new(args: &'a FlairArgs) -> Run<'a> {
        Run {
            args,
            rounds: if args.quick { 1 } else { args.rounds },
            machine: machine(),
        }
    }

    /// Returns all points, or the first and the last in a quick run.
    fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match (self.args.quick, all) {
            (true, [first, .., last]) => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    fn testbed_spec(&self, system: System) -> TestbedSpec {
        TestbedSpec {
            reads: system.reads(),
            balance: Balance::LeaderAvoidance,
            replicas: match system {
                System::Unreplicated => 1,
                _ => self.args.replicas,
            },
            switches: 1,
            groups: 4096,
            dataplane: self.args.dataplane,
            quota_percent: Some(self.args.quota_percent),
            slow_quota_percent: None,
            secure: self.args.secure,
            heartbeat_ms: 20,
            // Nodes that wait for their share of a CPU must not count as dead.
            step_down_ms: 500,
        }
    }

    fn workload(&self, read_percent: f64, zipf: f64) -> Workload {
        let args = self.args;
        Workload {
            clients: args.clients,
            read_percent,
            zipf,
            keys: if args.quick { QUICK_KEYS } else { args.keys },
            value_len_bytes: args.value_len_bytes,
            warm_up: if args.quick { QUICK / 2 } else { WARM_UP },
            duration: match args.quick {
                true => QUICK,
                false => Duration::from_millis(args.duration_ms),
            },
        }
    }

    fn start(&self, spec: &TestbedSpec) -> Result<Testbed> {
        Testbed::start(spec, &self.workload(0.0, 0.0))
    }

    /// Starts one testbed for each of these, all running at the same time.
    fn contest<T: Copy>(&self, of: &[T], spec: impl Fn(T) -> TestbedSpec) -> Result<Contest<T>> {
        let start = |each: &T| Ok((*each, self.start(&spec(*each))?));
        let testbeds = of.iter().map(start).collect::<Result<_>>()?;
        Ok(Contest { testbeds })
    }

    /// Returns the conditions of a row: what was run, and what hosts counted during it.
    fn conditions(&self, workload: &Workload, spec: &TestbedSpec, series: &Samples) -> String {
        let quota = match spec.quota_percent {
            Some(percent) => format!(
                "of {percent} % of a CPU each (cgroup, period {} ms)",
                quota::period(percent).as_millis()
            ),
            None => "without a quota".into(),
        };
        let of = |pick: fn(&Sample) -> f64| number(series.median(pick));
        format!(
            "{} storage nodes {quota}, {} clients with one request each, {} keys of 24 B, values of {} B, {} % reads, skew \
             {}; {} alternating rounds of {} ms: {} to {} requests/s, {} us of the nodes' CPU a request, {} % of reads at the \
             leader, {} % refused, {} % of groups being written, {} requests sent again, {} sessions begun; {}; hosts on veth; {}",
            spec.replicas,
            workload.clients,
            workload.keys,
            workload.value_len_bytes,
            workload.read_percent,
            workload.zipf,
            self.rounds,
            workload.duration.as_millis(),
            number(series.least(|s| s.report.per_s)),
            number(series.most(|s| s.report.per_s)),
            of(|s| s.node_us_per_request),
            of(Sample::leader_percent),
            of(Sample::refused_percent),
            of(Sample::unstable_percent),
            of(|s| s.report.repeated as f64),
            of(Sample::sessions),
            match spec.secure {
                true => "packets with tags, replicas over TLS",
                false => "packets without tags, replicas without TLS",
            },
            self.machine
        )
    }
}

/// Clusters that run at the same time.
struct Contest<T> {
    testbeds: Vec<(T, Testbed)>,
}

/// Samples of one cluster, one per round.
struct Samples(Vec<Sample>);

impl<T: Copy> Contest<T> {
    /// Loads the clusters one after another, for as many rounds as configured. Returns the samples in the order of the
    /// testbeds.
    fn measure(&self, run: &Run<'_>, what: &str, workload: &Workload) -> Result<Vec<(T, Samples)>> {
        let mut samples: Vec<_> = self.testbeds.iter().map(|_| Vec::new()).collect();
        for round in 0..run.rounds {
            progress(&format!("{what}, round {} of {}", round + 1, run.rounds));
            for ((_, testbed), samples) in self.testbeds.iter().zip(&mut samples) {
                samples.push(testbed.measure(workload)?);
            }
        }
        let samples = samples.into_iter().map(Samples);
        let who = self.testbeds.iter().map(|(who, _)| *who);
        Ok(who.zip(samples).collect())
    }

    fn backend(&self) -> String {
        self.testbeds
            .first()
            .map_or_else(String::new, |(_, testbed)| testbed.backend())
    }
}

impl Samples {
    fn all(&self, pick: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.0.iter().map(pick).collect()
    }

    fn median(&self, pick: impl Fn(&Sample) -> f64) -> f64 {
        median(&mut self.all(pick))
    }

    fn least(&self, pick: impl Fn(&Sample) -> f64) -> f64 {
        self.all(pick).into_iter().fold(f64::INFINITY, f64::min)
    }

    fn most(&self, pick: impl Fn(&Sample) -> f64) -> f64 {
        self.all(pick).into_iter().fold(0.0, f64::max)
    }

    fn per_s(&self) -> f64 {
        self.median(|sample| sample.report.per_s)
    }

    /// Returns the ratio of throughputs: the median of the rounds' ratios.
    fn ratio_to(&self, other: &Samples) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        let ratio = |(own, other): (&Sample, &Sample)| own.report.per_s / other.report.per_s;
        median(&mut pairs.map(ratio).collect::<Vec<_>>())
    }

    fn errors(&self) -> u64 {
        self.0.iter().map(|sample| sample.report.errors).sum()
    }
}

fn of_system(measured: &[(System, Samples)], system: System) -> Option<&Samples> {
    let found = measured.iter().find(|(who, _)| *who == system);
    found.map(|(_, samples)| samples)
}

/// Prints a note if requests timed out, because these are not included in the latencies.
fn note_errors(output: &Output, what: &str, samples: &Samples) {
    if samples.errors() > 0 {
        output.note(&format!(
            "{what}: {} requests had no answer in time",
            samples.errors()
        ));
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
pub fn run(args: &FlairArgs, output_of: &dyn Fn() -> Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    let figures: &[Figure] = match args.figure {
        Figure::All => &FIGURES,
        ref one => std::slice::from_ref(one),
    };
    run_each(
        figures,
        |figure, name| match figure {
            Figure::Workloads => BENCH.to_owned(),
            _ => format!("{BENCH} {name}"),
        },
        output_of,
        |figure, output| {
            output.note(DIFFERENCE);
            measure(*figure, &Run::new(args), output)
        },
    )
}

fn measure(figure: Figure, run: &Run<'_>, output: &mut Output) -> Result<()> {
    match figure {
        Figure::Workloads => workloads::measure(run, output),
        Figure::Clients => curves::clients(run, output),
        Figure::Skew => curves::skew(run, output),
        Figure::Reads => curves::reads(run, output),
        Figure::Latency => latency::measure(run, output),
        Figure::Failover => failover::measure(run, output),
        Figure::Balancing => balancing::measure(run, output),
        Figure::Replicas => replicas::measure(run, output),
        Figure::Groups => curves::groups(run, output),
        Figure::All => Ok(()),
    }
}
