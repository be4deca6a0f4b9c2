//! The driver of one host: a [`Host`], its UDP socket and, where roles run in the kernel, their registers and ring
//! buffer. Thin: it moves packets and time, and makes no decisions.
//!
//! Not thread-safe: one thread owns a node and polls it.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dataplane::registers::{AcceptorView, LeaderView};
use crate::dataplane::soft::{Geometry, Registers, Roles};
use crate::dataplane::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};
use crate::dataplane::xdp::{Peer, XdpHost, XdpSpec};
use inband_ground::auth::{Digest, Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::xdp::{XdpError, XdpMode};
use inband_storage::{Disk, Storage, StorageError};

use crate::config::{Config, Dataplane, Durability, NodeConfig, Role};
use crate::durable::{self, DurableError};
use crate::host::{EpochConfig, Host, HostConfig, LogStart, RecoverError};
use crate::journal::{
    AcceptorDisk, AcceptorStart, DiskLimits, Holds, Reconfigured, StartError, Synced,
};
use crate::leadership::LeaderEvent;
use crate::log::{Burst, Origin, ReadTicket, ReplicatedLog, SubmitError, Ticket};
use crate::outbox::{Dest, Outbox};
use crate::timing::{Micros, Timing};
use inband_host::key_file::{KeyFile, KeyFileError};

/// The acceptor's journal, in the state directory.
pub const JOURNAL_DIR: &str = "acceptor";
/// Most packets taken from the socket in one poll, so that timers and the ring buffer are served too.
const RECEIVE_BATCH: usize = 256;
/// Interval between looks at the kernel's neighbour tables.
const NEIGHBOURS_US: Micros = 1_000_000;
/// The same while a peer is still unresolved.
const NEIGHBOURS_UNRESOLVED_US: Micros = 20_000;
/// A host that waits for no value of its own is not woken for each decided value while they arrive at least this
/// frequently; it polls instead.
const STREAM_GAP_US: Micros = 2_000;
/// The polling interval in that case.
const STREAM_LOOK: Duration = Duration::from_micros(500);
/// Room for decided values that the learner has not taken yet.
const RING_BUFFER_BYTES: usize = 16 << 20;

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

fn roles_of(config: &Config) -> Roles {
    let this = config.this();
    Roles {
        leader: this.has(Role::Leader),
        acceptor: this.has(Role::Acceptor),
        quorum: this.has(Role::Replica),
    }
}

/// Returns a node in the form that the packet programs of node `own` use.
fn peer_of(node: &NodeConfig, own: u8) -> Peer {
    Peer {
        node: node.id,
        address: node.address,
        local: node.id == own,
    }
}

/// Returns the members when a host starts. With a control plane there are none until it has reported the configuration:
/// epoch 0 means none.
fn members_at_start(config: &Config) -> EpochConfig {
    if config.is_managed() {
        return EpochConfig {
            epoch: 0,
            acceptors: Vec::new(),
            replicas: Vec::new(),
            leaders: vec![Vec::new(); config.logs()],
        };
    }
    EpochConfig {
        epoch: config.cluster.epoch,
        acceptors: config.acceptors().map(|n| n.id).collect(),
        replicas: config.replicas().map(|n| n.id).collect(),
        leaders: config.take_over_orders(),
    }
}

/// Initialise the registers of roles in the kernel.
fn configure(
    registers: &Registers,
    roles: Roles,
    members: &EpochConfig,
    first_instances: &[u64],
    voting: bool,
) {
    let epoch = u64::from(members.epoch);
    if roles.acceptor {
        for (partition, first) in first_instances.iter().enumerate() {
            registers.acceptor.start(partition, epoch, *first, voting);
        }
    }
    // Outside of all epochs nothing is counted.
    if roles.quorum && epoch != 0 {
        registers.quorum.configure(epoch, &members.acceptors);
    }
}

fn timing_of(config: &Config) -> Timing {
    let from = &config.host.timing;
    Timing {
        submit_deadline_us: from.submit_deadline_ms * 1000,
        probe_interval_us: from.probe_interval_ms * 1000,
        suspect_after_us: from.suspect_after_ms * 1000,
        ..Timing::default()
    }
}

/// Returns the roles of a host that may run in the kernel. A vote must be on disk before it is sent, so an acceptor
/// with a journal runs in user space.
pub(crate) fn kernel_roles(config: &Config) -> Roles {
    let roles = roles_of(config);
    Roles {
        acceptor: roles.acceptor && config.cluster.durability != Durability::Sync,
        ..roles
    }
}

/// Returns the keys that authenticate packets.
pub(crate) fn packet_keys(config: &Config) -> Result<Option<Keys>, KeyFileError> {
    load_keys(config.cluster.key_file.as_deref()).map(|(keys, _)| keys)
}

/// Returns what a host with this configuration loads into the kernel.
pub(crate) fn xdp_spec(
    config: &Config,
    mode: XdpMode,
    keys: Option<Keys>,
) -> Result<XdpSpec, NodeError> {
    let this = config.this();
    let dataplane = match mode {
        XdpMode::Native => Dataplane::Xdp,
        XdpMode::Generic => Dataplane::XdpGeneric,
    };
    let interface = config.host.interface.clone();
    let peer = |node| peer_of(node, this.id);
    Ok(XdpSpec {
        node: this.id,
        roles: kernel_roles(config),
        geometry: geometry_of(config),
        address: this.address,
        interface: interface.ok_or(NodeError::NoInterface(dataplane))?,
        mode,
        acceptors: config.acceptors().map(peer).collect(),
        learners: config.replicas().map(peer).collect(),
        ring_buffer_bytes: RING_BUFFER_BYTES,
        // Two roles on one host, or a role and the process beside it, send packets to each other.
        loopback: this.packet_roles() > 1,
        keys,
    })
}

fn geometry_of(config: &Config) -> Geometry {
    Geometry {
        partitions: config.logs(),
        ring_slots: config.cluster.ring_slots as usize,
    }
}

/// Returns the keys of a cluster, if it has any, and how its values are digested.
fn load_keys(path: Option<&Path>) -> Result<(Option<Keys>, Digest), KeyFileError> {
    let Some(path) = path else {
        return Ok((None, Digest::PLAIN));
    };
    let file = KeyFile::load(path)?;
    Ok((Some(file.keys()), file.digest()))
}

impl Node {
    /// Starts a host. `dataplane` is what `auto` was resolved to; `applied` is the last instance of each log in the
    /// application's state.
    pub fn open(config: &Config, dataplane: Dataplane, applied: &[u64]) -> Result<Node, NodeError> {
        let this = config.this();
        let (given, logs) = (applied.len(), config.logs());
        if given != logs {
            return Err(NodeError::Positions { given, logs });
        }
        let members = members_at_start(config);
        let (state_dir, epoch) = (&config.host.state_dir, members.epoch);
        let incarnation = durable::next_incarnation(state_dir)?;
        let roles = roles_of(config);
        let geometry = geometry_of(config);
        let (keys, digest) = load_keys(config.cluster.key_file.as_deref())?;
        let keeps_journal = roles.acceptor && config.cluster.durability == Durability::Sync;
        let journal = keeps_journal
            .then(|| Self::open_journal(config, geometry))
            .transpose()?;
        let voting = match &journal {
            Some((_, start)) => start.voting,
            None if config.is_managed() => false,
            None => roles.acceptor && durable::enter_epoch(state_dir, epoch)?,
        };
        let socket = HostSocket::bind(this.address).map_err(|source| NodeError::Bind {
            address: this.address,
            name: this.name.clone(),
            source,
        })?;
        let kernel_roles = match dataplane {
            Dataplane::Udp => Roles::default(),
            _ => kernel_roles(config),
        };
        let soft_roles = Roles {
            leader: roles.leader && !kernel_roles.leader,
            acceptor: roles.acceptor && !kernel_roles.acceptor,
            quorum: roles.quorum && !kernel_roles.quorum,
        };
        let mode = match dataplane {
            Dataplane::Udp => None,
            Dataplane::XdpGeneric => Some(XdpMode::Generic),
            Dataplane::Xdp | Dataplane::Auto => Some(XdpMode::Native),
        };
        let kernel = if let Some(mode) = mode {
            let kernel = XdpHost::load(xdp_spec(config, mode, keys)?)?;
            let firsts = &config.cluster.first_instances;
            configure(kernel.registers(), kernel_roles, &members, firsts, voting);
            Some(kernel)
        } else {
            None
        };
        let packet_len_max_bytes = HEADER_LEN_BYTES + config.cluster.value_len_max_bytes();
        let host = HostConfig {
            node: this.id,
            epoch,
            logs: std::iter::zip(&config.cluster.first_instances, applied)
                .map(|(first_instance, applied)| LogStart {
                    first_instance: *first_instance,
                    applied: *applied,
                })
                .collect(),
            acceptors: members.acceptors,
            replicas: members.replicas,
            leaders: members.leaders,
            soft_roles,
            kernel_roles,
            geometry,
            timing: timing_of(config),
            log_values_max: config.host.limits.peer_log_values as usize,
            packet_len_max_bytes,
            incarnation,
            digest,
            voting,
        };
        let mut addresses = vec![None; 256];
        for node in &config.nodes {
            addresses[usize::from(node.id)] = Some(node.address);
        }
        let peers = config
            .replicas()
            .filter(|n| n.id != this.id)
            .map(|n| SocketAddr::V4(n.address))
            .collect();
        let mut host = Host::new(0, host);
        let disk = match journal {
            Some((disk, start)) => Some(Self::keep_journal(config, &mut host, disk, &start)?),
            None => None,
        };
        let mut node = Node {
            host,
            socket,
            gate: Gate::of::<crate::dataplane::Paxos>(keys, geometry.partitions),
            key_file: config.cluster.key_file.clone(),
            kernel,
            disk,
            addresses,
            peers,
            started: Instant::now(),
            out: Outbox::for_packets_of(packet_len_max_bytes),
            buffer: Box::new([0; PACKET_LEN_MAX_BYTES + 1]),
            neighbours_at: 0,
            unresolved: Vec::new(),
            dataplane,
            send_failures: 0,
            decided_at: 0,
            more_to_receive: false,
            events: Vec::new(),
        };
        if roles.quorum {
            let now = node.now();
            node.host.open_sessions(now, &mut node.out);
            node.flush();
        }
        Ok(node)
    }

    /// Opens the acceptor's journal.
    fn open_journal(
        config: &Config,
        geometry: Geometry,
    ) -> Result<(AcceptorDisk, AcceptorStart), NodeError> {
        let (state_dir, epoch) = (&config.host.state_dir, config.cluster.epoch);
        let has_entered = durable::has_entered(state_dir, epoch)?;
        let dir = state_dir.join(JOURNAL_DIR);
        let mut storage = || Ok(Box::new(Disk::open(&dir)?) as Box<dyn Storage>);
        let limits = DiskLimits::default();
        let opened = if config.is_managed() {
            AcceptorDisk::resume(&mut storage, limits, geometry)?
        } else {
            AcceptorDisk::open(&mut storage, limits, geometry, epoch, has_entered)?
        };
        if let Some(damage) = &opened.1.damage {
            tracing::error!("the acceptor does not vote in this epoch: {damage}");
        }
        Ok(opened)
    }

    /// Restores the acceptor's state, or records on disk that it enters the epoch.
    fn keep_journal(
        config: &Config,
        host: &mut Host,
        mut disk: AcceptorDisk,
        start: &AcceptorStart,
    ) -> Result<AcceptorDisk, NodeError> {
        host.keep_journal(start.restored.as_ref());
        if config.is_managed() {
            // The journal does not decide whether it votes.
            if let Some((_, registers)) = host.journal() {
                for log in 0..config.logs() {
                    let epoch = registers.acceptor.acceptor(log).epoch;
                    registers.acceptor.seal(log, epoch);
                }
            }
            return Ok(disk);
        }
        if let (None, Some((journal, registers))) = (&start.restored, host.journal()) {
            disk.enter(journal, registers).map_err(StartError::from)?;
        }
        durable::enter_epoch(&config.host.state_dir, config.cluster.epoch)?;
        Ok(disk)
    }

    fn now(&self) -> Micros {
        self.started.elapsed().as_micros() as Micros
    }

    /// Sends what the state machines have queued.
    fn flush(&mut self) {
        self.queue(None);
        self.socket.flush();
    }

    /// Queues what the state machines have pushed for the next [`Node::flush`]. `sender`: the source of the packet
    /// being handled.
    fn queue(&mut self, sender: Option<SocketAddrV4>) {
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

    /// Returns the protocol state.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the host's registers, in the kernel or in the soft switch.
    pub fn registers(&self) -> Option<&Arc<Registers>> {
        match (&self.kernel, self.host.switch()) {
            (Some(kernel), _) => Some(kernel.registers()),
            (None, switch) => switch.map(|s| s.registers()),
        }
    }

    /// Returns the acceptor's registers of a partition, if this host has the role.
    pub fn acceptor_view(&self, partition: usize) -> Option<AcceptorView> {
        let registers = self.acceptor_registers();
        registers.map(|r| r.acceptor.acceptor(partition))
    }

    /// Returns why the acceptor's disk accepts no votes, if it does not. Until it does, the acceptor drops packets,
    /// whatever its registers say.
    pub fn acceptor_disk_failure(&self) -> Option<&str> {
        self.disk.as_ref()?.failure()
    }

    /// Returns the registers that hold the acceptor's state, if this host has the role.
    pub fn acceptor_registers(&self) -> Option<&Arc<Registers>> {
        let config = self.host.config();
        if config.soft_roles.acceptor {
            self.host.switch().map(|switch| switch.registers())
        } else {
            self.registers().filter(|_| config.kernel_roles.acceptor)
        }
    }

    /// Returns the leader's registers of a partition, if this host has the role.
    pub fn leader_view(&self, partition: usize) -> Option<LeaderView> {
        let config = self.host.config();
        let has = config.soft_roles.leader || config.kernel_roles.leader;
        self.registers()
            .filter(|_| has)
            .map(|r| r.leader.leader(partition))
    }

    pub fn counters(&self) -> std::collections::BTreeMap<&'static str, u64> {
        let kernel = self.kernel.as_ref();
        let mut counters = kernel.map_or_else(Default::default, |kernel| {
            kernel.counters().unwrap_or_default()
        });
        let switch = self.host.switch().map(|s| s.counters());
        for (name, count) in switch.into_iter().flatten().chain(self.gate.counters()) {
            *counters.entry(name).or_default() += count;
        }
        let mut add = |name, value: u64| {
            if value != 0 {
                *counters.entry(name).or_default() += value;
            }
        };
        if let Some((journal, _)) = self.host.journal() {
            add("acceptor_disk_refuses", journal.refused());
        }
        add(
            "journal_failures",
            self.disk.as_ref().map_or(0, AcceptorDisk::failures),
        );
        add("host_bad_packets", self.host.bad_packets());
        add("host_missed_by_kernel", self.host.missed_by_kernel());
        add(
            "host_send_failures",
            self.send_failures + self.socket.lost(),
        );
        add("host_cut_packets", self.socket.dropped());
        for partition in self.host.partitions() {
            let (sent, repeated) = partition.proposer().requests();
            add("proposer_requests", sent);
            add("proposer_requests_repeated", repeated);
            let reads = partition.reader().stats();
            add("reads", reads.reads);
            add("read_rounds", reads.rounds);
            if let Some(learner) = partition.learner() {
                let stats = learner.stats();
                add("learner_digest_mismatch", stats.digest_mismatch);
                add("learner_learn_asked", stats.learn_asked);
                add("learner_recoveries", stats.recoveries);
                add("learner_from_peers", stats.from_peers);
                add("learner_noops", stats.noops);
            }
        }
        counters
    }

    /// Memory in bytes of registers, rings and the log kept for peers.
    pub fn memory_bytes(&self) -> u64 {
        let kernel = self.kernel.as_ref().map_or(0, XdpHost::memory_bytes);
        let switch = self.host.switch();
        let registers = kernel + switch.map_or(0, |s| s.registers().memory_bytes());
        let learners = self.host.partitions().iter().filter_map(|p| p.learner());
        let logs: usize = learners.map(|l| l.log().memory_bytes()).sum();
        (registers + logs) as u64
    }

    /// Returns where the roles run.
    pub fn dataplane(&self) -> Dataplane {
        self.dataplane
    }

    /// Nodes whose link-layer address the kernel does not know yet; packets to them are lost.
    pub fn unresolved(&self) -> &[u8] {
        &self.unresolved
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

impl ReplicatedLog for Node {
    fn partitions(&self) -> usize {
        self.host.config().geometry.partitions
    }

    fn max_value_len_bytes(&self) -> usize {
        self.host.config().packet_len_max_bytes - HEADER_LEN_BYTES
    }

    fn submit_room(&self, partition: usize) -> usize {
        self.host.partition(partition).proposer().room()
    }

    fn submit(&mut self, partition: usize, value: &[u8]) -> Result<Ticket, SubmitError> {
        let (len_bytes, limit_bytes) = (value.len(), self.max_value_len_bytes());
        if len_bytes > limit_bytes {
            return Err(SubmitError::TooLong {
                len_bytes,
                limit_bytes,
            });
        }
        // Sent by the next poll, together with everything else submitted until then.
        self.host
            .submit(self.now(), partition, value, &mut self.out)
    }

    fn poll(&mut self, bursts: &mut [Burst]) {
        self.send_submitted();
        self.receive();
        self.take_decided();
        self.tick();
        self.sync_journal();
        self.host.take_bursts(bursts);
    }

    fn pause(&mut self, partition: usize, is_paused: bool) {
        // The resulting packets are sent by the next poll.
        self.host
            .pause(self.now(), partition, is_paused, &mut self.out);
    }

    fn applied(&mut self, partition: usize, instance: u64) {
        self.host.applied(partition, instance);
    }

    fn reset(&mut self, partition: usize, applied: u64) {
        self.host.reset(partition, applied);
    }

    fn session_refused(&mut self, ticket: Ticket) {
        let now = self.now();
        self.host.session_refused(now, ticket, &mut self.out);
        self.flush();
    }

    fn answered(&mut self, ticket: Ticket) {
        self.host.answered(ticket);
    }

    fn confirm_read(&mut self, partition: usize) -> ReadTicket {
        // Queried by the next poll, together with all other reads until then.
        self.host.confirm_read(self.now(), partition)
    }

    fn wake_fds(&self) -> Vec<RawFd> {
        let mut fds = vec![self.socket.fd()];
        let ring = self.kernel.as_ref().and_then(XdpHost::decided_fd);
        fds.extend(ring.map(|fd| fd.as_raw_fd()));
        fds
    }

    fn poll_timeout(&self) -> Duration {
        if self.more_to_receive || !self.out.is_empty() {
            return Duration::ZERO;
        }
        let now = self.now();
        let mut due = self.host.due(now).min(self.neighbours_at);
        if let Some((journal, _)) = self.host.journal() {
            if journal.wants_sync(now) {
                return Duration::ZERO;
            }
            due = due.min(journal.due());
        }
        let timeout = Duration::from_micros(due.saturating_sub(now));
        let Some(kernel) = &self.kernel else {
            return timeout;
        };
        let idle = self.host.is_idle();
        if idle && self.decided_at != 0 && now < self.decided_at + STREAM_GAP_US {
            return timeout.min(STREAM_LOOK);
        }
        kernel.set_polling(false);
        if kernel.has_decided() {
            return Duration::ZERO; // it came before we said that we sleep
        }
        timeout
    }

    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        self.peers.clone()
    }
}
