//! The command line.

mod node;
mod plan;
mod run;
mod server;
mod status;
mod switch;
mod top;
mod values;

use anyhow::Result;
use clap::Parser;

/// Memory that outlives its servers: lines of 64 bytes, each a linearizable register.
#[derive(Debug, Parser)]
#[command(name = "inband memory", version)]
pub enum Command {
    /// Show the state of a cluster's nodes, or of one node
    Status(status::StatusArgs),
    /// Show rates and latency of a cluster continuously
    Top(top::TopArgs),
    /// Read lines
    Read(values::ReadArgs),
    /// Write a line
    Write(values::WriteArgs),
    /// Run a program whose heap is in replicated memory
    Run(run::RunCommand),
    /// Calculate what a memory needs from switches and servers
    Plan(plan::PlanArgs),
    /// Run a switch until Ctrl-C
    Switch(switch::SwitchArgs),
    /// Run a memory server until Ctrl-C
    Server(server::ServerArgs),
}

impl Command {
    pub fn run(self) -> Result<()> {
        match self {
            Command::Status(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Read(args) => args.run(),
            Command::Write(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Plan(args) => args.run(),
            Command::Switch(args) => args.run(),
            Command::Server(args) => args.run(),
        }
    }
}
