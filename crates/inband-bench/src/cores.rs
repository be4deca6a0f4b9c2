//! `inband bench cores`: the CPU time of a replica's threads per command, without and with workers, and from these costs
//! a simulated run with more cores than this machine has.

mod simulated;
mod threads;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_cluster::client::Client;
use inband_kv::workers::empty_round;
use inband_paxos::config::{bounds, Dataplane};

use super::cluster::{self, BenchCluster};
use super::load::{Operation, RespLoad};
use super::plot::{Chart, Series};
use super::row::{machine, median, progress, Baseline, Output, Row};
use simulated::{Costs, Machine};
use threads::{Kind, ThreadTimes};

/// Options of `inband bench cores`.
#[derive(Debug, Args)]
pub struct CoresArgs {
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Time counted in each measurement of a round.
    #[arg(long, default_value_t = 2000)]
    duration_ms: u64,
    /// Connections, all to one replica.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Commands in flight on each.
    #[arg(long, default_value_t = 16)]
    pipeline: usize,
    #[arg(long, default_value_t = 8)]
    partitions: u32,
    /// Workers of each replica in the measurements with workers.
    #[arg(long, default_value_t = 2)]
    worker_threads: u32,
    /// The backend to use.
    #[arg(long, default_value_t = Dataplane::Udp)]
    backend: Dataplane,
}

const EMPTY_ROUNDS: usize = 1000;
const WARM_UP: Duration = Duration::from_millis(500);
const CLIENT_LIMIT: Duration = Duration::from_secs(5);
const CORES: [usize; 5] = [2, 4, 8, 16, 32];
/// Workers of a simulated replica: half as many as cores, at most this many.
const WORKERS_MAX: usize = 8;
const OPERATIONS: [(Operation, &str); 2] = [(Operation::Set, "SET"), (Operation::Get, "GET")];

fn workers_of(cores: usize) -> usize {
    match cores {
        0..=3 => 0,
        _ => (cores / 2).min(WORKERS_MAX),
    }
}

/// What one replica used for its commands, in microseconds per command.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    per_s: f64,
    /// By [`Kind`]: user and system time.
    threads: [[f64; 2]; Kind::ALL.len()],
    /// CPU time for what workers took part in.
    together_us: f64,
    /// Commands in a round of the workers.
    commands_per_round: f64,
}

impl Used {
    fn of(self, kind: Kind) -> f64 {
        self.threads[kind as usize].iter().sum()
    }
}

/// Returns the median of one figure over the rounds.
fn median_of(rounds: &[Used], pick: impl Fn(&Used) -> f64) -> f64 {
    median(&mut rounds.iter().map(pick).collect::<Vec<_>>())
}

fn medians(rounds: &[Used]) -> Used {
    let mut all = Used {
        per_s: median_of(rounds, |used| used.per_s),
        together_us: median_of(rounds, |used| used.together_us),
        commands_per_round: median_of(rounds, |used| used.commands_per_round),
        ..Used::default()
    };
    for (kind, times) in all.threads.iter_mut().enumerate() {
        for (part, time) in times.iter_mut().enumerate() {
            *time = median_of(rounds, |used| used.threads[kind][part]);
        }
    }
    all
}

/// Runs the benchmark and prints its rows.
pub fn run(args: &CoresArgs, output: &mut Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(
        args.partitions >= 2 && bounds::PARTITIONS.contains(&args.partitions.into()),
        "--partitions {}: give 2 to {}",
        args.partitions,
        bounds::PARTITIONS.end()
    );
    ensure!(
        args.worker_threads >= 1 && bounds::WORKER_THREADS.contains(&args.worker_threads.into()),
        "--worker-threads {}: give 1 to {}; without workers is measured as well",
        args.worker_threads,
        bounds::WORKER_THREADS.end()
    );
    let backends = cluster::usable(&[args.backend], &mut |what| output.skipped(&what));
    let backend = backends.first().copied().unwrap_or(Dataplane::Udp);
    // By operation: without and with workers.
    let mut rounds = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 1..=args.rounds {
        for (with, workers) in [0, args.worker_threads].into_iter().enumerate() {
            progress(&format!("round {round}/{}: {workers} workers", args.rounds));
            let cluster = BenchCluster::start_with(backend, &std::env::temp_dir(), |spec| {
                spec.partitions = args.partitions;
                spec.limits.worker_threads = workers;
            })?;
            for (at, (operation, _)) in OPERATIONS.into_iter().enumerate() {
                rounds[at][with].push(measure(&cluster, args, operation)?);
            }
        }
    }
    progress("");
    let machine = machine();
    let round_us = empty_round(args.worker_threads as usize, EMPTY_ROUNDS)?.as_secs_f64() * 1e6;
    output.row(&Row::new(
        ("cores", "empty_round_us"),
        backend.to_string(),
        format!("{} workers", args.worker_threads),
        (round_us, "us"),
        format!(
            "a round with nothing to do, after 1 ms of sleep, median of {EMPTY_ROUNDS}, {machine}"
        ),
    ))?;
    for ((_, name), [without, with]) in OPERATIONS.into_iter().zip(&rounds) {
        let (without, with) = (medians(without), medians(with));
        let conditions = format!(
            "{name}, {} x {} outstanding to one replica of 3, {} partitions, 64 B values, {machine}, median of {} x {} ms",
            args.clients, args.pipeline, args.partitions, args.rounds, args.duration_ms
        );
        print_threads(args, backend, name, (without, with), &conditions, output)?;
        let costs = (without, with);
        simulate(args, backend, name, costs, round_us, &conditions, output)?;
    }
    Ok(())
}

/// `worker_rounds` and `worker_cpu_us` of a replica.
fn worker_figures(address: SocketAddr) -> Result<[f64; 2]> {
    let mut client = Client::connect(address, CLIENT_LIMIT)?;
    client.call(&["INFO", "inband"])?;
    // They stand in this order, and more follows.
    let mut figure = |name: &str| -> Result<f64> {
        loop {
            let line = client
                .line()
                .with_context(|| format!("INFO without {name}"))?;
            if let Some(value) = line.strip_prefix(name) {
                return value.parse().context(line);
            }
        }
    };
    Ok([figure("worker_rounds:")?, figure("worker_cpu_us:")?])
}

fn measure(cluster: &BenchCluster, args: &CoresArgs, operation: Operation) -> Result<Used> {
    let status = cluster.supervisor.status();
    let host = status.hosts.iter().find(|host| host.name == "replica/0");
    let host = host.context("no host is replica/0")?;
    let pid = host.pid.context("replica/0 has no process")?;
    let address = host.resp.context("replica/0 serves no clients")?;
    let load = RespLoad {
        connections: args.clients,
        pipeline: args.pipeline,
        operation,
        ..RespLoad::sets(address)
    };
    // The load sends for this long before it counts.
    load.run(Duration::ZERO, WARM_UP)?;
    let (workers_before, before) = (worker_figures(address)?, ThreadTimes::read(pid)?);
    let report = load.run(Duration::ZERO, Duration::from_millis(args.duration_ms))?;
    let (after, workers) = (ThreadTimes::read(pid)?, worker_figures(address)?);
    ensure!(report.errors == 0, "{} commands failed", report.errors);
    let commands = report.per_s * args.duration_ms as f64 / 1000.0;
    let [rounds, cpu_us] = [0, 1].map(|at| workers[at] - workers_before[at]);
    Ok(Used {
        per_s: report.per_s,
        threads: after
            .since(&before)
            .map(|times| times.map(|us| us / commands)),
        together_us: cpu_us / commands,
        commands_per_round: commands / rounds.max(1.0),
    })
}

fn print_threads(
    args: &CoresArgs,
    backend: Dataplane,
    name: &str,
    (without, with): (Used, Used),
    conditions: &str,
    output: &mut Output,
) -> Result<()> {
    let all = [(0, without), (args.worker_threads, with)];
    for (workers, used) in all {
        for kind in Kind::ALL {
            for (part, time) in ["user", "system"].iter().zip(used.threads[kind as usize]) {
                let row = Row::new(
                    ("cores", "cpu_per_command_us"),
                    backend.to_string(),
                    format!("{name}, {workers} workers, {}, {part}", kind.name()),
                    (time, "us"),
                    conditions,
                );
                output.row(&row)?;
            }
        }
        if workers > 0 {
            let figures = [
                ("together_us", used.together_us, "us"),
                ("commands_per_round", used.commands_per_round, "commands"),
            ];
            for (metric, value, unit) in figures {
                let variant = format!("{name}, {workers} workers");
                let value = (value, unit);
                let row = Row::new(
                    ("cores", metric),
                    backend.to_string(),
                    variant,
                    value,
                    conditions,
                );
                output.row(&row)?;
            }
        }
        let row = Row::new(
            ("cores", "commands_per_s"),
            backend.to_string(),
            format!("{name}, {workers} workers"),
            (used.per_s, "commands/s"),
            conditions,
        );
        let baseline = (workers > 0).then(|| Baseline {
            name: "without workers".into(),
            value: without.per_s,
        });
        output.row(&row.beside(baseline))?;
    }
    Ok(())
}

fn simulate(
    args: &CoresArgs,
    backend: Dataplane,
    name: &str,
    (without, with): (Used, Used),
    round_us: f64,
    conditions: &str,
    output: &mut Output,
) -> Result<()> {
    let costs = Costs {
        // What waking and waiting cost it is in the length of a round; what workers use while they wait for more to do
        // is on their cores.
        alone_us: (without.of(Kind::Replica) - with.together_us).max(0.0),
        together_us: with.together_us,
        write_us: with.of(Kind::Writers),
        other_us: with.of(Kind::Others),
        commands_per_round: with.commands_per_round,
        round_us,
    };
    let costs_without = Costs {
        alone_us: without.of(Kind::Replica),
        together_us: 0.0,
        write_us: without.of(Kind::Writers),
        other_us: without.of(Kind::Others),
        commands_per_round: with.commands_per_round,
        round_us,
    };
    let in_flight = args.clients * args.pipeline;
    let partitions = args.partitions as usize;
    let mut lines = [Vec::new(), Vec::new()];
    for cores in CORES {
        let machine = Machine {
            cores,
            workers: workers_of(cores),
            partitions,
            in_flight,
        };
        let alone = Machine {
            workers: 0,
            ..machine
        };
        let baseline = simulated::per_s(costs_without, alone);
        let value = match machine.workers {
            0 => baseline,
            _ => simulated::per_s(costs, machine),
        };
        for (line, per_s) in lines.iter_mut().zip([baseline, value]) {
            line.push([cores as f64, per_s]);
        }
        let row = Row::new(
            ("cores", "simulated_per_s"),
            backend.to_string(),
            format!("{name}, {cores} cores, {} workers", machine.workers),
            (value, "commands/s"),
            format!(
                "simulated: one replica has this many cores for itself; clients and the other hosts have their own \
                 and answer at once; costs measured with {conditions}",
            ),
        );
        output.row(&row.beside(Some(Baseline {
            name: "the same cores without workers".into(),
            value: baseline,
        })))?;
    }
    let [without, with] = lines;
    let series = [("without workers", without), ("with workers", with)];
    output.chart(Chart::Lines {
        title: format!("{name}, simulated from measured costs"),
        x: "cores of a replica".into(),
        y: "commands/s".into(),
        series: series
            .into_iter()
            .map(|(name, points)| Series {
                name: name.into(),
                points,
                is_quoted: false,
            })
            .collect(),
        events: Vec::new(),
    });
    Ok(())
}
