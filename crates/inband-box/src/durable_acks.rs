//! Acknowledgements of a log on disk: sent by the process once a record is synced, not by the role.

use crate::node::{Node, Out, State, To};
use crate::role::{Role, View};
use crate::wire::{flag, Header, Type};

/// An answer that the leader is waiting for, until records are on disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    has_gap: bool,
    /// 0: none was asked for.
    round: u64,
}

impl Node {
    /// Tells the node that the host puts the log on disk: the host calls [`Node::on_durable`] before it applies new
    /// records and before it sleeps. From now on the process acknowledges records.
    pub fn keep_log(&mut self, durable: u64, role: &impl Role) {
        role.set_acks_by_process(true);
        self.durable = Some(durable);
        self.stored.has_log = !self.recovering;
    }

    /// Records that the log of the current epoch is on disk up to here, and acknowledges it.
    pub fn on_durable(&mut self, durable: u64, role: &impl Role, out: &mut Out) {
        self.durable = Some(durable);
        let owed = self.owed.take();
        if matches!(self.state, State::Leading(_)) {
            if role.ack_own(durable) {
                let now = role.view();
                let header = Header {
                    node: self.config.node.into(),
                    epoch: now.epoch,
                    zxid: now.last,
                    committed: now.committed,
                    leader: self.config.node.into(),
                    ..Header::of(Type::Commit)
                };
                out.packet(To::Others, &header, &[]);
            }
            return;
        }
        let Some(owed) = owed.filter(|_| matches!(self.state, State::Following { .. })) else {
            return;
        };
        let now = role.view();
        let mut flags = 0;
        for (is_set, bit) in [
            (owed.has_gap, flag::GAP),
            (owed.round > 0, flag::ROUND),
            (self.recovering, flag::RECOVERING),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        let header = Header {
            node: self.config.node.into(),
            flags,
            epoch: now.epoch,
            zxid: durable.min(now.matched),
            committed: now.committed,
            round: owed.round,
            leader: self.hint.into(),
            ..Header::of(Type::Ack)
        };
        out.packet(To::Node(self.hint), &header, &[]);
    }

    /// Handles a packet of our leader that the role passes on: it is answered once its records are on disk.
    pub(crate) fn owe(&mut self, header: &Header, role: &impl Role) {
        let matched = role.view().matched;
        let owed = self.owed.get_or_insert_default();
        if header.kind == Type::Propose {
            owed.has_gap |= header.zxid > matched;
        } else {
            owed.has_gap |= header.committed > matched;
            if header.flags & flag::ROUND != 0 {
                owed.round = owed.round.max(header.round);
            }
        }
    }

    /// Handles the beginning of an epoch in which we follow: what is on disk beyond the part that matches belongs to another
    /// log, and the leader's records that replace it are not on disk yet.
    pub(crate) fn forget_unmatched(&mut self, role: &impl Role) {
        let matched = role.view().matched;
        self.durable = self.durable.map(|durable| durable.min(matched));
    }

    /// Returns how much of the log that matches the leader's counts.
    pub(crate) fn matched(&self, registers: &View) -> u64 {
        registers.matched.min(self.durable.unwrap_or(u64::MAX))
    }
}
