//! Packets in flight to each host: those that exceed its receive buffer are lost, and some overtake others.

use std::collections::BTreeMap;

use crate::paxos::limits::HOST_QUEUE_PACKETS;

#[derive(Default)]
pub(crate) struct Inbound {
    /// By host.
    on_the_way: Vec<usize>,
    /// By pair of hosts: the number, in sending order, of the newest packet that has arrived.
    newest: BTreeMap<(u8, u8), u64>,
}

impl Inbound {
    /// Returns whether a host's receive buffer is full.
    pub fn is_full(&self, to: u8) -> bool {
        self.on_the_way.get(usize::from(to)) >= Some(&HOST_QUEUE_PACKETS)
    }

    /// A packet to this host is sent.
    pub fn set_out(&mut self, to: u8) {
        let to = usize::from(to);
        if self.on_the_way.len() <= to {
            self.on_the_way.resize(to + 1, 0);
        }
        self.on_the_way[to] += 1;
    }

    /// A packet arrives before which `sent` others were sent. Returns whether it was overtaken.
    pub fn arrived(&mut self, from: u8, to: u8, sent: u64) -> bool {
        self.on_the_way[usize::from(to)] -= 1;
        let newest = self.newest.entry((from, to)).or_default();
        let overtaken = sent < *newest;
        *newest = sent.max(*newest);
        overtaken
    }
}
