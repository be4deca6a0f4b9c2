//! `inband p4`: the host process of an acceptor that runs in a P4 switch (docs/portability.md).

mod acceptor;
mod network;
mod status;
mod switch;

use std::process::ExitCode;

use clap::Parser;
use inband_host::program;

/// Run the control plane of a role that a P4 switch has.
#[derive(Debug, Parser)]
#[command(name = "inband p4", version)]
enum Command {
    /// Make the switch an acceptor of a cluster, until Ctrl-C. It starts with empty registers
    Acceptor(acceptor::Args),
}

fn main() -> ExitCode {
    program::main("inband p4", || match program::parse() {
        Command::Acceptor(args) => acceptor::run(&args),
    })
}
