//! `inband memory`: the switches and servers of replicated memory, and the tools that use it.

// Its `println!` and the like tolerate a reader that has gone.
#[macro_use]
extern crate inband_host;

mod command;

use std::process::ExitCode;

use inband_host::program;

fn main() -> ExitCode {
    program::main("inband memory", || {
        program::parse::<command::Command>().run()
    })
}
