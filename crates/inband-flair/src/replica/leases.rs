//! Leases for followers: any replica that has a lease of a key's group answers reads of it, and a write is
//! acknowledged only when every replica that may have one holds its entry.
//!
//! An entry takes the lease of its group away from the replica that gets it; a *grant* of the leader gives it back. A
//! grant says up to which entry every holder has the log, and how long it lasts. Until then the leader itself does not
//! answer reads of the group either: another replica may still answer with the value before.

use std::collections::VecDeque;

use crate::dataplane::wire::{self, Header};
use inband_raft::RaftMessage;
use serde::{Deserialize, Serialize};

use super::answer::HeldReply;
use super::{Message, Out, Replica};
use crate::digests::Digests;
use crate::entry::{Entry, Op};
use crate::limits::{AHEAD_ENTRIES_MAX, REPLICAS_MAX, WAITING_READS_MAX};
use crate::timing::{with_drift, Nanos};

/// Leases of all groups whose last entry in the receiver's log is at or before `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Of whose leader it is.
    pub term: u64,
    /// All who may hold leases have the log up to here, and it is committed.
    pub index: u64,
    /// By the receiver's clock, from a time that it told itself.
    pub until: Nanos,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Of each group, the last entry in this log that may have written it.
    written: Vec<u64>,
    /// What the leader has granted to this replica.
    grant: Option<Grant>,
    leading: Leading,
}

/// What a leader keeps.
#[derive(Debug, Default)]
struct Leading {
    term: u64,
    /// All who may hold leases have the log up to here; never falls.
    safe: u64,
    /// What is granted was said with this one.
    granted: u64,
    /// The last time that each replica told, by its own clock, and when it came. Those that are new are marked.
    told: [Option<(Nanos, Nanos)>; REPLICAS_MAX],
    is_new: [bool; REPLICAS_MAX],
    /// What was applied here when it told its time last. One that lacks it when it tells it again keeps no pace, and is
    /// granted nothing: if entries do not get through to it, writes would wait for it forever.
    expected: [u64; REPLICAS_MAX],
    keeps_pace: [bool; REPLICAS_MAX],
    /// The log that each said it has. When that changes, what one log has says nothing of the other, until all that
    /// was granted is over.
    log: [Option<u64>; REPLICAS_MAX],
    other_log_until: [Nanos; REPLICAS_MAX],
    /// By this clock: until then it may have a lease.
    may_hold_until: [Nanos; REPLICAS_MAX],
    /// Replies to writes that are applied here, in the order of their indexes.
    writes: VecDeque<(u64, u8, Header)>,
    /// Replies to reads that saw the write of this index.
    reads: Vec<(u64, HeldReply)>,
}

impl Leases {
    /// Of a log that ends here: what any of its entries writes is not known.
    pub fn new(groups: usize, last_index: u64) -> Leases {
        Leases {
            written: vec![last_index; groups],
            ..Leases::default()
        }
    }

    /// Of a key, whether its hash is as reads have it, or writes (`Reads::key_hash`): they differ in the highest bit.
    fn group(&self, key_hash: u64) -> usize {
        wire::group_of(key_hash << 1, self.written.len())
    }

    fn mark(&mut self, index: u64, key_hash: u64) {
        let group = self.group(key_hash);
        self.written[group] = self.written[group].max(index);
    }

    /// A message may be late: what came after its entries stays marked.
    fn mark_all(&mut self, index: u64) {
        let all = self.written.iter_mut();
        all.for_each(|written| *written = (*written).max(index));
    }

    /// Before a message's entries get into the log, they take leases away.
    pub fn revoke(&mut self, message: &RaftMessage, digests: &Digests) {
        if let Some(index) = message.snapshot_index() {
            self.mark_all(index);
        }
        for (index, command) in message.commands() {
            let entry = postcard::from_bytes::<Entry<'_>>(command);
            match entry.map(|entry| entry.op) {
                Ok(Op::Put { key, .. } | Op::Delete { key }) => {
                    self.mark(index, digests.of_key(key));
                }
                Ok(Op::Open | Op::Session { .. }) => {}
                Err(_) => self.mark_all(index),
            }
        }
    }

    /// This replica does not lead any more. What it has proposed and not applied may still be decided.
    pub fn deposed(&mut self, last_index: u64) {
        self.mark_all(last_index);
        self.leading = Leading::default();
    }

    /// A replica has told its time, and which log it has.
    pub fn told(&mut self, replica: u8, raft_id: u64, time: Nanos, now: Nanos) {
        let (at, leading) = (usize::from(replica), &mut self.leading);
        if leading.log[at]
            .replace(raft_id)
            .is_some_and(|log| log != raft_id)
        {
            leading.other_log_until[at] = leading.may_hold_until[at];
        }
        leading.told[at] = Some((time, now));
        leading.is_new[at] = true;
    }

    /// Does this replica, at `applied`, have a lease of the key's group, granted in the term of the session?
    fn may_read(&self, now: Nanos, request: &Header, applied: u64) -> bool {
        self.grant.is_some_and(|grant| {
            grant.term == u64::from(request.term)
                && now < grant.until
                && applied >= grant.index
                && self.written[self.group(request.key_hash)] <= grant.index
        })
    }
}

impl Leading {
    /// Raise `safe` to what all who may hold leases have.
    fn look_at(&mut self, now: Nanos, applied: u64, matched: &[u64; REPLICAS_MAX]) {
        let holders = (0..REPLICAS_MAX).filter(|replica| now < self.may_hold_until[*replica]);
        let held = holders.map(|replica| match now < self.other_log_until[replica] {
            true => 0,
            false => matched[replica],
        });
        let held = held.min();
        let held = held.unwrap_or(applied).min(applied);
        self.safe = self.safe.max(held);
    }

    /// To whom leases are to be granted now, and until when by their clocks.
    fn grants_due(
        &mut self,
        now: Nanos,
        applied: u64,
        matched: &[u64; REPLICAS_MAX],
        own: usize,
        lease_ns: Nanos,
    ) -> Vec<(u8, Nanos)> {
        let is_grown = self.granted < self.safe;
        self.granted = self.safe;
        let mut grants = Vec::new();
        for replica in (0..REPLICAS_MAX).filter(|replica| *replica != own) {
            let is_new = std::mem::take(&mut self.is_new[replica]);
            if is_new {
                self.keeps_pace[replica] = matched[replica] >= self.expected[replica];
                self.expected[replica] = applied;
            }
            let is_near = self.keeps_pace[replica]
                && matched[replica] > 0
                && matched[replica] + AHEAD_ENTRIES_MAX >= self.safe
                && now >= self.other_log_until[replica];
            let Some((time, heard_at)) = self.told[replica].filter(|_| is_near) else {
                continue; // every write would wait for one that is far behind
            };
            if !is_grown && !is_new {
                continue;
            }
            let until = &mut self.may_hold_until[replica];
            *until = (*until).max(heard_at + with_drift(lease_ns));
            grants.push((replica as u8, time + lease_ns));
        }
        grants
    }
}

impl Replica {
    /// A read that was sent to this follower: does it have a lease?
    pub(super) fn has_lease(&self, now: Nanos, request: &Header) -> bool {
        self.leases.may_read(now, request, self.raft.applied())
    }

    /// The leader's grant is its word, too, that all up to there is committed.
    pub(super) fn on_grant(&mut self, grant: Grant) {
        self.raft.commit_to(grant.index, grant.term);
        let last = self.leases.grant.map(|last| (last.term, last.index));
        if last.is_none_or(|last| last <= (grant.term, grant.index)) {
            self.leases.grant = Some(grant);
        }
    }

    /// A read has come to the leader: its reply waits for the group's last write, if there is one that others may not have.
    /// What it says is read now: by then there may be later writes, which others may not have.
    pub(super) fn read_with_leases(
        &mut self,
        switch: u8,
        request: &Header,
        key: &[u8],
        out: &mut Out,
    ) {
        let written = self.leases.written[self.leases.group(request.key_hash)];
        let is_safe = written <= self.leases.leading.safe;
        if !is_safe && self.leases.leading.reads.len() >= WAITING_READS_MAX {
            return;
        }
        self.counters.reads_leader += 1;
        if is_safe {
            return self.answer_read(switch, request, key, out);
        }
        let (header, data) = self.read_reply(request, key);
        let (key, data) = (key.into(), data.into());
        let held = HeldReply {
            switch,
            header,
            key,
            data,
        };
        self.leases.leading.reads.push((written, held));
    }

    /// A write is applied here; its reply waits for all who may have leases.
    pub(super) fn reply_with_leases(&mut self, index: u64, switch: u8, reply: Header) {
        self.leases.mark(index, reply.key_hash);
        self.leases.leading.writes.push_back((index, switch, reply));
    }

    /// Answer what has waited long enough, and grant leases anew. While this replica leads.
    pub(super) fn renew_leases(&mut self, now: Nanos, out: &mut Out) {
        let Some(term) = self.lflair.term() else {
            return;
        };
        let applied = self.raft.applied();
        if self.leases.leading.term != term {
            self.begin_leases(term, applied);
        }
        let matched = self.look_at_peers(now).matched;
        let leading = &mut self.leases.leading;
        leading.look_at(now, applied, &matched);
        let safe = leading.safe;
        while leading.writes.front().is_some_and(|w| w.0 <= safe) {
            let Some((_, switch, reply)) = leading.writes.pop_front() else {
                break;
            };
            out.packets.push(switch, &reply, &[], &[]);
        }
        let waiting = std::mem::take(&mut leading.reads).into_iter();
        let (ready, waiting): (Vec<_>, _) = waiting.partition(|(written, _)| *written <= safe);
        leading.reads = waiting;
        for (_, held) in ready {
            out.packets
                .push(held.switch, &held.header, &held.key, &held.data);
        }
        let own = usize::from(self.config.replica);
        let lease_ns = self.config.timing.lease_ns;
        for (replica, until) in leading.grants_due(now, applied, &matched, own, lease_ns) {
            let grant = Grant {
                term,
                index: safe,
                until,
            };
            out.messages.push((replica, Message::Grant(grant)));
        }
    }

    /// It leads in a new term: what was granted before is for sessions that have ended, whose replies switches drop.
    /// What it has applied, others may not have; nobody has been told that they may answer.
    fn begin_leases(&mut self, term: u64, applied: u64) {
        self.leases.written.fill(applied);
        self.leases.leading = Leading {
            term,
            ..Leading::default()
        };
    }
}
