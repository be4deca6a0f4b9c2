//! The replicated state: the configuration in force and the reconfiguration in progress. Pure: every controller applies
//! the same commands in the same order and reaches the same state.
//!
//! A reconfiguration passes through *sealing* (a majority of the acceptors in force permanently stops voting in the old
//! epoch) and *installing* (the new acceptors take over the merged votes of exactly that majority) before it is
//! *opened*. Its epoch is never reused, whether it succeeds or not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::configuration::{
    majority, Beginning, Configuration, Epoch, Identity, Member, NodeId, ACCEPTORS_MAX, NODE_IDS,
    REPLICAS_MAX,
};

/// A membership change requested by an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Add a node whose identity is known.
    Add(Member),
    /// Remove a node permanently.
    Remove(NodeId),
    /// Both in one step; the new node takes the old one's place among the leaders.
    Replace {
        /// The node to remove.
        old: NodeId,
        /// The node to add.
        new: Member,
    },
}

/// The phase of a reconfiguration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Acceptors are asked to stop voting in the epoch in force.
    Sealing,
    /// A majority has stopped; exactly its votes are the initial state of the new epoch.
    Installing {
        /// Acceptors whose votes are merged. Fixed: with two different choices, two acceptors could show different
        /// copied votes, and two values could look chosen.
        sealed: Vec<NodeId>,
        /// Acceptors that never voted in the epoch in force and never will: they count towards the majority and have no
        /// votes to contribute.
        abstained: Vec<NodeId>,
    },
}

/// A reconfiguration in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The configuration to be opened; its epoch is the highest ever used.
    pub target: Configuration,
    /// The requested change; `None`: a repair, so that an acceptor votes again.
    pub change: Option<Change>,
    pub phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct State {
    /// The configuration in force; `None` until the cluster is founded.
    pub opened: Option<Configuration>,
    /// The reconfiguration in progress.
    pub pending: Option<Pending>,
    /// The highest epoch ever used, opened or not.
    pub highest_epoch: Epoch,
    /// Every node that was ever a member, with its identity once known. Entries are never removed.
    pub known: BTreeMap<NodeId, Option<Identity>>,
    /// Number of applied commands that changed something.
    pub revision: u64,
}

/// An entry of the replicated log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The first configuration of the cluster.
    Found(Configuration),
    /// A member's host has reported for the first time.
    Register { node: NodeId, identity: Identity },
    Begin {
        /// The epoch that the proposer believed to be in force.
        opened: Epoch,
        /// `None`: the same members.
        change: Option<Change>,
    },
    /// A majority has been sealed: this fixes which acceptors it consists of.
    Install {
        /// Epoch of the reconfiguration.
        epoch: Epoch,
        /// See [`Phase::Installing`].
        sealed: Vec<NodeId>,
        /// See [`Phase::Installing`].
        abstained: Vec<NodeId>,
    },
    /// A majority of the new acceptors has installed: their epoch is in force.
    Open {
        /// Epoch of the reconfiguration.
        epoch: Epoch,
    },
    /// Start over with a higher epoch.
    Abandon {
        /// Epoch of the reconfiguration that cannot be completed.
        epoch: Epoch,
        /// Drop the change as well: return to the members in force.
        revert: bool,
    },
    /// Make a node the preferred leader of partitions.
    MoveLeader {
        /// `None`: all partitions.
        partition: Option<u32>,
        /// The new preferred leader.
        to: NodeId,
    },
    /// Restart with empty acceptors, whatever they held.
    Restart {
        /// The epoch that the proposer believed to be in force.
        opened: Epoch,
        /// The new epoch is at least this.
        at_least: Epoch,
        /// One per partition.
        first_instances: Vec<u64>,
    },
    /// Halt voting, so that replicas report final positions: [`Beginning::Halted`]. A restart follows.
    Halt {
        /// The epoch that the proposer believed to be in force.
        opened: Epoch,
    },
}

/// Why a command or request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Refusal {
    #[error("the cluster has no configuration yet; start all its control-plane hosts once")]
    NotFounded,
    #[error("the cluster is founded already, at epoch {0}")]
    Founded(Epoch),
    #[error("{0} is not a node id; ids are {first} to {last}", first = NODE_IDS.start(), last = NODE_IDS.end())]
    NotAnId(NodeId),
    #[error("the configuration is invalid: {0}")]
    BadConfiguration(String),
    #[error("node {0} is not a member; `inband member list` shows who is")]
    NotMember(NodeId),
    #[error("node {0} is a member already")]
    IsMember(NodeId),
    #[error("node id {node} belonged to the host with identity {known}, and is never reused for another one ({given}); choose an id that was never used")]
    IdUsed {
        node: NodeId,
        known: String,
        given: String,
    },
    #[error("node {node} is registered with identity {known}, but its host has {given}: it has lost its state directory; replace it by a node with a new id: `inband member replace {node} NEW`")]
    OtherIdentity {
        node: NodeId,
        known: Identity,
        given: Identity,
    },
    #[error("the host of node {node} has {given:?}, most controllers {expected:?}; make [cluster] the same in the configurations of all hosts, and start it again")]
    OtherSettings {
        node: NodeId,
        given: String,
        expected: String,
    },
    #[error("the host of node {0} has not been heard of; start it with `inband run` first")]
    NotHeard(NodeId),
    #[error("a reconfiguration to epoch {0} is under way; try again when it is done")]
    Busy(Epoch),
    #[error("epoch {given} is out of date, the cluster is in epoch {found}: another change came first; look at `inband status` and try again")]
    Overtaken { given: Epoch, found: Epoch },
    #[error("all epochs up to {0} are used up; export the data and import it into a new cluster")]
    EpochsUsedUp(Epoch),
    #[error("{sealed:?} are not a majority of the acceptors {acceptors:?}")]
    NoMajority {
        sealed: Vec<NodeId>,
        acceptors: Vec<NodeId>,
    },
    #[error("a configuration without {0} cannot decide anything")]
    NobodyLeft(String),
    #[error("{found} {what} exceed the maximum of {max}")]
    TooMany {
        what: String,
        found: usize,
        max: usize,
    },
    #[error("only {healthy} of {acceptors} acceptors would be healthy, and {needed} are needed; first bring back, or replace, the others")]
    TooFewHealthy {
        healthy: usize,
        acceptors: usize,
        needed: usize,
    },
    #[error("node {0} has no leader part")]
    NotLeader(NodeId),
    #[error("there is no partition {found}; the number of partitions is {partitions}")]
    NoPartition { found: u32, partitions: usize },
    #[error("{0}")]
    MajorityLost(String),
    #[error(
        "the acceptors can continue by themselves, and no replica reports a log that makes no progress; a restart would discard what they hold. A stopped log is reported after a few seconds: `inband member list` shows it"
    )]
    NothingLost,
    #[error("log {log}: its replicas have applied instances up to {applied}, so {given} cannot be the last one; leave --applied out to use what they report")]
    AppliedOtherwise {
        log: usize,
        given: u64,
        applied: u64,
    },
    #[error("the replica of node {0} has not reported its last position in this epoch; start its host if it is down, or give its position with --applied")]
    PositionUnknown(NodeId),
    #[error("log {log}: only {holders} of the {needed} replicas needed hold instance {applied} durably; the others fetch it from their peers: keep their hosts running, with room on their disks, and try again")]
    NotDurable {
        log: usize,
        applied: u64,
        holders: usize,
        needed: usize,
    },
}

impl State {
    /// Applies a command; a refused command changes nothing.
    pub fn apply(&mut self, command: &Command) -> Result<(), Refusal> {
        let mut next = self.clone();
        match command {
            Command::Found(configuration) => next.found(configuration)?,
            Command::Register { node, identity } => next.register(*node, *identity)?,
            Command::Begin { opened, change } => next.begin(*opened, change.as_ref())?,
            Command::Install {
                epoch,
                sealed,
                abstained,
            } => next.install(*epoch, sealed, abstained)?,
            Command::Open { epoch } => next.open(*epoch)?,
            Command::Abandon { epoch, revert } => next.abandon(*epoch, *revert)?,
            Command::MoveLeader { partition, to } => next.move_leader(*partition, *to)?,
            Command::Halt { opened } => next.halt(*opened)?,
            Command::Restart {
                opened,
                at_least,
                first_instances,
            } => next.restart(*opened, *at_least, first_instances)?,
        }
        next.revision = self.revision + 1;
        *self = next;
        Ok(())
    }

    pub fn in_force(&self) -> Result<&Configuration, Refusal> {
        self.opened.as_ref().ok_or(Refusal::NotFounded)
    }

    /// Checks that a host with this identity may use this id: only its known host may.
    pub fn check_identity(&self, node: NodeId, given: Identity) -> Result<(), Refusal> {
        match self.known.get(&node) {
            Some(Some(known)) if *known != given => Err(Refusal::OtherIdentity {
                node,
                known: *known,
                given,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the members in force with a change applied; fails if the change is invalid.
    pub fn changed(&self, change: &Change) -> Result<Configuration, Refusal> {
        let mut target = self.in_force()?.clone();
        match change {
            Change::Add(member) => {
                self.check_new(member)?;
                target.insert(member, None);
            }
            Change::Remove(node) => target.remove(*node)?,
            Change::Replace { old, new } => {
                self.check_new(new)?;
                if !target.members.contains_key(old) {
                    return Err(Refusal::NotMember(*old));
                }
                target.insert(new, Some(*old));
                target.remove(*old)?;
            }
        }
        check_sizes(&target)?;
        Ok(target)
    }

    fn check_new(&self, member: &Member) -> Result<(), Refusal> {
        let node = member.node;
        if !NODE_IDS.contains(&node) {
            return Err(Refusal::NotAnId(node));
        }
        if self.in_force()?.members.contains_key(&node) {
            return Err(Refusal::IsMember(node));
        }
        let given = member.identity.ok_or(Refusal::NotHeard(node))?;
        match self.known.get(&node) {
            Some(known) if *known != Some(given) => Err(Refusal::IdUsed {
                node,
                known: known.map_or("none".into(), |k| k.to_string()),
                given: given.to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn found(&mut self, configuration: &Configuration) -> Result<(), Refusal> {
        if let Some(opened) = &self.opened {
            return Err(Refusal::Founded(opened.epoch));
        }
        check_sizes(configuration)?;
        let Beginning::Fresh(first_instances) = &configuration.beginning else {
            return Err(Refusal::BadConfiguration(
                "the first one begins with empty acceptors".into(),
            ));
        };
        let partitions = configuration.partitions();
        if partitions == 0 || first_instances.len() != partitions || configuration.epoch == 0 {
            return Err(Refusal::BadConfiguration(format!(
                "epoch {}, {partitions} partitions, {} first instances",
                configuration.epoch,
                first_instances.len()
            )));
        }
        if let Some(node) = configuration.members.keys().find(|n| !NODE_IDS.contains(n)) {
            return Err(Refusal::NotAnId(*node));
        }
        self.highest_epoch = configuration.epoch;
        self.note_members(configuration);
        self.set_opened(configuration.clone());
        Ok(())
    }

    fn register(&mut self, node: NodeId, identity: Identity) -> Result<(), Refusal> {
        self.check_identity(node, identity)?;
        let Some(known) = self.known.get_mut(&node) else {
            return Err(Refusal::NotMember(node));
        };
        *known = Some(identity);
        let target = self.pending.as_mut().map(|p| &mut p.target);
        for configuration in self.opened.iter_mut().chain(target) {
            if let Some(member) = configuration.members.get_mut(&node) {
                member.identity = Some(identity);
            }
        }
        self.touch_opened();
        Ok(())
    }

    fn begin(&mut self, opened: Epoch, change: Option<&Change>) -> Result<(), Refusal> {
        self.check_idle(opened)?;
        let target = match change {
            Some(change) => self.changed(change)?,
            None => self.in_force()?.clone(),
        };
        self.pend(target, change.cloned())
    }

    fn check_idle(&self, opened: Epoch) -> Result<(), Refusal> {
        let found = self.in_force()?.epoch;
        if let Some(pending) = &self.pending {
            return Err(Refusal::Busy(pending.target.epoch));
        }
        if found != opened {
            let given = opened;
            return Err(Refusal::Overtaken { given, found });
        }
        Ok(())
    }

    /// Starts a reconfiguration with an epoch that was never used before.
    fn pend(&mut self, mut target: Configuration, change: Option<Change>) -> Result<(), Refusal> {
        target.epoch = self.next_epoch()?;
        target.beginning = Beginning::Merged;
        self.highest_epoch = target.epoch;
        self.note_members(&target);
        self.pending = Some(Pending {
            target,
            change,
            phase: Phase::Sealing,
        });
        Ok(())
    }

    fn next_epoch(&self) -> Result<Epoch, Refusal> {
        let highest = self.highest_epoch;
        highest.checked_add(1).ok_or(Refusal::EpochsUsedUp(highest))
    }

    fn pending_at(&mut self, epoch: Epoch) -> Result<&mut Pending, Refusal> {
        let found = self.highest_epoch;
        match &mut self.pending {
            Some(pending) if pending.target.epoch == epoch => Ok(pending),
            _ => Err(Refusal::Overtaken {
                given: epoch,
                found,
            }),
        }
    }

    fn install(
        &mut self,
        epoch: Epoch,
        sealed: &[NodeId],
        abstained: &[NodeId],
    ) -> Result<(), Refusal> {
        let acceptors = self.in_force()?.acceptors();
        let pending = self.pending_at(epoch)?;
        if pending.phase != Phase::Sealing {
            return Err(Refusal::Overtaken {
                given: epoch,
                found: epoch,
            });
        }
        let all: Vec<NodeId> = sealed.iter().chain(abstained).copied().collect();
        let counted = acceptors.iter().filter(|a| all.contains(a)).count();
        let distinct = counted == all.len();
        if sealed.is_empty() || !distinct || counted < majority(acceptors.len()) {
            return Err(Refusal::NoMajority {
                sealed: all,
                acceptors,
            });
        }
        pending.phase = Phase::Installing {
            sealed: sealed.to_vec(),
            abstained: abstained.to_vec(),
        };
        Ok(())
    }

    fn open(&mut self, epoch: Epoch) -> Result<(), Refusal> {
        let pending = self.pending_at(epoch)?;
        if pending.phase == Phase::Sealing {
            return Err(Refusal::Overtaken {
                given: epoch,
                found: epoch,
            });
        }
        let target = pending.target.clone();
        self.pending = None;
        self.set_opened(target);
        Ok(())
    }

    fn abandon(&mut self, epoch: Epoch, revert: bool) -> Result<(), Refusal> {
        let in_force = self.in_force()?.clone();
        let pending = self.pending_at(epoch)?;
        let (target, change) = if revert {
            (in_force, None)
        } else {
            (pending.target.clone(), pending.change.clone())
        };
        self.pend(target, change)
    }

    fn move_leader(&mut self, partition: Option<u32>, to: NodeId) -> Result<(), Refusal> {
        if let Some(pending) = &self.pending {
            return Err(Refusal::Busy(pending.target.epoch));
        }
        let opened = self.opened.as_mut().ok_or(Refusal::NotFounded)?;
        let member = opened.members.get(&to).ok_or(Refusal::NotMember(to))?;
        if !member.parts.leader {
            return Err(Refusal::NotLeader(to));
        }
        let partitions = opened.partitions();
        let range = match partition {
            None => 0..partitions,
            Some(found) if (found as usize) < partitions => found as usize..found as usize + 1,
            Some(found) => return Err(Refusal::NoPartition { found, partitions }),
        };
        for order in &mut opened.leaders[range] {
            order.retain(|node| *node != to);
            order.insert(0, to);
        }
        self.touch_opened();
        Ok(())
    }

    fn halt(&mut self, opened: Epoch) -> Result<(), Refusal> {
        let mut target = self.in_force()?.clone();
        if target.epoch != opened {
            let found = target.epoch;
            return Err(Refusal::Overtaken {
                given: opened,
                found,
            });
        }
        target.epoch = self.next_epoch()?;
        target.beginning = Beginning::Halted;
        self.highest_epoch = target.epoch;
        self.pending = None;
        self.set_opened(target);
        Ok(())
    }

    fn restart(
        &mut self,
        opened: Epoch,
        at_least: Epoch,
        first_instances: &[u64],
    ) -> Result<(), Refusal> {
        let mut target = self.in_force()?.clone();
        if target.epoch != opened {
            return Err(Refusal::Overtaken {
                given: opened,
                found: target.epoch,
            });
        }
        if first_instances.len() != target.partitions() {
            return Err(Refusal::BadConfiguration(format!(
                "{} first instances for {} partitions",
                first_instances.len(),
                target.partitions()
            )));
        }
        target.epoch = self.next_epoch()?.max(at_least);
        target.beginning = Beginning::Fresh(first_instances.to_vec());
        self.highest_epoch = target.epoch;
        self.pending = None;
        self.set_opened(target);
        Ok(())
    }

    fn set_opened(&mut self, configuration: Configuration) {
        self.opened = Some(configuration);
        self.touch_opened();
    }

    fn touch_opened(&mut self) {
        let revision = self.revision + 1;
        if let Some(opened) = &mut self.opened {
            opened.revision = revision;
        }
    }

    fn note_members(&mut self, configuration: &Configuration) {
        for member in configuration.members.values() {
            let known = self.known.entry(member.node).or_default();
            *known = known.or(member.identity);
        }
    }
}

impl Configuration {
    /// Adds a member; among the leaders it is last, or right before `place_of`.
    fn insert(&mut self, member: &Member, place_of: Option<NodeId>) {
        self.members.insert(member.node, member.clone());
        if !member.parts.leader {
            return;
        }
        for order in &mut self.leaders {
            let place = order.iter().position(|n| Some(*n) == place_of);
            order.insert(place.unwrap_or(order.len()), member.node);
        }
    }

    fn remove(&mut self, node: NodeId) -> Result<(), Refusal> {
        let removed = self.members.remove(&node);
        removed.ok_or(Refusal::NotMember(node))?;
        for order in &mut self.leaders {
            order.retain(|n| *n != node);
        }
        Ok(())
    }
}

fn check_sizes(configuration: &Configuration) -> Result<(), Refusal> {
    let (acceptors, replicas) = (configuration.acceptors(), configuration.replicas());
    let bounds = [
        ("acceptors", acceptors.len(), ACCEPTORS_MAX),
        ("replicas", replicas.len(), REPLICAS_MAX),
    ];
    for (what, found, max) in bounds {
        if found > max {
            let what = what.into();
            return Err(Refusal::TooMany { what, found, max });
        }
    }
    let nobody = [
        ("acceptors", acceptors.is_empty()),
        ("leaders", configuration.nodes(|p| p.leader).is_empty()),
        ("controllers", configuration.controllers().is_empty()),
    ];
    match nobody.iter().find(|(_, none)| *none) {
        Some((what, _)) => Err(Refusal::NobodyLeft((*what).into())),
        None => Ok(()),
    }
}
