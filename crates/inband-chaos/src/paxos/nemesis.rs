//! Host faults of a Paxos cluster.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use inband_cluster::paxos::supervisor::HostEntry;
use inband_cluster::paxos::{ClusterStatus, MemberKind};
use inband_paxos::config::{Durability, Role};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{votes, Cluster};
use crate::fault_kind::FaultKind;
use crate::nemesis::{signal, FaultThread, DOWN_MS, POLL_INTERVAL, SPARE_LIMIT};

/// Minimum and maximum size of the cluster under membership changes.
const ACCEPTORS: (usize, usize) = (3, 5);
const REPLICAS: (usize, usize) = (3, 4);

impl FaultThread<Cluster> {
    pub(super) fn strike(&mut self, kind: FaultKind) -> Result<Option<String>> {
        let done = match kind {
            FaultKind::Kill => self.kill(),
            FaultKind::Freeze => self.freeze(),
            FaultKind::Member => self.change_members(),
            FaultKind::Wipe => self.wipe(),
            FaultKind::Leader => self.move_leader(),
            FaultKind::Power => self.cut_power(),
            other => bail!("{other:?} is not a fault of a host"),
        };
        let _ = self.cluster.refresh_addresses();
        done
    }

    /// Returns how many acceptors may be killed.
    fn mortal_acceptors(&self) -> Result<usize> {
        match self.cluster.spec.durability {
            Durability::Sync => Ok(usize::MAX),
            Durability::Memory => self.spare_acceptors(),
        }
    }

    /// Returns how many acceptors may lose their state: the voting ones beyond a majority. Waits up to [`SPARE_LIMIT`]
    /// for at least one, then returns 0.
    fn spare_acceptors(&self) -> Result<usize> {
        let deadline = Instant::now() + SPARE_LIMIT;
        loop {
            let (voting, majority) = votes(&self.cluster.status()?);
            if voting > majority {
                return Ok(voting - majority);
            }
            if Instant::now() >= deadline || self.is_over() {
                return Ok(0);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Picks up to `most` hosts with this role; possibly none.
    fn some_of(&mut self, status: &ClusterStatus, role: Role, most: usize) -> Vec<String> {
        let with_role = status.hosts.iter().filter(|h| h.roles.contains(&role));
        let mut names: Vec<String> = with_role.map(|h| h.name.clone()).collect();
        let count = self.rng.between(0, names.len().min(most) as u64) as usize;
        while names.len() > count {
            names.remove(self.rng.below(names.len() as u64) as usize);
        }
        names
    }

    fn leader_of_some_log(&mut self, status: &ClusterStatus) -> Vec<String> {
        let log = self.rng.below(status.leaders.len().max(1) as u64) as usize;
        status.leader(log).map(str::to_owned).into_iter().collect()
    }

    /// Hosts to kill or freeze: a leader, some of one role, or some of each.
    fn victims(&mut self, acceptors_max: usize) -> Result<Vec<String>> {
        let status = self.cluster.status()?;
        let replicas = status
            .hosts
            .iter()
            .filter(|h| h.roles.contains(&Role::Replica));
        // Usually a minority, occasionally all of them.
        let replicas_max = match replicas.count() {
            all if self.rng.chance_ppm(125_000) => all,
            all => (all - 1) / 2,
        };
        let mut victims = match self.rng.below(4) {
            0 => self.leader_of_some_log(&status),
            1 => self.some_of(&status, Role::Acceptor, acceptors_max),
            2 => self.some_of(&status, Role::Replica, replicas_max),
            _ => {
                let mut all = self.leader_of_some_log(&status);
                all.extend(self.some_of(&status, Role::Acceptor, acceptors_max));
                all.extend(self.some_of(&status, Role::Replica, replicas_max));
                all
            }
        };
        victims.sort();
        victims.dedup();
        Ok(victims)
    }

    fn kill(&mut self) -> Result<Option<String>> {
        let mortal = self.mortal_acceptors()?;
        let victims = self.victims(mortal)?;
        if victims.is_empty() {
            return Ok(None);
        }
        for host in &victims {
            self.cluster.with(|supervisor| Ok(supervisor.kill(host)?))?;
        }
        self.pause(DOWN_MS);
        for host in &victims {
            self.cluster
                .with(|supervisor| Ok(supervisor.restart(host)?))?;
        }
        Ok(Some(format!("{} killed", victims.join(", "))))
    }

    /// Freezes user space; roles in the kernel keep running.
    fn freeze(&mut self) -> Result<Option<String>> {
        let victims = self.victims(usize::MAX)?;
        let hosts = self.cluster.status()?.hosts;
        let frozen = hosts.iter().filter(|host| victims.contains(&host.name));
        let pids: Vec<Pid> = frozen
            .filter_map(|h| Some(Pid::from_raw(h.pid? as i32)))
            .collect();
        if pids.is_empty() {
            return Ok(None);
        }
        signal(&pids, Signal::SIGSTOP);
        self.pause(DOWN_MS);
        signal(&pids, Signal::SIGCONT);
        Ok(Some(format!("{} frozen", victims.join(", "))))
    }

    fn change_members(&mut self) -> Result<Option<String>> {
        if self.spare_acceptors()? == 0 {
            return Ok(None);
        }
        let (role, kind, (min, max)) = match self.rng.below(2) {
            0 => (Role::Acceptor, MemberKind::Acceptor, ACCEPTORS),
            _ => (Role::Replica, MemberKind::Replica, REPLICAS),
        };
        let hosts = self.cluster.status()?.hosts;
        let names: Vec<String> = hosts
            .into_iter()
            .filter(|host| host.roles.contains(&role))
            .map(|host| host.name)
            .collect();
        let host = &names[self.rng.below(names.len() as u64) as usize];
        let choice = self.rng.below(3);
        self.cluster.with(|supervisor| {
            Ok(Some(match choice {
                0 if names.len() < max => format!("{} added", supervisor.add_member(kind)?),
                1 if names.len() > min => format!("{} removed", supervisor.remove_member(host)?),
                _ => format!("{host} replaced by {}", supervisor.replace_member(host)?),
            }))
        })
    }

    /// A host dies and loses its disk; a new host replaces it.
    fn wipe(&mut self) -> Result<Option<String>> {
        if self.spare_acceptors()? == 0 {
            return Ok(None);
        }
        let hosts = self.cluster.status()?.hosts;
        let has_disk = |host: &&HostEntry| {
            host.roles.contains(&Role::Replica) || host.roles.contains(&Role::Acceptor)
        };
        let names: Vec<&str> = hosts.iter().filter(has_disk).map(|h| &*h.name).collect();
        let host = names[self.rng.below(names.len() as u64) as usize];
        self.cluster.wipe(host)?;
        let new = self.cluster.replace_wiped()?.join(", ");
        Ok(Some(format!("{host} lost its disk, {new} took its place")))
    }

    fn move_leader(&mut self) -> Result<Option<String>> {
        let status = self.cluster.status()?;
        let leaders = status
            .hosts
            .iter()
            .filter(|h| h.roles.contains(&Role::Leader));
        let names: Vec<&str> = leaders.map(|host| &*host.name).collect();
        let host = names[self.rng.below(names.len() as u64) as usize];
        let logs = status.leaders.len() as u64;
        let log = (self.rng.below(2) == 0).then(|| self.rng.below(logs) as u32);
        self.cluster.with(|supervisor| {
            supervisor.move_leader(log, host)?;
            Ok(match log {
                Some(log) => Some(format!("{host} leads log {log}")),
                None => Some(format!("{host} leads all logs")),
            })
        })
    }

    fn cut_power(&mut self) -> Result<Option<String>> {
        let off = Duration::from_millis(self.rng.between(DOWN_MS.0, DOWN_MS.1));
        self.cluster.power_off_and_on(&self.recorder, off)?;
        Ok(Some("everything killed, and started again".into()))
    }
}
