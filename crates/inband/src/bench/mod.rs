//! `inband bench`: measurements, each beside a baseline of the same run.

mod agreement;
mod capacity;
mod cluster;
mod failover;
mod kv;
mod neighbour;
mod node;
mod row;
mod scratch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};

/// `inband bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// One JSON object a line.
    #[arg(long, global = true)]
    json: bool,
    /// Append the figures to this file too, one JSON object a line.
    #[arg(long, global = true, value_name = "FILE")]
    results: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Agreement without a store: latency and throughput, XDP beside the soft switch.
    Agreement(agreement::AgreementArgs),
    /// The store under redis-benchmark, beside etcd, Redis alone and RocksDB alone.
    Kv(kv::KvArgs),
    /// The leader killed under load: how long clients wait.
    Failover(failover::FailoverArgs),
    /// What packets cost: those of others, and those of each role.
    Neighbour(neighbour::NeighbourArgs),
}

/// `inband bench-node`.
#[derive(Debug, Args)]
pub struct BenchNodeArgs {
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
    /// Values undecided at once.
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Time before counting starts.
    #[arg(long, default_value_t = 500)]
    warm_up_ms: u64,
    /// Time counted.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
}

/// Run a benchmark.
pub fn bench(args: BenchArgs) -> Result<()> {
    let mut output = row::Output::new(args.json, args.results.as_deref())?;
    match args.what {
        What::Agreement(args) if args.capacity => capacity::run(args.rounds, &mut output),
        What::Agreement(args) => agreement::run(&args, &mut output),
        What::Kv(args) => kv::run(&args, &mut output),
        What::Failover(args) => failover::run(&args, &mut output),
        What::Neighbour(args) => neighbour::run(&args, &mut output),
    }
}

/// Be a benchmark's host.
pub fn bench_node(args: BenchNodeArgs) -> Result<()> {
    let options = node::Options {
        load: args.load,
        command_len_bytes: args.command_len_bytes,
        window: args.window,
        warm_up: Duration::from_millis(args.warm_up_ms),
        duration: Duration::from_millis(args.duration_ms),
    };
    node::run(&args.config, &args.dataplane, options)
}
