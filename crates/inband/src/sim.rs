//! `inband sim`: seeded schedules of faults over the real roles and the real host code.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use clap::Args;
use inband_lab::signals::StopSignals;
use inband_sim::{run, Campaign, FaultKind, Invariant, Options, Report, Summary};
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::export::EXIT_INTERRUPTED;

/// Seeds played unless told how many, or for how long.
const SEEDS: u64 = 200;
/// How often Ctrl-C is looked for.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
const BAR: &str = "{wide_bar} {human_pos} of {human_len} seeds, {elapsed}, {msg}";
const SPINNER: &str = "{spinner} {human_pos} seeds, {elapsed}, {msg}";

/// Options of `inband sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// How many seeds to play [default: 200, or as many as --minutes allows]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Begin no seed after so many minutes
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<f64>,
    /// The first seed; with --trace the only one
    #[arg(long, value_name = "X", default_value_t = 1)]
    seed: u64,
    /// Play one seed and print its last events
    #[arg(long)]
    trace: bool,
    /// How many events --trace prints
    #[arg(long, value_name = "N", default_value_t = 200)]
    last: usize,
    /// Seeds played at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// List the rules that are checked, and play nothing
    #[arg(long)]
    rules: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes.is_finite() => Ok(minutes),
        _ => Err("a number above 0 is needed, such as 0.5 or 10".to_owned()),
    }
}

/// Play, report, and fail if a seed violates a rule.
pub fn sim(args: &SimArgs) -> Result<()> {
    if args.rules {
        for rule in Invariant::ALL {
            println!("{:<20} {}", rule.to_string(), rule.describe());
        }
        return Ok(());
    }
    if args.trace {
        return replay(args);
    }
    let interrupted = watch_for_ctrl_c()?;
    let started = Instant::now();
    let limit = args.minutes.map(|m| Duration::from_secs_f64(m * 60.0));
    let count = match limit {
        None => Some(args.seeds.unwrap_or(SEEDS)),
        Some(_) => args.seeds,
    };
    let campaign = Campaign {
        first: args.seed,
        count,
        jobs: args.jobs,
        options: Options::default(),
    };
    let bar = bar(count);
    let is_over = || limit.is_some_and(|limit| started.elapsed() >= limit);
    let stop = || interrupted.load(Ordering::Relaxed) || is_over();
    let mut played = Played::default();
    let summary = campaign.play(stop, |report| {
        if report.violation.is_some() {
            bar.suspend(|| println!("{report}\n  replay: {}", replay_command(report.seed)));
        }
        played.add(report);
        bar.set_message(played.to_string());
        bar.inc(1);
    });
    bar.finish_and_clear();
    tell(&summary, started.elapsed());
    if summary.failures > 0 {
        bail!(
            "{} of {} seeds violate a rule",
            summary.failures,
            summary.seeds
        );
    }
    if interrupted.load(Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED);
    }
    Ok(())
}

fn replay_command(seed: u64) -> String {
    format!("inband sim --seed {seed} --trace")
}

fn replay(args: &SimArgs) -> Result<()> {
    let options = Options {
        trace_events: args.last,
        ..Options::default()
    };
    let report = run(args.seed, &options);
    for line in &report.trace {
        println!("{line}");
    }
    println!("{report}");
    if let Some(violation) = &report.violation {
        let rule = violation.invariant;
        bail!("seed {} violates {rule}: {}", args.seed, rule.describe());
    }
    Ok(())
}

/// True from Ctrl-C on. The second one ends the process at once.
fn watch_for_ctrl_c() -> Result<Arc<AtomicBool>> {
    let signals = StopSignals::take()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let watch = move || loop {
        if signals.wait(SIGNAL_POLL) && flag.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT_INTERRUPTED);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(interrupted)
}

fn bar(seeds: Option<u64>) -> ProgressBar {
    let (bar, template) = match seeds {
        Some(seeds) => (ProgressBar::new(seeds), BAR),
        None => (ProgressBar::no_length(), SPINNER),
    };
    let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    bar.with_style(style)
}

/// What the bar says.
#[derive(Default)]
struct Played {
    fault_events: u64,
    failures: u64,
}

impl Played {
    fn add(&mut self, report: &Report) {
        self.fault_events += report.stats.fault_events();
        self.failures += u64::from(report.violation.is_some());
    }
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fault_events = HumanCount(self.fault_events);
        write!(f, "{fault_events} fault events, {} failed", self.failures)
    }
}

fn seconds(time: TimeVal) -> f64 {
    time.num_microseconds() as f64 / 1e6
}

/// Processor time of this process.
fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn tell(summary: &Summary, took: Duration) {
    let stats = &summary.stats;
    let minutes = took.as_secs_f64().max(0.001) / 60.0;
    let core_minutes = cpu_seconds().map_or(minutes, |s| s.max(0.001) / 60.0);
    let rate = |count: u64, minutes: f64| HumanCount((count as f64 / minutes) as u64);
    println!(
        "{} seeds ({} with the real store) in {}, {} failed",
        HumanCount(summary.seeds),
        HumanCount(summary.with_store),
        HumanDuration(took),
        summary.failures
    );
    println!(
        "{} events, {} events/min; {} fault events, {} fault events/min per core",
        HumanCount(stats.events),
        rate(stats.events, minutes),
        HumanCount(stats.fault_events()),
        rate(stats.fault_events(), core_minutes),
    );
    println!(
        "{} instances applied, {} commands and {} reads answered, {} leaders activated; settled \
         within {} ms",
        HumanCount(summary.applied),
        HumanCount(summary.ends.success),
        HumanCount(summary.ends.reads),
        HumanCount(stats.activations),
        stats.settled_after_us / 1000
    );
    let kinds = FaultKind::ALL.map(|kind| (kind.name(), stats.faults.of(kind)));
    for (name, count) in stats.packet_faults().into_iter().chain(kinds) {
        println!("  {:>14} {name}", HumanCount(count).to_string());
    }
}
