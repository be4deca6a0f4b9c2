//! `inband sequencer`: the sequencer's process, and a client of it.

// Its `println!` outlives its reader.
#[macro_use]
extern crate inband_host;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Result};
use clap::{Args, Parser};
use inband_ground::auth::Gate;
use inband_host::program;
use inband_host::role_process::{print_status, AskArgs, RoleArgs, Start};
use inband_sequencer::client::{Client, RETRY_NS};
use inband_sequencer::{Logs, Sequencer, LOGS};
use serde::{Deserialize, Serialize};

const DEFAULT_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7900);

/// Numbers of logs, each given once, by a role in the data plane: the smallest system (docs/adding-a-system.md).
#[derive(Debug, Parser)]
#[command(name = "inband sequencer", version)]
enum Command {
    /// Run a sequencer until Ctrl-C
    Up(UpArgs),
    /// What the sequencer on this machine has given
    Status(DataArgs),
    /// Ask for the next numbers of a log
    Next(NextArgs),
}

#[derive(Debug, Args)]
struct DataArgs {
    /// Directory of its control socket
    #[arg(long, default_value = ".inband-sequencer", value_name = "DIR")]
    data: PathBuf,
}

#[derive(Debug, Args)]
struct UpArgs {
    /// Where it listens
    #[arg(long, default_value_t = DEFAULT_ADDRESS, value_name = "ADDR:PORT")]
    listen: SocketAddrV4,
    /// Logs, 1 to 1024
    #[arg(long, default_value_t = 1)]
    logs: usize,
    #[command(flatten)]
    role: RoleArgs,
    #[command(flatten)]
    data: DataArgs,
}

#[derive(Debug, Args)]
struct NextArgs {
    /// The log, from 0
    #[arg(default_value_t = 0)]
    log: u16,
    /// How many numbers, 1 to 4096
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    count: u64,
    /// The sequencer
    #[arg(long, default_value_t = DEFAULT_ADDRESS, value_name = "ADDR:PORT")]
    sequencer: SocketAddrV4,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Debug, Serialize, Deserialize)]
struct Status {
    incarnation: u64,
    given: Vec<u64>,
}

fn up(args: &UpArgs) -> Result<()> {
    let logs = args.logs;
    ensure!(LOGS.contains(&logs), "--logs {logs} are not {LOGS:?}");
    let incarnation = rand::random();
    let start = Start {
        args: &args.role,
        listen: args.listen,
        data: &args.data.data,
        risk: "anybody could use up numbers",
        what: format!("sequencer: {logs} logs"),
        partitions: logs,
    };
    start.run(
        |node| inband_sequencer::soft(node, logs, incarnation),
        |host| inband_sequencer::program(host, logs, incarnation),
        move |registers: &Logs| Status {
            incarnation,
            given: (0..logs).map(|log| registers.given(log)).collect(),
        },
    )
}

fn status(args: &DataArgs) -> Result<()> {
    print_status("sequencer", &args.data, |status: &Status| {
        println!("incarnation {:016x}", status.incarnation);
        for (log, given) in status.given.iter().enumerate() {
            println!("log {log:<4} {given} numbers given");
        }
    })
}

fn next(args: &NextArgs) -> Result<()> {
    let gate = Gate::of::<Sequencer>(args.ask.keys()?, usize::from(args.log) + 1);
    let mut client = Client::new(gate, rand::random());
    client.ask(args.log, args.count);
    let answer = args.ask.ask(
        args.sequencer,
        &client.packet(),
        Duration::from_nanos(RETRY_NS),
        |packet| client.on_packet(packet),
        format_args!(
            "is log {} below its --logs, and the key file the same?",
            args.log
        ),
    )?;
    println!("{}..{}", answer.number, answer.number + answer.count - 1);
    Ok(())
}

fn main() -> ExitCode {
    program::main("inband sequencer", || match Command::parse() {
        Command::Up(args) => up(&args),
        Command::Status(args) => status(&args),
        Command::Next(args) => next(&args),
    })
}
