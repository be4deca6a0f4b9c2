//! The `inband` command line. It is a library so that tests reach its parts without a second build of the program.

// Its `println!` and similar macros tolerate a closed output.
#[macro_use]
extern crate inband_host;

mod access;
mod announce;
mod companions;
mod config;
pub mod control_plane;
mod descriptors;
mod doctor;
pub mod exit_status;
mod export;
mod falcon;
mod flair;
pub mod grammar;
mod health;
mod import;
mod inspect;
mod key;
pub mod member;
mod metrics;
mod node_commands;
mod operate;
pub mod published;
mod read_probe;
mod reload;
mod replica;
mod run;
mod serve;
mod stopping;
mod transport;
mod up;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use inband_host::logging::LogFormat;
use inband_host::program;

/// Coordination at packet speed: consensus in the network data plane.
#[derive(Debug, Parser)]
#[command(name = "inband", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster on this machine, replicated three ways: `up`, or `up kv`, for the store for Redis clients; `up
    /// NAME` for another system.
    Up(up::UpArgs),
    /// Stop a cluster cleanly. The store's data stays; other systems say what becomes of theirs. This and the next six
    /// commands detect which system is in --data.
    Down(operate::DownArgs),
    /// Show roles, backends, epoch, leader, instances and counters.
    Status(operate::StatusArgs),
    /// Make a host of `inband run` take no more commands, decide those that it has, and sync its store, before a stop of all
    /// hosts.
    Drain(operate::DrainArgs),
    /// Kill the process of a role at once.
    Kill(operate::RoleArgs),
    /// Restart the process of a role; or all of them, one after another.
    Restart(operate::RestartArgs),
    /// Hold a role's packets on its link.
    Pause(operate::RoleArgs),
    /// Release a role's packets.
    Resume(operate::ResumeArgs),
    /// Delay, lose or cut the packets on a role's link; without options, take such faults away.
    Link(operate::LinkArgs),
    /// List the members of a cluster; add, remove or replace hosts while it serves.
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Move the leader.
    #[command(subcommand)]
    Leader(member::LeaderCommand),
    /// Manage the keys that authenticate packets.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Show timeouts and limits in force.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Check what works on this machine, and how to fix what does not.
    Doctor(doctor::DoctorArgs),
    /// Manage certificates of hosts, for TLS between them.
    #[command(subcommand)]
    Certificate(transport::CertificateCommand),
    /// Write all keys of a cluster, running or stopped, to a file: as a backup, or to move them into a cluster with a
    /// different number of partitions.
    Export(export::ExportArgs),
    /// Load an exported file into a running cluster.
    Import(import::ImportArgs),
    /// Show the contents of a replica's data directory.
    Inspect(inspect::InspectArgs),
    /// Run the roles of one host in the foreground.
    Run {
        /// The host's configuration (TOML; see docs/deploy.md).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// How the log is written to standard error; otherwise as INBAND_LOG_FORMAT or [log] of the configuration says.
        #[arg(long, value_name = "FORMAT")]
        log_format: Option<LogFormat>,
    },
    /// Any other command runs a companion program.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl Command {
    /// Whether it may exit, like other tools, when its output is closed (`inband status | head`). Not if others depend
    /// on the process.
    fn only_prints(&self) -> bool {
        matches!(
            self,
            Command::Status(_)
                | Command::Config(_)
                | Command::Doctor(_)
                | Command::Inspect(_)
                | Command::Member(member::MemberCommand::List { .. })
        )
    }
}

pub fn main() -> ExitCode {
    program::start();
    let words = grammar::with_help_last(std::env::args_os().collect());
    if let Some(command) = grammar::program_of(&words) {
        return conclude(companions::run(command));
    }
    let ordered = grammar::in_order(words, grammar::system_in, grammar::systems_that_run);
    let (words, note) = match ordered {
        Ok(ordered) => ordered,
        Err(error) => return conclude(Err(error.into())),
    };
    if let Some(note) = note {
        eprintln!("{note}");
    }
    let matches = command()
        .try_get_matches_from(words)
        .unwrap_or_else(|error| program::usage(&error));
    if let Some((name, matches)) = matches.subcommand() {
        if let Some(system) = grammar::named(name) {
            return conclude(system.run(matches));
        }
    }
    let command = Cli::from_arg_matches(&matches)
        .unwrap_or_else(|error| program::usage(&error))
        .command;
    if command.only_prints() {
        program::end_with_reader();
    }
    conclude(dispatch(command))
}

/// The command line, with the commands of all systems.
pub fn command() -> clap::Command {
    let systems = grammar::SYSTEMS.iter().map(|system| system.command());
    Cli::command().subcommands(systems).after_help(format!(
        "{}\n{}",
        grammar::help(),
        companions::help()
    ))
}

fn conclude(result: Result<()>) -> ExitCode {
    program::conclude(program::INBAND, result, exit_status::of)
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Up(args) => up::up(&args),
        Command::Down(args) => operate::down(&args),
        Command::Status(args) => operate::status(&args),
        Command::Drain(args) => operate::drain(&args),
        Command::Kill(args) => operate::kill(&args),
        Command::Restart(args) => operate::restart(&args),
        Command::Pause(args) => operate::pause(&args),
        Command::Resume(args) => operate::resume(&args),
        Command::Link(args) => operate::link(&args),
        Command::Member(command) => member::member(&command),
        Command::Leader(command) => member::leader(&command),
        Command::Key(command) => key::key(&command),
        Command::Certificate(command) => transport::certificate(&command),
        Command::Config(command) => config::config(&command),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Export(args) => export::export(&args),
        Command::Import(args) => import::import(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Run { config, log_format } => run::run(&config, log_format),
        Command::Other(command) => companions::run(command),
    }
}
