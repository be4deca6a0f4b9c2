//! Packets that sans-I/O state machines want to send. A driver, or the simulator, sends them.

use crate::dataplane::wire::{self, Header, PACKET_LEN_MAX_BYTES};

/// The destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dest {
    /// One node of the configuration.
    Node(u8),
    /// The sender of the packet being handled.
    Sender,
    Acceptors,
    /// Every learner (a host with a quorum counter).
    Learners,
    /// Every host with a leader role, active or not.
    Leaders,
    /// Every learner and every leader, each once.
    Peers,
}

/// Packets to send, in order. Reused between calls.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    sends: Vec<(Dest, usize, usize)>,
    packet_len_max_bytes: usize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox::for_packets_of(PACKET_LEN_MAX_BYTES)
    }
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox::default()
    }

    /// Returns an empty outbox for a network with this maximum packet length; see [`wire::emit_padded_to`].
    pub fn for_packets_of(packet_len_max_bytes: usize) -> Outbox {
        Outbox {
            bytes: Vec::new(),
            sends: Vec::new(),
            packet_len_max_bytes,
        }
    }

    /// Clears everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.sends.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Sends a packet with this header and value.
    pub fn send(&mut self, dest: Dest, header: &Header, value: &[u8]) {
        let start = self.bytes.len();
        wire::emit_padded_to(self.packet_len_max_bytes, header, value, &mut self.bytes);
        self.sends.push((dest, start, self.bytes.len()));
    }

    /// Sends bytes that already form a packet.
    pub fn send_raw(&mut self, dest: Dest, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.sends.push((dest, start, self.bytes.len()));
    }

    /// Returns the packets, in order, to be completed by the caller.
    pub fn packets_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut rest = self.bytes.as_mut_slice();
        self.sends.iter().map(move |(_, start, end)| {
            let (packet, behind) = std::mem::take(&mut rest).split_at_mut(end - start);
            rest = behind;
            packet
        })
    }

    /// Returns the packets, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Dest, &[u8])> {
        self.sends
            .iter()
            .map(|(dest, start, end)| (*dest, &self.bytes[*start..*end]))
    }
}
