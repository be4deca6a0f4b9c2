//! A lab for measuring agreement: a leader, three acceptors and several learners, each in its own namespace. Every job
//! gets fresh roles with fresh state. The learners run `inband-bench node`.

use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_host::program::{self, INBAND};
use inband_lab::{Lab, LabSpec};
use inband_paxos::config::{
    logs_of, ClusterConfig, Config, Dataplane, Durability, HostConfig, Limits, NodeConfig, Role,
    Timing, DEFAULT_MTU, DEFAULT_PORT, DEFAULT_RING_SLOTS,
};

use super::cpu::{CpuClock, CpuUse};
use super::node::{Load, Report, COUNTING, POSITIONS_EVERY};
use inband_cluster::process::{ProcessSpec, SupervisedChild};
use inband_cluster::scratch::{retry, ScratchDir};

/// Acceptors of every testbed.
pub const ACCEPTORS: usize = 3;

/// Time limit for hosts to start, in addition to the counted time.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Pause between jobs, so that the last packets of one do not reach the roles of the next.
const BREATHER: Duration = Duration::from_millis(50);
/// CPU use is measured within the counted time, with a margin of this fraction on both sides.
const CPU_MARGIN_SHARE: u32 = 10;

/// The size of a testbed.
#[derive(Debug, Clone)]
pub struct TestbedSpec {
    /// Hosts that learn; the first ones also propose.
    pub learners: usize,
    /// Keep the hosts' logs in this directory.
    pub keep: Option<PathBuf>,
}

impl Default for TestbedSpec {
    fn default() -> Self {
        TestbedSpec {
            learners: 3,
            keep: None,
        }
    }
}

/// One measurement.
#[derive(Debug, Clone)]
pub struct Job {
    /// Where the roles run.
    pub dataplane: Dataplane,
    /// Logs to spread values over.
    pub partitions: u32,
    /// Slots of the acceptors' rings.
    pub ring_slots: u32,
    /// What proposers do.
    pub load: Load,
    /// Learners that also propose.
    pub proposers: usize,
    /// Bytes of a command.
    pub command_len_bytes: usize,
    /// Undecided values in flight, of each proposer.
    pub window: usize,
    /// Values per second of each proposer, if paced.
    pub rate_per_s: f64,
    /// Each learner puts what it learns into RocksDB, one database per partition, below this directory.
    pub rocksdb: Option<PathBuf>,
    /// From the first value until counting starts.
    pub warm_up: Duration,
    /// Counted time.
    pub duration: Duration,
}

impl Job {
    /// One proposer, 64 B, one partition, no store.
    pub fn new(dataplane: Dataplane, load: Load, duration: Duration) -> Job {
        Job {
            dataplane,
            partitions: 1,
            ring_slots: DEFAULT_RING_SLOTS,
            load,
            proposers: 1,
            command_len_bytes: 64,
            window: 64,
            rate_per_s: 0.0,
            rocksdb: None,
            warm_up: Duration::from_millis(500),
            duration,
        }
    }
}

/// The results of a job.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Reports of the learners, in order; proposers first.
    pub reports: Vec<Report>,
    /// CPU use of each host that ran one of our processes.
    pub cpu: Vec<(String, CpuUse)>,
}

impl Outcome {
    /// Values per second, at the slowest learner.
    pub fn delivered_per_s(&self) -> f64 {
        self.slowest_per_s(|r| r.delivered)
    }

    /// Commands per second, at the slowest learner.
    pub fn commands_per_s(&self) -> f64 {
        self.slowest_per_s(|r| r.commands)
    }

    pub fn failed(&self) -> u64 {
        self.reports.iter().map(|r| r.failed).sum()
    }

    fn slowest_per_s(&self, count: fn(&Report) -> u64) -> f64 {
        let rates = self
            .reports
            .iter()
            .map(|r| count(r) as f64 * 1e6 / r.duration_us as f64);
        rates.fold(f64::INFINITY, f64::min)
    }
}

pub struct Testbed {
    /// Namespaces and their links.
    pub lab: Lab,
    spec: TestbedSpec,
    jobs_done: usize,
    /// This program, in place of the store.
    learner_program: PathBuf,
    /// `inband`, which runs leaders and acceptors.
    host_program: PathBuf,
    _scratch: Option<ScratchDir>,
    dir: PathBuf,
}

impl Testbed {
    /// Creates the namespaces.
    pub fn create(spec: TestbedSpec) -> Result<Testbed> {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        inband_lab::preflight::check_lab().context("this benchmark needs a lab of namespaces")?;
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let names: Vec<String> = hosts(spec.learners).into_iter().map(|h| h.0).collect();
        let lab = Lab::create(&LabSpec {
            name: format!("bench{}x{number}", std::process::id()),
            hosts: names,
            seed: 1,
        })?;
        let (dir, scratch) = match &spec.keep {
            Some(dir) => (dir.clone(), None),
            None => {
                let scratch = ScratchDir::create(&std::env::temp_dir(), "testbed")?;
                (scratch.path().to_owned(), Some(scratch))
            }
        };
        Ok(Testbed {
            lab,
            spec,
            jobs_done: 0,
            learner_program: std::env::current_exe().context("finding this program")?,
            host_program: program::find(INBAND)?,
            _scratch: scratch,
            dir,
        })
    }

    pub fn run(&mut self, job: &Job) -> Result<Outcome> {
        self.run_beside(job, || Ok(())).map(|(outcome, ())| outcome)
    }

    /// Runs a job, and something else during its counted time.
    pub fn run_beside<T>(
        &mut self,
        job: &Job,
        beside: impl FnOnce() -> Result<T>,
    ) -> Result<(Outcome, T)> {
        self.jobs_done += 1;
        let run = self.dir.join(format!("{}", self.jobs_done));
        let started = self.start(&run, job)?;
        let finished = self.finish(job, started, beside);
        if self.spec.keep.is_none() {
            // If this fails, the rest is in a temporary directory.
            let _ = fs::remove_dir_all(&run);
        }
        thread::sleep(BREATHER);
        finished
    }

    fn start(&self, run: &Path, job: &Job) -> Result<Started> {
        let mut started = Started::default();
        for (at, (name, role)) in hosts(self.spec.learners).into_iter().enumerate() {
            let host = self.lab.host(&name)?;
            let config = self.write_config(run, at, job)?;
            let is_learner = role == Role::Replica;
            let (program, args) = match is_learner {
                true => (
                    &self.learner_program,
                    node_args(&config, job, started.learners.len()),
                ),
                false => (
                    &self.host_program,
                    vec!["run".into(), "--config".into(), config.clone().into()],
                ),
            };
            let mut spec = ProcessSpec::new(program);
            spec.log = Some(fs::File::create(config.with_file_name("log"))?);
            let spec = spec.args(args);
            let child = SupervisedChild::spawn(&spec, Some(host.namespace()))?;
            started.pids.push((name.clone(), child.pid()));
            match is_learner {
                true => started.learners.push((name, config, child)),
                false => started.others.push(child),
            }
        }
        Ok(started)
    }

    fn finish<T>(
        &self,
        job: &Job,
        started: Started,
        beside: impl FnOnce() -> Result<T>,
    ) -> Result<(Outcome, T)> {
        started.wait_until_counting(job)?;
        let margin = job.duration / CPU_MARGIN_SHARE;
        thread::sleep(margin);
        let clock = CpuClock::start(&started.pids);
        let value = beside()?;
        let counted = job.duration.saturating_sub(2 * margin);
        thread::sleep(counted.saturating_sub(clock.elapsed()));
        let cpu = clock.stop();
        let limit = job.duration + START_LIMIT;
        let mut reports = Vec::new();
        for (name, config, mut child) in started.learners {
            ensure!(
                child.wait_for_exit(limit),
                "{name} did not finish within {limit:?}"
            );
            let report = read_report(&name, &config)?;
            reports.push((name, report));
        }
        if job.load != Load::Idle {
            for behind in check_agreement(&reports)? {
                eprintln!("note: {behind}");
            }
        }
        let reports = reports.into_iter().map(|(_, report)| report).collect();
        Ok((Outcome { reports, cpu }, value))
    }

    fn write_config(&self, run: &Path, at: usize, job: &Job) -> Result<PathBuf> {
        let names = hosts(self.spec.learners);
        let nodes: Vec<NodeConfig> = names
            .iter()
            .zip(self.lab.hosts())
            .enumerate()
            .map(|(i, ((name, role), host))| NodeConfig {
                id: i as u8 + 1,
                name: name.clone(),
                address: SocketAddrV4::new(host.address(), DEFAULT_PORT),
                control_plane: None,
                roles: vec![*role],
            })
            .collect();
        let state_dir = run.join(names[at].0.replace('/', "-"));
        let interface = Some(inband_lab::lab::HOST_INTERFACE.into());
        write_config(&nodes, at, job, &state_dir, interface)
    }
}

/// Writes the configuration of one host to its directory.
pub fn write_config(
    nodes: &[NodeConfig],
    at: usize,
    job: &Job,
    state_dir: &Path,
    interface: Option<String>,
) -> Result<PathBuf> {
    fs::create_dir_all(state_dir)?;
    let config = Config {
        cluster: ClusterConfig {
            name: "bench".into(),
            epoch: 1,
            first_instances: vec![1; logs_of(job.partitions)],
            partitions: job.partitions,
            leader_balance: true,
            ring_slots: job.ring_slots,
            port: DEFAULT_PORT,
            durability: Durability::Memory,
            mtu: DEFAULT_MTU,
            key_file: None,
        },
        host: HostConfig {
            node: nodes[at].id,
            data_dirs: vec![state_dir.join("data")],
            control: state_dir.join("control.sock"),
            state_dir: state_dir.to_owned(),
            dataplane: job.dataplane,
            interface,
            metrics: None,
            resp: Vec::new(),
            announce: None,
            redis_cluster: false,
            redis_cluster_redirect: false,
            password_file: None,
            protected_mode: true,
            tls: None,
            limits: Limits::default(),
            timing: Timing::default(),
        },
        log: Default::default(),
        nodes: nodes.to_vec(),
    };
    let path = state_dir.join("config.toml");
    fs::write(&path, config.to_toml())?;
    Ok(path)
}

/// A job's processes. Dropping it kills them.
#[derive(Default)]
struct Started {
    learners: Vec<(String, PathBuf, SupervisedChild)>,
    others: Vec<SupervisedChild>,
    pids: Vec<(String, u32)>,
}

impl Started {
    fn wait_until_counting(&self, job: &Job) -> Result<()> {
        let (name, config, _) = self.learners.first().context("no learners")?;
        wait_until_counting(name, config, job)
    }
}

/// Waits until the learner with this configuration starts counting.
pub fn wait_until_counting(name: &str, config: &Path, job: &Job) -> Result<()> {
    let log = config.with_file_name("log");
    retry(START_LIMIT + job.warm_up, || {
        let text = fs::read_to_string(&log)?;
        ensure!(
            text.lines().any(|line| line == COUNTING),
            "{name} does not count; it said: {}",
            text.trim()
        );
        Ok(())
    })
}

/// Returns the report of a learner that has exited.
pub fn read_report(name: &str, config: &Path) -> Result<Report> {
    let text = fs::read_to_string(config.with_file_name("log"))?;
    let Some(line) = text.lines().find(|l| l.starts_with('{')) else {
        bail!("{name} reported nothing; it said: {}", text.trim());
    };
    serde_json::from_str(line).with_context(|| format!("{name}: {line}"))
}

/// Host names in order of their addresses.
fn hosts(learners: usize) -> Vec<(String, Role)> {
    let mut hosts = vec![("leader".to_owned(), Role::Leader)];
    hosts.extend((0..ACCEPTORS).map(|i| (format!("acceptor/{i}"), Role::Acceptor)));
    hosts.extend((0..learners).map(|i| (format!("replica/{i}"), Role::Replica)));
    hosts
}

/// Arguments of the learner with this number.
fn node_args(config: &Path, job: &Job, learner: usize) -> Vec<std::ffi::OsString> {
    let load = match (job.load, learner < job.proposers) {
        (Load::Idle, _) | (_, true) => job.load,
        (_, false) => Load::Learn,
    };
    let mut args = learner_args(config, job, load);
    if let Some(dir) = &job.rocksdb {
        args.extend(["--rocksdb".into(), dir.join(format!("{learner}")).into()]);
    }
    args
}

/// Arguments of a learner with this load.
pub fn learner_args(config: &Path, job: &Job, load: Load) -> Vec<std::ffi::OsString> {
    let load = clap::ValueEnum::to_possible_value(&load).map(|v| v.get_name().to_owned());
    let mut args: Vec<std::ffi::OsString> = vec!["node".into(), "--config".into(), config.into()];
    for (option, value) in [
        ("--dataplane", job.dataplane.to_string()),
        ("--load", load.unwrap_or_default()),
        ("--command-len-bytes", job.command_len_bytes.to_string()),
        ("--window", job.window.to_string()),
        ("--rate-per-s", job.rate_per_s.to_string()),
        ("--warm-up-ms", job.warm_up.as_millis().to_string()),
        ("--duration-ms", job.duration.as_millis().to_string()),
    ] {
        args.extend([option.into(), value.into()]);
    }
    args
}

/// Checks that all learners delivered the same values in the same order, each once, as far as they got. On a loaded
/// machine some learners may end behind the others; returns a sentence about each of these.
pub fn check_agreement(reports: &[(String, Report)]) -> Result<Vec<String>> {
    let (_, first) = reports.first().context("no learners")?;
    let mut behind = Vec::new();
    for log in 0..first.last.len() {
        let furthest = reports.iter().map(|(_, r)| r.last[log].instance).max();
        let furthest = furthest.unwrap_or_default();
        let common = common_position(reports, log)?;
        for (name, report) in reports {
            ensure!(report.delivered > 0, "{name} delivered nothing");
            let last = report.last[log].instance;
            if last < furthest {
                behind.push(format!(
                    "{name} ended at instance {last} of log {log}, the first of the learners at \
                     {furthest}; they agree up to instance {common}"
                ));
            }
        }
    }
    Ok(behind)
}

/// Returns the highest position of a log that can be compared; an error if the learners disagree there.
fn common_position(reports: &[(String, Report)], log: usize) -> Result<u64> {
    let (first_name, first) = &reports[0];
    let same_end = |(_, r): &(String, Report)| r.last[log].instance == first.last[log].instance;
    let at_end = reports.iter().all(same_end);
    let of = |report: &Report, instance| {
        let mut positions = report.positions[log].iter();
        match at_end {
            true => Some(report.last[log]),
            false => positions.find(|p| p.instance == instance).copied(),
        }
    };
    let reached = reports.iter().map(|(_, r)| r.last[log].instance).min();
    let reached = reached.unwrap_or_default();
    let common = match at_end {
        true => reached,
        false => reached / POSITIONS_EVERY * POSITIONS_EVERY,
    };
    if common == 0 {
        return Ok(0);
    }
    let expected = of(first, common);
    for (name, report) in reports {
        let found = of(report, common);
        ensure!(
            found.is_some() && found == expected,
            "{first_name} and {name} disagree at instance {common} of log {log}: {expected:x?} and {found:x?}"
        );
    }
    Ok(common)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Position;

    fn report(checksum: u64) -> Report {
        Report {
            delivered: 1000,
            duration_us: 500_000,
            last: vec![Position {
                instance: 9,
                checksum,
            }],
            positions: vec![Vec::new()],
            ..Report::default()
        }
    }

    fn named(reports: &[Report]) -> Vec<(String, Report)> {
        let names = (0..).map(|number| format!("replica/{number}"));
        names.zip(reports.iter().cloned()).collect()
    }

    #[test]
    fn learners_that_disagree_are_no_figure() {
        assert!(check_agreement(&named(&[report(1), report(1)])).is_ok());
        assert!(check_agreement(&named(&[report(1), report(2)])).is_err());
        assert!(check_agreement(&[]).is_err());
    }

    #[test]
    fn a_learner_that_fell_behind_is_compared_where_it_was() {
        let at = |instance, checksum| Position { instance, checksum };
        let ahead = Report {
            last: vec![at(200, 7)],
            positions: vec![vec![at(64, 5), at(128, 6), at(192, 7)]],
            ..report(0)
        };
        let behind = |checksum| Report {
            last: vec![at(130, 9)],
            positions: vec![vec![at(64, 5), at(128, checksum)]],
            ..report(0)
        };
        let said = check_agreement(&named(&[ahead.clone(), behind(6)])).unwrap();
        let expected =
            "replica/1 ended at instance 130 of log 0, the first of the learners at 200; \
                        they agree up to instance 128";
        assert_eq!(said, [expected]);
        let error = check_agreement(&named(&[ahead, behind(8)])).unwrap_err();
        assert!(
            error.to_string().contains("disagree at instance 128"),
            "{error}"
        );
    }

    #[test]
    fn throughput_is_that_of_the_slowest() {
        let mut slow = report(1);
        slow.delivered = 600;
        let outcome = Outcome {
            reports: vec![report(1), slow],
            cpu: Vec::new(),
        };
        assert_eq!(outcome.delivered_per_s(), 1200.0);
    }
}
