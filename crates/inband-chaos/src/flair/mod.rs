//! A FLAIR cluster: replicas, switches, a gateway, and hosts for clients that talk straight to the switches.

mod client;
mod connections;
mod keys;
mod nemesis;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Result};
use inband_lab::lab::FIRST_ADDRESS;
use inband_lab::{Host, Lab};

use self::client::FlairClient;
use self::connections::Opener;
use super::fault_kind::FaultKind;
use super::links::ActiveFaults;
use super::nemesis::FaultThread;
use super::subject::Subject;
use super::workload::{Client as AnyClient, Shared};
use crate::stale_proxy;
use inband_cluster::client::Client;
use inband_cluster::flair::cluster::{Cluster as Flair, FlairSpec};
use inband_cluster::flair::status::ClusterStatus;
use inband_cluster::host_process::Process;
use inband_cluster::scratch::retry;

/// Key groups: few, so that keys share them.
pub const GROUPS: u32 = 8;
pub const FAULTS: [FaultKind; 8] = [
    FaultKind::Kill,
    FaultKind::Freeze,
    FaultKind::Pause,
    FaultKind::Partition,
    FaultKind::Loss,
    FaultKind::Delay,
    FaultKind::Duplicate,
    FaultKind::Power,
];
/// Hosts for clients that do not use the gateway.
const CLIENT_HOSTS: usize = 2;
/// How long the cluster may take to serve again after the last fault.
const SERVING_LIMIT: Duration = Duration::from_secs(60);
/// How long the replicas may differ after the last client has stopped.
const ENDING_LIMIT: Duration = Duration::from_secs(15);
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// How often the final check reads each key on each path; more than once because reads are spread over the replicas.
const LAST_READS: usize = 4;
/// Counters to print at the end: sums over all hosts, each since its last start.
const COUNTERS: [&str; 4] = [
    "flair_reads_follower",
    "flair_reads_leader",
    "flair_reads_refused",
    "flair_refreshes",
];

pub struct Cluster {
    flair: Flair,
    spec: FlairSpec,
    faults: Mutex<ActiveFaults>,
    /// The gateway, or the stale proxy in front of it.
    gateway: Arc<RwLock<SocketAddr>>,
    client_hosts: Vec<Arc<Host>>,
}

impl Cluster {
    /// Starts a cluster. It serves when this returns.
    pub fn start(spec: FlairSpec) -> Result<Cluster> {
        let flair = Flair::start(spec.clone())?;
        println!("{}", flair.notice());
        let mut client_hosts = Vec::new();
        if let Some(lab) = flair.lab() {
            let taken = lab.hosts().len() as u32;
            for number in 0..CLIENT_HOSTS {
                let address = Ipv4Addr::from(u32::from(FIRST_ADDRESS) + taken + number as u32);
                client_hosts.push(lab.add_host(&format!("client/{number}"), address)?);
            }
        }
        let resp = flair.status().resp;
        Ok(Cluster {
            flair,
            spec,
            faults: Mutex::default(),
            gateway: Arc::new(RwLock::new(resp)),
            client_hosts,
        })
    }

    fn status(&self) -> ClusterStatus {
        self.flair.status()
    }

    fn kill(&self, host: &str) -> Result<()> {
        self.flair.kill(host).map(drop)
    }

    fn restart(&self, host: &str) -> Result<()> {
        self.flair.restart(host).map(drop)
    }

    /// Even-numbered clients go through the gateway, odd-numbered ones straight to the switches.
    fn opener(&self, number: usize) -> Opener {
        if number % 2 == 0 {
            return connections::gateway(Arc::clone(&self.gateway));
        }
        let hosts = &self.client_hosts;
        let host = (!hosts.is_empty()).then(|| Arc::clone(&hosts[number / 2 % hosts.len()]));
        connections::direct(self.flair.config().clone(), host)
    }

    fn check_serves(&self) -> Result<()> {
        let status = self.status();
        check_alive(&status)?;
        ensure!(
            status.without_vote().is_none(),
            "not every replica votes: {status:?}"
        );
        ensure!(status.switch().is_some(), "no session serves: {status:?}");
        let mut client = Client::connect(status.resp, CLIENT_LIMIT)?;
        let set = client.call(&["SET", "chaos:serves", "1"])?;
        ensure!(set == "+OK", "SET answered {set:?}");
        Ok(())
    }
}

/// Checks that no host has exited by itself.
fn check_alive(status: &ClusterStatus) -> Result<()> {
    let ended = status.hosts.iter().find(|h| h.process == Process::Ended);
    let name = ended.map(|host| host.name.as_str());
    ensure!(
        name.is_none(),
        "{} ended by itself; its log says why",
        name.unwrap_or_default()
    );
    Ok(())
}

fn check_equal(status: &ClusterStatus) -> Result<()> {
    let said = status.hosts.iter().filter_map(|host| host.status.as_ref());
    let replicas: Vec<_> = said.filter_map(|said| said.replica.as_ref()).collect();
    let first = replicas
        .first()
        .ok_or_else(|| anyhow!("no replica answers"))?;
    ensure!(
        replicas
            .iter()
            .all(|r| (r.applied, r.keys) == (first.applied, first.keys)),
        "replicas have not applied the same: {replicas:?}"
    );
    Ok(())
}

fn tell_counters(status: &ClusterStatus) {
    let hosts = || status.hosts.iter().filter_map(|host| host.status.as_ref());
    let sum = |name| hosts().filter_map(|h| h.counters.get(name)).sum::<u64>();
    let told: Vec<String> = COUNTERS
        .iter()
        .map(|name| format!("{} {name}", sum(*name)))
        .collect();
    println!("since the last start of each host: {}", told.join(", "));
}

impl Subject for Cluster {
    fn describe(&self) -> String {
        let spec = &self.spec;
        format!(
            "FLAIR: {} replicas, {} switches, {} key groups, reads {} ({}), durability {}, dataplane {}",
            spec.replicas,
            spec.switches,
            spec.groups,
            spec.reads,
            spec.balance,
            spec.durability,
            spec.dataplane
        )
    }

    fn answer_with_stale_values(&self) -> Result<()> {
        let mut gateway = self.gateway.write().unwrap_or_else(PoisonError::into_inner);
        *gateway = stale_proxy::start(*gateway)?;
        Ok(())
    }

    fn client(self: &Arc<Self>, number: usize, shared: &Shared, seed: u64) -> Result<AnyClient> {
        let opener = self.opener(number);
        let client = FlairClient::new(number, shared.clone(), opener, seed);
        Ok(Box::new(client))
    }

    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()> {
        self.flair.lab().map_or(Ok(()), act)
    }

    fn faults(&self) -> MutexGuard<'_, ActiveFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn important_hosts(&self) -> Vec<String> {
        let status = self.status();
        let leader = status.leader().map(|(host, _)| host.name.clone());
        let switch = status.switch().map(|host| host.name.clone());
        leader.into_iter().chain(switch).collect()
    }

    fn strike(thread: &mut FaultThread<Self>, kind: FaultKind) -> Result<Option<String>> {
        thread.strike(kind)
    }

    fn put_right(&self) -> Result<()> {
        let status = self.status();
        check_alive(&status)?;
        let dead = status.hosts.iter().filter(|h| h.process == Process::Killed);
        dead.map(|host| &host.name)
            .try_for_each(|name| self.restart(name))
    }

    fn heal(&self) -> Result<Duration> {
        let began = Instant::now();
        self.put_right()?;
        retry(SERVING_LIMIT, || self.check_serves())?;
        Ok(began.elapsed())
    }

    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()> {
        let keys = keys::all_until(shared.recorder.clock.now_ns());
        for way in 0..2 {
            let opener = self.opener(way);
            let mut reader = FlairClient::new(number + way, shared.clone(), opener, 0);
            reader.read_all(&keys, LAST_READS)?;
        }
        Ok(())
    }

    fn into_agreed(self) -> Result<()> {
        tell_counters(&self.status());
        retry(ENDING_LIMIT, || {
            let status = self.status();
            check_alive(&status)?;
            check_equal(&status)
        })
    }
}
