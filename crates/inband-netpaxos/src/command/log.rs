//! The log as a store uses it: a learner and a proposer in the store's thread, over the learner's socket.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_host::log::{
    Burst, Origin, ReadTicket, ReplicatedLog, SubmitError, SubmitFailure, Ticket, ValueKind,
};
use inband_netpaxos::control::To;
use inband_netpaxos::learner::{Delivered, Learner, Out};
use inband_netpaxos::proposer::{self, Outcome, Proposer};
use inband_netpaxos::wire::packed;
use inband_netpaxos::VALUE_LEN_MAX_BYTES;

use super::learner::on_packet;
use super::process::{lock, Process, PACKETS_OF_A_TURN};

/// How long a value or a read may take.
pub const DEADLINE_MS: u64 = 5_000;
const MS: u64 = 1_000_000;
/// Longest sleep; a failed socket is noticed then.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A value that the store waits for.
struct Pending {
    value: Vec<u8>,
    deadline: u64,
    /// The value's number at the proposer, once it has been sent.
    number: Option<u64>,
}

/// The log as a store uses it; it has number 0. See the [module](self).
pub struct Log {
    process: Process,
    learner: Arc<Mutex<Learner>>,
    proposer: Proposer,
    next_ticket: u64,
    pending: BTreeMap<Ticket, Pending>,
    /// By number at the proposer: the session in which the value was sent.
    sent: BTreeMap<u64, (u64, Ticket)>,
    /// Values to send in the next session, because theirs has expired.
    again: VecDeque<Ticket>,
    /// Deadlines of reads.
    reads: BTreeMap<ReadTicket, u64>,
    to_serializers: proposer::Out,
    buffer: Box<[u8; PACKET_LEN_MAX_BYTES + 1]>,
}

impl Log {
    /// Creates a log whose learner serves an application.
    pub fn new(process: Process, learner: Arc<Mutex<Learner>>) -> Log {
        let serializers = process.cluster.serializers.len();
        Log {
            proposer: Proposer::new(serializers, packed(process.listen), rand::random()),
            process,
            learner,
            next_ticket: 1,
            pending: BTreeMap::new(),
            sent: BTreeMap::new(),
            again: VecDeque::new(),
            reads: BTreeMap::new(),
            to_serializers: proposer::Out::new(),
            buffer: Box::new([0; PACKET_LEN_MAX_BYTES + 1]),
        }
    }

    fn ticket_number(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    /// Passes a pending value to the proposer, which is ready.
    fn send(&mut self, now: u64, ticket: Ticket) {
        let Some(pending) = self.pending.get_mut(&ticket) else {
            return;
        };
        let session = self.proposer.session().expect("a proposer that is ready");
        let (value, deadline) = (&pending.value, pending.deadline);
        let out = &mut self.to_serializers;
        let number = self.proposer.submit(now, value, deadline, out);
        pending.number = Some(number);
        self.sent.insert(number, (session, ticket));
    }

    fn forget(&mut self, ticket: Ticket) {
        let pending = self.pending.remove(&ticket);
        if let Some(number) = pending.and_then(|pending| pending.number) {
            self.sent.remove(&number);
        }
    }

    /// Logs the error of a failed socket, which is then treated as one that receives nothing.
    fn receive(&mut self, learner: &mut Learner, now: u64, out: &mut Out) {
        for _ in 0..PACKETS_OF_A_TURN {
            match self.process.receive(&mut self.buffer) {
                Ok(None) => return,
                Ok(Some(len_bytes)) => {
                    on_packet(learner, now, &self.process, &self.buffer[..len_bytes], out);
                }
                Err(error) => return tracing::error!("receiving: {error:#}"),
            }
        }
    }

    fn deliver(&mut self, now: u64, delivered: Delivered, burst: &mut Burst) {
        let instance = delivered.instance;
        let Some(request) = delivered.value else {
            let origin = Origin {
                client_id: 0,
                client_seq: 0,
                client_low: 0,
                kind: ValueKind::Noop,
            };
            return burst.push(instance, origin, None, &[]);
        };
        self.proposer.on_decided(now, instance, &request);
        let sent = self.sent.get(&request.number);
        let own = sent.filter(|(session, _)| *session == request.client && !request.opens);
        let ticket = own.map(|(_, ticket)| *ticket);
        burst.push(instance, request.origin(), ticket, &request.value);
    }

    /// Ends the values and reads that have taken too long.
    fn expire(&mut self, now: u64, learner: &mut Learner, burst: &mut Burst) {
        let unknown = SubmitFailure::OutcomeUnknown(DEADLINE_MS);
        for (number, outcome) in self.proposer.take_done() {
            let ticket = self.sent.get(&number).map(|(_, ticket)| *ticket);
            if let (Outcome::Unknown, Some(ticket)) = (outcome, ticket) {
                self.forget(ticket);
                burst.failed.push((ticket, unknown));
            }
        }
        // Refused in an expired session, so it may have been sent before.
        let pending = &self.pending;
        let is_over = |ticket: &Ticket| pending.get(ticket).is_none_or(|p| now >= p.deadline);
        let over: Vec<Ticket> = self.again.iter().copied().filter(is_over).collect();
        for ticket in over {
            self.again.retain(|other| *other != ticket);
            if self.pending.contains_key(&ticket) {
                self.forget(ticket);
                burst.failed.push((ticket, unknown));
            }
        }
        let late: Vec<ReadTicket> = self
            .reads
            .iter()
            .filter(|(_, deadline)| now >= **deadline)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in late {
            self.reads.remove(&ticket);
            learner.forget_read(ticket.0);
            let why = "no quorum of storage servers has answered, or what is decided has not come";
            burst
                .reads_failed
                .push((ticket, SubmitFailure::NotApplied(why)));
        }
    }

    fn flush(&mut self, packets: Vec<(To, Vec<u8>)>) {
        self.process.send_all(packets);
        for (serializer, mut packet) in self.to_serializers.drain(..) {
            let to = self.process.cluster.serializers[serializer];
            self.process.send(&mut packet, [to]);
        }
        self.process.socket().flush();
    }
}

impl ReplicatedLog for Log {
    fn partitions(&self) -> usize {
        1
    }

    fn max_value_len_bytes(&self) -> usize {
        VALUE_LEN_MAX_BYTES
    }

    fn submit_room(&self, _: usize) -> usize {
        match self.again.is_empty() {
            true => self.proposer.room(),
            false => 0,
        }
    }

    fn submit(&mut self, partition: usize, value: &[u8]) -> Result<Ticket, SubmitError> {
        if value.len() > VALUE_LEN_MAX_BYTES {
            return Err(SubmitError::TooLong {
                len_bytes: value.len(),
                limit_bytes: VALUE_LEN_MAX_BYTES,
            });
        }
        if self.submit_room(partition) == 0 {
            return Err(SubmitError::WindowFull(self.proposer.outstanding()));
        }
        let ticket = Ticket::new(partition, self.ticket_number());
        let now = self.process.now();
        let pending = Pending {
            value: value.to_vec(),
            deadline: now + DEADLINE_MS * MS,
            number: None,
        };
        self.pending.insert(ticket, pending);
        self.send(now, ticket);
        Ok(ticket)
    }

    fn poll(&mut self, bursts: &mut [Burst]) {
        let burst = &mut bursts[0];
        self.process.adopt_keys();
        let now = self.process.now();
        let shared = Arc::clone(&self.learner);
        let mut learner = lock(&shared);
        let mut out = Out::default();
        self.receive(&mut learner, now, &mut out);
        learner.tick(now, &mut out);
        for delivered in out.delivered.drain(..) {
            self.deliver(now, delivered, burst);
        }
        for (read, instance) in out.confirmed.drain(..) {
            let ticket = ReadTicket(read);
            if self.reads.remove(&ticket).is_some() {
                burst.confirmed.push((ticket, instance));
            }
        }
        self.proposer.tick(now, &mut self.to_serializers);
        self.expire(now, &mut learner, burst);
        while self.proposer.is_ready() {
            let Some(ticket) = self.again.pop_front() else {
                break;
            };
            self.send(now, ticket);
        }
        burst.checkpoint_needed |= learner.needs_checkpoint();
        drop(learner);
        self.flush(out.packets);
    }

    fn pause(&mut self, _: usize, is_paused: bool) {
        lock(&self.learner).pause(is_paused);
    }

    fn applied(&mut self, _: usize, instance: u64) {
        lock(&self.learner).applied(instance);
    }

    fn reset(&mut self, _: usize, applied: u64) {
        lock(&self.learner).reset(applied);
    }

    fn session_refused(&mut self, ticket: Ticket) {
        let Some(pending) = self.pending.get_mut(&ticket) else {
            return;
        };
        let number = pending.number.take();
        let sent = number.and_then(|number| self.sent.remove(&number));
        let Some((session, _)) = sent else {
            return;
        };
        if self.proposer.session() == Some(session) {
            self.proposer.renew(rand::random());
        }
        self.again.push_back(ticket);
    }

    fn answered(&mut self, ticket: Ticket) {
        self.forget(ticket);
    }

    fn confirm_read(&mut self, partition: usize) -> ReadTicket {
        let ticket = ReadTicket::new(partition, self.ticket_number());
        self.reads
            .insert(ticket, self.process.now() + DEADLINE_MS * MS);
        lock(&self.learner).read(ticket.0);
        ticket
    }

    fn wake_fds(&self) -> Vec<RawFd> {
        vec![self.process.socket().fd()]
    }

    fn poll_timeout(&self) -> Duration {
        if !self.again.is_empty() && self.proposer.is_ready() {
            return Duration::ZERO;
        }
        let due = lock(&self.learner).due().min(self.proposer.due());
        let left = Duration::from_nanos(due.saturating_sub(self.process.now()));
        self.process.socket().sleep_time(left.min(SLEEP_MAX))
    }

    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        let own = self.process.listen;
        let learners = self.process.cluster.learners.iter();
        let others = learners.filter(|address| **address != own);
        others.map(|address| SocketAddr::V4(*address)).collect()
    }
}
