//! `inband box`: the nodes of a replicated memcached.

// Its `println!` and the like tolerate a reader that has gone.
#[macro_use]
extern crate inband_host;

mod node_command;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use inband_host::option_file::with_file;
use inband_host::program;

const NODE: &str = "node";
/// Options that a file must not repeat at every start, and why.
const NEVER_IN_A_FILE: [(&str, &str); 1] =
    [("accept-loss", "the table would be lost at every start")];

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

/// Returns the command line with the options of the file that `--config` of `node` names.
fn with_config(mut words: Vec<OsString>) -> Result<Vec<OsString>> {
    if words.get(1).is_none_or(|word| word != NODE) {
        return Ok(words);
    }
    let options = words.split_off(2);
    let command = Command::command();
    let node = command.find_subcommand(NODE).expect("it is declared");
    words.extend(with_file(node, &options, &NEVER_IN_A_FILE)?);
    Ok(words)
}

fn main() -> ExitCode {
    program::main("inband box", || -> Result<()> {
        let words = with_config(std::env::args_os().collect())?;
        match Command::try_parse_from(words).unwrap_or_else(|error| program::usage(&error)) {
            Command::Node(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Quorum(args) => args.run(),
            Command::Member(command) => command.run(),
        }
    })
}
