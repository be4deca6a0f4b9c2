//! What is done to the cluster while clients use it: one thread sees to the hosts, another to the
//! links. What is done when is drawn from the seed; what comes of it is up to the cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Result};
use inband_lab::supervisor::HostEntry;
use inband_lab::{ClusterStatus, MemberKind};
use inband_paxos::config::{Durability, Role};
use inband_sim::Rng;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use super::cluster::{votes, Cluster};
use super::history::{Fault, Recorder};
use super::FaultKind;

/// Pauses between faults of hosts, and of links.
const HOSTS_PAUSE_MS: (u64, u64) = (100, 2_000);
const LINKS_PAUSE_MS: (u64, u64) = (50, 2_500);
/// How long a host is dead or stands still.
const DOWN_MS: (u64, u64) = (100, 3_000);
/// Faults of links at a time.
const LINK_FAULTS_MAX: usize = 3;
/// How long is waited for an acceptor that can be spared before something else is done.
const SPARE_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The cluster grows and shrinks between these.
const ACCEPTORS: (usize, usize) = (3, 5);
const REPLICAS: (usize, usize) = (3, 4);

/// The threads.
pub struct Nemesis {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Nemesis {
    /// Begin with these faults.
    pub fn start(
        cluster: &Arc<Cluster>,
        recorder: &Recorder,
        kinds: &[FaultKind],
        durability: Durability,
        seed: u64,
    ) -> Nemesis {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (purpose, of_links) in [(1, true), (2, false)] {
            let kinds = kinds.iter().copied();
            let lane = Lane {
                cluster: Arc::clone(cluster),
                recorder: recorder.clone(),
                kinds: kinds
                    .filter(|kind| kind.is_of_links() == of_links)
                    .collect(),
                durability,
                rng: Rng::new(seed, purpose),
                stop: Arc::clone(&stop),
            };
            if !lane.kinds.is_empty() {
                threads.push(thread::spawn(move || lane.run(of_links)));
            }
        }
        Nemesis { stop, threads }
    }

    /// Whether a thread has ended already: something is broken for good.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// End all faults but those of dead hosts.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            let ended = thread.join().map_err(|_| anyhow!("the nemesis panicked"));
            ended??;
        }
        Ok(())
    }
}

/// One thread.
struct Lane {
    cluster: Arc<Cluster>,
    recorder: Recorder,
    kinds: Vec<FaultKind>,
    durability: Durability,
    rng: Rng,
    stop: Arc<AtomicBool>,
}

impl Lane {
    fn run(mut self, of_links: bool) -> Result<()> {
        if of_links {
            self.torment_links()
        } else {
            self.torment_hosts()
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// A random time; shorter at the end of the run.
    fn pause(&mut self, (min_ms, max_ms): (u64, u64)) {
        let until = Instant::now() + Duration::from_millis(self.rng.between(min_ms, max_ms));
        while Instant::now() < until && !self.is_over() {
            thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn torment_links(&mut self) -> Result<()> {
        let clock = self.recorder.clock;
        let mut begin_ns = 0;
        while !self.is_over() {
            thread::sleep(POLL_INTERVAL);
            let now_ns = clock.now_ns();
            let mut has_changed = self.cluster.faults().end_due(now_ns, &self.recorder);
            if now_ns >= begin_ns {
                has_changed |= self.begin_link_fault(now_ns);
                let pause_ms = self.rng.between(LINKS_PAUSE_MS.0, LINKS_PAUSE_MS.1);
                begin_ns = now_ns + pause_ms * 1_000_000;
            }
            if has_changed {
                self.cluster.apply(&self.cluster.faults())?;
            }
        }
        let mut faults = self.cluster.faults();
        faults.end_all(clock.now_ns(), &self.recorder);
        self.cluster.apply(&faults)
    }

    /// If there are not too many, and not everything is off.
    fn begin_link_fault(&mut self, now_ns: u64) -> bool {
        let Some(&kind) = self.rng.pick(&self.kinds) else {
            return false;
        };
        let Ok(hosts) = self.cluster.host_names() else {
            return false;
        };
        let mut faults = self.cluster.faults();
        let has_room = faults.len() < LINK_FAULTS_MAX;
        if has_room {
            faults.begin(kind, &hosts, now_ns, &mut self.rng);
        }
        has_room
    }

    fn torment_hosts(&mut self) -> Result<()> {
        loop {
            self.pause(HOSTS_PAUSE_MS);
            if self.is_over() {
                return Ok(());
            }
            let kind = *self.rng.pick(&self.kinds).unwrap_or(&FaultKind::Kill);
            let from_ns = self.recorder.clock.now_ns();
            let done = match kind {
                FaultKind::Kill => self.kill(),
                FaultKind::Freeze => self.freeze(),
                FaultKind::Member => self.change_members(),
                FaultKind::Wipe => self.wipe(),
                FaultKind::Leader => self.move_leader(),
                // What does not come up again is for good.
                FaultKind::Power => Ok(self.cut_power()?),
                other => bail!("{other:?} is no fault of a host"),
            };
            // That a change is refused in the middle of faults is no fault of the cluster's: it is
            // noted, and the run goes on.
            let (what, note) = match done {
                Ok(Some(what)) => (what, None),
                Ok(None) => continue,
                Err(error) => {
                    // Before anything else is done: what is dead lives, and what is lost is replaced.
                    let _ = self.cluster.replace_wiped();
                    let _ = self.cluster.restart_all();
                    (kind.name().to_owned(), Some(format!("{error:#}")))
                }
            };
            self.recorder.fault(Fault {
                fault: kind.name(),
                what,
                from_ns,
                to_ns: self.recorder.clock.now_ns(),
                note,
            });
            let _ = self.cluster.refresh_addresses();
        }
    }

    /// So many acceptors may be killed.
    fn mortal_acceptors(&self) -> Result<usize> {
        match self.durability {
            Durability::Sync => Ok(usize::MAX),
            Durability::Memory => self.spare_acceptors(),
        }
    }

    /// So many acceptors may lose what they know: those above a majority that vote. None if there are
    /// none soon.
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

    /// Some hosts of a role: up to `most`.
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

    /// Hosts to die or stand still: a leader, some of one role, or some of each.
    fn victims(&mut self, acceptors_max: usize) -> Result<Vec<String>> {
        let status = self.cluster.status()?;
        let replicas = status
            .hosts
            .iter()
            .filter(|h| h.roles.contains(&Role::Replica));
        // Mostly a minority; seldom all of them.
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

    /// User space stands still; what runs in the kernel goes on.
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

    /// A host that dies with its disk, and another in its place.
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

/// Fails only for a process that has ended by itself, which is found out when it is to serve.
fn signal(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill(*pid, signal);
    }
}
