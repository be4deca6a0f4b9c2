//! Faults of the nodes of consensus in a box.

use std::sync::Arc;

use anyhow::{bail, Result};
use inband_cluster::box_cluster::ClusterStatus;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{is_whole, leader, remaining, Cluster};
use crate::fault_kind::FaultKind;
use crate::nemesis::{signal, FaultThread, DOWN_MS};

/// How long a node is stopped so that it misses writes, or so that it cannot be asked.
pub(super) const BEHIND_MS: (u64, u64) = (50, 800);

impl FaultThread<Cluster> {
    pub(super) fn strike(&mut self, kind: FaultKind) -> Result<Option<String>> {
        match kind {
            FaultKind::Kill => self.kill(),
            FaultKind::Freeze => self.freeze(),
            FaultKind::Member => self.change_members(),
            FaultKind::Wipe => self.wipe(),
            other => bail!("{other:?} is not a fault of the nodes of consensus in a box"),
        }
    }

    /// Returns whether a node may be killed. It loses its log, so at most a minority may be killed, and only while all
    /// nodes have theirs.
    pub(super) fn is_node_spare(&self) -> bool {
        self.is_spare(|cluster| is_whole(&cluster.status()))
    }

    /// Returns all nodes in random order, but in every second case with the leader first.
    pub(super) fn nodes(&mut self, status: &ClusterStatus) -> Vec<String> {
        let mut left: Vec<String> = remaining(status)
            .iter()
            .map(|process| process.name.clone())
            .collect();
        let mut nodes = Vec::new();
        if let Some(leader) = leader(status).filter(|_| self.rng.chance_ppm(500_000)) {
            left.retain(|name| *name != leader);
            nodes.push(leader);
        }
        while !left.is_empty() {
            nodes.push(left.remove(self.rng.below(left.len() as u64) as usize));
        }
        nodes
    }

    fn kill(&mut self) -> Result<Option<String>> {
        if !self.is_node_spare() {
            return Ok(None);
        }
        match self.rng.below(4) {
            0 => self.kill_while_another_is_behind(),
            1 => self.kill_the_leader_while_another_is_behind(),
            _ => self.kill_a_minority(),
        }
    }

    fn kill_a_minority(&mut self) -> Result<Option<String>> {
        let mut victims = self.nodes(&self.cluster.status());
        let minority = (victims.len() as u64 - 1) / 2;
        victims.truncate(self.rng.between(1, minority) as usize);
        let cluster = Arc::clone(&self.cluster);
        for node in &victims {
            cluster.nodes.kill(node)?;
        }
        // A node that is back before the others notice has still lost what it acknowledged.
        let is_back_at_once = self.rng.chance_ppm(300_000);
        if !is_back_at_once {
            self.pause(DOWN_MS);
        }
        for node in &victims {
            cluster.nodes.restart(node)?;
        }
        let how = match is_back_at_once {
            true => ", and back at once",
            false => "",
        };
        Ok(Some(format!("{} killed{how}", victims.join(", "))))
    }

    /// A node misses writes, another one is killed and restarted immediately, and then only these two can be asked:
    /// neither has what was acknowledged meanwhile, and only one of them knows that.
    fn kill_while_another_is_behind(&mut self) -> Result<Option<String>> {
        let nodes = self.nodes(&self.cluster.status());
        let [behind, killed, up_to_date] = &nodes[..] else {
            return self.kill_a_minority();
        };
        let cluster = Arc::clone(&self.cluster);
        let still = self.stop(&[behind]);
        self.pause(BEHIND_MS);
        let done = cluster.nodes.kill(killed);
        let others = self.stop(&[up_to_date]);
        let done = done.and_then(|_| cluster.nodes.restart(killed));
        signal(&still, Signal::SIGCONT);
        self.pause(BEHIND_MS);
        signal(&others, Signal::SIGCONT);
        done?;
        Ok(Some(format!(
            "{killed} killed while {behind} was behind, and back while {up_to_date} stood still"
        )))
    }

    /// A node misses writes, and the leader is killed: the third one must lead.
    fn kill_the_leader_while_another_is_behind(&mut self) -> Result<Option<String>> {
        let Some(leader) = leader(&self.cluster.status()) else {
            return Ok(None);
        };
        let others = self.nodes(&self.cluster.status());
        let Some(behind) = others.into_iter().find(|name| *name != leader) else {
            return Ok(None);
        };
        let cluster = Arc::clone(&self.cluster);
        let still = self.stop(&[&behind]);
        self.pause(BEHIND_MS);
        let done = cluster.nodes.kill(&leader);
        signal(&still, Signal::SIGCONT);
        self.pause(DOWN_MS);
        done?;
        cluster.nodes.restart(&leader)?;
        Ok(Some(format!("{leader} killed while {behind} was behind")))
    }

    /// A leader that is frozen for longer than the others' timeout is deposed meanwhile. It resumes with the packets
    /// and requests that have queued in its sockets.
    fn freeze(&mut self) -> Result<Option<String>> {
        let mut victims = self.nodes(&self.cluster.status());
        // A frozen node loses nothing.
        let count = self.rng.between(1, victims.len() as u64 + 1) as usize;
        victims.truncate(count.div_ceil(2));
        let pids = self.stop(&victims);
        if pids.is_empty() {
            return Ok(None);
        }
        self.pause(DOWN_MS);
        signal(&pids, Signal::SIGCONT);
        Ok(Some(format!("{} frozen", victims.join(", "))))
    }

    /// Stops these nodes' processes.
    pub(super) fn stop<Name: AsRef<str>>(&self, nodes: &[Name]) -> Vec<Pid> {
        let processes = self.cluster.status().processes;
        let is_one = |name: &str| nodes.iter().any(|node| node.as_ref() == name);
        let stopped = processes.iter().filter(|process| is_one(&process.name));
        let pids: Vec<Pid> = stopped
            .filter_map(|process| Some(Pid::from_raw(process.pid? as i32)))
            .collect();
        signal(&pids, Signal::SIGSTOP);
        pids
    }
}
