//! What the switch's and the server's process have in common.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::live_keys::LiveKeys;
use inband_host::notify::Notifier;
use inband_host::role_process::RoleArgs;
use inband_host::signals::StopSignals;
use inband_host::size::parse_size;
use inband_host::state_dir::{read_number, write_number};
use inband_host::wait::wait;
use inband_memory::cluster::{PROMISED, SPACE};
use inband_memory::epoch::{Nanos, Outbox};
use inband_memory::plan::Ask;
use inband_memory::{Memory, SPACES};

/// How often the process checks whether it is to stop.
const STOP_POLL: Duration = Duration::from_millis(20);
/// Packets handled before the clock is read again.
const PACKETS_OF_A_TURN: usize = 64;

/// Options of switches and servers.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Address to listen at
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddrV4,
    /// All servers, in order: the first is node 1
    #[arg(
        long,
        value_name = "ADDR:PORT,...",
        value_delimiter = ',',
        required = true
    )]
    pub servers: Vec<SocketAddrV4>,
    /// Bytes of the memory, the same at every node. To enlarge it while clients use it, restart the servers with the
    /// new size one at a time, each once all are serving, and then the switches
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub space: u64,
    /// Directory for the node's promise and its control socket; it must survive a restart
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub role: RoleArgs,
}

impl NodeArgs {
    /// Returns the number of chunks of the memory.
    pub fn chunks(&self) -> Result<u64> {
        let servers = self.servers.len() as u64;
        let ask = Ask {
            servers,
            ..Ask::of(self.space()?)
        };
        Ok(ask.plan()?.chunks)
    }

    /// Returns the size of the memory in bytes, which may have grown since the node was first started.
    pub fn space(&self) -> Result<u64> {
        Ok(self.space.max(read_number(&self.data.join(SPACE))?))
    }

    /// Stores the size of the memory: a node that restarts with a smaller `--space` still has all of it. Otherwise
    /// others would take the missing lines for lines that were never written.
    pub fn keep_space(&self) -> Result<()> {
        Ok(write_number(&self.data, SPACE, self.space()?)?)
    }

    pub fn bind(&self) -> Result<HostSocket> {
        HostSocket::bind(self.listen)
            .with_context(|| format!("--listen: cannot listen at {}", self.listen))
    }

    /// Returns what the node has promised in earlier runs.
    pub fn promised(&self) -> Result<u64> {
        Ok(read_number(&self.data.join(PROMISED))?)
    }

    /// Fails if a server's address is given twice, or is this node's own.
    pub fn check(&self) -> Result<()> {
        let servers = self.servers.len();
        ensure!(
            [1, 3, 5, 7].contains(&servers),
            "--servers: {servers} addresses; give 3, 5 or 7, or 1 for a memory that is not replicated"
        );
        for (n, server) in self.servers.iter().enumerate() {
            let others = &self.servers[..n];
            ensure!(
                !others.contains(server),
                "--servers: {server} is given twice"
            );
        }
        Ok(())
    }
}

/// A node's socket, clock and stored promise.
pub struct Port {
    socket: HostSocket,
    gate: Gate,
    keys: LiveKeys,
    data: PathBuf,
    started: Instant,
    buffer: Box<[u8; PACKET_LEN_MAX_BYTES + 1]>,
}

impl Port {
    /// Creates the port of a socket.
    pub fn new(socket: HostSocket, keys: LiveKeys, data: &Path) -> Port {
        Port {
            socket,
            gate: Gate::of::<Memory>(keys.keys(), SPACES),
            keys,
            data: data.to_owned(),
            started: Instant::now(),
            buffer: Box::new([0; PACKET_LEN_MAX_BYTES + 1]),
        }
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos + 1
    }

    /// Signs a packet and sends it.
    pub fn send(&self, packet: &mut [u8], to: SocketAddrV4) {
        self.gate.sign(packet);
        self.socket.send(packet, to);
    }

    /// Sends what the state machine has queued. Its promise is stored before any packet leaves.
    pub fn flush<To>(
        &self,
        out: &mut Outbox<To>,
        address: impl Fn(&To) -> SocketAddrV4,
    ) -> Result<()> {
        if let Some(promise) = out.promise.take() {
            write_number(&self.data, PROMISED, promise)?;
        }
        out.drain(|to, packet| self.send(packet, address(to)));
        Ok(())
    }

    /// Runs until a signal arrives. `handle` gets each whole packet; `tick` is called after each batch and at the time
    /// that it returned last.
    pub fn serve(
        &mut self,
        signals: &StopSignals,
        mut turn: impl FnMut(&Port, Turn<'_>) -> Result<Nanos>,
    ) -> Result<()> {
        let mut buffer =
            std::mem::replace(&mut self.buffer, Box::new([0; PACKET_LEN_MAX_BYTES + 1]));
        let mut stop_at = 0;
        let mut notifier = Notifier::from_environment();
        notifier.ready("answers");
        loop {
            let now = self.now();
            if now >= stop_at {
                if signals.end(&mut notifier) {
                    return Ok(());
                }
                if let Some(keys) = self.keys.take() {
                    self.gate.set_keys(keys);
                    turn(self, Turn::Keys(&keys))?;
                }
                stop_at = now + STOP_POLL.as_nanos() as Nanos;
            }
            let due = turn(self, Turn::Tick)?;
            let left = Duration::from_nanos(due.saturating_sub(self.now()));
            wait(
                &[self.socket.fd()],
                self.socket.sleep_time(left.min(STOP_POLL)),
            );
            for _ in 0..PACKETS_OF_A_TURN {
                let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                    break;
                };
                if len_bytes > PACKET_LEN_MAX_BYTES || !self.gate.admits(&buffer[..len_bytes]) {
                    continue;
                }
                let packet = buffer.first_chunk_mut().expect("it is shorter by one");
                turn(self, Turn::Packet(packet, len_bytes, from))?;
            }
        }
    }
}

/// Returns a role's counters with the one of its process.
pub fn with_refused(
    mut counters: BTreeMap<String, u64>,
    epochs_refused: u64,
) -> BTreeMap<String, u64> {
    if epochs_refused > 0 {
        counters.insert("epochs_refused".to_owned(), epochs_refused);
    }
    counters
}

/// What a node's loop has to handle.
pub enum Turn<'a> {
    /// The next deadline has passed.
    Tick,
    /// The keys were replaced.
    Keys(&'a Keys),
    /// A packet of this many bytes has arrived.
    Packet(&'a mut [u8; PACKET_LEN_MAX_BYTES], usize, SocketAddrV4),
}
