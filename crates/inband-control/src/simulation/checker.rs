//! Safety checks, judged from outside by the votes that acceptors show.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::{majority, Configuration, Epoch, NodeId};

/// A vote: epoch, partition, instance, round.
type Ballot = (Epoch, usize, u64, u64);

#[derive(Default)]
pub(super) struct Checker {
    opened: BTreeMap<Epoch, Vec<NodeId>>,
    shown: BTreeMap<Ballot, (Vec<u8>, BTreeSet<NodeId>)>,
    chosen: BTreeMap<(usize, u64), Vec<u8>>,
    /// Highest epoch that an acceptor's registers ever carried.
    sealed: BTreeMap<NodeId, Epoch>,
    /// Highest epoch that an acceptor voted in and has lost the votes of.
    forgotten: BTreeMap<NodeId, Epoch>,
    voted: BTreeMap<NodeId, Epoch>,
    /// Check values only, and not the rules about who may vote when, except by their consequences.
    pub values_only: bool,
    pub violation: Option<String>,
}

impl Checker {
    pub fn opened(&mut self, configuration: &Configuration) {
        let acceptors = configuration.acceptors();
        self.opened.insert(configuration.epoch, acceptors);
    }

    /// The acceptor's registers carry this epoch.
    pub fn carries(&mut self, node: NodeId, epoch: Epoch) {
        let highest = self.sealed.entry(node).or_default();
        *highest = epoch.max(*highest);
    }

    pub fn forgot(&mut self, node: NodeId) {
        let voted = self.voted.get(&node).copied().unwrap_or(0);
        let forgotten = self.forgotten.entry(node).or_default();
        *forgotten = voted.max(*forgotten);
    }

    /// An acceptor has answered as a voter in `epoch`.
    pub fn answered(&mut self, node: NodeId, epoch: Epoch) {
        let voted = self.voted.entry(node).or_default();
        *voted = epoch.max(*voted);
        if self.values_only {
            return;
        }
        let Some(acceptors) = self.opened.get(&epoch) else {
            return self.violated(format!(
                "node {node} votes in epoch {epoch}, not yet opened"
            ));
        };
        if !acceptors.contains(&node) {
            self.violated(format!(
                "node {node} votes in epoch {epoch} and is no acceptor of it"
            ));
        } else if self.sealed.get(&node).is_some_and(|s| *s > epoch) {
            self.violated(format!(
                "node {node} votes in epoch {epoch} after it was sealed"
            ));
        } else if self.forgotten.get(&node).is_some_and(|f| *f >= epoch) {
            self.violated(format!(
                "node {node} votes in epoch {epoch}, which it has forgotten"
            ));
        }
    }

    /// An acceptor shows a vote, either just cast or stored.
    pub fn shows(&mut self, node: NodeId, ballot: Ballot, value: &[u8]) {
        self.answered(node, ballot.0);
        let shown = self.shown.entry(ballot);
        let (held, nodes) = shown.or_insert_with(|| (value.to_vec(), BTreeSet::new()));
        if held != value {
            return self.violated(format!("two values in {ballot:?}"));
        }
        nodes.insert(node);
        let Some(acceptors) = self.opened.get(&ballot.0) else {
            return;
        };
        let count = nodes.iter().filter(|n| acceptors.contains(n)).count();
        if count < majority(acceptors.len()) {
            return;
        }
        let at = (ballot.1, ballot.2);
        let chosen = self.chosen.entry(at).or_insert_with(|| value.to_vec());
        if chosen != value {
            let what = format!("{ballot:?}: {value:?} is chosen, and {chosen:?} was before");
            self.violated(what);
        }
    }

    pub fn chosen(&self) -> usize {
        self.chosen.len()
    }

    /// Returns the first instance of a partition that is not known to be chosen.
    pub fn first_open(&self, partition: usize) -> u64 {
        (1..)
            .find(|i| !self.chosen.contains_key(&(partition, *i)))
            .unwrap_or(u64::MAX)
    }

    /// Returns the first instance beyond all those known to be chosen.
    pub fn end(&self, partition: usize) -> u64 {
        let of_partition = self.chosen.keys().filter(|at| at.0 == partition);
        of_partition.map(|at| at.1 + 1).max().unwrap_or(1)
    }

    pub fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}
