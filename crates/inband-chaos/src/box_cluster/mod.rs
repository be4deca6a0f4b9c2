//! A cluster of consensus in a box: nodes, and memcached clients at each. Each key is checked on its own, as a
//! register.

mod client;
mod connection;
mod keys;
mod local_reads;
mod members;
mod nemesis;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_cluster::box_cluster::{BoxCluster, ClusterStatus, Spec};
use inband_cluster::command::SystemCommand;
use inband_cluster::host_process::{Process, ProcessStatus};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_lab::Lab;

use self::client::MemcachedClient;
use self::local_reads::{Checked, LocalReads};
use self::members::{id_of, membership_of};
use super::fault_kind::FaultKind;
use super::links::ActiveFaults;
use super::nemesis::FaultThread;
use super::stale_proxy::StaleReplies;
use super::subject::{check_alive, Subject};
use super::workload::{Client, Shared};

/// The faults that it supports.
pub const FAULTS: [FaultKind; 9] = [
    FaultKind::Kill,
    FaultKind::Freeze,
    FaultKind::Member,
    FaultKind::Wipe,
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

/// Where a node serves clients.
#[derive(Debug, Clone, Copy)]
struct Serving {
    id: u8,
    memcached: SocketAddr,
    /// The port of local reads.
    local: SocketAddr,
}

/// Where the members serve clients now.
type Members = Arc<RwLock<Vec<Serving>>>;

pub struct Cluster {
    nodes: Supervisor<BoxCluster>,
    faults: Mutex<ActiveFaults>,
    members: Members,
    /// Nodes that have lost their directories and are not replaced yet.
    lost: Mutex<BTreeSet<String>>,
    /// All nodes that have ever lost their directories: they cannot start again, whether others know yet that they were
    /// removed or not.
    wiped: Mutex<BTreeSet<String>>,
    local_reads: Arc<LocalReads>,
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
        let cluster = Cluster {
            nodes,
            faults: Mutex::default(),
            members: Arc::default(),
            lost: Mutex::default(),
            wiped: Mutex::default(),
            local_reads: Arc::default(),
            stale: OnceLock::new(),
            describe,
        };
        cluster.tell_clients();
        Ok(cluster)
    }

    fn status(&self) -> ClusterStatus {
        self.nodes.status()
    }

    fn new_client(&self, number: usize, shared: &Shared, seed: u64) -> MemcachedClient {
        let stale = self.stale.get().map(Arc::clone);
        let (members, reads) = (Arc::clone(&self.members), Arc::clone(&self.local_reads));
        MemcachedClient::new(number, shared.clone(), members, reads, stale, seed)
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wiped(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.wiped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets clients use the nodes that are members now.
    fn tell_clients(&self) {
        let status = self.status();
        let Some(membership) = membership_of(&status) else {
            return;
        };
        let ports = status.memcached.iter().zip(&status.memcached_local);
        let all = (1..).zip(ports);
        let members = all.filter(|(id, _)| membership.is_member(*id));
        let serving = members.map(|(id, (memcached, local))| Serving {
            id,
            memcached: *memcached,
            local: *local,
        });
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = serving.collect();
    }

    fn has_removed(&self, id: u8) -> bool {
        membership_of(&self.status()).is_some_and(|membership| membership.has_removed(id))
    }

    fn wait_until_whole(&self) -> Result<()> {
        retry(SERVING_LIMIT, || {
            let status = self.status();
            check_alive(&remaining(&status))?;
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

/// Returns the processes of nodes that were not removed: a node ends when it learns that it was.
fn remaining(status: &ClusterStatus) -> Vec<ProcessStatus> {
    let membership = membership_of(status);
    let is_removed = |process: &&ProcessStatus| {
        let id = id_of(&process.name).zip(membership);
        id.is_some_and(|(id, membership)| membership.has_removed(id))
    };
    let processes = status.processes.iter();
    processes
        .filter(|process| !is_removed(process))
        .cloned()
        .collect()
}

/// Returns whether all other nodes follow one leader, and no node is joining.
fn is_whole(status: &ClusterStatus) -> bool {
    let Some(leader) = status.nodes.iter().find(|node| node.state == "leading") else {
        return false;
    };
    let follows = |node: &&inband_box::process::Status| {
        node.state == "following" && node.epoch == leader.epoch
    };
    let following = status.nodes.iter().filter(follows).count();
    let processes = remaining(status);
    let is_running = |process: &ProcessStatus| process.process == Process::Running;
    processes.iter().all(is_running)
        && following + 1 == processes.len()
        && leader.membership.joining == 0
        && leader.changes_to.is_none()
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

    fn strike(thread: &mut FaultThread<Self>, kind: FaultKind) -> Result<Option<String>> {
        thread.strike(kind)
    }

    fn put_right(&self) -> Result<()> {
        let status = self.status();
        let processes = remaining(&status);
        check_alive(&processes)?;
        for gone in status.processes.iter().filter(|p| !processes.contains(p)) {
            let _ = self.nodes.kill(&gone.name);
        }
        let wiped = self.wiped().clone();
        let is_dead = |process: &&ProcessStatus| {
            process.process == Process::Killed && !wiped.contains(&process.name)
        };
        for process in processes.iter().filter(is_dead) {
            self.nodes.restart(&process.name)?;
        }
        self.majority_decides()?;
        self.replace_lost()?;
        self.tell_clients();
        Ok(())
    }

    fn heal(&self) -> Result<Duration> {
        let began = Instant::now();
        self.put_right()?;
        self.wait_until_whole()?;
        // Before, a node may not have known yet that another one had been removed.
        self.tell_clients();
        let status = self.status();
        retry(SERVING_LIMIT, || {
            BoxCluster::self_check(&status.options, &status).map(drop)
        })?;
        Ok(began.elapsed())
    }

    /// Reads at every node, and without each node in turn, the leader first: any majority has every write.
    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()> {
        let keys = keys::all_until(shared.recorder.clock.now_ns());
        let mut client = self.new_client(number, shared, 0);
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let mut members = members.clone();
        client.read_all(&keys, &members, QUIET_LIMIT)?;
        let leader = leader(&self.status()).and_then(|name| id_of(&name));
        members.sort_by_key(|member| Some(member.id) != leader);
        for dead in &members {
            let alive = members.iter().filter(|member| member.id != dead.id);
            let alive: Vec<Serving> = alive.copied().collect();
            self.without(&format!("node/{}", dead.id), || {
                client.read_all(&keys, &alive, QUIET_LIMIT)
            })?;
        }
        Ok(())
    }

    /// Once everything is applied, all machines are equal.
    fn into_agreed(self) -> Result<()> {
        let Checked { reads, missed } = self.local_reads.check()?;
        println!(
            "{reads} local reads, of which {missed} found no value, saw no older state than before"
        );
        retry(SERVING_LIMIT, || {
            let status = self.status();
            check_alive(&remaining(&status))?;
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
