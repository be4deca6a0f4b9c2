//! `inband sim`: seeded schedules of faults over the real roles and the real host code.

mod falcon;
mod flair;
mod paxos;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use clap::Args;
use inband_flair::reads::Reads;
use inband_lab::signals::StopSignals;
use inband_sim::Seeds;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::{TimeVal, TimeValLike};

use self::falcon::Falcon;
use self::flair::Flair;
use self::paxos::Paxos;
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
    /// Play the world of FLAIR: switches, replicas and clients
    #[arg(long)]
    flair: bool,
    /// How FLAIR answers reads: flair, leader, majority or follower-leases
    #[arg(long, default_value_t, requires = "flair")]
    reads: Reads,
    /// Play the world of Falcon: schedulers, workers and clients
    #[arg(long, conflicts_with = "flair")]
    falcon: bool,
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

/// A world that can be simulated; the value is what was seen in all seeds so far.
trait World {
    /// What a seed came to. Displayed in a line, and a second one if a rule was broken.
    type Report: fmt::Display + Send;
    /// What is simulated.
    type Setup: Copy + Sync;

    /// As it was asked for.
    fn setup(&self) -> Self::Setup;
    /// How it is chosen on the command line.
    fn option(&self) -> String;
    /// Play a seed; keep its last events, if told how many.
    fn play(setup: Self::Setup, seed: u64, last: Option<usize>) -> Self::Report;
    /// Its number.
    fn seed(report: &Self::Report) -> u64;
    /// The rule that was broken, and what it says.
    fn broken_rule(report: &Self::Report) -> Option<(String, &'static str)>;
    /// The last events, one a line.
    fn trace(report: &Self::Report) -> &[String];
    /// Everything that happened.
    fn events(report: &Self::Report) -> u64;
    /// Things that went wrong with packets, hosts and links.
    fn fault_events(report: &Self::Report) -> u64;
    /// Every rule, and what it says.
    fn rules() -> Vec<(String, &'static str)>;

    /// One seed more.
    fn add(&mut self, report: &Self::Report);
    /// How many seeds were of a special kind.
    fn special_seeds(&self) -> String {
        String::new()
    }
    /// Print what was seen.
    fn tell(&self);
}

/// Play, report, and fail if a seed violates a rule.
pub fn sim(args: &SimArgs) -> Result<()> {
    match (args.flair, args.falcon) {
        (true, _) => simulate(Flair::new(args.reads), args),
        (_, true) => simulate(Falcon::default(), args),
        (false, false) => simulate(Paxos::default(), args),
    }
}

fn simulate<W: World>(mut seen: W, args: &SimArgs) -> Result<()> {
    if args.rules {
        for (rule, says) in W::rules() {
            println!("{rule:<20} {says}");
        }
        return Ok(());
    }
    if args.trace {
        return replay(&seen, args);
    }
    let interrupted = watch_for_ctrl_c()?;
    let started = Instant::now();
    let limit = args.minutes.map(|m| Duration::from_secs_f64(m * 60.0));
    let count = match limit {
        None => Some(args.seeds.unwrap_or(SEEDS)),
        Some(_) => args.seeds,
    };
    let seeds = Seeds {
        first: args.seed,
        count,
        jobs: args.jobs,
    };
    let bar = bar(count);
    let is_over = || limit.is_some_and(|limit| started.elapsed() >= limit);
    let stop = || interrupted.load(Ordering::Relaxed) || is_over();
    let (option, setup) = (seen.option(), seen.setup());
    let mut played = Played::default();
    let play = |seed| W::play(setup, seed, None);
    seeds.play(play, stop, |report| {
        let is_bad = W::broken_rule(&report).is_some();
        if is_bad {
            let command = replay_command(&option, W::seed(&report));
            bar.suspend(|| println!("{report}\n  replay: {command}"));
        }
        played.add(W::events(&report), W::fault_events(&report), is_bad);
        seen.add(&report);
        bar.set_message(played.to_string());
        bar.inc(1);
    });
    bar.finish_and_clear();
    played.tell(started, &seen.special_seeds());
    seen.tell();
    if played.failures > 0 {
        bail!(
            "{} of {} seeds violate a rule",
            played.failures,
            played.seeds
        );
    }
    if interrupted.load(Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED);
    }
    Ok(())
}

fn replay_command(option: &str, seed: u64) -> String {
    format!("inband sim {option}--seed {seed} --trace")
}

fn replay<W: World>(world: &W, args: &SimArgs) -> Result<()> {
    let report = W::play(world.setup(), args.seed, Some(args.last));
    for line in W::trace(&report) {
        println!("{line}");
    }
    println!("{report}");
    match W::broken_rule(&report) {
        Some((rule, says)) => bail!("seed {} violates {rule}: {says}", args.seed),
        None => Ok(()),
    }
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

/// All seeds so far.
#[derive(Default)]
struct Played {
    seeds: u64,
    events: u64,
    fault_events: u64,
    failures: u64,
}

impl Played {
    fn add(&mut self, events: u64, fault_events: u64, is_bad: bool) {
        self.seeds += 1;
        self.events += events;
        self.fault_events += fault_events;
        self.failures += u64::from(is_bad);
    }

    /// Print how many there were, what happened in them, and how much of it a minute.
    fn tell(&self, started: Instant, special_seeds: &str) {
        let took = started.elapsed();
        let core_minutes = cpu_seconds().unwrap_or(took.as_secs_f64()).max(0.001) / 60.0;
        let minutes = took.as_secs_f64().max(0.001) / 60.0;
        let rate = |count: u64, minutes: f64| HumanCount((count as f64 / minutes) as u64);
        println!(
            "{} seeds{special_seeds} in {}, {} failed",
            HumanCount(self.seeds),
            HumanDuration(took),
            self.failures
        );
        println!(
            "{} events, {} events/min; {} fault events, {} fault events/min per core",
            HumanCount(self.events),
            rate(self.events, minutes),
            HumanCount(self.fault_events),
            rate(self.fault_events, core_minutes),
        );
    }
}

/// What the bar says.
impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// How often each thing happened, a line each.
fn tell_counts(counts: impl IntoIterator<Item = (&'static str, u64)>) {
    for (name, count) in counts {
        println!("  {:>14} {name}", HumanCount(count).to_string());
    }
}
