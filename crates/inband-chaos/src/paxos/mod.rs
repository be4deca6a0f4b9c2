//! The key-value store on Paxos. A power cut stops the whole cluster and later starts a new one on the same data.

mod nemesis;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use inband_cluster::paxos::supervisor::{HostEntry, ProcessState};
use inband_cluster::paxos::{ClusterSpec, ClusterStatus, Supervisor};
use inband_lab::Lab;
use inband_paxos::config::Role;

use super::fault_kind::FaultKind;
use super::history::Recorder;
use super::links::ActiveFaults;
use super::nemesis::FaultThread;
use super::subject::Subject;
use super::workload::{Client as AnyClient, Shared};
use crate::stale_proxy;
use crate::store::client::{Addresses, StoreClient};
use crate::store::companions::Companions;
use crate::store::{self, keys};
use inband_cluster::client::Client;
use inband_cluster::scratch::retry;

/// How long a cluster may take to serve after its start, and after the last fault has ended.
const SERVING_LIMIT: Duration = Duration::from_secs(60);
/// How long values may stay undecided or unapplied after the last client has stopped: longer than their deadline.
const ENDING_LIMIT: Duration = Duration::from_secs(15);
const CLIENT_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Cluster {
    spec: ClusterSpec,
    /// `None` while everything is off.
    supervisor: RwLock<Option<Supervisor>>,
    faults: Mutex<ActiveFaults>,
    /// Hosts that lost their disk and have not been replaced yet. They must not be started again.
    wiped: Mutex<Vec<String>>,
    /// Addresses of the current replicas.
    addresses: Addresses,
    companions: OnceLock<Companions>,
}

impl Cluster {
    /// Starts a cluster and waits until it serves.
    pub fn start(spec: ClusterSpec) -> Result<Cluster> {
        let supervisor = Supervisor::start(spec.clone())?;
        for notice in supervisor.notices() {
            println!("{notice}");
        }
        let cluster = Cluster {
            spec,
            supervisor: RwLock::new(Some(supervisor)),
            faults: Mutex::default(),
            wiped: Mutex::default(),
            addresses: Addresses::default(),
            companions: OnceLock::new(),
        };
        cluster.wait_until_it_serves()?;
        Ok(cluster)
    }

    /// Calls `act` with the supervisor. Fails while everything is off.
    pub fn with<T>(&self, act: impl FnOnce(&Supervisor) -> Result<T>) -> Result<T> {
        let supervisor = self.supervisor.read();
        let supervisor = supervisor.unwrap_or_else(PoisonError::into_inner);
        act(supervisor.as_ref().context("everything is off")?)
    }

    pub fn status(&self) -> Result<ClusterStatus> {
        self.with(|supervisor| Ok(supervisor.status()))
    }

    /// Kills every host at once and restarts the cluster after `off`. This ends all link faults, because the links are
    /// new.
    pub fn power_off_and_on(&self, recorder: &Recorder, off: Duration) -> Result<()> {
        // The same lock order as in `apply`.
        let mut faults = self.faults();
        let supervisor = self.supervisor.write();
        let mut supervisor = supervisor.unwrap_or_else(PoisonError::into_inner);
        drop(supervisor.take());
        faults.end_all(recorder.clock.now_ns(), recorder);
        std::thread::sleep(off);
        *supervisor = Some(Supervisor::start(self.spec.clone())?);
        drop((supervisor, faults));
        self.refresh_addresses()
    }

    /// Updates the list of replicas that clients use.
    pub fn refresh_addresses(&self) -> Result<()> {
        let hosts = self.status()?.hosts;
        let fresh = hosts.iter().filter_map(|host| host.resp).collect();
        *self
            .addresses
            .write()
            .unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    pub fn host_dir(&self, host: &str) -> PathBuf {
        let hosts = self.spec.data.join("hosts");
        hosts.join(host.replace('/', "-"))
    }

    /// Kills a host and removes its disk.
    pub fn wipe(&self, host: &str) -> Result<()> {
        self.with(|supervisor| Ok(supervisor.kill(host)?))?;
        self.wiped().push(host.to_owned());
        let dir = self.host_dir(host);
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))
    }

    /// Replaces the hosts that were wiped and returns the names of the new ones.
    pub fn replace_wiped(&self) -> Result<Vec<String>> {
        let mut new = Vec::new();
        loop {
            // Do not hold the lock: replacing a host takes a while.
            let wiped = self.wiped().last().cloned();
            let Some(host) = wiped else {
                return Ok(new);
            };
            // An earlier change that timed out may have been made after all.
            if self.status()?.hosts.iter().any(|entry| entry.name == host) {
                new.push(self.with(|supervisor| Ok(supervisor.replace_member(&host)?))?);
            }
            self.wiped().retain(|wiped| *wiped != host);
        }
    }

    fn wiped(&self) -> MutexGuard<'_, Vec<String>> {
        self.wiped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts every host that is not running, except those that were wiped. The error names a host that does not
    /// start.
    pub fn restart_all(&self) -> Result<()> {
        let wiped = self.wiped().clone();
        for host in self.status()?.hosts {
            let runs = matches!(host.process, ProcessState::Running | ProcessState::Paused);
            if !runs && !wiped.contains(&host.name) {
                let again = self.with(|supervisor| Ok(supervisor.restart(&host.name)?));
                again.with_context(|| format!("{} does not start again", host.name))?;
            }
        }
        Ok(())
    }

    /// Waits until every log has a leader, every acceptor votes, and every replica writes and reads in every partition.
    /// Returns how long that took. No fault may be active.
    pub fn wait_until_it_serves(&self) -> Result<Duration> {
        let began = Instant::now();
        retry(SERVING_LIMIT, || {
            let status = self.status()?;
            check_healthy(&status)?;
            for host in &status.hosts {
                check_serves(host, status.partitions)?;
            }
            Ok(())
        })?;
        self.refresh_addresses()?;
        Ok(began.elapsed())
    }
}

impl Subject for Cluster {
    fn describe(&self) -> String {
        let spec = &self.spec;
        format!(
            "{} acceptors, {} replicas, {} partitions, durability {}, dataplane {}",
            spec.acceptors.0.len(),
            spec.replicas,
            spec.partitions,
            spec.durability,
            spec.dataplane
        )
    }

    fn answer_with_stale_values(&self) -> Result<()> {
        let mut addresses = self
            .addresses
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for address in addresses.iter_mut() {
            *address = stale_proxy::start(*address)?;
        }
        Ok(())
    }

    fn client(self: &Arc<Self>, number: usize, shared: &Shared, seed: u64) -> Result<AnyClient> {
        let addresses = Arc::clone(&self.addresses);
        let partitions = self.spec.partitions as usize;
        let client = StoreClient::new(number, shared.clone(), addresses, partitions, seed);
        Ok(Box::new(client))
    }

    fn companions(&self, shared: &Shared, seed: u64) -> Vec<AnyClient> {
        let new = || {
            let addresses = Arc::clone(&self.addresses);
            Companions::new(
                self.spec.partitions as usize,
                addresses,
                shared.recorder.clock,
            )
        };
        self.companions.get_or_init(new).clients(seed)
    }

    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()> {
        let supervisor = self.supervisor.read();
        let supervisor = supervisor.unwrap_or_else(PoisonError::into_inner);
        supervisor
            .as_ref()
            .and_then(Supervisor::lab)
            .map_or(Ok(()), act)
    }

    fn faults(&self) -> MutexGuard<'_, ActiveFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the replicas: reads are torn when a replica can reach the leaders of some partitions but not of others.
    fn important_hosts(&self) -> Vec<String> {
        let hosts = self.status().map(|status| status.hosts).unwrap_or_default();
        let replicas = hosts
            .into_iter()
            .filter(|host| host.roles.contains(&Role::Replica));
        replicas.map(|host| host.name).collect()
    }

    fn strike(thread: &mut FaultThread<Self>, kind: FaultKind) -> Result<Option<String>> {
        thread.strike(kind)
    }

    /// Fails only if the cluster is off: nothing restarts it then.
    fn put_right(&self) -> Result<()> {
        self.with(|_| Ok(()))?;
        let _ = self.replace_wiped();
        let _ = self.restart_all();
        Ok(())
    }

    fn heal(&self) -> Result<Duration> {
        let began = Instant::now();
        self.replace_wiped()?;
        self.restart_all()?;
        self.wait_until_it_serves()?;
        Ok(began.elapsed())
    }

    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()> {
        let partitions = self.spec.partitions as usize;
        let groups = keys::all_until(shared.recorder.clock.now_ns(), partitions);
        let addresses = self.addresses.read();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner).clone();
        for address in addresses {
            let mut reader =
                StoreClient::new(number, shared.clone(), Addresses::default(), partitions, 0);
            reader.read_all(address, &groups)?;
        }
        Ok(())
    }

    /// Stops cleanly and compares the data of all replicas. Waits until all requests of clients have ended: before
    /// that, replicas are equal only by luck.
    fn into_agreed(self) -> Result<()> {
        let companions = self.companions.get();
        let checked = companions.map_or(Ok(()), Companions::check);
        checked.context("locks and watches")?;
        retry(ENDING_LIMIT, || {
            let status = self.status()?;
            check_all_ended(&status)?;
            check_equal(&status)
        })?;
        let hosts = self.status()?.hosts;
        let report = self.with(|supervisor| Ok(supervisor.down()?))?;
        if let Some(why) = report.unclean_because {
            bail!("the cluster could not be stopped cleanly: {why}");
        }
        let replicas = hosts
            .iter()
            .filter(|host| host.roles.contains(&Role::Replica));
        let dirs: Vec<PathBuf> = replicas
            .map(|h| self.host_dir(&h.name).join("data"))
            .collect();
        // The stores can be opened once the processes are gone.
        drop(self.supervisor);
        store::check_equal(&dirs, "replicas hold different data")
    }
}

/// Returns the number of acceptors that vote in every log, and the size of a majority.
fn votes(status: &ClusterStatus) -> (usize, usize) {
    let acceptors = status
        .hosts
        .iter()
        .filter(|h| h.roles.contains(&Role::Acceptor));
    let votes = |host: &&HostEntry| {
        let said = host.status.as_ref();
        said.is_some_and(|s| !s.acceptors.is_empty() && s.acceptors.iter().all(|a| a.voting))
    };
    (
        acceptors.clone().filter(votes).count(),
        acceptors.count() / 2 + 1,
    )
}

fn check_healthy(status: &ClusterStatus) -> Result<()> {
    for host in &status.hosts {
        let said = host.status.as_ref();
        let said =
            said.ok_or_else(|| anyhow!("{} does not answer: {:?}", host.name, host.process))?;
        ensure!(
            said.acceptors.iter().all(|acceptor| acceptor.voting),
            "{} does not vote",
            host.name
        );
    }
    let leaderless = status.leaders.iter().position(Option::is_none);
    ensure!(leaderless.is_none(), "log {leaderless:?} has no leader");
    Ok(())
}

fn check_serves(host: &HostEntry, partitions: u32) -> Result<()> {
    let Some(address) = host.resp else {
        return Ok(());
    };
    let mut client = Client::connect(address, CLIENT_LIMIT)?;
    for partition in 0..partitions as usize {
        let key = keys::in_partition("chaos:serves", partition, partitions as usize);
        let set = client.call(&["SET", &key, "1"])?;
        ensure!(set == "+OK", "{}: SET answered {set:?}", host.name);
        let incr = client.call(&["INCR", &key])?;
        ensure!(
            incr.starts_with(':'),
            "{}: INCR answered {incr:?}",
            host.name
        );
    }
    Ok(())
}

fn check_all_ended(status: &ClusterStatus) -> Result<()> {
    for host in &status.hosts {
        let replica = host.status.as_ref().and_then(|said| said.replica.as_ref());
        let outstanding = replica.map_or(0, |replica| replica.outstanding);
        ensure!(
            outstanding == 0,
            "{}: {outstanding} values never end, though no client is left",
            host.name
        );
    }
    Ok(())
}

fn check_equal(status: &ClusterStatus) -> Result<()> {
    let said = status.hosts.iter().filter_map(|host| host.status.as_ref());
    let applied: Vec<_> = said
        .filter_map(|s| Some(&s.replica.as_ref()?.applied))
        .collect();
    ensure!(
        applied.windows(2).all(|pair| pair[0] == pair[1]),
        "replicas have not applied the same: {applied:?}"
    );
    Ok(())
}
