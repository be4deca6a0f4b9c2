//! `inband chaos`: real clusters under faults (docs/chaos.md).

// Its `println!` and the like do not panic when the reader has closed the pipe.
#[macro_use]
extern crate inband_host;

mod box_cluster;
mod chaos;
mod checker;
mod fault_kind;
mod flair;
mod history;
mod links;
mod memory;
mod nemesis;
mod netpaxos;
mod paxos;
mod report;
mod stale_proxy;
mod store;
mod subject;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use inband_host::program;

/// Inject faults into a real cluster under load, and check that it stays linearizable.
#[derive(Debug, Parser)]
#[command(name = "inband chaos", version)]
struct Cli {
    #[command(flatten)]
    args: chaos::ChaosArgs,
}

fn main() -> ExitCode {
    program::main("inband chaos", || {
        chaos::chaos(&program::parse::<Cli>().args)
    })
}
