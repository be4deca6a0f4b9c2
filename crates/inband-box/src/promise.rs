//! Epochs, and what a node stores durably.

use crate::node::IDS;
use crate::PROPOSERS;

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;
pub const MS: Nanos = 1_000_000;

/// A node refuses epochs that exceed all it knows by more than this: no cluster elects so often while a node is away.
pub const EPOCH_AHEAD_MAX: u64 = crate::c::IB_BOX_EPOCH_AHEAD_MAX as u64;
/// A recovering node knows no epochs, and refuses those from here on.
pub const EPOCH_END: u64 = 1 << 62;

/// Returns the lowest epoch of a node above another epoch.
pub fn next(above: u64, node: u8) -> u64 {
    (above / PROPOSERS)
        .saturating_add(1)
        .saturating_mul(PROPOSERS)
        + u64::from(node)
}

/// Returns how many of a number of nodes are a majority.
pub fn majority(nodes: u8) -> usize {
    usize::from(nodes) / 2 + 1
}

/// By node id: what the nodes that began together had as [`Stored::new_id`] then; 0: it is no such node, or not known.
pub type Founders = [u64; IDS];

/// What survives the loss of a node's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// The highest epoch that the node has proposed or promised. It is stored exactly, not ahead: a recovering node
    /// joins no leader of a lower epoch, and would have to depose every leader to be able to join.
    pub promise: u64,
    /// The number of the node's last start. If a number were used twice, a late packet of the earlier start could be
    /// executed once more.
    pub session: u64,
    /// The log is on disk, and has everything that the node ever acknowledged.
    pub has_log: bool,
    /// Drawn when the directory was new; 0 once the node has its place in a cluster. Until then it has acknowledged
    /// nothing.
    pub new_id: u64,
    pub founders: Founders,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_a_node_follow_each_other() {
        assert_eq!((next(0, 1), next(33, 1), next(33, 7)), (33, 65, 71));
        assert_eq!(
            (majority(3), majority(4), majority(5), majority(7)),
            (2, 3, 3, 4)
        );
    }
}
