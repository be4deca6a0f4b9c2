//! The one log on which all nodes must agree, recorded as they apply it.

use std::collections::BTreeMap;

use inband_box::membership::Membership;
use inband_box::registers::ORIGIN_ROLE;
use inband_box::role::Record;

use super::Invariant;
use crate::{Broken, Time};

/// A session of a gateway: its node and number.
pub(super) type Session = (u8, u64);

struct Entry {
    record: Record,
    is_executed: bool,
    state: u64,
    /// When the first node applied it.
    applied_at: Time,
}

#[derive(Default)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
    submitted: BTreeMap<(Session, u64), Vec<u8>>,
    /// How often each value was submitted: a datagram that arrives twice is.
    copies: BTreeMap<Vec<u8>, u64>,
    executed: BTreeMap<Vec<u8>, u64>,
    last_of: BTreeMap<Session, u64>,
    /// What records say of who takes part, by zxid.
    memberships: BTreeMap<u64, Membership>,
}

fn broken(invariant: Invariant, what: String) -> Result<(), Broken<Invariant>> {
    Err(Broken { invariant, what })
}

impl Ledger {
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns the number of executed records.
    pub fn executed(&self) -> u64 {
        self.executed.values().sum()
    }

    /// What the last record says that says who takes part.
    pub fn membership(&self) -> Option<Membership> {
        self.memberships.values().next_back().copied()
    }

    /// What the last record before this one says.
    pub fn membership_before(&self, zxid: u64) -> Option<Membership> {
        let before = self.memberships.range(..zxid).next_back();
        before.map(|(_, membership)| *membership)
    }

    pub fn submit(&mut self, session: Session, seq: u64, value: Vec<u8>) {
        *self.copies.entry(value.clone()).or_default() += 1;
        self.submitted.insert((session, seq), value);
    }

    /// Returns a record, and whether it was executed.
    pub fn entry(&self, zxid: u64) -> (&Record, bool) {
        let entry = &self.entries[zxid as usize - 1];
        (&entry.record, entry.is_executed)
    }

    /// Returns when the first node applied a record.
    pub fn applied_at(&self, zxid: u64) -> Time {
        self.entries[zxid as usize - 1].applied_at
    }

    /// A node has installed a snapshot with this state.
    pub fn install(&mut self, node: u8, zxid: u64, state: u64) -> Result<(), Broken<Invariant>> {
        let entry = self.entries.get(zxid as usize - 1);
        if entry.is_none_or(|entry| entry.state != state) {
            let what = format!("node {node} has another state after the snapshot {zxid}");
            return broken(Invariant::Agreement, what);
        }
        Ok(())
    }

    /// A node applies a record, which leads to this state.
    pub fn apply(
        &mut self,
        node: u8,
        record: &Record,
        is_executed: bool,
        state: u64,
        now: Time,
    ) -> Result<(), Broken<Invariant>> {
        let zxid = record.zxid;
        if let Some(entry) = self.entries.get(zxid as usize - 1) {
            if entry.record != *record {
                let what = format!("node {node} applies {record:?}, not {:?}", entry.record);
                return broken(Invariant::TotalOrder, what);
            }
            if (entry.is_executed, entry.state) != (is_executed, state) {
                let what = format!("node {node} has another state after {zxid}");
                return broken(Invariant::Agreement, what);
            }
            return Ok(());
        }
        if zxid != self.len() + 1 {
            let what = format!("node {node} applies {zxid} after {}", self.len());
            return broken(Invariant::TotalOrder, what);
        }
        let before = self.entries.last().map_or(0, |entry| entry.record.epoch);
        if record.epoch < before {
            let what = format!("{zxid} is of epoch {}, after {before}", record.epoch);
            return broken(Invariant::PrimaryOrder, what);
        }
        let entry = Entry {
            record: record.clone(),
            is_executed,
            state,
            applied_at: now,
        };
        self.entries.push(entry);
        if let Some(membership) = Membership::of(record) {
            let before = self.membership().unwrap_or(membership);
            let changed = (before.members ^ membership.members).count_ones();
            if changed > 1 || membership.next < before.next {
                let what = format!("{membership:?} follows {before:?} at {zxid}");
                return broken(Invariant::OneChange, what);
            }
            self.memberships.insert(zxid, membership);
        }
        if record.origin == 0 {
            return Ok(());
        }
        let session = (record.origin, record.origin_session);
        let submitted = self.submitted.get(&(session, record.origin_seq));
        if submitted != Some(&record.value) {
            let what = format!("nobody submitted {record:?}");
            return broken(Invariant::Integrity, what);
        }
        if !is_executed {
            // In an epoch, a role's records are in the log in their order, and none is missing.
            return match record.origin {
                ORIGIN_ROLE => broken(Invariant::Sets, format!("{record:?} is not executed")),
                _ => Ok(()),
            };
        }
        let times = self.executed.entry(record.value.clone()).or_default();
        *times += 1;
        if *times > self.copies[&record.value] {
            let what = format!("{record:?} was executed before");
            return broken(Invariant::Integrity, what);
        }
        let last = self.last_of.entry(session).or_default();
        if record.origin_seq != *last + 1 {
            let what = format!("{record:?} is executed after {last}");
            return broken(Invariant::PrimaryOrder, what);
        }
        *last += 1;
        Ok(())
    }
}
