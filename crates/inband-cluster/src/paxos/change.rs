//! Membership changes, carried out by the control plane: requested, then awaited until they are in force. The
//! supervisor and the command line both use this.

use std::time::{Duration, Instant};

use inband_control::configuration::{Beginning, Epoch, NodeId};
use inband_control::coordinator::Waiting;
pub use inband_control::first::member_of;
use inband_control::service::{CallError, Request, Response, Status};
use inband_control::state::{Phase, Refusal};

/// How long to retry when the control plane refuses for a temporary reason.
pub const ACCEPT_LIMIT: Duration = Duration::from_secs(15);
/// How long a change may make no progress.
pub const STALL_LIMIT: Duration = Duration::from_secs(60);

/// Why the control plane did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// No host could be asked.
    #[error("no host is running that could reach the control plane; see `inband status`")]
    NoHost,
    /// The request is invalid, or not possible now.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request may still be executed.
    #[error("it is unknown whether the control plane executed the request; see `inband member list` before trying again")]
    Unknown,
    #[error("the control plane does not answer: {0}")]
    Silent(String),
}

impl From<CallError> for PlaneError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            CallError::OutcomeUnknown => PlaneError::Unknown,
            CallError::NoAnswer(_) => PlaneError::Silent(error.to_string()),
        }
    }
}

impl PlaneError {
    /// Returns whether a retry may succeed a moment later.
    pub fn is_passing(&self) -> bool {
        let passing = |refusal: &Refusal| {
            matches!(
                refusal,
                Refusal::NotHeard(_)
                    | Refusal::PositionUnknown(_)
                    | Refusal::NotDurable { .. }
                    | Refusal::Busy(_)
                    | Refusal::Overtaken { .. }
                    | Refusal::TooFewHealthy { .. }
                    | Refusal::NotFounded
            )
        };
        match self {
            PlaneError::Refused(refusal) => passing(refusal),
            PlaneError::NoHost => false,
            PlaneError::Unknown | PlaneError::Silent(_) => true,
        }
    }
}

/// Access to the control plane, and to the user who waits for the change.
pub trait Plane {
    /// Returns the control plane's answer; a refusal is an error.
    fn ask(&self, request: &Request) -> Result<Response, PlaneError>;

    /// Reports what is being done.
    fn say(&self, what: String);

    /// Sleeps briefly; returns false if waiting is to be aborted.
    fn wait_a_little(&self) -> bool;

    /// Returns the control plane's status.
    fn status(&self) -> Result<Status, PlaneError> {
        match self.ask(&Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Response) -> PlaneError {
    PlaneError::Silent(format!("an unexpected answer: {answer:?}"))
}

/// Why a change did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The control plane did not accept it.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// Accepted, then abandoned.
    #[error("the change made no progress and was abandoned; epoch {0} is in force, with the previous members")]
    GivenUp(Epoch),
    #[error("the change is accepted for epoch {epoch}, but has made no progress for {} s ({why}); it continues in the background, see `inband member list`", STALL_LIMIT.as_secs())]
    Stalled {
        /// The epoch that the change would start.
        epoch: Epoch,
        /// What the change is waiting for.
        why: String,
    },
    /// The waiting process was told to end.
    #[error("interrupted before the outcome of the change was known; see `inband member list`")]
    BrokenOff,
}

/// The intended result of a membership change.
#[derive(Debug, Clone, Copy)]
pub struct Goal {
    /// A node that must be a member.
    pub comes: Option<NodeId>,
    /// A node that must not be one.
    pub goes: Option<NodeId>,
}

impl Goal {
    /// Returns whether the members are as intended.
    pub fn is_reached(&self, status: &Status) -> bool {
        let Some(opened) = &status.opened else {
            return false;
        };
        let is_member = |node: NodeId| opened.members.contains_key(&node);
        self.comes.is_none_or(is_member) && !self.goes.is_some_and(is_member)
    }

    /// Returns the epoch of a reconfiguration in progress that leads to this goal.
    pub fn is_pending(&self, status: &Status) -> Option<Epoch> {
        let target = &status.pending.as_ref()?.target;
        let will_be = |node: NodeId| target.members.contains_key(&node);
        let comes = self.comes.is_none_or(will_be);
        (comes && !self.goes.is_some_and(will_be)).then_some(target.epoch)
    }
}

/// How a change failed.
#[derive(Debug)]
pub enum Failure {
    /// It will not take effect.
    Undone(ChangeError),
    /// It may still take effect.
    Open(ChangeError),
}

impl Failure {
    pub fn error(self) -> ChangeError {
        match self {
            Failure::Undone(error) | Failure::Open(error) => error,
        }
    }
}

/// Requests a change and waits until it is in force.
pub fn carry_out(plane: &dyn Plane, request: &Request, goal: Goal) -> Result<(), Failure> {
    let epoch = begin(plane, request, goal)?;
    wait_until_reached(plane, goal, epoch)
}

/// Requests the change. Returns the epoch in which it takes effect.
fn begin(plane: &dyn Plane, request: &Request, goal: Goal) -> Result<Epoch, Failure> {
    let began = Instant::now();
    let mut may_be_accepted = false;
    loop {
        let error = match plane.ask(request) {
            Ok(Response::Accepted { epoch }) => return Ok(epoch),
            Ok(other) => unexpected(&other),
            Err(error) => error,
        };
        may_be_accepted |= matches!(error, PlaneError::Unknown);
        // An earlier attempt may have taken effect, or be in progress.
        if let Ok(status) = plane.status() {
            if goal.is_reached(&status) {
                return Ok(status.opened.map_or(0, |opened| opened.epoch));
            }
            if let Some(epoch) = goal.is_pending(&status) {
                return Ok(epoch);
            }
            // A refusal is decided after all earlier attempts.
            may_be_accepted &= !matches!(error, PlaneError::Refused(_));
        }
        let fail = |error: ChangeError| match may_be_accepted {
            true => Failure::Open(error),
            false => Failure::Undone(error),
        };
        if !error.is_passing() || began.elapsed() >= ACCEPT_LIMIT {
            return Err(fail(error.into()));
        }
        plane.say(format!("the control plane: {error}; asking again"));
        if !plane.wait_a_little() {
            return Err(fail(ChangeError::BrokenOff));
        }
    }
}

/// Waits until the change that was accepted for `epoch` is in force.
fn wait_until_reached(plane: &dyn Plane, goal: Goal, epoch: Epoch) -> Result<(), Failure> {
    let mut watch = Watch::default();
    loop {
        match plane.status() {
            Ok(status) => {
                if goal.is_reached(&status) {
                    return Ok(());
                }
                let opened = status.opened.as_ref().map_or(0, |opened| opened.epoch);
                if status.pending.is_none() && opened >= epoch {
                    return Err(Failure::Undone(ChangeError::GivenUp(opened)));
                }
                plane.say(format!("epoch {epoch}: {}", phase(&status)));
                let pending = status.pending.as_ref();
                let phase = pending.map(|p| (p.target.epoch, &p.phase));
                watch.look(format!("{:?}", (opened, phase, progress(&status))));
            }
            Err(error) => plane.say(error.to_string()),
        }
        if watch.is_stalled() {
            let why = in_words(&plane.status());
            return Err(Failure::Open(ChangeError::Stalled { epoch, why }));
        }
        if !plane.wait_a_little() {
            return Err(Failure::Open(ChangeError::BrokenOff));
        }
    }
}

/// Notices when there is no more progress.
#[derive(Debug)]
pub struct Watch {
    last: String,
    moved_at: Instant,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            last: String::new(),
            moved_at: Instant::now(),
        }
    }
}

impl Watch {
    /// Records the current state.
    pub fn look(&mut self, now: String) {
        if now != self.last {
            self.last = now;
            self.moved_at = Instant::now();
        }
    }

    /// Returns whether the state has not changed for too long.
    pub fn is_stalled(&self) -> bool {
        self.moved_at.elapsed() >= STALL_LIMIT
    }
}

/// Returns how much of the state that acceptors take over has been transferred.
fn progress(status: &Status) -> u64 {
    let acceptors = status
        .hosts
        .iter()
        .filter_map(|host| host.acceptor.as_ref());
    acceptors.map(|acceptor| acceptor.progress).sum()
}

/// Returns the phase of a reconfiguration, in words.
fn phase(status: &Status) -> &'static str {
    match status.pending.as_ref().map(|pending| &pending.phase) {
        None => "about to begin",
        Some(Phase::Sealing) => "a majority of the acceptors stops voting in the old epoch",
        Some(Phase::Installing { .. }) => "acceptors take over votes, new replicas catch up",
    }
}

/// Returns the state of a reconfiguration, and what it is waiting for, in words.
pub fn in_words(status: &Result<Status, PlaneError>) -> String {
    let status = match status {
        Ok(status) => status,
        Err(error) => return error.to_string(),
    };
    let Some(opened) = &status.opened else {
        return "the control plane has not been founded: all its hosts must be up at once, the \
                first time"
            .to_owned();
    };
    let names = |nodes: &[NodeId]| {
        let name = |node: &NodeId| {
            let member = opened.members.get(node);
            member.map_or_else(|| format!("node {node}"), |m| m.name.clone())
        };
        nodes.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    if opened.beginning == Beginning::Halted {
        return "the cluster is halted until it begins anew behind what the replicas have: repeat `inband member \
                begin-anew`"
            .into();
    }
    match (&status.waiting, &status.pending) {
        (Waiting::MajorityLost(nodes), _) => {
            format!(
                "so many acceptors have lost their votes ({}) that what was chosen cannot be known",
                names(nodes)
            )
        }
        (Waiting::Unreachable(nodes), _) => {
            format!("the control plane waits for {}", names(nodes))
        }
        (Waiting::Nothing, Some(pending)) => {
            format!("epoch {} is being prepared", pending.target.epoch)
        }
        (Waiting::Nothing, None) => format!("epoch {} is in force", opened.epoch),
    }
}
