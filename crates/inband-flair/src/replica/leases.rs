//! Follower leases: any replica that has a lease on a key's group answers reads of it. A write is acknowledged only
//! when every replica that may have such a lease holds its entry.
//!
//! A log entry revokes the lease on its group at the replica that receives it; a *grant* from the leader renews it. A
//! grant says up to which entry every lease holder has the log, and how long it is valid. Until all holders have an
//! entry, the leader does not answer reads of its group either: another replica may still return the previous value.

use std::collections::VecDeque;

use crate::dataplane::wire::{self, Header};
use inband_raft::RaftMessage;
use serde::{Deserialize, Serialize};

use super::answer::HeldReply;
use super::{Announcement, Message, Out, Replica};
use crate::digests::Digests;
use crate::entry::{Entry, Op};
use crate::limits::{AHEAD_ENTRIES_MAX, REPLICAS_MAX, WAITING_READS_MAX};
use crate::timing::{with_drift, Nanos};

/// Leases on all groups whose last entry in the receiver's log is at or before `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The term of the leader that granted it.
    pub term: u64,
    /// All replicas that may hold leases have the log up to here, and it is committed.
    pub index: u64,
    /// The process of the receiver whose clock it is; another one's may have begun anew.
    pub start: u64,
    /// By the receiver's clock, computed from a time that the receiver sent.
    pub until: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// For each group, the last entry in this log that may have written it.
    written: Vec<u64>,
    /// The last grant from the leader.
    grant: Option<Grant>,
    leading: Leading,
}

/// The state of a leader.
#[derive(Debug, Default)]
struct Leading {
    term: u64,
    /// All replicas that may hold leases have the log up to here. Never decreases.
    safe: u64,
    /// The value of `safe` in the last grants.
    granted: u64,
    /// For each replica, the last time it sent. `is_new` marks unused ones.
    told: [Option<Told>; REPLICAS_MAX],
    is_new: [bool; REPLICAS_MAX],
    /// What was applied here when the replica last sent its time. A replica that still lacks it at its next message
    /// does not keep up and gets no grants: if entries do not reach it, writes would wait for it forever.
    expected: [u64; REPLICAS_MAX],
    keeps_pace: [bool; REPLICAS_MAX],
    /// The log that each replica has. When a replica starts a new log, its match index says nothing about the old one,
    /// until all leases granted to the old one have expired.
    log: [Option<u64>; REPLICAS_MAX],
    other_log_until: [Nanos; REPLICAS_MAX],
    /// By this host's clock: until then, the replica may have a lease.
    may_hold_until: [Nanos; REPLICAS_MAX],
    /// Replies to writes that are applied here, in index order.
    writes: VecDeque<(u64, u8, Header)>,
    /// Replies to reads that saw the write with this index.
    reads: Vec<(u64, HeldReply)>,
}

/// A time that a replica sent.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// The process that sent it.
    start: u64,
    /// By the sender's clock.
    time: Nanos,
    /// When it arrived, by the own clock.
    heard_at: Nanos,
}

impl Leases {
    /// Returns the state for a log that ends at `last_index`. It is not known which groups its entries write.
    pub fn new(groups: usize, last_index: u64) -> Leases {
        Leases {
            written: vec![last_index; groups],
            ..Leases::default()
        }
    }

    /// Returns the group of a key. Accepts the hash as in reads or as in writes (`Reads::key_hash`), which differ only
    /// in the highest bit.
    fn group(&self, key_hash: u64) -> usize {
        wire::group_of(key_hash << 1, self.written.len())
    }

    fn mark(&mut self, index: u64, key_hash: u64) {
        let group = self.group(key_hash);
        self.written[group] = self.written[group].max(index);
    }

    /// Marks every group. A message may be late, so higher marks stay.
    fn mark_all(&mut self, index: u64) {
        let all = self.written.iter_mut();
        all.for_each(|written| *written = (*written).max(index));
    }

    /// Revokes leases before the entries of this message enter the log.
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

    /// This replica no longer leads. Entries that it proposed and did not apply may still be committed.
    pub fn deposed(&mut self, last_index: u64) {
        self.mark_all(last_index);
        self.leading = Leading::default();
    }

    /// A replica has sent its time and the id of its log.
    pub fn told(&mut self, replica: u8, announcement: &Announcement, now: Nanos) {
        let (at, leading) = (usize::from(replica), &mut self.leading);
        let raft_id = announcement.raft_id;
        if leading.log[at]
            .replace(raft_id)
            .is_some_and(|log| log != raft_id)
        {
            leading.other_log_until[at] = leading.may_hold_until[at];
        }
        leading.told[at] = Some(Told {
            start: announcement.start,
            time: announcement.time,
            heard_at: now,
        });
        leading.is_new[at] = true;
    }

    /// Returns whether this replica, at `applied`, has a lease on the key's group, granted in the session's term.
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
    /// Raises `safe` to the index that all possible lease holders have.
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

    /// The replicas to grant leases to now, for which of their processes, and until when by that process's clock. A
    /// lease that was granted to an earlier process still counts: `may_hold_until` only grows.
    fn grants_due(
        &mut self,
        now: Nanos,
        applied: u64,
        matched: &[u64; REPLICAS_MAX],
        own: usize,
        lease_ns: Nanos,
    ) -> Vec<(u8, u64, Nanos)> {
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
            let Some(told) = self.told[replica].filter(|_| is_near) else {
                continue; // every write would wait for a replica that is far behind
            };
            let is_over = now >= told.heard_at + lease_ns;
            if is_over || (!is_grown && !is_new) {
                continue;
            }
            let until = &mut self.may_hold_until[replica];
            *until = (*until).max(told.heard_at + with_drift(lease_ns));
            grants.push((replica as u8, told.start, told.time + lease_ns));
        }
        grants
    }
}

impl Replica {
    /// Returns whether this follower has a lease for the read.
    pub(super) fn has_lease(&self, now: Nanos, request: &Header) -> bool {
        self.leases.may_read(now, request, self.raft.applied())
    }

    /// A grant also tells the follower that everything up to its index is committed. The time in it means something
    /// only to the process that sent that time, which lies in the past.
    pub(super) fn on_grant(&mut self, now: Nanos, grant: Grant) {
        self.raft.commit_to(grant.index, grant.term);
        if grant.start != self.start || grant.until > now + self.config.timing.lease_ns {
            return;
        }
        let last = self.leases.grant.map(|last| (last.term, last.index));
        if last.is_none_or(|last| last <= (grant.term, grant.index)) {
            self.leases.grant = Some(grant);
        }
    }

    /// Handles a read at the leader. The reply waits for the group's last write if other replicas may not have it. The
    /// value is read now, because later writes may be missing at other replicas as well.
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

    /// Holds the reply to a write applied here until all possible lease holders have it.
    pub(super) fn reply_with_leases(&mut self, index: u64, switch: u8, reply: Header) {
        self.leases.mark(index, reply.key_hash);
        self.leases.leading.writes.push_back((index, switch, reply));
    }

    /// Sends replies that have waited long enough and renews leases, while this replica leads.
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
        for (replica, start, until) in leading.grants_due(now, applied, &matched, own, lease_ns) {
            let grant = Grant {
                term,
                index: safe,
                start,
                until,
            };
            out.messages.push((replica, Message::Grant(grant)));
        }
    }

    /// Begins a new term. Earlier grants belong to sessions that have ended, whose replies switches drop. Entries
    /// applied here may be missing at other replicas, but none of these has a lease in this term yet.
    fn begin_leases(&mut self, term: u64, applied: u64) {
        self.leases.written.fill(applied);
        self.leases.leading = Leading {
            term,
            ..Leading::default()
        };
    }
}
