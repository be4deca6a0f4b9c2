//! The proposer's session: it is opened before the first value, and again if it was refused.

use super::Proposer;
use crate::dataplane::wire::{flag, Type};
use crate::log::SubmitFailure;
use crate::outbox::Outbox;
use crate::timing::Micros;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Session {
    Closed,
    Opening {
        nonce: u64,
        resend_at: Micros,
        resend_after: Micros,
    },
    Open(u64),
}

impl Proposer {
    /// Opens the session ahead of the first value.
    pub fn open_session(&mut self, now: Micros, out: &mut Outbox) {
        if self.session == Session::Closed {
            self.nonces += 1;
            let nonce = self.nonce_base | (self.nonces & 0xffff);
            self.session = Session::Opening {
                nonce,
                resend_at: now + self.timing.resend_us,
                resend_after: self.timing.resend_us,
            };
            self.due = self.due.min(now + self.timing.resend_us);
            self.send_open(nonce, out);
        }
    }

    pub(super) fn send_open(&mut self, nonce: u64, out: &mut Outbox) {
        let mut header = self.header(Type::Request);
        header.flags = flag::OPEN;
        header.client_id = nonce;
        header.digest = self.digest.of(&[]);
        out.send(self.dest(), &header, &[]);
    }

    /// The session expired before the value was decided: it was certainly not applied in that session, and is sent
    /// again in a new one.
    pub fn session_refused(&mut self, now: Micros, out: &mut Outbox) {
        if !matches!(self.session, Session::Open(_)) {
            return; // an earlier refusal of the same burst is opening a new one already
        }
        self.by_seq.clear();
        let failure = SubmitFailure::OutcomeUnknown(self.timing.submit_deadline_us / 1000);
        let failed = &mut self.failed;
        self.pending.retain(|ticket, pending| {
            // It is no longer possible to tell whether it was applied before the session expired.
            if pending.unseen {
                failed.push((ticket, failure));
            }
            !pending.unseen
        });
        for pending in self.pending.values_mut() {
            pending.seq = 0;
            pending.decided = false;
            pending.sends = 0;
            pending.resend_after = self.timing.resend_us;
            pending.busy_after = self.timing.busy_us;
        }
        self.unsent = self.pending.iter().map(|(ticket, _)| ticket).collect();
        self.recount();
        self.session = Session::Closed;
        self.open_session(now, out);
        self.due = 0;
    }
}
