//! Throughput over time, in buckets of 50 ms, when an acceptor fails and when the leader fails (Partitioned Paxos,
//! figure 11): the store on a single partition, with one process killed halfway.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use inband_paxos::config::{Dataplane, Timing};

use super::{line, Run};
use crate::cluster::BenchCluster;
use crate::load::{LoadReport, RespLoad};
use crate::plot::Chart;
use crate::row::{median, progress, quote, Baseline, Output, Quoted};

const CONNECTIONS: usize = 50;
const PIPELINE: usize = 16;
const WARM_UP: Duration = Duration::from_millis(500);
/// A bucket below this share of the usual throughput counts as an outage.
const SERVED_SHARE: f64 = 0.1;
/// Delay after the failure before throughput is compared with that before it.
const SETTLING_S: f64 = 0.5;

/// The results of a round: rates of buckets, and the second in which a process was killed.
struct Seen {
    rates: Vec<[f64; 2]>,
    killed_s: f64,
    errors: u64,
}

impl Seen {
    fn before_per_s(&self) -> f64 {
        let before = self
            .rates
            .iter()
            .filter(|r| r[0] + BUCKET_S < self.killed_s);
        median(&mut before.map(|r| r[1]).collect::<Vec<_>>())
    }

    fn after_per_s(&self) -> f64 {
        let settled_s = self.killed_s + SETTLING_S;
        let after = self.rates.iter().filter(|r| r[0] > settled_s);
        median(&mut after.map(|r| r[1]).collect::<Vec<_>>())
    }

    /// Returns the longest outage after the failure.
    fn outage_ms(&self) -> f64 {
        let least = self.before_per_s() * SERVED_SHARE;
        let (mut longest, mut here) = (0u32, 0u32);
        for rate in self
            .rates
            .iter()
            .filter(|r| r[0] + BUCKET_S >= self.killed_s)
        {
            here = if rate[1] < least { here + 1 } else { 0 };
            longest = longest.max(here);
        }
        f64::from(longest) * BUCKET_S * 1000.0
    }
}

const BUCKET_S: f64 = 0.05;

struct Failure {
    role: &'static str,
    title: &'static str,
    after: Quoted,
}

const FAILURES: [Failure; 2] = [
    Failure {
        role: "acceptor/1",
        title: "an acceptor fails (figure 11a)",
        after: quote(
            "section 5.4, figure 11a",
            "\"continued to deliver messages at the same throughput\", port disabled",
            112_000.0,
        ),
    },
    Failure {
        role: "leader",
        title: "the leader fails (figure 11b)",
        after: quote(
            "section 5.4, figure 11b",
            "\"drops to 0 during the retry period\", then \"returns to the peak\", backup in DPDK",
            112_000.0,
        ),
    },
];

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    for failure in &FAILURES {
        let mut rounds = Vec::new();
        for round in 1..=run.rounds {
            progress(&format!("{}, round {round}/{}", failure.title, run.rounds));
            rounds.push(round_of(run, failure.role)?);
        }
        let of = |pick: fn(&Seen) -> f64| median(&mut rounds.iter().map(pick).collect::<Vec<_>>());
        let what = format!(
            "SET over RESP, {CONNECTIONS} clients with {PIPELINE} outstanding, 3 replicas, {} killed at \
             half time, suspected after {} ms of silence per rank, {} commands failed",
            failure.role,
            Timing::default().suspect_after_ms,
            rounds.iter().map(|seen| seen.errors).sum::<u64>()
        );
        let before = Baseline {
            name: "before, in the same run".into(),
            value: of(Seen::before_per_s),
        };
        let row = |metric, figure| run.row(metric, Dataplane::Xdp, failure.role, figure, &what);
        let after = row("after_failure_per_s", (of(Seen::after_per_s), "commands/s"));
        output.row(&after.beside(Some(before)).quoting(failure.after))?;
        output.row(&row("outage_ms", (of(Seen::outage_ms), "ms")))?;
        let middle = of(Seen::outage_ms);
        if let Some(seen) = rounds.iter().find(|seen| seen.outage_ms() == middle) {
            output.chart(Chart::Lines {
                title: failure.title.into(),
                x: "seconds".into(),
                y: "SET/s in 50 ms".into(),
                series: vec![line("the store on xdp", seen.rates.clone())],
                events: vec![(seen.killed_s, format!("{} killed", failure.role))],
            });
        }
    }
    Ok(())
}

fn round_of(run: &Run, role: &str) -> Result<Seen> {
    let cluster = BenchCluster::start_with(Dataplane::Xdp, &run.disk, |_| ())?;
    let load = RespLoad {
        connections: CONNECTIONS,
        pipeline: PIPELINE,
        ..RespLoad::sets(cluster.supervisor.resp())
    };
    // Long enough to see throughput on both sides of the failure.
    let duration = (run.duration * 2).max(Duration::from_secs(2));
    let (report, killed): (LoadReport, Instant) = thread::scope(|scope| {
        let loading = scope.spawn(|| load.run(WARM_UP, duration));
        thread::sleep(WARM_UP + duration / 2);
        let killed = Instant::now();
        cluster.supervisor.kill(role)?;
        let report = loading.join().map_err(|_| anyhow!("the load panicked"))?;
        anyhow::Ok((report?, killed))
    })?;
    let killed = killed.saturating_duration_since(report.counted_from);
    Ok(Seen {
        rates: report.buckets.rates(duration),
        killed_s: killed.as_secs_f64(),
        errors: report.errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_the_longest_stretch_without_service() {
        let rate = |at: usize| match at {
            20..=22 | 30 => 0.0,
            _ => 1000.0,
        };
        let seen = Seen {
            rates: (0..60).map(|at| [at as f64 * BUCKET_S, rate(at)]).collect(),
            killed_s: 1.02,
            errors: 0,
        };
        assert_eq!((seen.before_per_s(), seen.after_per_s()), (1000.0, 1000.0));
        assert!((seen.outage_ms() - 150.0).abs() < 1e-6);
    }
}
