//! The drop-in library: submit, deliver, recover (CAANS, Figure 4), exactly once.
//!
//! For applications that keep their own state. [`Library`] adds the session table to a [`Node`], so that each submitted
//! value is delivered once even if it is decided twice. The C library in `bindings/c` is this type behind a header.
//!
//! The application waits ([`Library::wait`]) and takes one [`Event`] at a time ([`Library::next_event`]). Between two
//! events it may do anything: submit, recover, save, restore.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::config::{Config, Dataplane};
use crate::durable::DurableError;
use crate::host::RecoverError;
use crate::log::{Burst, Origin, ReplicatedLog, SubmitError, SubmitFailure, Ticket, ValueKind};
use crate::node::{Node, NodeError};
use crate::saved_position;
use crate::session::{SessionTable, Verdict};
use inband_ground::socket::wait_readable;
use inband_host::state_dir::StateLock;

pub use crate::saved_position::RestoreError;

/// The library has one log.
const PARTITION: usize = 0;

/// Most answers to [`Library::recover`] that the application has not taken yet.
pub const RECOVERIES_OPEN_MAX: usize = 1024;

/// Interval between [`Event::StateNeeded`] events while the state has not been restored.
const STATE_NEEDED_REPEAT: Duration = Duration::from_secs(1);

/// What a delivery means to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryKind {
    /// A value that was not delivered before: apply it. In instance order, each submitted value once, the same on all
    /// replicas.
    New,
    /// Answer to [`Library::recover`]: the value that the instance holds. It was delivered before or is permanently
    /// refused; do not apply it.
    Replay,
    /// Answer to [`Library::recover`]: the instance holds no application value; the value is the no-op that was
    /// decided.
    Noop,
}

/// A value for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The instance in which it was decided.
    pub instance: u64,
    /// Set if this process submitted it and `kind` is [`DeliveryKind::New`].
    pub ticket: Option<Ticket>,
    /// How to handle it.
    pub kind: DeliveryKind,
    pub value: &'a [u8],
}

/// An event for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    Delivery(Delivery<'a>),
    /// A submission ended without a delivery.
    Failed(Ticket, SubmitFailure),
    /// A submission ended without a delivery because its value was decided before the restored position: its effect is
    /// in that state.
    InRestoredState(Ticket),
    /// A recovery of this instance ended without a delivery.
    RecoverFailed(u64, RecoverFailure),
    /// This replica is further behind than its peers' logs reach; it needs their state, which only the application can
    /// copy. Restore it with [`Library::restore`]. Repeated every second until then.
    StateNeeded,
}

/// Why a recovery ended without a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverFailure {
    /// Whether the instance holds a value is unknown; the recovery may be repeated.
    #[error("no majority of acceptors has decided the instance within {0} ms")]
    OutcomeUnknown(u64),
    /// The restored position is beyond that instance: its effect is in that state.
    #[error("the instance is in the state that was restored")]
    InRestoredState,
}

/// Why an instance cannot be recovered. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LibraryRecoverError {
    /// The host cannot recover it.
    #[error(transparent)]
    Host(#[from] RecoverError),
    /// The no-op does not fit in one packet.
    #[error("no-op of {len_bytes} bytes is over the limit of {limit_bytes} bytes of one packet")]
    TooLong {
        /// Length of the no-op.
        len_bytes: usize,
        limit_bytes: usize,
    },
    /// Too many recoveries are unanswered.
    #[error("{RECOVERIES_OPEN_MAX} instances are under recovery already; wait for their answers")]
    TooMany,
}

/// The answer to a recovery of an instance that was delivered before.
#[derive(Debug)]
struct Replay {
    instance: u64,
    kind: DeliveryKind,
    value: Vec<u8>,
}

/// A pending event other than a delivery.
#[derive(Debug)]
enum Notice {
    Failed(Ticket, SubmitFailure),
    InRestoredState(Ticket),
    RecoverFailed(u64, RecoverFailure),
    StateNeeded,
}

/// Owned and driven by one thread.
pub struct Library {
    node: Node,
    // Released after the node has ended.
    _state_lock: StateLock,
    sessions: SessionTable,
    /// Last instance delivered.
    applied: u64,
    /// Last instance reported to the node as applied.
    told: u64,
    burst: Burst,
    /// How many instances of `burst` have been taken.
    taken: usize,
    /// Submissions without an outcome.
    submitted: HashSet<Ticket>,
    /// Instances under recovery at the application's request, with their deadlines.
    recovering: BTreeMap<u64, Instant>,
    recover_deadline: Duration,
    replays: VecDeque<Replay>,
    /// The last replay returned; the application borrows its value.
    replayed: Option<Replay>,
    notices: VecDeque<Notice>,
    /// When [`Event::StateNeeded`] is repeated; `None`: no state is needed.
    state_needed_again: Option<Instant>,
}

impl Library {
    /// Starts this host. `saved` is the result of [`Library::save`] if the application has state. Without it the
    /// application starts empty, before the first instance ever; in any epoch but the first it will be told that state
    /// is needed.
    ///
    /// `dataplane` is what `auto` was resolved to, see [`crate::backend::resolve`].
    pub fn open(
        config: &Config,
        dataplane: Dataplane,
        saved: Option<&[u8]>,
    ) -> Result<Library, LibraryError> {
        let (applied, sessions) = match saved {
            Some(saved) => saved_position::decode(saved)?,
            None => (0, SessionTable::new()),
        };
        if config.logs() != 1 {
            return Err(LibraryError::Partitions(config.cluster.partitions));
        }
        let state_lock = StateLock::take(&config.host.state_dir)
            .map_err(|error| NodeError::from(DurableError::from(error)))?;
        let node = Node::open(config, dataplane, &[applied])?;
        Ok(Library {
            node,
            _state_lock: state_lock,
            sessions,
            applied,
            told: applied,
            burst: Burst::new(),
            taken: 0,
            submitted: HashSet::new(),
            recovering: BTreeMap::new(),
            recover_deadline: Duration::from_millis(config.host.timing.submit_deadline_ms),
            replays: VecDeque::new(),
            replayed: None,
            notices: VecDeque::new(),
            state_needed_again: None,
        })
    }

    /// Submits a value of at most [`ReplicatedLog::max_value_len_bytes`]. An event with its ticket reports the outcome
    /// within the configured deadline. Values submitted later may be decided earlier.
    pub fn submit(&mut self, value: &[u8]) -> Result<Ticket, SubmitError> {
        let ticket = self.node.submit(PARTITION, value)?;
        // The caller may not call this library again soon.
        self.node.send_submitted();
        self.submitted.insert(ticket);
        Ok(ticket)
    }

    /// Finds out what was decided in `instance`, or decides `noop` there. The answer is one delivery of that instance:
    /// as [`DeliveryKind::New`] in instance order if its value is new, otherwise as [`DeliveryKind::Replay`] or
    /// [`DeliveryKind::Noop`]; an instance delivered before is answered with the next events. Without an answer within
    /// the submission deadline, the result is [`Event::RecoverFailed`]. Two requests for the same instance before the
    /// answer get one answer.
    pub fn recover(&mut self, instance: u64, noop: &[u8]) -> Result<(), LibraryRecoverError> {
        let limit_bytes = self.node.max_value_len_bytes();
        if noop.len() > limit_bytes {
            return Err(LibraryRecoverError::TooLong {
                len_bytes: noop.len(),
                limit_bytes,
            });
        }
        if self.replays.len() + self.recovering.len() >= RECOVERIES_OPEN_MAX {
            return Err(LibraryRecoverError::TooMany);
        }
        let mut known = None;
        self.node
            .recover(PARTITION, instance, noop, &mut |origin, value| {
                known = Some(Replay {
                    instance,
                    kind: replay_kind(&origin),
                    value: value.to_vec(),
                });
            })?;
        match known {
            // Learned and delivered: answered from the node's log.
            Some(replay) if instance <= self.applied => self.replays.push_back(replay),
            // Learned and in a burst that was not taken yet, or still to be learned.
            _ => {
                self.recovering
                    .insert(instance, Instant::now() + self.recover_deadline);
            }
        }
        Ok(())
    }

    /// Does what is ready, and waits at most `timeout` until there is an event. `true`: call [`Library::next_event`]
    /// until there are no more. `wake` ends the wait when it becomes readable.
    pub fn wait(&mut self, timeout: Duration, wake: Option<BorrowedFd<'_>>) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            self.poll();
            if self.has_events() {
                return true;
            }
            let left = deadline.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            if left.is_zero() || self.sleep(left.min(self.node.poll_timeout()), wake) {
                return false;
            }
        }
    }

    /// Reports to the other replicas what the application has applied: acceptors and leaders may reuse these slots.
    fn report_applied(&mut self) {
        if self.told != self.applied {
            self.told = self.applied;
            self.node.applied(PARTITION, self.applied);
        }
    }

    /// Does what is ready, without waiting.
    fn poll(&mut self) {
        // A run may be stopped right after its last event.
        self.report_applied();
        if self.taken == self.burst.decided().len() {
            self.burst.clear();
            self.taken = 0;
        }
        self.node.poll(std::slice::from_mut(&mut self.burst));
        for (ticket, failure) in self.burst.failed.drain(..) {
            self.submitted.remove(&ticket);
            self.notices.push_back(Notice::Failed(ticket, failure));
        }
        let now = Instant::now();
        if !std::mem::take(&mut self.burst.checkpoint_needed) {
            self.state_needed_again = None;
        } else if self.state_needed_again.is_none_or(|at| now >= at) {
            self.state_needed_again = Some(now + STATE_NEEDED_REPEAT);
            self.notices.push_back(Notice::StateNeeded);
        }
        let unknown = RecoverFailure::OutcomeUnknown(self.recover_deadline.as_millis() as u64);
        let notices = &mut self.notices;
        self.recovering.retain(|instance, deadline| {
            let over = now >= *deadline;
            if over {
                notices.push_back(Notice::RecoverFailed(*instance, unknown));
            }
            !over
        });
    }

    fn has_events(&self) -> bool {
        self.taken < self.burst.decided().len()
            || !self.replays.is_empty()
            || !self.notices.is_empty()
    }

    /// Sleeps until something arrives; `true` if `wake` became readable.
    fn sleep(&self, timeout: Duration, wake: Option<BorrowedFd<'_>>) -> bool {
        let wake_fd = wake.map_or(-1, |fd| fd.as_raw_fd());
        let fds = [wake_fd].into_iter().chain(self.node.wake_fds());
        wait_readable(fds, timeout)[0]
    }

    /// Returns the next event, if there is one. A delivery counts as applied from here on: if the application saves its
    /// position before the next event, that instance is included.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        if let Some(replay) = self.replays.pop_front() {
            let Replay {
                instance,
                kind,
                value,
            } = self.replayed.insert(replay);
            let (instance, kind) = (*instance, *kind);
            return Some(Event::Delivery(Delivery {
                instance,
                ticket: None,
                kind,
                value,
            }));
        }
        while let Some(decided) = self.burst.get(self.taken) {
            let (instance, origin, ticket) = (decided.instance, decided.origin, decided.ticket);
            let at = self.taken;
            self.taken += 1;
            if instance <= self.applied {
                self.skipped(&origin, ticket);
                continue;
            }
            if let Some(kind) = self.admit(instance, &origin, ticket) {
                let value = self.burst.get(at)?.value;
                let ticket = ticket.filter(|_| kind == DeliveryKind::New);
                return Some(Event::Delivery(Delivery {
                    instance,
                    ticket,
                    kind,
                    value,
                }));
            }
        }
        self.report_applied();
        Some(match self.notices.pop_front()? {
            Notice::Failed(ticket, failure) => Event::Failed(ticket, failure),
            Notice::InRestoredState(ticket) => Event::InRestoredState(ticket),
            Notice::RecoverFailed(instance, failure) => Event::RecoverFailed(instance, failure),
            Notice::StateNeeded => Event::StateNeeded,
        })
    }

    /// Determines whether a decided instance results in an event for the application.
    fn admit(
        &mut self,
        instance: u64,
        origin: &Origin,
        ticket: Option<Ticket>,
    ) -> Option<DeliveryKind> {
        let verdict = self.sessions.admit(instance, origin);
        self.applied = instance;
        if let Some(ticket) = ticket {
            if verdict == Verdict::Refused {
                self.node.session_refused(ticket);
            } else {
                self.node.answered(ticket);
                // Not reported before, and yet a duplicate: a restore skipped its first decision.
                if self.submitted.remove(&ticket) && verdict == Verdict::Duplicate {
                    self.notices.push_back(Notice::InRestoredState(ticket));
                }
            }
        }
        let recovered = self.recovering.remove(&instance).is_some();
        match verdict {
            Verdict::Apply => Some(DeliveryKind::New),
            Verdict::Duplicate | Verdict::Refused | Verdict::Nothing => {
                recovered.then(|| replay_kind(origin))
            }
        }
    }

    /// A decision below a restored position: the restored sessions show whether the state includes it.
    fn skipped(&mut self, origin: &Origin, ticket: Option<Ticket>) {
        let Some(ticket) = ticket else { return };
        self.node.answered(ticket);
        if self.submitted.remove(&ticket) {
            self.notices
                .push_back(if self.sessions.is_open(origin.client_id) {
                    Notice::InRestoredState(ticket)
                } else {
                    let waited_ms = self.recover_deadline.as_millis() as u64;
                    Notice::Failed(ticket, SubmitFailure::OutcomeUnknown(waited_ms))
                });
        }
    }

    /// Last instance processed, with or without a delivery: not all instances hold something to deliver.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Position and sessions, to be stored with the application's state and passed to [`Library::open`] or
    /// [`Library::restore`]. Equal on all replicas at the same position.
    pub fn save(&self) -> Vec<u8> {
        saved_position::encode(self.applied, &self.sessions)
    }

    /// Continues after a state copied from a peer.
    pub fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let (applied, sessions) = saved_position::decode(saved)?;
        if applied < self.applied {
            return Err(RestoreError::TooOld {
                saved: applied,
                delivered: self.applied,
            });
        }
        // What the node has learned above that position is kept; anything below is skipped when it is taken.
        if self
            .node
            .host()
            .partition(PARTITION)
            .learner()
            .is_none_or(|learner| learner.next() <= applied + 1)
        {
            self.burst.clear();
            self.taken = 0;
            self.node.reset(PARTITION, applied);
            self.told = applied;
        }
        (self.applied, self.sessions) = (applied, sessions);
        let above = self.recovering.split_off(&(applied + 1));
        for instance in std::mem::replace(&mut self.recovering, above).into_keys() {
            let failure = RecoverFailure::InRestoredState;
            self.notices
                .push_back(Notice::RecoverFailed(instance, failure));
        }
        self.notices
            .retain(|notice| !matches!(notice, Notice::StateNeeded));
        self.state_needed_again = None;
        Ok(())
    }

    /// Returns the node, for status and counters.
    pub fn node(&self) -> &Node {
        &self.node
    }
}

/// Returns the kind of answer for an instance that is not delivered as new.
fn replay_kind(origin: &Origin) -> DeliveryKind {
    match origin.kind {
        ValueKind::Command => DeliveryKind::Replay,
        ValueKind::Noop | ValueKind::OpenSession => DeliveryKind::Noop,
    }
}

/// Why a library did not start.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The node did not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The saved position is invalid.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The cluster has several logs.
    #[error("cluster.partitions = {0}: the library has one log; give it a cluster of its own with partitions = 1")]
    Partitions(u32),
}
