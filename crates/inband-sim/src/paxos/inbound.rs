//! Packets on their way to each host: more than a receive buffer takes are lost, and some overtake others.

use std::collections::BTreeMap;

use crate::paxos::limits::HOST_QUEUE_PACKETS;

/// See the module.
#[derive(Default)]
pub(crate) struct Inbound {
    /// By host.
    on_the_way: Vec<usize>,
    /// The last packet to arrive, of those between two hosts, in the order in which they were sent.
    newest: BTreeMap<(u8, u8), u64>,
}

impl Inbound {
    /// Is a host's receive buffer full?
    pub fn is_full(&self, to: u8) -> bool {
        self.on_the_way.get(usize::from(to)) >= Some(&HOST_QUEUE_PACKETS)
    }

    /// A packet to this host is on its way.
    pub fn set_out(&mut self, to: u8) {
        let to = usize::from(to);
        if self.on_the_way.len() <= to {
            self.on_the_way.resize(to + 1, 0);
        }
        self.on_the_way[to] += 1;
    }

    /// A packet has arrived, which so many others were `sent` before. Was it overtaken?
    pub fn arrived(&mut self, from: u8, to: u8, sent: u64) -> bool {
        self.on_the_way[usize::from(to)] -= 1;
        let newest = self.newest.entry((from, to)).or_default();
        let overtaken = sent < *newest;
        *newest = sent.max(*newest);
        overtaken
    }
}
