//! Faults of NetPaxos' processes.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use inband_cluster::supervisor::host_dir;
use inband_host::config::Durability;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{is_whole, Cluster};
use crate::fault_kind::FaultKind;
use crate::nemesis::{signal, FaultThread, DOWN_MS};

/// How long a storage server is stopped so that it misses requests.
const BEHIND_MS: (u64, u64) = (50, 800);
/// How long a learner without directory stays down: its incarnation is a wall clock's second, which must be a new one.
const WIPED: Duration = Duration::from_millis(1_100);

impl FaultThread<Cluster> {
    pub(super) fn strike(&mut self, kind: FaultKind) -> Result<Option<String>> {
        match kind {
            FaultKind::Kill => self.kill(),
            FaultKind::Freeze => self.freeze(),
            FaultKind::Wipe => self.wipe(),
            FaultKind::Power => self.cut_power(),
            other => bail!("{other:?} is not a fault of NetPaxos' processes"),
        }
    }

    fn failures(&self) -> usize {
        usize::from((self.cluster.spec.options.minions - 1) / 3)
    }

    /// Returns whether storage servers may lose their memory: while all others have theirs.
    fn is_memory_spare(&self) -> bool {
        self.is_spare(|cluster| is_whole(&cluster.status()))
    }

    /// Returns all processes of a kind, in random order.
    fn all(&mut self, kind: &str) -> Vec<String> {
        let processes = self.cluster.processes().into_iter();
        let names = processes.map(|process| process.name);
        let mut left: Vec<String> = names
            .filter(|name| name.split('/').next() == Some(kind))
            .collect();
        let mut shuffled = Vec::new();
        while !left.is_empty() {
            shuffled.push(left.remove(self.rng.below(left.len() as u64) as usize));
        }
        shuffled
    }

    /// Returns 1 to `most` processes of a kind, but rarely all of them.
    fn some(&mut self, kind: &str, most: usize) -> Vec<String> {
        let mut all = self.all(kind);
        if !self.rng.chance_ppm(125_000) {
            all.truncate(self.rng.between(1, most as u64) as usize);
        }
        all
    }

    /// Returns storage servers that may be killed; they lose their memory unless they have a disk.
    fn storages(&mut self) -> Vec<String> {
        let failures = self.failures();
        match self.cluster.durability() {
            Durability::Sync => self.some("storage", failures),
            Durability::Memory if !self.is_memory_spare() => Vec::new(),
            Durability::Memory => {
                let mut all = self.all("storage");
                all.truncate(self.rng.between(1, failures as u64) as usize);
                all
            }
        }
    }

    fn kill(&mut self) -> Result<Option<String>> {
        let failures = self.failures();
        let victims = match self.rng.below(8) {
            0 => self.some("serializer", 1),
            1 | 2 => self.some("minion", failures),
            3 => self.storages(),
            4 => return self.kill_while_another_is_behind(),
            5 | 6 => self.some("learner", 1),
            _ => {
                let mut mixed = self.storages();
                for kind in ["serializer", "minion", "learner"] {
                    mixed.extend(self.some(kind, 1));
                }
                mixed
            }
        };
        if victims.is_empty() {
            return Ok(None);
        }
        let cluster = Arc::clone(&self.cluster);
        for host in &victims {
            cluster.hosts.kill(host)?;
        }
        // A process that is back before the others notice has still lost what it had.
        let is_back_at_once = self.rng.chance_ppm(300_000);
        if !is_back_at_once {
            self.pause(DOWN_MS);
        }
        for host in &victims {
            cluster.hosts.restart(host)?;
        }
        let how = match is_back_at_once {
            true => ", and back at once",
            false => "",
        };
        Ok(Some(format!("{} killed{how}", victims.join(", "))))
    }

    /// A storage server misses requests while another one is killed and restarted, so that what is decided meanwhile
    /// has no vote to spare; then the first one is back.
    fn kill_while_another_is_behind(&mut self) -> Result<Option<String>> {
        if !self.is_memory_spare() {
            return Ok(None);
        }
        let storages = self.all("storage");
        let [behind, killed, ..] = &storages[..] else {
            return Ok(None);
        };
        let cluster = Arc::clone(&self.cluster);
        let still = self.stop(&[behind]);
        self.pause(BEHIND_MS);
        let done = cluster.hosts.kill(killed);
        let done = done.and_then(|_| cluster.hosts.restart(killed));
        self.pause(BEHIND_MS);
        signal(&still, Signal::SIGCONT);
        done?;
        Ok(Some(format!("{killed} killed while {behind} was behind")))
    }

    /// Roles in the kernel keep running. A process that resumes finds old packets in its socket.
    fn freeze(&mut self) -> Result<Option<String>> {
        let failures = self.failures();
        let victims = match self.rng.below(5) {
            0 => self.some("serializer", 1),
            1 => self.some("minion", failures),
            2 => self.some("storage", failures + 1),
            3 => self.some("learner", 2),
            _ => {
                let mut mixed = self.some("storage", failures);
                mixed.extend(self.some("learner", 1));
                mixed
            }
        };
        let pids = self.stop(&victims);
        if pids.is_empty() {
            return Ok(None);
        }
        self.pause(DOWN_MS);
        signal(&pids, Signal::SIGCONT);
        Ok(Some(format!("{} frozen", victims.join(", "))))
    }

    /// A process loses its directory: a learner its store, a storage server its journal, a minion the number of its
    /// last start.
    fn wipe(&mut self) -> Result<Option<String>> {
        if !self.is_memory_spare() {
            return Ok(None);
        }
        let kind = ["learner", "storage", "minion"][self.rng.below(3) as usize];
        let Some(victim) = self.all(kind).pop() else {
            return Ok(None);
        };
        let cluster = Arc::clone(&self.cluster);
        cluster.hosts.kill(&victim)?;
        let dir = host_dir(cluster.hosts.hosts().data(), &victim);
        let clear = || fs::remove_dir_all(&dir).and_then(|()| fs::create_dir(&dir));
        clear().with_context(|| format!("removing {}", dir.display()))?;
        // In full, also if the run ends.
        thread::sleep(WIPED);
        cluster.hosts.restart(&victim)?;
        Ok(Some(format!("{victim} lost its directory")))
    }

    fn cut_power(&mut self) -> Result<Option<String>> {
        let cluster = Arc::clone(&self.cluster);
        let processes = cluster.processes();
        for process in &processes {
            cluster.hosts.kill(&process.name)?;
        }
        self.pause(DOWN_MS);
        for process in &processes {
            cluster.hosts.restart(&process.name)?;
        }
        Ok(Some("everything killed, and started again".into()))
    }

    /// Stops these processes.
    fn stop<Name: AsRef<str>>(&self, names: &[Name]) -> Vec<Pid> {
        let processes = self.cluster.processes();
        let is_one = |name: &str| names.iter().any(|one| one.as_ref() == name);
        let stopped = processes.iter().filter(|process| is_one(&process.name));
        let pids: Vec<Pid> = stopped
            .filter_map(|process| Some(Pid::from_raw(process.pid? as i32)))
            .collect();
        signal(&pids, Signal::SIGSTOP);
        pids
    }
}
