//! A storage node on real packets: UDP to and from the switches, TCP between replicas. One thread.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;
use std::time::Duration;

use inband_dataplane::socket::HostSocket;
use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;
use inband_raft::RaftError;
use inband_transport::tls::Transport;

use crate::clock::boot_time_ns;
use crate::config::{Balance, Config, Part};
use crate::peer_links::PeerLinks;
use crate::replica::{self, Message, Out, Replica, Status};
use crate::timing::{Timing, MS, TUNING};

/// Packets handled before what they lead to is sent: a burst of writes is one message a follower.
const BATCH_PACKETS: usize = 64;
/// Every replica set of this configuration is number 0.
const SET: u16 = 0;
/// Longest sleep.
const IDLE_MAX: Duration = Duration::from_millis(100);

/// Why a storage node cannot run on.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The configuration is that of another host.
    #[error("{0} is no replica; start it as what it is")]
    OtherPart(String),
    /// An address cannot be bound.
    #[error("cannot listen at {address}: {source}; is it an address of this host, and free?")]
    Address {
        /// Of the configuration.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A socket that fails.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Raft.
    #[error(transparent)]
    Raft(#[from] RaftError),
}

/// See the module.
pub struct ReplicaNode {
    replica: Replica,
    socket: HostSocket,
    links: PeerLinks<(u8, Message)>,
    number: u8,
    switches: Vec<SocketAddrV4>,
    peers: Vec<SocketAddr>,
    out: Out,
    unsent: u64,
    strangers: u64,
}

impl ReplicaNode {
    /// Listen for switches and peers. With `found`, which is given once ever and to one replica, it begins
    /// the group when all others are there.
    pub fn open(config: &Config, found: bool) -> Result<ReplicaNode, ReplicaError> {
        let cluster = &config.cluster;
        let Some(Part::Replica(number)) = config.part() else {
            return Err(ReplicaError::OtherPart(config.host.name.clone()));
        };
        let this = &cluster.replicas[number];
        let failed = |address, source| ReplicaError::Address { address, source };
        let socket = HostSocket::bind(this.address)
            .map_err(|source| failed(SocketAddr::V4(this.address), source))?;
        let links = PeerLinks::listen(this.raft, Transport::plain())
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
            replicas: cluster.replicas.len() as u8,
            node: number as u16 + 1,
            set: SET,
            switches: cluster.switches.len() as u8,
            groups: cluster.groups as usize,
            founder: found,
            leader_avoidance: cluster.balance == Balance::LeaderAvoidance,
            load_awareness: cluster.balance == Balance::Load,
            timing,
            tuning: TUNING,
        };
        let mut replica = Replica::new(spec, rand::random(), boot_time_ns())?;
        replica.set_only_leader_reads(cluster.balance == Balance::Leader);
        Ok(ReplicaNode {
            replica,
            socket,
            links,
            number: number as u8,
            switches: cluster.switches.iter().map(|s| s.address).collect(),
            peers: cluster.replicas.iter().map(|r| r.raft).collect(),
            out: Out::default(),
            unsent: 0,
            strangers: 0,
        })
    }

    /// Handle what has come, and do what is due. True: there may be more.
    pub fn poll(&mut self) -> Result<bool, ReplicaError> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        let mut packets = 0;
        while packets < BATCH_PACKETS {
            let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                break;
            };
            packets += 1;
            let Some(switch) = self.switches.iter().position(|s| *s == from) else {
                self.strangers += 1;
                continue;
            };
            let packet = &buffer[..len_bytes];
            self.replica
                .on_packet(boot_time_ns(), switch as u8, packet, &mut self.out);
        }
        // As long as a burst is full, others wait behind it.
        self.replica.set_queue_len(packets as u32);
        while let Some((from, message)) = self.links.receive() {
            self.replica.on_message(boot_time_ns(), from, message);
        }
        let now = boot_time_ns();
        if now >= self.replica.due() {
            self.replica.tick(now, &mut self.out);
        }
        self.replica.advance(now, &mut self.out)?;
        self.send();
        Ok(packets == BATCH_PACKETS)
    }

    fn send(&mut self) {
        for (switch, packet) in self.out.packets.iter() {
            let sent = self.socket.send(packet, self.switches[usize::from(switch)]);
            self.unsent += u64::from(!sent);
        }
        for (to, message) in self.out.messages.drain(..) {
            let to = self.peers[usize::from(to)];
            self.links.send(to, (self.number, message));
        }
        self.out.clear();
    }

    /// For polling.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.socket.fd(), self.links.fd()]
    }

    /// Longest sleep.
    pub fn poll_timeout(&self) -> Duration {
        let due_ns = self.replica.due().saturating_sub(boot_time_ns());
        Duration::from_nanos(due_ns).min(IDLE_MAX)
    }

    /// What it knows of itself.
    pub fn status(&self) -> Status {
        self.replica.status(boot_time_ns())
    }

    /// Everything counted, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let c = self.replica.counters();
        BTreeMap::from([
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
            ("flair_peers_refused", self.links.refused()),
        ])
    }
}
