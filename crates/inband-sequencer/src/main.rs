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
use inband_ground::xdp::XdpMode;
use inband_host::backend::{self, Place};
use inband_host::config::Dataplane;
use inband_host::key_file::KeyFile;
use inband_host::line_json::{call, Server};
use inband_host::signals::StopSignals;
use inband_host::wait::wait;
use inband_host::{program, state_dir};
use inband_sequencer::client::{Client, RETRY_NS};
use inband_sequencer::xdp::{Program, Spec};
use inband_sequencer::{Logs, Sequencer, SoftSequencer, LOGS};
use serde::{Deserialize, Serialize};

const DEFAULT_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7900);
const STOP_POLL: Duration = Duration::from_millis(20);
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
    /// Where its role runs: udp (in this process), xdp, xdp-generic or auto
    #[arg(long, default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// The interface that has the address; xdp and xdp-generic attach to it
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Answer only clients with this key (`inband key new` makes one)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Listen beyond loopback without a key: anybody there can use up numbers
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
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
    dataplane: String,
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
    ensure!(
        LOGS.contains(&args.logs),
        "--logs {} are not {LOGS:?}",
        args.logs
    );
    let keys = keys(args.key_file.as_deref())?;
    ensure!(
        keys.is_some() || args.no_key || args.listen.ip().is_loopback(),
        "--listen {} is beyond loopback: give --key-file FILE, or --no-key to let anybody use up numbers",
        args.listen
    );
    let signals = StopSignals::take()?;
    state_dir::create(&args.data.data)?;
    let _lock = state_dir::StateLock::take(&args.data.data)?;
    let socket = HostSocket::bind(args.listen)
        .with_context(|| format!("--listen: cannot listen at {}", args.listen))?;
    let incarnation = rand::random();
    let spec = |address, mode| Spec {
        node: NODE,
        logs: args.logs,
        incarnation,
        address,
        mode,
        keys,
    };
    let interface = args.interface.as_deref();
    let place = interface.map(|interface| Place {
        interface,
        address: args.listen,
        peers: Vec::new(),
    });
    let choice = backend::resolve(args.dataplane, place.as_ref(), |mode, address| {
        Program::load(spec(address, mode))?.attach(place.as_ref().map_or("", |p| p.interface))?;
        Ok(())
    })?;
    let mut attached = None;
    let mode = match choice.dataplane {
        Dataplane::Xdp => Some(XdpMode::Native),
        Dataplane::XdpGeneric => Some(XdpMode::Generic),
        Dataplane::Udp | Dataplane::Auto => None,
    };
    let role = Arc::new(match (mode, interface) {
        (Some(mode), Some(interface)) => {
            let program = Program::load(spec(args.listen, mode))?;
            attached = Some(program.attach(interface)?);
            Role::Kernel(Box::new(program))
        }
        _ => Role::Soft(SoftSequencer::new(NODE, args.logs, incarnation)),
    });
    let control = {
        let (role, listen, logs) = (Arc::clone(&role), args.listen, args.logs);
        let (dataplane, why) = (choice.dataplane.to_string(), choice.why.clone());
        let status = move |()| {
            Ok::<Status, String>(Status {
                listen,
                dataplane: dataplane.clone(),
                why: why.clone(),
                incarnation,
                given: (0..logs).map(|log| role.logs().given(log)).collect(),
                counters: role.counters(),
            })
        };
        Server::start(&socket_of(&args.data), status, Err)?
    };
    println!(
        "sequencer: {} logs at {}, {} ({})",
        args.logs, args.listen, choice.dataplane, choice.why
    );
    let mut gate = Gate::of::<Sequencer>(keys, args.logs);
    let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
    while !signals.wait(Duration::ZERO) {
        wait(&[socket.fd()], STOP_POLL);
        while let Some((len_bytes, from)) = socket.receive(&mut buffer)? {
            let Role::Soft(soft) = &*role else { continue };
            let packet: &mut [u8; PACKET_LEN_MAX_BYTES] =
                buffer.first_chunk_mut().expect("it is longer");
            if len_bytes <= packet.len() && gate.admits(&packet[..len_bytes]) {
                if let (true, _) = soft.handle(packet, len_bytes) {
                    gate.sign(&mut packet[..len_bytes]);
                    socket.send(&packet[..len_bytes], from);
                }
            }
        }
    }
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
