//! `inband-bench node`: runs on a replica's host in place of the store. A learner that checks the order of values and,
//! on some hosts, also a proposer. Prints one JSON object when done.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_ground::socket::BATCH_MAX;
use inband_paxos::config::{Config, Dataplane};
use inband_paxos::log::{Burst, Decided, ReplicatedLog, ValueKind};
use inband_paxos::node::Node;
use inband_paxos::session::{SessionTable, Verdict};
use rocksdb::{WriteBatch, DB};
use serde::{Deserialize, Serialize};

use super::rocks;
use super::stats::{Distribution, Pace};

/// What the proposer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Only learn.
    Learn,
    /// Run, but expect no values.
    Idle,
    /// One value at a time.
    Latency,
    /// As many values as the window allows, one command each.
    Saturate,
    /// As `saturate`, each value packed full of commands.
    Batched,
    /// A fixed rate, regardless of the answers.
    Paced,
}

#[derive(Debug, Clone)]
pub struct Options {
    /// What the proposer does.
    pub load: Load,
    /// Bytes of a command.
    pub command_len_bytes: usize,
    /// Undecided values in flight (saturate, batched, paced).
    pub window: usize,
    /// Values per second (paced).
    pub rate_per_s: f64,
    /// Put what is delivered into RocksDB, one database per partition, in this directory.
    pub rocksdb: Option<PathBuf>,
    /// Time from the first delivered value until counting starts; from the start of the process if none of the learners
    /// proposes.
    pub warm_up: Duration,
    /// Time counted.
    pub duration: Duration,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Values delivered in the counted time.
    pub delivered: u64,
    /// Commands in them.
    pub commands: u64,
    /// Counted time in microseconds.
    pub duration_us: u64,
    /// Submit to deliver (with a store: to written), of this node's own values. With a paced load, from when a value
    /// was due.
    pub latency: Distribution,
    /// Values delivered out of order although they were never retransmitted.
    pub out_of_order: u64,
    /// Values decided twice and delivered once.
    pub duplicates: u64,
    /// For each log, the last instance delivered, and the checksum up to it.
    pub last: Vec<Position>,
    /// The same at every instance that is a multiple of [`POSITIONS_EVERY`], to compare learners that stopped at
    /// different instances.
    pub positions: Vec<Vec<Position>>,
    pub failed: u64,
}

/// A learner's position in a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The last instance delivered.
    pub instance: u64,
    /// Covers every value delivered since the start, in order: equal at all learners that agree.
    pub checksum: u64,
}

/// Instances between two positions of a report.
pub const POSITIONS_EVERY: u64 = 64;
/// Printed when counting starts.
pub const COUNTING: &str = "counting";

const STAMP_LEN_BYTES: usize = 16;
/// How long the first value may take.
const FIRST_LIMIT: Duration = Duration::from_secs(15);
/// How long a learner continues after its counted time, so that all learners see the same end.
const LINGER: Duration = Duration::from_millis(700);
/// Keys for storing values, per partition.
const KEYS: u64 = 100_000;
/// Longest sleep of a learner that only learns.
const IDLE_MAX: Duration = Duration::from_millis(20);

struct Bench {
    node: Node,
    /// Whether a proposer sleeps while it waits for decisions: needed if the roles are processes that compete for its
    /// core.
    sleeps: bool,
    options: Options,
    started: Instant,
    logs: Vec<Log>,
    /// Logs that take values: all but the one for commands over several partitions.
    partitions: usize,
    latency_ns: Histogram<u64>,
    report: Report,
    next: u64,
    pace: Pace,
    /// When the warm-up began; `None` before the first value.
    base_ns: Option<u64>,
    is_counting: bool,
    /// Own values delivered.
    own: u64,
    outstanding: usize,
    value: Vec<u8>,
}

/// A learner's state of one log.
#[derive(Default)]
struct Log {
    sessions: SessionTable,
    /// Highest sequence number seen from each proposer.
    last_seen: BTreeMap<u64, u64>,
    last: Position,
    positions: Vec<Position>,
    store: Option<DB>,
    batch: WriteBatch,
}

/// Runs until the time is up and prints the report to standard output.
pub fn run(config_path: &Path, dataplane: &str, options: Options) -> Result<()> {
    let config = Config::load(config_path)?;
    let dataplane = dataplane.parse().map_err(anyhow::Error::msg)?;
    let firsts = config.cluster.first_instances.iter();
    let applied: Vec<u64> = firsts.map(|first| first - 1).collect();
    let node = Node::open(&config, dataplane, &applied)?;
    ensure!(
        options.command_len_bytes >= STAMP_LEN_BYTES
            && options.command_len_bytes <= node.max_value_len_bytes(),
        "command of {} bytes: the benchmark needs {STAMP_LEN_BYTES}..={}",
        options.command_len_bytes,
        node.max_value_len_bytes()
    );
    let per_value = match options.load {
        Load::Batched => node.max_value_len_bytes() / options.command_len_bytes,
        _ => 1,
    };
    let mut logs: Vec<Log> = applied.iter().map(|_| Log::default()).collect();
    let partitions = config.cluster.partitions as usize;
    if let Some(dir) = &options.rocksdb {
        for (at, log) in logs.iter_mut().take(partitions).enumerate() {
            log.store = Some(rocks::open(&dir.join(format!("{at}")))?);
        }
    }
    let mut bench = Bench {
        sleeps: node.dataplane() == Dataplane::Udp,
        node,
        started: Instant::now(),
        logs,
        partitions,
        latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3).context("histogram")?,
        report: Report::default(),
        next: 1,
        pace: Pace::new(options.rate_per_s),
        base_ns: matches!(options.load, Load::Idle).then_some(0),
        is_counting: false,
        own: 0,
        outstanding: 0,
        value: vec![0; options.command_len_bytes * per_value],
        options,
    };
    bench.run()?;
    println!("{}", serde_json::to_string(&bench.report)?);
    Ok(())
}

impl Bench {
    fn run(&mut self) -> Result<()> {
        let mut bursts = Burst::for_logs(self.logs.len());
        loop {
            let now_ns = self.now_ns();
            let (from, until) = self.counted();
            if now_ns >= until.saturating_add(LINGER.as_nanos() as u64) {
                break;
            }
            ensure!(
                self.base_ns.is_some() || now_ns < FIRST_LIMIT.as_nanos() as u64,
                "nothing was delivered within {FIRST_LIMIT:?}"
            );
            if !self.is_counting && now_ns >= from {
                self.is_counting = true;
                println!("{COUNTING}");
            }
            let waits = now_ns >= until || self.submit()?;
            self.node.poll(&mut bursts);
            if bursts.iter().all(Burst::is_empty) && waits && self.may_sleep() {
                self.wait();
            }
            for (at, burst) in bursts.iter_mut().enumerate() {
                self.take(at, burst)?;
                burst.clear();
            }
        }
        self.report.duration_us = self.options.duration.as_micros() as u64;
        self.report.latency = Distribution::of(&self.latency_ns);
        for log in &mut self.logs {
            self.report.last.push(log.last);
            self.report
                .positions
                .push(std::mem::take(&mut log.positions));
        }
        Ok(())
    }

    /// A learner that only learns yields the CPU, because there are fewer cores than hosts.
    fn may_sleep(&self) -> bool {
        match self.options.load {
            Load::Learn | Load::Idle => self.outstanding == 0,
            Load::Saturate | Load::Batched => self.sleeps,
            Load::Latency | Load::Paced => false,
        }
    }

    fn wait(&self) {
        let timeout = self.node.poll_timeout().min(IDLE_MAX);
        inband_ground::socket::wait_readable(self.node.wake_fds(), timeout);
    }

    /// Start and end of the counted time.
    fn counted(&self) -> (u64, u64) {
        let Some(base_ns) = self.base_ns else {
            return (u64::MAX, u64::MAX);
        };
        let from = base_ns + self.options.warm_up.as_nanos() as u64;
        (from, from + self.options.duration.as_nanos() as u64)
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Submits a few values. Returns true if no more should be submitted now.
    fn submit(&mut self) -> Result<bool> {
        let window = match self.options.load {
            Load::Learn | Load::Idle => return Ok(true),
            Load::Latency => 1,
            // A pace begins when every partition has a leader, so that there is no backlog.
            Load::Paced if self.own < self.partitions as u64 => 1,
            Load::Saturate | Load::Batched | Load::Paced => self.options.window,
        };
        // A few at a time, so that deliveries are handled in between.
        for _ in 0..BATCH_MAX {
            let partition = self.next as usize % self.partitions;
            if self.outstanding >= window || self.node.submit_room(partition) == 0 {
                return Ok(true);
            }
            let now_ns = self.now_ns();
            let stamp_ns = match self.options.load {
                Load::Paced if window > 1 => match self.pace.take(now_ns) {
                    Some(due_ns) => due_ns,
                    None => return Ok(true),
                },
                _ => now_ns,
            };
            self.value[..8].copy_from_slice(&self.next.to_be_bytes());
            self.value[8..16].copy_from_slice(&stamp_ns.to_be_bytes());
            self.node.submit(partition, &self.value)?;
            self.next += 1;
            self.outstanding += 1;
        }
        Ok(false)
    }

    fn take(&mut self, at: usize, burst: &Burst) -> Result<()> {
        let log = &mut self.logs[at];
        if let Some(store) = &log.store {
            for decided in burst.decided() {
                if decided.origin.kind == ValueKind::Command {
                    let key = format!("key:{:012}", scattered(stamps(&decided).0) % KEYS);
                    log.batch.put(key, decided.value);
                }
            }
            store.write(std::mem::take(&mut log.batch))?;
        }
        let now = self.now_ns();
        let (from, until) = self.counted();
        let is_counted = (from..until).contains(&now);
        let (log, report) = (&mut self.logs[at], &mut self.report);
        for decided in burst.decided() {
            let verdict = log.sessions.admit(decided.instance, &decided.origin);
            if let Some(ticket) = decided.ticket {
                self.node.answered(ticket);
            }
            log.reach(decided.instance);
            if decided.origin.kind != ValueKind::Command {
                continue;
            }
            if verdict != Verdict::Apply {
                report.duplicates += 1;
                continue;
            }
            let (number, sent_ns) = stamps(&decided);
            let proposer = decided.origin.client_id;
            let last_seen = log.last_seen.entry(proposer).or_default();
            report.out_of_order += u64::from(number < *last_seen);
            *last_seen = (*last_seen).max(number);
            let mixed = log.last.checksum.rotate_left(5) ^ number ^ (proposer << 40);
            log.last.checksum = scattered(mixed);
            self.base_ns.get_or_insert(now);
            if decided.ticket.is_some() {
                self.outstanding -= 1;
                self.own += 1;
                if (from..until).contains(&sent_ns) {
                    self.latency_ns
                        .saturating_record(now.saturating_sub(sent_ns));
                }
            }
            if is_counted {
                report.delivered += 1;
                report.commands += (decided.value.len() / self.options.command_len_bytes) as u64;
            }
        }
        if burst.decided().len() > 0 {
            self.node.applied(at, log.last.instance);
        }
        report.failed += burst.failed.len() as u64;
        self.outstanding -= burst.failed.len();
        Ok(())
    }
}

impl Log {
    /// The values before this instance are delivered: records the position if learners are compared there.
    fn reach(&mut self, instance: u64) {
        if instance % POSITIONS_EVERY == 0 && instance > self.last.instance {
            self.positions.push(Position {
                instance,
                checksum: self.last.checksum,
            });
        }
        self.last.instance = instance;
    }
}

/// Returns a value's sequence number at its proposer, and when it was submitted.
fn stamps(decided: &Decided<'_>) -> (u64, u64) {
    let stamp = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&decided.value[at..at + 8]);
        u64::from_be_bytes(word)
    };
    (stamp(0), stamp(8))
}

fn scattered(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
