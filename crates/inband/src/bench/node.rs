//! `inband bench-node`: what a benchmark runs on a replica's host in place of the store: a learner
//! that checks order, and on one of the hosts also a proposer. Prints one JSON object when done.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_dataplane::socket::BATCH_MAX;
use inband_paxos::config::Config;
use inband_paxos::log::{Burst, ReplicatedLog, ValueKind};
use inband_paxos::node::Node;
use inband_paxos::session::{SessionTable, Verdict};
use serde::{Deserialize, Serialize};

/// What the proposer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Only learn.
    Learn,
    /// One value at a time.
    Latency,
    /// As many values as the window allows, one command each.
    Saturate,
    /// As `saturate`, each value packed full of commands.
    Batched,
}

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the proposer does.
    pub load: Load,
    /// Bytes of a command.
    pub command_len_bytes: usize,
    /// Values undecided at once (saturate, batched).
    pub window: usize,
    /// Time before counting starts.
    pub warm_up: Duration,
    /// Time counted.
    pub duration: Duration,
}

/// What a node reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Values delivered in the counted time.
    pub delivered: u64,
    /// Commands in them.
    pub commands: u64,
    /// Counted time in microseconds.
    pub duration_us: u64,
    /// Submit to deliver, of this node's own values: samples.
    pub samples: u64,
    /// Percentiles in nanoseconds.
    pub p50_ns: u64,
    /// Percentiles in nanoseconds.
    pub p99_ns: u64,
    /// Values delivered out of the order they were submitted in although never repeated.
    pub out_of_order: u64,
    /// Values decided twice and delivered once.
    pub duplicates: u64,
    /// Sum over everything delivered since the start: equal on all learners if they agree.
    pub checksum: u64,
    /// Last instance delivered.
    pub last_instance: u64,
    /// Submissions that failed.
    pub failed: u64,
}

const STAMP_LEN_BYTES: usize = 16;
/// Time a learner keeps going after its counted time, so that all learners see the same end.
const LINGER: Duration = Duration::from_millis(700);

struct Bench {
    node: Node,
    options: Options,
    started: Instant,
    sessions: SessionTable,
    latency_ns: Histogram<u64>,
    report: Report,
    next: u64,
    outstanding: usize,
    /// Highest number seen of each proposer.
    last_seen: BTreeMap<u64, u64>,
    value: Vec<u8>,
}

/// Run until the time is up; the report goes to standard output.
pub fn run(config_path: &Path, dataplane: &str, options: Options) -> Result<()> {
    let config = Config::load(config_path)?;
    let dataplane = dataplane.parse().map_err(anyhow::Error::msg)?;
    let node = Node::open(&config, dataplane, &[config.cluster.first_instances[0] - 1])?;
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
    let mut bench = Bench {
        node,
        started: Instant::now(),
        sessions: SessionTable::new(),
        latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3).context("histogram")?,
        report: Report {
            delivered: 0,
            commands: 0,
            duration_us: 0,
            samples: 0,
            p50_ns: 0,
            p99_ns: 0,
            out_of_order: 0,
            duplicates: 0,
            checksum: 0,
            last_instance: 0,
            failed: 0,
        },
        next: 1,
        outstanding: 0,
        last_seen: BTreeMap::new(),
        value: vec![0; options.command_len_bytes * per_value],
        options,
    };
    bench.run()?;
    println!("{}", serde_json::to_string(&bench.report)?);
    Ok(())
}

impl Bench {
    fn run(&mut self) -> Result<()> {
        let mut burst = Burst::new();
        let total = self.options.warm_up + self.options.duration;
        loop {
            let elapsed = self.started.elapsed();
            if elapsed >= total + LINGER {
                break;
            }
            if elapsed < total {
                self.submit()?;
            }
            self.node.poll(std::slice::from_mut(&mut burst));
            if burst.is_empty() && self.outstanding == 0 && self.options.load == Load::Learn {
                // A learner that only learns gives way: cores are fewer than hosts here.
                self.wait();
            }
            self.take(&burst);
            burst.clear();
        }
        if self.report.failed > 0 {
            bail!(
                "{} submissions failed: the cluster did not keep up",
                self.report.failed
            );
        }
        self.report.duration_us = self.options.duration.as_micros() as u64;
        self.report.samples = self.latency_ns.len();
        self.report.p50_ns = self.latency_ns.value_at_quantile(0.5);
        self.report.p99_ns = self.latency_ns.value_at_quantile(0.99);
        Ok(())
    }

    fn wait(&self) {
        use nix::poll::{ppoll, PollFd, PollFlags};
        let fds: Vec<_> = self
            .node
            .wake_fds()
            .into_iter()
            .filter_map(inband_dataplane::socket::borrow)
            .collect();
        let mut polled: Vec<PollFd<'_>> = fds
            .iter()
            .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
            .collect();
        let timeout = self.node.poll_timeout().min(Duration::from_millis(20));
        let _ = ppoll(&mut polled, Some(timeout.into()), None);
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn submit(&mut self) -> Result<()> {
        let window = match self.options.load {
            Load::Learn => return Ok(()),
            Load::Latency => 1,
            Load::Saturate | Load::Batched => self.options.window,
        };
        // A few at a time, so that deliveries are taken in between.
        for _ in 0..BATCH_MAX {
            if self.outstanding >= window || self.node.submit_room(0) == 0 {
                return Ok(());
            }
            let now = self.now_ns();
            self.value[..8].copy_from_slice(&self.next.to_be_bytes());
            self.value[8..16].copy_from_slice(&now.to_be_bytes());
            self.node.submit(0, &self.value)?;
            self.next += 1;
            self.outstanding += 1;
        }
        Ok(())
    }

    fn take(&mut self, burst: &Burst) {
        let now = self.now_ns();
        let from = self.options.warm_up.as_nanos() as u64;
        let until = from + self.options.duration.as_nanos() as u64;
        for decided in burst.decided() {
            let verdict = self.sessions.admit(decided.instance, &decided.origin);
            self.report.last_instance = decided.instance;
            if let Some(ticket) = decided.ticket {
                self.node.answered(ticket);
            }
            if decided.origin.kind != ValueKind::Command {
                continue;
            }
            if verdict != Verdict::Apply {
                self.report.duplicates += 1;
                continue;
            }
            let stamp = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&decided.value[at..at + 8]);
                u64::from_be_bytes(word)
            };
            let (number, sent_ns) = (stamp(0), stamp(8));
            let proposer = decided.origin.client_id;
            let last_seen = self.last_seen.entry(proposer).or_default();
            self.report.out_of_order += u64::from(number < *last_seen);
            *last_seen = (*last_seen).max(number);
            let mixed = self.report.checksum.rotate_left(5) ^ number ^ (proposer << 40);
            self.report.checksum = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if decided.ticket.is_some() {
                self.outstanding -= 1;
                if (from..until).contains(&sent_ns) {
                    self.latency_ns
                        .saturating_record(now.saturating_sub(sent_ns));
                }
            }
            if (from..until).contains(&now) {
                self.report.delivered += 1;
                self.report.commands +=
                    (decided.value.len() / self.options.command_len_bytes) as u64;
            }
        }
        if burst.decided().len() > 0 {
            self.node.applied(0, self.report.last_instance);
        }
        self.report.failed += burst.failed.len() as u64;
        self.outstanding -= burst.failed.len();
    }
}
