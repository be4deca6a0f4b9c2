//! Faults of FLAIR's hosts.

use anyhow::{bail, Result};
use inband_flair::config::GATEWAY;
use inband_paxos::config::Durability;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::Cluster;
use crate::fault_kind::FaultKind;
use crate::nemesis::{signal, FaultThread, DOWN_MS};
use inband_cluster::flair::status::{ClusterStatus, HostEntry};

impl FaultThread<Cluster> {
    pub(super) fn strike(&mut self, kind: FaultKind) -> Result<Option<String>> {
        match kind {
            FaultKind::Kill => self.kill(),
            FaultKind::Freeze => self.freeze(),
            FaultKind::Power => self.cut_power(),
            other => bail!("FLAIR's hosts have no fault {other:?}"),
        }
    }

    /// Without a disk a killed replica loses its state, so only one may be killed at a time, and only while all vote.
    fn is_replica_spare(&self) -> bool {
        if self.cluster.spec.durability == Durability::Sync {
            return true;
        }
        self.is_spare(|cluster| cluster.status().without_vote().is_none())
    }

    /// Returns the active switch, or a random one if none is active.
    fn switch(&mut self, status: &ClusterStatus) -> Option<String> {
        let serving = status.switch().map(|host| host.name.clone());
        let switches: Vec<String> = names(status, is_switch);
        serving.or_else(|| self.rng.pick(&switches).cloned())
    }

    fn follower(&mut self, status: &ClusterStatus) -> Option<String> {
        let leader = status.leader().map(|(host, _)| host.name.clone());
        let is_follower =
            |host: &HostEntry| is_replica(host) && Some(&host.name) != leader.as_ref();
        self.rng.pick(&names(status, is_follower)).cloned()
    }

    /// Hosts to kill or freeze.
    fn victims(&mut self, replicas_too: bool) -> Vec<String> {
        let status = self.cluster.status();
        let leader = || status.leader().map(|(host, _)| host.name.clone());
        let mut victims: Vec<String> = match self.rng.below(8) {
            0 | 1 => leader().into_iter().collect(),
            2 | 3 => self.switch(&status).into_iter().collect(),
            4 => self.follower(&status).into_iter().collect(),
            5 => leader().into_iter().chain(self.switch(&status)).collect(),
            6 => names(&status, is_switch),
            _ => vec![GATEWAY.to_owned()],
        };
        victims.retain(|name| replicas_too || !name.starts_with("replica"));
        victims
    }

    fn kill(&mut self) -> Result<Option<String>> {
        let is_spare = self.is_replica_spare();
        let victims = self.victims(is_spare);
        if victims.is_empty() {
            return Ok(None);
        }
        for host in &victims {
            self.cluster.kill(host)?;
        }
        // A host that restarts before its peers notice still receives messages meant for its previous process.
        let is_back_at_once = self.rng.chance_ppm(300_000);
        if !is_back_at_once {
            self.pause(DOWN_MS);
        }
        for host in &victims {
            self.cluster.restart(host)?;
        }
        let how = if is_back_at_once {
            ", and back at once"
        } else {
            ""
        };
        Ok(Some(format!("{} killed{how}", victims.join(", "))))
    }

    fn cut_power(&mut self) -> Result<Option<String>> {
        let hosts = names(&self.cluster.status(), |_| true);
        hosts.iter().try_for_each(|host| self.cluster.kill(host))?;
        self.pause(DOWN_MS);
        hosts
            .iter()
            .try_for_each(|host| self.cluster.restart(host))?;
        Ok(Some("everything killed, and started again".into()))
    }

    /// Freezes user space; a switch in the kernel keeps running.
    fn freeze(&mut self) -> Result<Option<String>> {
        let mut victims = self.victims(true);
        if self.rng.chance_ppm(200_000) {
            victims = names(&self.cluster.status(), is_replica);
        }
        let hosts = self.cluster.status().hosts;
        let frozen = hosts.iter().filter(|host| victims.contains(&host.name));
        let pids: Vec<Pid> = frozen
            .filter_map(|host| Some(Pid::from_raw(host.pid? as i32)))
            .collect();
        if pids.is_empty() {
            return Ok(None);
        }
        signal(&pids, Signal::SIGSTOP);
        self.pause(DOWN_MS);
        signal(&pids, Signal::SIGCONT);
        Ok(Some(format!("{} frozen", victims.join(", "))))
    }
}

fn is_replica(host: &HostEntry) -> bool {
    host.name.starts_with("replica")
}

fn is_switch(host: &HostEntry) -> bool {
    host.name.starts_with("switch")
}

fn names(status: &ClusterStatus, is_one: impl Fn(&HostEntry) -> bool) -> Vec<String> {
    let hosts = status.hosts.iter().filter(|host| is_one(host));
    hosts.map(|host| host.name.clone()).collect()
}
