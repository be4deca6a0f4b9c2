//! Faults of the hosts of replicated memory.

use std::sync::Arc;

use anyhow::{bail, Result};
use inband_cluster::memory::ClusterStatus;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{active_switch, is_whole, Cluster};
use crate::fault_kind::FaultKind;
use crate::nemesis::{signal, FaultThread, DOWN_MS};
use crate::subject::Subject;

/// How long a server misses writes or is cut off.
const BEHIND_MS: (u64, u64) = (50, 500);
/// How long only one server is reachable: long enough for a client to write, and then to read.
const ALONE_MS: (u64, u64) = (10, 150);

impl FaultThread<Cluster> {
    pub(super) fn strike(&mut self, kind: FaultKind) -> Result<Option<String>> {
        match kind {
            FaultKind::Kill => self.kill(),
            FaultKind::Freeze => self.freeze(),
            other => bail!("{other:?} is not a fault of the hosts of replicated memory"),
        }
    }

    /// Returns whether a server may be killed. It loses its memory, so at most a minority may be killed, and only while
    /// all serve.
    fn is_server_spare(&self) -> bool {
        self.is_spare(|cluster| is_whole(&cluster.status()))
    }

    /// Returns the active switch, or any switch if none is active.
    fn switch(&mut self, status: &ClusterStatus) -> Option<String> {
        active_switch(status).or_else(|| self.rng.pick(&names(status, "switch/")).cloned())
    }

    /// Picks at least one server and at most a minority of them.
    fn servers(&mut self, status: &ClusterStatus) -> Vec<String> {
        let mut servers = names(status, "server/");
        let minority = (servers.len() as u64 - 1) / 2;
        let count = self.rng.between(1.min(minority), minority) as usize;
        while servers.len() > count {
            servers.remove(self.rng.below(servers.len() as u64) as usize);
        }
        servers
    }

    /// Hosts to kill or freeze.
    fn victims(&mut self, servers_too: bool) -> Vec<String> {
        let status = self.cluster.status();
        let switch = self.switch(&status);
        let mut victims = match self.rng.below(8) {
            0..=2 => self.servers(&status),
            3..=5 => switch.into_iter().collect(),
            6 => self.servers(&status).into_iter().chain(switch).collect(),
            _ => names(&status, "switch/"),
        };
        victims.retain(|name| servers_too || !name.starts_with("server"));
        victims
    }

    fn kill(&mut self) -> Result<Option<String>> {
        let is_spare = self.is_server_spare();
        let what = match self.rng.below(6) {
            0 | 1 if is_spare => self.kill_while_another_is_behind()?,
            2 => self.kill_while_one_server_hears()?,
            _ => None,
        };
        if what.is_some() {
            return Ok(what);
        }
        let victims = self.victims(is_spare);
        if victims.is_empty() {
            return Ok(None);
        }
        for host in &victims {
            self.cluster.memory.kill(host)?;
        }
        // A host that is back before its peers notice still receives packets meant for its previous process.
        let is_back_at_once = self.rng.chance_ppm(300_000);
        if !is_back_at_once {
            self.pause(DOWN_MS);
        }
        for host in &victims {
            self.cluster.memory.restart(host)?;
        }
        let how = if is_back_at_once {
            ", and back at once"
        } else {
            ""
        };
        Ok(Some(format!("{} killed{how}", victims.join(", "))))
    }

    /// Servers in random order, and all hosts. `None` if there are no links to cut or not exactly three servers.
    fn servers_and_hosts(&mut self) -> Result<Option<([String; 3], Vec<String>)>> {
        let mut hosts: Vec<String> = Vec::new();
        self.cluster.with_lab(&mut |lab| {
            hosts = lab.hosts().iter().map(|h| h.name().to_owned()).collect();
            Ok(())
        })?;
        let mut servers = names(&self.cluster.status(), "server/");
        if hosts.is_empty() || servers.len() != 3 {
            return Ok(None);
        }
        let mut take = || servers.remove(self.rng.below(servers.len() as u64) as usize);
        Ok(Some(([take(), take(), take()], hosts)))
    }

    /// A server misses writes, another one is killed and restarted immediately, and then only these two are reachable:
    /// they would answer with something older than what was acknowledged.
    fn kill_while_another_is_behind(&mut self) -> Result<Option<String>> {
        let Some(([behind, killed, up_to_date], hosts)) = self.servers_and_hosts()? else {
            return Ok(None);
        };
        let cluster = Arc::clone(&self.cluster);
        self.isolate(&[&behind], &hosts)?;
        self.pause(BEHIND_MS);
        cluster.memory.kill(&killed)?;
        self.isolate(&[&up_to_date], &hosts)?;
        let restarted = cluster.memory.restart(&killed);
        self.pause(BEHIND_MS);
        self.isolate(&[], &hosts)?;
        restarted?;
        Ok(Some(format!(
            "{killed} killed while {behind} was behind, and back while {up_to_date} was cut off"
        )))
    }

    /// Writes reach only one server, and their switch is killed. The other switch reads them from this server, which is
    /// then cut off: what was read must still be readable.
    fn kill_while_one_server_hears(&mut self) -> Result<Option<String>> {
        let Some(([hears, a, b], hosts)) = self.servers_and_hosts()? else {
            return Ok(None);
        };
        let cluster = Arc::clone(&self.cluster);
        self.isolate(&[&a, &b], &hosts)?;
        self.pause(ALONE_MS);
        let switch = self.switch(&cluster.status());
        if let Some(switch) = &switch {
            cluster.memory.kill(switch)?;
        }
        self.isolate(&[], &hosts)?;
        self.pause(ALONE_MS);
        self.isolate(&[&hears], &hosts)?;
        self.pause(BEHIND_MS);
        self.isolate(&[], &hosts)?;
        let Some(switch) = switch else {
            return Ok(None);
        };
        cluster.memory.restart(&switch)?;
        Ok(Some(format!(
            "{switch} killed while {hears} alone heard it, and then {hears} was cut off"
        )))
    }

    /// Cuts off these servers and reconnects all others.
    fn isolate(&self, servers: &[&str], hosts: &[String]) -> Result<()> {
        let now_ns = self.recorder.clock.now_ns();
        let mut faults = self.cluster.faults();
        faults.end_isolations(now_ns, &self.recorder);
        for server in servers {
            faults.isolate(server, hosts, now_ns);
        }
        self.cluster.apply(&faults)
    }

    /// Freezes user space; roles in the kernel keep running. A switch in user space that is frozen for longer than
    /// clients wait is deposed meanwhile, and resumes with the packets that have queued in its socket.
    fn freeze(&mut self) -> Result<Option<String>> {
        let mut victims = self.victims(true);
        if self.rng.chance_ppm(150_000) {
            // A frozen server loses nothing.
            victims = names(&self.cluster.status(), "server/");
        }
        let processes = self.cluster.status().processes;
        let frozen = processes.iter().filter(|p| victims.contains(&p.name));
        let pids: Vec<Pid> = frozen
            .filter_map(|process| Some(Pid::from_raw(process.pid? as i32)))
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

/// Returns the names of hosts of a kind.
fn names(status: &ClusterStatus, kind: &str) -> Vec<String> {
    let names = status.processes.iter().map(|process| &process.name);
    names
        .filter(|name| name.starts_with(kind))
        .cloned()
        .collect()
}
