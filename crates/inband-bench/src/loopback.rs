//! Agreement by hosts that are processes on loopback, like the systems it is compared with: three with all roles, and
//! one that proposes and learns. Uses the `udp` backend.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::process::{ProcessSpec, SupervisedChild};
use inband_cluster::scratch::ScratchDir;
use inband_paxos::config::{Dataplane, NodeConfig, Role};
use inband_testing::port::free_ports;

use super::cpu::CpuClock;
use super::node::{Load, Report};
use super::testbed::{
    check_agreement, learner_args, read_report, wait_until_counting, write_config, Job,
};

/// Hosts with all roles.
pub const REPLICAS: usize = 3;
/// The last host, which only proposes and learns.
const CLIENT: &str = "client";
/// Time limit for hosts to exit, in addition to the counted time.
const END_LIMIT: Duration = Duration::from_secs(20);
/// CPU use is measured within the counted time, with a margin of this fraction on both sides.
const CPU_MARGIN_SHARE: u32 = 10;

/// The results of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Values per second, in order at all hosts, counted at the slowest.
    pub per_s: f64,
    /// Submit to deliver, median.
    pub p50_us: f64,
    /// The same, mean.
    pub mean_us: f64,
    /// CPU time of all processes per value.
    pub cpu_us_per_value: f64,
}

/// Measures with this many values of `value_len_bytes` in flight.
pub fn measure(outstanding: usize, value_len_bytes: usize, duration: Duration) -> Result<Sample> {
    let load = match outstanding {
        1 => Load::Latency,
        _ => Load::Saturate,
    };
    let job = Job {
        window: outstanding,
        command_len_bytes: value_len_bytes,
        ..Job::new(Dataplane::Udp, load, duration)
    };
    let dir = ScratchDir::create(&std::env::temp_dir(), "loopback")?;
    let nodes = nodes(free_ports(1));
    let program = std::env::current_exe().context("finding this program")?;
    let mut hosts = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let config = write_config(&nodes, at, &job, &dir.path().join(&node.name), None)?;
        let load = match node.name == CLIENT {
            true => load,
            false => Load::Learn,
        };
        let child = start(&program, &config, &job, load)?;
        hosts.push((node.name.clone(), config, child));
    }
    let (name, config, _) = hosts.last().context("no hosts")?;
    wait_until_counting(name, config, &job)?;
    let margin = duration / CPU_MARGIN_SHARE;
    thread::sleep(margin);
    let pids: Vec<(String, u32)> = hosts.iter().map(|(n, _, c)| (n.clone(), c.pid())).collect();
    let clock = CpuClock::start(&pids);
    thread::sleep(duration.saturating_sub(2 * margin));
    let cores_busy: f64 = clock.stop().iter().map(|(_, used)| used.process).sum();
    let mut reports = Vec::new();
    for (name, config, mut child) in hosts {
        let limit = duration + END_LIMIT;
        ensure!(
            child.wait_for_exit(limit),
            "{name} did not finish within {limit:?}"
        );
        let report = read_report(&name, &config)?;
        reports.push((name, report));
    }
    for behind in check_agreement(&reports)? {
        eprintln!("note: {behind}");
    }
    let failed: u64 = reports.iter().map(|(_, r)| r.failed).sum();
    ensure!(
        failed == 0,
        "{failed} submissions failed, for the cluster did not keep up"
    );
    let per_s = |r: &Report| r.delivered as f64 * 1e6 / r.duration_us as f64;
    let slowest = reports.iter().map(|(_, r)| per_s(r));
    let slowest = slowest.fold(f64::INFINITY, f64::min);
    let (_, client) = reports.last().context("no reports")?;
    Ok(Sample {
        per_s: slowest,
        p50_us: client.latency.p50_us,
        mean_us: client.latency.mean_us,
        cpu_us_per_value: cores_busy * 1e6 / slowest,
    })
}

fn nodes(port: u16) -> Vec<NodeConfig> {
    let node = |number: usize, name: String, roles: Vec<Role>| NodeConfig {
        id: number as u8 + 1,
        name,
        address: SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, number as u8 + 1), port),
        control_plane: None,
        roles,
    };
    let all = vec![Role::Leader, Role::Acceptor, Role::Replica];
    let replicas = (0..REPLICAS).map(|n| node(n, format!("host{}", n + 1), all.clone()));
    let client = node(REPLICAS, CLIENT.into(), vec![Role::Replica]);
    replicas.chain([client]).collect()
}

fn start(program: &Path, config: &Path, job: &Job, load: Load) -> Result<SupervisedChild> {
    fs::create_dir_all(config.with_file_name("data"))?;
    let mut spec = ProcessSpec::new(program).args(learner_args(config, job, load));
    spec.log = Some(File::create(config.with_file_name("log"))?);
    Ok(SupervisedChild::spawn(&spec, None)?)
}
