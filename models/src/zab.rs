//! Consensus in a box: election, synchronisation and broadcast of three nodes, one of which may lose its memory.
//!
//! Speaks of:
//! - `crates/inband-box/src/election.rs`: `elect` `on_elect` `on_promise` `on_pull` `take_pulled` `freshness`
//! - `crates/inband-box/src/sync.rs`: `lead` `finish_joining` `on_joined` `on_target` `tick_following`
//! - `dataplane/box/role.h`: `ib_box_takes` `ib_box_learn` `ib_box_advance` `ib_box_count`
//!
//! Sent messages never disappear: a leader's proposals and a node's acknowledgements may arrive at any time and
//! repeatedly. A zxid is a position in the log, from 1.

use std::collections::BTreeMap;

use stateright::{Model, Property};

use crate::majority;

const NODES: usize = 3;
/// The epoch in which the model begins, and its leader.
const FIRST: u8 = 3;
const FIRST_LEADER: usize = 0;

/// Bounds of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Records that leaders append, besides the first of each epoch.
    pub records: u8,
    pub elections: u8,
    /// Nodes that lose their memory, one at a time.
    pub crashes: u8,
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Bounds {
            records,
            elections,
            crashes,
        } = self;
        write!(
            f,
            "{records} records, {elections} elections, {crashes} crashes"
        )
    }
}

/// Two leaders after the first.
pub const ELECTIONS: Bounds = Bounds {
    records: 1,
    elections: 2,
    crashes: 0,
};
/// The same, with more records.
pub const ELECTIONS_OF_MORE: Bounds = Bounds {
    records: 2,
    ..ELECTIONS
};
/// A node loses its memory, and another leads.
pub const CRASH: Bounds = Bounds {
    records: 1,
    elections: 1,
    crashes: 1,
};
/// Two nodes lose their memory, one after the other.
pub const CRASHES: Bounds = Bounds {
    records: 1,
    elections: 1,
    crashes: 2,
};
/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Mutant {
    OldEpochKept,
    PromiseNotKept,
    RecoveringNodeVotes,
    WritesInFlightMissed,
    LogsComparedByZxid,
    FreshestNotPulled,
    ConflictLeavesTheRest,
    RecordSkipped,
    CommittedBeyondMatched,
}

impl Mutant {
    pub const ALL: [(Mutant, Bounds); 9] = [
        (Mutant::OldEpochKept, ELECTIONS),
        (Mutant::PromiseNotKept, ELECTIONS),
        (Mutant::RecoveringNodeVotes, CRASH),
        (Mutant::WritesInFlightMissed, CRASH),
        (Mutant::LogsComparedByZxid, ELECTIONS),
        (Mutant::FreshestNotPulled, ELECTIONS),
        (Mutant::ConflictLeavesTheRest, ELECTIONS),
        (Mutant::RecordSkipped, ELECTIONS),
        (Mutant::CommittedBeyondMatched, ELECTIONS),
    ];
}

/// A record: the epoch in which it was proposed, and its number in the epoch; number 0 establishes the epoch.
type Record = (u8, u8);

/// The end of a log: the epoch of its last record, and its zxid.
type Ending = (u8, u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Doing {
    Waiting,
    /// The log ends of the nodes that have promised, and from which node the log is taken over, up to which zxid.
    Electing {
        endings: [Option<Ending>; NODES],
        pull: Option<(usize, u8)>,
    },
    Following {
        target: Option<u8>,
    },
    Leading,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    /// On disk.
    promise: u8,
    /// Number of the current start.
    start: u8,
    log: Vec<Record>,
    /// Up to here the log matches the leader's, or the one that it takes over.
    matched: u8,
    committed: u8,
    recovering: bool,
    doing: Doing,
}

impl Node {
    fn last(&self) -> u8 {
        self.log.len() as u8
    }

    fn leads(&self) -> bool {
        self.doing == Doing::Leading
    }

    /// Puts a record after the matched ones.
    fn put(&mut self, record: Record, model: &Zab) {
        let at = usize::from(self.matched);
        match self.log.get(at) {
            Some(there) if *there == record => {}
            Some(_) if model.lacks(Mutant::ConflictLeavesTheRest) => self.log[at] = record,
            _ => {
                self.log.truncate(at);
                self.log.push(record);
            }
        }
        self.matched += 1;
    }
}

/// Everything that was sent in an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Sent {
    /// The leader's log.
    proposed: Vec<Record>,
    established_at: u8,
    committed: u8,
    /// By node: up to where it has acknowledged.
    acks: [u8; NODES],
    /// Targets of recovering nodes: for which start, and the zxid.
    targets: [Option<(u8, u8)>; NODES],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    sent: BTreeMap<u8, Sent>,
    /// What was committed: each record, and the first epoch in which it was.
    committed: Vec<(Record, u8)>,
    differs: bool,
    records: u8,
    elections: u8,
    crashes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    Append { leader: usize },
    Deliver { epoch: u8, node: usize, zxid: u8 },
    Commit { leader: usize, zxid: u8 },
    Learn { epoch: u8, node: usize },
    Elect { node: usize },
    Promise { candidate: usize, node: usize },
    Choose { candidate: usize },
    Pull { candidate: usize },
    Join { epoch: u8, node: usize },
    Target { epoch: u8, node: usize },
    TakeTarget { epoch: u8, node: usize },
    Recovered { node: usize },
    Crash { node: usize },
}

#[derive(Debug, Clone, Copy)]
pub struct Zab {
    pub bounds: Bounds,
    /// The rule left out, if any.
    pub mutant: Option<Mutant>,
}

fn owner_of(epoch: u8) -> usize {
    usize::from(epoch) % NODES
}

impl Zab {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Logs are compared by the epoch of their last record, and then by its zxid.
    fn ending(&self, node: &Node) -> Ending {
        let epoch = node.log.last().map_or(0, |record| record.0);
        match self.lacks(Mutant::LogsComparedByZxid) {
            true => (0, node.last()),
            false => (epoch, node.last()),
        }
    }

    /// Whether the node may vote, and its log be taken over.
    fn votes(&self, node: &Node) -> bool {
        !node.recovering || self.lacks(Mutant::RecoveringNodeVotes)
    }

    /// The candidate's log is the freshest that a majority has, or the candidate takes that one over.
    fn choose(&self, state: &mut State, candidate: usize) {
        let Doing::Electing { endings, .. } = state.nodes[candidate].doing else {
            return;
        };
        let known = (0..NODES).filter_map(|node| Some((node, endings[node]?)));
        let freshest = known.max_by_key(|(node, ending)| (*ending, *node == candidate));
        let (freshest, (_, last)) = freshest.expect("its own is known");
        if freshest == candidate || self.lacks(Mutant::FreshestNotPulled) {
            return self.lead(state, candidate);
        }
        state.nodes[candidate].doing = Doing::Electing {
            endings,
            pull: Some((freshest, last)),
        };
    }

    fn lead(&self, state: &mut State, leader: usize) {
        let node = &mut state.nodes[leader];
        let epoch = node.promise;
        node.doing = Doing::Leading;
        // The first record of the epoch: nothing is committed before it.
        let established_at = node.last() + 1;
        node.log.push((epoch, 0));
        node.matched = node.last();
        let sent = state.sent.entry(epoch).or_default();
        sent.proposed.clone_from(&node.log);
        sent.established_at = established_at;
        sent.acks[leader] = node.last();
    }

    fn acknowledge(&self, state: &mut State, epoch: u8, node: usize) {
        let at = &state.nodes[node];
        if at.recovering {
            return;
        }
        if let Some(sent) = state.sent.get_mut(&epoch) {
            sent.acks[node] = sent.acks[node].max(at.matched);
        }
    }

    /// Notes what a node has committed.
    fn note(state: &mut State, node: usize, epoch: u8) {
        let at = &state.nodes[node];
        for zxid in 0..usize::from(at.committed) {
            match (state.committed.get(zxid), at.log.get(zxid)) {
                (Some((record, _)), Some(own)) => state.differs |= record != own,
                (None, Some(own)) => state.committed.push((*own, epoch)),
                (_, None) => state.differs = true,
            }
        }
    }

    fn can_commit(&self, state: &State, leader: usize, zxid: u8) -> bool {
        let node = &state.nodes[leader];
        let sent = &state.sent[&node.promise];
        let have = (0..NODES).filter(|other| sent.acks[*other] >= zxid);
        let have = have.fold(0, |mask, other| mask | 1 << other);
        zxid > node.committed && zxid >= sent.established_at && majority(have, NODES)
    }

    fn may_deliver(&self, state: &State, epoch: u8, node: usize, zxid: u8) -> bool {
        let at = &state.nodes[node];
        if !matches!(at.doing, Doing::Following { .. }) || owner_of(epoch) == node {
            return false;
        }
        let is_its_epoch = match self.lacks(Mutant::PromiseNotKept) {
            true => epoch <= at.promise,
            false => epoch == at.promise,
        };
        let is_next = match self.lacks(Mutant::RecordSkipped) {
            true => zxid > at.matched && usize::from(zxid) <= at.log.len() + 2,
            false => zxid == at.matched + 1,
        };
        is_its_epoch && is_next
    }
}

impl Model for Zab {
    type State = State;
    type Action = Action;

    /// The first leader has been elected, with empty logs.
    fn init_states(&self) -> Vec<State> {
        let node = |doing| Node {
            promise: FIRST,
            start: 0,
            log: Vec::new(),
            matched: 0,
            committed: 0,
            recovering: false,
            doing,
        };
        let follower = node(Doing::Following { target: None });
        let mut state = State {
            nodes: vec![follower; NODES],
            sent: BTreeMap::new(),
            committed: Vec::new(),
            differs: false,
            records: 0,
            elections: 0,
            crashes: 0,
        };
        state.nodes[FIRST_LEADER] = node(Doing::Waiting);
        self.lead(&mut state, FIRST_LEADER);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_anybody_recovering = state.nodes.iter().any(|node| node.recovering);
        for (n, node) in state.nodes.iter().enumerate() {
            if node.leads() {
                if state.records < self.bounds.records {
                    actions.push(Action::Append { leader: n });
                }
                let zxids = node.committed + 1..=node.last();
                let commits = zxids.filter(|zxid| self.can_commit(state, n, *zxid));
                actions.extend(commits.map(|zxid| Action::Commit { leader: n, zxid }));
            }
            for (&epoch, sent) in state.sent.iter().filter(|sent| owner_of(*sent.0) != n) {
                let zxids = 1..=sent.proposed.len() as u8;
                let delivered = zxids.filter(|zxid| self.may_deliver(state, epoch, n, *zxid));
                actions.extend(delivered.map(|zxid| Action::Deliver {
                    epoch,
                    node: n,
                    zxid,
                }));
                let follows = matches!(node.doing, Doing::Following { .. });
                if epoch == node.promise && follows {
                    actions.push(Action::Learn { epoch, node: n });
                    let leader = &state.nodes[owner_of(epoch)];
                    if node.recovering && leader.leads() && leader.promise == epoch {
                        actions.push(Action::Target { epoch, node: n });
                    }
                    actions.push(Action::TakeTarget { epoch, node: n });
                }
                if epoch > node.promise || (epoch == node.promise && node.doing == Doing::Waiting) {
                    actions.push(Action::Join { epoch, node: n });
                }
            }
            if self.votes(node) && !node.leads() && state.elections < self.bounds.elections {
                actions.push(Action::Elect { node: n });
            }
            if let Doing::Electing { endings, pull } = node.doing {
                match pull {
                    Some(_) => actions.push(Action::Pull { candidate: n }),
                    None => {
                        let others = (0..NODES).filter(|other| endings[*other].is_none());
                        actions.extend(others.map(|other| Action::Promise {
                            candidate: n,
                            node: other,
                        }));
                        let promised = endings.iter().flatten().count();
                        if promised * 2 > NODES {
                            actions.push(Action::Choose { candidate: n });
                        }
                    }
                }
            }
            if node.recovering {
                actions.push(Action::Recovered { node: n });
            }
            // A node that has lost its memory counts as lost until it has recovered, and may lose it again.
            if state.crashes < self.bounds.crashes && (!is_anybody_recovering || node.recovering) {
                actions.push(Action::Crash { node: n });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Append { leader } => {
                let node = &mut state.nodes[leader];
                let epoch = node.promise;
                let number = node.log.iter().filter(|record| record.0 == epoch).count() as u8;
                node.log.push((epoch, number));
                node.matched = node.last();
                let sent = state.sent.entry(epoch).or_default();
                sent.proposed.clone_from(&node.log);
                sent.acks[leader] = node.last();
                state.records += 1;
            }
            Action::Deliver { epoch, node, zxid } => {
                let record = state.sent[&epoch].proposed[usize::from(zxid) - 1];
                state.nodes[node].put(record, self);
                if self.lacks(Mutant::RecordSkipped) {
                    state.nodes[node].matched = state.nodes[node].matched.max(zxid);
                }
                self.acknowledge(&mut state, epoch, node);
            }
            Action::Commit { leader, zxid } => {
                let epoch = state.nodes[leader].promise;
                state.nodes[leader].committed = zxid;
                state.sent.entry(epoch).or_default().committed = zxid;
                Self::note(&mut state, leader, epoch);
            }
            Action::Learn { epoch, node } => {
                let committed = state.sent[&epoch].committed;
                let at = &mut state.nodes[node];
                let most = match self.lacks(Mutant::CommittedBeyondMatched) {
                    true => at.last(),
                    false => at.matched,
                };
                at.committed = at.committed.max(committed.min(most));
                Self::note(&mut state, node, epoch);
            }
            Action::Elect { node } => {
                let at = &mut state.nodes[node];
                let own = (at.promise + 1..).find(|epoch| owner_of(*epoch) == node);
                (at.promise, at.matched) = (own.expect("there are more"), at.committed);
                let mut endings = [None; NODES];
                endings[node] = Some(self.ending(at));
                at.doing = Doing::Electing {
                    endings,
                    pull: None,
                };
                state.elections += 1;
            }
            Action::Promise { candidate, node } => {
                let epoch = state.nodes[candidate].promise;
                let voter = &mut state.nodes[node];
                if !self.votes(voter) || epoch <= voter.promise {
                    return None;
                }
                let ending = self.ending(voter);
                if !(voter.leads() && self.lacks(Mutant::OldEpochKept)) {
                    (voter.promise, voter.matched) = (epoch, voter.committed);
                    voter.doing = Doing::Waiting;
                }
                if let Doing::Electing { endings, .. } = &mut state.nodes[candidate].doing {
                    endings[node] = Some(ending);
                }
            }
            Action::Choose { candidate } => self.choose(&mut state, candidate),
            Action::Pull { candidate } => {
                let Doing::Electing {
                    pull: Some((from, until)),
                    ..
                } = last.nodes[candidate].doing
                else {
                    return None;
                };
                let source = &last.nodes[from];
                let epoch = last.nodes[candidate].promise;
                let is_as_promised =
                    source.promise == epoch && source.doing == Doing::Waiting && self.votes(source);
                if !is_as_promised {
                    return None;
                }
                let matched = usize::from(state.nodes[candidate].matched);
                state.nodes[candidate].put(*source.log.get(matched)?, self);
                if state.nodes[candidate].matched >= until {
                    self.lead(&mut state, candidate);
                }
            }
            Action::Join { epoch, node } => {
                let at = &mut state.nodes[node];
                (at.promise, at.matched) = (epoch, at.committed);
                at.doing = Doing::Following { target: None };
                self.acknowledge(&mut state, epoch, node);
            }
            Action::Target { epoch, node } => {
                let leader = &last.nodes[owner_of(epoch)];
                let zxid = match self.lacks(Mutant::WritesInFlightMissed) {
                    true => leader.committed,
                    false => leader.last(),
                };
                let start = last.nodes[node].start;
                state.sent.entry(epoch).or_default().targets[node] = Some((start, zxid));
            }
            Action::TakeTarget { epoch, node } => {
                let (start, zxid) = last.sent[&epoch].targets[node]?;
                let at = &mut state.nodes[node];
                let is_its = start == at.start;
                match &mut at.doing {
                    Doing::Following { target } if is_its && at.recovering => {
                        target.get_or_insert(zxid);
                    }
                    _ => return None,
                }
            }
            Action::Recovered { node } => {
                let at = &mut state.nodes[node];
                let Doing::Following {
                    target: Some(target),
                } = at.doing
                else {
                    return None;
                };
                if at.matched < target {
                    return None;
                }
                at.recovering = false;
                at.doing = Doing::Following { target: None };
                let epoch = at.promise;
                self.acknowledge(&mut state, epoch, node);
            }
            Action::Crash { node } => {
                let at = &mut state.nodes[node];
                *at = Node {
                    promise: at.promise,
                    start: at.start + 1,
                    log: Vec::new(),
                    matched: 0,
                    committed: 0,
                    recovering: true,
                    doing: Doing::Waiting,
                };
                state.crashes += 1;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // All nodes commit the same records at the same positions.
            Property::always("Agreement", |_, state: &State| !state.differs),
            // Every committed record is in the log of every later leader, from the epoch's beginning.
            Property::always("NothingLost", |_, state: &State| {
                let mut committed = state.committed.iter().enumerate();
                committed.all(|(at, (record, epoch))| {
                    let mut later = state.sent.range(epoch + 1..);
                    later.all(|(_, sent)| sent.proposed.get(at) == Some(record))
                })
            }),
            // Epochs are in order, and within an epoch no proposal of its leader is skipped.
            Property::always("PrimaryOrder", |_, state: &State| {
                let mut pairs = state.committed.windows(2);
                let is_first = |record: &Record| record.1 == 0;
                let begins = state
                    .committed
                    .first()
                    .is_none_or(|(record, _)| is_first(record));
                begins
                    && pairs.all(|pair| {
                        let ((epoch, number), next) = (pair[0].0, pair[1].0);
                        next == (epoch, number + 1) || (next.0 > epoch && is_first(&next))
                    })
            }),
        ]
    }
}
