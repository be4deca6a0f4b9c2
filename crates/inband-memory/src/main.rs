//! `inband memory`: replicated memory: its switches and servers, and what uses it.

// Its `println!` and the like outlive their reader.
#[macro_use]
extern crate inband_host;

mod command;

use std::process::ExitCode;

use clap::Parser;
use inband_host::program;

fn main() -> ExitCode {
    program::main("inband memory", || command::Command::parse().run())
}
