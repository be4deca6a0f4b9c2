//! `inband sequencer`: runs the sequencer, or acts as its client.

// Its `println!` and similar macros tolerate a closed output.
#[macro_use]
extern crate inband_host;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Parser;
use inband_host::program;
use inband_host::role_process::{AskArgs, DataArgs, ProcessArgs, Program};
use inband_sequencer::{Header, Logs, Sequencer};
use serde::{Deserialize, Serialize};

/// Hand out consecutive numbers for logs, each number once, from a role in the data plane: the smallest system
/// (docs/adding-a-system.md).
#[derive(Debug, Parser)]
#[command(name = "inband sequencer", version)]
enum Command {
    /// Run a sequencer until Ctrl-C
    Up {
        /// Logs, 1 to 1024
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
        logs: u16,
        #[command(flatten)]
        process: ProcessArgs<Process>,
    },
    /// Show how many numbers the sequencer on this machine has handed out
    Status(DataArgs<Process>),
    /// Ask for the next numbers of a log
    Next {
        /// The log, from 0
        #[arg(default_value_t = 0)]
        log: u16,
        /// How many numbers, 1 to 4096
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
        count: u64,
        #[command(flatten)]
        ask: AskArgs<Process>,
    },
}

#[derive(Debug, Clone)]
enum Process {}

#[derive(Debug, Serialize, Deserialize)]
struct Status {
    incarnation: u64,
    given: Vec<u64>,
}

impl Program for Process {
    type Role = Sequencer;
    type Status = Status;
    const NAME: &'static str = "sequencer";
    const ADDRESS: &'static str = "127.0.0.1:7900";
    const DATA: &'static str = ".inband-sequencer";
    const RISK: &'static str = "anybody could use up numbers";

    fn status(sequencer: &Sequencer, registers: &Logs) -> Status {
        let given = |log| registers.given(log).load(Ordering::SeqCst);
        Status {
            incarnation: sequencer.incarnation,
            given: (0..sequencer.logs).map(given).collect(),
        }
    }
}

fn main() -> ExitCode {
    program::main("inband sequencer", || match program::parse() {
        Command::Up { logs, process } => process.run(Sequencer {
            logs: logs.into(),
            incarnation: rand::random(),
        }),
        Command::Status(data) => data.print_status(|status| {
            println!("incarnation {:016x}", status.incarnation);
            for (log, given) in status.given.iter().enumerate() {
                println!("log {log:<4} {given} numbers given");
            }
        }),
        Command::Next { log, count, ask } => {
            let doubt = format!("is log {log} below its --logs, and the key file the same?");
            let answer = ask.ask(rand::random(), Header::next(log, count), log, &doubt)?;
            println!("{}..{}", answer.number, answer.number + answer.count - 1);
            Ok(())
        }
    })
}
