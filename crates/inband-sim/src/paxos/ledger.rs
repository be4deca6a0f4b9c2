//! What replicas and their clients saw: for each log one history that all replicas share, and the outcome of every
//! command.

use inband_ground::auth::Digest;
use std::collections::BTreeMap;
use std::ops::{AddAssign, RangeInclusive};

use inband_paxos::log::{Decided, ReadTicket, SubmitFailure, Ticket};
use inband_paxos::session::Verdict;
use inband_paxos::timing::Micros;

use crate::paxos::app::{command_id, decided_key};
use crate::paxos::invariant::{Broken, Invariant};

/// The effect of an instance, as recorded by the first replica to apply it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Applied {
    value: u64,
    state: u64,
}

/// The outcome of a command.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    /// Partition and instance.
    applied_in: Option<(usize, u64)>,
    certainly_not: bool,
}

/// A submission in flight.
#[derive(Debug, Clone, Copy)]
struct Submission {
    command: u64,
    deadline: Micros,
}

/// A read in flight.
#[derive(Debug, Clone, Copy)]
struct Read {
    /// The highest instance that clients knew of when the read began: its value was acknowledged, or seen by a read.
    must_see: u64,
    deadline: Micros,
}

/// Counts of how submissions and reads ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    /// Applied and acknowledged.
    pub success: u64,
    /// Outcome unknown.
    pub unknown: u64,
    /// Certainly never applied.
    pub not_applied: u64,
    /// In flight when the replica crashed, so their clients got no answer.
    pub lost_with_replica: u64,
    /// Reads that were answered.
    pub reads: u64,
    pub reads_failed: u64,
}

impl AddAssign for Ends {
    fn add_assign(&mut self, other: Ends) {
        self.success += other.success;
        self.unknown += other.unknown;
        self.not_applied += other.not_applied;
        self.lost_with_replica += other.lost_with_replica;
        self.reads += other.reads;
        self.reads_failed += other.reads_failed;
    }
}

fn submissions_of(node: u8) -> RangeInclusive<(u8, Ticket)> {
    (node, Ticket(0))..=(node, Ticket(u64::MAX))
}

fn reads_of(node: u8) -> RangeInclusive<(u8, ReadTicket)> {
    (node, ReadTicket(0))..=(node, ReadTicket(u64::MAX))
}

#[derive(Debug)]
pub struct Ledger {
    /// By log.
    histories: Vec<Vec<Applied>>,
    fates: Vec<Fate>,
    outstanding: BTreeMap<(u8, Ticket), Submission>,
    reads: BTreeMap<(u8, ReadTicket), Read>,
    /// By log: the highest instance whose effect any client knows of.
    known: Vec<u64>,
    pub ends: Ends,
}

impl Ledger {
    /// Creates an empty ledger for this many logs.
    pub fn new(partitions: usize) -> Ledger {
        Ledger {
            histories: vec![Vec::new(); partitions],
            fates: Vec::new(),
            outstanding: BTreeMap::new(),
            reads: BTreeMap::new(),
            known: vec![0; partitions],
            ends: Ends::default(),
        }
    }

    /// Registers a new command and returns its number.
    pub fn new_command(&mut self) -> u64 {
        self.fates.push(Fate::default());
        self.fates.len() as u64
    }

    fn fate(&mut self, command: u64) -> Result<&mut Fate, Broken> {
        let at = command.checked_sub(1).and_then(|c| usize::try_from(c).ok());
        at.and_then(|at| self.fates.get_mut(at)).ok_or_else(|| {
            Invariant::ExactlyOnce
                .broken(format!("command {command} was never submitted by anyone"))
        })
    }

    /// A replica accepted a command for submission.
    pub fn submitted(&mut self, node: u8, ticket: Ticket, command: u64, deadline: Micros) {
        let submission = Submission { command, deadline };
        self.outstanding.insert((node, ticket), submission);
    }

    /// A replica applied an instance. All replicas must have the same history, and each command is applied at most
    /// once.
    pub fn applied(
        &mut self,
        node: u8,
        partition: usize,
        decided: &Decided<'_>,
        verdict: Verdict,
        state: u64,
    ) -> Result<(), Broken> {
        let instance = decided.instance;
        let is_new = self.in_history(node, partition, decided, state)?;
        if !is_new || verdict != Verdict::Apply {
            return Ok(());
        }
        let Some(command) = command_id(decided.value) else {
            return Err(Invariant::ExactlyOnce.broken(format!(
                "replica {node} applied in {instance} what is no command"
            )));
        };
        let fate = self.fate(command)?;
        if let Some(first) = fate.applied_in {
            return Err(Invariant::ExactlyOnce.broken(format!(
                "command {command} was applied twice, in {first:?} and {instance} of {partition}"
            )));
        }
        if fate.certainly_not {
            return Err(Invariant::ExactlyOnce.broken(format!(
                "command {command} was applied in {instance} after its client was told it never would be"
            )));
        }
        fate.applied_in = Some((partition, instance));
        Ok(())
    }

    /// A replica is at this instance of a log, in this state; all replicas must have the same history. Returns whether
    /// it is the first one there.
    fn in_history(
        &mut self,
        node: u8,
        partition: usize,
        decided: &Decided<'_>,
        state: u64,
    ) -> Result<bool, Broken> {
        let history = &mut self.histories[partition];
        let instance = decided.instance;
        let value = decided_key(decided, Digest::PLAIN);
        let now = Applied { value, state };
        let at = instance as usize - 1;
        if let Some(before) = history.get(at) {
            if *before != now {
                return Err(Invariant::ReplicasEqual.broken(format!(
                    "replica {node} applied another value or state in {instance}: {now:x?} after {before:x?}"
                )));
            }
            return Ok(false);
        }
        if at != history.len() {
            return Err(Invariant::InOrder.broken(format!(
                "replica {node} applied {instance}, which leaves a gap in the history"
            )));
        }
        history.push(now);
        Ok(true)
    }

    /// A replica that has applied everything up to `applied` tells a client that its command succeeded. Returns the
    /// command's number.
    pub fn succeeded(&mut self, node: u8, ticket: Ticket, applied: u64) -> Result<u64, Broken> {
        let submission = self.take(node, ticket)?;
        self.ends.success += 1;
        match self.fate(submission.command)?.applied_in {
            Some((partition, instance))
                if partition == ticket.partition() && instance <= applied =>
            {
                self.known[partition] = self.known[partition].max(instance);
                Ok(submission.command)
            }
            other => Err(Invariant::NothingLost.broken(format!(
                "replica {node} at {applied} acknowledged command {}, applied in {other:?}",
                submission.command
            ))),
        }
    }

    /// Returns the number of commands so far.
    pub fn commands(&self) -> u64 {
        self.fates.len() as u64
    }

    /// A replica of the real store was delivered an instance: all must have the same history.
    pub fn delivered(
        &mut self,
        node: u8,
        partition: usize,
        decided: &Decided<'_>,
    ) -> Result<(), Broken> {
        self.in_history(node, partition, decided, 0).map(|_| ())
    }

    /// A replica of the real store tells a client that its command succeeded; whether that is true is checked
    /// elsewhere. Returns the command's number.
    pub fn finished(&mut self, node: u8, ticket: Ticket) -> Result<u64, Broken> {
        let submission = self.take(node, ticket)?;
        self.ends.success += 1;
        Ok(submission.command)
    }

    fn take(&mut self, node: u8, ticket: Ticket) -> Result<Submission, Broken> {
        self.outstanding.remove(&(node, ticket)).ok_or_else(|| {
            let what = format!("replica {node} ended {ticket:?} twice or never had it");
            Invariant::DeadlinesKept.broken(what)
        })
    }

    /// A submission failed. Returns the command's number.
    pub fn failed(&mut self, node: u8, ticket: Ticket, why: SubmitFailure) -> Result<u64, Broken> {
        let submission = self.take(node, ticket)?;
        let command = submission.command;
        match why {
            SubmitFailure::OutcomeUnknown(_) => self.ends.unknown += 1,
            SubmitFailure::NotApplied(_) => {
                self.ends.not_applied += 1;
                let fate = self.fate(command)?;
                fate.certainly_not = true;
                if let Some(place) = fate.applied_in {
                    return Err(Invariant::ExactlyOnce.broken(format!(
                        "replica {node} told that command {command} was not applied; it was, in {place:?}"
                    )));
                }
            }
        }
        Ok(command)
    }

    /// A client begins to read at a replica.
    pub fn read_begun(&mut self, node: u8, ticket: ReadTicket, deadline: Micros) {
        let must_see = self.known[ticket.partition()];
        let read = Read { must_see, deadline };
        self.reads.insert((node, ticket), read);
    }

    /// A replica that has applied everything up to `applied` answers a read whose index is `index`. Everything that
    /// clients knew of when the read began must be at or below that.
    pub fn read_answered(
        &mut self,
        node: u8,
        ticket: ReadTicket,
        index: u64,
        applied: u64,
    ) -> Result<(), Broken> {
        let read = self.reads.remove(&(node, ticket)).ok_or_else(|| {
            Invariant::DeadlinesKept.broken(format!(
                "replica {node} ended {ticket:?} twice or never had it"
            ))
        })?;
        if index > applied {
            return Err(Invariant::ReadsLinearizable.broken(format!(
                "replica {node} was told to answer a read of {index} at {applied}"
            )));
        }
        if index < read.must_see {
            return Err(Invariant::ReadsLinearizable.broken(format!(
                "replica {node} read at {index} and misses {}, of which a client knew before",
                read.must_see
            )));
        }
        self.ends.reads += 1;
        let known = &mut self.known[ticket.partition()];
        *known = (*known).max(applied);
        Ok(())
    }

    pub fn read_failed(&mut self, node: u8, ticket: ReadTicket) -> Result<(), Broken> {
        self.ends.reads_failed += 1;
        let had = self.reads.remove(&(node, ticket)).is_some();
        had.then_some(()).ok_or_else(|| {
            Invariant::DeadlinesKept.broken(format!(
                "replica {node} failed {ticket:?} twice or never had it"
            ))
        })
    }

    /// A replica crashed: its clients get no answers.
    pub fn crashed(&mut self, node: u8) {
        let before = self.outstanding.len();
        self.outstanding.retain(|(of, _), _| *of != node);
        self.ends.lost_with_replica += (before - self.outstanding.len()) as u64;
        self.reads.retain(|(of, _), _| *of != node);
    }

    /// The clock of a replica was stopped for `by_us`, so that everything in flight may end that much later.
    pub fn delay(&mut self, node: u8, by_us: Micros) {
        let of_node = |of: &u8| *of == node;
        let submissions = self.outstanding.iter_mut();
        for (_, submission) in submissions.filter(|((of, _), _)| of_node(of)) {
            submission.deadline += by_us;
        }
        for (_, read) in self.reads.iter_mut().filter(|((of, _), _)| of_node(of)) {
            read.deadline += by_us;
        }
    }

    /// Returns the number of submissions and reads in flight at a replica.
    pub fn outstanding(&self, node: u8) -> usize {
        let submissions = self.outstanding.range(submissions_of(node));
        submissions.count() + self.reads.range(reads_of(node)).count()
    }

    /// Returns whether every submission and read at this replica has ended.
    pub fn is_idle(&self, node: u8) -> bool {
        let mut submissions = self.outstanding.range(submissions_of(node));
        let mut reads = self.reads.range(reads_of(node));
        submissions.next().is_none() && reads.next().is_none()
    }

    /// Returns a submission or read at this replica that should have ended before `now`.
    pub fn overdue(&self, node: u8, now: Micros) -> Option<String> {
        let first_read = |partition| {
            let from = ReadTicket::new(partition, 0);
            let mut rest = self.reads.range((node, from)..);
            rest.next()
                .filter(|((of, ticket), _)| *of == node && ticket.partition() == partition)
        };
        let mut reads = (0..self.histories.len()).filter_map(first_read);
        if let Some(((_, ticket), read)) = reads.find(|(_, read)| read.deadline < now) {
            let late_us = now - read.deadline;
            return Some(format!(
                "replica {node}: {ticket:?} did not end by its deadline, {late_us} us ago"
            ));
        }
        let first = |partition| {
            // Within a partition, tickets and deadlines increase together.
            let from = Ticket::new(partition, 0);
            let mut rest = self.outstanding.range((node, from)..);
            rest.next()
                .filter(|((of, ticket), _)| *of == node && ticket.partition() == partition)
        };
        (0..self.histories.len())
            .filter_map(first)
            .find(|(_, s)| s.deadline < now)
            .map(|(_, s)| {
                let late_us = now - s.deadline;
                format!(
                    "replica {node}: command {} did not end by its deadline, {late_us} us ago",
                    s.command
                )
            })
    }

    /// Returns the number of instances applied by any replica, over all logs.
    pub fn len(&self) -> u64 {
        self.histories.iter().map(|h| h.len() as u64).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the last instance of a log that any replica applied.
    pub fn last(&self, partition: usize) -> u64 {
        self.histories[partition].len() as u64
    }

    /// Returns the hash of a log's state after `instance`.
    pub fn state_after(&self, partition: usize, instance: u64) -> Option<u64> {
        self.histories[partition]
            .get((instance as usize).checked_sub(1)?)
            .map(|a| a.state)
    }
}
