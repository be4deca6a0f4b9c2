//! Throughput of RocksDB with more partitions, on a disk and on tmpfs (Partitioned Paxos, figure 9), and of the whole
//! store over RESP.

use std::path::Path;

use anyhow::Result;
use inband_paxos::config::Dataplane;

use super::{line, lines, quoted, testbed, tmpfs, App, Run, PEAK_WINDOW};
use crate::cluster::BenchCluster;
use crate::load::RespLoad;
use crate::node::Load;
use crate::row::{median, progress, quote, Baseline, Output, Quoted};
use crate::testbed::{Outcome, Testbed};

const PARTITIONS: [u32; 4] = [1, 2, 4, 8];
const CONNECTIONS: usize = 50;
const PIPELINE: usize = 16;

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    let mut testbed = testbed(3)?;
    let mut media: Vec<(&'static str, &Path)> = vec![("disk", &run.disk)];
    match tmpfs() {
        Some(dir) => media.push(("tmpfs", dir)),
        None => output.skipped("tmpfs: this machine has none at /dev/shm"),
    }
    let (mut library, mut store) = (Vec::new(), Vec::new());
    for (medium, dir) in media {
        let (mut of_library, mut of_store) = (Vec::new(), Vec::new());
        for partitions in run.points(&PARTITIONS) {
            progress(&format!("{partitions} partitions on {medium}, RocksDB"));
            of_library.push((
                partitions,
                library_per_s(run, &mut testbed, dir, partitions)?,
            ));
            progress(&format!("{partitions} partitions on {medium}, the store"));
            of_store.push((partitions, store_per_s(run, dir, partitions)?));
        }
        let what = "closed loop with 72 outstanding, a RocksDB a partition at each of 3 learners";
        let metric = "rocksdb_per_s";
        rows(run, metric, (medium, what), &of_library, output)?;
        let what = "SET over RESP, 50 clients, pipeline 16, 3 replicas";
        rows(run, "store_per_s", (medium, what), &of_store, output)?;
        library.push(line(medium, points(&of_library)));
        store.push(line(medium, points(&of_store)));
    }
    library.push(quoted("SSD", &[[1.0, 112_000.0], [4.0, 576_000.0]]));
    library.push(quoted("Ramdisk", &[[4.0, 747_000.0]]));
    let x = "partitions";
    output.chart(lines("RocksDB behind the library", x, "values/s", library));
    output.chart(lines("the store over RESP", x, "SET/s", store));
    Ok(())
}

fn library_per_s(run: &Run, testbed: &mut Testbed, dir: &Path, partitions: u32) -> Result<f64> {
    let mut job = run.job(Dataplane::Xdp, App::RocksDb, Load::Saturate);
    job.store_parent = dir.to_owned();
    (job.job.window, job.job.partitions) = (PEAK_WINDOW, partitions);
    let [per_s] = run.medians(testbed, &job, [Outcome::delivered_per_s])?;
    Ok(per_s)
}

fn store_per_s(run: &Run, dir: &Path, partitions: u32) -> Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..run.rounds {
        let cluster = BenchCluster::start_with(Dataplane::Xdp, dir, |spec| {
            spec.partitions = partitions;
        })?;
        let load = RespLoad {
            connections: CONNECTIONS,
            pipeline: PIPELINE,
            ..RespLoad::sets(cluster.supervisor.resp())
        };
        rounds.push(load.run(run.duration / 4, run.duration)?.per_s);
    }
    Ok(median(&mut rounds))
}

fn points(measured: &[(u32, f64)]) -> Vec<[f64; 2]> {
    let points = measured.iter();
    points.map(|(p, per_s)| [f64::from(*p), *per_s]).collect()
}

fn rows(
    run: &Run,
    metric: &'static str,
    (medium, what): (&str, &str),
    measured: &[(u32, f64)],
    output: &mut Output,
) -> Result<()> {
    for (partitions, per_s) in measured {
        let one = Baseline {
            name: "one partition in the same run".into(),
            value: measured[0].1,
        };
        let variant = format!("{medium}, P = {partitions}");
        let row = run.row(metric, Dataplane::Xdp, variant, (*per_s, "values/s"), what);
        let row = row.beside((*partitions > 1).then_some(one));
        output.row(&row.quoting(paper(medium, *partitions)))?;
    }
    Ok(())
}

fn paper(medium: &str, partitions: u32) -> Option<Quoted> {
    let place = "section 5.3, figure 9";
    match (medium, partitions) {
        ("disk", 1) => Some(quote("section 5.3, figure 8c", "SSD", 112_000.0)),
        ("disk", 4) => Some(quote(place, "SSD, a core a partition", 576_000.0)),
        ("tmpfs", 4) => Some(quote(place, "Ramdisk, a core a partition", 747_000.0)),
        _ => None,
    }
}
