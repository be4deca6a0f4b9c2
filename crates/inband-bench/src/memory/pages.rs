//! A program that times accesses to the pages of its heap, and the code that starts it, either directly or under
//! `inband memory run`.

use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::SplitAsciiWhitespace;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use inband_memory::heap::PAGE_LEN_BYTES;
use inband_memory::lines::LINE_LEN_BYTES;

/// Maximum number of accesses in one measurement.
pub const ACCESSES_MAX: usize = 1 << 20;
/// Durations of the accesses in ns. Not in the heap, whose pages are measured.
static TIMES_NS: [AtomicU32; ACCESSES_MAX] = [const { AtomicU32::new(0) }; ACCESSES_MAX];
const READY: &str = "ready";
/// Distance between two successive accesses: a prime, so that read-ahead does not help.
const STRIDE: u64 = 2_147_483_647;
/// Time limit for it to exit.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Options of the hidden `inband-bench memory-pages`. It reads commands from its standard input and answers on its
/// standard output.
#[derive(Debug, Args)]
pub struct MemoryPagesArgs {
    /// Pages to measure.
    #[arg(long)]
    pages: u64,
    /// Additional pages, which evict the measured ones from the buffer.
    #[arg(long)]
    rest: u64,
    /// Do not write to a page before it is measured, so that the first access is a page fault handled by the kernel.
    #[arg(long)]
    untouched: bool,
}

/// A kind of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

impl Access {
    pub const ALL: [Access; 2] = [Access::Write, Access::Read];

    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// Returns the position of the n-th access out of `of`: each position is accessed once, and successive ones are not
/// adjacent.
pub fn place(n: u64, of: u64) -> u64 {
    // A prime is coprime to every smaller number.
    (n % of) * (STRIDE % of.max(2)).max(1) % of
}

/// The pages of the heap.
struct Heap {
    bytes: Vec<u8>,
    pages: u64,
    rest: u64,
    is_filled: bool,
}

impl Heap {
    fn first_byte(&self, page: u64) -> usize {
        page as usize * PAGE_LEN_BYTES
    }

    /// Returns the content of a page's first bytes.
    fn number(&self, page: u64) -> u64 {
        let at = self.first_byte(page);
        let bytes = self.bytes[at..at + 8].try_into().expect("8 bytes");
        u64::from_ne_bytes(bytes)
    }

    fn set_number(&mut self, at: usize, number: u64) {
        self.bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
    }

    fn fill(&mut self) {
        for page in 0..self.pages + self.rest {
            for line in 0..PAGE_LEN_BYTES / LINE_LEN_BYTES {
                self.set_number(self.first_byte(page) + line * LINE_LEN_BYTES, page);
            }
        }
    }

    /// Evicts the measured pages from the buffer.
    fn settle(&self) {
        for page in self.pages..self.pages + self.rest {
            black_box(self.number(page));
        }
    }

    /// Times one access, and counts the page as wrong if it does not contain its number.
    fn access(&mut self, access: Access, page: u64, wrong: &mut u64) -> Duration {
        match access {
            Access::Read => {
                let began = Instant::now();
                let number = black_box(self.number(page));
                let took = began.elapsed();
                let expected = if self.is_filled { page } else { 0 };
                *wrong += u64::from(number != expected);
                took
            }
            Access::Write => {
                let at = self.first_byte(page) + LINE_LEN_BYTES;
                let began = Instant::now();
                self.set_number(at, !page);
                black_box(&self.bytes[at]);
                began.elapsed()
            }
        }
    }
}

/// Runs as the program: answers commands until the input ends.
pub fn memory_pages(args: &MemoryPagesArgs) -> Result<()> {
    // A huge page would avoid 511 of 512 faults.
    nix::sys::prctl::set_thp_disable(true)?;
    let len = (args.pages + args.rest) as usize * PAGE_LEN_BYTES;
    let mut heap = Heap {
        bytes: vec![0; len],
        pages: args.pages,
        rest: args.rest,
        is_filled: !args.untouched,
    };
    if heap.is_filled {
        heap.fill();
    }
    let mut output = io::stdout().lock();
    writeln!(output, "{READY}")?;
    output.flush()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        let mut wrong = 0;
        let count = match words.next() {
            Some("settle") => {
                heap.settle();
                0
            }
            Some("read") => slice(&mut heap, Access::Read, words, &mut wrong)?,
            Some("write") => slice(&mut heap, Access::Write, words, &mut wrong)?,
            Some("watch") => watch(&mut heap, words, &mut wrong)?,
            _ => bail!("{line:?} is not a command"),
        };
        let mut answer = Vec::with_capacity(8 + 4 * count);
        answer.extend((count as u32).to_ne_bytes());
        answer.extend((wrong as u32).to_ne_bytes());
        for time in &TIMES_NS[..count] {
            answer.extend(time.load(Ordering::Relaxed).to_ne_bytes());
        }
        output.write_all(&answer)?;
        output.flush()?;
    }
    Ok(())
}

fn numbers<const N: usize>(words: SplitAsciiWhitespace<'_>) -> Result<[u64; N]> {
    let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>()?;
    let numbers = numbers.try_into();
    numbers.map_err(|_| anyhow::anyhow!("this command takes {N} numbers"))
}

fn record(count: usize, took: Duration) {
    let ns = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
    TIMES_NS[count].store(ns, Ordering::Relaxed);
}

/// Makes `count` accesses from the n-th on. Returns their number.
fn slice(
    heap: &mut Heap,
    access: Access,
    words: SplitAsciiWhitespace<'_>,
    wrong: &mut u64,
) -> Result<usize> {
    let [from, count] = numbers(words)?;
    for n in 0..count {
        let page = place(from + n, heap.pages);
        record(n as usize, heap.access(access, page, wrong));
    }
    Ok(count as usize)
}

/// Alternates reads and writes for this many ms. Returns their number.
fn watch(heap: &mut Heap, words: SplitAsciiWhitespace<'_>, wrong: &mut u64) -> Result<usize> {
    let [ms] = numbers(words)?;
    let (began, duration) = (Instant::now(), Duration::from_millis(ms));
    let mut count = 0;
    while began.elapsed() < duration && count < ACCESSES_MAX {
        let access = Access::ALL[count % 2];
        let page = place(count as u64, heap.pages);
        record(count, heap.access(access, page, wrong));
        count += 1;
    }
    Ok(count)
}

/// The program as a child process.
pub struct Pages {
    // Closing the input ends the program.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    child: Child,
}

impl Pages {
    /// Starts it, directly or under `inband memory run`, and waits until its pages are filled.
    pub fn start(runner: Option<Command>, pages: u64, rest: u64) -> Result<Pages> {
        let this = std::env::current_exe().context("finding this program")?;
        let is_local = runner.is_none();
        let mut command = match runner {
            Some(mut runner) => {
                runner.arg(this);
                runner
            }
            None => Command::new(this),
        };
        command
            .arg("memory-pages")
            .arg(format!("--pages={pages}"))
            .arg(format!("--rest={rest}"));
        if is_local {
            command.arg("--untouched");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        let mut pages = Pages {
            input: child.stdin.take(),
            output,
            child,
        };
        let mut line = String::new();
        pages.output.read_line(&mut line)?;
        ensure!(
            line.trim() == READY,
            "{command:?} ended instead of filling its pages"
        );
        Ok(pages)
    }

    fn tell(&mut self, command: &str) -> Result<()> {
        let input = self.input.as_mut().context("it was told to end")?;
        writeln!(input, "{command}").context("the program that accesses pages has ended")
    }

    /// Returns the durations of all accesses of the last command, in ns.
    pub fn answer(&mut self) -> Result<Vec<u32>> {
        let mut number = || -> Result<u32> {
            let mut bytes = [0; 4];
            let read = self.output.read_exact(&mut bytes);
            read.context("the program that accesses pages has ended")?;
            Ok(u32::from_ne_bytes(bytes))
        };
        let (count, wrong) = (number()?, number()?);
        let times = (0..count).map(|_| number()).collect::<Result<_>>()?;
        ensure!(wrong == 0, "{wrong} pages differ from what was written");
        Ok(times)
    }

    /// Evicts the measured pages from the buffer.
    pub fn settle(&mut self) -> Result<()> {
        self.tell("settle")?;
        self.answer().map(drop)
    }

    /// Makes `count` accesses from the n-th on.
    pub fn measure(&mut self, access: Access, from: u64, count: u64) -> Result<Vec<u32>> {
        self.tell(&format!("{} {from} {count}", access.name()))?;
        self.answer()
    }

    /// Starts accesses for this long; [`Self::answer`] waits for the end.
    pub fn watch(&mut self, duration: Duration) -> Result<()> {
        self.tell(&format!("watch {}", duration.as_millis()))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.input = None;
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_accessed_once_and_none_after_its_neighbour() {
        for of in [100, 400, 4096, 99_991, 100_000] {
            let places: Vec<u64> = (0..of).map(|n| place(n, of)).collect();
            assert!(places.windows(2).all(|w| w[0] + 1 != w[1]), "{of}");
            let different: std::collections::BTreeSet<u64> = places.into_iter().collect();
            assert_eq!(different.len() as u64, of);
        }
    }
}
