//! A cluster of replicated memory: servers, switches, and hosts for clients. Each line is checked on its own, as a
//! register.

mod client;
mod lines;
mod nemesis;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_cluster::host_process::Process;
use inband_cluster::memory::{ClusterStatus, Memory, Spec};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_lab::lab::FIRST_ADDRESS;
use inband_lab::netns::NETNS_DIR;
use inband_lab::Lab;
use inband_memory::memory::MemoryConfig;

use self::client::MemoryClient;
use super::fault_kind::FaultKind;
use super::links::ActiveFaults;
use super::nemesis::FaultThread;
use super::subject::{check_alive, Subject};
use super::workload::{Client, Shared};
use crate::stale_proxy::StaleReplies;

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
/// Small, so that a server copies it in a fraction of a second.
pub const SPACE_BYTES: u64 = 4 << 20;
/// Two chunks share a counter of writes.
pub const BLOCK_LINES: u64 = 32;
const CLIENT_HOSTS: u32 = 2;
/// How long the cluster may take to serve again after the last fault.
const SERVING_LIMIT: Duration = Duration::from_secs(60);
/// Counters to print at the end: sums over all nodes, each since its last start.
const COUNTERS: [&str; 7] = [
    "memory_read",
    "memory_read_write_back",
    "memory_write_again",
    "memory_write_done_again",
    "memory_answer_repeated",
    "memory_old_epoch",
    "memory_deposed",
];

pub struct Cluster {
    memory: Supervisor<Memory>,
    faults: Mutex<ActiveFaults>,
    /// The source of clients' stale answers in a control run.
    stale: OnceLock<Arc<StaleReplies>>,
    /// The configuration of each client host's clients.
    configs: Vec<MemoryConfig>,
    describe: String,
}

impl Cluster {
    /// Starts a cluster. It serves when this returns.
    pub fn start(spec: Spec) -> Result<Cluster> {
        let options = spec.options.clone();
        let memory = Supervisor::<Memory>::start(spec)?;
        let status = memory.status();
        println!("{}", status.notice);
        let mut configs = vec![status.cluster.config()?];
        if let Some(lab) = memory.hosts().network().lab() {
            let taken = lab.hosts().len() as u32;
            for number in 0..CLIENT_HOSTS {
                let address = Ipv4Addr::from(u32::from(FIRST_ADDRESS) + taken + number);
                let host = lab.add_host(&format!("client/{number}"), address)?;
                let mut config = configs[0].clone();
                config.namespace = Some(Path::new(NETNS_DIR).join(host.namespace().name()));
                configs.push(config);
            }
        }
        let describe = format!(
            "replicated memory: {} servers, {} switches, {SPACE_BYTES} bytes, dataplane {}",
            options.servers, options.switches, options.dataplane
        );
        Ok(Cluster {
            memory,
            faults: Mutex::default(),
            stale: OnceLock::new(),
            configs,
            describe,
        })
    }

    fn status(&self) -> ClusterStatus {
        self.memory.status()
    }

    fn reader(&self, number: usize, shared: &Shared) -> MemoryClient {
        let config = self.configs[number % self.configs.len()].clone();
        MemoryClient::new(number, shared.clone(), config, None, 0)
    }

    fn wait_until_whole(&self) -> Result<()> {
        retry(SERVING_LIMIT, || {
            let status = self.status();
            check_alive(&status.processes)?;
            ensure!(is_whole(&status), "not every server serves: {status:?}");
            Ok(())
        })
    }

    /// Calls `act` while a host is killed, then restarts the host and waits until all servers serve.
    fn without(&self, host: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let host = self.memory.kill(host)?;
        let done = act().with_context(|| format!("without {host}"));
        self.memory.restart(&host)?;
        self.wait_until_whole()?;
        done
    }
}

/// Returns whether every server serves, and no process is suspended.
fn is_whole(status: &ClusterStatus) -> bool {
    let processes = &status.processes;
    let serving = status.nodes.iter().filter(|node| node.state == "serving");
    processes.iter().all(|p| p.process == Process::Running)
        && serving.count() == status.cluster.servers.len()
}

fn tell_counters(status: &ClusterStatus) {
    let nodes = || status.nodes.iter();
    let sum = |name| {
        nodes()
            .filter_map(|node| node.counters.get(name))
            .sum::<u64>()
    };
    let told: Vec<String> = COUNTERS
        .iter()
        .map(|name| format!("{} {name}", sum(*name)))
        .collect();
    println!("since the last start of each node: {}", told.join(", "));
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
        let config = self.configs[number % self.configs.len()].clone();
        let stale = self.stale.get().map(Arc::clone);
        let client = MemoryClient::new(number, shared.clone(), config, stale, seed);
        Ok(Box::new(client))
    }

    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()> {
        self.memory.hosts().network().lab().map_or(Ok(()), act)
    }

    fn faults(&self) -> MutexGuard<'_, ActiveFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn important_hosts(&self) -> Vec<String> {
        active_switch(&self.status()).into_iter().collect()
    }

    fn strike(thread: &mut FaultThread<Self>, kind: FaultKind) -> Result<Option<String>> {
        thread.strike(kind)
    }

    fn put_right(&self) -> Result<()> {
        let status = self.status();
        check_alive(&status.processes)?;
        let dead = status.processes.iter();
        let dead = dead.filter(|process| process.process == Process::Killed);
        for process in dead {
            self.memory.restart(&process.name)?;
        }
        Ok(())
    }

    fn heal(&self) -> Result<Duration> {
        let began = Instant::now();
        self.put_right()?;
        self.wait_until_whole()?;
        retry(SERVING_LIMIT, || {
            Ok(inband_memory::memory::Memory::connect(self.configs[0].clone()).map(drop)?)
        })?;
        Ok(began.elapsed())
    }

    /// Reads from the intact cluster, through the other switch, and without each server in turn: any majority has every
    /// line.
    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()> {
        let status = self.status();
        let now_ns = shared.recorder.clock.now_ns();
        let chunks = lines::chunks_until(now_ns, status.cluster.chunks);
        let read = || self.reader(number, shared).read_all(&chunks);
        read()?;
        if let Some(switch) = active_switch(&self.status()) {
            self.without(&switch, read)?;
        }
        for server in 1..=status.cluster.servers.len() {
            self.without(&format!("server/{server}"), read)?;
        }
        Ok(())
    }

    fn into_agreed(self) -> Result<()> {
        let status = self.status();
        tell_counters(&status);
        check_alive(&status.processes)?;
        ensure!(is_whole(&status), "not every server serves: {status:?}");
        Ok(())
    }
}

fn active_switch(status: &ClusterStatus) -> Option<String> {
    let active = status.nodes.iter().filter(|node| node.state == "active");
    let active = active.max_by_key(|node| node.epoch)?;
    Some(active.name.clone())
}
