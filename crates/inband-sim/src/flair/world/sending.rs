//! Sending of packets and messages.

use inband_flair::dataplane::wire;
use inband_flair::replica::Message;
use inband_raft::node_of;

use crate::flair::host::{Host, Packet};
use crate::flair::{counts, World};

impl World {
    pub(super) fn send_bytes(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        let packet = Packet::Bytes(bytes);
        if let (Host::Switch(_), Host::Replica(number)) = (from, to) {
            let header = packet.header();
            let is_read = header.is_some_and(|h| h.kind == wire::Type::Read);
            if is_read && self.system.replicas[usize::from(number)].replica.is_none() {
                self.stats.count(counts::READS_OF_THE_DEAD, 1);
            }
        }
        self.send(from, to, packet);
    }

    /// For a mutation: the forged answer to this packet.
    pub(in crate::flair) fn forged_answer(&self, to: Host, packet: &Packet) -> Option<Packet> {
        let (Host::Switch(number), Some(mutation)) = (to, self.system.mutation) else {
            return None;
        };
        let header = packet.header()?;
        let answer = mutation.answer(self.switch(number)?, &header, self.local(to))?;
        let mut bytes = Vec::new();
        wire::emit(&answer, &[], &[], &mut bytes);
        Some(Packet::Bytes(bytes))
    }

    pub(super) fn send_message(&mut self, from: u8, to: u8, message: Message) {
        if let Message::Raft(raft) = &message {
            debug_assert_eq!(node_of(raft.to), to);
        }
        let message = Packet::Message(Box::new(message));
        self.send(Host::Replica(from), Host::Replica(to), message);
    }
}
