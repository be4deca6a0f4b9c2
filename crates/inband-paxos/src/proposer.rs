//! The proposer: opens a session, submits values, and retransmits them until they are decided.
//!
//! Sans-I/O: takes (now, event), pushes packets to an [`Outbox`]. Every value ends as decided or, at its deadline, as a
//! failure (protocol.md, 9).

mod session;

use std::collections::{HashMap, VecDeque};

use crate::dataplane::round;
use crate::dataplane::wire::{Header, Type, VALUE_LEN_MAX_BYTES};
use inband_ground::auth::Digest;

use crate::by_ticket::ByTicket;
use crate::log::{Origin, SubmitError, SubmitFailure, Ticket, ValueKind};
use crate::outbox::{Dest, Outbox};
use crate::timing::{Micros, Timing, PROPOSER_WINDOW, SEND_WINDOW};

use session::Session;

/// Most values retransmitted to all leaders at once. A few show as well as all whether a leader answers, and once one
/// is heard from, all undecided values go to it ([`Proposer::leader_is`]); retransmitting all of them repeatedly would
/// keep slow hosts from electing a leader.
const REPEATS_MAX: usize = 8;

#[derive(Debug)]
struct Pending {
    value: Vec<u8>,
    /// Sequence in the current session; 0 until it is first sent.
    seq: u64,
    /// Delivered by the learner; kept until the application reports whether it was applied.
    decided: bool,
    /// May have been applied in a state that was installed, unseen by this process.
    unseen: bool,
    resend_at: Micros,
    resend_after: Micros,
    /// Wait after the next BUSY; doubles, because otherwise a full window would cause a million requests a second.
    busy_after: Micros,
    sends: u32,
    deadline: Micros,
}

#[derive(Debug)]
pub struct Proposer {
    node: u8,
    partition: u16,
    epoch: u32,
    digest: Digest,
    timing: Timing,
    nonce_base: u64,
    nonces: u64,
    session: Session,
    next_seq: u64,
    next_ticket: u64,
    pending: ByTicket<Pending>,
    /// Memory of answered values, for reuse.
    spare: Vec<Vec<u8>>,
    by_seq: HashMap<u64, Ticket>,
    /// Not sent in this session yet, in order; some may have been given up already.
    unsent: VecDeque<Ticket>,
    /// Number of values sent and not decided.
    in_flight: usize,
    /// The leader that gets the requests; `None`: all leaders do.
    leader: Option<u8>,
    /// The highest round of any known leader.
    leader_round: u64,
    failed: Vec<(Ticket, SubmitFailure)>,
    /// Earliest time at which anything is due.
    due: Micros,
    requests_sent: u64,
    requests_repeated: u64,
}

impl Proposer {
    /// Creates a proposer without a session. `incarnation` must never be reused by this node.
    pub fn new(
        node: u8,
        partition: u16,
        epoch: u32,
        incarnation: u64,
        digest: Digest,
        timing: Timing,
    ) -> Proposer {
        Proposer {
            node,
            partition,
            epoch,
            digest,
            timing,
            nonce_base: incarnation << 24 | u64::from(node) << 16,
            nonces: 0,
            session: Session::Closed,
            next_seq: 1,
            next_ticket: 1,
            pending: ByTicket::new(),
            spare: Vec::new(),
            by_seq: HashMap::new(),
            unsent: VecDeque::new(),
            in_flight: 0,
            leader: None,
            leader_round: 0,
            failed: Vec::new(),
            due: 0,
            requests_sent: 0,
            requests_repeated: 0,
        }
    }

    /// Returns how many more values may be submitted.
    pub fn room(&self) -> usize {
        PROPOSER_WINDOW - self.pending.len()
    }

    /// Returns the number of values submitted and not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of requests sent, and how many of them were retransmissions.
    pub fn requests(&self) -> (u64, u64) {
        (self.requests_sent, self.requests_repeated)
    }

    /// Queues a value of up to `VALUE_LEN_MAX_BYTES`. Fails if `PROPOSER_WINDOW` values are pending.
    pub fn submit(
        &mut self,
        now: Micros,
        value: &[u8],
        out: &mut Outbox,
    ) -> Result<Ticket, SubmitError> {
        if value.len() > VALUE_LEN_MAX_BYTES {
            return Err(SubmitError::TooLong {
                len_bytes: value.len(),
                limit_bytes: VALUE_LEN_MAX_BYTES,
            });
        }
        if self.pending.len() >= PROPOSER_WINDOW {
            return Err(SubmitError::WindowFull(PROPOSER_WINDOW));
        }
        let ticket = Ticket::new(usize::from(self.partition), self.next_ticket);
        self.next_ticket += 1;
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(value);
        let pending = Pending {
            value: memory,
            seq: 0,
            decided: false,
            unseen: false,
            resend_at: 0,
            resend_after: self.timing.resend_us,
            busy_after: self.timing.busy_us,
            sends: 0,
            deadline: now + self.timing.submit_deadline_us,
        };
        self.pending.push(ticket, pending);
        self.unsent.push_back(ticket);
        match self.session {
            Session::Open(_) => self.send_unsent(now, out),
            Session::Closed => self.open_session(now, out),
            Session::Opening { .. } => {}
        }
        // Not 0: going through all pending values after every submission would cost more than the submission.
        if let Some(sent) = self.pending.get(ticket) {
            let next = if sent.seq == 0 {
                sent.deadline
            } else {
                sent.resend_at.min(sent.deadline)
            };
            self.due = self.due.min(next);
        }
        Ok(ticket)
    }

    fn header(&self, kind: Type) -> Header {
        let mut header = Header::new(kind, u16::from(self.node), self.epoch);
        header.partition = self.partition;
        header
    }

    fn dest(&self) -> Dest {
        self.leader.map_or(Dest::Leaders, Dest::Node)
    }

    /// Returns the lowest unanswered sequence.
    fn low(&self) -> u64 {
        // Tickets and sequences grow together, so the first sent one has the lowest sequence.
        self.pending
            .values()
            .find(|p| p.seq != 0)
            .map_or(self.next_seq, |p| p.seq)
    }

    /// Sends as many values as the window allows.
    fn send_unsent(&mut self, now: Micros, out: &mut Outbox) {
        if !matches!(self.session, Session::Open(_)) {
            return;
        }
        while self.in_flight < SEND_WINDOW {
            let Some(ticket) = self.unsent.pop_front() else {
                return;
            };
            if self.pending.get(ticket).is_some() {
                self.in_flight += 1;
                self.send(now, ticket, out);
            }
        }
    }

    /// Recomputes after changes to many values at once.
    fn recount(&mut self) {
        let is_in_flight = |p: &&Pending| p.seq != 0 && !p.decided;
        self.in_flight = self.pending.values().filter(is_in_flight).count();
    }

    fn send(&mut self, now: Micros, ticket: Ticket, out: &mut Outbox) {
        let Session::Open(client_id) = self.session else {
            return;
        };
        let everyone = self.pending.get(ticket).is_some_and(|p| p.sends > 1);
        let dest = if everyone { Dest::Leaders } else { self.dest() };
        let mut header = self.header(Type::Request);
        let low = self.low();
        let Some(pending) = self.pending.get_mut(ticket) else {
            return;
        };
        if pending.seq == 0 {
            pending.seq = self.next_seq;
            self.next_seq += 1;
            self.by_seq.insert(pending.seq, ticket);
        }
        self.requests_sent += 1;
        self.requests_repeated += u64::from(pending.sends > 0);
        pending.sends += 1;
        pending.resend_at = now + pending.resend_after;
        pending.resend_after = (pending.resend_after * 2).min(self.timing.resend_max_us);
        header.client_id = client_id;
        header.client_seq = pending.seq;
        header.digest = self.digest.of(&pending.value);
        header.client_low = low;
        out.send(dest, &header, &pending.value);
    }

    /// The learner delivered a value; returns its ticket if it is this proposer's.
    pub fn delivered(
        &mut self,
        now: Micros,
        instance: u64,
        origin: &Origin,
        out: &mut Outbox,
    ) -> Option<Ticket> {
        match (origin.kind, &self.session) {
            (ValueKind::OpenSession, Session::Opening { nonce, .. })
                if *nonce == origin.client_id =>
            {
                self.session = Session::Open(instance);
                self.next_seq = 1;
                self.send_unsent(now, out);
                self.due = 0;
                None
            }
            (ValueKind::Command, Session::Open(id)) if *id == origin.client_id => {
                let ticket = *self.by_seq.get(&origin.client_seq)?;
                let pending = self.pending.get_mut(ticket)?;
                // A value may be decided in several instances, and a burst may contain all of them before the
                // application answers: its ticket is returned once.
                let is_first = !std::mem::replace(&mut pending.decided, true);
                if is_first {
                    self.in_flight -= 1;
                    self.due = self.due.min(now + self.timing.resend_us);
                    self.send_unsent(now, out);
                }
                is_first.then_some(ticket)
            }
            _ => None,
        }
    }

    /// The application applied the value: it need not be retransmitted.
    pub fn answered(&mut self, ticket: Ticket) {
        if let Some(pending) = self.pending.remove(ticket) {
            self.by_seq.remove(&pending.seq);
            self.in_flight -= usize::from(pending.seq != 0 && !pending.decided);
            self.spare.push(pending.value);
        }
    }

    /// The application installed a state: a value whose decision was skipped thereby is sent again, so that the session
    /// table in that state shows whether it is included.
    pub fn reset(&mut self) {
        for pending in self.pending.values_mut() {
            pending.decided = false;
            pending.unseen |= pending.seq != 0;
        }
        self.recount();
        self.due = 0;
    }

    /// Returns the highest round of any known leader; 0: none.
    pub fn leader_round(&self) -> u64 {
        self.leader_round
    }

    /// A leader with this round is known: from a decided value or an ALIVE. Later messages from, or decisions of, the
    /// owner of an older round change nothing.
    pub fn leader_is(&mut self, now: Micros, round: u64, out: &mut Outbox) {
        if round < self.leader_round {
            return;
        }
        let is_news = round > self.leader_round;
        self.leader_round = round;
        let node = round::owner(round);
        if self.leader == Some(node) && !is_news {
            return;
        }
        self.leader = Some(node);
        // What the old leader was processing may be lost: retransmit at once.
        if let Session::Opening { nonce, .. } = self.session {
            self.send_open(nonce, out);
        }
        let undecided: Vec<Ticket> = self
            .pending
            .iter()
            .filter(|(_, p)| p.seq != 0 && !p.decided)
            .map(|(t, _)| t)
            .collect();
        for ticket in undecided {
            self.send(now, ticket, out);
        }
    }

    /// Enters a later epoch: undecided values are sent again, to whichever node leads in it.
    pub fn enter_epoch(&mut self, now: Micros, epoch: u32) {
        self.epoch = epoch;
        self.leader = None;
        if let Session::Opening { resend_at, .. } = &mut self.session {
            *resend_at = now;
        }
        for pending in self.pending.values_mut().filter(|p| !p.decided) {
            pending.resend_at = now;
        }
        self.due = 0;
    }

    /// NACK from a leader that is not active, or BUSY from one whose window is full.
    pub fn on_refusal(&mut self, now: Micros, header: &Header) {
        let own = match self.session {
            Session::Open(id) => id,
            Session::Opening { nonce, .. } => nonce,
            Session::Closed => return,
        };
        if header.client_id != own {
            return; // of another session, or another host: it counts its values alike
        }
        if header.kind == Type::Nack {
            if self.leader.is_some_and(|l| u16::from(l) != header.node) {
                return; // asked in passing: the leader has the request too
            }
            self.leader = None;
        }
        let Some(ticket) = self.by_seq.get(&header.client_seq) else {
            return;
        };
        let Some(pending) = self.pending.get_mut(*ticket) else {
            return;
        };
        if header.kind == Type::Busy {
            pending.resend_after = self.timing.resend_us;
            pending.resend_at = now + pending.busy_after;
            pending.busy_after = (pending.busy_after * 2).min(self.timing.resend_us);
            pending.sends = 1; // a busy node is alive: no need to ask everyone
        } else if pending.sends <= 1 {
            pending.resend_at = pending.resend_at.min(now + self.timing.resend_us / 2);
        }
        // Later retransmissions have gone to all leaders, so it is no news that one of them does not lead. If each NACK
        // advanced the next retransmission, slow hosts without a leader would drown in requests and never elect one.
        self.due = self.due.min(pending.resend_at);
    }

    /// Retransmits what is due, and gives up what has passed its deadline.
    pub fn on_tick(&mut self, now: Micros, out: &mut Outbox) {
        if now < self.due {
            return;
        }
        if let Session::Opening {
            nonce,
            resend_at,
            resend_after,
        } = self.session
        {
            if now >= resend_at {
                // Every retransmission may open another session, and those evict idle ones.
                let resend_after = (resend_after * 2).min(self.timing.resend_max_us);
                self.leader = None;
                self.session = Session::Opening {
                    nonce,
                    resend_at: now + resend_after,
                    resend_after,
                };
                self.send_open(nonce, out);
            }
        }
        let over: Vec<Ticket> = self
            .pending
            .iter()
            .filter(|(_, p)| !p.decided && now >= p.deadline)
            .map(|(t, _)| t)
            .collect();
        for ticket in over {
            let Some(pending) = self.pending.remove(ticket) else {
                continue;
            };
            self.by_seq.remove(&pending.seq);
            let failure = if pending.seq == 0 {
                SubmitFailure::NotApplied("no leader answered before the deadline")
            } else {
                SubmitFailure::OutcomeUnknown(self.timing.submit_deadline_us / 1000)
            };
            self.in_flight -= usize::from(pending.seq != 0);
            self.failed.push((ticket, failure));
        }
        self.send_unsent(now, out);
        let repeat: Vec<Ticket> = self
            .pending
            .iter()
            .filter(|(_, p)| !p.decided && p.seq != 0 && now >= p.resend_at)
            .map(|(t, _)| t)
            .collect();
        let mut repeats_to_all = 0;
        for ticket in repeat {
            let Some(pending) = self.pending.get_mut(ticket) else {
                continue;
            };
            repeats_to_all += usize::from(pending.sends > 1);
            if pending.sends > 1 && repeats_to_all > REPEATS_MAX {
                pending.resend_at = now + pending.resend_after;
            } else {
                self.send(now, ticket, out);
            }
        }
        let next = self
            .pending
            .values()
            .filter(|p| !p.decided)
            .map(|p| {
                if p.seq == 0 {
                    p.deadline
                } else {
                    p.resend_at.min(p.deadline)
                }
            })
            .min();
        self.due = next.unwrap_or(Micros::MAX);
        if let Session::Opening { resend_at, .. } = self.session {
            self.due = self.due.min(resend_at);
        }
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        self.due
    }

    /// Submissions that failed since the last call.
    pub fn take_failed(&mut self) -> std::vec::Drain<'_, (Ticket, SubmitFailure)> {
        self.failed.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::wire;

    fn open(p: &mut Proposer) {
        let mut out = Outbox::new();
        p.open_session(0, &mut out);
        let (_, packet) = out.iter().next().unwrap();
        let nonce = wire::parse(packet).unwrap().0.client_id;
        let origin = Origin {
            client_id: nonce,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        p.delivered(0, 5, &origin, &mut out);
    }

    fn command(client_seq: u64) -> Origin {
        Origin {
            client_id: 5,
            client_seq,
            client_low: 1,
            kind: ValueKind::Command,
        }
    }

    #[test]
    fn a_value_is_repeated_then_given_up_as_unknown() {
        let timing = Timing::default();
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, timing);
        open(&mut p);
        let mut out = Outbox::new();
        let ticket = p.submit(0, b"x", &mut out).unwrap();
        assert_eq!(out.iter().count(), 1);
        p.on_tick(timing.resend_us, &mut out);
        assert_eq!(out.iter().count(), 2);
        p.on_tick(timing.submit_deadline_us, &mut out);
        let failed: Vec<_> = p.take_failed().collect();
        assert_eq!(failed, [(ticket, SubmitFailure::OutcomeUnknown(5000))]);
        assert_eq!(p.outstanding(), 0);
    }

    #[test]
    fn never_sent_is_certainly_not_applied() {
        let timing = Timing::default();
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, timing);
        let mut out = Outbox::new();
        let ticket = p.submit(0, b"x", &mut out).unwrap();
        p.on_tick(timing.submit_deadline_us, &mut out);
        let failed: Vec<_> = p.take_failed().collect();
        assert!(matches!(failed[..], [(t, SubmitFailure::NotApplied(_))] if t == ticket));
    }

    #[test]
    fn an_older_leader_does_not_get_requests_back() {
        let round = |counter, node| round::round(counter, 1, node).unwrap();
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, Timing::default());
        open(&mut p);
        let mut out = Outbox::new();
        p.leader_is(0, round(8, 5), &mut out);
        p.leader_is(0, round(3, 4), &mut out);
        p.submit(0, b"a", &mut out).unwrap();
        assert_eq!(out.iter().next().unwrap().0, Dest::Node(5));
    }

    #[test]
    fn no_more_than_the_window_is_in_flight_and_all_are_sent() {
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, Timing::default());
        open(&mut p);
        let mut out = Outbox::new();
        let count = 3 * SEND_WINDOW;
        for _ in 0..count {
            p.submit(0, b"a", &mut out).unwrap();
        }
        assert_eq!(out.iter().count(), SEND_WINDOW);
        for seq in 1..=count as u64 {
            let ticket = p.delivered(0, 10 + seq, &command(seq), &mut out).unwrap();
            p.answered(ticket);
        }
        assert_eq!(out.iter().count(), count);
        assert_eq!((p.outstanding(), p.in_flight), (0, 0));
    }

    #[test]
    fn what_another_host_was_refused_puts_nothing_off() {
        let round = round::round(8, 1, 5).unwrap();
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, Timing::default());
        open(&mut p);
        let mut out = Outbox::new();
        p.leader_is(0, round, &mut out);
        let ticket = p.submit(0, b"a", &mut out).unwrap();
        let request = wire::parse(out.iter().last().unwrap().1).unwrap().0;
        let resend_at = |p: &Proposer| p.pending.get(ticket).unwrap().resend_at;
        let before = resend_at(&p);
        for kind in [Type::Busy, Type::Nack] {
            let refusal = Header {
                kind,
                node: 5,
                client_id: request.client_id + 1,
                ..request
            };
            p.on_refusal(0, &refusal);
            assert_eq!((resend_at(&p), p.leader), (before, Some(5)), "{kind:?}");
        }
        let busy = Header {
            kind: Type::Busy,
            node: 5,
            ..request
        };
        p.on_refusal(0, &busy);
        assert!(resend_at(&p) < before);
    }

    #[test]
    fn the_low_mark_waits_for_the_slowest() {
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, Timing::default());
        open(&mut p);
        let mut out = Outbox::new();
        let first = p.submit(0, b"a", &mut out).unwrap();
        let second = p.submit(0, b"b", &mut out).unwrap();
        assert_eq!(p.delivered(0, 9, &command(2), &mut out), Some(second));
        p.answered(second);
        assert_eq!(p.low(), 1);
        assert_eq!(p.delivered(0, 10, &command(1), &mut out), Some(first));
        p.answered(first);
        assert_eq!(p.low(), 3);
    }

    #[test]
    fn a_value_that_a_checkpoint_may_hold_is_not_sent_in_another_session() {
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, Timing::default());
        open(&mut p);
        let mut out = Outbox::new();
        let ticket = p.submit(0, b"a", &mut out).unwrap();
        assert_eq!(p.delivered(0, 9, &command(1), &mut out), Some(ticket));
        p.reset();
        out.clear();
        p.on_tick(Timing::default().resend_us, &mut out);
        assert_eq!(out.iter().count(), 1);
        p.session_refused(0, &mut out);
        let failed: Vec<_> = p.take_failed().collect();
        assert_eq!(failed, [(ticket, SubmitFailure::OutcomeUnknown(5000))]);
    }

    #[test]
    fn a_refused_session_is_reopened_and_the_value_sent_again() {
        let mut p = Proposer::new(1, 0, 1, 1, Digest::PLAIN, Timing::default());
        open(&mut p);
        let mut out = Outbox::new();
        let ticket = p.submit(0, b"a", &mut out).unwrap();
        p.delivered(0, 9, &command(1), &mut out);
        out.clear();
        p.session_refused(0, &mut out);
        let nonce = wire::parse(out.iter().next().unwrap().1)
            .unwrap()
            .0
            .client_id;
        out.clear();
        let origin = Origin {
            client_id: nonce,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        p.delivered(0, 20, &origin, &mut out);
        let sent = wire::parse(out.iter().next().unwrap().1).unwrap().0;
        assert_eq!((sent.client_id, sent.client_seq), (20, 1));
        let again = Origin {
            client_id: 20,
            ..command(1)
        };
        assert_eq!(p.delivered(0, 21, &again, &mut out), Some(ticket));
    }
}
