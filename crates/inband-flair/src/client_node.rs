//! The client on a real socket: one socket, any number of requests in flight, no thread of its own.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;
use std::time::Duration;

use inband_ground::auth::Gate;
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::key_file::KeyFile;

use crate::client::{self, Op, Out, Outcome, SubmitError, Ticket};
use crate::clock::boot_time_ns;
use crate::config::ClusterConfig;
use crate::digests::Digests;
use crate::sets::Clients;
use crate::timing::ClientTiming;

/// Maximum packets handled per [`ClientNode::poll`].
const BATCH_PACKETS: usize = 256;
/// Maximum sleep.
const IDLE_MAX: Duration = Duration::from_millis(100);

pub struct ClientNode {
    socket: HostSocket,
    gate: Gate,
    switches: Vec<SocketAddrV4>,
    clients: Clients,
    out: Out,
    ended: VecDeque<(Ticket, Outcome)>,
}

impl ClientNode {
    /// Opens a client of this cluster at an ephemeral port of `address`, with the keys in the cluster's key file.
    pub fn open(
        cluster: &ClusterConfig,
        address: Ipv4Addr,
        timing: ClientTiming,
    ) -> io::Result<ClientNode> {
        let switches: Vec<_> = cluster.switches.iter().map(|s| s.address).collect();
        let config = client::Config {
            set: 0,
            switches: switches.len() as u8,
            reads: cluster.reads,
            nonce: rand::random(),
            timing,
        };
        let mut clients = Clients::new(config, cluster.sets());
        let keys = cluster.key_file.as_deref().map(KeyFile::load);
        let keys = keys.transpose().map_err(io::Error::other)?;
        if let Some(keys) = &keys {
            clients.set_digests(Digests::new(keys.digest()));
        }
        Ok(ClientNode {
            socket: HostSocket::bind(SocketAddrV4::new(address, 0))?,
            gate: Gate::of::<crate::dataplane::Flair>(
                keys.as_ref().map(KeyFile::keys),
                cluster.sets(),
            ),
            switches,
            clients,
            out: Out::default(),
            ended: VecDeque::new(),
        })
    }

    /// Submits a request. [`ClientNode::take_ended`] returns its outcome.
    pub fn submit(&mut self, op: Op) -> Result<Ticket, SubmitError> {
        let ticket = self.clients.submit(boot_time_ns(), op, &mut self.out);
        self.send();
        ticket
    }

    /// Handles the packets that have arrived, and timeouts. Does not block.
    pub fn poll(&mut self) -> io::Result<()> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..BATCH_PACKETS {
            let Some((len_bytes, _)) = self.socket.receive(&mut buffer)? else {
                break;
            };
            let packet = &buffer[..len_bytes];
            if !self.gate.admits(packet) {
                continue;
            }
            self.clients
                .on_packet(boot_time_ns(), packet, &mut self.out);
        }
        self.clients.tick(boot_time_ns(), &mut self.out);
        self.send();
        Ok(())
    }

    /// Returns the next request that has ended, and its outcome.
    pub fn take_ended(&mut self) -> Option<(Ticket, Outcome)> {
        self.ended.pop_front()
    }

    /// Returns the number of requests in flight.
    pub fn under_way(&self) -> usize {
        self.clients.under_way()
    }

    /// Returns the number of retransmissions.
    pub fn repeated(&self) -> u64 {
        self.clients.repeated()
    }

    /// Returns the socket, for `poll(2)`.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Maximum sleep before the next call of [`ClientNode::poll`].
    pub fn poll_timeout(&self) -> Duration {
        let due = self.clients.due().unwrap_or(u64::MAX);
        let left = Duration::from_nanos(due.saturating_sub(boot_time_ns()));
        self.socket.sleep_time(left.min(IDLE_MAX))
    }

    fn send(&mut self) {
        self.out.packets.sign(&self.gate);
        for (switch, packet) in self.out.packets.iter() {
            // Ignore errors: what is lost is retransmitted.
            self.socket.send(packet, self.switches[usize::from(switch)]);
        }
        self.out.packets.clear();
        self.ended.extend(self.out.outcomes.drain(..));
    }
}
