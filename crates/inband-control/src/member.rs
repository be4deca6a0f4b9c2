//! A host's side of reconfigurations, sans-I/O: it reports the host's state, and carries out the coordinator's orders
//! on its acceptor.
//!
//! An acceptor votes in an epoch only if it entered the epoch empty together with all other acceptors, or has installed
//! the merged votes for exactly this epoch. It durably notes the epoch before its first vote, so that a host that has
//! lost its memory knows where it must not vote.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::acceptor::{AcceptorError, AcceptorState, Conflict, Holds, Merged, Piece};
use crate::configuration::{Beginning, Configuration, Epoch, Identity, NodeId};
use crate::message::{
    AcceptorReport, InstallOrder, Message, Order, Pull, ReplicaPositions, Report, StoppedLog,
};
use crate::outbox::{Outbox, To};
use crate::state::Refusal;
use crate::timing::{Micros, Timing, PIECE_LEN_BYTES};

/// What an acceptor must remember even if it loses everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fences {
    /// The highest epoch it ever voted in.
    pub entered: Epoch,
    /// It never starts to vote in this epoch or a lower one.
    pub fenced: Epoch,
}

/// Storage for the [`Fences`].
pub trait Notes {
    /// Returns the last noted fences.
    fn fences(&self) -> Fences;

    /// Stores the fences; durable on return.
    fn note(&mut self, fences: Fences) -> Result<(), NoteError>;
}

/// Why a note could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the acceptor's epoch cannot be noted, so it does not vote: {0}")]
pub struct NoteError(pub String);

/// Why an order could not be carried out now. It is retried.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error(transparent)]
    Acceptor(#[from] AcceptorError),
    /// The fences could not be stored.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The other acceptors' votes conflict.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

/// The identity and addresses of this host.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    pub node: NodeId,
    pub identity: Identity,
    /// Number of this process run: durable, never reused, ascending.
    pub life: u64,
    /// Address of its control service.
    pub control: SocketAddr,
    /// The controllers known at the start.
    pub controllers: Vec<(NodeId, SocketAddr)>,
    /// A textual summary of the settings that all hosts of a cluster must share. Controllers refuse a host whose
    /// summary differs from theirs.
    pub settings: String,
    pub timing: Timing,
}

/// Protocol rules that tests break to verify that the checks detect it.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Broken {
    /// A sealed acceptor continues to vote with its own votes instead of the merged ones.
    pub survivors_keep_their_votes: bool,
    /// An acceptor that lost its memory votes in the epoch that it finds.
    pub votes_after_restart: bool,
    /// A sealed acceptor does not note that it never votes in the old epoch.
    pub fence_not_noted: bool,
}

/// A query to a source that has not been answered completely.
#[derive(Debug)]
struct Source {
    address: SocketAddr,
    from: u64,
    done: bool,
}

#[derive(Debug)]
struct Installing {
    order: InstallOrder,
    partition: usize,
    merged: Merged,
    sources: BTreeMap<NodeId, Source>,
    /// The only source is one that must have installed already.
    whole: bool,
    attempt: usize,
    /// Pieces of this partition received in this attempt, and the most in any.
    pieces: usize,
    pieces_max: usize,
    retry_at: Micros,
    stalled_at: Micros,
}

/// State whose change a coordinator waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct News {
    revision: u64,
    registers: Option<(Epoch, bool)>,
    holds: Option<Holds>,
    fences: Fences,
}

pub struct MemberAgent<A, N> {
    config: MemberConfig,
    acceptor: Option<A>,
    notes: N,
    configuration: Option<Configuration>,
    entered: bool,
    positions: Option<ReplicaPositions>,
    stopped: Vec<StoppedLog>,
    installing: Option<Installing>,
    progress: u64,
    reports: u64,
    report_at: Micros,
    told: News,
    trouble: Option<String>,
    refused: Option<Refusal>,
    #[cfg(test)]
    pub(crate) broken: Broken,
}

impl<A: AcceptorState, N: Notes> MemberAgent<A, N> {
    /// A host that has just started. Its acceptor, if it has one, does not vote yet.
    pub fn new(config: MemberConfig, acceptor: Option<A>, notes: N) -> MemberAgent<A, N> {
        MemberAgent {
            config,
            acceptor,
            notes,
            configuration: None,
            entered: false,
            positions: None,
            stopped: Vec::new(),
            installing: None,
            progress: 0,
            reports: 0,
            report_at: 0,
            told: News::default(),
            trouble: None,
            refused: None,
            #[cfg(test)]
            broken: Broken::default(),
        }
    }

    /// Returns the configuration that this host is in.
    pub fn configuration(&self) -> Option<&Configuration> {
        self.configuration.as_ref()
    }

    /// Returns the configuration entered since the last call, if any.
    pub fn take_entered(&mut self) -> Option<&Configuration> {
        let entered = std::mem::take(&mut self.entered);
        self.configuration.as_ref().filter(|_| entered)
    }

    pub fn acceptor(&self) -> Option<&A> {
        self.acceptor.as_ref()
    }

    /// Returns why an order could not be carried out; it is retried.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Returns why the cluster refuses this host, if it does.
    pub fn refused(&self) -> Option<&Refusal> {
        self.refused.as_ref()
    }

    /// Returns the epoch for which it is taking over votes, if it is.
    pub fn installing_for(&self) -> Option<Epoch> {
        self.installing.as_ref().map(|i| i.order.target)
    }

    /// Sets this replica's positions.
    pub fn set_positions(&mut self, positions: ReplicaPositions) {
        self.positions = Some(positions);
    }

    /// Sets the logs of this replica that make no progress.
    pub fn set_stopped(&mut self, stopped: Vec<StoppedLog>) {
        self.stopped = stopped;
    }

    /// Carry out an order of a coordinator.
    pub fn on_order(&mut self, now: Micros, order: Order, out: &mut Outbox) {
        let result = match order {
            Order::Enter(configuration) => self.enter(configuration),
            Order::Seal { target } => self.seal(target),
            Order::Install(order) => self.install(now, order, out),
            Order::Refused(refusal) => {
                self.refused = Some(refusal);
                return;
            }
        };
        self.note_trouble(result);
        self.report_news(now, out);
    }

    /// Another acceptor's host requests votes. Answered only while they are sealed for exactly this purpose: later
    /// votes are not for that host.
    pub fn on_pull(&mut self, pull: Pull, out: &mut Outbox) {
        let Some(acceptor) = &self.acceptor else {
            return;
        };
        let Some(holds) = self.sealed_state(&pull) else {
            return;
        };
        let partition = pull.partition as usize;
        if partition >= acceptor.partitions() {
            return;
        }
        match acceptor.export(partition, pull.from, PIECE_LEN_BYTES) {
            Ok(piece) => {
                let whole = holds.epoch == pull.target;
                out.send(To::Sender, Message::Pulled { pull, whole, piece });
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn sealed_state(&self, pull: &Pull) -> Option<Holds> {
        let acceptor = self.acceptor.as_ref()?;
        let opened = self.configuration.as_ref().map_or(0, |c| c.epoch);
        if acceptor.epoch() != pull.target || acceptor.is_voting() || opened >= pull.target {
            return None;
        }
        let holds = acceptor.holds()?;
        let serves = holds.epoch == pull.target || holds.serves(pull.base);
        serves.then_some(holds)
    }

    /// Processes the answer to a pull.
    pub fn on_pulled(
        &mut self,
        now: Micros,
        from: NodeId,
        pull: Pull,
        whole: bool,
        piece: &Piece,
        out: &mut Outbox,
    ) {
        let Some(installing) = &mut self.installing else {
            return;
        };
        let expected = pull.target == installing.order.target
            && pull.base == installing.order.base
            && pull.partition as usize == installing.partition
            && (whole || !installing.whole);
        let source = installing.sources.get_mut(&from);
        let Some(source) = source.filter(|s| expected && !s.done && s.from == pull.from) else {
            return;
        };
        source.from = piece.next.unwrap_or(source.from);
        source.done = piece.next.is_none();
        installing.stalled_at = now + self.config.timing.stall_us;
        // What comes again after a stall is no progress: while a source stays silent, the coordinator must give up.
        installing.pieces += 1;
        if installing.pieces > installing.pieces_max {
            installing.pieces_max = installing.pieces;
            self.progress += 1;
        }
        let added = installing.merged.add(piece).map_err(MemberError::from);
        self.ask(Some(from), out);
        let result = added.and_then(|()| self.install_on(now, out));
        self.note_trouble(result);
    }

    /// Call when time has passed.
    pub fn on_tick(&mut self, now: Micros, out: &mut Outbox) {
        let result = self.align().and_then(|()| self.install_again(now, out));
        self.note_trouble(result);
        if now >= self.report_at {
            self.report(now, out);
        }
        self.report_news(now, out);
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        let installing = self.installing.as_ref();
        installing.map_or(self.report_at, |i| i.retry_at.min(self.report_at))
    }

    fn note_trouble(&mut self, result: Result<(), MemberError>) {
        self.trouble = result.err().map(|error| error.to_string());
    }

    fn enter(&mut self, configuration: Configuration) -> Result<(), MemberError> {
        let known = self.configuration.as_ref().map_or(0, |c| c.revision);
        if configuration.revision <= known {
            return Ok(());
        }
        if let Some(installing) = &self.installing {
            if installing.order.target <= configuration.epoch {
                self.installing = None;
            }
        }
        self.config.controllers = configuration
            .controllers()
            .iter()
            .map(|node| (*node, configuration.members[node].control))
            .collect();
        if configuration.beginning == Beginning::Halted {
            self.positions = None; // final once the node has entered, too
        }
        self.configuration = Some(configuration);
        self.entered = true;
        self.refused = None;
        self.align()
    }

    /// Brings the acceptor into the state that the configuration requires.
    fn align(&mut self) -> Result<(), MemberError> {
        let (Some(configuration), Some(acceptor)) = (&self.configuration, &self.acceptor) else {
            return Ok(());
        };
        let epoch = configuration.epoch;
        if acceptor.epoch() > epoch || (acceptor.epoch() == epoch && acceptor.is_voting()) {
            return Ok(());
        }
        let own = configuration.members.get(&self.config.node);
        let takes_part =
            own.is_some_and(|own| own.parts.acceptor && own.identity == Some(self.config.identity));
        let fences = self.notes.fences();
        let never_here = fences.entered < epoch && fences.fenced < epoch;
        if takes_part && fences.fenced < epoch && self.may_open(epoch) {
            return self.open(epoch);
        }
        match &configuration.beginning {
            Beginning::Fresh(first) if takes_part && (never_here || self.votes_after_restart()) => {
                let first = first.clone();
                self.note_entered(epoch)?;
                if let Some(acceptor) = &mut self.acceptor {
                    acceptor.start_fresh(epoch, &first)?;
                }
                Ok(())
            }
            _ => self.seal(epoch),
        }
    }

    fn may_open(&self, epoch: Epoch) -> bool {
        let holds = self.acceptor.as_ref().and_then(|a| a.holds());
        #[cfg(test)]
        if self.broken.votes_after_restart && self.notes.fences().entered == epoch {
            return true;
        }
        holds.is_some_and(|holds| holds.epoch == epoch)
    }

    fn votes_after_restart(&self) -> bool {
        #[cfg(test)]
        return self.broken.votes_after_restart;
        #[cfg(not(test))]
        false
    }

    fn open(&mut self, epoch: Epoch) -> Result<(), MemberError> {
        self.note_entered(epoch)?;
        let Some(acceptor) = &mut self.acceptor else {
            return Ok(());
        };
        acceptor.seal(epoch)?; // already is, unless its votes survived a restart
        Ok(acceptor.open()?)
    }

    /// Required before the first vote in an epoch: after losing its memory the acceptor must not vote there again.
    fn note_entered(&mut self, epoch: Epoch) -> Result<(), MemberError> {
        let mut fences = self.notes.fences();
        if fences.entered < epoch {
            fences.entered = epoch;
            self.notes.note(fences)?;
        }
        Ok(())
    }

    /// Never vote below `target` again, in this process run or a later one.
    fn seal(&mut self, target: Epoch) -> Result<(), MemberError> {
        let Some(acceptor) = &mut self.acceptor else {
            return Ok(());
        };
        if acceptor.epoch() >= target {
            return Ok(());
        }
        let mut fences = self.notes.fences();
        if fences.fenced < target - 1 {
            fences.fenced = target - 1;
            #[cfg(test)]
            let noted = !self.broken.fence_not_noted;
            #[cfg(not(test))]
            let noted = true;
            if noted {
                self.notes.note(fences)?;
            }
        }
        Ok(acceptor.seal(target)?)
    }

    fn install(
        &mut self,
        now: Micros,
        order: InstallOrder,
        out: &mut Outbox,
    ) -> Result<(), MemberError> {
        let opened = self.configuration.as_ref().map_or(0, |c| c.epoch);
        let Some(acceptor) = &self.acceptor else {
            return Ok(());
        };
        let has = acceptor.holds().is_some_and(|h| h.epoch == order.target);
        if acceptor.epoch() > order.target || has || opened >= order.target {
            return Ok(());
        }
        self.seal(order.target)?;
        #[cfg(test)]
        if self.broken.survivors_keep_their_votes {
            if let Some(acceptor) = &mut self.acceptor {
                if acceptor.holds().is_some_and(|h| h.serves(order.base)) {
                    let (epoch, base) = (order.target, order.base);
                    return Ok(acceptor.installed(Holds { epoch, base })?);
                }
            }
        }
        if let Some(installing) = &mut self.installing {
            if installing.order.target == order.target {
                installing.order = order; // newer holders, for when its sources fall silent
                return Ok(());
            }
        }
        self.installing = Some(Installing {
            order,
            partition: 0,
            merged: Merged::default(), // made by `plan`
            sources: BTreeMap::new(),
            whole: false,
            attempt: 0,
            pieces: 0,
            pieces_max: 0,
            retry_at: now + self.config.timing.retry_us,
            stalled_at: now + self.config.timing.stall_us,
        });
        self.plan();
        self.ask(None, out);
        self.install_on(now, out)
    }

    /// Chooses the sources for the current partition: one that has everything, or all that were sealed.
    fn plan(&mut self) {
        let own = self.config.node;
        let digest = self.acceptor.as_ref().map(A::digest).unwrap_or_default();
        let Some(installing) = &mut self.installing else {
            return;
        };
        let order = &installing.order;
        let holders: Vec<_> = order.holders.iter().filter(|h| h.0 != own).collect();
        installing.whole = !holders.is_empty();
        let chosen = match holders.len() {
            0 => order.sealed.clone(),
            count => vec![*holders[installing.attempt % count]],
        };
        let source = |(node, address)| {
            let source = Source {
                address,
                from: 0,
                done: false,
            };
            (node, source)
        };
        installing.sources = chosen.into_iter().map(source).collect();
        installing.merged = Merged::of(digest);
        installing.pieces = 0;
    }

    /// Queries the sources that have not finished, or only the given one.
    fn ask(&self, only: Option<NodeId>, out: &mut Outbox) {
        let Some(installing) = &self.installing else {
            return;
        };
        for (node, source) in &installing.sources {
            let wanted = only.is_none_or(|only| only == *node);
            if source.done || !wanted || *node == self.config.node {
                continue;
            }
            let pull = Pull {
                target: installing.order.target,
                base: installing.order.base,
                partition: installing.partition as u32,
                from: source.from,
            };
            out.send(To::Node(*node, source.address), Message::Pull(pull));
        }
    }

    /// Merges this host's own votes. If a partition is complete, installs it and continues with the next one.
    fn install_on(&mut self, now: Micros, out: &mut Outbox) -> Result<(), MemberError> {
        while !self.is_all_installed() {
            self.take_own()?;
            let (Some(installing), Some(acceptor)) = (&mut self.installing, &mut self.acceptor)
            else {
                return Ok(());
            };
            if installing.sources.values().any(|source| !source.done) {
                return Ok(());
            }
            acceptor.install(installing.partition, &installing.merged)?;
            self.progress += 1;
            installing.partition += 1;
            installing.pieces_max = 0;
            if installing.partition < acceptor.partitions() {
                self.plan();
                self.ask(None, out);
            }
        }
        self.record_installed(now, out)
    }

    /// Returns whether nothing is left to install; what was installed may not be recorded yet.
    fn is_all_installed(&self) -> bool {
        let (Some(installing), Some(acceptor)) = (&self.installing, &self.acceptor) else {
            return false;
        };
        installing.partition == acceptor.partitions()
    }

    /// Records what the acceptor holds now. If that fails, it is repeated: nobody need be asked again.
    fn record_installed(&mut self, now: Micros, out: &mut Outbox) -> Result<(), MemberError> {
        let (Some(installing), Some(acceptor)) = (&self.installing, &mut self.acceptor) else {
            return Ok(());
        };
        let (epoch, base) = (installing.order.target, installing.order.base);
        acceptor.installed(Holds { epoch, base })?;
        self.installing = None;
        self.report_news(now, out);
        Ok(())
    }

    /// If this host is among the sources, merge its own votes.
    fn take_own(&mut self) -> Result<(), MemberError> {
        let (Some(installing), Some(acceptor)) = (&mut self.installing, &self.acceptor) else {
            return Ok(());
        };
        let Some(source) = installing.sources.get_mut(&self.config.node) else {
            return Ok(());
        };
        let serves = acceptor
            .holds()
            .is_some_and(|h| h.serves(installing.order.base));
        while serves && !source.done {
            let piece = acceptor.export(installing.partition, source.from, PIECE_LEN_BYTES)?;
            installing.merged.add(&piece)?;
            source.from = piece.next.unwrap_or(source.from);
            source.done = piece.next.is_none();
        }
        Ok(())
    }

    fn install_again(&mut self, now: Micros, out: &mut Outbox) -> Result<(), MemberError> {
        let is_all_installed = self.is_all_installed();
        let Some(installing) = &mut self.installing else {
            return Ok(());
        };
        if now < installing.retry_at {
            return Ok(());
        }
        installing.retry_at = now + self.config.timing.retry_us;
        if now >= installing.stalled_at && !is_all_installed {
            installing.stalled_at = now + self.config.timing.stall_us;
            installing.attempt += 1;
            self.plan();
        }
        self.ask(None, out);
        self.install_on(now, out)
    }

    /// Reports at once what the coordinator waits for. An order that changed nothing is not news: answering each of
    /// them would create an endless exchange.
    fn report_news(&mut self, now: Micros, out: &mut Outbox) {
        if self.news() != self.told {
            self.report(now, out);
        }
    }

    fn news(&self) -> News {
        News {
            revision: self.configuration.as_ref().map_or(0, |c| c.revision),
            registers: self.acceptor.as_ref().map(|a| (a.epoch(), a.is_voting())),
            holds: self.acceptor.as_ref().and_then(|a| a.holds()),
            fences: self.notes.fences(),
        }
    }

    fn report(&mut self, now: Micros, out: &mut Outbox) {
        self.told = self.news();
        self.report_at = now + self.config.timing.report_us;
        self.reports += 1;
        let positions = self.positions.as_ref();
        let report = Report {
            node: self.config.node,
            identity: self.config.identity,
            life: self.config.life,
            number: self.reports,
            control: self.config.control,
            revision: self.configuration.as_ref().map_or(0, |c| c.revision),
            acceptor: self.acceptor.as_ref().map(|a| self.acceptor_report(a)),
            applied: positions.map(|positions| positions.applied.clone()),
            durable: positions.map_or_else(Vec::new, |positions| positions.durable.clone()),
            stopped: self.stopped.clone(),
            settings: self.config.settings.clone(),
        };
        for (node, address) in &self.config.controllers {
            let message = Message::Report(report.clone());
            out.send(To::Node(*node, *address), message);
        }
    }

    fn acceptor_report(&self, acceptor: &A) -> AcceptorReport {
        let fences = self.notes.fences();
        let positions = 0..acceptor.partitions();
        AcceptorReport {
            epoch: acceptor.epoch(),
            voting: acceptor.is_voting(),
            holds: acceptor.holds(),
            entered: fences.entered,
            fenced: fences.fenced,
            progress: self.progress,
            positions: positions.map(|p| acceptor.position(p)).collect(),
        }
    }
}
