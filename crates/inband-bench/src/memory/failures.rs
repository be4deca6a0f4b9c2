//! Kills a server or the switch: the longest access of a client to a line and to a page.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Result};
use inband_memory::heap::PAGE_LEN_BYTES;
use inband_memory::lines::{Lines, Transfer, CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::memory::Memory as Client;
use inband_paxos::config::Dataplane;

use super::pages::Pages;
use super::testbed::{Testbed, TestbedSpec};
use super::{goal_at_most, row, Run};
use crate::row::{median, number, progress, Baseline, Output};

/// The part of the memory for the program's heap; lines are in the other part.
const HALF_BYTES: u64 = 16 << 20;
const PAGES: u64 = 1024;
const BUFFER_PAGES: u64 = 64;
/// Time watched before and after the failure.
const HALF_TIME: Duration = Duration::from_millis(500);
const ROLES: [(&str, &str, f64); 2] = [
    ("server/1", "server killed", 5.0),
    ("switch", "switch killed", 50.0),
];

const UNDISTURBED: u8 = 0;
const KILLED: u8 = 1;
const OVER: u8 = 2;

/// The longest access before and after the failure.
#[derive(Debug, Clone, Copy, Default)]
struct Longest {
    before: Duration,
    after: Duration,
    /// Accesses that ended after the failure.
    count_after: u64,
}

impl Longest {
    fn add(&mut self, took: Duration, is_after: bool) {
        let longest = match is_after {
            true => &mut self.after,
            false => &mut self.before,
        };
        *longest = took.max(*longest);
        self.count_after += u64::from(is_after);
    }
}

/// The kind of access, the metrics of its longest access (median and maximum of all rounds), and where to find it.
type Kind = (&'static str, [&'static str; 2], fn(&Seen) -> Longest);

/// The observations of clients in one round.
struct Seen {
    lines: Longest,
    pages: Longest,
}

/// Reads and writes lines, one at a time, until the phase is over.
fn access_lines(mut client: Client, phase: &AtomicU8) -> Result<Longest> {
    let mut longest = Longest::default();
    let chunks = client.chunks();
    let first = chunks / 2;
    for n in 0u64.. {
        let chunk = first + n / 2 % (chunks - first);
        let line = [n as u8; LINE_LEN_BYTES];
        let from = [line; CHUNK_LINES];
        let mut into = [[0; LINE_LEN_BYTES]; CHUNK_LINES];
        let is_write = n % 2 == 0;
        let transfer = match is_write {
            true => Transfer::Write {
                chunk,
                lines: 1,
                from: &from,
                sole_writer: true,
            },
            false => Transfer::Read {
                chunk,
                lines: 1,
                into: &mut into,
            },
        };
        let began = Instant::now();
        client.transfer(&mut [transfer])?;
        let took = began.elapsed();
        ensure!(
            is_write || into[0] == [(n - 1) as u8; LINE_LEN_BYTES],
            "chunk {chunk}: a line has lost what was written"
        );
        match phase.load(Ordering::Acquire) {
            UNDISTURBED => longest.add(took, false),
            KILLED => longest.add(took, true),
            _ => break,
        }
    }
    Ok(longest)
}

/// Computed from the durations of successive accesses, and the time of the kill after the first one.
fn longest_of(times_ns: &[u32], killed_after: Duration) -> Longest {
    let mut longest = Longest::default();
    let mut end = Duration::ZERO;
    for ns in times_ns {
        let took = Duration::from_nanos(u64::from(*ns));
        end += took;
        longest.add(took, end > killed_after);
    }
    longest
}

fn round(run: &Run<'_>, dataplane: Dataplane, role: &str) -> Result<Seen> {
    let testbed = Testbed::start(TestbedSpec {
        servers: 3,
        switches: 2,
        space_bytes: 2 * HALF_BYTES,
        dataplane,
        secure: run.args.secure,
    })?;
    let buffer = format!("{}KiB", BUFFER_PAGES * PAGE_LEN_BYTES as u64 / 1024);
    let options: [&OsStr; 6] = [
        "--part".as_ref(),
        "1/2".as_ref(),
        "--buffer".as_ref(),
        buffer.as_ref(),
        "--data".as_ref(),
        testbed.data().as_ref(),
    ];
    let mut pages = Pages::start(Some(run.memory_run(&options)?), PAGES, 2 * BUFFER_PAGES)?;
    let client = testbed.connect()?;
    let phase = AtomicU8::new(UNDISTURBED);
    thread::scope(|scope| {
        let lines = scope.spawn(|| access_lines(client, &phase));
        let mut fail = || {
            let began = Instant::now();
            pages.watch(2 * HALF_TIME)?;
            thread::sleep(HALF_TIME);
            phase.store(KILLED, Ordering::Release);
            let killed_after = began.elapsed();
            testbed.kill(role)?;
            let times = pages.answer()?;
            Ok(longest_of(&times, killed_after))
        };
        let pages: Result<Longest> = fail();
        phase.store(OVER, Ordering::Release);
        let lines = lines.join().map_err(|_| anyhow!("the client panicked"))?;
        let seen = Seen {
            lines: lines?,
            pages: pages?,
        };
        ensure!(
            seen.lines.count_after > 0 && seen.pages.count_after > 0,
            "no access ended after {role} was killed"
        );
        Ok(seen)
    })
}

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let dataplanes = run.dataplanes(output);
    ensure!(!dataplanes.is_empty(), "no data plane works here");
    for dataplane in dataplanes {
        for (role, variant, goal_ms) in ROLES {
            let mut all = Vec::new();
            for n in 1..=run.rounds {
                progress(&format!(
                    "{dataplane}: {variant}, round {n} of {}",
                    run.rounds
                ));
                all.push(round(run, dataplane, role)?);
            }
            show(run, output, dataplane, (variant, goal_ms), &all)?;
        }
    }
    Ok(())
}

fn show(
    run: &Run<'_>,
    output: &mut Output,
    dataplane: Dataplane,
    (variant, goal_ms): (&str, f64),
    all: &[Seen],
) -> Result<()> {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let kinds: [Kind; 2] = [
        (
            "line",
            ["line_stall_median_ms", "line_stall_worst_ms"],
            |seen| seen.lines,
        ),
        (
            "page",
            ["page_stall_median_ms", "page_stall_worst_ms"],
            |seen| seen.pages,
        ),
    ];
    for (unit, metrics, of) in kinds {
        let after: Vec<f64> = all.iter().map(|seen| ms(of(seen).after)).collect();
        let before: Vec<f64> = all.iter().map(|seen| ms(of(seen).before)).collect();
        let rounds: Vec<String> = after.iter().map(|ms| number(*ms)).collect();
        let conditions = format!(
            "3 servers, 2 switches, a client that accesses lines and a program that accesses pages at the same time, each one after \
             the other; {} ms before the failure and after it, {} rounds, each a new cluster: {} ms; {}",
            HALF_TIME.as_millis(),
            all.len(),
            rounds.join(", "),
            run.conditions()
        );
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let figures = [
            (median(&mut after.clone()), median(&mut before.clone())),
            (most(&after), most(&before)),
        ];
        for (metric, (value, undisturbed)) in metrics.into_iter().zip(figures) {
            let baseline = Baseline {
                name: "before".into(),
                value: undisturbed,
            };
            let row = row(
                metric,
                &dataplane.to_string(),
                variant,
                (value, "ms"),
                &*conditions,
            );
            output.row(&row.beside(Some(baseline)))?;
        }
        let what = format!("{dataplane}, {variant}: a {unit}'s longest stall, worst of all rounds");
        goal_at_most(output, &what, most(&after), goal_ms, "ms");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_during_which_it_was_killed_counts_as_after() {
        let ms = Duration::from_millis;
        let times = [1_000_000, 3_000_000, 7_000_000, 2_000_000];
        let longest = longest_of(&times, ms(5));
        assert_eq!((longest.before, longest.after), (ms(3), ms(7)));
        assert_eq!(longest.count_after, 2);
    }
}
