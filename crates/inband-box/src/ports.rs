//! How a node's packets travel: through a UDP socket, and optionally a dedicated link to each other node.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::RawFd;
use std::time::Duration;

use inband_ground::raw_link::RawLink;
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;

use crate::promise::{Nanos, MS};

/// How often a node checks whether its links are up.
const LOOK_PERIOD_NS: Nanos = 20 * MS;

/// A packet that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    pub len_bytes: usize,
    /// The node that sent it; `None` if its address is not a node's.
    pub from: Option<u8>,
    /// Whether it came by a link.
    pub is_by_link: bool,
}

/// A node's socket and links. It listens at all of them; it sends by the links while all of them are up, and otherwise
/// by the socket.
pub struct Ports {
    socket: HostSocket,
    nodes: Vec<SocketAddrV4>,
    /// By node id; either none or all.
    links: Vec<(u8, RawLink)>,
    are_up: bool,
    look_at: Nanos,
}

impl Ports {
    /// Creates the ports. `nodes`: the addresses of all nodes, from node 1. `links`: the links to the others.
    pub fn new(socket: HostSocket, nodes: Vec<SocketAddrV4>, links: Vec<(u8, RawLink)>) -> Ports {
        Ports {
            socket,
            nodes,
            links,
            are_up: false,
            look_at: 0,
        }
    }

    /// Checks whether the links are up, if it is time. Returns whether that has changed.
    pub fn look(&mut self, now: Nanos) -> bool {
        if self.links.is_empty() || now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_PERIOD_NS;
        let are_up = self.down().next().is_none();
        std::mem::replace(&mut self.are_up, are_up) != are_up
    }

    /// Returns whether there are links and all of them are up.
    pub fn are_links_up(&self) -> bool {
        self.are_up
    }

    /// Returns whether there are links.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the nodes whose links are down.
    pub fn down(&self) -> impl Iterator<Item = u8> + '_ {
        let down = self.links.iter().filter(|(_, link)| !link.is_up());
        down.map(|(node, _)| *node)
    }

    /// Receives the next packet, if one has arrived.
    pub fn receive(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
    ) -> io::Result<Option<Arrived>> {
        for (node, link) in &self.links {
            if let Some(len_bytes) = link.receive(buffer)? {
                return Ok(Some(Arrived {
                    len_bytes,
                    from: Some(*node),
                    is_by_link: true,
                }));
            }
        }
        let received = self.socket.receive(buffer)?;
        Ok(received.map(|(len_bytes, from)| {
            let place = self.nodes.iter().position(|node| *node == from);
            Arrived {
                len_bytes,
                from: place.map(|place| place as u8 + 1),
                is_by_link: false,
            }
        }))
    }

    /// Queues a packet for a node until the next [`Ports::flush`].
    pub fn queue(&self, packet: &[u8], to: u8) {
        match self.link_to(to) {
            Some(link) => {
                link.send(packet);
            }
            None => self.socket.queue(packet, self.nodes[usize::from(to) - 1]),
        }
    }

    /// Sends what was queued.
    pub fn flush(&self) {
        self.socket.flush();
    }

    /// Sends a packet to a node. It may be lost.
    pub fn send(&self, packet: &[u8], to: u8) {
        match self.link_to(to) {
            Some(link) => link.send(packet),
            None => self.socket.send(packet, self.nodes[usize::from(to) - 1]),
        };
    }

    fn link_to(&self, to: u8) -> Option<&RawLink> {
        let mut links = self.links.iter().filter(|_| self.are_up);
        links.find(|(node, _)| *node == to).map(|(_, link)| link)
    }

    /// As [`HostSocket::sleep_time`].
    pub fn sleep_time(&self, wanted: Duration) -> Duration {
        self.socket.sleep_time(wanted)
    }

    /// Returns the descriptors to poll.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        let links = self.links.iter().map(|(_, link)| link.fd());
        links.chain([self.socket.fd()])
    }
}
