//! Epochs: which node may propose which, and the packets and promises of a host's state machine.

use crate::c;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
pub const MS: Nanos = 1_000_000;

const PROPOSERS: u64 = c::IB_MEMORY_PROPOSERS as u64;
/// The highest node id of a server; the lowest is 1.
pub const SERVERS_MAX: u8 = c::IB_MEMORY_SERVERS_MAX as u8;
/// The first node id of a switch.
pub const SWITCH_FIRST: u8 = c::IB_MEMORY_SWITCH_FIRST as u8;
/// The last node id of a switch.
pub const SWITCH_LAST: u8 = c::IB_MEMORY_SWITCH_LAST as u8;

pub const EPOCHS: u64 = 1 << c::IB_MEMORY_EPOCH_BITS;
/// How many epochs a replaced server skips: its promise is lost, and nothing it may have promised is above this.
pub const REPLACE_SKIPS: u64 = 1024 * PROPOSERS;
/// An epoch that is higher than a known one by more than this is taken only from a server's answer to a question of
/// this process, which others cannot give: one packet must not use up the epochs.
pub const EPOCH_AHEAD_MAX: u64 = c::IB_MEMORY_EPOCH_AHEAD_MAX as u64;
/// Minimum time between two questions for the servers' epochs.
pub const ASK_AGAIN_NS: Nanos = 10 * MS;

/// Returns the node that owns an epoch, and alone may propose it.
pub fn owner(epoch: u64) -> u8 {
    (epoch % PROPOSERS) as u8
}

/// Returns whether an epoch belongs to a switch.
pub fn is_switch(epoch: u64) -> bool {
    owner(epoch) >= SWITCH_FIRST
}

/// Returns the lowest epoch of a node above another epoch, or `None` if none is left.
pub fn next(above: u64, node: u8) -> Option<u64> {
    let epoch = (above / PROPOSERS + 1) * PROPOSERS + u64::from(node);
    (epoch < EPOCHS).then_some(epoch)
}

/// Returns whether an epoch is so far above a known one that a packet alone is no evidence of it.
pub fn is_ahead(epoch: u64, known: u64) -> bool {
    epoch > known + EPOCH_AHEAD_MAX
}

/// Returns the epoch with which a node asks servers for theirs: no node proposes it, so a server that has one refuses
/// it and states its own.
pub fn question(node: u8) -> u64 {
    u64::from(node)
}

/// Returns the epoch of the same node that a server must grant next on the way to one that is too far above what it
/// knows; `None` if it is not too far.
pub fn step(towards: u64, known: u64) -> Option<u64> {
    let highest = (known + EPOCH_AHEAD_MAX) / PROPOSERS - 1;
    is_ahead(towards, known).then(|| highest * PROPOSERS + u64::from(owner(towards)))
}

/// A promise is stored this far ahead, so that most epochs need not wait for a disk.
pub const AHEAD: u64 = 8 * PROPOSERS;

/// The epochs that a node has proposed or granted. They never exceed the stored promise, and after a restart only
/// higher ones are used.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    used: u64,
    stored: u64,
}

impl Promise {
    /// Creates the promise at start-up. `stored`: the last stored value, 0 if there is none.
    pub fn new(stored: u64) -> Promise {
        Promise {
            used: stored,
            stored,
        }
    }

    /// Returns the highest epoch that may have been proposed or granted.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Records that the node proposes or grants this epoch.
    pub fn raise<To>(&mut self, epoch: u64, out: &mut Outbox<To>) {
        self.used = self.used.max(epoch);
        if epoch > self.stored {
            self.store(out);
        }
    }

    /// Stores a promise ahead, while nothing is waiting for it.
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

/// Returns how many of a number of servers are a majority.
pub fn majority(servers: u8) -> u32 {
    u32::from(servers) / 2 + 1
}

/// A set of servers, by node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Nodes(u8);

impl Nodes {
    /// Adds a node. Ids that no server can have are ignored.
    pub fn add(&mut self, node: u16) {
        if (1..=u16::from(SERVERS_MAX)).contains(&node) {
            self.0 |= 1 << (node - 1);
        }
    }

    /// Returns whether a node is in the set.
    pub fn has(self, node: u8) -> bool {
        self.0 >> (node - 1) & 1 == 1
    }

    /// Returns the number of nodes in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// Packets that a state machine wants sent. They are not signed yet.
#[derive(Debug)]
pub struct Outbox<To> {
    packets: Vec<(To, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    /// Must be stored durably before any of the packets leaves.
    pub promise: Option<u64>,
}

/// Maximum number of buffers kept for reuse.
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
    /// Adds a packet to `to` and returns its empty buffer for the caller to fill.
    pub fn packet(&mut self, to: To) -> &mut Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        self.packets.push((to, buffer));
        &mut self.packets.last_mut().expect("just pushed").1
    }

    /// Takes all packets, in order.
    pub fn drain(&mut self, mut send: impl FnMut(&To, &mut [u8])) {
        for (to, mut packet) in self.packets.drain(..) {
            send(&to, &mut packet);
            if self.spare.len() < SPARE_MAX {
                self.spare.push(packet);
            }
        }
    }

    /// Returns whether there is nothing to send.
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
    fn what_is_too_far_ahead_is_reached_in_steps() {
        assert_eq!(step(EPOCH_AHEAD_MAX, 0), None);
        let far = next(EPOCHS - 100, 16).unwrap();
        let (mut known, mut steps) = (0, 0);
        while let Some(epoch) = step(far, known) {
            assert!(known < epoch && epoch < far && !is_ahead(epoch, known));
            assert_eq!(owner(epoch), 16);
            (known, steps) = (epoch, steps + 1);
        }
        assert!(steps <= EPOCHS / EPOCH_AHEAD_MAX + 4, "{steps}");
        // A packet to a server that is then lost does not raise it above its replacement's epoch.
        const { assert!(EPOCH_AHEAD_MAX + AHEAD < REPLACE_SKIPS) };
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
