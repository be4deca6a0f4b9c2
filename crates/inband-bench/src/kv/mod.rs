//! `inband bench kv`: the replicated store under redis-benchmark, compared in the same run with etcd under as many
//! requests in flight, with Redis alone, and with RocksDB alone. Every round starts every system afresh, one after
//! another, so that all see the same noise and none runs alongside another.

pub mod etcd;
mod redis;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{ensure, Result};
use clap::Args;
use inband_paxos::config::Dataplane;

use super::cluster::{self, BenchCluster};
use super::rocks;
use super::row::{machine, median, progress, Baseline, Output, Row};
use redis::RedisBenchmark;

/// Options of `inband bench kv`.
#[derive(Debug, Args)]
pub struct KvArgs {
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Approximate duration of each measurement of a round.
    #[arg(long, default_value_t = 1500)]
    duration_ms: u64,
    /// Connections of the pipelined measurements.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Requests in flight on each.
    #[arg(long, default_value_t = 16)]
    pipeline: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 64)]
    value_len_bytes: usize,
    /// Number of different keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Backends of the store; xdp is what `inband up` chooses where it works.
    #[arg(long, value_delimiter = ',', default_values_t = [Dataplane::Xdp, Dataplane::Udp])]
    backends: Vec<Dataplane>,
    /// Connect to this replica only. By default the client address is used, where any replica may accept a connection.
    #[arg(long, value_name = "NUMBER")]
    replica: Option<u16>,
    /// Measure only the store, without etcd, Redis or RocksDB.
    #[arg(long)]
    alone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Set,
    Get,
}

/// The number of requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub connections: usize,
    /// Per connection.
    pub requests: usize,
}

/// The results of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Only of the store.
    packing: Option<Packing>,
}

/// How the store packed the commands of a measurement into values. A share of 1 means that one replica served all
/// clients; it then packs more commands into a value than three replicas that share the clients.
#[derive(Debug, Clone, Copy)]
struct Packing {
    commands_per_value: f64,
    /// The busiest replica's share of all requests.
    busiest_share: f64,
}

/// A server started for one round; dropping it stops it.
trait Started {
    fn measure(&mut self, operation: Operation, shape: Shape, args: &KvArgs) -> Result<Sample>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum System {
    Inband(Dataplane),
    Etcd { version: String },
    Redis { version: String },
}

impl System {
    fn start(&self, replica: Option<u16>) -> Result<Box<dyn Started>> {
        Ok(match self {
            System::Inband(dataplane) => {
                let cluster = BenchCluster::start(*dataplane)?;
                let mut address = cluster.supervisor.resp();
                // Replica i also listens at the client address's port plus 1 plus i.
                address.set_port(address.port() + replica.map_or(0, |replica| 1 + replica));
                Box::new(InbandStore {
                    cluster,
                    load: RedisBenchmark::new(address),
                })
            }
            System::Etcd { .. } => Box::new(etcd::Cluster::start()?),
            System::Redis { .. } => Box::new(redis::Alone::start()?),
        })
    }

    /// Returns the `backend` in its rows.
    fn backend(&self) -> String {
        match self {
            System::Inband(dataplane) => dataplane.to_string(),
            System::Etcd { .. } => "etcd".into(),
            System::Redis { .. } => "redis".into(),
        }
    }

    fn conditions(&self) -> String {
        match self {
            System::Inband(Dataplane::Udp) => {
                "3 replicas, 3 acceptors, processes on loopback, write-ahead logs on and not \
                 synced, durability memory, redis-benchmark (latencies to 8 us, rounded up)"
                    .into()
            }
            System::Inband(_) => {
                "3 replicas, 3 acceptors, veth namespaces, write-ahead logs on and not synced, \
                 durability memory, redis-benchmark (latencies to 8 us, rounded up)"
                    .into()
            }
            System::Etcd { version } => format!(
                "{version}, three nodes on loopback, data on tmpfs, etcd-load over gRPC to the leader"
            ),
            System::Redis { version } => {
                format!("{version}, not replicated, nothing on disk, redis-benchmark (latencies to 8 us, rounded up)")
            }
        }
    }
}

struct InbandStore {
    // Stopped on drop.
    cluster: BenchCluster,
    load: RedisBenchmark,
}

impl InbandStore {
    /// Requests and submitted values so far, per replica.
    fn counts(&self) -> Vec<(u64, u64)> {
        let status = self.cluster.supervisor.status();
        let hosts = status.hosts.iter().filter_map(|host| host.status.as_ref());
        hosts
            .filter(|host| host.replica.is_some())
            .map(|host| {
                let count = |name| host.counters.get(name).copied().unwrap_or(0);
                (count("kv_requests"), count("kv_values_submitted"))
            })
            .collect()
    }
}

impl Started for InbandStore {
    fn measure(&mut self, operation: Operation, shape: Shape, args: &KvArgs) -> Result<Sample> {
        let before = self.counts();
        let sample = self.load.measure(operation, shape, args)?;
        let after = self.counts();
        ensure!(
            before.len() == after.len(),
            "a replica did not tell how much it did"
        );
        let counted = after
            .iter()
            .zip(&before)
            .map(|(a, b)| (a.0 - b.0, a.1 - b.1));
        let (requests, values): (Vec<u64>, Vec<u64>) = counted.unzip();
        let total = requests.iter().sum::<u64>() as f64;
        let busiest = requests.iter().max().copied().unwrap_or(0) as f64;
        let packing = Packing {
            commands_per_value: total / values.iter().sum::<u64>() as f64,
            busiest_share: busiest / total,
        };
        Ok(Sample {
            packing: Some(packing),
            ..sample
        })
    }
}

type Pick = fn(&Sample) -> f64;

/// Names, units and the source of the values.
struct Metric {
    name: &'static str,
    unit: &'static str,
    operation: Operation,
    is_pipelined: bool,
    pick: Pick,
}

const METRICS: [Metric; 6] = [
    metric(
        "set_pipelined_per_s",
        "commands/s",
        Operation::Set,
        true,
        |s| s.per_s,
    ),
    metric("set_single_p50_us", "us", Operation::Set, false, |s| {
        s.p50_us
    }),
    metric("set_single_p99_us", "us", Operation::Set, false, |s| {
        s.p99_us
    }),
    metric(
        "get_pipelined_per_s",
        "commands/s",
        Operation::Get,
        true,
        |s| s.per_s,
    ),
    metric("get_single_p50_us", "us", Operation::Get, false, |s| {
        s.p50_us
    }),
    metric("get_single_p99_us", "us", Operation::Get, false, |s| {
        s.p99_us
    }),
];

const fn metric(
    name: &'static str,
    unit: &'static str,
    operation: Operation,
    is_pipelined: bool,
    pick: Pick,
) -> Metric {
    Metric {
        name,
        unit,
        operation,
        is_pipelined,
        pick,
    }
}

/// All rounds of one system.
#[derive(Default)]
struct Figures {
    by_metric: BTreeMap<&'static str, Vec<f64>>,
    /// With the operation, and whether it was pipelined.
    packings: Vec<(Operation, bool, Packing)>,
}

impl Figures {
    fn median(&mut self, metric: &'static str) -> f64 {
        self.by_metric
            .get_mut(metric)
            .map_or(f64::NAN, |values| median(values))
    }

    /// Part of the conditions; empty for other systems than the store.
    fn packing(&self, metric: &Metric) -> String {
        let (mut commands, mut shares): (Vec<f64>, Vec<f64>) = self
            .packings
            .iter()
            .filter(|p| p.0 == metric.operation && p.1 == metric.is_pipelined)
            .map(|(_, _, packing)| (packing.commands_per_value, packing.busiest_share))
            .unzip();
        if commands.is_empty() {
            return String::new();
        }
        // Reads by position submit no values.
        let commands = match median(&mut commands) {
            commands if commands.is_finite() => format!(", {commands:.1} commands a value"),
            _ => String::new(),
        };
        let share = 100.0 * median(&mut shares);
        format!("{commands}, busiest replica has {share:.0}% of the requests")
    }
}

/// Runs the benchmark and prints its rows.
pub fn run(args: &KvArgs, output: &mut Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(
        args.clients >= 1 && args.pipeline >= 1,
        "--clients and --pipeline: at least 1"
    );
    ensure!(
        args.keys >= 1 && args.duration_ms >= 1,
        "--keys and --duration-ms: at least 1"
    );
    if let Some(replica) = args.replica {
        let replicas = cluster::REPLICAS;
        ensure!(
            replica < replicas,
            "--replica {replica}: there are {replicas}, from 0"
        );
    }
    redis::version("redis-benchmark")?;
    let machine = machine();
    let backends = cluster::usable(&args.backends, &mut |what| output.skipped(&what));
    let mut systems: Vec<System> = backends.into_iter().map(System::Inband).collect();
    ensure!(!systems.is_empty(), "no backend of --backends works here");
    if !args.alone {
        match etcd::version() {
            Ok(version) => systems.push(System::Etcd { version }),
            Err(error) => output.skipped(&format!("etcd: {error:#}")),
        }
        match redis::version("redis-server") {
            Ok(version) => systems.push(System::Redis { version }),
            Err(error) => output.skipped(&format!("Redis alone: {error:#}")),
        }
    }
    let mut figures: Vec<Figures> = systems.iter().map(|_| Figures::default()).collect();
    let mut rocks_per_s = Vec::new();
    for round in 1..=args.rounds {
        for (system, figures) in systems.iter().zip(&mut figures) {
            let backend = system.backend();
            progress(&format!("round {round}/{}: {backend}", args.rounds));
            let mut started = system.start(args.replica)?;
            measure(&mut *started, args, figures, &|what| {
                progress(&format!("round {round}/{}: {backend}, {what}", args.rounds));
            })?;
        }
        if !args.alone {
            progress(&format!("round {round}/{}: RocksDB", args.rounds));
            let duration = Duration::from_millis(args.duration_ms);
            rocks_per_s.push(rocks::puts_per_s(
                duration,
                args.value_len_bytes,
                args.keys,
            )?);
        }
    }
    progress("");
    print_rows(
        args,
        &machine,
        &systems,
        &mut figures,
        &mut rocks_per_s,
        output,
    )
}

/// All measurements of one system in one round.
fn measure(
    started: &mut dyn Started,
    args: &KvArgs,
    figures: &mut Figures,
    show: &dyn Fn(&str),
) -> Result<()> {
    let many = Shape {
        connections: args.clients,
        requests: args.pipeline,
    };
    let single = Shape {
        connections: 1,
        requests: 1,
    };
    for operation in [Operation::Set, Operation::Get] {
        for (shape, is_pipelined) in [(many, true), (single, false)] {
            show(&format!(
                "{operation:?} x {}",
                shape.connections * shape.requests
            ));
            let sample = started.measure(operation, shape, args)?;
            figures
                .packings
                .extend(sample.packing.map(|p| (operation, is_pipelined, p)));
            for metric in &METRICS {
                if metric.operation == operation && metric.is_pipelined == is_pipelined {
                    figures
                        .by_metric
                        .entry(metric.name)
                        .or_default()
                        .push((metric.pick)(&sample));
                }
            }
        }
    }
    Ok(())
}

fn print_rows(
    args: &KvArgs,
    machine: &str,
    systems: &[System],
    figures: &mut [Figures],
    rocks_per_s: &mut [f64],
    output: &mut Output,
) -> Result<()> {
    let run = format!(
        "{} B values, {} keys, {machine}, median of {} x about {} ms",
        args.value_len_bytes, args.keys, args.rounds, args.duration_ms
    );
    let is_store = |system: &System| matches!(system, System::Inband(_));
    // The baseline for the store: etcd if available.
    let yardstick = systems.iter().position(|system| !is_store(system));
    for metric in &METRICS {
        let values: Vec<f64> = figures.iter_mut().map(|f| f.median(metric.name)).collect();
        let outstanding = match metric.is_pipelined {
            true => format!("{} x {} outstanding", args.clients, args.pipeline),
            false => "one outstanding".into(),
        };
        for (at, system) in systems.iter().enumerate() {
            let other = if is_store(system) { yardstick } else { Some(0) };
            let name = |other: usize| match &systems[other] {
                System::Inband(dataplane) => format!("this store on {dataplane}"),
                System::Etcd { .. } => "etcd, three nodes, as many outstanding".into(),
                System::Redis { .. } => "Redis, not replicated".into(),
            };
            let baseline = other.map(|other| Baseline {
                name: name(other),
                value: values[other],
            });
            let reads = match (is_store(system), metric.operation) {
                (true, Operation::Get) => {
                    "; reads by position, answered by the replica that was asked"
                }
                _ => "",
            };
            let row = Row {
                bench: "kv",
                metric: metric.name,
                backend: system.backend(),
                variant: String::new(),
                value: values[at],
                unit: metric.unit,
                baseline: None,
                ratio: None,
                paper: None,
                conditions: format!(
                    "{outstanding}{}; {}{reads}; {run}",
                    figures[at].packing(metric),
                    system.conditions()
                ),
            };
            output.row(&row.beside(baseline))?;
        }
    }
    if !rocks_per_s.is_empty() {
        let store = figures[0].median("set_pipelined_per_s");
        let row = Row {
            bench: "kv",
            metric: "rocksdb_puts_per_s",
            backend: "rocksdb".into(),
            variant: String::new(),
            value: median(rocks_per_s),
            unit: "commands/s",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!(
                "no network, not replicated, one thread, one put a batch, write-ahead log on and \
                 not synced, the store's options; {run}"
            ),
        };
        let name = format!(
            "set_pipelined_per_s of this store on {}",
            systems[0].backend()
        );
        output.row(&row.beside(Some(Baseline { name, value: store })))?;
    }
    Ok(())
}
