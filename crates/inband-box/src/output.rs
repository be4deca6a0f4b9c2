//! What a node asks of its host.

use crate::promise::Stored;
use crate::snapshot::Snapshot;
use crate::wire::{self, Header};

/// Recipient of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Node(u8),
    /// All nodes but this one.
    Others,
}

/// What the host must do.
#[derive(Debug, Default)]
pub struct Out {
    /// To be stored durably before anything else.
    pub store: Option<Stored>,
    /// Packets to send, in order. They are not signed yet.
    pub packets: Vec<(To, Vec<u8>)>,
    /// Reads that may be answered once all records up to the index are applied: token, index.
    pub reads: Vec<(u64, u64)>,
    /// Make a snapshot of the machine, from now or later on, and call [`Node::on_snapshot`]. A snapshot in progress is
    /// discarded.
    pub takes_snapshot: bool,
    /// Unless more is applied already, restore the machine from this snapshot and call [`Role::install`].
    pub snapshot: Option<Snapshot>,
    /// The node misses records that the others no longer have: restart it without log and table, as a recovering node.
    pub begins_again: bool,
    /// The node is no longer a member, and never will be again.
    pub is_removed: bool,
    /// The node has lost its directory, and with it what it has promised: it must end.
    pub is_lost: bool,
}

impl Out {
    pub(crate) fn packet(&mut self, to: To, header: &Header, value: &[u8]) {
        self.packets.push((to, wire::emit(header, value)));
    }
}
