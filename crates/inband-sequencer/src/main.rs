//! `inband sequencer`: the sequencer's process, and a client of it.

// Its `println!` and the like outlive their reader.
#[macro_use]
extern crate inband_host;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::{Args, Parser};
use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::config::Dataplane;
use inband_host::key_file::KeyFile;
use inband_host::line_json::{call, Server};
use inband_host::role_process::{serve, RoleArgs};
use inband_host::signals::StopSignals;
use inband_host::wait::wait;
use inband_host::{program, state_dir};
use inband_sequencer::client::{Client, RETRY_NS};
use inband_sequencer::xdp::{Program, Spec};
use inband_sequencer::{Logs, Sequencer, SoftSequencer, LOGS};
use serde::{Deserialize, Serialize};

const DEFAULT_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7900);
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
const NODE: u8 = 1;

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
    /// Its key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// How long to ask
    #[arg(long, default_value_t = 2000, value_name = "MS")]
    timeout_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Status {
    listen: SocketAddrV4,
    dataplane: Dataplane,
    why: String,
    incarnation: u64,
    given: Vec<u64>,
    counters: BTreeMap<String, u64>,
}

/// The role, in this process or in the kernel.
enum Role {
    Soft(SoftSequencer),
    Kernel(Box<Program>),
}

impl Role {
    fn logs(&self) -> &Logs {
        match self {
            Role::Soft(soft) => soft.logs(),
            Role::Kernel(program) => program.logs(),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = match self {
            Role::Soft(soft) => soft.counters(),
            Role::Kernel(program) => program.counters().unwrap_or_default(),
        };
        let named = counters.into_iter();
        named.map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

fn keys(file: Option<&Path>) -> Result<Option<Keys>> {
    Ok(file.map(KeyFile::load).transpose()?.map(|file| file.keys()))
}

fn socket_of(data: &DataArgs) -> PathBuf {
    data.data.join("control.sock")
}

fn up(args: &UpArgs) -> Result<()> {
    let (logs, listen) = (args.logs, args.listen);
    ensure!(LOGS.contains(&logs), "--logs {logs} are not {LOGS:?}");
    let keys = args.role.keys(listen, "anybody could use up numbers")?;
    let signals = StopSignals::take()?;
    state_dir::create(&args.data.data)?;
    let _lock = state_dir::StateLock::take(&args.data.data)?;
    let socket =
        HostSocket::bind(listen).with_context(|| format!("--listen: cannot listen at {listen}"))?;
    let incarnation = rand::random();
    let load = |mode, address| {
        Program::load(Spec {
            node: NODE,
            logs,
            incarnation,
            address,
            mode,
            keys,
        })
    };
    let trial = |mode, address, interface: &str| load(mode, address)?.attach(interface).map(drop);
    let (choice, place) = args.role.choose(listen, trial)?;
    let mut attached = None;
    let role = Arc::new(match place {
        Some((mode, interface)) => {
            let program = load(mode, listen)?;
            attached = Some(program.attach(interface)?);
            Role::Kernel(Box::new(program))
        }
        None => Role::Soft(SoftSequencer::new(NODE, logs, incarnation)),
    });
    println!(
        "sequencer: {logs} logs at {listen}, {} ({})",
        choice.dataplane, choice.why
    );
    let control = {
        let role = Arc::clone(&role);
        let status = move |()| {
            Ok::<Status, String>(Status {
                listen,
                dataplane: choice.dataplane,
                why: choice.why.clone(),
                incarnation,
                given: (0..logs).map(|log| role.logs().given(log)).collect(),
                counters: role.counters(),
            })
        };
        Server::start(&socket_of(&args.data), status, Err)?
    };
    let gate = Gate::of::<Sequencer>(keys, logs);
    serve(
        &socket,
        gate,
        &signals,
        |packet, len_bytes, _| match &*role {
            Role::Soft(soft) => soft.handle(packet, len_bytes).0.then_some(len_bytes),
            Role::Kernel(_) => None,
        },
    )?;
    drop((control, attached));
    Ok(())
}

fn status(args: &DataArgs) -> Result<()> {
    let answer: Result<Status, String> = call(&socket_of(args), &(), STATUS_TIMEOUT)
        .context("does `inband sequencer up` run in this directory?")?;
    let status = answer.map_err(anyhow::Error::msg)?;
    println!(
        "sequencer at {}, {} ({})",
        status.listen, status.dataplane, status.why
    );
    println!("incarnation {:016x}", status.incarnation);
    for (log, given) in status.given.iter().enumerate() {
        println!("log {log:<4} {given} numbers given");
    }
    for (name, count) in &status.counters {
        println!("  {name} {count}");
    }
    Ok(())
}

fn next(args: &NextArgs) -> Result<()> {
    let logs = usize::from(args.log) + 1;
    let gate = Gate::of::<Sequencer>(keys(args.key_file.as_deref())?, logs);
    let socket = HostSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    let mut client = Client::new(gate, rand::random());
    client.ask(args.log, args.count);
    let until = Instant::now() + Duration::from_millis(args.timeout_ms);
    let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
    while Instant::now() < until {
        socket.send(&client.packet(), args.sequencer);
        let again = Instant::now() + Duration::from_nanos(RETRY_NS);
        while let Some(left) = again.checked_duration_since(Instant::now()) {
            wait(&[socket.fd()], left);
            while let Some((len_bytes, _)) = socket.receive(&mut buffer)? {
                if let Some(answer) = client.on_packet(&buffer[..len_bytes]) {
                    println!("{}..{}", answer.number, answer.number + answer.count - 1);
                    return Ok(());
                }
            }
        }
    }
    anyhow::bail!(
        "no answer from {} within {} ms: is log {} below its --logs, and the key file the same?",
        args.sequencer,
        args.timeout_ms,
        args.log
    )
}

fn main() -> ExitCode {
    program::main("inband sequencer", || match Command::parse() {
        Command::Up(args) => up(&args),
        Command::Status(args) => status(&args),
        Command::Next(args) => next(&args),
    })
}
