//! `inband bench`: measurements, each with a baseline from the same run (docs/bench.md).

// Its `println!` and similar macros tolerate a closed output.
#[macro_use]
extern crate inband_host;

mod agreement;
mod box_cluster;
mod capacity;
mod cluster;
mod cores;
mod cpu;
mod failover;
mod falcon;
mod figures;
mod flair;
mod kv;
mod libpaxos;
mod load;
mod loopback;
mod memory;
mod neighbour;
mod netpaxos;
mod node;
mod paper;
mod plot;
mod resident;
mod rocks;
mod row;
mod stats;
mod sync;
mod testbed;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use falcon::host::{falcon_host, FalconHostArgs};
use flair::load::{flair_load, FlairLoadArgs};
use inband_host::program;
use memory::pages::{memory_pages, MemoryPagesArgs};
use memory::programs::{memory_join, MemoryJoinArgs};
use row::Output;

/// Run benchmarks, each compared with a baseline from the same run.
#[derive(Debug, Parser)]
#[command(name = "inband bench", version)]
struct Cli {
    /// Print one JSON object per line.
    #[arg(long, global = true)]
    json: bool,
    /// Write the figures to NAME.json and their plot to NAME.svg in this directory [default:
    /// bench/results in the repository, elsewhere the current one].
    #[arg(long, global = true, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Agreement without a store: latency and throughput of XDP and the soft switch.
    Agreement(agreement::AgreementArgs),
    /// The store under redis-benchmark, compared with etcd, Redis alone and RocksDB alone.
    Kv(kv::KvArgs),
    /// CPU time of a replica's threads per command, and what the store would do with 4 to 32 cores (simulated).
    Cores(cores::CoresArgs),
    /// Kill the leader under load: how long clients wait.
    Failover(failover::FailoverArgs),
    /// The cost of packets: for unrelated traffic, and in each role.
    Neighbour(neighbour::NeighbourArgs),
    /// The cost of `sync` compared with `memory`, and of reads through the log compared with reads by position.
    Sync(sync::SyncArgs),
    /// Run a cluster at full rate for minutes, and check that the memory of its processes does not grow.
    Resident(resident::ResidentArgs),
    /// FLAIR's figures: YCSB's loads and more, compared with other ways to read.
    Flair(flair::FlairArgs),
    /// Falcon's figures: scheduling delay over utilisation, other schedulers, large clusters.
    Falcon(falcon::FalconArgs),
    /// Replicated memory's figures: pages and lines, compared with local memory and a single server.
    Memory(memory::MemoryArgs),
    /// Consensus in a box: SETs and GETs compared with ZooKeeper, etcd and memcached; elections; a node that catches
    /// up.
    Box(box_cluster::BoxArgs),
    /// NetPaxos: how often order alone decides, failures, and performance.
    Netpaxos(netpaxos::NetPaxosArgs),
    /// The papers' figures, with the papers' own numbers.
    Paper(paper::PaperArgs),
    /// Run a host of `agreement`, in place of the store.
    #[command(hide = true)]
    Node(BenchNodeArgs),
    /// Apply a load to FLAIR.
    #[command(hide = true)]
    FlairLoad(FlairLoadArgs),
    /// Run a process of Falcon's testbed.
    #[command(hide = true)]
    FalconHost(FalconHostArgs),
    /// Run a program that times accesses to the pages of its heap.
    #[command(hide = true)]
    MemoryPages(MemoryPagesArgs),
    /// Run a program that joins two tables.
    #[command(hide = true)]
    MemoryJoin(MemoryJoinArgs),
}

/// `inband-bench node`.
#[derive(Debug, Args)]
struct BenchNodeArgs {
    /// The host's configuration.
    #[arg(long)]
    config: PathBuf,
    /// xdp, xdp-generic or udp.
    #[arg(long)]
    dataplane: String,
    /// What to do.
    #[arg(long, value_enum)]
    load: node::Load,
    /// Bytes of a command.
    #[arg(long, default_value_t = 64)]
    command_len_bytes: usize,
    /// Undecided values in flight.
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Values per second (paced).
    #[arg(long, default_value_t = 0.0)]
    rate_per_s: f64,
    /// Put what is delivered into RocksDB, one database per partition, in this directory.
    #[arg(long)]
    rocksdb: Option<PathBuf>,
    /// Time from the first value until counting starts.
    #[arg(long, default_value_t = 500)]
    warm_up_ms: u64,
    /// Time counted.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
}

fn main() -> ExitCode {
    program::main("inband bench", || bench(program::parse::<Cli>()))
}

fn bench(args: Cli) -> Result<()> {
    let (json, dir) = (args.json, args.out.unwrap_or_else(row::default_dir));
    let output_of = || Output::new(json, dir.clone());
    let mut output = output_of();
    let name = match args.what {
        What::Agreement(args) if args.capacity => {
            capacity::run(args.rounds, &mut output)?;
            "capacity"
        }
        What::Agreement(args) => {
            agreement::run(&args, &mut output)?;
            "agreement"
        }
        What::Kv(args) => {
            kv::run(&args, &mut output)?;
            "kv"
        }
        What::Cores(args) => {
            cores::run(&args, &mut output)?;
            "cores"
        }
        What::Failover(args) => {
            failover::run(&args, &mut output)?;
            "failover"
        }
        What::Neighbour(args) => {
            neighbour::run(&args, &mut output)?;
            "neighbour"
        }
        What::Sync(args) => {
            sync::run(&args, &mut output)?;
            "sync"
        }
        What::Resident(args) => {
            resident::run(&args, &mut output)?;
            "resident"
        }
        // Several figures, each with its own output.
        What::Flair(args) => return flair::run(&args, &output_of),
        What::Falcon(args) => return falcon::run(&args, &output_of),
        What::Memory(args) => return memory::run(&args, &output_of),
        What::Box(args) => return box_cluster::run(&args, &output_of),
        What::Netpaxos(args) => return netpaxos::run(&args, &output_of),
        What::Paper(args) => return paper::run(args, &output_of),
        What::Node(args) => return bench_node(args),
        What::FlairLoad(args) => return flair_load(&args),
        What::FalconHost(args) => return falcon_host(args),
        What::MemoryPages(args) => return memory_pages(&args),
        What::MemoryJoin(args) => {
            memory_join(&args);
            return Ok(());
        }
    };
    output.finish(name)
}

fn bench_node(args: BenchNodeArgs) -> Result<()> {
    let options = node::Options {
        load: args.load,
        command_len_bytes: args.command_len_bytes,
        window: args.window,
        rate_per_s: args.rate_per_s,
        rocksdb: args.rocksdb,
        warm_up: Duration::from_millis(args.warm_up_ms),
        duration: Duration::from_millis(args.duration_ms),
    };
    node::run(&args.config, &args.dataplane, options)
}
