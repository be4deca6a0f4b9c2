//! YCSB's loads on FLAIR: clients with one request in flight each, all in one thread and on one socket.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use hdrhistogram::Histogram;
use inband_flair::client::{Op, Outcome, Ticket};
use inband_flair::client_node::ClientNode;
use inband_flair::clock::boot_time_ns;
use inband_flair::config::Config;
use inband_flair::timing::ClientTiming;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

use super::quota::Quota;
use crate::stats::{Buckets, Distribution};
use inband_host::wait::wait;

/// Length of a key.
const KEY_LEN_BYTES: usize = 24;
/// Time limit for starting a process and setting all keys, in addition to the counted time.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Significant digits of latencies.
const DIGITS: u8 = 3;

/// The parameters of a load.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Clients, each with one request in flight.
    pub clients: usize,
    pub read_percent: f64,
    /// Skew of the keys; 0: uniform.
    pub zipf: f64,
    /// The number of keys.
    pub keys: u64,
    /// Length of a value in bytes.
    pub value_len_bytes: usize,
    /// Time that is not counted.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
}

/// The results of a load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadReport {
    /// Requests per second.
    pub per_s: f64,
    /// Latencies of reads.
    pub reads: Distribution,
    /// Latencies of writes.
    pub writes: Distribution,
    /// Requests that timed out.
    pub errors: u64,
    /// Retransmissions.
    pub repeated: u64,
    /// Requests that ended, including those of the warm-up.
    pub ended: u64,
    /// The machine's clock when counting began, in nanoseconds.
    pub counted_from_ns: u64,
    /// Requests that ended in each interval of [`BUCKET`].
    pub buckets: Vec<u64>,
    /// The longest time without a completed request.
    pub longest_pause_ms: f64,
}

/// Interval for throughput over time.
pub const BUCKET: Duration = Duration::from_millis(20);

/// `inband-bench flair-load`.
#[derive(Debug, Args)]
pub struct FlairLoadArgs {
    /// The gateway's configuration.
    #[arg(long)]
    config: PathBuf,
    /// The file for the report.
    #[arg(long)]
    report: PathBuf,
    /// Only set every key once.
    #[arg(long)]
    fill: bool,
    #[arg(long)]
    clients: usize,
    #[arg(long)]
    read_percent: f64,
    #[arg(long)]
    zipf: f64,
    #[arg(long)]
    keys: u64,
    #[arg(long)]
    value_len_bytes: usize,
    #[arg(long)]
    warm_up_ms: u64,
    #[arg(long)]
    duration_ms: u64,
}

impl Workload {
    /// Returns the command line of a process with this load.
    pub fn arguments(&self, config: &Path, report: &Path, fills: bool) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["flair-load".into()];
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--config", config.into());
        add("--report", report.into());
        add("--clients", self.clients.to_string().into());
        add("--read-percent", self.read_percent.to_string().into());
        add("--zipf", self.zipf.to_string().into());
        add("--keys", self.keys.to_string().into());
        add("--value-len-bytes", self.value_len_bytes.to_string().into());
        add("--warm-up-ms", self.warm_up.as_millis().to_string().into());
        add(
            "--duration-ms",
            self.duration.as_millis().to_string().into(),
        );
        if fills {
            arguments.push("--fill".into());
        }
        arguments
    }

    /// Returns its time limit.
    pub fn limit(&self) -> Duration {
        START_LIMIT + self.warm_up + self.duration
    }
}

/// Runs as this process.
pub fn flair_load(args: &FlairLoadArgs) -> Result<()> {
    // Without the privilege, the load competes with other processes.
    let _first = Quota::first(std::process::id()).ok();
    let config = Config::load(&args.config)?;
    let mut load = Load::open(&config, args)?;
    if args.fill {
        return load.fill();
    }
    let report = load.measure()?;
    std::fs::write(&args.report, serde_json::to_vec(&report)?)
        .with_context(|| format!("cannot write {}", args.report.display()))
}

struct Load<'a> {
    args: &'a FlairLoadArgs,
    client: ClientNode,
    /// When each request began, and whether it is a read.
    begun: HashMap<Ticket, (u64, bool)>,
    random: SmallRng,
    zipf: Option<Zipf<f64>>,
    value: Vec<u8>,
}

/// Returns a key of fixed length. Hashing spreads hot keys over all groups.
fn key(number: u64) -> Vec<u8> {
    format!("user{number:0width$}", width = KEY_LEN_BYTES - 4).into_bytes()
}

impl<'a> Load<'a> {
    fn open(config: &Config, args: &'a FlairLoadArgs) -> Result<Load<'a>> {
        let gateway = config.host.address.context("host.address is missing")?;
        ensure!(args.keys > 0, "--keys 0: there must be one");
        let zipf = match args.zipf {
            0.0 => None,
            skew => Some(
                Zipf::new(args.keys as f64, skew)
                    .map_err(|error| anyhow::anyhow!("--zipf {skew}: {error}"))?,
            ),
        };
        Ok(Load {
            args,
            client: ClientNode::open(&config.cluster, *gateway.ip(), ClientTiming::default())?,
            begun: HashMap::new(),
            random: SmallRng::seed_from_u64(rand::random()),
            zipf,
            value: vec![b'v'; args.value_len_bytes],
        })
    }

    fn random_key(&mut self) -> Vec<u8> {
        let number = match &self.zipf {
            Some(zipf) => zipf.sample(&mut self.random) as u64 - 1,
            None => self.random.random_range(0..self.args.keys),
        };
        key(number)
    }

    fn submit(&mut self, op: Op) -> Result<()> {
        let (now, is_read) = (boot_time_ns(), op.is_read());
        let ticket = self.client.submit(op)?;
        self.begun.insert(ticket, (now, is_read));
        Ok(())
    }

    /// Waits and receives once. Returns the requests that ended.
    fn turn(&mut self) -> Result<Vec<(Ticket, Outcome)>> {
        wait(&[self.client.fd()], self.client.poll_timeout());
        self.client.poll()?;
        Ok(std::iter::from_fn(|| self.client.take_ended()).collect())
    }

    /// Sets every key.
    fn fill(&mut self) -> Result<()> {
        let (mut next, mut done) = (0, 0);
        while done < self.args.keys {
            while next < self.args.keys && self.client.under_way() < self.args.clients {
                self.submit(Op::Put(key(next), self.value.clone()))?;
                next += 1;
            }
            for (_, outcome) in self.turn()? {
                if !matches!(outcome, Outcome::Written) {
                    bail!("setting a key ended with {outcome:?}");
                }
                done += 1;
            }
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<LoadReport> {
        let from = boot_time_ns() + self.args.warm_up_ms * 1_000_000;
        let to = from + self.args.duration_ms * 1_000_000;
        let mut latencies = [Histogram::new(DIGITS)?, Histogram::new(DIGITS)?];
        let (mut errors, mut ended) = (0, 0);
        let mut buckets = Buckets::new(BUCKET);
        let (mut last_ns, mut pause_ns) = (from, 0);
        loop {
            while self.client.under_way() < self.args.clients {
                let key = self.random_key();
                let is_read = self.random.random_range(0.0..100.0) < self.args.read_percent;
                self.submit(match is_read {
                    true => Op::Get(key),
                    false => Op::Put(key, self.value.clone()),
                })?;
            }
            let outcomes = self.turn()?;
            let now = boot_time_ns();
            for (ticket, outcome) in outcomes {
                let (begun, is_read) = self.begun.remove(&ticket).context("it was begun")?;
                match outcome {
                    Outcome::Value(_) | Outcome::Written | Outcome::Missing => {
                        ended += 1;
                        if (from..to).contains(&now) {
                            latencies[usize::from(is_read)].record(now - begun)?;
                            buckets.add(Duration::from_nanos(now - from), 1);
                            pause_ns = pause_ns.max(now - last_ns);
                            last_ns = now;
                        }
                    }
                    Outcome::Failed(_) | Outcome::Unknown => errors += 1,
                }
            }
            if now >= to {
                break;
            }
        }
        let [writes, reads] = &latencies;
        let seconds = Duration::from_nanos(to - from).as_secs_f64();
        Ok(LoadReport {
            per_s: (reads.len() + writes.len()) as f64 / seconds,
            reads: Distribution::of(reads),
            writes: Distribution::of(writes),
            errors,
            repeated: self.client.repeated(),
            ended,
            counted_from_ns: from,
            buckets: buckets.counts(),
            // A pause that lasts until the end counts, too.
            longest_pause_ms: pause_ns.max(to - last_ns) as f64 / 1e6,
        })
    }
}
