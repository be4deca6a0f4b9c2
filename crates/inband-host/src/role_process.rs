//! A process with a single role that only answers requests: its options, backend, main loop, status and control socket;
//! and a client for it.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::answering::{Asked, Client, Role, RETRY};
use inband_ground::auth::{Gate, Keys};
use inband_ground::c::ib_result;
use inband_ground::socket::HostSocket;
use inband_ground::soft::{Arrival, Native, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::alone::{Attached, HostSpec};
use inband_ground::xdp::{XdpError, XdpMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::{resolve, Choice, Place};
use crate::config::Dataplane;
use crate::key_file::KeyFile;
use crate::line_json::{call, Server, STATUS_TIMEOUT};
use crate::live_keys::LiveKeys;
use crate::notify::Notifier;
use crate::signals::StopSignals;
use crate::state_dir::{self, StateLock};
use crate::system_file;
use crate::wait::wait;

/// How soon the process notices that it must stop.
const STOP_POLL: Duration = Duration::from_millis(20);

/// An XDP mode and its interface.
type KernelPlace<'a> = (XdpMode, &'a str);

/// The node id in its packets: there is only this role.
const NODE: u8 = 1;

/// Options of a process with one role.
#[derive(Debug, Clone, Args)]
pub struct RoleArgs {
    /// Where it runs: udp (in this process), xdp, xdp-generic or auto
    #[arg(long, default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// The interface with this address; xdp and xdp-generic attach to it
    #[arg(long, value_name = "NAME", required_if_eq_any = [("dataplane", "xdp"), ("dataplane", "xdp-generic")])]
    interface: Option<String>,
    /// Answer only packets with this key (`inband key new` creates one)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Listen beyond loopback without a key
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
}

impl RoleArgs {
    /// Returns where the role should run.
    pub fn dataplane(&self) -> Dataplane {
        self.dataplane
    }

    /// Returns the keys. Without keys, listening beyond loopback is an error unless the user allows it; `risk`: what
    /// strangers could do.
    pub fn keys(&self, listen: SocketAddrV4, risk: &str) -> Result<LiveKeys> {
        let live = LiveKeys::load(self.key_file.as_deref())?;
        ensure!(
            self.key_file.is_some() || self.no_key || listen.ip().is_loopback(),
            "{listen} is beyond loopback, where {risk}; give --key-file FILE, or --no-key to allow it"
        );
        Ok(live)
    }

    /// Where the role runs; for XDP, in which mode and on which interface. `peers`: whom it sends to, as far as known;
    /// it is tried whether the interface sends to them. `load`: see [`resolve`].
    pub fn choose(
        &self,
        listen: SocketAddrV4,
        peers: impl IntoIterator<Item = SocketAddrV4>,
        mut load: impl FnMut(XdpMode, SocketAddrV4, &str) -> Result<(), XdpError>,
    ) -> Result<(Choice, Option<KernelPlace<'_>>), XdpError> {
        let interface = self.interface.as_deref().unwrap_or_default();
        let place = self.interface.is_some().then(|| Place {
            interface,
            address: listen,
            peers: peers.into_iter().map(|peer| *peer.ip()).collect(),
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

/// Description of a program with a single role.
pub trait Program {
    type Role: Role + Send + Sync + 'static;
    /// Its part of the status.
    type Status: Serialize + DeserializeOwned + 'static;
    /// Its command, `inband NAME`.
    const NAME: &'static str;
    /// Default listening address.
    const ADDRESS: &'static str;
    /// Default directory.
    const DATA: &'static str;
    /// What strangers could do without a key.
    const RISK: &'static str;

    fn status(role: &Self::Role, registers: &<Self::Role as Native>::Registers) -> Self::Status;
}

/// The answer to `status`; `own` is the program's part.
#[derive(Debug, Serialize, Deserialize)]
struct Status<T> {
    listen: SocketAddrV4,
    dataplane: Dataplane,
    why: String,
    #[serde(flatten)]
    own: T,
    counters: BTreeMap<String, u64>,
}

/// Directory of the process's lock and control socket.
#[derive(Debug, Clone, Args)]
pub struct DataArgs<P: Program> {
    /// Directory of its control socket
    #[arg(long, default_value = P::DATA, value_name = "DIR")]
    data: PathBuf,
    #[arg(skip)]
    program: PhantomData<P>,
}

#[derive(Debug, Clone, Args)]
pub struct ProcessArgs<P: Program> {
    /// Address to listen on
    #[arg(long, default_value = P::ADDRESS, value_name = "ADDR:PORT")]
    listen: SocketAddrV4,
    #[command(flatten)]
    role: RoleArgs,
    #[command(flatten)]
    data: DataArgs<P>,
}

/// The role, in this process or in the kernel.
enum Running<N: Native> {
    Soft(Soft<N>),
    Kernel(Box<Attached<N, N::Registers>>),
}

impl<N: Native> Running<N> {
    fn registers(&self) -> &N::Registers {
        match self {
            Running::Soft(soft) => soft.registers(),
            Running::Kernel(program) => program.registers(),
        }
    }

    fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        match self {
            Running::Soft(_) => Ok(()),
            Running::Kernel(program) => program.set_keys(keys),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = match self {
            Running::Soft(soft) => soft.counters(),
            Running::Kernel(program) => program.counters().unwrap_or_default(),
        };
        let named = counters.into_iter();
        named.map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

impl<P: Program> ProcessArgs<P> {
    /// Runs the role until a signal arrives.
    pub fn run(&self, role: P::Role) -> Result<()> {
        let listen = self.listen;
        let live = self.role.keys(listen, P::RISK)?;
        let keys = live.keys();
        let signals = StopSignals::take()?.reloading(live.reading());
        let data = &self.data.data;
        state_dir::create(data)?;
        let _lock = StateLock::take(data).context("--data")?;
        system_file::claim(data, P::NAME)?;
        let socket = HostSocket::bind(listen)
            .with_context(|| format!("--listen: cannot listen at {listen}"))?;
        let attach = |mode, address, interface: &str| {
            let host = HostSpec {
                node: NODE,
                address,
                mode,
                keys,
            };
            role.program(&host)?.attach(interface)
        };
        let trial = |mode, address, interface: &str| attach(mode, address, interface).map(drop);
        let (choice, place) = self.role.choose(listen, [], trial)?;
        let running = Arc::new(match place {
            Some((mode, interface)) => Running::Kernel(attach(mode, listen, interface)?.into()),
            None => Running::Soft(role.soft(NODE)),
        });
        let Choice { dataplane, why } = choice;
        crate::println!("{} at {listen}, {dataplane} ({why})", P::NAME);
        let gate = Gate::of::<P::Role>(keys, role.partitions());
        let _control = {
            let running = Arc::clone(&running);
            let status = move |()| {
                Ok::<_, String>(Status {
                    listen,
                    dataplane,
                    why: why.clone(),
                    own: P::status(&role, running.registers()),
                    counters: running.counters(),
                })
            };
            Server::start(&control_socket(data), status, Err)?
        };
        serve(&socket, gate, &live, &signals, &running)?;
        Ok(())
    }
}

/// Handles packets that arrive in user space until a signal arrives. If the role is in the kernel there are none.
fn serve<N: Native<Answer = ib_result>>(
    socket: &HostSocket,
    mut gate: Gate,
    live: &LiveKeys,
    signals: &StopSignals,
    role: &Running<N>,
) -> Result<()> {
    let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
    let began = Instant::now();
    let mut notifier = Notifier::from_environment();
    notifier.ready("answers");
    while !signals.end(&mut notifier) {
        if let Some(keys) = live.take() {
            gate.set_keys(keys);
            role.set_keys(&keys)?;
        }
        wait(&[socket.fd()], socket.sleep_time(STOP_POLL));
        socket.receive_some(&mut buffer, |buffer, len_bytes, from| {
            let packet: &mut [u8; PACKET_LEN_MAX_BYTES] =
                buffer.first_chunk_mut().expect("it is shorter by one");
            let Running::Soft(soft) = role else { return };
            if len_bytes > packet.len() || !gate.admits(&packet[..len_bytes]) {
                return;
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
        })?;
    }
    Ok(())
}

fn control_socket(data: &Path) -> PathBuf {
    data.join("control.sock")
}

impl<P: Program> DataArgs<P> {
    /// Prints the status of the process with this directory; `own` prints the program's part.
    pub fn print_status(&self, own: impl FnOnce(&P::Status)) -> Result<()> {
        let program = P::NAME;
        let socket = control_socket(&self.data);
        let answer: Result<Status<P::Status>, String> = call(&socket, &(), STATUS_TIMEOUT)
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
}

/// Options of a command that queries the role.
#[derive(Debug, Clone, Args)]
pub struct AskArgs<P: Program> {
    /// Address of the process
    #[arg(long = P::NAME, default_value = P::ADDRESS, value_name = "ADDR:PORT")]
    address: SocketAddrV4,
    /// Its key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Time limit
    #[arg(long, default_value_t = 2000, value_name = "MS")]
    timeout_ms: u64,
    #[arg(skip)]
    program: PhantomData<P>,
}

impl<P: Program<Role: Asked>> AskArgs<P> {
    /// Queries the role until it answers. `first_request`: as in [`Client::new`]; `partition`: the partition in the
    /// request; `doubt`: possible causes if there is no answer.
    pub fn ask(
        &self,
        first_request: u64,
        request: <P::Role as Asked>::Header,
        partition: u16,
        doubt: &str,
    ) -> Result<<P::Role as Asked>::Header> {
        let file = self.key_file.as_deref().map(KeyFile::load).transpose()?;
        let keys = file.map(|file| file.keys());
        let gate = Gate::of::<P::Role>(keys, usize::from(partition) + 1);
        let mut client = Client::<P::Role>::new(gate, first_request);
        client.ask(request);
        let socket = HostSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
        let until = Instant::now() + Duration::from_millis(self.timeout_ms);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        while Instant::now() < until {
            socket.send(client.packet(), self.address);
            let again = Instant::now() + RETRY;
            while let Some(left) = again.checked_duration_since(Instant::now()) {
                wait(&[socket.fd()], socket.sleep_time(left));
                let mut answer = None;
                socket.receive_some(&mut buffer, |buffer, len_bytes, _| {
                    answer = answer
                        .take()
                        .or_else(|| client.on_packet(&buffer[..len_bytes]));
                })?;
                if let Some(answer) = answer {
                    return Ok(answer);
                }
            }
        }
        let (address, timeout_ms) = (self.address, self.timeout_ms);
        anyhow::bail!("no answer from {address} within {timeout_ms} ms: {doubt}")
    }
}
