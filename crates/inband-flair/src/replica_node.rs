//! A replica on real sockets: UDP to and from the switches, TCP between replicas. One thread.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use inband_ground::auth::{Gate, Keys};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::config::Durability;
use inband_host::key_file::KeyFile;
use inband_host::state_dir::{StateError, StateLock};
use inband_raft::RaftError;
use inband_storage::{Disk, StorageError};
use inband_transport::tls::Transport;

use crate::clock::boot_time_ns;
use crate::config::{Balance, Config, Part};
use crate::digests::Digests;
use crate::peer_links::PeerLinks;
use crate::replica::{self, Message, Out, Replica, Status};
use crate::timing::{Timing, MS, TUNING};

/// Packets handled before the results are sent: a burst of writes becomes one message per follower.
const BATCH_PACKETS: usize = 64;
/// Maximum sleep.
const IDLE_MAX: Duration = Duration::from_millis(100);
/// The subdirectory of its log.
pub const LOG_DIR: &str = "raft";
/// A process of this replica that was just killed may still hold the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why a replica cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The configuration is that of another kind of host.
    #[error("{0} is not a replica; start it in its own role")]
    OtherPart(String),
    /// An address cannot be bound.
    #[error("cannot listen at {address}: {source}; is it an address of this host, and free?")]
    Address {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An error with the data directory.
    #[error(transparent)]
    Directory(#[from] StateError),
    /// A log error. The replica must stop, because others may rely on what the log held.
    #[error("the log in {dir}: {source}. If a majority of its set has intact logs, remove that directory once the disk works again and restart this replica: it copies everything acknowledged from the others")]
    Log { dir: PathBuf, source: RaftError },
    #[error(transparent)]
    Raft(#[from] RaftError),
}

pub struct ReplicaNode {
    replica: Replica,
    socket: HostSocket,
    gate: Gate,
    links: PeerLinks<Message>,
    switches: Vec<SocketAddrV4>,
    peers: Vec<SocketAddr>,
    out: Out,
    unsent: u64,
    strangers: u64,
    /// How many times its disk was full.
    disk_full: u64,
    /// The last attempt to write found it full.
    disk_is_full: bool,
    // Must be dropped last.
    _lock: Option<StateLock>,
}

impl ReplicaNode {
    /// Opens the sockets for switches and peers. `found` must be set only once ever and at one replica, which founds
    /// the group when all others are up. With `keys`, packets without a valid tag are dropped. Messages between
    /// replicas use `transport`.
    pub fn open(
        config: &Config,
        found: bool,
        keys: Option<&KeyFile>,
        transport: Transport,
    ) -> Result<ReplicaNode, ReplicaError> {
        let cluster = &config.cluster;
        let Some(Part::Replica(place)) = config.part() else {
            return Err(ReplicaError::OtherPart(config.host.name.clone()));
        };
        let this = &cluster.replicas[place];
        let members = cluster.places(this.set);
        let number = members.iter().take_while(|other| **other != place).count();
        let nodes = members.iter().map(|place| Part::Replica(*place).node());
        let failed = |address, source| ReplicaError::Address { address, source };
        let socket = HostSocket::bind(this.address)
            .map_err(|source| failed(SocketAddr::V4(this.address), source))?;
        let links = PeerLinks::listen(this.raft, number as u8, nodes.collect(), transport)
            .map_err(|source| failed(this.raft, source))?;
        let timing = Timing {
            heartbeat_ns: cluster.heartbeat_ms * MS,
            step_down_ns: cluster.step_down_ms * MS,
            // Three heartbeats, as in the paper.
            switch_silent_ns: 3 * cluster.heartbeat_ms * MS,
            ..Timing::default()
        };
        let spec = replica::Config {
            replica: number as u8,
            replicas: members.len() as u8,
            node: u16::from(Part::Replica(place).node()),
            set: this.set,
            sets: cluster.sets() as u16,
            switches: cluster.switches.len() as u8,
            groups: cluster.groups as usize,
            founder: found,
            reads: cluster.reads,
            // Load awareness includes sparing a busy leader.
            leader_avoidance: cluster.balance != Balance::Random,
            load_awareness: cluster.balance == Balance::Load,
            timing,
            tuning: TUNING,
        };
        let (mut replica, lock) = match cluster.durability {
            Durability::Memory => (Replica::new(spec, rand::random(), boot_time_ns())?, None),
            Durability::Sync => {
                let dir = config.host.data.as_ref();
                let dir = dir.expect("a checked replica has a directory");
                let lock = take_lock(dir)?;
                (open_log(spec, &dir.join(LOG_DIR))?, Some(lock))
            }
        };
        if let Some(keys) = keys {
            replica.set_digests(Digests::new(keys.digest()));
        }
        Ok(ReplicaNode {
            replica,
            socket,
            gate: Gate::of::<crate::dataplane::Flair>(keys.map(KeyFile::keys), cluster.sets()),
            links,
            switches: cluster.switches.iter().map(|s| s.address).collect(),
            peers: members.iter().map(|m| cluster.replicas[*m].raft).collect(),
            out: Out::default(),
            unsent: 0,
            strangers: 0,
            disk_full: 0,
            disk_is_full: false,
            _lock: lock,
        })
    }

    /// Handles packets that have arrived and runs timers that are due. Returns true if it should be called again at
    /// once, because there may be more packets or a snapshot is being written.
    pub fn poll(&mut self) -> Result<bool, ReplicaError> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        let mut packets = 0;
        while packets < BATCH_PACKETS {
            let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                break;
            };
            packets += 1;
            let packet = &buffer[..len_bytes];
            if !self.gate.admits(packet) {
                continue;
            }
            let Some(switch) = self.switches.iter().position(|s| *s == from) else {
                self.strangers += 1;
                continue;
            };
            self.replica
                .on_packet(boot_time_ns(), switch as u8, packet, &mut self.out);
        }
        // While bursts are full, more packets are waiting behind them.
        self.replica.set_queue_len(packets as u32);
        while let Some((from, message)) = self.links.receive() {
            self.replica.on_message(boot_time_ns(), from, message);
        }
        let now = boot_time_ns();
        if now >= self.replica.due() {
            self.replica.tick(now, &mut self.out);
        }
        match self.replica.advance(now, &mut self.out) {
            Err(RaftError::Storage(error)) if error.is_no_space() => self.note_full_disk(&error),
            advanced => {
                advanced?;
                self.disk_is_full = false;
            }
        }
        self.send();
        Ok(packets == BATCH_PACKETS || self.replica.has_work())
    }

    /// Nothing is acknowledged until there is space again; the next call retries. Meanwhile another replica leads.
    fn note_full_disk(&mut self, error: &StorageError) {
        if self.disk_full == 0 {
            tracing::warn!("{error}");
        }
        self.disk_full += 1;
        self.disk_is_full = true;
    }

    /// Replaces the keys. Has no effect if there were none at start.
    pub fn set_keys(&mut self, keys: Keys) {
        self.gate.set_keys(keys);
    }

    fn send(&mut self) {
        self.out.packets.sign(&self.gate);
        for (switch, packet) in self.out.packets.iter() {
            let sent = self.socket.send(packet, self.switches[usize::from(switch)]);
            self.unsent += u64::from(!sent);
        }
        for (to, message) in self.out.messages.drain(..) {
            let to = self.peers[usize::from(to)];
            self.links.send(to, message);
        }
        self.out.clear();
    }

    /// Returns the sockets, for `poll(2)`.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.socket.fd(), self.links.fd()]
    }

    /// Maximum sleep before the next [`ReplicaNode::poll`].
    pub fn poll_timeout(&self) -> Duration {
        let due_ns = self.replica.due().saturating_sub(boot_time_ns());
        Duration::from_nanos(due_ns).min(IDLE_MAX)
    }

    pub fn status(&self) -> Status {
        Status {
            disk_is_full: self.disk_is_full,
            ..self.replica.status(boot_time_ns())
        }
    }

    /// Returns all counters, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let c = self.replica.counters();
        let mut counters = BTreeMap::from([
            ("flair_reads_leader", c.reads_leader),
            ("flair_reads_follower", c.reads_follower),
            ("flair_reads_advanced", c.reads_advanced),
            ("flair_reads_refused", c.reads_refused),
            ("flair_writes", c.writes),
            ("flair_writes_dropped", c.writes_dropped),
            ("flair_refreshes", c.refreshes),
            ("flair_bad_packets", c.bad_packets),
            ("flair_strangers", self.strangers),
            ("flair_packets_unsent", self.unsent),
            ("flair_disk_full", self.disk_full),
        ]);
        counters.extend(self.gate.counters());
        counters.extend(self.links.counters());
        counters
    }
}

/// Locks the directory. Waits for a process of this replica that may be exiting.
fn take_lock(dir: &Path) -> Result<StateLock, StateError> {
    let begun = Instant::now();
    loop {
        match StateLock::take(dir) {
            Err(StateError::InUse { .. }) if begun.elapsed() < LOCK_TIMEOUT => {
                thread::sleep(LOCK_POLL_INTERVAL);
            }
            taken => return taken,
        }
    }
}

fn open_log(spec: replica::Config, dir: &Path) -> Result<Replica, ReplicaError> {
    let open = || {
        let disk = Disk::open(dir)?;
        Replica::open(spec, Box::new(disk), rand::random(), boot_time_ns())
    };
    open().map_err(|source| ReplicaError::Log {
        dir: dir.to_owned(),
        source,
    })
}
