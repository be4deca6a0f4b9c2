//! `inband bench resident`: the memory of a cluster's hosts while it runs at full rate for minutes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::Args;
use inband_kv::limits::{ROCKSDB_MEMTABLES_MAX, ROCKSDB_WRITE_BUFFER_BYTES};
use inband_paxos::config::Dataplane;

use super::cluster::{self, BenchCluster};
use super::load::RespLoad;
use super::plot::{Chart, Series};
use super::row::{machine, Baseline, Output, Row};

/// Options of `inband bench resident`.
#[derive(Debug, Args)]
pub struct ResidentArgs {
    /// How long to run the cluster at full rate, in minutes.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Commands in flight on each.
    #[arg(long, default_value_t = 16)]
    pipeline: usize,
    /// Number of different keys: once all are set, the stored data does not grow.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// The backend to use.
    #[arg(long, default_value_t = Dataplane::Xdp)]
    backend: Dataplane,
    /// Fail if a host's memory grows by more than this between the second and the last quarter.
    #[arg(long, default_value_t = 5.0)]
    growth_max_percent: f64,
}

/// Those that are being filled, and those that are being written out.
const WRITE_BUFFERS_MIB: f64 =
    (ROCKSDB_MEMTABLES_MAX as usize * ROCKSDB_WRITE_BUFFER_BYTES) as f64 / (1 << 20) as f64;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Memory of one host in MiB over seconds.
#[derive(Debug, Clone, Default)]
struct Curve {
    host: String,
    points: Vec<[f64; 2]>,
}

impl Curve {
    /// Returns the maximum of the last quarter of the time compared with that of the second: the first quarter fills
    /// caches, and using maxima ignores a sawtooth pattern.
    fn growth_percent(&self) -> f64 {
        let (early, late) = self.highest_mib();
        (late - early) / early * 100.0
    }

    /// Returns the maxima of the second and the last quarter of the time.
    fn highest_mib(&self) -> (f64, f64) {
        let quarter = self.points.len() / 4;
        let highest = |from: usize, to: usize| {
            let points = &self.points[from..to];
            points.iter().map(|p| p[1]).fold(0.0, f64::max)
        };
        (
            highest(quarter, 2 * quarter),
            highest(3 * quarter, self.points.len()),
        )
    }

    /// Returns whether it grew by more than this, and by more than a store's write buffers. These fill and are written
    /// out periodically, and a short run may see only the filling.
    fn has_grown(&self, max_percent: f64) -> bool {
        let (early, late) = self.highest_mib();
        self.growth_percent() > max_percent && late - early > WRITE_BUFFERS_MIB
    }
}

/// Runs the benchmark and prints its rows.
pub fn run(args: &ResidentArgs, output: &mut Output) -> Result<()> {
    let machine = machine();
    let backends = cluster::usable(&[args.backend], &mut |what| output.skipped(&what));
    let backend = backends.first().copied().unwrap_or(Dataplane::Udp);
    let duration = Duration::try_from_secs_f64(args.minutes * 60.0).context("--minutes")?;
    ensure!(
        duration >= 16 * SAMPLE_INTERVAL,
        "--minutes {}: too short to see memory grow",
        args.minutes
    );
    let cluster = BenchCluster::start(backend)?;
    let load = RespLoad {
        connections: args.clients,
        pipeline: args.pipeline,
        keys: args.keys,
        ..RespLoad::sets(cluster.supervisor.resp())
    };
    let (report, curves) = thread::scope(|scope| {
        let loading = scope.spawn(|| load.run(Duration::ZERO, duration));
        let curves = sample(&cluster, duration);
        let report = loading.join().map_err(|_| anyhow!("the load panicked"))?;
        anyhow::Ok((report?, curves))
    })?;
    let rates = report.buckets.rates(duration);
    let mean = |part: &[[f64; 2]]| part.iter().map(|r| r[1]).sum::<f64>() / part.len() as f64;
    let quarter = rates.len() / 4;
    let conditions = format!(
        "resident memory of each host's process, SET {} x {} outstanding, 64 B values, {} keys, 3 replicas, 3 acceptors, full rate for {:.1} \
         minutes, {} commands failed; {machine}",
        args.clients, args.pipeline, args.keys, args.minutes, report.errors
    );
    let row = |metric, variant: &str, value, unit| {
        let backend = backend.to_string();
        Row::new(
            ("resident", metric),
            backend,
            variant,
            (value, unit),
            &*conditions,
        )
    };
    for curve in &curves {
        let last = curve.points.last().map_or(f64::NAN, |p| p[1]);
        let early = Baseline {
            name: "at a quarter of the time".into(),
            value: curve
                .points
                .get(curve.points.len() / 4)
                .map_or(f64::NAN, |p| p[1]),
        };
        output.row(&row("memory_mib", &curve.host, last, "MiB").beside(Some(early)))?;
    }
    let worst = curves
        .iter()
        .max_by(|a, b| a.growth_percent().total_cmp(&b.growth_percent()))
        .context("no host reported its memory use")?;
    output.row(&row(
        "memory_growth_percent",
        &worst.host,
        worst.growth_percent(),
        "percent",
    ))?;
    let first = Baseline {
        name: "in the first quarter".into(),
        value: mean(&rates[..quarter]),
    };
    let last = mean(&rates[rates.len() - quarter..]);
    output.row(&row("set_per_s", "last quarter", last, "commands/s").beside(Some(first)))?;
    charts(&curves, rates, output);
    let grown = curves.iter().find(|c| c.has_grown(args.growth_max_percent));
    if let Some(grown) = grown {
        bail!(
            "{} took {:.1}% more memory in the last quarter of the time than in the second; {}% and \
             {WRITE_BUFFERS_MIB:.0} MiB of write buffers are allowed",
            grown.host,
            grown.growth_percent(),
            args.growth_max_percent
        );
    }
    Ok(())
}

fn sample(cluster: &BenchCluster, duration: Duration) -> Vec<Curve> {
    let started = Instant::now();
    let mut curves: Vec<Curve> = Vec::new();
    while started.elapsed() + SAMPLE_INTERVAL < duration {
        thread::sleep(SAMPLE_INTERVAL);
        let at_s = started.elapsed().as_secs_f64();
        for host in cluster.supervisor.status().hosts {
            // Maps of packet programs belong to the kernel and have a fixed size, so they are not counted.
            let Some(resident_kib) = host.pid.and_then(resident_kib) else {
                continue;
            };
            let mib = resident_kib as f64 / 1024.0;
            match curves.iter_mut().find(|curve| curve.host == host.name) {
                Some(curve) => curve.points.push([at_s, mib]),
                None => curves.push(Curve {
                    host: host.name,
                    points: vec![[at_s, mib]],
                }),
            }
        }
    }
    curves
}

fn resident_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn charts(curves: &[Curve], rates: Vec<[f64; 2]>, output: &mut Output) {
    let line = |name: &str, points: Vec<[f64; 2]>| Series {
        name: name.to_owned(),
        points,
        is_quoted: false,
    };
    output.chart(Chart::Lines {
        title: "memory of each host at full rate".into(),
        x: "seconds".into(),
        y: "MiB".into(),
        series: curves
            .iter()
            .map(|curve| line(&curve.host, curve.points.clone()))
            .collect(),
        events: Vec::new(),
    });
    output.chart(Chart::Lines {
        title: "throughput in buckets of 50 ms".into(),
        x: "seconds".into(),
        y: "commands/s".into(),
        series: vec![line("SET", rates)],
        events: Vec::new(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(mib: impl Fn(usize) -> f64) -> Curve {
        Curve {
            host: "replica/0".into(),
            points: (0..400).map(|at| [at as f64, mib(at)]).collect(),
        }
    }

    #[test]
    fn growth_is_told_from_warming_up_and_from_a_saw() {
        assert_eq!(curve(|_| 100.0).growth_percent(), 0.0);
        let warming = curve(|at| if at < 90 { at as f64 } else { 100.0 });
        assert_eq!(warming.growth_percent(), 0.0);
        let saw = curve(|at| 100.0 + (at % 7) as f64);
        assert_eq!(saw.growth_percent(), 0.0);
        let leak = curve(|at| 100.0 + at as f64);
        assert!(leak.growth_percent() > 50.0 && leak.has_grown(5.0));
        let filling = curve(|at| 10.0 + at as f64 * WRITE_BUFFERS_MIB / 400.0);
        assert!(filling.growth_percent() > 50.0 && !filling.has_grown(5.0));
    }

    #[test]
    fn memory_of_a_process_is_read() {
        assert!(resident_kib(std::process::id()).is_some_and(|kib| kib > 100));
        assert_eq!(resident_kib(u32::MAX), None);
    }
}
