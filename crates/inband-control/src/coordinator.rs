//! The coordinator, sans-I/O. It runs on the host that leads the controllers, and turns hosts' reports into commands
//! for the replicated log and orders for hosts.
//!
//! It has no state that must survive. Two coordinators at the same time, or an outdated one, do no harm: only the order
//! of commands in the log counts, and an order carries the epoch of its reconfiguration.

mod restart;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::acceptor::Position;
use crate::configuration::{majority, Configuration, Epoch, NodeId};
use crate::message::{AcceptorReport, InstallOrder, Message, Order, Report};
use crate::outbox::{Outbox, To};
use crate::state::{Change, Command, Pending, Phase, Refusal, State};
use crate::timing::{Micros, Timing};

/// Protocol rules that tests break to verify that the checks detect it.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Broken {
    /// Acceptors that lost their memory count towards the sealed majority.
    pub forgetful_count: bool,
    /// Each acceptor merges its own choice of a majority.
    pub sealed_not_fixed: bool,
    /// An epoch is opened before any acceptor has installed.
    pub opens_early: bool,
    /// An acceptor that never voted counts before it has noted that it never will.
    pub fence_not_awaited: bool,
}

/// A host's latest report, and when it arrived.
#[derive(Debug, Clone)]
pub struct LastReport {
    pub report: Report,
    /// When it arrived.
    pub at: Micros,
}

/// Why there is no reconfiguration although an acceptor does not vote, or why one makes no progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    Nothing,
    /// Acceptors that are needed cannot be reached.
    Unreachable(Vec<NodeId>),
    /// Too many acceptors have lost their memory to determine what was chosen.
    MajorityLost(Vec<NodeId>),
}

pub struct Coordinator {
    timing: Timing,
    hosts: BTreeMap<NodeId, LastReport>,
    /// When it started to listen without a long pause, and when it last listened: before enough time has passed it may
    /// not have heard from live hosts.
    listened: Option<(Micros, Micros)>,
    /// It has listened long enough once, since it was created.
    is_informed: bool,
    /// Since when an acceptor that could vote has not been voting.
    idle_since: Option<Micros>,
    backoff: Micros,
    repair_not_before: Micros,
    /// The reconfiguration in progress: epoch, phase, and progress.
    watched: (Epoch, bool, u64),
    moved_at: Micros,
    majority_installed_at: Option<Micros>,
    proposed: Option<Command>,
    propose_at: Micros,
    due: Micros,
    waiting: Waiting,
    #[cfg(test)]
    pub(crate) broken: Broken,
}

impl Coordinator {
    /// A new coordinator without reports.
    pub fn new(timing: Timing) -> Coordinator {
        Coordinator {
            timing,
            hosts: BTreeMap::new(),
            listened: None,
            is_informed: false,
            idle_since: None,
            backoff: timing.backoff_us,
            repair_not_before: 0,
            watched: (0, false, 0),
            moved_at: 0,
            majority_installed_at: None,
            proposed: None,
            propose_at: 0,
            due: 0,
            waiting: Waiting::Nothing,
            #[cfg(test)]
            broken: Broken::default(),
        }
    }

    /// The latest reports, by host.
    pub fn hosts(&self) -> &BTreeMap<NodeId, LastReport> {
        &self.hosts
    }

    /// Returns why the cluster cannot repair itself, if it is blocked.
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Processes a host's report and sends the host its orders. Returns a command to propose, if the report requires
    /// one.
    pub fn on_report(
        &mut self,
        now: Micros,
        report: Report,
        state: &State,
        out: &mut Outbox,
    ) -> Option<Command> {
        self.listen(now);
        if let Err(refusal) = state.check_identity(report.node, report.identity) {
            let to = To::Node(report.node, report.control);
            out.send(to, Message::Order(Order::Refused(refusal)));
            return None;
        }
        let age = |r: &Report| (r.life, r.number);
        let node = report.node;
        match self.hosts.get(&node) {
            Some(heard) if age(&heard.report) >= age(&report) => return None,
            _ => self.hosts.insert(node, LastReport { report, at: now }),
        };
        self.instruct(node, state, out);
        self.register(state)
            .or_else(|| self.decide(now, state))
            .and_then(|command| self.propose(now, command))
    }

    /// Call when time has passed or a command was applied.
    pub fn on_tick(&mut self, now: Micros, state: &State, out: &mut Outbox) -> Option<Command> {
        self.listen(now);
        if now >= self.due {
            self.due = now + self.timing.retry_us;
            let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
            for node in nodes {
                self.instruct(node, state, out);
            }
        }
        self.decide(now, state)
            .and_then(|command| self.propose(now, command))
    }

    fn listen(&mut self, now: Micros) {
        let alive_us = self.timing.alive_us;
        let unbroken = self.listened.filter(|(_, last)| now <= last + alive_us);
        self.listened = Some((unbroken.map_or(now, |(since, _)| since), now));
        self.is_informed |= self.has_listened(now);
    }

    /// Returns whether it can say who is up: it has heard from all members, or long enough not to miss a live one.
    pub fn knows_who_is_up(&self, state: &State) -> bool {
        let is_heard = |node: &NodeId| self.hosts.contains_key(node);
        let opened = state.opened.as_ref();
        self.is_informed || opened.is_none_or(|opened| opened.members.keys().all(is_heard))
    }

    /// Returns whether it has listened long enough to have heard from every live host.
    fn has_listened(&self, now: Micros) -> bool {
        let alive_us = self.timing.alive_us;
        let heard_all = |(since, last)| now >= since + alive_us && now <= last + alive_us;
        self.listened.is_some_and(heard_all)
    }

    /// Notes that the state has changed: orders are sent at once.
    pub fn on_applied(&mut self) {
        self.proposed = None;
        self.due = 0;
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        self.due
    }

    /// Returns the command for a requested change, if the change is valid now.
    pub fn request(&self, now: Micros, state: &State, change: Change) -> Result<Command, Refusal> {
        let in_force = state.in_force()?;
        if let Some(pending) = &state.pending {
            return Err(Refusal::Busy(pending.target.epoch));
        }
        let target = state.changed(&change)?;
        for (node, member) in &target.members {
            let is_new = !in_force.members.contains_key(node);
            if is_new && self.alive(now, *node).map(|r| r.identity) != member.identity {
                return Err(Refusal::NotHeard(*node));
            }
        }
        let is_healthy = |node: &NodeId| {
            let report = self.alive(now, *node);
            let is_new = !in_force.is_acceptor(*node);
            report.is_some_and(|r| is_new || r.acceptor.as_ref().is_some_and(|a| a.voting))
        };
        check_health(&target.acceptors(), is_healthy)?;
        // The votes must come from a majority of the acceptors in force.
        let in_force_acceptors = in_force.acceptors();
        check_health(&in_force_acceptors, is_healthy)?;
        Ok(Command::Begin {
            opened: in_force.epoch,
            change: Some(change),
        })
    }

    /// Returns the latest report of a host, if it is recent enough for the host to count as alive.
    pub fn alive(&self, now: Micros, node: NodeId) -> Option<&Report> {
        let heard = self.hosts.get(&node)?;
        (now <= heard.at + self.timing.alive_us).then_some(&heard.report)
    }

    fn acceptor_reports(&self, now: Micros, of: &[NodeId]) -> Vec<(NodeId, &AcceptorReport)> {
        let report = |node: &NodeId| Some((*node, self.alive(now, *node)?.acceptor.as_ref()?));
        of.iter().filter_map(report).collect()
    }

    /// The same command is not proposed again within a short time: it may be in flight.
    fn propose(&mut self, now: Micros, command: Command) -> Option<Command> {
        if self.proposed.as_ref() == Some(&command) && now < self.propose_at {
            return None;
        }
        self.propose_at = now + self.timing.retry_us;
        self.proposed = Some(command.clone());
        Some(command)
    }

    fn register(&self, state: &State) -> Option<Command> {
        let unknown = |(node, known): (&NodeId, &Option<_>)| known.is_none().then_some(*node);
        let mut nodes = state.known.iter().filter_map(unknown);
        nodes.find_map(|node| {
            let identity = self.hosts.get(&node)?.report.identity;
            Some(Command::Register { node, identity })
        })
    }

    /// Sends a host its orders.
    fn instruct(&self, node: NodeId, state: &State, out: &mut Outbox) {
        let (Some(heard), Some(opened)) = (self.hosts.get(&node), &state.opened) else {
            return;
        };
        let report = &heard.report;
        let to = To::Node(node, report.control);
        if !self.is_concerned(node, state) {
            return;
        }
        if report.revision < opened.revision {
            out.send(to, Message::Order(Order::Enter(opened.clone())));
        }
        let (Some(pending), Some(acceptor)) = (&state.pending, &report.acceptor) else {
            return;
        };
        if let Some(order) = self.next_step(node, acceptor, opened, pending) {
            out.send(to, Message::Order(order));
        }
    }

    /// Returns whether a node is a current or future member, or a removed one that must be told.
    fn is_concerned(&self, node: NodeId, state: &State) -> bool {
        state.known.contains_key(&node)
    }

    fn next_step(
        &self,
        node: NodeId,
        acceptor: &AcceptorReport,
        opened: &Configuration,
        pending: &Pending,
    ) -> Option<Order> {
        let target = pending.target.epoch;
        match &pending.phase {
            Phase::Installing { sealed, .. } if pending.target.is_acceptor(node) => {
                let has = acceptor.holds.is_some_and(|h| h.epoch == target);
                #[allow(unused_mut)]
                let mut order = self.install_order(sealed, opened, &pending.target);
                #[cfg(test)]
                if self.broken.sealed_not_fixed {
                    order.holders.clear();
                    order.sealed = self.own_majority(node, opened, target);
                }
                (!has).then_some(Order::Install(order))
            }
            _ => {
                let concerns = opened.is_acceptor(node) && acceptor.epoch < target;
                concerns.then_some(Order::Seal { target })
            }
        }
    }

    fn install_order(
        &self,
        sealed: &[NodeId],
        opened: &Configuration,
        target: &Configuration,
    ) -> InstallOrder {
        let address = |node: &NodeId| -> Option<(NodeId, SocketAddr)> {
            let heard = self.hosts.get(node).map(|heard| heard.report.control);
            let known = opened.members.get(node).map(|member| member.control);
            Some((*node, heard.or(known)?))
        };
        let has = |n: &&NodeId| self.has_installed(**n, target.epoch);
        let acceptors = target.acceptors();
        InstallOrder {
            target: target.epoch,
            base: opened.epoch,
            sealed: sealed.iter().filter_map(address).collect(),
            holders: acceptors.iter().filter(has).filter_map(address).collect(),
        }
    }

    #[cfg(test)]
    fn own_majority(
        &self,
        node: NodeId,
        opened: &Configuration,
        target: Epoch,
    ) -> Vec<(NodeId, SocketAddr)> {
        let acceptors = opened.acceptors();
        let (mut sealed, _) = self.sealed(&acceptors, opened.epoch, target);
        let turns = usize::from(node) % sealed.len().max(1);
        sealed.rotate_left(turns);
        sealed.truncate(majority(acceptors.len()));
        let address = |n: &NodeId| (*n, self.hosts[n].report.control);
        sealed.iter().map(address).collect()
    }

    fn has_installed(&self, node: NodeId, epoch: Epoch) -> bool {
        let acceptor = self
            .hosts
            .get(&node)
            .and_then(|h| h.report.acceptor.as_ref());
        acceptor.is_some_and(|a| a.holds.is_some_and(|h| h.epoch == epoch))
    }

    fn decide(&mut self, now: Micros, state: &State) -> Option<Command> {
        let opened = state.opened.as_ref()?;
        match &state.pending {
            None => self.repair(now, opened),
            Some(pending) => {
                self.idle_since = None;
                self.watch(now, pending);
                match &pending.phase {
                    Phase::Sealing => self.end_sealing(now, opened, pending),
                    Phase::Installing { sealed, .. } => {
                        self.end_installing(now, opened, pending, sealed)
                    }
                }
            }
        }
    }

    /// Notes when the reconfiguration last made progress.
    fn watch(&mut self, now: Micros, pending: &Pending) {
        let acceptors = pending.target.acceptors();
        let reports = acceptors.iter().filter_map(|node| self.hosts.get(node));
        let progress = reports
            .filter_map(|heard| heard.report.acceptor.as_ref())
            .map(|acceptor| acceptor.progress)
            .sum();
        let is_installing = pending.phase != Phase::Sealing;
        let watched = (pending.target.epoch, is_installing, progress);
        if watched.0 != self.watched.0 {
            self.majority_installed_at = None;
        }
        if watched != self.watched {
            self.watched = watched;
            self.moved_at = now;
        }
    }

    /// Starts a repair if an acceptor that could vote does not vote.
    fn repair(&mut self, now: Micros, opened: &Configuration) -> Option<Command> {
        let acceptors = opened.acceptors();
        let epoch = opened.epoch;
        let reports = self.acceptor_reports(now, &acceptors);
        let votes = |a: &AcceptorReport| a.voting && a.epoch == epoch;
        let idle = acceptors.iter().any(|node| {
            self.alive(now, *node).is_some_and(|report| {
                let knows = report.revision >= opened.revision;
                knows && report.acceptor.as_ref().is_some_and(|a| !votes(a))
            })
        });
        let all_vote = reports.len() == acceptors.len() && reports.iter().all(|r| votes(r.1));
        let useful = reports.iter().filter(|r| !r.1.forgot(epoch)).count();
        let source = reports.iter().any(|r| r.1.contributes(epoch));
        let waiting = self.obstacle(now, &acceptors, epoch);
        if all_vote && now >= self.repair_not_before {
            self.backoff = self.timing.backoff_us;
        }
        if !idle {
            self.idle_since = None;
            self.waiting = Waiting::Nothing;
            return None;
        }
        if useful < majority(acceptors.len()) || !source {
            self.waiting = waiting;
            return None;
        }
        self.waiting = Waiting::Nothing;
        let since = *self.idle_since.get_or_insert(now);
        if now < (since + self.timing.settle_us).max(self.repair_not_before) {
            return None;
        }
        self.repair_not_before = now + self.backoff;
        self.backoff = (self.backoff * 2).min(self.timing.backoff_max_us);
        Some(Command::Begin {
            opened: epoch,
            change: None,
        })
    }

    /// Returns what prevents a majority of the acceptors in force from being sealed.
    fn obstacle(&self, now: Micros, acceptors: &[NodeId], epoch: Epoch) -> Waiting {
        let last = |node: &NodeId| self.hosts.get(node)?.report.acceptor.as_ref();
        let forgot = |node: &&NodeId| last(node).is_some_and(|a| a.forgot(epoch));
        let forgetful: Vec<NodeId> = acceptors.iter().filter(forgot).copied().collect();
        let may_know = |node: &NodeId| last(node).is_none_or(|a| a.contributes(epoch));
        let too_few = acceptors.len() - forgetful.len() < majority(acceptors.len());
        if too_few || !acceptors.iter().any(may_know) {
            return Waiting::MajorityLost(forgetful);
        }
        let is_silent = |node: &&NodeId| self.alive(now, **node).is_none();
        Waiting::Unreachable(acceptors.iter().filter(is_silent).copied().collect())
    }

    /// Acceptors that never vote in `opened` again: those with votes to contribute, and those without.
    fn sealed(
        &self,
        acceptors: &[NodeId],
        opened: Epoch,
        target: Epoch,
    ) -> (Vec<NodeId>, Vec<NodeId>) {
        let mut sealed = Vec::new();
        let mut abstained = Vec::new();
        for node in acceptors {
            let heard = self
                .hosts
                .get(node)
                .and_then(|h| h.report.acceptor.as_ref());
            let Some(acceptor) = heard.filter(|a| a.epoch == target && !a.voting) else {
                continue;
            };
            if acceptor.contributes(opened) {
                sealed.push(*node);
            } else if acceptor.never_voted(opened) && acceptor.fenced >= opened {
                abstained.push(*node);
            } else {
                #[cfg(test)]
                if self.broken.forgetful_count
                    || (self.broken.fence_not_awaited && acceptor.never_voted(opened))
                {
                    abstained.push(*node);
                }
            }
        }
        (sealed, abstained)
    }

    fn end_sealing(
        &mut self,
        now: Micros,
        opened: &Configuration,
        pending: &Pending,
    ) -> Option<Command> {
        let acceptors = opened.acceptors();
        let epoch = pending.target.epoch;
        let (sealed, abstained) = self.sealed(&acceptors, opened.epoch, epoch);
        if sealed.is_empty() || sealed.len() + abstained.len() < majority(acceptors.len()) {
            self.waiting = self.obstacle(now, &acceptors, opened.epoch);
            return None;
        }
        self.waiting = Waiting::Nothing;
        Some(Command::Install {
            epoch,
            sealed,
            abstained,
        })
    }

    fn end_installing(
        &mut self,
        now: Micros,
        opened: &Configuration,
        pending: &Pending,
        sealed: &[NodeId],
    ) -> Option<Command> {
        let target = &pending.target;
        let epoch = target.epoch;
        let acceptors = target.acceptors();
        let has = |node: &&NodeId| self.has_installed(**node, epoch);
        let installed: Vec<NodeId> = acceptors.iter().filter(has).copied().collect();
        #[cfg(test)]
        if self.broken.opens_early {
            return Some(Command::Open { epoch });
        }
        // Some may have died since: they would not vote in the new epoch, while the former members can go on.
        let may_vote = |node: &&NodeId| self.alive(now, **node).is_some();
        let voters = installed.iter().filter(may_vote).count();
        if voters >= majority(acceptors.len()) && self.replicas_follow(opened, target) {
            let since = *self.majority_installed_at.get_or_insert(now);
            let missing =
                |node: &NodeId| !installed.contains(node) && self.alive(now, *node).is_some();
            let waited = now >= since + self.timing.open_wait_us;
            if waited || !acceptors.iter().any(missing) {
                return Some(Command::Open { epoch });
            }
            return None;
        }
        let lost = |node: &NodeId| {
            let acceptor = self
                .hosts
                .get(node)
                .and_then(|h| h.report.acceptor.as_ref());
            acceptor.is_some_and(|a| !a.contributes(opened.epoch))
        };
        let unobtainable = installed.is_empty() && sealed.iter().any(lost);
        let stalled = now >= self.moved_at + self.timing.give_up_us;
        (unobtainable || stalled).then_some(Command::Abandon {
            epoch,
            revert: stalled && pending.change.is_some(),
        })
    }

    /// If the set of replicas changes, a majority of the new set must have what the acceptors have trimmed. A new
    /// replica neither reports nor copies anything before the epoch opens, so no more can be required than those that
    /// stay; but enough that one replica with the data remains whichever minority is lost.
    fn replicas_follow(&self, opened: &Configuration, target: &Configuration) -> bool {
        let replicas = target.replicas();
        if replicas == opened.replicas() || replicas.is_empty() {
            return true;
        }
        let floors = self.floors(target);
        let has_all = |node: &&NodeId| {
            let applied = self.hosts.get(node).and_then(|h| h.report.applied.as_ref());
            applied.is_some_and(|applied| {
                let mut both = floors.iter().zip(applied);
                applied.len() == floors.len() && both.all(|(floor, at)| at + 1 >= *floor)
            })
        };
        let stay = opened.replicas().into_iter();
        let stay = stay.filter(|node| replicas.contains(node)).count();
        let survives = replicas.len().div_ceil(2);
        let needed = majority(replicas.len()).min(stay.max(survives));
        replicas.iter().filter(has_all).count() >= needed
    }

    /// Returns the trim floors of the acceptors that have installed.
    fn floors(&self, target: &Configuration) -> Vec<u64> {
        let mut floors = vec![0; target.partitions()];
        for node in target.acceptors() {
            if !self.has_installed(node, target.epoch) {
                continue;
            }
            let heard = self
                .hosts
                .get(&node)
                .and_then(|h| h.report.acceptor.as_ref());
            let positions: &[Position] = heard.map_or(&[], |a| &a.positions);
            for (floor, position) in floors.iter_mut().zip(positions) {
                *floor = position.floor.max(*floor);
            }
        }
        floors
    }
}

fn check_health(acceptors: &[NodeId], is_healthy: impl Fn(&NodeId) -> bool) -> Result<(), Refusal> {
    let healthy = acceptors.iter().filter(|node| is_healthy(node)).count();
    let needed = majority(acceptors.len());
    if healthy < needed {
        return Err(Refusal::TooFewHealthy {
            healthy,
            acceptors: acceptors.len(),
            needed,
        });
    }
    Ok(())
}
