//! What a state machine wants sent. State machines own no socket: they push packets here, and a
//! driver, or the simulator, sends them.

use inband_dataplane::wire::{self, Header};

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dest {
    /// One node of the configuration.
    Node(u8),
    /// Whoever sent the packet that is being handled.
    Sender,
    /// Every acceptor.
    Acceptors,
    /// Every learner (a host with a quorum counter).
    Learners,
    /// Every host with a leader role, active or not.
    Leaders,
}

/// Packets to send, in order. Reused between calls.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sends: Vec<(Dest, usize, usize)>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Outbox {
        Outbox::default()
    }

    /// Forget everything, keep the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.sends.clear();
    }

    /// Nothing to send.
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Send a packet made of a header and a value.
    pub fn send(&mut self, dest: Dest, header: &Header, value: &[u8]) {
        let start = self.bytes.len();
        wire::emit(header, value, &mut self.bytes);
        self.sends.push((dest, start, self.bytes.len()));
    }

    /// Send bytes that are a packet already.
    pub fn send_raw(&mut self, dest: Dest, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.sends.push((dest, start, self.bytes.len()));
    }

    /// The packets, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Dest, &[u8])> {
        self.sends
            .iter()
            .map(|(dest, start, end)| (*dest, &self.bytes[*start..*end]))
    }
}
