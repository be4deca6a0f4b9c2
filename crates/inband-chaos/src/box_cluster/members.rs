//! Changes of the quorum and of the members while clients use the nodes, and nodes that lose their directories and are
//! replaced.

use std::sync::Arc;
use std::thread;
use std::{fs, io};

use anyhow::{ensure, Context, Result};
use inband_box::membership::{Change, Membership, MEMBERS_MIN};
use inband_box::NODES;
use inband_cluster::box_cluster::{self, ClusterStatus, Quorum};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::host_dir;
use nix::sys::signal::Signal;

use super::nemesis::BEHIND_MS;
use super::{leader, Cluster, SERVING_LIMIT};
use crate::nemesis::{signal, FaultThread};

/// Maximum number of members of a cluster that began with fewer.
const MEMBERS_MAX: u8 = 5;

/// Returns who takes part, by the node that has applied most.
pub(super) fn membership_of(status: &ClusterStatus) -> Option<Membership> {
    let newest = status.nodes.iter().max_by_key(|node| node.applied)?;
    Some(newest.membership)
}

/// The number of `node/4`.
pub(super) fn id_of(name: &str) -> Option<u8> {
    name.strip_prefix("node/")?.parse().ok()
}

impl Cluster {
    fn membership(&self) -> Result<Membership> {
        membership_of(&self.status()).context("no node answers")
    }

    fn change(&self, change: Change) -> Result<()> {
        box_cluster::change(self.nodes.hosts().data(), change)?;
        self.tell_clients();
        Ok(())
    }

    fn add(&self) -> Result<String> {
        let added = box_cluster::add(self.nodes.hosts().data());
        self.tell_clients();
        added
    }

    fn remove(&self, node: &str) -> Result<()> {
        box_cluster::remove(self.nodes.hosts().data(), node)?;
        self.tell_clients();
        Ok(())
    }

    /// Lets a majority decide, until that is so.
    pub(super) fn majority_decides(&self) -> Result<()> {
        retry(SERVING_LIMIT, || {
            let status = self.status();
            let membership = membership_of(&status).context("no node answers")?;
            let force = box_cluster::needs_all(&status.nodes);
            if !force && !membership.is_forced {
                return Ok(());
            }
            let quorum = Quorum::Majority;
            self.change(Change::Quorum { quorum, force })
        })
    }

    /// Replaces nodes whose directories were lost. Nodes that are joining must run.
    pub(super) fn replace_lost(&self) -> Result<()> {
        let lost: Vec<String> = self.lost().iter().cloned().collect();
        for node in lost {
            retry(SERVING_LIMIT, || self.replace(&node))?;
            self.lost().remove(&node);
        }
        Ok(())
    }

    fn replace(&self, node: &str) -> Result<()> {
        let membership = self.membership()?;
        ensure!(
            membership.joining == 0,
            "node/{} is joining",
            membership.joining
        );
        if !id_of(node).is_some_and(|id| membership.is_member(id)) {
            return Ok(());
        }
        if membership.count() <= MEMBERS_MIN {
            self.add()?;
        }
        self.remove(node)
    }
}

fn may_add(membership: &Membership, founding: u8) -> bool {
    membership.next <= *NODES.end() && membership.count() < MEMBERS_MAX.max(founding)
}

impl FaultThread<Cluster> {
    pub(super) fn change_members(&mut self) -> Result<Option<String>> {
        if !self.is_node_spare() {
            return Ok(None);
        }
        let status = self.cluster.status();
        let membership = self.cluster.membership()?;
        let may_add = may_add(&membership, status.options.nodes);
        let cluster = Arc::clone(&self.cluster);
        match self.rng.below(4) {
            0 if may_add => {
                let (added, meanwhile) = self.meanwhile(move || cluster.add());
                Ok(Some(format!("{} added{meanwhile}", added?)))
            }
            1 if membership.count() > MEMBERS_MIN => {
                let node = self.nodes(&status).swap_remove(0);
                let goes = node.clone();
                let (removed, meanwhile) = self.meanwhile(move || cluster.remove(&goes));
                removed?;
                Ok(Some(format!("{node} removed{meanwhile}")))
            }
            _ => self.switch_quorum(),
        }
    }

    /// Writes are in flight all the time.
    fn switch_quorum(&mut self) -> Result<Option<String>> {
        let cluster = Arc::clone(&self.cluster);
        let switch = move |quorum, force| cluster.change(Change::Quorum { quorum, force });
        let to_all = switch.clone();
        let (all, during) = self.meanwhile(move || to_all(Quorum::All, false));
        self.pause(BEHIND_MS);
        let force = self.rng.chance_ppm(300_000);
        let (back, since) = self.meanwhile(move || switch(Quorum::Majority, force));
        self.cluster.majority_decides()?;
        all.and(back)?;
        let how = if force { ", forced" } else { "" };
        Ok(Some(format!(
            "quorum all{during}, then majority{how}{since}"
        )))
    }

    /// A node dies and loses its directory, and another one takes its place.
    pub(super) fn wipe(&mut self) -> Result<Option<String>> {
        if !self.is_node_spare() {
            return Ok(None);
        }
        let status = self.cluster.status();
        let membership = self.cluster.membership()?;
        let has_place = membership.count() > MEMBERS_MIN || membership.next <= *NODES.end();
        if !has_place {
            return Ok(None);
        }
        let node = self.nodes(&status).swap_remove(0);
        let cluster = Arc::clone(&self.cluster);
        cluster.wiped().insert(node.clone());
        cluster.lost().insert(node.clone());
        cluster.nodes.kill(&node)?;
        let dir = host_dir(cluster.nodes.hosts().data(), &node);
        let clear = || -> io::Result<()> {
            fs::remove_dir_all(&dir)?;
            fs::create_dir(&dir)
        };
        clear().with_context(|| format!("removing {}", dir.display()))?;
        self.pause(BEHIND_MS);
        cluster.replace_lost()?;
        Ok(Some(format!("{node} lost its directory, and was replaced")))
    }

    /// Calls `act` while nothing else happens, a node stands still, or the leader is killed and restarted. Returns which.
    fn meanwhile<T: Send>(
        &mut self,
        act: impl FnOnce() -> Result<T> + Send,
    ) -> (Result<T>, String) {
        thread::scope(|scope| {
            let acting = scope.spawn(act);
            let disturbed = self.disturb();
            let done = acting.join().expect("it does not panic");
            match disturbed {
                Ok(meanwhile) => (done, meanwhile),
                Err(error) => (done.and(Err(error)), String::new()),
            }
        })
    }

    fn disturb(&mut self) -> Result<String> {
        let status = self.cluster.status();
        let cluster = Arc::clone(&self.cluster);
        match self.rng.below(3) {
            0 => {
                let Some(node) = leader(&status) else {
                    return Ok(String::new());
                };
                // At various moments of the change.
                self.pause((0, 30));
                cluster.nodes.kill(&node)?;
                self.pause(BEHIND_MS);
                // Unless it is the one that is being removed.
                match id_of(&node).is_some_and(|id| cluster.has_removed(id)) {
                    true => {}
                    false => drop(cluster.nodes.restart(&node)?),
                }
                Ok(format!(" while {node} was killed"))
            }
            1 => {
                let node = self.nodes(&status).swap_remove(0);
                let pids = self.stop(&[&node]);
                self.pause(BEHIND_MS);
                signal(&pids, Signal::SIGCONT);
                Ok(format!(" while {node} stood still"))
            }
            _ => Ok(String::new()),
        }
    }
}
