//! The `inband` command line.

mod bench;
mod client;
mod doctor;
mod inspect;
mod metrics;
mod operate;
mod published;
mod replica;
mod run;
mod serve;
mod sim;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Coordination at packet speed: consensus in the network data plane.
#[derive(Debug, Parser)]
#[command(name = "inband", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster on this machine: three-way replicated, served to Redis clients.
    Up(up::UpArgs),
    /// Stop the cluster cleanly; its data stay.
    Down(operate::ClusterArgs),
    /// Roles, backends, epoch, leader, instances, counters.
    Status(operate::StatusArgs),
    /// Kill the process of a role at once.
    Kill(operate::RoleArgs),
    /// Start the process of a role again; or all, one after another.
    Restart(operate::RestartArgs),
    /// Hold the packets of a role on its link.
    Pause(operate::RoleArgs),
    /// Release them.
    Resume(operate::RoleArgs),
    /// What works on this machine, and the cure for what does not.
    Doctor(doctor::DoctorArgs),
    /// Play seeded schedules of faults over the real protocol code.
    Sim(sim::SimArgs),
    /// What a replica's data directory holds.
    Inspect(inspect::InspectArgs),
    /// Run the roles of one host, in the foreground.
    Run {
        /// The host's configuration (TOML; see docs/deploy.md).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Measure, each figure beside a baseline of the same run.
    Bench(bench::BenchArgs),
    /// What a benchmark runs in place of the store.
    #[command(hide = true)]
    BenchNode(bench::BenchNodeArgs),
}

fn main() -> ExitCode {
    let level = tracing_subscriber::EnvFilter::try_from_env("INBAND_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_target(false)
        .with_writer(std::io::stderr)
        .init();
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inband: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Up(args) => up::up(&args),
        Command::Down(args) => operate::down(&args),
        Command::Status(args) => operate::status(&args),
        Command::Kill(args) => operate::kill(&args),
        Command::Restart(args) => operate::restart(&args),
        Command::Pause(args) => operate::pause(&args),
        Command::Resume(args) => operate::resume(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Sim(args) => sim::sim(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Run { config } => run::run(&config),
        Command::Bench(args) => bench::bench(args),
        Command::BenchNode(args) => bench::bench_node(args),
    }
}
