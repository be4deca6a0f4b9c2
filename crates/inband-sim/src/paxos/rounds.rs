//! Checks the rounds that hosts use: those of one owner, which is one process, must increase from epoch to epoch
//! (protocol.md, 4).

use std::collections::BTreeMap;

use inband_paxos::dataplane::round;
use inband_paxos::dataplane::wire::{Header, Type};

use crate::paxos::invariant::{Broken, Invariant};
use crate::paxos::trace::round_name;

/// The rounds of one owner in one log.
#[derive(Debug, Default)]
struct Used {
    /// The latest epoch in which the owner used a round.
    epoch: u32,
    /// Its highest round in that epoch.
    highest: u64,
    /// Its highest round in all earlier epochs.
    highest_before: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Rounds(BTreeMap<(u16, u64), Used>);

impl Rounds {
    /// Checks a packet that a host sends. Only an owner's packets in its own rounds count.
    pub fn sent(&mut self, from: u8, header: &Header) -> Result<(), Broken> {
        let is_used = matches!(header.kind, Type::Phase1A | Type::Phase2A);
        if !is_used || round::owner(header.round) != from {
            return Ok(());
        }
        let key = (header.partition, round::process(header.round));
        let used = self.0.entry(key).or_default();
        if header.epoch > used.epoch {
            used.highest_before = used.highest_before.max(used.highest);
            used.epoch = header.epoch;
        }
        if header.epoch < used.epoch {
            return Ok(()); // a late packet of an earlier epoch
        }
        used.highest = used.highest.max(header.round);
        if header.round > used.highest_before {
            return Ok(());
        }
        Err(Invariant::RoundsUnique.broken(format!(
            "node {from} uses round {} in epoch {}, though it had come to {} before",
            round_name(header.round),
            header.epoch,
            round_name(used.highest_before)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_up_from_epoch_to_epoch() {
        let mut rounds = Rounds::default();
        let mut sent = |kind, epoch, counter, incarnation| {
            let mut header = Header::new(kind, 3, epoch);
            header.round = round::round(counter, incarnation, 3).expect("it fits");
            rounds.sent(3, &header).is_ok()
        };
        assert!(sent(Type::Phase1A, 1, 5, 1));
        assert!(
            sent(Type::Phase2A, 1, 4, 1),
            "a recovery's, of the same epoch"
        );
        assert!(sent(Type::Phase1A, 2, 6, 1));
        assert!(!sent(Type::Phase1A, 3, 6, 1));
        assert!(!sent(Type::Phase2A, 3, 5, 1));
        assert!(sent(Type::Phase2A, 2, 6, 1), "late");
        assert!(sent(Type::Phase2B, 3, 6, 1), "what acceptors say");
        assert!(sent(Type::Phase1A, 3, 1, 2), "another process");
    }
}
