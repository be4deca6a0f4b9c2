//! A cluster of consensus in a box: nodes, and memcached clients at each. Each key is checked on its own, as a
//! register.

mod client;
mod connection;
mod keys;
mod nemesis;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_cluster::box_cluster::{BoxCluster, ClusterStatus, Spec};
use inband_cluster::command::SystemCommand;
use inband_cluster::host_process::Process;
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_lab::Lab;

use self::client::MemcachedClient;
use super::fault_kind::FaultKind;
use super::links::ActiveFaults;
use super::nemesis::Lane;
use super::stale_proxy::StaleReplies;
use super::subject::{check_alive, Subject};
use super::workload::{Client, Shared};

/// The faults that it supports.
pub const FAULTS: [FaultKind; 7] = [
    FaultKind::Kill,
    FaultKind::Freeze,
    FaultKind::Pause,
    FaultKind::Partition,
    FaultKind::Loss,
    FaultKind::Delay,
    FaultKind::Duplicate,
];
/// Few, so that a node that was down needs the table.
pub const LOG_RECORDS: usize = 1024;
/// Bytes of a table: small, so that it is transferred in a fraction of a second.
pub const TABLE_BYTES: u64 = 16 << 20;
/// How long the cluster may take to serve again after the last fault.
const SERVING_LIMIT: Duration = Duration::from_secs(60);
/// How long a reply may take when there are no faults.
const QUIET_LIMIT: Duration = Duration::from_secs(20);

pub struct Cluster {
    nodes: Supervisor<BoxCluster>,
    faults: Mutex<ActiveFaults>,
    /// The source of clients' stale answers in a control run.
    stale: OnceLock<Arc<StaleReplies>>,
    describe: String,
}

impl Cluster {
    /// Starts a cluster. It serves when this returns.
    pub fn start(spec: Spec) -> Result<Cluster> {
        let options = spec.options.clone();
        let nodes = Supervisor::<BoxCluster>::start(spec)?;
        println!("{}", BoxCluster::notice(&nodes.status()));
        let describe = format!(
            "consensus in a box: {} nodes, quorum {}, {LOG_RECORDS} records of the log, tables of {TABLE_BYTES} bytes, durability {}, dataplane {}",
            options.nodes,
            options.quorum.name(),
            options.durability.name(),
            options.dataplane
        );
        Ok(Cluster {
            nodes,
            faults: Mutex::default(),
            stale: OnceLock::new(),
            describe,
        })
    }

    fn status(&self) -> ClusterStatus {
        self.nodes.status()
    }

    fn new_client(&self, number: usize, shared: &Shared, seed: u64) -> MemcachedClient {
        let stale = self.stale.get().map(Arc::clone);
        MemcachedClient::new(number, shared.clone(), self.status().memcached, stale, seed)
    }

    fn wait_until_whole(&self) -> Result<()> {
        retry(SERVING_LIMIT, || {
            let status = self.status();
            check_alive(&status.processes)?;
            ensure!(is_whole(&status), "not every node serves: {status:?}");
            Ok(())
        })
    }

    /// Calls `act` while a node is killed, then restarts the node and waits until all nodes serve.
    fn without(&self, node: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let node = self.nodes.kill(node)?;
        let done = act().with_context(|| format!("without {node}"));
        self.nodes.restart(&node)?;
        self.wait_until_whole()?;
        done
    }
}

/// Returns whether there is a leader that all other nodes follow.
fn is_whole(status: &ClusterStatus) -> bool {
    let Some(leader) = status.nodes.iter().find(|node| node.state == "leading") else {
        return false;
    };
    let follows = |node: &&inband_box::process::Status| {
        node.state == "following" && node.epoch == leader.epoch
    };
    let following = status.nodes.iter().filter(follows).count();
    let running =
        |process: &inband_cluster::host_process::ProcessStatus| process.process == Process::Running;
    status.processes.iter().all(running) && following + 1 == status.processes.len()
}

/// Returns the leader. If several nodes lead, the one with the highest epoch, since the others have not noticed yet.
fn leader(status: &ClusterStatus) -> Option<String> {
    let leading = status.nodes.iter().filter(|node| node.state == "leading");
    let leading = leading.max_by_key(|node| node.epoch)?;
    Some(leading.name.clone())
}

impl Subject for Cluster {
    fn describe(&self) -> String {
        self.describe.clone()
    }

    fn answer_with_stale_values(&self) -> Result<()> {
        self.stale.get_or_init(Arc::default);
        Ok(())
    }

    fn client(self: &Arc<Self>, number: usize, shared: &Shared, seed: u64) -> Result<Client> {
        Ok(Box::new(self.new_client(number, shared, seed)))
    }

    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()> {
        self.nodes.hosts().network().lab().map_or(Ok(()), act)
    }

    fn faults(&self) -> MutexGuard<'_, ActiveFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn important_hosts(&self) -> Vec<String> {
        leader(&self.status()).into_iter().collect()
    }

    fn strike(lane: &mut Lane<Self>, kind: FaultKind) -> Result<Option<String>> {
        lane.strike(kind)
    }

    fn put_right(&self) -> Result<()> {
        let status = self.status();
        check_alive(&status.processes)?;
        let dead = status.processes.iter();
        let dead = dead.filter(|process| process.process == Process::Killed);
        for process in dead {
            self.nodes.restart(&process.name)?;
        }
        Ok(())
    }

    fn heal(&self) -> Result<Duration> {
        let began = Instant::now();
        self.put_right()?;
        self.wait_until_whole()?;
        let status = self.status();
        retry(SERVING_LIMIT, || {
            BoxCluster::self_check(&status.options, &status).map(drop)
        })?;
        Ok(began.elapsed())
    }

    /// Reads at every node, and without each node in turn, the leader first: any majority has every write.
    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()> {
        let keys = keys::all_until(shared.recorder.clock.now_ns());
        let status = self.status();
        let mut client = self.new_client(number, shared, 0);
        let all: Vec<usize> = (0..status.memcached.len()).collect();
        client.read_all(&keys, &all, QUIET_LIMIT)?;
        let mut names: Vec<String> = status.processes.iter().map(|p| p.name.clone()).collect();
        let leader = leader(&status);
        names.sort_by_key(|name| Some(name) != leader.as_ref());
        for name in names {
            let dead = status.processes.iter().position(|p| p.name == name);
            let alive: Vec<usize> = all.iter().copied().filter(|n| Some(*n) != dead).collect();
            self.without(&name, || client.read_all(&keys, &alive, QUIET_LIMIT))?;
        }
        Ok(())
    }

    /// Once everything is applied, all machines are equal.
    fn into_agreed(self) -> Result<()> {
        retry(SERVING_LIMIT, || {
            let status = self.status();
            check_alive(&status.processes)?;
            ensure!(is_whole(&status), "not every node serves: {status:?}");
            let first = &status.nodes[0];
            let is_equal = |node: &inband_box::process::Status| {
                (node.applied, node.digest) == (first.applied, first.digest)
            };
            ensure!(
                status.nodes.iter().all(is_equal),
                "nodes differ: {:?}",
                status.nodes
            );
            Ok(())
        })
    }
}
