//! A replica that may be behind the log: after its start, after a checkpoint, after its process was stopped for a while.
//!
//! It asks what has been decided, as for a read, and is up to date once it has applied that. Until then it would let
//! every command wait, in the end with an outcome that nobody knows; so after a moment it refuses them.

use std::time::{Duration, Instant};

use inband_host::log::{ReadTicket, ReplicatedLog, SubmitFailure};
use inband_resp::reply::Reply;

use super::Replica;
use crate::limits::{CATCH_UP_GRACE_MS, CATCH_UP_RETRY_MS, CATCH_UP_STEP_MS, STOPPED_MS};

/// Questions about all logs, and what has become of them.
#[derive(Debug)]
struct Round {
    since: Instant,
    /// Not answered yet.
    asked: Vec<ReadTicket>,
    /// Instances that must be applied, by log.
    goals: Vec<(usize, u64)>,
    /// Logs whose question has failed.
    failed: Vec<usize>,
    /// Why the log does not answer, if it says so.
    why: Option<&'static str>,
    retry_at: Instant,
}

impl Round {
    fn begin(log: &mut dyn ReplicatedLog, now: Instant) -> Self {
        let logs = 0..log.partitions();
        Self {
            since: now,
            asked: logs.map(|of| log.confirm_read(of)).collect(),
            goals: Vec::new(),
            failed: Vec::new(),
            why: None,
            retry_at: now,
        }
    }

    fn take(&mut self, ticket: ReadTicket) -> bool {
        let place = self.asked.iter().position(|asked| *asked == ticket);
        place.map(|at| self.asked.swap_remove(at)).is_some()
    }
}

/// Whether a replica is up to date.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// `None`: it is.
    round: Option<Round>,
    /// Commands are refused from then on, if it is not.
    refuses_from: Instant,
}

impl CatchUp {
    pub(super) fn begin(log: &mut dyn ReplicatedLog, now: Instant) -> Self {
        Self {
            round: Some(Round::begin(log, now)),
            refuses_from: now + Duration::from_millis(CATCH_UP_GRACE_MS),
        }
    }

    /// Returns whether the replica may still be behind.
    pub(super) fn is_under_way(&self) -> bool {
        self.round.is_some()
    }

    /// Returns whether commands are refused.
    pub(super) fn is_behind(&self, now: Instant) -> bool {
        self.is_under_way() && now >= self.refuses_from
    }

    /// A question was answered. Returns false if it is another one's.
    pub(super) fn confirm(&mut self, ticket: ReadTicket, instance: u64) -> bool {
        let round = self.round.as_mut().filter(|round| !round.asked.is_empty());
        round.is_some_and(|round| {
            let is_its = round.take(ticket);
            if is_its {
                round.goals.push((ticket.partition(), instance));
            }
            is_its
        })
    }

    /// A question has failed. Returns false if it is another one's.
    pub(super) fn fail(
        &mut self,
        ticket: ReadTicket,
        failure: SubmitFailure,
        now: Instant,
    ) -> bool {
        let round = self.round.as_mut().filter(|round| !round.asked.is_empty());
        round.is_some_and(|round| {
            let is_its = round.take(ticket);
            if is_its {
                round.failed.push(ticket.partition());
                round.why = match failure {
                    SubmitFailure::NotApplied(why) => Some(why),
                    SubmitFailure::OutcomeUnknown(_) => None,
                };
                round.retry_at = now + Duration::from_millis(CATCH_UP_RETRY_MS);
            }
            is_its
        })
    }
}

impl Replica {
    /// It may have missed much.
    pub(super) fn may_be_behind(&mut self) {
        self.catch_up = CatchUp::begin(&mut *self.log, self.now);
    }

    /// This turn of the loop began so much after the one before.
    pub(super) fn note_pause(&mut self, pause: Duration) {
        if pause >= Duration::from_millis(STOPPED_MS) {
            self.may_be_behind();
        }
    }

    pub(super) fn look_at_catch_up(&mut self) {
        let Some(round) = &mut self.catch_up.round else {
            return;
        };
        let (now, applied) = (self.now, self.machine.applied());
        if !round.failed.is_empty() && now >= round.retry_at {
            for log in std::mem::take(&mut round.failed) {
                round.asked.push(self.log.confirm_read(log));
            }
        }
        round.goals.retain(|(log, goal)| applied[*log] < *goal);
        if !(round.asked.is_empty() && round.goals.is_empty() && round.failed.is_empty()) {
            return;
        }
        let took = now.saturating_duration_since(round.since);
        let was_behind = now >= self.catch_up.refuses_from;
        // Much may have been decided meanwhile.
        let goes_on = was_behind && took >= Duration::from_millis(CATCH_UP_STEP_MS);
        self.catch_up.round = goes_on.then(|| Round::begin(&mut *self.log, now));
        if was_behind && !goes_on {
            tracing::info!(?applied, "has caught up with the log");
        }
    }

    /// Returns the reply to commands while this replica is behind.
    pub(super) fn behind_refusal(&self) -> Option<Reply> {
        let why = self.catch_up.round.as_ref().and_then(|round| round.why);
        self.catch_up.is_behind(self.now).then(|| match why {
            Some(why) => Reply::error(format!("LOADING Inband cannot read the log: {why}")),
            None => Reply::error(
                "LOADING Inband is catching up with the log, or reaches no majority that says how far the log is; \
                 try again or use another replica",
            ),
        })
    }
}
