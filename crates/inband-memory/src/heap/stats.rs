//! The pager's counters, and the socket that publishes them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use inband_host::line_json::{call, Server};
use serde::{Deserialize, Serialize};

use super::pager::Pager;
use super::PAGE_LEN_BYTES;
use crate::lines::LINE_LEN_BYTES;

/// The longest latency that the histogram distinguishes.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// The subdirectory of a cluster's directory with a socket for each program.
const FOLDER: &str = "programs";
/// How long a program's pager may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Counters of one program.
pub struct Stats {
    /// Faults whose page had to be fetched.
    pub fetched: AtomicU64,
    /// Faults on pages that had not been written yet.
    pub zeros: AtomicU64,
    /// Faults whose page was found in the buffer.
    pub hits: AtomicU64,
    /// Pages read ahead, before the program asked for them.
    pub read_ahead: AtomicU64,
    pub evicted: AtomicU64,
    pub pages_written: AtomicU64,
    pub lines_written: AtomicU64,
    pub pages_read: AtomicU64,
    /// Transfers that had to be retried.
    pub retries: AtomicU64,
    latency: Mutex<Histogram<u64>>,
}

impl Default for Stats {
    fn default() -> Stats {
        let latency = Histogram::new_with_bounds(100, LATENCY_MAX_NS, 3);
        Stats {
            fetched: AtomicU64::new(0),
            zeros: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            pages_written: AtomicU64::new(0),
            lines_written: AtomicU64::new(0),
            pages_read: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            latency: Mutex::new(latency.expect("the bounds are valid")),
        }
    }
}

impl Stats {
    /// Records the latency of a resolved fault.
    pub fn resolved(&self, after: Duration) {
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.saturating_record(after.as_nanos() as u64);
    }

    /// Returns the counts so far.
    pub fn figures(&self) -> Figures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
        Figures {
            fetched: read(&self.fetched),
            zeros: read(&self.zeros),
            hits: read(&self.hits),
            read_ahead: read(&self.read_ahead),
            evicted: read(&self.evicted),
            pages_written: read(&self.pages_written),
            bytes_written: read(&self.lines_written) * LINE_LEN_BYTES as u64,
            bytes_read: read(&self.pages_read) * PAGE_LEN_BYTES as u64,
            retries: read(&self.retries),
            p50_us: us(0.5),
            p99_us: us(0.99),
            longest_us: latency.max() as f64 / 1000.0,
        }
    }
}

/// Adds `n` to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A snapshot of [`Stats`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Figures {
    pub fetched: u64,
    pub zeros: u64,
    pub hits: u64,
    pub read_ahead: u64,
    pub evicted: u64,
    pub pages_written: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub retries: u64,
    /// Time from when the pager reads a fault until the page is mapped.
    pub p50_us: f64,
    pub p99_us: f64,
    pub longest_us: f64,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

impl Figures {
    /// Returns the number of all faults.
    pub fn faults(&self) -> u64 {
        self.fetched + self.zeros + self.hits
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures {
            fetched,
            zeros,
            hits,
            ..
        } = self;
        writeln!(
            f,
            "faults        {} ({fetched} fetched, {hits} found in the buffer, {zeros} new)",
            self.faults()
        )?;
        writeln!(
            f,
            "read          {:.1} MiB; {} pages got ready ahead",
            mib(self.bytes_read),
            self.read_ahead
        )?;
        writeln!(
            f,
            "written       {:.1} MiB, of {} pages",
            mib(self.bytes_written),
            self.pages_written
        )?;
        writeln!(f, "evicted       {} pages", self.evicted)?;
        writeln!(f, "tried again   {}", self.retries)?;
        write!(
            f,
            "pager's time  p50 {:.1} us, p99 {:.1} us, longest {:.1} us",
            self.p50_us, self.p99_us, self.longest_us
        )
    }
}

/// A program that runs under `inband memory run`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Program {
    /// Its name as given on the command line.
    pub name: String,
    pub pid: u32,
    /// Size of its pager's buffer in bytes.
    pub buffer_bytes: u64,
    /// Its pager's counters.
    pub figures: Figures,
}

impl Program {
    /// Formats a line of `top`: rates since `before`, taken `every` earlier.
    pub fn line(&self, before: &Figures, every: Duration) -> String {
        let now = &self.figures;
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / every.as_secs_f64();
        format!(
            "  {} ({}): {:.0} faults/s ({:.0} fetched, {:.0} found in the buffer), {:.0} evictions/s, read {:.1} MiB/s, written {:.1} MiB/s, pager's time p50 {:.0} us, p99 {:.0} us",
            self.name,
            self.pid,
            rate(now.faults(), before.faults()),
            rate(now.fetched, before.fetched),
            rate(now.hits, before.hits),
            rate(now.evicted, before.evicted),
            rate(now.bytes_read, before.bytes_read) / mib_in_bytes(),
            rate(now.bytes_written, before.bytes_written) / mib_in_bytes(),
            now.p50_us,
            now.p99_us
        )
    }
}

fn mib_in_bytes() -> f64 {
    f64::from(1 << 20)
}

/// Publishes the pager's counters at a socket in the cluster's directory.
pub(super) fn publish(
    dir: &Path,
    name: String,
    pid: u32,
    buffer_bytes: u64,
    pager: Arc<Pager>,
) -> io::Result<Server> {
    let folder = dir.join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    let answer = move |(): ()| {
        Ok(Program {
            name: name.clone(),
            pid,
            buffer_bytes,
            figures: pager.stats.figures(),
        })
    };
    Server::start::<(), Result<Program, String>>(&folder.join(format!("{pid}.socket")), answer, Err)
}

/// Returns the programs on this machine that use a cluster, ordered by process id. A program that does not answer has
/// ended.
pub fn programs(dir: &Path) -> Vec<Program> {
    let Ok(entries) = std::fs::read_dir(dir.join(FOLDER)) else {
        return Vec::new();
    };
    let sockets = entries.flatten().map(|entry| entry.path());
    let ask = |path: PathBuf| call::<(), Result<Program, String>>(&path, &(), ANSWER_TIMEOUT);
    let mut programs: Vec<Program> = sockets.filter_map(|path| ask(path).ok()?.ok()).collect();
    programs.sort_by_key(|program| program.pid);
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_since_before() {
        let before = Figures {
            fetched: 10,
            hits: 5,
            ..Figures::default()
        };
        let figures = Figures {
            fetched: 30,
            hits: 5,
            zeros: 2,
            bytes_read: 4 << 20,
            ..Figures::default()
        };
        let program = Program {
            name: "sort".into(),
            pid: 7,
            buffer_bytes: 1,
            figures,
        };
        let line = program.line(&before, Duration::from_secs(2));
        assert!(
            line.starts_with("  sort (7): 11 faults/s (10 fetched, 0 found in the buffer), 0 evictions/s, read 2.0 MiB/s"),
            "{line}"
        );
    }
}
