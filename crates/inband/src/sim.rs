//! `inband sim`: seeded schedules of faults over the real roles and the real host code.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use anyhow::{bail, Result};
use clap::Args;
use inband_sim::{run, run_many, Options};

/// Trace lines kept for a seed that is looked at.
const TRACE_EVENTS: usize = 200;

/// Options of `inband sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// How many seeds to play.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed; with --trace the only one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Play one seed and print its last events.
    #[arg(long)]
    trace: bool,
}

/// Play, report, and fail if a seed violates a rule.
pub fn sim(args: &SimArgs) -> Result<()> {
    if args.trace {
        let options = Options {
            trace_events: TRACE_EVENTS,
            ..Options::default()
        };
        let report = run(args.seed, &options);
        for line in &report.trace {
            println!("{line}");
        }
        println!("{report}");
        if report.violation.is_some() {
            bail!("seed {} violates a rule", args.seed);
        }
        return Ok(());
    }
    let started = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let mut played = 0;
    let summary = run_many(args.seed, args.seeds, &Options::default(), |report| {
        played += 1;
        if report.violation.is_some() {
            println!("{report}");
        }
        if terminal {
            eprint!("\r{played}/{} seeds", args.seeds);
            let _ = std::io::stderr().flush();
        }
    });
    if terminal {
        eprintln!();
    }
    println!(
        "{} seeds, {} failed, {} events of which {} faults, {:.0} events/s",
        summary.seeds,
        summary.failures,
        summary.events,
        summary.fault_events,
        summary.events as f64 / started.elapsed().as_secs_f64()
    );
    if summary.failures > 0 {
        bail!(
            "{} seeds violate a rule; look at one with --seed X --trace",
            summary.failures
        );
    }
    Ok(())
}
