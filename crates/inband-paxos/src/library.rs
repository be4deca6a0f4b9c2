//! The drop-in library: submit, deliver, recover (CAANS, Figure 4), exactly once.
//!
//! For applications that keep their own state. [`Library`] adds to a [`Node`] the session table, so
//! that each submitted value is delivered once though it may be decided twice. The C library in
//! `bindings/c` is this type behind a header.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use crate::config::{Config, Dataplane};
use crate::host::RecoverError;
use crate::log::{Burst, ReplicatedLog, SubmitError, SubmitFailure, Ticket};
use crate::node::{Node, NodeError};
use crate::session::{SessionTable, Verdict};

/// A value for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The instance it was decided in.
    pub instance: u64,
    /// Set if this very process submitted it.
    pub ticket: Option<Ticket>,
    /// The value.
    pub value: &'a [u8],
}

/// What the application gets to see.
pub trait Application {
    /// A decided value, in instance order, each submitted value once.
    fn deliver(&mut self, delivery: Delivery<'_>);
    /// A submission that ended without a delivery.
    fn failed(&mut self, ticket: Ticket, failure: SubmitFailure);
    /// This replica is further behind than its peers remember; it needs their state, which only the
    /// application can copy. Restore it with [`Library::restore`].
    fn state_needed(&mut self);
}

/// Why a saved position cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The bytes were not made by [`Library::save`].
    #[error("the saved position is damaged at byte {0}; restore it from another copy")]
    Damaged(usize),
    /// It is older than what was delivered already.
    #[error("the saved position ends at instance {saved}, but {delivered} was delivered already")]
    TooOld {
        /// Last instance of the saved position.
        saved: u64,
        /// Last instance delivered here.
        delivered: u64,
    },
}

/// See the module. Owned and driven by one thread.
pub struct Library {
    node: Node,
    sessions: SessionTable,
    applied: u64,
    burst: Burst,
}

impl Library {
    /// Start this host, with what [`Library::save`] made, if the application has state.
    pub fn open(
        config: &Config,
        dataplane: Dataplane,
        saved: Option<&[u8]>,
    ) -> Result<Library, LibraryError> {
        let (applied, sessions) = match saved {
            Some(saved) => decode(saved)?,
            None => (config.cluster.first_instance - 1, SessionTable::new()),
        };
        let node = Node::open(config, dataplane, applied)?;
        Ok(Library { node, sessions, applied, burst: Burst::new() })
    }

    /// Submit a value of at most [`ReplicatedLog::max_value_len_bytes`]; it comes back through
    /// [`Application::deliver`] or [`Application::failed`] within the configured deadline.
    pub fn submit(&mut self, value: &[u8]) -> Result<Ticket, SubmitError> {
        self.node.submit(value)
    }

    /// Find out what was decided in `instance`, or decide `noop` there. A value that was delivered
    /// before is delivered again at once; a later one comes in its order. No-ops are not delivered.
    pub fn recover(
        &mut self,
        instance: u64,
        noop: &[u8],
        application: &mut dyn Application,
    ) -> Result<(), RecoverError> {
        self.node.recover(instance, noop, &mut |value| {
            application.deliver(Delivery { instance, ticket: None, value });
        })
    }

    /// Deliver what is decided; wait at most `timeout` if nothing is.
    pub fn run_once(&mut self, timeout: Duration, application: &mut dyn Application) {
        let deadline = Instant::now() + timeout;
        loop {
            let mut burst = std::mem::take(&mut self.burst);
            self.node.poll(&mut burst);
            let idle = burst.is_empty();
            self.hand_over(&burst, application);
            burst.clear();
            self.burst = burst;
            let left = deadline.saturating_duration_since(Instant::now());
            if !idle || left.is_zero() {
                return;
            }
            self.wait(left.min(self.node.poll_timeout()));
        }
    }

    fn hand_over(&mut self, burst: &Burst, application: &mut dyn Application) {
        for decided in burst.decided() {
            let verdict = self.sessions.admit(decided.instance, &decided.origin);
            if verdict == Verdict::Apply {
                application.deliver(Delivery {
                    instance: decided.instance,
                    ticket: decided.ticket,
                    value: decided.value,
                });
            }
            if let Some(ticket) = decided.ticket {
                match verdict {
                    Verdict::Refused => self.node.session_refused(ticket),
                    Verdict::Apply | Verdict::Duplicate | Verdict::Nothing => {
                        self.node.answered(ticket);
                    }
                }
            }
            self.applied = decided.instance;
        }
        if burst.decided().len() > 0 {
            self.node.applied(self.applied);
        }
        for (ticket, failure) in &burst.failed {
            application.failed(*ticket, *failure);
        }
        if burst.checkpoint_needed {
            application.state_needed();
        }
    }

    fn wait(&self, timeout: Duration) {
        let fds = self.node.wake_fds();
        // Rounded up: a wait of zero while something is due in half a millisecond would spin.
        let timeout_ms = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        let borrowed: Vec<BorrowedFd<'_>> =
            fds.iter().filter_map(|fd| inband_dataplane::socket::borrow(*fd)).collect();
        let mut polled: Vec<PollFd<'_>> =
            borrowed.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        // An interrupted wait is a short one.
        let _ = poll(&mut polled, PollTimeout::from(timeout_ms));
    }

    /// Last instance delivered.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Position and sessions, to be kept with the application's state and given to
    /// [`Library::open`] or [`Library::restore`].
    pub fn save(&self) -> Vec<u8> {
        let mut out = self.applied.to_be_bytes().to_vec();
        for id in self.sessions.ids() {
            if let Some(record) = self.sessions.encode_session(id) {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&(record.len() as u64).to_be_bytes());
                out.extend_from_slice(&record);
            }
        }
        out
    }

    /// Continue behind a state copied from a peer.
    pub fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let (applied, sessions) = decode(saved)?;
        if applied < self.applied {
            return Err(RestoreError::TooOld { saved: applied, delivered: self.applied });
        }
        self.node.reset(applied);
        (self.applied, self.sessions) = (applied, sessions);
        Ok(())
    }

    /// The node, for status and counters.
    pub fn node(&self) -> &Node {
        &self.node
    }
}

/// Why a library did not start.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The saved position.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

fn decode(saved: &[u8]) -> Result<(u64, SessionTable), RestoreError> {
    let word = |at: usize| -> Result<u64, RestoreError> {
        let bytes = saved.get(at..at + 8).ok_or(RestoreError::Damaged(at))?;
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        Ok(u64::from_be_bytes(word))
    };
    let applied = word(0)?;
    let mut sessions = SessionTable::new();
    let mut at = 8;
    while at < saved.len() {
        let (id, len_bytes) = (word(at)?, word(at + 8)? as usize);
        let start = at + 16;
        let end = start.checked_add(len_bytes).ok_or(RestoreError::Damaged(at))?;
        let record = saved.get(start..end).ok_or(RestoreError::Damaged(start))?;
        if !sessions.decode_session(id, record) {
            return Err(RestoreError::Damaged(start));
        }
        at = end;
    }
    Ok((applied, sessions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named_by_its_place() {
        assert_eq!(decode(&[1, 2]).unwrap_err(), RestoreError::Damaged(0));
        let mut saved = 7u64.to_be_bytes().to_vec();
        assert_eq!(decode(&saved).unwrap().0, 7);
        saved.extend_from_slice(&[0; 9]);
        assert_eq!(decode(&saved).unwrap_err(), RestoreError::Damaged(16));
    }
}
