//! Models of the protocol, checked exhaustively within small bounds, and variants of them with a rule left out, which
//! must be refuted. See README.md.

pub mod catalogue;
pub mod check;
pub mod cross_partition;
pub mod cross_partition_reads;
pub mod falcon_queue;
pub mod leader_change;
pub mod memory;
pub mod netpaxos;
pub mod read_routing;
pub mod reconfiguration;
pub mod spin;
pub mod zab;

/// Whether this bitmap has more than half of the members.
fn majority(members: u8, of: usize) -> bool {
    members.count_ones() as usize * 2 > of
}
