//! `inband bench sync`: the cost of syncing votes to a disk before they are sent, next to a sync of the disk alone, and of
//! reading through the log instead of by position; and the latency of one command from a client in Rust.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use hdrhistogram::Histogram;
use inband_cluster::paxos::{AcceptorChoice, ClusterSpec};
use inband_cluster::scratch::ScratchDir;
use inband_paxos::config::{Dataplane, Durability};

use super::cluster::{self, BenchCluster};
use super::load::{LoadReport, Operation, RespLoad};
use super::row::{machine, median, progress, Baseline, Output, Row};
use super::stats::Distribution;

/// Options of `inband bench sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Time counted in each measurement of a round.
    #[arg(long, default_value_t = 1500)]
    duration_ms: u64,
    /// Connections of the pipelined measurements.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Commands in flight on each.
    #[arg(long, default_value_t = 16)]
    pipeline: usize,
    /// Where the clusters keep their data: the cost of a sync depends on the disk.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    disk: PathBuf,
}

const BENCH: &str = "sync";
const WARM_UP: Duration = Duration::from_millis(300);
/// The backend of the other clusters in the comparison.
const FAST: Dataplane = Dataplane::Xdp;

/// A cluster's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    /// `memory` with the acceptors in user space, as with `sync`: the remaining difference is due to the disk.
    MemoryInUserSpace,
    Sync,
}

const KINDS: [Kind; 3] = [Kind::Memory, Kind::MemoryInUserSpace, Kind::Sync];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::MemoryInUserSpace => "memory, acceptors udp",
            Kind::Sync => "sync",
        }
    }

    fn set(self, spec: &mut ClusterSpec) {
        match self {
            Kind::Memory => {}
            Kind::MemoryInUserSpace => {
                spec.acceptors = AcceptorChoice(vec![Dataplane::Udp; ACCEPTORS])
            }
            Kind::Sync => spec.durability = Durability::Sync,
        }
    }
}

/// How many commands are in flight, and how the client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Many,
    One,
    OneSpinning,
}

const SHAPES: [Shape; 3] = [Shape::Many, Shape::One, Shape::OneSpinning];

impl Shape {
    fn what(self) -> &'static str {
        match self {
            Shape::Many => "many outstanding",
            Shape::One => "one outstanding",
            Shape::OneSpinning => {
                "one outstanding, a client in Rust that asks its socket again and again"
            }
        }
    }

    fn of(self, load: &RespLoad, args: &SyncArgs) -> RespLoad {
        let load = load.clone();
        match self {
            Shape::Many => RespLoad {
                connections: args.clients,
                pipeline: args.pipeline,
                ..load
            },
            Shape::One => load,
            Shape::OneSpinning => RespLoad {
                spins: true,
                ..load
            },
        }
    }
}

/// One figure: a value from the report of one shape's load.
struct Figure {
    metric: &'static str,
    unit: &'static str,
    shape: Shape,
    pick: fn(&LoadReport) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure {
        metric: "pipelined_per_s",
        unit: "commands/s",
        shape: Shape::Many,
        pick: |report| report.per_s,
    },
    Figure {
        metric: "single_p50_us",
        unit: "us",
        shape: Shape::One,
        pick: |report| report.latency.p50_us,
    },
    Figure {
        metric: "single_p99_us",
        unit: "us",
        shape: Shape::One,
        pick: |report| report.latency.p99_us,
    },
    Figure {
        metric: "single_spinning_p50_us",
        unit: "us",
        shape: Shape::OneSpinning,
        pick: |report| report.latency.p50_us,
    },
];

/// In [`FIGURES`].
const SINGLE_P50: usize = 1;

/// The results: a name, and the rounds of each of [`FIGURES`].
struct Measured {
    operation: &'static str,
    variant: &'static str,
    rounds: [Vec<f64>; FIGURES.len()],
}

impl Measured {
    fn new(operation: &'static str, variant: &'static str) -> Measured {
        Measured {
            operation,
            variant,
            rounds: [const { Vec::new() }; FIGURES.len()],
        }
    }

    fn measure(&mut self, load: &RespLoad, args: &SyncArgs) -> Result<()> {
        let duration = Duration::from_millis(args.duration_ms);
        for shape in SHAPES {
            let report = shape.of(load, args).run(WARM_UP, duration)?;
            ensure!(
                report.errors == 0,
                "{} commands failed ({} {})",
                report.errors,
                self.operation,
                self.variant
            );
            let figures = FIGURES.iter().zip(&mut self.rounds);
            for (figure, rounds) in figures.filter(|(figure, _)| figure.shape == shape) {
                rounds.push((figure.pick)(&report));
            }
        }
        Ok(())
    }
}

/// Of a journal's writes.
const BLOCK_BYTES: usize = 4096;
/// Blocks of the file that is written: as in a journal, none of it is new to the file system.
const BLOCKS: u64 = 256;
/// Significant digits of times, and the longest time.
const DIGITS: u8 = 3;
const LONGEST_NS: u64 = 60_000_000_000;

fn no_times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("possible bounds")
}

/// How many acceptors of a cluster sync to the same disk at a time.
const ACCEPTORS: usize = 3;

/// Lets `writers` write and sync one block after another, each to a file of its own. Returns the time that each block took.
fn measure_disk(dir: &Path, writers: usize, duration: Duration) -> Result<Distribution> {
    let dir = ScratchDir::create(dir, "disk")?;
    let write = |path: &Path| -> std::io::Result<Histogram<u64>> {
        let file = File::create(path)?;
        file.write_all_at(&vec![1; BLOCK_BYTES * BLOCKS as usize], 0)?;
        file.sync_all()?;
        let mut took_ns = no_times();
        let began = Instant::now();
        for block in (0..BLOCKS).cycle() {
            let at = Instant::now();
            file.write_all_at(&[block as u8; BLOCK_BYTES], block * BLOCK_BYTES as u64)?;
            file.sync_data()?;
            took_ns.saturating_record(at.elapsed().as_nanos() as u64);
            if began.elapsed() >= duration {
                break;
            }
        }
        Ok(took_ns)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let begin = |number| {
            let path = dir.path().join(format!("blocks-{number}"));
            let write = &write;
            scope.spawn(move || write(&path).with_context(|| path.display().to_string()))
        };
        let threads: Vec<_> = (0..writers).map(begin).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|result| result.expect("no panic")).collect()
    });
    let mut all = no_times();
    for took_ns in results {
        all.add(took_ns?).expect("the same bounds");
    }
    Ok(Distribution::of(&all))
}

/// Runs the benchmark and prints its rows.
pub fn run(args: &SyncArgs, output: &mut Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    let backends = cluster::usable(&[FAST], &mut |what| output.skipped(&what));
    let backend = backends.first().copied().unwrap_or(Dataplane::Udp);
    let machine = machine();
    let mut sets = KINDS.map(|kind| Measured::new("SET", kind.name()));
    let mut gets = ["by position", "through the log"].map(|how| Measured::new("GET", how));
    let (mut disk_us, mut busy_disk_us, mut beyond_disk_us) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        progress(&format!("round {round}/{}: the disk alone", args.rounds));
        let duration = Duration::from_millis(args.duration_ms);
        let disk = measure_disk(&args.disk, 1, duration)?;
        disk_us.push(disk.p50_us);
        busy_disk_us.push(measure_disk(&args.disk, ACCEPTORS, duration)?.p50_us);
        for (kind, measured) in KINDS.into_iter().zip(&mut sets) {
            if kind == Kind::MemoryInUserSpace && backend == Dataplane::Udp {
                continue;
            }
            progress(&format!("round {round}/{}: {}", args.rounds, kind.name()));
            let cluster = BenchCluster::start_with(backend, &args.disk, |spec| kind.set(spec))?;
            let load = RespLoad::sets(cluster.supervisor.resp());
            measured.measure(&load, args)?;
            if kind == Kind::Sync {
                let single_us = measured.rounds[SINGLE_P50].last();
                beyond_disk_us.extend(single_us.map(|us| us - disk.p50_us));
            }
            if kind != Kind::Memory {
                continue;
            }
            let commands: [&'static [&'static str]; 2] =
                [&["INBAND.READS", "position"], &["INBAND.READS", "log"]];
            for (first, measured) in commands.into_iter().zip(&mut gets) {
                progress(&format!(
                    "round {round}/{}: GET {}",
                    args.rounds, measured.variant
                ));
                let load = RespLoad {
                    operation: Operation::Get,
                    first: Some(first),
                    ..load.clone()
                };
                measured.measure(&load, args)?;
            }
        }
    }
    progress("");
    let conditions = format!(
        "3 replicas, 3 acceptors, many is {} x {}, 64 B values, data in {}, latencies by a client in \
         this program, median of {} x {} ms; {machine}",
        args.clients,
        args.pipeline,
        args.disk.display(),
        args.rounds,
        args.duration_ms
    );
    print_rows(&mut sets, backend, &conditions, output)?;
    for (metric, variant, values) in [
        (
            "disk_sync_p50_us",
            "the disk alone: 4 KiB, write and fdatasync",
            &mut disk_us,
        ),
        (
            "busy_disk_sync_p50_us",
            "the same by three writers at a time, as three acceptors on one disk",
            &mut busy_disk_us,
        ),
        (
            "beyond_disk_p50_us",
            "SET sync, one outstanding: beyond the disk alone",
            &mut beyond_disk_us,
        ),
    ] {
        output.row(&Row::new(
            (BENCH, metric),
            backend.to_string(),
            variant.to_owned(),
            (median(values), "us"),
            conditions.clone(),
        ))?;
    }
    print_rows(&mut gets, backend, &conditions, output)
}

/// The first one is the baseline of the others.
fn print_rows(
    all: &mut [Measured],
    backend: Dataplane,
    conditions: &str,
    output: &mut Output,
) -> Result<()> {
    for (at, figure) in FIGURES.iter().enumerate() {
        let values: Vec<f64> = all.iter_mut().map(|m| median(&mut m.rounds[at])).collect();
        for (number, measured) in all.iter().enumerate() {
            if measured.rounds[at].is_empty() {
                continue;
            }
            let variant = format!("{} {}", measured.operation, measured.variant);
            let baseline = (number > 0).then(|| Baseline {
                name: all[0].variant.to_owned(),
                value: values[0],
            });
            let row = Row::new(
                (BENCH, figure.metric),
                backend.to_string(),
                variant,
                (values[number], figure.unit),
                format!("{}; {conditions}", figure.shape.what()),
            );
            output.row(&row.beside(baseline))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_alone_is_measured_and_nothing_stays_on_it() {
        let dir = tempfile::tempdir().expect("a directory");
        for writers in [1, ACCEPTORS] {
            let took = measure_disk(dir.path(), writers, Duration::from_millis(20));
            let took = took.expect("measured");
            // Two system calls take longer than that.
            assert!(
                took.samples >= writers as u64 && took.p50_us > 0.05,
                "{took:?}"
            );
            assert_eq!(dir.path().read_dir().expect("there").count(), 0);
        }
        let none = Path::new("/dev/null/no");
        let error = measure_disk(none, 1, Duration::ZERO).expect_err("no disk");
        assert!(format!("{error:#}").contains("/dev/null/no"), "{error:#}");
    }

    #[test]
    fn the_latency_of_one_command_is_where_it_is_looked_for() {
        assert_eq!(FIGURES[SINGLE_P50].metric, "single_p50_us");
    }
}
