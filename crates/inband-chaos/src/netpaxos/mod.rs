//! The key-value store on NetPaxos: serializers, minions and their storage servers, and learners, each with a store.

mod nemesis;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use inband_cluster::command::SystemCommand;
use inband_cluster::host_process::{HostProcess, Process, ProcessStatus};
use inband_cluster::netpaxos::{ClusterStatus, NetPaxos, Spec};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::{host_dir, Supervisor};
use inband_host::config::Durability;
use inband_lab::Lab;
use inband_netpaxos::status::Status;

use crate::fault_kind::FaultKind;
use crate::links::ActiveFaults;
use crate::nemesis::FaultThread;
use crate::stale_proxy;
use crate::store::client::{Addresses, StoreClient};
use crate::store::companions::Companions;
use crate::store::{self, keys};
use crate::subject::{check_alive, Subject};
use crate::workload::{Client, Shared};

/// The faults that it supports.
pub const FAULTS: [FaultKind; 9] = [
    FaultKind::Kill,
    FaultKind::Freeze,
    FaultKind::Wipe,
    FaultKind::Power,
    FaultKind::Pause,
    FaultKind::Partition,
    FaultKind::Loss,
    FaultKind::Delay,
    FaultKind::Duplicate,
];
/// There is one log.
const PARTITIONS: usize = 1;
/// How long the cluster may take to serve again after the last fault.
const SERVING_LIMIT: Duration = Duration::from_secs(60);
/// How long values may stay undecided or unapplied after the last client has stopped: longer than their deadline.
const ENDING_LIMIT: Duration = Duration::from_secs(30);
/// Learners still propose ticks while keys of the companions, which live shorter than this, are due to expire.
const EXPIRED_AFTER: Duration = Duration::from_secs(4);
/// A learner that is further behind the others than this is still catching up.
const BEHIND_MAX: u64 = 1_000;
/// Counters to print at the end: sums over all processes, each since its last start.
const COUNTERS: [&str; 8] = [
    "decided_fast",
    "decided_by_recovery",
    "conflicts",
    "holes_filled",
    "storages_aligned",
    "numbers_refused",
    "numbers_missing",
    "checkpoints_installed",
];

pub struct Cluster {
    hosts: Supervisor<NetPaxos>,
    spec: Spec,
    faults: Mutex<ActiveFaults>,
    /// Where clients connect: the learners, or the stale proxies in front of them.
    addresses: Addresses,
    companions: OnceLock<Companions>,
}

impl Cluster {
    /// Starts a cluster. It serves when this returns.
    pub fn start(spec: Spec) -> Result<Cluster> {
        let hosts = Supervisor::<NetPaxos>::start(spec.clone())?;
        let status = hosts.status();
        println!("{}", NetPaxos::notice(&status));
        Ok(Cluster {
            hosts,
            spec,
            faults: Mutex::default(),
            addresses: Arc::new(RwLock::new(status.cluster.resp)),
            companions: OnceLock::new(),
        })
    }

    fn status(&self) -> ClusterStatus {
        self.hosts.status()
    }

    /// Unlike [`Cluster::status`] it asks no process, so one that is stopped does not delay it.
    fn processes(&self) -> Vec<ProcessStatus> {
        let hosts = self.hosts.hosts().iter();
        hosts.map(HostProcess::status).collect()
    }

    fn durability(&self) -> Durability {
        self.spec.options.durability
    }

    fn wait_until_whole(&self) -> Result<()> {
        retry(SERVING_LIMIT, || {
            let status = self.status();
            check_alive(&status.processes)?;
            ensure!(is_whole(&status), "not every process serves: {status:?}");
            Ok(())
        })
    }
}

/// Returns the processes of one kind that answer.
fn of_kind<'a>(status: &'a ClusterStatus, kind: &'a str) -> impl Iterator<Item = &'a Status> {
    let is_one = move |node: &&Status| node.name.split('/').next() == Some(kind);
    status.nodes.iter().filter(is_one)
}

/// Returns whether all processes run, all storage servers have their memory, and no learner has to catch up.
fn is_whole(status: &ClusterStatus) -> bool {
    let is_running = |process: &ProcessStatus| process.process == Process::Running;
    let last = of_kind(status, "learner").map(|learner| learner.position);
    let last = last.max().unwrap_or(0);
    status.processes.iter().all(is_running)
        && status.nodes.len() == status.processes.len()
        && of_kind(status, "storage").all(|storage| storage.state == "serving")
        && of_kind(status, "learner")
            .all(|learner| learner.state != "loading" && learner.position + BEHIND_MAX >= last)
}

impl Subject for Cluster {
    fn describe(&self) -> String {
        let options = &self.spec.options;
        format!(
            "NetPaxos: {} serializers, {} minions, {} learners, durability {}, dataplane {}",
            options.serializers,
            options.minions,
            options.learners,
            options.durability,
            options.dataplane
        )
    }

    fn answer_with_stale_values(&self) -> Result<()> {
        let addresses = self.addresses.write();
        let mut addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        for address in addresses.iter_mut() {
            *address = stale_proxy::start(*address)?;
        }
        Ok(())
    }

    fn client(self: &Arc<Self>, number: usize, shared: &Shared, seed: u64) -> Result<Client> {
        let addresses = Arc::clone(&self.addresses);
        let client = StoreClient::new(number, shared.clone(), addresses, PARTITIONS, seed);
        Ok(Box::new(client))
    }

    fn companions(&self, shared: &Shared, seed: u64) -> Vec<Client> {
        let new = || {
            let addresses = Arc::clone(&self.addresses);
            Companions::new(PARTITIONS, addresses, shared.recorder.clock)
        };
        self.companions.get_or_init(new).clients(seed)
    }

    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()> {
        self.hosts.hosts().network().lab().map_or(Ok(()), act)
    }

    fn faults(&self) -> MutexGuard<'_, ActiveFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the hosts that a vote passes, other than serializers, of which two are idle.
    fn important_hosts(&self) -> Vec<String> {
        let processes = self.processes().into_iter();
        let important = processes.filter(|process| !process.name.starts_with("serializer/"));
        important.map(|process| process.name).collect()
    }

    fn strike(thread: &mut FaultThread<Self>, kind: FaultKind) -> Result<Option<String>> {
        thread.strike(kind)
    }

    fn put_right(&self) -> Result<()> {
        let processes = self.processes();
        check_alive(&processes)?;
        let processes = processes.iter();
        for dead in processes.filter(|process| process.process == Process::Killed) {
            self.hosts.restart(&dead.name)?;
        }
        Ok(())
    }

    fn heal(&self) -> Result<Duration> {
        let began = Instant::now();
        self.put_right()?;
        self.wait_until_whole()?;
        retry(SERVING_LIMIT, || {
            NetPaxos::self_check(&self.spec.options, &self.status()).map(drop)
        })?;
        Ok(began.elapsed())
    }

    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()> {
        let groups = keys::all_until(shared.recorder.clock.now_ns(), PARTITIONS);
        for address in self.status().cluster.resp {
            let nobody = Addresses::default();
            let mut reader = StoreClient::new(number, shared.clone(), nobody, PARTITIONS, 0);
            reader.read_all(address, &groups)?;
        }
        Ok(())
    }

    /// Compares the stores of all learners, once everything that clients have submitted has ended.
    fn into_agreed(self) -> Result<()> {
        let companions = self.companions.get();
        let checked = companions.map_or(Ok(()), Companions::check);
        checked.context("locks and watches")?;
        let mut standing = (Instant::now(), Vec::new());
        retry(ENDING_LIMIT, || {
            let status = self.status();
            check_alive(&status.processes)?;
            let positions = check_all_ended(&status)?;
            if positions != standing.1 {
                standing = (Instant::now(), positions);
            }
            ensure!(
                standing.0.elapsed() >= EXPIRED_AFTER,
                "learners still deliver values, though no client is left"
            );
            Ok(())
        })?;
        let status = self.status();
        for counter in COUNTERS {
            let counts = status.nodes.iter().filter_map(|n| n.counters.get(counter));
            println!("  {:>7} {counter}", counts.sum::<u64>());
        }
        let data = self.hosts.hosts().data().to_owned();
        let dirs: Vec<PathBuf> = of_kind(&status, "learner")
            .map(|learner| host_dir(&data, &learner.name).join("store"))
            .collect();
        // The stores can be opened once the processes are gone.
        drop(self.hosts);
        store::check_equal(&dirs, "learners' stores differ")
    }
}

/// Returns the learners' positions, which are equal.
fn check_all_ended(status: &ClusterStatus) -> Result<Vec<u64>> {
    let learners: Vec<&Status> = of_kind(status, "learner").collect();
    for learner in &learners {
        let in_flight = learner.gauges.get("store_values_in_flight");
        let in_flight = in_flight.ok_or_else(|| anyhow!("{} has no store", learner.name))?;
        ensure!(
            *in_flight == 0,
            "{}: {in_flight} values never end, though no client is left",
            learner.name
        );
    }
    let positions: Vec<u64> = learners.iter().map(|learner| learner.position).collect();
    ensure!(
        positions.windows(2).all(|pair| pair[0] == pair[1]),
        "learners have not delivered the same: {positions:?}"
    );
    Ok(positions)
}
