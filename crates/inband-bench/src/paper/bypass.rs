//! Kernel bypass compared with sockets (Partitioned Paxos, figure 10): RocksDB on a single partition, with the same
//! library on XDP and on UDP sockets.

use anyhow::{ensure, Result};
use inband_paxos::config::Dataplane;

use super::{backends, line, lines, p50_us, p99_us, quoted, testbed, App, Run, OUTSTANDING_EACH};
use crate::node::Load;
use crate::row::{progress, quote, Baseline, Output, Quoted};
use crate::testbed::Outcome;

const PLACE: &str = "section 5.3, figure 10";
const CLIENTS: [usize; 5] = [1, 3, 6, 9, 12];

/// Values per second, p50 and p99, for each number of clients.
type Curve = Vec<[f64; 3]>;

struct Paper {
    most_per_s: Quoted,
    at_most_us: Quoted,
    at_least_us: Quoted,
}

fn paper(backend: Dataplane) -> Paper {
    match backend {
        Dataplane::Udp => Paper {
            most_per_s: quote(PLACE, "UDP sockets", 64_000.0),
            at_most_us: quote(PLACE, "UDP sockets, at 64,000 /s", 261.0),
            at_least_us: quote(PLACE, "UDP sockets, at 19,000 /s", 66.0),
        },
        _ => Paper {
            most_per_s: quote(PLACE, "DPDK", 112_000.0),
            at_most_us: quote(PLACE, "DPDK, at 112,000 /s", 143.0),
            at_least_us: quote(PLACE, "DPDK, at 44,000 /s", 26.0),
        },
    }
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    let backends = backends(output);
    ensure!(
        backends.len() == 2,
        "there is nothing to compare sockets with"
    );
    let mut testbed = testbed(3)?;
    let mut curves: Vec<(Dataplane, Curve)> = Vec::new();
    for backend in backends {
        let mut curve = Curve::new();
        let each = OUTSTANDING_EACH[OUTSTANDING_EACH.len() - 1];
        // The first point is one client with one value in flight.
        let windows = run
            .points(&CLIENTS)
            .into_iter()
            .map(|clients| clients * each);
        for window in [1].into_iter().chain(windows) {
            progress(&format!("{backend}, {window} outstanding"));
            let mut job = run.job(backend, App::RocksDb, Load::Saturate);
            job.job.window = window;
            let picks = [Outcome::delivered_per_s, p50_us, p99_us];
            curve.push(run.medians(&mut testbed, &job, picks)?);
        }
        curves.push((backend, curve));
    }
    let sockets = curves[1].1.clone();
    let figures = |curve: &Curve| {
        let most = curve.iter().max_by(|a, b| a[0].total_cmp(&b[0]));
        (curve[0], most.copied().unwrap_or([f64::NAN; 3]))
    };
    let (socket_least, socket_most) = figures(&sockets);
    for (backend, curve) in &curves {
        let (least, most) = figures(curve);
        let paper = paper(*backend);
        let beside = |value| {
            let name = "sockets (udp) in the same run".into();
            (*backend != Dataplane::Udp).then_some(Baseline { name, value })
        };
        let row = |metric, figure, what: &str| run.row(metric, backend, "RocksDB", figure, what);
        let at_most = "closed loop, up to 12 clients with 6 outstanding each, at the most";
        let row_most = row("bypass_most_per_s", (most[0], "values/s"), at_most);
        output.row(
            &row_most
                .beside(beside(socket_most[0]))
                .quoting(paper.most_per_s),
        )?;
        let row_p50 = row("bypass_p50_at_most_us", (most[1], "us"), at_most);
        output.row(
            &row_p50
                .beside(beside(socket_most[1]))
                .quoting(paper.at_most_us),
        )?;
        let what = format!("one outstanding, {:.0} values/s", least[0]);
        let row_least = row("bypass_p50_at_least_us", (least[1], "us"), &what);
        output.row(
            &row_least
                .beside(beside(socket_least[1]))
                .quoting(paper.at_least_us),
        )?;
    }
    let of = |column: usize| {
        let ours = curves.iter().map(|(backend, curve)| {
            line(
                backend.to_string(),
                curve.iter().map(|p| [p[0], p[column]]).collect(),
            )
        });
        let mut series: Vec<_> = ours.collect();
        series.push(quoted("DPDK", &[[44_000.0, 26.0], [112_000.0, 143.0]]));
        series.push(quoted(
            "UDP sockets",
            &[[19_000.0, 66.0], [64_000.0, 261.0]],
        ));
        series
    };
    output.chart(lines(
        "RocksDB, one partition",
        "values/s",
        "p50, us",
        of(1),
    ));
    output.chart(lines(
        "RocksDB, one partition",
        "values/s",
        "p99, us",
        of(2),
    ));
    Ok(())
}
