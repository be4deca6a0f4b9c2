//! `inband netpaxos`: the processes of a cluster, and its clients.

// Its `println!` and the like tolerate a reader that has gone.
#[macro_use]
extern crate inband_host;

mod command;

use std::process::ExitCode;

use inband_host::program;

fn main() -> ExitCode {
    program::main("inband netpaxos", || {
        program::parse::<command::Command>().run()
    })
}
