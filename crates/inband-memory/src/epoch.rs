//! Epochs: who may propose which, and what a host sends.

use crate::c;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
/// A millisecond.
pub const MS: Nanos = 1_000_000;

const PROPOSERS: u64 = c::IB_MEMORY_PROPOSERS as u64;
/// The node ids of servers are 1 to this.
pub const SERVERS_MAX: u8 = c::IB_MEMORY_SERVERS_MAX as u8;
/// The first node id of a switch.
pub const SWITCH_FIRST: u8 = c::IB_MEMORY_SWITCH_FIRST as u8;
/// The last node id of a switch.
pub const SWITCH_LAST: u8 = c::IB_MEMORY_SWITCH_LAST as u8;

/// How many epochs there are.
pub const EPOCHS: u64 = 1 << c::IB_MEMORY_EPOCH_BITS;
/// How many numbers a replaced server skips: it has lost its promise, and whatever it promised is not above this.
pub const REPLACE_SKIPS: u64 = 1024 * PROPOSERS;

/// The node that proposed an epoch.
pub fn owner(epoch: u64) -> u8 {
    (epoch % PROPOSERS) as u8
}

/// Was it proposed by a switch?
pub fn is_switch(epoch: u64) -> bool {
    owner(epoch) >= SWITCH_FIRST
}

/// The lowest epoch of a node above another epoch. `None`: there are no more.
pub fn next(above: u64, node: u8) -> Option<u64> {
    let epoch = (above / PROPOSERS + 1) * PROPOSERS + u64::from(node);
    (epoch < EPOCHS).then_some(epoch)
}

/// A promise is stored so far ahead that most epochs need no wait for a disk.
pub const AHEAD: u64 = 8 * PROPOSERS;

/// The epochs that a node has proposed or granted: none above what is stored, and after a start only higher ones.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    used: u64,
    stored: u64,
}

impl Promise {
    /// After a start. `stored`: what was stored last, 0 if nothing.
    pub fn new(stored: u64) -> Promise {
        Promise {
            used: stored,
            stored,
        }
    }

    /// The highest epoch that it may have proposed or granted.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// It proposes or grants this epoch.
    pub fn raise<To>(&mut self, epoch: u64, out: &mut Outbox<To>) {
        self.used = self.used.max(epoch);
        if epoch > self.stored {
            self.store(out);
        }
    }

    /// While nothing waits: store ahead.
    pub fn prepare<To>(&mut self, out: &mut Outbox<To>) {
        if out.is_empty() && self.stored - self.used < AHEAD / 2 {
            self.store(out);
        }
    }

    fn store<To>(&mut self, out: &mut Outbox<To>) {
        self.stored = self.used + AHEAD;
        out.promise = Some(self.stored);
    }
}

/// How many servers of so many are a majority.
pub fn majority(servers: u8) -> u32 {
    u32::from(servers) / 2 + 1
}

/// A set of servers, by node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nodes(u8);

impl Nodes {
    /// Add one. Ids that no server has are left out.
    pub fn add(&mut self, node: u16) {
        if (1..=u16::from(SERVERS_MAX)).contains(&node) {
            self.0 |= 1 << (node - 1);
        }
    }

    /// Is it in the set?
    pub fn has(self, node: u8) -> bool {
        self.0 >> (node - 1) & 1 == 1
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// What a state machine wants to be sent. A packet is not signed yet.
#[derive(Debug)]
pub struct Outbox<To> {
    packets: Vec<(To, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    /// To be stored durably before any of the packets leaves.
    pub promise: Option<u64>,
}

/// Buffers kept for the next packets.
const SPARE_MAX: usize = 1024;

impl<To> Default for Outbox<To> {
    fn default() -> Outbox<To> {
        Outbox {
            packets: Vec::new(),
            spare: Vec::new(),
            promise: None,
        }
    }
}

impl<To> Outbox<To> {
    /// A packet to somebody: an empty buffer to be filled.
    pub fn packet(&mut self, to: To) -> &mut Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        self.packets.push((to, buffer));
        &mut self.packets.last_mut().expect("just pushed").1
    }

    /// Take every packet, in order.
    pub fn drain(&mut self, mut send: impl FnMut(&To, &mut [u8])) {
        for (to, mut packet) in self.packets.drain(..) {
            send(&to, &mut packet);
            if self.spare.len() < SPARE_MAX {
                self.spare.push(packet);
            }
        }
    }

    /// Is there nothing to send?
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_stored_before() {
        let mut out = Outbox::<()>::default();
        let mut promise = Promise::new(100);
        promise.prepare(&mut out);
        assert_eq!(out.promise.take(), Some(100 + AHEAD));
        promise.raise(100 + AHEAD, &mut out);
        assert_eq!(out.promise.take(), None);
        promise.raise(101 + AHEAD, &mut out);
        assert_eq!(out.promise, Some(101 + 2 * AHEAD));
        assert_eq!(Promise::new(101 + 2 * AHEAD).used(), 101 + 2 * AHEAD);
        out.packet(());
        promise = Promise::new(5);
        out.promise = None;
        promise.prepare(&mut out);
        assert_eq!(out.promise, None, "a packet waits");
    }

    #[test]
    fn an_epoch_says_who_proposed_it_and_there_is_an_end() {
        assert_eq!(next(0, 16), Some(48));
        assert_eq!(next(48, 3), Some(67));
        assert_eq!((owner(67), is_switch(67), is_switch(48)), (3, false, true));
        assert_eq!(next(EPOCHS - 1, 16), None);
        assert_eq!((majority(3), majority(5), majority(4)), (2, 3, 3));
        let mut nodes = Nodes::default();
        [0, 1, 3, 3, 9].into_iter().for_each(|node| nodes.add(node));
        assert_eq!(
            (nodes.count(), nodes.has(3), nodes.has(2)),
            (2, true, false)
        );
    }
}
