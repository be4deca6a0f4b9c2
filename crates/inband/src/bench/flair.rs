//! `inband bench flair`: reads spread over all consistent replicas, beside reads at the leader alone, under YCSB's
//! workloads. Each storage node may use so much of a CPU only, so that a node is what is short, not the machine.

pub mod load;
mod quota;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use inband_flair::config::Balance;
use inband_paxos::config::{Dataplane, Durability};

use super::row::{machine, median, progress, Baseline, Output, Row};
use super::scratch::ScratchDir;
use crate::flair::cluster::{Cluster, FlairSpec, Security};
use load::{LoadReport, Workload};
use quota::Quota;

/// Options of `inband bench flair`.
#[derive(Debug, Args)]
pub struct FlairArgs {
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Time counted in each measurement of a round.
    #[arg(long, default_value_t = 2000)]
    duration_ms: u64,
    /// Storage nodes.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Part of one CPU that each storage node may use, in percent.
    #[arg(long, default_value_t = 20)]
    quota_percent: u32,
    /// Clients, each with one request under way.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Keys, of 24 bytes, all set before anything is measured.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_len_bytes: usize,
    /// Skew of the keys under a Zipf distribution, beside uniform ones.
    #[arg(long, default_value_t = 0.99)]
    zipf: f64,
    /// Where the switch's role runs: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
}

const BENCH: &str = "flair";
const WARM_UP: Duration = Duration::from_millis(500);

/// YCSB's workloads: reads in a hundred requests.
const WORKLOADS: [(&str, f64); 3] = [("A", 50.0), ("B", 95.0), ("C", 100.0)];

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// Reads of the leader alone, whose lease is the session's.
    LeaderReads,
    Flair,
}

const SYSTEMS: [System; 2] = [System::LeaderReads, System::Flair];

impl System {
    fn balance(self) -> Balance {
        match self {
            System::LeaderReads => Balance::Leader,
            System::Flair => Balance::LeaderAvoidance,
        }
    }
}

/// Run and print.
pub fn run(args: &FlairArgs, output: &mut Output) -> Result<()> {
    let workloads: Vec<(String, Workload)> = WORKLOADS
        .iter()
        .flat_map(|(name, read_percent)| {
            [("uniform", 0.0), ("zipf", args.zipf)].map(|(skew, zipf)| {
                let name = format!("YCSB {name}, {skew}");
                (name, args.workload(*read_percent, zipf))
            })
        })
        .collect();
    let mut measured = vec![[Vec::new(), Vec::new()]; workloads.len()];
    let mut backend = String::new();
    for (number, system) in SYSTEMS.into_iter().enumerate() {
        for round in 0..args.rounds {
            progress(&format!(
                "{system:?}, round {} of {}",
                round + 1,
                args.rounds
            ));
            let bed = Bed::start(args, system)?;
            backend = bed.backend();
            for (at, (_, workload)) in workloads.iter().enumerate() {
                measured[at][number].push(bed.measure(workload)?);
            }
        }
    }
    let conditions = format!(
        "{} storage nodes of {} % of a CPU each (cgroup, period {} ms), {} clients with one request each, {} keys of \
         24 B, values of {} B; hosts on veth; {}",
        args.replicas,
        args.quota_percent,
        quota::PERIOD.as_millis(),
        args.clients,
        args.keys,
        args.value_len_bytes,
        machine()
    );
    for ((name, _), [leader, flair]) in workloads.iter().zip(&measured) {
        let figure = |pick: fn(&LoadReport) -> f64| {
            let of = |reports: &[LoadReport]| {
                median(&mut reports.iter().map(pick).collect::<Vec<f64>>())
            };
            (of(flair), of(leader))
        };
        let rows = [
            ("requests_per_s", "requests/s", figure(|r| r.per_s)),
            ("read_p50_us", "us", figure(|r| r.reads.p50_us)),
            ("read_p99_us", "us", figure(|r| r.reads.p99_us)),
        ];
        for (metric, unit, (value, baseline)) in rows {
            output.row(&Row {
                bench: BENCH,
                metric,
                backend: backend.clone(),
                variant: name.clone(),
                value,
                unit,
                ratio: Some(value / baseline),
                baseline: Some(Baseline {
                    name: "reads at the leader, by its lease".into(),
                    value: baseline,
                }),
                paper: None,
                conditions: conditions.clone(),
            })?;
        }
        let errors: u64 = leader.iter().chain(flair).map(|r| r.errors).sum();
        if errors > 0 {
            output.note(&format!("{name}: {errors} requests had no answer in time"));
        }
    }
    output.note(
        "the paper (section 4.5.1, workload B, three machines of 10 cores, a Tofino switch): 1.3 to 2.1 times \
         optimised Raft, which reads at the leader by its lease, with uniform keys; 1.5 to 1.8 with Zipf 0.99",
    );
    Ok(())
}

impl FlairArgs {
    fn workload(&self, read_percent: f64, zipf: f64) -> Workload {
        Workload {
            clients: self.clients,
            read_percent,
            zipf,
            keys: self.keys,
            value_len_bytes: self.value_len_bytes,
            warm_up: WARM_UP,
            duration: Duration::from_millis(self.duration_ms),
        }
    }
}

/// A cluster whose nodes are short of CPU, filled.
struct Bed {
    // Dropped in this order: processes first.
    cluster: Cluster,
    _quotas: Vec<Quota>,
    scratch: ScratchDir,
    config: PathBuf,
}

impl Bed {
    fn start(args: &FlairArgs, system: System) -> Result<Bed> {
        let scratch = ScratchDir::create(&std::env::temp_dir(), "flair")?;
        let cluster = Cluster::start(FlairSpec {
            program: std::env::current_exe().context("finding this program")?,
            data: scratch.path().join("cluster"),
            replicas: args.replicas,
            switches: 1,
            groups: 4096,
            balance: system.balance(),
            heartbeat_ms: 20,
            // Nodes that wait for their share of a CPU are not dead.
            step_down_ms: 500,
            durability: Durability::Memory,
            dataplane: args.dataplane,
            resp: ([127, 0, 0, 1], 0).into(),
            security: Security::default(),
        })?;
        let bed = Bed {
            config: cluster.gateway_config(),
            cluster,
            _quotas: Vec::new(),
            scratch,
        };
        bed.fill(&args.workload(0.0, 0.0))?;
        let pids = bed.cluster.replica_pids();
        let quotas = pids
            .into_iter()
            .map(|pid| Quota::on(pid, args.quota_percent));
        let quotas = quotas.collect::<Result<Vec<_>>>()?;
        Ok(Bed {
            _quotas: quotas,
            ..bed
        })
    }

    fn backend(&self) -> String {
        let status = self.cluster.status();
        let switch = status.switch().and_then(|host| host.status.as_ref());
        switch.map_or_else(String::new, |status| status.backend.clone())
    }

    fn fill(&self, workload: &Workload) -> Result<()> {
        self.run(workload, &self.report(), true)
    }

    fn measure(&self, workload: &Workload) -> Result<LoadReport> {
        let report = self.report();
        let _ = fs::remove_file(&report);
        self.run(workload, &report, false)?;
        let text = fs::read_to_string(&report).context("the load's report")?;
        serde_json::from_str(&text).context("the load's report")
    }

    fn report(&self) -> PathBuf {
        self.scratch.path().join("report.json")
    }

    /// In a process of its own, on the gateway's host.
    fn run(&self, workload: &Workload, report: &Path, fills: bool) -> Result<()> {
        let arguments = workload.arguments(&self.config, report, fills);
        self.cluster.run_beside_gateway(arguments, workload.limit())
    }
}
