//! A FLAIR cluster with limited CPU, filled with keys, and its results under a load.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use inband_flair::clock::boot_time_ns;
use inband_flair::config::Balance;
use inband_flair::reads::Reads;
use inband_paxos::config::{Dataplane, Durability};

use super::load::{LoadReport, Workload};
use super::quota::Quota;
use crate::cpu::CpuClock;
use inband_cluster::flair::cluster::{Cluster, FlairSpec, Security};
use inband_cluster::flair::status::ClusterStatus;
use inband_cluster::scratch::ScratchDir;

/// The cluster to start.
#[derive(Debug, Clone)]
pub struct TestbedSpec {
    pub reads: Reads,
    pub balance: Balance,
    pub replicas: usize,
    pub switches: usize,
    pub groups: u32,
    pub dataplane: Dataplane,
    /// Share of one CPU for each storage node, in percent; `None`: unlimited.
    pub quota_percent: Option<u32>,
    /// A different share for the last follower.
    pub slow_quota_percent: Option<u32>,
    /// Use tags on packets and TLS between replicas.
    pub secure: bool,
    pub heartbeat_ms: u64,
    pub step_down_ms: u64,
}

pub struct Testbed {
    // Dropped in this order: processes first.
    cluster: Cluster,
    _quotas: Vec<Quota>,
    scratch: ScratchDir,
}

/// The results of a measurement: those of the clients, and the hosts' counters including the warm-up.
#[derive(Debug, Clone)]
pub struct Sample {
    pub report: LoadReport,
    counts: Counts,
    /// CPU time of the storage nodes per request.
    pub node_us_per_request: f64,
}

/// Sums of the hosts' counters.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    reads_leader: u64,
    reads_follower: u64,
    reads_refused: u64,
    reads_unstable: u64,
    sessions: u64,
}

fn share(part: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => part as f64 * 100.0 / all as f64,
    }
}

impl Sample {
    fn reads(&self) -> u64 {
        self.counts.reads_leader + self.counts.reads_follower
    }

    /// Percentage of answered reads that the leader answered.
    pub fn leader_percent(&self) -> f64 {
        share(self.counts.reads_leader, self.reads())
    }

    /// Percentage of reads that a follower refused.
    pub fn refused_percent(&self) -> f64 {
        share(self.counts.reads_refused, self.reads())
    }

    /// Percentage of reads whose group was being written.
    pub fn unstable_percent(&self) -> f64 {
        share(self.counts.reads_unstable, self.reads())
    }

    /// Sessions begun.
    pub fn sessions(&self) -> f64 {
        self.counts.sessions as f64
    }
}

impl Counts {
    fn of(status: &ClusterStatus) -> Counts {
        let sum = |name: &str| -> u64 {
            let hosts = status.hosts.iter().filter_map(|host| host.status.as_ref());
            hosts.filter_map(|status| status.counters.get(name)).sum()
        };
        Counts {
            reads_leader: sum("flair_reads_leader"),
            reads_follower: sum("flair_reads_follower"),
            reads_refused: sum("flair_reads_refused"),
            reads_unstable: sum("flair_read_unstable"),
            sessions: sum("flair_installed"),
        }
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            reads_leader: self.reads_leader.saturating_sub(before.reads_leader),
            reads_follower: self.reads_follower.saturating_sub(before.reads_follower),
            reads_refused: self.reads_refused.saturating_sub(before.reads_refused),
            reads_unstable: self.reads_unstable.saturating_sub(before.reads_unstable),
            sessions: self.sessions.saturating_sub(before.sessions),
        }
    }
}

impl Testbed {
    /// Starts a cluster, sets all keys, and only then limits its nodes' CPU time.
    pub fn start(spec: &TestbedSpec, fill: &Workload) -> Result<Testbed> {
        let scratch = ScratchDir::create(&std::env::temp_dir(), "flair")?;
        let cluster = Cluster::start(FlairSpec {
            sets: 1,
            program: inband_host::program::find(inband_host::program::INBAND)?,
            data: scratch.path().join("cluster"),
            replicas: spec.replicas,
            switches: spec.switches,
            groups: spec.groups,
            reads: spec.reads,
            balance: spec.balance,
            heartbeat_ms: spec.heartbeat_ms,
            step_down_ms: spec.step_down_ms,
            durability: Durability::Memory,
            accept_loss: false,
            dataplane: spec.dataplane,
            resp: ([127, 0, 0, 1], 0).into(),
            security: Security {
                authenticated: spec.secure,
                tls: spec.secure,
                ..Security::default()
            },
        })?;
        let mut testbed = Testbed {
            cluster,
            _quotas: Vec::new(),
            scratch,
        };
        testbed.run(fill, &testbed.report(), true)?;
        testbed._quotas = testbed.quotas(spec)?;
        Ok(testbed)
    }

    fn quotas(&self, spec: &TestbedSpec) -> Result<Vec<Quota>> {
        let status = self.cluster.status();
        let leader = status.leader().map(|(host, _)| host.name.clone());
        let nodes = replicas(&status);
        let slow = nodes.iter().rfind(|node| Some(&node.0) != leader.as_ref());
        let of = |node: &(String, u32)| {
            let percent = match (spec.slow_quota_percent, slow) {
                (Some(percent), Some(slow)) if slow == node => Some(percent),
                _ => spec.quota_percent,
            };
            percent.map(|percent| Quota::on(node.1, percent))
        };
        nodes.iter().filter_map(of).collect()
    }

    /// Returns where the switch's role runs.
    pub fn backend(&self) -> String {
        let status = self.cluster.status();
        let switch = status.switch().and_then(|host| host.status.as_ref());
        switch.map_or_else(String::new, |status| status.backend.clone())
    }

    pub fn measure(&self, workload: &Workload) -> Result<Sample> {
        let report = self.report();
        let _ = fs::remove_file(&report);
        let before = self.cluster.status();
        let clock = CpuClock::start(&replicas(&before));
        self.run(workload, &report, false)?;
        let elapsed_s = clock.elapsed().as_secs_f64();
        let used: f64 = clock.stop().iter().map(|(_, used)| used.process).sum();
        let after = self.cluster.status();
        let text = fs::read_to_string(&report).context("the load's report")?;
        let report: LoadReport = serde_json::from_str(&text).context("the load's report")?;
        Ok(Sample {
            counts: Counts::of(&after).since(Counts::of(&before)),
            node_us_per_request: used * elapsed_s * 1e6 / report.ended.max(1) as f64,
            report,
        })
    }

    /// Applies a load, and kills a role's process halfway. Returns the report and the time of the kill, in seconds of
    /// the counted time.
    pub fn measure_killing(&self, workload: &Workload, role: &str) -> Result<(LoadReport, f64)> {
        let file = self.report();
        let _ = fs::remove_file(&file);
        let killed_ns = thread::scope(|scope| {
            let loading = scope.spawn(|| self.run(workload, &file, false));
            thread::sleep(workload.warm_up + workload.duration / 2);
            let killed_ns = boot_time_ns();
            self.cluster.kill(role)?;
            let ended = loading.join();
            ended.map_err(|_| anyhow::anyhow!("the load panicked"))??;
            anyhow::Ok(killed_ns)
        })?;
        let text = fs::read_to_string(&file).context("the load's report")?;
        let report: LoadReport = serde_json::from_str(&text).context("the load's report")?;
        let killed_s = killed_ns.saturating_sub(report.counted_from_ns) as f64 / 1e9;
        Ok((report, killed_s))
    }

    fn report(&self) -> PathBuf {
        self.scratch.path().join("report.json")
    }

    /// Runs the load in a separate process, on the gateway's host.
    fn run(&self, workload: &Workload, report: &Path, fills: bool) -> Result<()> {
        let config = self.cluster.gateway_config();
        let arguments = workload.arguments(&config, report, fills);
        let this = std::env::current_exe().context("finding this program")?;
        self.cluster
            .run_beside_gateway(&this, arguments, workload.limit())
    }
}

/// Returns the running storage nodes: name and process id.
fn replicas(status: &ClusterStatus) -> Vec<(String, u32)> {
    let hosts = status.hosts.iter();
    let replicas = hosts.filter(|host| host.name.starts_with("replica"));
    replicas
        .filter_map(|host| Some((host.name.clone(), host.pid?)))
        .collect()
}
