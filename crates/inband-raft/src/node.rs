//! A Raft node, sans-I/O except for its own disk: messages and time in, messages and applied commands out. Nothing is
//! sent before the data that it depends on is synced.
//!
//! A peer of the group is a *log*, not a host: its raft id is drawn when the log is created, and is in its first
//! record. So a host that has lost its log comes back with another id, which has no vote until the group adds it, and
//! no host ever votes twice (schedules.md, 5).

use inband_storage::{JournalError, Storage, StorageError};
use raft::eraftpb as pb;
use raft::{RawNode, SnapshotStatus, StateRole};
use serde::{Deserialize, Serialize};

use crate::log::Log;
use crate::machine::StateMachine;
use crate::message::{Peers, Proposed, RaftMessage, Snapshot};
use crate::transfer::{Receiving, Sending};
use crate::tuning::Tuning;
use transfers::Behind;

mod transfers;

/// Identifies a host in its group, for the lifetime of the group.
pub type NodeId = u8;

/// The log of a new group begins after this entry, so that every further peer gets a snapshot.
const FIRST_INDEX: u64 = 1;

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    /// The log is damaged or inaccessible.
    #[error("raft log: {0}")]
    Journal(#[from] JournalError),
    #[error("raft log: {0}")]
    Storage(#[from] StorageError),
    /// The library reported an error.
    #[error("raft: {0}; please report this")]
    Raft(#[from] raft::Error),
    /// The log belongs to another node.
    #[error("the raft log is that of node {found}, this is node {node}; is host.state_dir right?")]
    OtherNode {
        node: NodeId,
        /// The node that the log belongs to.
        found: NodeId,
    },
}

/// Returns the node with this raft id.
pub fn node_of(raft_id: u64) -> NodeId {
    (raft_id & 0xff) as NodeId
}

/// Returns a raft id for a node, from a random number.
pub fn raft_id(node: NodeId, random: u64) -> u64 {
    (random & !0xff) | u64::from(node)
}

/// A change of the voters, in the context of its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum VoterChange {
    Learn(u64),
    Vote(u64),
    Leave(u64),
}

/// A command that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied<O> {
    /// Its index in the log.
    pub index: u64,
    /// The term in which it was proposed.
    pub term: u64,
    /// The ticket given by its proposer.
    pub ticket: u64,
    pub output: O,
}

/// The result of handling events.
#[derive(Debug)]
pub struct Outcome<O> {
    pub messages: Vec<RaftMessage>,
    /// Applied commands, in order.
    pub applied: Vec<Applied<O>>,
    /// Numbers given to [`RaftNode::confirm`] for which a majority has since confirmed that this node leads.
    pub confirmed: Vec<u64>,
}

impl<O> Default for Outcome<O> {
    fn default() -> Outcome<O> {
        Outcome {
            messages: Vec::new(),
            applied: Vec::new(),
            confirmed: Vec::new(),
        }
    }
}

pub struct RaftNode<M: StateMachine> {
    raw: RawNode<Log<M>>,
    tuning: Tuning,
    /// Written but not synced yet; nothing else is done meanwhile.
    unsynced: Option<raft::Ready>,
    /// Another node's state is being written, one slice per call.
    is_installing: bool,
    sending: Vec<Sending<M::Frozen>>,
    /// Number of snapshot transfers started.
    transfers: u64,
    receiving: Option<Receiving<M>>,
    /// The state of the snapshot that was passed to the library.
    received: Option<(u64, M)>,
    /// Peers that have received a whole snapshot, and the ticks until the library asks what they lack.
    snapshots: Vec<(u64, usize)>,
    behind: Vec<Behind>,
    /// To be sent at the next call of [`RaftNode::advance`].
    outgoing: Vec<RaftMessage>,
}

impl<M: StateMachine> RaftNode<M> {
    /// Opens the log in `storage`, which must be used for nothing else, or creates one; a new log gets its id from
    /// `random`.
    pub fn open(
        storage: Box<dyn Storage>,
        node: NodeId,
        random: u64,
        tuning: Tuning,
    ) -> Result<RaftNode<M>, RaftError> {
        let log = Log::open(storage, raft_id(node, random))?;
        let found = node_of(log.peer());
        if found != node {
            return Err(RaftError::OtherNode { node, found });
        }
        Self::with(log, tuning)
    }

    /// Creates a log that is lost with its process: the next one has a different id.
    pub fn in_memory(node: NodeId, random: u64, tuning: Tuning) -> Result<RaftNode<M>, RaftError> {
        Self::with(Log::in_memory(raft_id(node, random)), tuning)
    }

    /// Found a group with this log as its only voter.
    ///
    /// # Panics
    /// If it belongs to a group already.
    pub fn found(self) -> Result<RaftNode<M>, RaftError> {
        assert!(!self.is_in_group(), "this log is in a group already");
        let tuning = self.tuning;
        let mut log = self.raw.raft.r.raft_log.store;
        let voters = vec![log.peer()];
        log.begin(Snapshot {
            index: FIRST_INDEX,
            term: 1,
            peers: Peers {
                voters,
                learners: vec![],
            },
            ..Snapshot::default()
        });
        log.commit(tuning.slice_bytes)?;
        let mut node = Self::with(log, tuning)?;
        node.raw.campaign()?; // nobody else could
        Ok(node)
    }

    fn with(log: Log<M>, tuning: Tuning) -> Result<RaftNode<M>, RaftError> {
        let config = raft::Config {
            id: log.peer(),
            election_tick: tuning.election_ticks,
            heartbeat_tick: tuning.heartbeat_ticks,
            applied: log.applied.index,
            max_size_per_msg: tuning.append_bytes_max,
            max_inflight_msgs: tuning.appends_max,
            batch_append: tuning.batch_appends,
            skip_bcast_commit: tuning.quiet_commits,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RaftNode {
            raw: RawNode::new(&config, log, &logger)?,
            tuning,
            unsynced: None,
            is_installing: false,
            sending: Vec::new(),
            transfers: 0,
            receiving: None,
            received: None,
            snapshots: Vec::new(),
            behind: Vec::new(),
            outgoing: Vec::new(),
        };
        node.spread_elections();
        Ok(node)
    }

    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// Returns whether it has ever been added to a group.
    pub fn is_in_group(&self) -> bool {
        self.raw.store().is_in_group()
    }

    /// Returns whether it leads the group.
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Returns the leader of the group, as far as known.
    pub fn leader(&self) -> Option<NodeId> {
        let leader = self.raw.raft.leader_id;
        (leader != 0).then(|| node_of(leader))
    }

    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Raft ids of the voters, and of the learners, which do not vote yet.
    pub fn peers(&self) -> (Vec<u64>, Vec<u64>) {
        let peers = &self.raw.store().applied.peers;
        (peers.voters.clone(), peers.learners.clone())
    }

    /// Voters and learners.
    pub fn all_peers(&self) -> impl Iterator<Item = u64> + '_ {
        let peers = &self.raw.store().applied.peers;
        peers.voters.iter().chain(&peers.learners).copied()
    }

    /// Returns the state after all applied commands.
    pub fn state(&self) -> &M {
        &self.raw.store().state
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.raw.store().applied.index
    }

    /// Returns whether everything proposed before this node became the leader has been applied here, so that its state
    /// is current.
    pub fn is_up_to_date(&self) -> bool {
        let raft = &self.raw.raft;
        self.is_leader()
            && raft
                .raft_log
                .term(self.applied())
                .is_ok_and(|t| t == raft.term)
    }

    /// Index of the last entry of its log.
    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Term of the entry at this index of its log, if it is still held.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        let term = self.raw.raft.raft_log.term(index).ok();
        term.filter(|term| *term > 0)
    }

    /// Commands in its log that are durable and not applied.
    pub fn unapplied(&self) -> impl Iterator<Item = Proposed<'_>> {
        self.raw.store().unapplied()
    }

    /// Returns the index up to which a peer's log is known to match that of this node, if it leads.
    pub fn matched(&self, peer: u64) -> Option<u64> {
        let leads = self.is_leader();
        let progress = self.raw.raft.prs().get(peer).filter(|_| leads);
        progress.map(|progress| progress.matched)
    }

    /// Treats the entries up to this one as committed, because the leader of `term` said so. Returns false, without any
    /// effect, if the log has no entry of that term there: it may have different entries before it.
    pub fn commit_to(&mut self, index: u64, term: u64) -> bool {
        if self.is_stalled() || self.term_at(index) != Some(term) {
            return false;
        }
        self.raw.raft.raft_log.commit_to(index);
        true
    }

    /// Asks a majority to confirm that this node still leads; [`Outcome::confirmed`] then has the number. Numbers are
    /// never reused in the lifetime of a node.
    pub fn confirm(&mut self, number: u64) {
        if self.is_leader() && !self.is_stalled() {
            self.raw.read_index(number.to_be_bytes().to_vec());
        }
    }

    /// Returns whether the disk is behind. Nothing else is done meanwhile.
    pub fn is_stalled(&self) -> bool {
        self.unsynced.is_some()
    }

    /// A clock tick.
    pub fn tick(&mut self) {
        if self.is_stalled() {
            return;
        }
        self.raw.tick();
        for (_, ticks) in &mut self.snapshots {
            *ticks = ticks.saturating_sub(1);
        }
        self.tick_transfers();
        self.follow_up_snapshots();
    }

    /// Processes a peer's message. One for another log of this node is ignored.
    pub fn on_message(&mut self, message: RaftMessage) {
        let last = self.last_index();
        if self.is_stalled() || message.to != self.id() || !message.is_sound(last) {
            return;
        }
        if let Some((transfer, next)) = message.answered_parts() {
            return self.on_parts_answered(message.from, transfer, next);
        }
        if message.has_snapshot() && !self.is_for_library(&message) {
            return;
        }
        if let Some(message) = message.into_raft() {
            // The library drops messages from senders that are not peers, or are out of date.
            let _ = self.raw.step(message);
        }
    }

    /// Proposes a command, identified by a ticket. Returns false, without any effect, if this node is not the leader.
    /// Otherwise the command may or may not be applied: there can be an election in between.
    pub fn propose(&mut self, ticket: u64, command: &M::Command<'_>) -> bool {
        if !self.is_leader() || self.is_stalled() {
            return false;
        }
        let data = postcard::to_stdvec(command).expect("a command can always be written");
        self.raw
            .propose(ticket.to_be_bytes().to_vec(), data)
            .is_ok()
    }

    /// Transfers leadership to another voter.
    pub fn hand_over(&mut self, to: u64) {
        if self.is_leader() && !self.is_stalled() {
            self.raw.transfer_leader(to);
        }
    }

    /// Takes one step towards `wanted` as the set of voters, if this is the leader and no step is in progress. A new
    /// peer is first a learner, and votes once it has the log.
    pub fn steer_voters(&mut self, wanted: &[u64]) {
        let raft = &self.raw.raft;
        if !self.is_up_to_date() || raft.has_pending_conf() || self.is_stalled() {
            return;
        }
        let Some(change) = self.next_change(wanted) else {
            return;
        };
        if let VoterChange::Leave(id) = change {
            if id == self.id() {
                // It must not lead a group that it is leaving.
                let heir = wanted.iter().find(|id| **id != self.id());
                return heir
                    .copied()
                    .into_iter()
                    .for_each(|heir| self.hand_over(heir));
            }
        }
        let context = postcard::to_stdvec(&change).expect("a change can always be written");
        // Refused only if another change is in progress: it is retried.
        let _ = self.raw.propose_conf_change(context, into_raft(change));
    }

    fn next_change(&self, wanted: &[u64]) -> Option<VoterChange> {
        let (voters, learners) = self.peers();
        let last = self.last_index();
        let caught_up = |id: &u64| {
            let progress = self.raw.raft.prs().get(*id);
            progress.is_some_and(|p| p.matched + self.tuning.caught_up_entries >= last)
        };
        let ready = learners
            .iter()
            .find(|id| wanted.contains(id) && caught_up(id));
        if let Some(id) = ready {
            return Some(VoterChange::Vote(*id));
        }
        let known = |id: &u64| voters.contains(id) || learners.contains(id);
        // Another log of a node that is a voter already: the old one is gone, or soon will be.
        let replaces = |id: u64| voters.iter().find(|v| node_of(**v) == node_of(id)).copied();
        if let Some(new) = wanted.iter().find(|id| !known(id)) {
            return match replaces(*new) {
                Some(old) if !wanted.contains(&old) => Some(VoterChange::Leave(old)),
                _ => Some(VoterChange::Learn(*new)),
            };
        }
        let mut peers = learners.iter().chain(&voters);
        let surplus = peers.find(|id| !wanted.contains(id))?;
        let others_follow = voters.iter().filter(|v| wanted.contains(v)).count() > 0;
        others_follow.then_some(VoterChange::Leave(*surplus))
    }

    /// Sync, send and apply what is pending. Must be called after every event. If the disk accepts no writes,
    /// everything waits, and the next call retries.
    pub fn advance(&mut self) -> Result<Outcome<M::Output>, RaftError> {
        let mut outcome = Outcome {
            messages: std::mem::take(&mut self.outgoing),
            ..Outcome::default()
        };
        let slice_bytes = self.tuning.slice_bytes;
        loop {
            let ready = match self.unsynced.take() {
                Some(ready) => ready,
                None if self.raw.has_ready() => self.write(),
                None => break,
            };
            self.is_installing = false;
            match self.raw.mut_store().commit(slice_bytes) {
                Ok(true) => self.finish(ready, &mut outcome)?,
                Ok(false) => {
                    (self.unsynced, self.is_installing) = (Some(ready), true);
                    return Ok(outcome);
                }
                Err(error) => {
                    self.unsynced = Some(ready);
                    self.outgoing = outcome.messages;
                    return Err(error.into());
                }
            }
        }
        self.spread_elections();
        self.drop_received();
        self.send_part(&mut outcome);
        let (tuning, holds) = (self.tuning, self.holds_entries());
        // A log that could not be compacted now is compacted after the next command.
        let _ = self.raw.mut_store().compact(&tuning, holds);
        Ok(outcome)
    }

    /// Returns whether a slice of a state remains to be written, so that [`RaftNode::advance`] has something to do at
    /// once.
    pub fn has_work(&self) -> bool {
        let may_send = self.sending.iter().any(Sending::has_room);
        self.is_installing || !self.is_stalled() && (may_send || self.raw.store().has_work())
    }

    /// Passes what must be durable to the log; it is not synced yet.
    fn write(&mut self) -> raft::Ready {
        let ready = self.raw.ready();
        let log = self.raw.mut_store();
        if ready.snapshot().get_metadata().index > 0 {
            let snapshot = Snapshot::of(ready.snapshot());
            let received = self.received.take();
            let state = received.filter(|(index, _)| *index == snapshot.index);
            let (_, state) = state.expect("the library has the snapshot that came last");
            log.install(snapshot, state);
        }
        for entry in ready.entries() {
            log.append(entry);
        }
        if let Some(hard) = ready.hs() {
            log.set_hard(hard);
        }
        ready
    }

    /// The data is durable: send and apply.
    fn finish(
        &mut self,
        mut ready: raft::Ready,
        outcome: &mut Outcome<M::Output>,
    ) -> Result<(), RaftError> {
        for state in ready.take_read_states() {
            let number = state.request_ctx[..].try_into().map(u64::from_be_bytes);
            outcome.confirmed.extend(number.ok());
        }
        self.send(ready.take_messages(), outcome);
        self.send(ready.take_persisted_messages(), outcome);
        self.apply(ready.take_committed_entries(), outcome)?;
        let mut light = self.raw.advance(ready);
        if let Some(commit) = light.commit_index() {
            self.raw.mut_store().set_commit(commit);
        }
        self.send(light.take_messages(), outcome);
        self.apply(light.take_committed_entries(), outcome)?;
        self.raw.advance_apply();
        Ok(())
    }

    fn send(&mut self, messages: Vec<pb::Message>, outcome: &mut Outcome<M::Output>) {
        for message in messages.iter().filter_map(RaftMessage::of) {
            match message.snapshot_index() {
                None => outcome.messages.push(message),
                Some(index) => self.begin_sending(message, index),
            }
        }
    }

    /// The library sends nothing more to a peer until it learns, from the peer or from here, that a snapshot has
    /// arrived. Told so after a while, it asks, and a snapshot that was lost is sent again.
    fn follow_up_snapshots(&mut self) {
        let is_due = |(_, ticks): &(u64, usize)| *ticks == 0;
        let due: Vec<u64> = self
            .snapshots
            .iter()
            .filter(|s| is_due(s))
            .map(|s| s.0)
            .collect();
        self.snapshots.retain(|snapshot| !is_due(snapshot));
        for peer in due {
            self.raw.report_snapshot(peer, SnapshotStatus::Finish);
        }
    }

    fn apply(
        &mut self,
        entries: Vec<pb::Entry>,
        outcome: &mut Outcome<M::Output>,
    ) -> Result<(), RaftError> {
        for entry in entries {
            if entry.get_entry_type() != pb::EntryType::EntryNormal {
                if let Ok(change) = postcard::from_bytes(&entry.context) {
                    let peers = self.raw.apply_conf_change(&into_raft(change))?;
                    self.raw.mut_store().applied.peers = Peers::of(&peers);
                }
            } else if let Some(applied) = self.apply_command(&entry) {
                outcome.applied.push(applied);
            }
            let log = self.raw.mut_store();
            (log.applied.index, log.applied.term) = (entry.index, entry.term);
        }
        Ok(())
    }

    /// A new leader's first entry is empty.
    fn apply_command(&mut self, entry: &pb::Entry) -> Option<Applied<M::Output>> {
        let ticket = entry.context[..].try_into().ok().map(u64::from_be_bytes)?;
        let state = &mut self.raw.mut_store().state;
        let output = state.apply(entry.index, &entry.data)?;
        Some(Applied {
            index: entry.index,
            term: entry.term,
            ticket,
            output,
        })
    }

    /// The library draws the election timeout from the thread's generator, which a simulator cannot reproduce. Deriving
    /// it from id and term spreads it as well.
    fn spread_elections(&mut self) {
        let term = self.term().to_be_bytes();
        let drawn = xxhash_rust::xxh3::xxh3_64_with_seed(&term, self.id());
        let least = self.tuning.election_ticks;
        let ticks = least + drawn as usize % least;
        self.raw.raft.set_randomized_election_timeout(ticks);
    }
}

fn into_raft(change: VoterChange) -> pb::ConfChange {
    let (kind, id) = match change {
        VoterChange::Learn(id) => (pb::ConfChangeType::AddLearnerNode, id),
        VoterChange::Vote(id) => (pb::ConfChangeType::AddNode, id),
        VoterChange::Leave(id) => (pb::ConfChangeType::RemoveNode, id),
    };
    let mut raft = pb::ConfChange::default();
    raft.set_change_type(kind);
    raft.node_id = id;
    raft
}
