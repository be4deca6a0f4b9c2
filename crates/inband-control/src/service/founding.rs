//! How controllers found a cluster: each announces its log and settings, and the first one founds the group once all of
//! them agree. Also adds the logs of later controllers to the group.

use std::collections::BTreeMap;

use super::net::{Announcement, Body};
use super::Worker;
use crate::acceptor::AcceptorState;
use crate::configuration::{Configuration, NodeId};
use crate::message::Report;
use crate::raft_node::{node_of, RaftNode};
use crate::state::{Command, Refusal};
use crate::timing::Micros;

/// Interval between announcements of a controller's log.
const ANNOUNCE_US: Micros = 500_000;

/// The same while the log belongs to no group: founding the cluster waits for it.
const ANNOUNCE_NEW_US: Micros = 100_000;

/// How often a host without a configuration logs what it waits for.
const WAIT_LOG_US: Micros = 10_000_000;

/// Returns what keeps a host outside of the cluster, given the controllers whose services it has heard from. Before the
/// cluster is founded only controllers hear from others.
fn what_is_missing(first: &Configuration, node: NodeId, heard: &[NodeId]) -> String {
    let controllers = first.controllers();
    let is_controller = controllers.contains(&node);
    let missing: Vec<String> = controllers
        .iter()
        .filter(|other| !is_controller || !heard.contains(other))
        .map(|other| {
            let member = &first.members[other];
            format!("{} ({})", member.name, member.control)
        })
        .collect();
    let missing = missing.join(", ");
    match (is_controller, missing.is_empty()) {
        (true, false) => format!(
            "waits for controllers that were not heard: {missing}; a cluster is founded once all its controllers are up \
             and can reach each other over TCP"
        ),
        (true, true) => "waits for the controllers, which were all heard, to found the cluster or to say who is in it; \
                         a host that is new to a cluster joins it by `inband member add`"
            .into(),
        (false, _) => format!(
            "waits to be told by the controllers ({missing}) who is in the cluster; it is founded once all of them are \
             up, and a host that is new to it joins it by `inband member add`"
        ),
    }
}

impl<A: AcceptorState> Worker<A> {
    /// A host outside of the cluster logs what it waits for.
    pub(super) fn log_what_is_missing(&mut self, now: Micros) {
        if now < self.wait_log_at {
            return;
        }
        self.wait_log_at = now + WAIT_LOG_US;
        // Not at once: at the start all hosts briefly wait for each other.
        if now < WAIT_LOG_US || self.member.configuration().is_some() {
            return;
        }
        let heard: Vec<NodeId> = self.announced.keys().copied().collect();
        tracing::warn!(
            "{}",
            what_is_missing(&self.config.first, self.config.node, &heard)
        );
    }

    pub(super) fn announce(&mut self, now: Micros) {
        let Some(raft) = self.raft.as_ref().filter(|_| now >= self.announce_at) else {
            return;
        };
        let every = if raft.is_in_group() {
            ANNOUNCE_US
        } else {
            ANNOUNCE_NEW_US
        };
        self.announce_at = now + every;
        let announcement = Announcement {
            raft_id: raft.id(),
            is_in_group: raft.is_in_group(),
            identity: self.identity,
            settings: self.config.settings.clone(),
        };
        self.announced
            .insert(self.config.node, announcement.clone());
        let own = self.config.node;
        let nodes: Vec<NodeId> = self.services.keys().copied().collect();
        for node in nodes.into_iter().filter(|node| *node != own) {
            self.send_body(node, Body::Announce(announcement.clone()));
        }
    }

    /// Found the group, add logs to it, and found the cluster.
    pub(super) fn gather(&mut self) {
        let first = self.config.first.controllers();
        let Some(raft) = self.raft.take() else { return };
        if raft.state().opened.is_none() {
            self.log_other_settings(&first);
        }
        // Only if no controller has a log: a founder that has lost its own must not start another group. And only if
        // all have the same settings: founding cannot be undone.
        let is_founder = first.first() == Some(&self.config.node);
        let announced = || first.iter().map(|node| self.announced.get(node));
        let all_alike = announced().all(|a| a.is_some_and(|a| a.settings == self.config.settings));
        let all_empty = announced().all(|a| a.is_some_and(|a| !a.is_in_group));
        if is_founder && !raft.is_in_group() && all_empty && all_alike {
            match raft.found() {
                Ok(raft) => self.raft = Some(raft),
                Err(error) => tracing::error!("{error}"),
            }
            return;
        }
        let mut raft = raft;
        let wanted = self.wanted(&raft, &first);
        raft.steer_voters(&wanted);
        let voters = raft.peers().0;
        let all_vote = first
            .iter()
            .all(|node| voters.iter().any(|v| node_of(*v) == *node));
        let is_new = raft.state().opened.is_none() && all_vote && all_alike && raft.is_up_to_date();
        self.raft = Some(raft);
        if is_new {
            let found = Command::Found(self.config.first.clone());
            self.propose(&found);
        }
    }

    /// Returns the settings of more than half of the controllers, as far as they have announced them. So a leader with
    /// different settings refuses itself, not the others.
    fn usual_settings(&self) -> Option<&str> {
        let raft = self.raft.as_ref()?;
        let opened = raft.state().opened.as_ref();
        let controllers = opened.unwrap_or(&self.config.first).controllers();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for announcement in controllers
            .iter()
            .filter_map(|node| self.announced.get(node))
        {
            *counts.entry(&announcement.settings).or_default() += 1;
        }
        let usual = counts
            .into_iter()
            .find(|(_, count)| 2 * count > controllers.len());
        usual.map(|(settings, _)| settings)
    }

    /// Returns why the coordinator refuses the reporting host, if it does.
    pub(super) fn refusal_of(&self, report: &Report) -> Option<Refusal> {
        self.coordinator.as_ref()?;
        let expected = self.usual_settings()?;
        (report.settings != expected).then(|| Refusal::OtherSettings {
            node: report.node,
            given: report.settings.clone(),
            expected: expected.to_owned(),
        })
    }

    /// A cluster of hosts with different settings is not founded: log which host differs, once.
    fn log_other_settings(&mut self, controllers: &[NodeId]) {
        let announced = controllers
            .iter()
            .filter_map(|node| Some((*node, &self.announced.get(node)?.settings)));
        let other = announced
            .filter(|(_, settings)| **settings != self.config.settings)
            .map(|(node, settings)| (node, settings.clone()))
            .next();
        if other != self.other_settings {
            if let Some((node, settings)) = &other {
                tracing::error!(
                    "the cluster is not founded: node {node} has {settings:?}, this one {:?}; make [cluster] the \
                     same in the configurations of all hosts, and start them again",
                    self.config.settings
                );
            }
            self.other_settings = other;
        }
    }

    /// Raft ids of the logs that should vote: for each controller the one that its host announces, if the host has the
    /// expected identity.
    fn wanted(&self, raft: &RaftNode, first: &[NodeId]) -> Vec<u64> {
        let state = raft.state();
        let opened = state.opened.as_ref();
        let nodes = opened.map_or_else(|| first.to_vec(), Configuration::controllers);
        let (voters, learners) = raft.peers();
        let id = |node: &NodeId| {
            let announced = self.announced.get(node);
            let is_known = |a: &&Announcement| state.check_identity(*node, a.identity).is_ok();
            let announced = announced.filter(is_known).map(|a| a.raft_id);
            let mut peers = voters.iter().chain(&learners).copied();
            announced.or_else(|| peers.find(|id| node_of(*id) == *node))
        };
        nodes.iter().filter_map(id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Beginning, Member, Parts};

    #[test]
    fn a_host_that_waits_names_whom_it_waits_for() {
        let member = |node: NodeId| Member {
            node,
            name: format!("host{node}"),
            data: "10.0.0.1:7400".parse().expect("an address"),
            control: "10.0.0.1:7401".parse().expect("an address"),
            parts: Parts {
                controller: node < 3,
                ..Parts::default()
            },
            identity: None,
        };
        let first = Configuration {
            epoch: 1,
            revision: 0,
            members: [1, 2, 3].map(|node| (node, member(node))).into(),
            leaders: Vec::new(),
            beginning: Beginning::Fresh(vec![1]),
        };
        let said = what_is_missing(&first, 1, &[1]);
        assert!(said.contains("not heard: host2 (10.0.0.1:7401);"), "{said}");
        let said = what_is_missing(&first, 1, &[1, 2]);
        assert!(said.contains("which were all heard"), "{said}");
        let said = what_is_missing(&first, 3, &[]);
        assert!(
            said.contains("by the controllers (host1 (10.0.0.1:7401), host2 (10.0.0.1:7401))"),
            "{said}"
        );
    }
}
