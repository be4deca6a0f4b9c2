//! Latency distribution and its inter-quartile range (Partitioned Paxos, figures 8b and 8d): values arrive at 25, 50
//! and 75% of the maximum rate, for 1 to 4 partitions. A value's latency counts from when it was due.

use anyhow::Result;
use inband_paxos::config::Dataplane;

use super::{line, lines, testbed, App, Run, PEAK_WINDOW};
use crate::node::Load;
use crate::row::{median, progress, quote, Output, Quoted};
use crate::stats::Distribution;
use crate::testbed::{Outcome, Testbed};

const PARTITIONS: [u32; 4] = [1, 2, 3, 4];
const LOADS_PERCENT: [u32; 3] = [25, 50, 75];
/// The load for which the paper's text gives figures.
const QUOTED_PERCENT: u32 = 50;
/// Maximum values in flight if they arrive faster than they are decided.
const PACED_WINDOW: usize = 1024;

const PLACES: [&str; 2] = ["section 5.3, figure 8b", "section 5.3, figure 8d"];

fn quoted(app: App) -> [Quoted; 2] {
    match app {
        App::NoOp => [
            quote(PLACES[0], "at 230,000 /s; libpaxos 120", 22.0),
            quote(PLACES[0], "\"less than 1 us\"; libpaxos 23", 1.0),
        ],
        App::RocksDb => [
            quote(PLACES[1], "at 65,000 /s; libpaxos 126", 30.0),
            quote(PLACES[1], "\"less than 1 us\"; libpaxos 23", 1.0),
        ],
    }
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    let mut testbed = testbed(3)?;
    for app in App::ALL {
        let mut ranges: Vec<(u32, Vec<[f64; 2]>)> =
            LOADS_PERCENT.map(|percent| (percent, Vec::new())).into();
        let (mut by_load, mut by_partitions) = (Vec::new(), Vec::new());
        for partitions in run.points(&PARTITIONS) {
            progress(&format!("{}, {partitions} partitions, most", app.name()));
            let mut job = run.job(Dataplane::Xdp, app, Load::Saturate);
            (job.job.window, job.job.partitions) = (PEAK_WINDOW, partitions);
            let [most_per_s] = run.medians(&mut testbed, &job, [Outcome::delivered_per_s])?;
            job.job.load = Load::Paced;
            job.job.window = PACED_WINDOW;
            for (percent, range) in &mut ranges {
                progress(&format!(
                    "{}, {partitions} partitions, {percent}%",
                    app.name()
                ));
                job.job.rate_per_s = most_per_s * f64::from(*percent) / 100.0;
                let middle = middle(run, &mut testbed, &job)?;
                range.push([f64::from(partitions), middle.iqr_us()]);
                if partitions == 1 {
                    by_load.push(line(format!("{percent}% load"), middle.cdf()));
                }
                if *percent == QUOTED_PERCENT {
                    by_partitions.push(line(format!("{partitions} partitions"), middle.cdf()));
                }
                let point = Point {
                    app,
                    partitions,
                    percent: *percent,
                    rate_per_s: job.job.rate_per_s,
                };
                rows(run, &point, &middle, output)?;
            }
        }
        let name = app.name();
        let (us, percent) = ("latency, us", "percent of values");
        let title = format!("{name}: latency at three loads, 1 partition");
        output.chart(lines(&title, us, percent, by_load));
        let title = format!("{name}: latency at {QUOTED_PERCENT}% load, by partitions");
        output.chart(lines(&title, us, percent, by_partitions));
        let ranges = ranges
            .into_iter()
            .map(|(percent, points)| line(format!("{percent}% load"), points))
            .collect();
        let title = format!("{name}: inter-quartile range");
        output.chart(lines(&title, "partitions", "us", ranges));
    }
    Ok(())
}

/// Returns the round with the median inter-quartile range.
fn middle(run: &Run, testbed: &mut Testbed, job: &super::AppJob) -> Result<Distribution> {
    let mut rounds = Vec::new();
    for _ in 0..run.rounds {
        rounds.push(job.run(testbed)?.reports[0].latency.clone());
    }
    let mut ranges: Vec<f64> = rounds.iter().map(Distribution::iqr_us).collect();
    let middle = median(&mut ranges);
    let found = rounds.into_iter().find(|round| round.iqr_us() == middle);
    Ok(found.unwrap_or_default())
}

struct Point {
    app: App,
    partitions: u32,
    percent: u32,
    rate_per_s: f64,
}

fn rows(run: &Run, point: &Point, seen: &Distribution, output: &mut Output) -> Result<()> {
    let variant = format!(
        "{}, P = {}, {}%",
        point.app.name(),
        point.partitions,
        point.percent
    );
    let what = format!(
        "open loop at {:.0} values/s, {}% of the most, mean {:.1} us, standard deviation {:.1} us, \
         p99 {:.1} us",
        point.rate_per_s, point.percent, seen.mean_us, seen.stdev_us, seen.p99_us
    );
    let is_quoted = point.percent == QUOTED_PERCENT && point.partitions == 1;
    let [p50, iqr] = quoted(point.app).map(|quoted| is_quoted.then_some(quoted));
    let row = |metric, value| run.row(metric, Dataplane::Xdp, &*variant, (value, "us"), &what);
    output.row(&row("latency_p50_us", seen.p50_us).quoting(p50))?;
    output.row(&row("latency_iqr_us", seen.iqr_us()).quoting(iqr))
}
