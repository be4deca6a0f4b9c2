//! Packets to be sent to switches, in one piece of memory that is used again.

use crate::dataplane::wire::{self, Header};
use inband_ground::auth::Gate;

/// See the module.
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

    /// Each, and the switch that it goes to.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(switch, end)| {
            let packet = &self.bytes[start..*end];
            start = *end;
            (*switch, packet)
        })
    }

    /// Make all of them ready to leave.
    pub fn sign(&mut self, gate: &Gate) {
        let mut start = 0;
        for (_, end) in &self.ends {
            gate.sign(&mut self.bytes[start..*end]);
            start = *end;
        }
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forget them; the memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}
