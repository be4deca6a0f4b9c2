//! `inband memory top`.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use inband_memory::cluster::{Cluster, ClusterArgs};
use inband_memory::heap::stats::{programs, Program};
use inband_memory::lines::{Chunk, Lines, Transfer, CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::status::{status_at, Status};

/// Options of top.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Milliseconds between two lines
    #[arg(long, default_value_t = 1_000, value_name = "MS")]
    every_ms: u64,
    /// Number of lines to print; 0: until Ctrl-C
    #[arg(long, default_value_t = 0)]
    count: u64,
}

/// Returns the status of all nodes that answer. A cluster that runs elsewhere has no control sockets here, so its nodes
/// are not asked.
fn ask(cluster: &ClusterArgs) -> Result<Vec<Status>> {
    if !cluster.switches.is_empty() {
        return Ok(Vec::new());
    }
    let cluster = Cluster::load(&cluster.data)?;
    let nodes = cluster.sockets.values();
    Ok(nodes.filter_map(|socket| status_at(socket).ok()).collect())
}

/// Sums of the switches' counters.
#[derive(Default, Clone, Copy)]
struct Sums {
    reads: u64,
    fast: u64,
    write_backs: u64,
    writes: u64,
}

fn sums(nodes: &[Status]) -> Sums {
    let mut sums = Sums::default();
    for status in nodes {
        let of = |name: &str| status.counters.get(name).copied().unwrap_or(0);
        sums.fast += of("memory_read_done");
        sums.write_backs += of("memory_write_back_done");
        sums.writes += of("memory_write_done");
    }
    sums.reads = sums.fast + sums.write_backs;
    sums
}

impl TopArgs {
    pub fn run(&self) -> Result<()> {
        let data = &self.cluster.data;
        let mut before = sums(&ask(&self.cluster)?);
        if !self.cluster.switches.is_empty() {
            println!(
                "The nodes' counters are not available here: run inband memory status --data DIR on their machines"
            );
        }
        let mut programs_before: Vec<Program> = programs(data);
        let mut memory = self.cluster.connect()?;
        let every = Duration::from_millis(self.every_ms.max(10));
        println!("   reads/s  fast path  write-backs/s   writes/s   own read of a chunk: p50     p99      max");
        for line in 1.. {
            let until = Instant::now() + every;
            let mut took = Vec::new();
            while Instant::now() < until {
                let began = Instant::now();
                let mut into: Chunk = [[0; LINE_LEN_BYTES]; CHUNK_LINES];
                let read = Transfer::Read {
                    chunk: 0,
                    lines: u16::MAX,
                    into: &mut into,
                };
                memory.transfer(&mut [read])?;
                took.push(began.elapsed());
                std::thread::sleep(Duration::from_millis(5));
            }
            took.sort_unstable();
            let at =
                |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_nanos() as f64 / 1e3;
            let now = sums(&ask(&self.cluster)?);
            let rate =
                |now: u64, before: u64| now.saturating_sub(before) as f64 / every.as_secs_f64();
            let reads = now.reads.saturating_sub(before.reads).max(1);
            let fast = now.fast.saturating_sub(before.fast) as f64 / reads as f64;
            println!(
                "{:>10.0} {:>9.1}% {:>14.0} {:>10.0} {:>24.0} us {:>6.0} us {:>6.0} us",
                rate(now.reads, before.reads),
                100.0 * fast,
                rate(now.write_backs, before.write_backs),
                rate(now.writes, before.writes),
                at(0.5),
                at(0.99),
                at(1.0)
            );
            let running = programs(data);
            for program in &running {
                let same = programs_before
                    .iter()
                    .find(|other| other.pid == program.pid);
                let before = same.map(|other| other.figures.clone());
                println!("{}", program.line(&before.unwrap_or_default(), every));
            }
            programs_before = running;
            before = now;
            if line == self.count {
                break;
            }
        }
        Ok(())
    }
}
