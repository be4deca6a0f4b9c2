//! A process with one role that only answers: its options, where the role runs, its loop, status and control socket; and
//! a client of it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::auth::{Gate, Keys};
use inband_ground::c::ib_result;
use inband_ground::socket::HostSocket;
use inband_ground::soft::{Arrival, Native, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::alone::{Attached, HostSpec, Program};
use inband_ground::xdp::{XdpError, XdpMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::{resolve, Choice, Place};
use crate::config::Dataplane;
use crate::key_file::KeyFile;
use crate::line_json::{call, Server};
use crate::signals::StopSignals;
use crate::state_dir::{self, StateLock};
use crate::wait::wait;

/// How soon the process notices that it is to stop.
const STOP_POLL: Duration = Duration::from_millis(20);

/// A mode of XDP, and the interface it is for.
type KernelPlace<'a> = (XdpMode, &'a str);

/// How long a status may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// The node id in its packets; there is no other role.
const NODE: u8 = 1;

/// Options of a process with one role.
#[derive(Debug, Clone, Args)]
pub struct RoleArgs {
    /// Where it runs: udp (in this process), xdp, xdp-generic or auto
    #[arg(long, default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// The interface that has the address; xdp and xdp-generic attach to it
    #[arg(long, value_name = "NAME", required_if_eq_any = [("dataplane", "xdp"), ("dataplane", "xdp-generic")])]
    interface: Option<String>,
    /// Answer only packets with this key (`inband key new` makes one)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Listen beyond loopback without a key
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
}

impl RoleArgs {
    /// The keys. Beyond loopback, an error without them, unless the user has asked for that; `risk`: what strangers could do.
    pub fn keys(&self, listen: SocketAddrV4, risk: &str) -> Result<Option<Keys>> {
        let file = self.key_file.as_deref().map(KeyFile::load).transpose()?;
        ensure!(
            file.is_some() || self.no_key || listen.ip().is_loopback(),
            "--listen {listen} is beyond loopback, where {risk}; give --key-file FILE, or say --no-key to allow it"
        );
        Ok(file.map(|file| file.keys()))
    }

    /// Where the role runs; for XDP, in which mode and on which interface. `load`: see [`resolve`].
    pub fn choose(
        &self,
        listen: SocketAddrV4,
        mut load: impl FnMut(XdpMode, SocketAddrV4, &str) -> Result<(), XdpError>,
    ) -> Result<(Choice, Option<KernelPlace<'_>>), XdpError> {
        let interface = self.interface.as_deref().unwrap_or_default();
        let place = self.interface.is_some().then(|| Place {
            interface,
            address: listen,
            peers: Vec::new(),
        });
        let choice = resolve(self.dataplane, place.as_ref(), |mode, address| {
            load(mode, address, interface)
        })?;
        let mode = match choice.dataplane {
            Dataplane::Xdp => Some(XdpMode::Native),
            Dataplane::XdpGeneric => Some(XdpMode::Generic),
            Dataplane::Udp | Dataplane::Auto => None,
        };
        Ok((choice, mode.map(|mode| (mode, interface))))
    }
}

/// What a process answers to `status`; `own` is the system's part.
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Status<T> {
    pub listen: SocketAddrV4,
    pub dataplane: Dataplane,
    pub why: String,
    #[serde(flatten)]
    pub own: T,
    pub counters: BTreeMap<String, u64>,
}

/// What a process is started with.
#[allow(missing_docs)]
pub struct Start<'a> {
    pub args: &'a RoleArgs,
    pub listen: SocketAddrV4,
    /// Directory of its lock and control socket.
    pub data: &'a Path,
    /// What strangers could do without a key.
    pub risk: &'a str,
    /// What it is, for its first line.
    pub what: String,
    pub partitions: usize,
}

/// The role, in this process or in the kernel.
enum Role<N: Native> {
    Soft(Soft<N>),
    Kernel(Box<Attached<N, N::Registers>>),
}

impl<N: Native> Role<N> {
    fn registers(&self) -> &N::Registers {
        match self {
            Role::Soft(soft) => soft.registers(),
            Role::Kernel(program) => program.registers(),
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

impl Start<'_> {
    /// Run the role until a signal comes. `soft` and `program` make it with a node id or for a host, `own` its part of the
    /// status.
    pub fn run<N, T>(
        &self,
        soft: impl FnOnce(u8) -> Soft<N>,
        program: impl Fn(&HostSpec) -> Result<Program<N, N::Registers>, XdpError>,
        own: impl Fn(&N::Registers) -> T + Send + Sync + 'static,
    ) -> Result<()>
    where
        N: Native<Answer = ib_result> + 'static,
        T: Serialize + 'static,
    {
        let listen = self.listen;
        let keys = self.args.keys(listen, self.risk)?;
        let signals = StopSignals::take()?;
        state_dir::create(self.data)?;
        let _lock = StateLock::take(self.data)?;
        let socket = HostSocket::bind(listen)
            .with_context(|| format!("--listen: cannot listen at {listen}"))?;
        let attach = |mode, address, interface: &str| {
            let host = HostSpec {
                node: NODE,
                address,
                mode,
                keys,
            };
            program(&host)?.attach(interface)
        };
        let trial = |mode, address, interface: &str| attach(mode, address, interface).map(drop);
        let (choice, place) = self.args.choose(listen, trial)?;
        let role = Arc::new(match place {
            Some((mode, interface)) => Role::Kernel(attach(mode, listen, interface)?.into()),
            None => Role::Soft(soft(NODE)),
        });
        let (what, Choice { dataplane, why }) = (&self.what, choice);
        crate::println!("{what} at {listen}, {dataplane} ({why})");
        let _control = {
            let role = Arc::clone(&role);
            let status = move |()| {
                Ok::<_, String>(Status {
                    listen,
                    dataplane,
                    why: why.clone(),
                    own: own(role.registers()),
                    counters: role.counters(),
                })
            };
            Server::start(&control_socket(self.data), status, Err)?
        };
        serve(
            &socket,
            Gate::of::<N>(keys, self.partitions),
            &signals,
            &role,
        )?;
        Ok(())
    }
}

/// Until a signal comes, handle the packets that arrive in user space. With the role in the kernel none does.
fn serve<N: Native<Answer = ib_result>>(
    socket: &HostSocket,
    mut gate: Gate,
    signals: &StopSignals,
    role: &Role<N>,
) -> io::Result<()> {
    let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
    let began = Instant::now();
    while !signals.wait(Duration::ZERO) {
        wait(&[socket.fd()], STOP_POLL);
        while let Some((len_bytes, from)) = socket.receive(&mut buffer)? {
            let packet: &mut [u8; PACKET_LEN_MAX_BYTES] =
                buffer.first_chunk_mut().expect("it is shorter by one");
            let Role::Soft(soft) = role else { continue };
            if len_bytes > packet.len() || !gate.admits(&packet[..len_bytes]) {
                continue;
            }
            let arrival = Arrival {
                from,
                now_ns: began.elapsed().as_nanos() as u64,
                random: 0,
            };
            if let Some(len_bytes) = soft.reply(packet, len_bytes, arrival) {
                gate.sign(&mut packet[..len_bytes]);
                socket.send(&packet[..len_bytes], from);
            }
        }
    }
    Ok(())
}

fn control_socket(data: &Path) -> PathBuf {
    data.join("control.sock")
}

/// The status of the process with this directory; `program` is its command. Prints what all of them have, `own` between.
pub fn print_status<T: DeserializeOwned>(
    program: &str,
    data: &Path,
    own: impl FnOnce(&T),
) -> Result<()> {
    let answer: Result<Status<T>, String> = call(&control_socket(data), &(), STATUS_TIMEOUT)
        .with_context(|| format!("does `inband {program} up` run in this directory?"))?;
    let status = answer.map_err(anyhow::Error::msg)?;
    let Status {
        listen,
        dataplane,
        why,
        ..
    } = &status;
    crate::println!("{program} at {listen}, {dataplane} ({why})");
    own(&status.own);
    for (name, count) in &status.counters {
        crate::println!("  {name} {count}");
    }
    Ok(())
}

/// Options of a command that asks the role.
#[derive(Debug, Clone, Args)]
pub struct AskArgs {
    /// Its key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// How long to ask
    #[arg(long, default_value_t = 2000, value_name = "MS")]
    timeout_ms: u64,
}

impl AskArgs {
    /// The keys to ask with.
    pub fn keys(&self) -> Result<Option<Keys>> {
        let file = self.key_file.as_deref().map(KeyFile::load).transpose()?;
        Ok(file.map(|file| file.keys()))
    }

    /// Send `packet` to `role` again after each `retry` until `answer` makes something of what comes back. `doubt`: what
    /// may be wrong if nothing does.
    pub fn ask<A>(
        &self,
        role: SocketAddrV4,
        packet: &[u8],
        retry: Duration,
        mut answer: impl FnMut(&[u8]) -> Option<A>,
        doubt: impl Display,
    ) -> Result<A> {
        let socket = HostSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
        let until = Instant::now() + Duration::from_millis(self.timeout_ms);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        while Instant::now() < until {
            socket.send(packet, role);
            let again = Instant::now() + retry;
            while let Some(left) = again.checked_duration_since(Instant::now()) {
                wait(&[socket.fd()], left);
                while let Some((len_bytes, _)) = socket.receive(&mut buffer)? {
                    if let Some(answer) = answer(&buffer[..len_bytes]) {
                        return Ok(answer);
                    }
                }
            }
        }
        anyhow::bail!(
            "no answer from {role} within {} ms: {doubt}",
            self.timeout_ms
        )
    }
}
