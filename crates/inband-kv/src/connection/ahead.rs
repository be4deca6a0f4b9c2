//! What is done for a connection ahead of its place in a turn, on any thread: taking its requests as far as they concern
//! nothing but the connection, and writing its replies. Nothing else depends on when that happens.

use std::io;
use std::time::Instant;

use super::{Connection, Intake, Next};
use crate::latencies::Asked;

#[derive(Debug, Default)]
pub(super) struct Ahead {
    is_under_way: bool,
    /// Requests answered meanwhile: only one thread counts them.
    pub(super) answered: Vec<Asked>,
    taken: Option<Taken>,
    /// What [`Connection::next`] has found behind them.
    found: Option<io::Result<Next>>,
    written: Option<Written>,
}

impl Ahead {
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }
}

/// What [`Connection::take_ahead`] took.
#[derive(Debug, Default)]
pub struct Taken {
    /// Number of requests.
    pub requests: u64,
    /// Number of commands that were queued.
    pub commands: usize,
    /// Their lanes.
    pub lanes: Vec<usize>,
}

/// The result of [`Connection::write`].
#[derive(Debug)]
pub struct Written {
    /// There was output that its client had not taken before.
    pub was_full: bool,
    pub result: io::Result<()>,
}

impl Connection {
    /// Takes requests up to the first one that is more than a command for a lane. [`taken`](Self::taken) must be called
    /// before anything else is done with the connection, and [`found_ahead`](Self::found_ahead) before
    /// [`next`](Self::next).
    pub fn take_ahead(&mut self, intake: &Intake<'_>, scratch: &mut [u8]) {
        if self.alone.is_some() {
            // Its reply comes first.
            return;
        }
        self.start_turn();
        let (mut taken, before) = (Taken::default(), self.requests);
        self.ahead.is_under_way = true;
        self.ahead.found = loop {
            match self.next(intake, scratch) {
                Ok(Next::Answered) => {}
                Ok(Next::Command(lane)) => {
                    taken.commands += 1;
                    if taken.lanes.last() != Some(&lane) {
                        taken.lanes.push(lane);
                    }
                }
                found => break Some(found),
            }
        };
        self.ahead.is_under_way = false;
        taken.requests = self.requests - before;
        self.ahead.taken = Some(taken);
    }

    /// Returns what was taken ahead, once.
    pub fn taken(&mut self) -> Option<Taken> {
        for asked in self.ahead.answered.drain(..) {
            self.latencies.answer(asked);
        }
        self.ahead.taken.take()
    }

    /// Returns what was found behind the requests that were taken ahead, once.
    pub fn found_ahead(&mut self) -> Option<io::Result<Next>> {
        self.ahead.found.take()
    }

    /// Writes as much output as the socket accepts; [`write`](Self::write) returns the result.
    pub fn write_ahead(&mut self, now: Instant) {
        if !self.is_over_output_limit() {
            self.ahead.written = Some(self.write(now));
        }
    }

    /// Writes as much output as the socket accepts, unless that was done ahead.
    pub fn write(&mut self, now: Instant) -> Written {
        self.ahead.written.take().unwrap_or_else(|| Written {
            was_full: !self.output.is_empty(),
            result: self.write_output(now),
        })
    }
}
