//! Load for etcd with a fixed number of outstanding requests, as redis-benchmark makes it for Redis:
//! `connections` x `streams` closed loops, on one thread, against the current leader. Prints one JSON
//! object.

mod grpc;
mod message;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::LocalSet;

use grpc::Channel;

const PUT_PATH: &str = "/etcdserverpb.KV/Put";
const RANGE_PATH: &str = "/etcdserverpb.KV/Range";
const STATUS_PATH: &str = "/etcdserverpb.Maintenance/Status";

/// Put load on etcd and report rate and latency.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Client addresses of the members; the load goes to the one that leads.
    #[arg(long, value_delimiter = ',', required = true)]
    endpoints: Vec<SocketAddr>,
    /// Puts, or linearizable reads.
    #[arg(long, value_enum, default_value = "put")]
    operation: Operation,
    /// HTTP/2 connections.
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Requests outstanding on each.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 64)]
    value_len_bytes: usize,
    /// Different keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Time before counting starts.
    #[arg(long, default_value_t = 500)]
    warm_up_ms: u64,
    /// Time counted.
    #[arg(long, default_value_t = 2000)]
    duration_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Operation {
    Put,
    Range,
}

#[derive(Debug, Serialize)]
struct Report {
    leader: SocketAddr,
    outstanding: usize,
    requests: u64,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

struct Counted {
    requests: u64,
    latency_ns: Histogram<u64>,
}

/// When counting starts and everything ends.
#[derive(Clone, Copy)]
struct Span {
    from: Instant,
    until: Instant,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("etcd-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<()> {
    ensure!(
        args.connections > 0 && args.streams > 0 && args.keys > 0 && args.duration_ms > 0,
        "--connections, --streams, --keys and --duration-ms must be at least 1"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let report = LocalSet::new().block_on(&runtime, run(args))?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

async fn run(args: &Args) -> Result<Report> {
    let leader = find_leader(&args.endpoints).await?;
    let mut channels = Vec::new();
    for _ in 0..args.connections {
        channels.push(Channel::connect(leader).await?);
    }
    let counted = Rc::new(RefCell::new(Counted {
        requests: 0,
        latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
    }));
    let from = Instant::now() + Duration::from_millis(args.warm_up_ms);
    let span = Span {
        from,
        until: from + Duration::from_millis(args.duration_ms),
    };
    let mut loops = Vec::new();
    for (connection, channel) in channels.iter().enumerate() {
        for stream in 0..args.streams {
            let seed = (connection * args.streams + stream) as u64;
            let one = request_loop(channel.clone(), args.clone(), seed, span, counted.clone());
            loops.push(tokio::task::spawn_local(one));
        }
    }
    for one in loops {
        one.await.context("a request loop panicked")??;
    }
    let counted = counted.borrow();
    let us = |quantile| counted.latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(Report {
        leader,
        outstanding: args.connections * args.streams,
        requests: counted.requests,
        per_s: counted.requests as f64 * 1000.0 / args.duration_ms as f64,
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

/// The member that says that it is the leader: a request to another one is forwarded and slower.
async fn find_leader(endpoints: &[SocketAddr]) -> Result<SocketAddr> {
    for endpoint in endpoints {
        let mut channel = Channel::connect(*endpoint).await?;
        let answer = channel.call(STATUS_PATH, Bytes::new()).await?;
        let status = message::parse_status(&answer)?;
        if status.leader != 0 && status.leader == status.member {
            return Ok(*endpoint);
        }
    }
    bail!("none of {endpoints:?} leads")
}

/// One request after the other until the time is up.
async fn request_loop(
    mut channel: Channel,
    args: Args,
    seed: u64,
    span: Span,
    counted: Rc<RefCell<Counted>>,
) -> Result<()> {
    let value = vec![b'x'; args.value_len_bytes];
    // Any odd multiplier; streams start far apart and never in step.
    let mut random = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // As redis-benchmark -r makes its keys.
        let key = format!("key:{:012}", random % args.keys);
        let (path, message) = match args.operation {
            Operation::Put => (PUT_PATH, message::put(key.as_bytes(), &value)),
            Operation::Range => (RANGE_PATH, message::range(key.as_bytes())),
        };
        let start = Instant::now();
        channel.call(path, message).await?;
        let end = Instant::now();
        if end >= span.until {
            return Ok(());
        }
        if end >= span.from {
            let mut counted = counted.borrow_mut();
            counted.requests += 1;
            counted
                .latency_ns
                .saturating_record((end - start).as_nanos() as u64);
        }
    }
}
