//! `inband box`: the nodes of a replicated memcached.

// Its `println!` and the like tolerate a reader that has gone.
#[macro_use]
extern crate inband_host;

mod node_command;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use inband_host::program;

/// A replicated memcached: every write is acknowledged by a quorum of nodes.
#[derive(Debug, Parser)]
#[command(name = "inband box", version)]
enum Command {
    /// Run a node until Ctrl-C
    Node(Box<node_command::NodeArgs>),
    /// Show a node's status
    Status(node_command::StatusArgs),
    /// Change how many nodes must have a write, while clients use the cluster
    Quorum(node_command::QuorumArgs),
    /// Add or remove nodes while clients use the others
    #[command(subcommand)]
    Member(node_command::MemberCommand),
}

fn main() -> ExitCode {
    program::main("inband box", || -> Result<()> {
        match Command::parse() {
            Command::Node(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Quorum(args) => args.run(),
            Command::Member(command) => command.run(),
        }
    })
}
