//! Kills serializers and minions under load: how long nothing is delivered, and how many requests fail.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use inband_netpaxos::client::Client;
use inband_netpaxos::proposer::Outcome;

use super::testbed::{Testbed, WHAT};
use super::{NetPaxosArgs, BENCH, QUICK_KILLS};
use crate::row::{machine, median, number, progress, Baseline, Output, Row};

const OUTSTANDING: usize = 16;
const VALUE: [u8; 64] = [7; 64];
/// Time watched before and after a kill.
const HALF_TIME: Duration = Duration::from_millis(500);
/// After this time a request's outcome is unknown, which counts as a failure here.
const TIMEOUT: Duration = Duration::from_secs(30);
const WHOLE_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const GOAL_PAUSE_MS: f64 = 50.0;

/// The observations of a client around a kill.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// The longest time between two deliveries, before the kill and from then on.
    before: Duration,
    after: Duration,
    /// The longest request after the kill.
    longest: Duration,
    delivered: u64,
    failed: u64,
}

/// A closed loop of requests until `ends` is set, after which it waits for the outstanding ones.
fn watch(
    mut client: Client,
    (killed, ends): (&AtomicBool, &AtomicBool),
    serializer: &AtomicUsize,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut sent = BTreeMap::new();
    let mut last = Instant::now();
    loop {
        let is_over = ends.load(Ordering::Acquire);
        if is_over && sent.is_empty() {
            return Ok(seen);
        }
        while !is_over && sent.len() < OUTSTANDING && client.is_ready() {
            sent.insert(client.submit(&VALUE, TIMEOUT), Instant::now());
        }
        let done = client.poll(POLL)?;
        serializer.store(client.serializer(), Ordering::Release);
        for (number, outcome) in done {
            let took = sent.remove(&number).context("it was sent")?.elapsed();
            if outcome == Outcome::Unknown {
                seen.failed += 1;
                continue;
            }
            seen.delivered += 1;
            let gap = last.elapsed();
            last = Instant::now();
            if killed.load(Ordering::Acquire) {
                seen.after = seen.after.max(gap);
                seen.longest = seen.longest.max(took);
            } else {
                seen.before = seen.before.max(gap);
            }
        }
    }
}

impl Testbed {
    /// Kills a process under load. `host` returns its name, given the index of the serializer in use.
    fn kill(&self, host: &dyn Fn(usize) -> String) -> Result<Seen> {
        self.wait_until_whole()?;
        let cluster = self.cluster();
        let (killed, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let serializer = AtomicUsize::new(0);
        let (seen, victim) = thread::scope(|scope| {
            // In a separate thread, because it may enter another network namespace.
            let client = scope.spawn(|| {
                let client = Client::connect(&cluster, WHOLE_LIMIT)?;
                watch(client, (&killed, &ends), &serializer)
            });
            thread::sleep(HALF_TIME);
            let victim = host(serializer.load(Ordering::Acquire));
            killed.store(true, Ordering::Release);
            let done = self.supervisor.kill(&victim);
            thread::sleep(HALF_TIME);
            ends.store(true, Ordering::Release);
            let seen = client.join().map_err(|_| anyhow!("the client panicked"))?;
            done?;
            Ok::<_, anyhow::Error>((seen?, victim))
        })?;
        ensure!(seen.delivered > 0, "nothing was delivered");
        self.supervisor.restart(&victim)?;
        Ok(seen)
    }
}

/// Measures and prints the rows.
pub fn measure(args: &NetPaxosArgs, output: &mut Output) -> Result<()> {
    let kills = if args.quick { QUICK_KILLS } else { args.kills };
    let machine = machine();
    let testbed = Testbed::start(args.dataplane)?;
    let place = testbed.place();
    let serializer = |at: usize| format!("serializer/{}", at + 1);
    let minions = testbed.cluster().minions.len();
    for kind in ["serializer", "minion"] {
        let mut all = Vec::new();
        for kill in 1..=kills {
            progress(&format!("{kind} killed, {kill} of {kills}"));
            let minion = move |_| format!("minion/{}", kill % minions + 1);
            all.push(match kind {
                "serializer" => testbed.kill(&serializer)?,
                _ => testbed.kill(&minion)?,
            });
        }
        show(kind, &all, &format!("{place}; {machine}"), output)?;
    }
    Ok(())
}

fn show(kind: &str, all: &[Seen], where_it_ran: &str, output: &mut Output) -> Result<()> {
    let ms = |of: fn(&Seen) -> Duration| {
        let mut ms: Vec<f64> = all
            .iter()
            .map(|seen| of(seen).as_secs_f64() * 1e3)
            .collect();
        let middle = median(&mut ms);
        (middle, ms.iter().copied().fold(0.0, f64::max), ms)
    };
    let ((middle, worst, each), (calm, calm_worst, _)) = (ms(|s| s.after), ms(|s| s.before));
    let longest = ms(|seen| seen.longest).1;
    let delivered: u64 = all.iter().map(|seen| seen.delivered).sum();
    let failed: u64 = all.iter().map(|seen| seen.failed).sum();
    let each: Vec<String> = each.iter().map(|ms| number(*ms)).collect();
    let variant = format!("{kind} killed");
    let conditions = format!(
        "{WHAT}; {OUTSTANDING} requests of {} B under way, {delivered} delivered; the \
         longest time between two deliveries within {} ms of each of {} kills: {} ms; {where_it_ran}",
        VALUE.len(),
        HALF_TIME.as_millis(),
        all.len(),
        each.join(", "),
    );
    let rows = [
        ("pause_median_ms", middle, Some(calm)),
        ("pause_worst_ms", worst, Some(calm_worst)),
        ("request_worst_ms", longest, None),
    ];
    for (metric, value, calm) in rows {
        let row = Row::new(
            (BENCH, metric),
            "inband",
            &*variant,
            (value, "ms"),
            &*conditions,
        );
        let baseline = calm.map(|value| Baseline {
            name: "before the kill".into(),
            value,
        });
        output.row(&row.beside(baseline))?;
    }
    let metric = (BENCH, "requests_failed");
    let figure = (failed as f64, "requests");
    output.row(&Row::new(metric, "inband", &*variant, figure, &*conditions))?;
    let verdict = |is_met| if is_met { "met" } else { "MISSED" };
    output.note(&format!(
        "goal {}: {variant}: {failed} of {delivered} requests failed, at most 0",
        verdict(failed == 0)
    ));
    if kind == "serializer" {
        output.note(&format!(
            "goal {}: {variant}: the longest pause of {} kills was {} ms, at most {}",
            verdict(worst <= GOAL_PAUSE_MS),
            all.len(),
            number(worst),
            number(GOAL_PAUSE_MS)
        ));
    }
    Ok(())
}
