//! The driver of one host: a [`Host`], its UDP socket and, where roles run in the kernel, their registers and ring
//! buffer. Thin: it moves packets and time, and makes no decisions.
//!
//! Not thread-safe: one thread owns a node and polls it.

mod replicated_log;
mod start;
mod status;

pub(crate) use start::{kernel_roles, packet_keys, xdp_spec};
use start::{load_keys, peer_of};

use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Instant;

use crate::dataplane::wire::PACKET_LEN_MAX_BYTES;
use crate::dataplane::xdp::XdpHost;
use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::xdp::XdpError;
use inband_storage::StorageError;

use crate::config::{Dataplane, NodeConfig, Role};
use crate::durable::DurableError;
use crate::host::{EpochConfig, Host, RecoverError};
use crate::journal::{AcceptorDisk, Holds, Reconfigured, StartError, Synced};
use crate::leadership::LeaderEvent;
use crate::log::Origin;
use crate::outbox::{Dest, Outbox};
use crate::timing::Micros;
use inband_host::key_file::KeyFileError;

/// The acceptor's journal, in the state directory.
pub const JOURNAL_DIR: &str = "acceptor";
/// Most packets taken from the socket in one poll, so that timers and the ring buffer are served too.
const RECEIVE_BATCH: usize = 256;
/// Interval between looks at the kernel's neighbour tables.
const NEIGHBOURS_US: Micros = 1_000_000;
/// The same while a peer is still unresolved.
const NEIGHBOURS_UNRESOLVED_US: Micros = 20_000;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The state directory is unusable.
    #[error(transparent)]
    Durable(#[from] DurableError),
    /// The acceptor's journal is unusable.
    #[error(transparent)]
    Journal(#[from] StartError),
    /// The kernel backend failed.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The UDP socket could not be bound.
    #[error("UDP address {address} of node {name:?} cannot be bound: {source}; is another host running with it, and does this machine have the address?")]
    Bind {
        address: SocketAddrV4,
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The cluster's key file is unusable.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// `auto` was not resolved, or no interface was given.
    #[error("dataplane {0} needs host.interface in the configuration")]
    NoInterface(Dataplane),
    /// The number of positions does not match the number of logs.
    #[error("positions in {given} logs were given, the configuration has {logs}; has cluster.partitions been changed? data keeps the number it was made with")]
    Positions {
        /// Number of positions given.
        given: usize,
        /// Number of logs in the configuration.
        logs: usize,
    },
    /// Another error of the state directory.
    #[error("state directory {path}: {source}")]
    StateDir {
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl NodeError {
    /// Returns whether the error will recur until the host or its configuration is changed.
    pub fn is_lasting(&self) -> bool {
        match self {
            NodeError::Xdp(error) => error.is_lasting(),
            NodeError::Keys(_) | NodeError::NoInterface(_) | NodeError::Positions { .. } => true,
            NodeError::Durable(error) => error.is_lasting(),
            NodeError::Journal(error) => error.is_lasting(),
            NodeError::Bind { .. } | NodeError::StateDir { .. } => false,
        }
    }
}

pub struct Node {
    host: Host,
    socket: HostSocket,
    gate: Gate,
    key_file: Option<PathBuf>,
    kernel: Option<XdpHost>,
    /// The acceptor's, in `sync` mode.
    disk: Option<AcceptorDisk>,
    addresses: Vec<Option<SocketAddrV4>>,
    peers: Vec<SocketAddr>,
    started: Instant,
    out: Outbox,
    buffer: Box<[u8; PACKET_LEN_MAX_BYTES + 1]>,
    neighbours_at: Micros,
    unresolved: Vec<u8>,
    dataplane: Dataplane,
    send_failures: u64,
    decided_at: Micros,
    more_to_receive: bool,
    events: Vec<(Micros, usize, LeaderEvent)>,
}

impl Node {
    fn now(&self) -> Micros {
        self.started.elapsed().as_micros() as Micros
    }

    /// Sends what the state machines have queued.
    fn flush(&mut self) {
        self.queue(None);
        self.socket.flush();
    }

    /// Changes the leader's registers in the kernel as the state machines have asked for, also if they send nothing.
    fn command_kernel(&mut self) {
        for (partition, command) in self.host.take_kernel_commands() {
            if let Some(kernel) = &self.kernel {
                let registers = &kernel.registers().leader;
                match command {
                    LeaderEvent::Activate(view) => registers.activate(partition, view),
                    LeaderEvent::Deactivate | LeaderEvent::Suspected => {
                        registers.deactivate(partition);
                    }
                }
            }
        }
    }

    /// Queues what the state machines have pushed for the next [`Node::flush`]. `sender`: the source of the packet
    /// being handled.
    fn queue(&mut self, sender: Option<SocketAddrV4>) {
        self.command_kernel();
        self.events.extend(self.host.take_leader_events());
        let own = self.host.config().node;
        self.out
            .packets_mut()
            .for_each(|packet| self.gate.sign(packet));
        for (dest, packet) in self.out.iter() {
            let address = match dest {
                Dest::Node(node) if node == own => {
                    let kernel = self.kernel.as_ref();
                    let sent = kernel.is_some_and(|kernel| kernel.send_local(packet).is_ok());
                    self.send_failures += u64::from(!sent);
                    continue;
                }
                Dest::Node(node) => self.addresses[usize::from(node)],
                Dest::Sender => sender,
                Dest::Acceptors | Dest::Learners | Dest::Leaders | Dest::Peers => {
                    unreachable!("the host expands groups into nodes")
                }
            };
            match address {
                Some(to) => self.socket.queue(packet, to),
                None => self.send_failures += 1,
            }
        }
        self.out.clear();
    }

    /// Leader changes since the last call: time since the start in microseconds, partition and event.
    pub fn take_leader_events(&mut self) -> Vec<(Micros, usize, LeaderEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Enters a later epoch; see [`Host::enter_epoch`]. `nodes` are all nodes of the epoch, `leaders` for each log
    /// those that may lead it, in take-over order. This host keeps the roles that it was started with. An epoch that is
    /// not later has no effect. After an error the node is still in its old epoch, and the call may be repeated.
    pub fn enter_epoch(
        &mut self,
        epoch: u32,
        nodes: &[NodeConfig],
        leaders: &[Vec<u8>],
    ) -> Result<(), NodeError> {
        if epoch <= self.host.config().epoch {
            return Ok(());
        }
        let own = self.host.config().node;
        let with = |role| nodes.iter().filter(move |node| node.has(role));
        let ids = |role| with(role).map(|node| node.id).collect();
        let entered = EpochConfig {
            epoch,
            acceptors: ids(Role::Acceptor),
            replicas: ids(Role::Replica),
            leaders: leaders.to_vec(),
        };
        if let Some(kernel) = &mut self.kernel {
            let peers = |role| with(role).map(|node| peer_of(node, own)).collect();
            kernel.set_groups(peers(Role::Acceptor), peers(Role::Replica))?;
            if self.host.config().kernel_roles.quorum {
                let quorum = &kernel.registers().quorum;
                quorum.configure(u64::from(epoch), &entered.acceptors);
            }
        }
        for node in nodes {
            self.addresses[usize::from(node.id)] = Some(node.address);
        }
        let others = with(Role::Replica).filter(|node| node.id != own);
        self.peers = others.map(|node| SocketAddr::V4(node.address)).collect();
        self.neighbours_at = 0;
        let now = self.now();
        self.host.enter_epoch(now, &entered, &mut self.out);
        self.flush();
        Ok(())
    }

    /// Changes the order of the nodes that may lead, within the epoch; see [`Host::reorder_leaders`].
    pub fn reorder_leaders(&mut self, leaders: &[Vec<u8>]) {
        let now = self.now();
        self.host.reorder_leaders(now, leaders, &mut self.out);
        self.flush();
    }

    /// Returns the keys that authenticate packets.
    pub fn keys(&self) -> Option<&Keys> {
        self.gate.keys()
    }

    /// Reloads the key file and uses its keys from now on. After an error the keys are unchanged.
    pub fn reload_keys(&mut self) -> Result<Option<&Keys>, NodeError> {
        let Some(path) = &self.key_file else {
            return Ok(None);
        };
        let (keys, digest) = load_keys(Some(path))?;
        if digest != self.host.config().digest {
            return Err(KeyFileError::OtherDigestKey { path: path.clone() }.into());
        }
        if let Some(keys) = keys {
            if let Some(kernel) = &mut self.kernel {
                kernel.set_keys(keys)?;
            }
            self.gate.set_keys(keys);
        }
        Ok(self.gate.keys())
    }

    /// Returns the epoch for which the votes in the acceptor's journal are complete.
    pub fn holds(&self) -> Option<Holds> {
        self.host.journal()?.0.holds()
    }

    /// A reconfiguration has changed the acceptor's registers, on this thread; from now on its votes are complete for
    /// `holds`. Durable on return, if votes are. After an error the acceptor drops packets until its disk accepts the
    /// changes.
    pub fn keep_acceptor(
        &mut self,
        what: Reconfigured,
        holds: Option<Holds>,
    ) -> Result<(), StorageError> {
        let Some((journal, _)) = self.host.journal_mut() else {
            return Ok(());
        };
        journal.reconfigured(what, holds);
        self.sync_journal_now()
    }

    /// See [`Host::recover`].
    pub fn recover(
        &mut self,
        partition: usize,
        instance: u64,
        noop: &[u8],
        known: &mut dyn FnMut(Origin, &[u8]),
    ) -> Result<(), RecoverError> {
        let now = self.now();
        let out = &mut self.out;
        let result = self
            .host
            .recover(now, partition, instance, noop, out, known);
        self.flush();
        result
    }

    /// Sends submitted values now, without waiting for the next poll.
    pub fn send_submitted(&mut self) {
        if !self.out.is_empty() {
            self.flush();
        }
    }

    /// Handles the packets that have arrived, then sends all answers.
    fn receive(&mut self) {
        self.more_to_receive = true;
        for _ in 0..RECEIVE_BATCH {
            let Ok(Some((len_bytes, from))) = self.socket.receive(&mut self.buffer) else {
                self.more_to_receive = false;
                break;
            };
            let packet = &self.buffer[..len_bytes];
            if !self.gate.admits(packet) || !self.host.admits(packet) {
                continue;
            }
            let now = self.now();
            self.host
                .on_packet(now, &self.buffer[..len_bytes], &mut self.out);
            self.command_kernel();
            if !self.out.is_empty() {
                self.queue(Some(from));
            }
        }
        self.socket.flush();
    }

    fn take_decided(&mut self) {
        let now = self.now();
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let (host, out) = (&mut self.host, &mut self.out);
        kernel.set_polling(true);
        let taken = kernel.decided(&mut |packet: &[u8]| host.on_decided(now, packet, out));
        if taken > 0 {
            self.decided_at = now;
        }
        if !self.out.is_empty() {
            self.flush();
        }
    }

    /// Writes the acceptor's changes to disk, and sends its answers: one sync for all packets of a poll.
    fn sync_journal(&mut self) {
        let now = self.now();
        let Some((journal, _)) = self.host.journal() else {
            return;
        };
        if journal.wants_sync(now) {
            // It will be retried.
            let _ = self.sync_journal_now();
        }
    }

    fn sync_journal_now(&mut self) -> Result<(), StorageError> {
        let now = self.now();
        let (Some(disk), Some((journal, registers))) = (&mut self.disk, self.host.journal_mut())
        else {
            return Ok(());
        };
        let synced = disk.sync(now, journal, registers);
        let result = match synced {
            Synced::Failed(error) => {
                tracing::error!("the acceptor stops voting: {error}");
                Err(error)
            }
            Synced::FailedAgain(error) => Err(error),
            Synced::Again => {
                tracing::warn!("the acceptor votes again: its journal is written");
                Ok(())
            }
            Synced::Done => Ok(()),
        };
        self.host.release(now, &mut self.out);
        self.flush();
        result
    }

    fn tick(&mut self) {
        let now = self.now();
        if now >= self.neighbours_at {
            if let Some(kernel) = &mut self.kernel {
                match kernel.refresh_neighbours() {
                    Ok(unresolved) => {
                        self.unresolved = unresolved.iter().map(|u| u.peer.node).collect();
                    }
                    // The tables are queried again soon; resolved addresses are kept.
                    Err(error) => tracing::warn!("neighbours: {error}"),
                }
            }
            let resolved = self.unresolved.is_empty();
            self.neighbours_at = now
                + if resolved {
                    NEIGHBOURS_US
                } else {
                    NEIGHBOURS_UNRESOLVED_US
                };
        }
        if now < self.host.due(now) {
            return;
        }
        // What is read now must be what the state machines believe.
        self.command_kernel();
        if let Some(kernel) = &self.kernel {
            for partition in 0..self.host.partitions().len() {
                if self.host.wants_leader_view(now, partition) {
                    let view = kernel.registers().leader.leader(partition);
                    self.host.set_kernel_leader(partition, view);
                }
            }
        }
        self.host.on_tick(now, &mut self.out);
        self.flush();
    }
}
