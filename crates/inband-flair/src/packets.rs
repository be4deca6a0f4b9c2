//! Packets to send to switches, in one reusable buffer.

use crate::dataplane::wire::{self, Header};
use inband_ground::auth::Gate;

#[derive(Debug, Default)]
pub struct Packets {
    bytes: Vec<u8>,
    ends: Vec<(u8, usize)>,
}

impl Packets {
    pub(crate) fn push(&mut self, switch: u8, header: &Header, key: &[u8], data: &[u8]) {
        wire::emit(header, key, data, &mut self.bytes);
        self.ends.push((switch, self.bytes.len()));
    }

    /// Each packet and the switch that it goes to.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(switch, end)| {
            let packet = &self.bytes[start..*end];
            start = *end;
            (*switch, packet)
        })
    }

    /// Adds tags to all packets.
    pub fn sign(&mut self, gate: &Gate) {
        let mut start = 0;
        for (_, end) in &self.ends {
            gate.sign(&mut self.bytes[start..*end]);
            start = *end;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all packets; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
