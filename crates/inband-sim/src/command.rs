//! The command line of `inband-sim`: plays seeds, prints statistics, and replays a single seed.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::campaign::{Seeds, Summary};
use crate::listed::Listed;
use crate::run::{run_with_trace, Report};
use crate::system::System;

/// Seeds played without `--seeds` and `--minutes`.
const SEEDS: u64 = 200;
/// Exit status after Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;
const BAR: &str = "{wide_bar} {human_pos} of {human_len} seeds, {elapsed}, {msg}";
const SPINNER: &str = "{spinner} {human_pos} seeds, {elapsed}, {msg}";
const TO_OUTPUT: &str = "writing to standard output";

#[derive(Debug, Args)]
struct PlayArgs {
    /// How many seeds to play [default: 200, or as many as --minutes allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Start no new seed after this many minutes
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
    /// How many seeds to play in parallel
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Print a line for every seed, with a hash of all its events
    #[arg(long)]
    each: bool,
    /// List the invariants that are checked and exit
    #[arg(long)]
    rules: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes.is_finite() => Ok(minutes),
        _ => Err("a number above 0 is needed, such as 0.5 or 10".to_owned()),
    }
}

#[derive(Clone, Copy)]
pub struct Entry {
    name: &'static str,
    command: fn() -> Command,
    play: fn(&ArgMatches, String) -> Result<()>,
}

impl Entry {
    /// Registers a system.
    pub const fn of<S: System>() -> Entry {
        Entry {
            name: S::NAME,
            command: command_of::<S>,
            play: play::<S>,
        }
    }
}

fn command_of<S: System>() -> Command {
    let command = PlayArgs::augment_args(Command::new(S::NAME).about(S::ABOUT));
    S::Options::augment_args(command)
}

/// Accepts the former command line, where an option chose the system (`--NAME`, or none for the first one), and prints
/// a note.
fn with_system(args: Vec<OsString>, entries: &[Entry]) -> Vec<OsString> {
    let is_name = |arg: &OsString| entries.iter().any(|entry| arg == entry.name);
    let asks = |arg: &OsString| arg == "--help" || arg == "-h" || arg == "--list";
    if args.get(1).is_some_and(|arg| is_name(arg) || asks(arg)) || args.len() < 2 {
        return args;
    }
    if !args[1].to_string_lossy().starts_with('-') {
        return args; // clap lists the systems in its error
    }
    let is_old = |arg: &&OsString| {
        let arg = arg.to_string_lossy();
        arg.strip_prefix("--")
            .is_some_and(|name| is_name(&name.into()))
    };
    let old = args.iter().find(is_old).cloned();
    let name = match &old {
        Some(old) => old.to_string_lossy().trim_start_matches('-').to_owned(),
        None => entries[0].name.to_owned(),
    };
    eprintln!("inband sim: the system comes first now; this plays `inband sim {name}`");
    let rest = args.iter().skip(1).filter(|arg| Some(*arg) != old.as_ref());
    let start = [args[0].clone(), name.into()];
    start.into_iter().chain(rest.cloned()).collect()
}

/// Runs the command. The first argument is the program's name.
///
/// # Errors
/// If a seed breaks an invariant, or output cannot be written.
pub fn main(entries: &[Entry], args: Vec<OsString>) -> Result<()> {
    let args = with_system(args, entries);
    let list = clap::Arg::new("list")
        .long("list")
        .help("Print the names of the systems")
        .action(clap::ArgAction::SetTrue);
    let command = Command::new("inband-sim")
        .about("Seeded schedules of faults over the real roles and the real host code")
        .version(env!("CARGO_PKG_VERSION"))
        .arg(list)
        .arg_required_else_help(true)
        .subcommands(entries.iter().map(|entry| (entry.command)()));
    let matches = match command.try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => error.exit(),
        // Help, or the version.
        Err(error) => return error.print().context(TO_OUTPUT),
    };
    if matches.get_flag("list") {
        for entry in entries {
            writeln!(io::stdout(), "{}", entry.name).context(TO_OUTPUT)?;
        }
    }
    let Some((name, of_system)) = matches.subcommand() else {
        return Ok(());
    };
    let entry = entries.iter().find(|entry| entry.name == name);
    let replay = replay_command(name, &args);
    (entry.expect("clap knows no other").play)(of_system, replay)
}

/// Returns the command line without the options that choose seeds.
fn replay_command(name: &str, args: &[OsString]) -> String {
    let mut command = format!("inband sim {name}");
    let mut args = args.iter().skip(2).map(|arg| arg.to_string_lossy());
    let chooses = [
        "--seeds",
        "--minutes",
        "--seed",
        "--last",
        "--jobs",
        "--each",
        "--trace",
    ];
    while let Some(arg) = args.next() {
        let name = arg.split('=').next().unwrap_or_default();
        if !chooses.contains(&name) {
            command += &format!(" {arg}");
        } else if name == arg && !["--each", "--trace"].contains(&name) {
            args.next();
        }
    }
    command
}

fn play<S: System>(matches: &ArgMatches, replay: String) -> Result<()> {
    let args = PlayArgs::from_arg_matches(matches)?;
    let options = S::Options::from_arg_matches(matches)?;
    if args.rules {
        for invariant in S::Invariant::LIST {
            let name = invariant.to_string();
            writeln!(io::stdout(), "{name:<20} {}", invariant.description()).context(TO_OUTPUT)?;
        }
        return Ok(());
    }
    if args.trace {
        return trace::<S>(&args, &options);
    }
    campaign::<S>(&args, &options, &replay)
}

fn campaign<S: System>(args: &PlayArgs, options: &S::Options, replay: &str) -> Result<()> {
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
    let mut so_far = Progress::default();
    let mut printed = Ok(());
    let summary = seeds.play::<S>(options, stop, |report| {
        so_far.add(report);
        let is_bad = report.violation.is_some();
        if args.each || is_bad {
            let lines = match is_bad {
                true => format!(
                    "{report}\n  replay: {replay} --seed {} --trace",
                    report.seed
                ),
                false => report.to_string(),
            };
            let done = bar.suspend(|| writeln!(io::stdout(), "{lines}"));
            printed = std::mem::replace(&mut printed, Ok(())).and(done);
        }
        bar.set_message(so_far.to_string());
        bar.inc(1);
    });
    bar.finish_and_clear();
    printed.context(TO_OUTPUT)?;
    tell::<S>(&summary, started, &mut io::stdout().lock()).context(TO_OUTPUT)?;
    if summary.failures > 0 {
        let Summary {
            failures, seeds, ..
        } = summary;
        bail!("{failures} of {seeds} seeds violate an invariant");
    }
    if interrupted.load(Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED);
    }
    Ok(())
}

fn trace<S: System>(args: &PlayArgs, options: &S::Options) -> Result<()> {
    let report = run_with_trace::<S>(args.seed, options, args.last);
    let mut out = io::stdout().lock();
    for line in &report.trace {
        writeln!(out, "{line}").context(TO_OUTPUT)?;
    }
    writeln!(out, "{report}").context(TO_OUTPUT)?;
    match &report.violation {
        Some(violation) => bail!(
            "seed {} violates {}: {}",
            args.seed,
            violation.invariant,
            violation.invariant.description()
        ),
        None => Ok(()),
    }
}

/// Becomes true on Ctrl-C, SIGTERM or SIGHUP. A second signal ends the process at once.
fn watch_for_ctrl_c() -> Result<Arc<AtomicBool>> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let watch = move || {
        while signals.wait().is_ok() {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(EXIT_INTERRUPTED);
            }
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

/// The counts in the progress bar.
#[derive(Default)]
struct Progress {
    fault_events: u64,
    failures: u64,
}

impl Progress {
    fn add<I>(&mut self, report: &Report<I>) {
        self.fault_events += report.stats.fault_events();
        self.failures += u64::from(report.violation.is_some());
    }
}

impl fmt::Display for Progress {
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

/// Prints the number of seeds, the totals, and rates per minute.
fn tell<S: System>(summary: &Summary, started: Instant, out: &mut impl Write) -> io::Result<()> {
    let stats = &summary.stats;
    let took = started.elapsed();
    let core_minutes = cpu_seconds().unwrap_or(took.as_secs_f64()).max(0.001) / 60.0;
    let minutes = took.as_secs_f64().max(0.001) / 60.0;
    let rate = |count: u64, minutes: f64| HumanCount((count as f64 / minutes) as u64);
    writeln!(
        out,
        "{} seeds in {}, {} failed",
        HumanCount(summary.seeds),
        HumanDuration(took),
        summary.failures
    )?;
    writeln!(
        out,
        "{} events, {} events/min; {} fault events, {} fault events/min per core; settled within {} ms",
        HumanCount(stats.events),
        rate(stats.events, minutes),
        HumanCount(stats.fault_events()),
        rate(stats.fault_events(), core_minutes),
        stats.settled_after / S::TICKS_PER_US / 1000
    )?;
    let packets = stats.links.faults().into_iter();
    let packets = packets.filter(|(_, count)| *count > 0);
    let faults = S::Fault::LIST.iter().map(|fault| {
        let name = fault.description();
        (name, stats.faults.of(name))
    });
    for (name, count) in packets.chain(faults).chain(stats.counts.iter()) {
        writeln!(out, "  {:>14} {name}", HumanCount(count).to_string())?;
    }
    Ok(())
}
