//! Recovery of one instance by a learner: phase 1 for the slot, then phase 2 with the vote found or a no-op (CAANS,
//! section 3: `recover`).
//!
//! The promise is for the slot only, so a recovery never deposes the leader (schedules.md, 10).

use crate::dataplane::wire::{flag, Header, Type};
use inband_ground::auth::Digest;

use crate::outbox::{Dest, Outbox};
use crate::quorum::{SlotPromises, Vote, Votes};
use crate::rounds::RoundSource;
use crate::timing::Micros;

/// Initial retransmission interval of a recovery's packets; doubles up to 32 times that.
const RETRY_US: Micros = 20_000;
/// Learners that were outbid retry in one of this many time slots.
const TURNS: Micros = 8;

#[derive(Debug)]
enum Phase {
    One(SlotPromises),
    Two(Votes, Vote),
}

/// One instance under recovery.
#[derive(Debug)]
pub struct Recovery {
    instance: u64,
    noop: Vec<u8>,
    round: u64,
    phase: Phase,
    retry_at: Micros,
    retry_after: Micros,
    /// An acceptor has promised a higher round for this instance.
    outbid: bool,
}

/// The recovering node and its epoch.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub node: u8,
    /// Partition of the instance.
    pub partition: u16,
    pub epoch: u32,
    /// The acceptors of the epoch.
    pub acceptors: &'a [u8],
    pub digest: Digest,
}

impl Recovery {
    /// Starts to recover `instance`; `noop` is proposed if there is no vote.
    pub fn start(
        now: Micros,
        instance: u64,
        noop: Vec<u8>,
        context: Context<'_>,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) -> Recovery {
        let mut recovery = Recovery {
            instance,
            noop,
            round: 0,
            phase: Phase::One(SlotPromises::default()),
            retry_at: 0,
            retry_after: RETRY_US,
            outbid: false,
        };
        recovery.phase_1(now, context, rounds, out);
        recovery
    }

    /// Starts over with the acceptors of a later epoch: answers from those of the earlier one no longer count.
    pub fn enter_epoch(
        &mut self,
        now: Micros,
        context: Context<'_>,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) {
        self.retry_after = RETRY_US;
        self.phase_1(now, context, rounds, out);
    }

    fn header(&self, kind: Type, context: Context<'_>) -> Header {
        let mut header = Header::new(kind, u16::from(context.node), context.epoch);
        header.partition = context.partition;
        header.instance = self.instance;
        header.round = self.round;
        header
    }

    fn phase_1(
        &mut self,
        now: Micros,
        context: Context<'_>,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) {
        self.round = rounds.make();
        self.outbid = false;
        self.phase = Phase::One(SlotPromises::default());
        self.retry_at = now + self.retry_after;
        self.send(context, out);
    }

    fn send(&self, context: Context<'_>, out: &mut Outbox) {
        match &self.phase {
            Phase::One(_) => {
                let mut header = self.header(Type::Phase1A, context);
                header.flags = flag::SLOT;
                out.send(Dest::Acceptors, &header, &[]);
            }
            Phase::Two(_, vote) => {
                let mut header = self.header(Type::Phase2A, context);
                header.flags = flag::RECOVERY | vote.value_flags;
                header.client_id = vote.client_id;
                header.client_seq = vote.client_seq;
                header.client_low = vote.client_low;
                header.digest = vote.digest;
                out.send(Dest::Acceptors, &header, &vote.value);
            }
        }
    }

    /// A PHASE1B for this instance. The digest of `vote` has been checked.
    pub fn on_promise(
        &mut self,
        now: Micros,
        header: &Header,
        vote: Option<Vote>,
        context: Context<'_>,
        out: &mut Outbox,
    ) {
        if header.round != self.round {
            return;
        }
        let Phase::One(promises) = &mut self.phase else {
            return;
        };
        promises.add(context.acceptors, header.node, vote);
        if !promises.is_majority(context.acceptors) {
            return;
        }
        let vote = promises.best().cloned().unwrap_or_else(|| Vote {
            vround: 0,
            value_flags: flag::NOOP,
            client_id: 0,
            client_seq: 0,
            client_low: 0,
            digest: context.digest.of(&self.noop),
            value: self.noop.clone(),
        });
        self.phase = Phase::Two(Votes::default(), vote);
        self.retry_at = now + self.retry_after;
        self.send(context, out);
    }

    /// A PHASE2B of this recovery's round. Returns the decided value once a majority has voted.
    pub fn on_vote(&mut self, header: &Header, context: Context<'_>) -> Option<Vote> {
        if header.round != self.round {
            return None;
        }
        let Phase::Two(votes, vote) = &mut self.phase else {
            return None;
        };
        votes.add(context.acceptors, header.node);
        votes.is_majority(context.acceptors).then(|| vote.clone())
    }

    /// An acceptor promised a higher round: retry above it, later, and not at the same time as a peer that recovers the
    /// same instance.
    pub fn on_nack(&mut self, now: Micros, header: &Header, context: Context<'_>) {
        if header.round > self.round && !self.outbid {
            self.outbid = true;
            let turn = Micros::from(context.node) % TURNS;
            let after = self.retry_after / 4 + turn * RETRY_US / TURNS;
            self.retry_at = self.retry_at.min(now + after);
        }
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        self.retry_at
    }

    /// Retransmit: the same phase if packets were lost, so that answers add up; a higher round only if an acceptor
    /// requires one.
    pub fn on_tick(
        &mut self,
        now: Micros,
        context: Context<'_>,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) {
        if now < self.retry_at {
            return;
        }
        self.retry_after = (self.retry_after * 2).min(RETRY_US * 32);
        if self.outbid {
            self.phase_1(now, context, rounds, out);
        } else {
            self.retry_at = now + self.retry_after;
            self.send(context, out);
        }
    }
}
