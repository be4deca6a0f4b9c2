//! What replicas and their clients saw: one history for all replicas, and the end of every command.

use std::collections::BTreeMap;

use inband_paxos::log::{Decided, SubmitFailure, Ticket};
use inband_paxos::session::Verdict;
use inband_paxos::timing::Micros;

use crate::app::{command_id, decided_key};

/// What the first replica to apply an instance made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Applied {
    value: u64,
    state: u64,
}

/// What became of a command.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    applied_in: Option<u64>,
    certainly_not: bool,
}

/// A submission under way.
#[derive(Debug, Clone, Copy)]
struct Submission {
    command: u64,
    deadline: Micros,
}

/// How many submissions ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    /// Applied, and said so.
    pub success: u64,
    /// Nobody knows.
    pub unknown: u64,
    /// Certainly never applied.
    pub not_applied: u64,
    /// The replica crashed with them under way: its clients know nothing.
    pub lost_with_replica: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    history: Vec<Applied>,
    fates: Vec<Fate>,
    outstanding: BTreeMap<(u8, Ticket), Submission>,
    /// How submissions ended.
    pub ends: Ends,
}

impl Ledger {
    /// The number of a new command.
    pub fn new_command(&mut self) -> u64 {
        self.fates.push(Fate::default());
        self.fates.len() as u64
    }

    fn fate(&mut self, command: u64) -> Result<&mut Fate, String> {
        let at = command.checked_sub(1).and_then(|c| usize::try_from(c).ok());
        at.and_then(|at| self.fates.get_mut(at))
            .ok_or_else(|| format!("command {command} was never submitted by anyone"))
    }

    /// A replica took a command for submission.
    pub fn submitted(&mut self, node: u8, ticket: Ticket, command: u64, deadline: Micros) {
        let submission = Submission { command, deadline };
        self.outstanding.insert((node, ticket), submission);
    }

    /// A replica applied an instance: all replicas must have the same history, and a command is
    /// applied once, ever.
    pub fn applied(
        &mut self,
        node: u8,
        decided: &Decided<'_>,
        verdict: Verdict,
        state: u64,
    ) -> Result<(), String> {
        let instance = decided.instance;
        let value = decided_key(decided);
        let now = Applied { value, state };
        let at = instance as usize - 1;
        if let Some(before) = self.history.get(at) {
            if *before != now {
                return Err(format!(
                    "replica {node} applied another value or state in {instance}: {now:x?} after {before:x?}"
                ));
            }
            return Ok(());
        }
        if at != self.history.len() {
            return Err(format!(
                "replica {node} applied {instance}, which leaves a gap in the history"
            ));
        }
        self.history.push(now);
        if verdict != Verdict::Apply {
            return Ok(());
        }
        let Some(command) = command_id(decided.value) else {
            return Err(format!(
                "replica {node} applied in {instance} what is no command"
            ));
        };
        let fate = self.fate(command)?;
        if let Some(first) = fate.applied_in {
            return Err(format!(
                "command {command} was applied twice, in {first} and {instance}"
            ));
        }
        if fate.certainly_not {
            return Err(format!(
                "command {command} was applied in {instance} after its client was told it never would be"
            ));
        }
        fate.applied_in = Some(instance);
        Ok(())
    }

    /// A replica that has applied everything up to `applied` tells a client "done". Returns the
    /// command's number.
    pub fn succeeded(&mut self, node: u8, ticket: Ticket, applied: u64) -> Result<u64, String> {
        let submission = self
            .outstanding
            .remove(&(node, ticket))
            .ok_or_else(|| format!("replica {node} ended {ticket:?} twice or never had it"))?;
        self.ends.success += 1;
        match self.fate(submission.command)?.applied_in {
            Some(instance) if instance <= applied => Ok(submission.command),
            other => Err(format!(
                "replica {node} at {applied} acknowledged command {}, applied in {other:?}",
                submission.command
            )),
        }
    }

    /// A submission ended in failure. Returns the command's number.
    pub fn failed(&mut self, node: u8, ticket: Ticket, why: SubmitFailure) -> Result<u64, String> {
        let submission = self
            .outstanding
            .remove(&(node, ticket))
            .ok_or_else(|| format!("replica {node} ended {ticket:?} twice or never had it"))?;
        let command = submission.command;
        match why {
            SubmitFailure::OutcomeUnknown(_) => self.ends.unknown += 1,
            SubmitFailure::NotApplied(_) => {
                self.ends.not_applied += 1;
                let fate = self.fate(command)?;
                fate.certainly_not = true;
                if let Some(instance) = fate.applied_in {
                    return Err(format!(
                        "replica {node} told that command {command} was not applied; it was, in {instance}"
                    ));
                }
            }
        }
        Ok(command)
    }

    /// A replica crashed: its clients will never hear.
    pub fn crashed(&mut self, node: u8) {
        let before = self.outstanding.len();
        self.outstanding.retain(|(of, _), _| *of != node);
        self.ends.lost_with_replica += (before - self.outstanding.len()) as u64;
    }

    /// Submissions of a replica under way.
    pub fn outstanding(&self, node: u8) -> usize {
        self.outstanding
            .range((node, Ticket(0))..=(node, Ticket(u64::MAX)))
            .count()
    }

    /// Has every submission of this replica ended?
    pub fn is_idle(&self, node: u8) -> bool {
        self.outstanding
            .range((node, Ticket(0))..=(node, Ticket(u64::MAX)))
            .next()
            .is_none()
    }

    /// A submission of this replica that should have ended before `now`.
    pub fn overdue(&self, node: u8, now: Micros) -> Option<String> {
        self.outstanding
            .range((node, Ticket(0))..=(node, Ticket(u64::MAX)))
            .next() // tickets and deadlines grow together
            .filter(|(_, s)| s.deadline < now)
            .map(|(_, s)| {
                let late_us = now - s.deadline;
                format!(
                    "replica {node}: command {} did not end by its deadline, {late_us} us ago",
                    s.command
                )
            })
    }

    /// Instances applied by any replica.
    pub fn len(&self) -> u64 {
        self.history.len() as u64
    }

    /// Nothing was applied yet.
    pub fn is_empty(&self) -> bool {
        self.history.is_empty()
    }

    /// The state's hash after `instance`.
    pub fn state_after(&self, instance: u64) -> Option<u64> {
        self.history
            .get((instance as usize).checked_sub(1)?)
            .map(|a| a.state)
    }
}
