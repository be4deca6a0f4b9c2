//! Throughput against 99th percentile latency (Partitioned Paxos, figures 8a and 8c): 1 to 12 clients, closed loop, a
//! single partition; no-op, and one RocksDB put per value.

use anyhow::Result;
use inband_paxos::config::Dataplane;

use super::{line, lines, p99_us, quoted, testbed, App, Run, OUTSTANDING_EACH, PEAK_WINDOW};
use crate::cluster::BenchCluster;
use crate::libpaxos;
use crate::load::RespLoad;
use crate::node::Load;
use crate::row::{median, progress, quote, Baseline, Output, Quoted};
use crate::testbed::{Outcome, Testbed};

const CLIENTS: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// The paper's text on one application.
struct Paper {
    app: App,
    title: &'static str,
    most_per_s: Quoted,
    p99_at_most_us: Quoted,
    p99_at_least_us: Quoted,
    points: [[f64; 2]; 2],
    libpaxos: [f64; 2],
    libpaxos_at_least_us: f64,
}

const PAPER: [Paper; 2] = [
    Paper {
        app: App::NoOp,
        title: "no-op, one partition (figure 8a)",
        most_per_s: quote("section 5.3, figure 8a", "libpaxos 63,000", 447_000.0),
        p99_at_most_us: quote("section 5.3, figure 8a", "libpaxos 773", 147.0),
        p99_at_least_us: quote("section 5.3, figure 8a", "at 63,000 /s; libpaxos 183", 19.0),
        points: [[63_000.0, 19.0], [447_000.0, 147.0]],
        libpaxos: [63_000.0, 773.0],
        libpaxos_at_least_us: 183.0,
    },
    Paper {
        app: App::RocksDb,
        title: "RocksDB, one partition (figure 8c)",
        most_per_s: quote("section 5.3, figure 8c", "libpaxos 53,000", 112_000.0),
        p99_at_most_us: quote("section 5.3, figure 8c", "libpaxos 645", 143.0),
        p99_at_least_us: quote("section 5.3, figure 8c", "at 44,000 /s; libpaxos 200", 26.0),
        points: [[44_000.0, 26.0], [112_000.0, 143.0]],
        libpaxos: [53_000.0, 645.0],
        libpaxos_at_least_us: 200.0,
    },
];

/// Throughput and p99, for each number of clients.
type Curve = Vec<[f64; 2]>;

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    let mut testbed = testbed(3)?;
    for paper in &PAPER {
        let app = paper.app;
        let mut series = Vec::new();
        let mut best = None;
        for each in OUTSTANDING_EACH {
            let curve = curve(run, &mut testbed, app, each)?;
            series.push(line(
                format!("xdp, {each} outstanding a client"),
                curve.clone(),
            ));
            best = Some(curve);
        }
        let single = series[0].points[0];
        let most = highest(&best.unwrap_or_default());
        progress(&format!("{}, udp", app.name()));
        let mut job = run.job(Dataplane::Udp, app, Load::Saturate);
        job.job.window = PEAK_WINDOW;
        let [udp_per_s, udp_p99_us] =
            run.medians(&mut testbed, &job, [Outcome::delivered_per_s, p99_us])?;
        if app == App::RocksDb {
            series.push(line(
                "the store over RESP, 1 outstanding a client",
                resp_curve(run)?,
            ));
        }
        series.push(quoted("Partitioned Paxos", &paper.points));
        series.push(quoted("libpaxos", &[paper.libpaxos]));
        output.chart(lines(paper.title, "values/s", "p99 latency, us", series));
        rows(run, paper, (single, most), [udp_per_s, udp_p99_us], output)?;
        // libpaxos has no store, so it is compared only with the no-op.
        if app == App::NoOp {
            let Some(peer) = &run.peer else {
                libpaxos::left_out(output);
                continue;
            };
            let rounds = (run.rounds, run.duration);
            libpaxos::rows("paper", Some(peer), rounds, &run.machine, output)?;
        }
    }
    Ok(())
}

fn curve(run: &Run, testbed: &mut Testbed, app: App, each: usize) -> Result<Curve> {
    let mut curve = Curve::new();
    for clients in run.points(&CLIENTS) {
        progress(&format!("{}, {clients} x {each} outstanding", app.name()));
        let mut job = run.job(Dataplane::Xdp, app, Load::Saturate);
        job.job.window = clients * each;
        curve.push(run.medians(testbed, &job, [Outcome::delivered_per_s, p99_us])?);
    }
    Ok(curve)
}

/// Returns the whole store: RESP, sessions and exactly-once execution.
fn resp_curve(run: &Run) -> Result<Curve> {
    let cluster = BenchCluster::start_with(Dataplane::Xdp, &run.disk, |_| ())?;
    let mut curve = Curve::new();
    for clients in run.points(&CLIENTS) {
        progress(&format!("the store, {clients} clients"));
        let load = RespLoad {
            connections: clients,
            ..RespLoad::sets(cluster.supervisor.resp())
        };
        let (mut per_s, mut p99_us) = (Vec::new(), Vec::new());
        for _ in 0..run.rounds {
            let report = load.run(run.duration / 4, run.duration)?;
            per_s.push(report.per_s);
            p99_us.push(report.latency.p99_us);
        }
        curve.push([median(&mut per_s), median(&mut p99_us)]);
    }
    Ok(curve)
}

fn highest(curve: &[[f64; 2]]) -> [f64; 2] {
    let most = curve.iter().max_by(|a, b| a[0].total_cmp(&b[0]));
    most.copied().unwrap_or([f64::NAN; 2])
}

fn rows(
    run: &Run,
    paper: &Paper,
    (single, most): ([f64; 2], [f64; 2]),
    [udp_per_s, udp_p99_us]: [f64; 2],
    output: &mut Output,
) -> Result<()> {
    let udp = |value| {
        let name = "the udp backend in the same run".into();
        Some(Baseline { name, value })
    };
    let each = OUTSTANDING_EACH[OUTSTANDING_EACH.len() - 1];
    let at_most = format!("1 to 12 clients with {each} outstanding each, closed loop, at the most");
    let name = paper.app.name();
    let row = |metric, figure, what: &str| run.row(metric, Dataplane::Xdp, name, figure, what);
    let most_per_s = row("throughput_most_per_s", (most[0], "values/s"), &at_most);
    output.row(&most_per_s.beside(udp(udp_per_s)).quoting(paper.most_per_s))?;
    let p99 = row("p99_at_most_us", (most[1], "us"), &at_most);
    output.row(&p99.beside(udp(udp_p99_us)).quoting(paper.p99_at_most_us))?;
    let what = format!(
        "one client with one outstanding, {:.0} values/s (libpaxos in the paper: {} us)",
        single[0], paper.libpaxos_at_least_us
    );
    let p99 = row("p99_at_least_us", (single[1], "us"), &what);
    output.row(&p99.quoting(paper.p99_at_least_us))
}
