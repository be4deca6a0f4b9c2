//! The start of a node: from a configuration to sockets, registers, a journal and a [`Host`].

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use crate::dataplane::soft::{Geometry, Registers, Roles};
use crate::dataplane::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};
use crate::dataplane::xdp::{Peer, XdpHost, XdpSpec};
use inband_ground::auth::{Digest, Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::xdp::XdpMode;
use inband_storage::{Disk, Storage};

use super::{Node, NodeError, JOURNAL_DIR};
use crate::config::{Config, Dataplane, Durability, NodeConfig, Role};
use crate::durable;
use crate::host::{EpochConfig, Host, HostConfig, LogStart};
use crate::journal::{AcceptorDisk, AcceptorStart, DiskLimits, StartError};
use crate::outbox::Outbox;
use crate::timing::Timing;
use inband_host::key_file::{KeyFile, KeyFileError};

/// Room for decided values that the learner has not taken yet.
const RING_BUFFER_BYTES: usize = 16 << 20;

fn roles_of(config: &Config) -> Roles {
    let this = config.this();
    Roles {
        leader: this.has(Role::Leader),
        acceptor: this.has(Role::Acceptor),
        quorum: this.has(Role::Replica),
    }
}

/// Returns a node in the form that the packet programs of node `own` use.
pub(super) fn peer_of(node: &NodeConfig, own: u8) -> Peer {
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
pub(super) fn load_keys(path: Option<&Path>) -> Result<(Option<Keys>, Digest), KeyFileError> {
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
        if keeps_journal {
            durable::check_digest(state_dir, &digest)?;
        }
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
            tracing::error!(
                "the acceptor does not vote in this epoch: {damage}; this node continues in the cluster's next epoch, with the data of the others"
            );
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
}
