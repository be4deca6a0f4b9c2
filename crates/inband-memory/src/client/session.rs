//! A client's session at a switch, and the requests in flight in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Op, Out, Ticket};
use crate::epoch::Nanos;
use crate::wire::{emit, emit_lines, Header, READ_REQUEST, WRITE_REQUEST};

pub(super) struct Pending {
    pub ticket: Ticket,
    pub op: Op,
    pub deadline: Nanos,
    pub first_sent: Nanos,
    pub sends: u32,
    /// When to retransmit it.
    pub due: Nanos,
    pub overtaken: u32,
}

pub(super) struct Joined {
    pub switch: usize,
    pub session: u64,
    pub epoch: u64,
    pub window: u64,
    /// Request r is at index r % window.
    pub pending: Vec<Option<Pending>>,
    pub next_request: u64,
    /// No request below this one is in flight.
    pub oldest: u64,
    /// Retransmission times by request; entries of completed requests are skipped.
    pub timers: BinaryHeap<Reverse<(Nanos, u64)>>,
    /// Number of requests in flight.
    pub under_way: usize,
    /// When the switch last answered a request, or last had nothing to answer.
    pub answered_at: Nanos,
    /// Whether the switch has answered a request in this session.
    pub has_answered: bool,
}

impl Joined {
    pub fn is_idle(&self) -> bool {
        self.oldest == self.next_request
    }

    pub fn is_under_way(&self, request: u64) -> bool {
        let is_of_it = request >= self.oldest && request < self.next_request;
        is_of_it && self.pending[(request % self.window) as usize].is_some()
    }

    pub fn emit(&self, request: u64, op: &Op, out: &mut Out) {
        let mut header = Header {
            kind: READ_REQUEST,
            epoch: self.epoch,
            session: self.session,
            request,
            ..Header::default()
        };
        let packet = out.packet(self.switch);
        match op {
            Op::Read { chunk, lines } => {
                (header.chunk, header.lines) = (*chunk, (*lines).into());
                emit(&header, &[], packet);
            }
            Op::Write {
                chunk, lines, from, ..
            } => {
                header.kind = WRITE_REQUEST;
                (header.chunk, header.lines) = (*chunk, (*lines).into());
                emit_lines(&header, from, packet);
            }
        }
    }
}
