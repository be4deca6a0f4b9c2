//! From a specification to a serving cluster.

use std::fs::{self, OpenOptions};
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use inband_paxos::config::{
    ring_memory_bytes, ClusterConfig, Config, Dataplane, Durability, HostConfig, NodeConfig, Role,
    DEFAULT_PORT,
};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde::Deserialize;

use super::listeners::{bind, bind_or_any, free_loopback_ports};
use super::{lock, HostRuntime, ProcessState, Shared, Slot, SupervisorError};
use crate::cluster_dir::{ClusterDir, ClusterRecord};
use crate::control::{self, HostStatus};
use crate::error::LabError;
use crate::lab::{Lab, LabSpec, HOST_INTERFACE};
use crate::layout::{ClusterSpec, HostPlan, NetworkChoice};
use crate::memory;
use crate::preflight;
use crate::process::{ProcessSpec, SupervisedChild};

/// How long hosts may take to answer, and the cluster to have a leader.
const READY_LIMIT: Duration = Duration::from_secs(20);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a process of a crashed supervisor may take to die.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(3);
/// Lines of a log that an error message quotes.
const LOG_TAIL_LINES: usize = 4;

/// Answer of `inband inspect DATA_DIR`.
#[derive(Deserialize)]
struct Inspection {
    /// Of every log.
    applied: Vec<u64>,
}

pub(super) fn start(spec: ClusterSpec) -> Result<Shared, SupervisorError> {
    spec.check().map_err(SupervisorError::BadSpec)?;
    memory::check(&spec, memory::available_bytes())?;
    let dir = ClusterDir::open(&spec.data, &spec.more_data)?;
    dir.roots().try_for_each(preflight::check_disk)?;
    let plans = spec.hosts();
    plans
        .iter()
        .for_each(|plan| kill_leftover(&dir.host(&plan.dir_name())));
    let plan = dir.plan(&spec, &|i, dirs| inspect(&spec.program, i, dirs))?;
    // Everything that may fail for a reason outside comes before the record says "running".
    let front_door = bind(spec.resp, "--resp")?;
    let own_doors = own_doors(&spec)?;
    let mut notices = plan.notices;
    let (dataplane, lab, why) = network(&spec, &plan.record.name, &plans)?;
    notices.insert(0, why);
    let addresses: Vec<SocketAddrV4> = match &lab {
        Some(lab) => lab
            .hosts()
            .iter()
            .map(|h| SocketAddrV4::new(h.address(), DEFAULT_PORT))
            .collect(),
        None => free_loopback_ports(&plan.record.name, plans.len())?,
    };
    let hosts: Vec<HostRuntime> = plans
        .into_iter()
        .zip(addresses)
        .enumerate()
        .map(|(i, (plan, address))| HostRuntime {
            dataplane: resolve(plan.dataplane, dataplane),
            address,
            dir: dir.host(&plan.dir_name()),
            resp: own_doors.iter().find(|d| d.0 == i).map(|d| d.1),
            plan,
        })
        .collect();
    let fresh = || Slot {
        child: None,
        state: ProcessState::Ended {
            how: "not started".into(),
        },
        metrics: None,
    };
    let shared = Shared {
        slots: Mutex::new(hosts.iter().map(|_| fresh()).collect()),
        spec,
        dataplane,
        notices,
        hosts,
        operation: Mutex::default(),
        last_leaders: Mutex::default(),
        front_door: Mutex::new(Some(front_door)),
        record: Mutex::new(plan.record),
        ended: Mutex::default(),
        ended_signal: Condvar::new(),
        lab,
        dir,
    };
    shared.write_configs()?;
    shared.dir.write_record(&lock(&shared.record))?;
    match shared.start_hosts() {
        Ok(()) => Ok(shared),
        Err(error) => {
            shared.kill_all();
            shared.take_start_back();
            Err(error)
        }
    }
}

fn resolve(wanted: Dataplane, cluster: Dataplane) -> Dataplane {
    if wanted == Dataplane::Auto {
        cluster
    } else {
        wanted
    }
}

/// Make sure that the replicas' own ports are free. They are bound again for each process, so that
/// the port of a dead replica refuses connections.
fn own_doors(spec: &ClusterSpec) -> Result<Vec<(usize, SocketAddr)>, SupervisorError> {
    let mut doors = Vec::new();
    for (i, plan) in spec.hosts().iter().enumerate() {
        if plan.has(Role::Replica) {
            let port = spec.resp.port() + 1 + doors.len() as u16;
            let address = SocketAddr::new(spec.resp.ip(), port);
            bind(address, "--resp (replicas use the ports after it)")?;
            doors.push((i, address));
        }
    }
    Ok(doors)
}

/// Choose the dataplane and make the network for it; the line says which and why.
fn network(
    spec: &ClusterSpec,
    name: &str,
    plans: &[HostPlan],
) -> Result<(Dataplane, Option<Lab>, String), SupervisorError> {
    let make_lab = || -> Result<Lab, LabError> {
        preflight::check_lab()?;
        let lab = Lab::create(&LabSpec {
            name: name.to_owned(),
            hosts: plans.iter().map(|p| p.name.clone()).collect(),
            seed: 1,
        })?;
        // The way in which hosts will attach theirs.
        drop(lab.hosts()[0].attach_pass()?);
        Ok(lab)
    };
    let loopback = |why: String| Ok((Dataplane::Udp, None, format!("dataplane udp: {why}")));
    match (spec.dataplane, spec.network) {
        (Dataplane::Auto, NetworkChoice::Loopback) => {
            loopback("hosts on loopback were asked for".into())
        }
        (Dataplane::Auto, _) => match make_lab() {
            Ok(lab) => {
                let why = "native XDP works here".to_owned();
                Ok((Dataplane::Xdp, Some(lab), format!("dataplane xdp: {why}")))
            }
            Err(error @ (LabError::InUse { .. } | LabError::BadLayout(_))) => Err(error.into()),
            Err(error) if spec.demands_xdp() || spec.network == NetworkChoice::Namespaces => {
                Err(error.into())
            }
            Err(error) => loopback(error.to_string()),
        },
        (dataplane, choice) => {
            let lab = match choice {
                NetworkChoice::Namespaces => Some(make_lab()?),
                NetworkChoice::Auto if spec.demands_xdp() => Some(make_lab()?),
                NetworkChoice::Auto | NetworkChoice::Loopback => None,
            };
            Ok((
                dataplane,
                lab,
                format!("dataplane {dataplane}: as asked for"),
            ))
        }
    }
}

/// A host process whose supervisor was killed ends by itself, but maybe not yet.
fn kill_leftover(host_dir: &Path) {
    let pid_file = host_dir.join("pid");
    let Ok(text) = fs::read_to_string(&pid_file) else {
        return;
    };
    let _ = fs::remove_file(&pid_file);
    let Ok(pid) = text.trim().parse::<i32>() else {
        return;
    };
    let cmdline = format!("/proc/{pid}/cmdline");
    // The id may be somebody else's by now; ours has its configuration on the command line.
    let config = host_dir.join("config.toml");
    let config = config.as_os_str().as_encoded_bytes();
    let is_ours =
        || fs::read(&cmdline).is_ok_and(|c| c.split(|&byte| byte == 0).any(|arg| arg == config));
    let deadline = Instant::now() + LEFTOVER_LIMIT;
    while is_ours() && Instant::now() < deadline {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        thread::sleep(READY_POLL_INTERVAL);
    }
}

/// Ask the program for the positions of a replica that does not run.
fn inspect(
    program: &Path,
    index: usize,
    data_dirs: &[PathBuf],
) -> Result<Vec<u64>, SupervisorError> {
    let failed = |reason: String| SupervisorError::Inspect {
        replica: format!("replica/{index}"),
        reason,
    };
    let output = Command::new(program)
        .arg("inspect")
        .args(data_dirs)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(format!("cannot run {}: {e}", program.display())))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!(
            "`inspect {}`: {}",
            data_dirs[0].display(),
            one_line(&stderr)
        )));
    }
    serde_json::from_slice::<Inspection>(&output.stdout)
        .map(|inspection| inspection.applied)
        .map_err(|e| {
            failed(format!(
                "`inspect {}` printed no position: {e}",
                data_dirs[0].display()
            ))
        })
}

fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

impl Shared {
    fn write_configs(&self) -> Result<(), SupervisorError> {
        let nodes: Vec<NodeConfig> = self
            .hosts
            .iter()
            .enumerate()
            .map(|(i, host)| NodeConfig {
                id: (i + 1) as u8,
                name: host.plan.name.clone(),
                address: host.address,
                roles: host.plan.roles.clone(),
            })
            .collect();
        let record = lock(&self.record);
        let cluster = ClusterConfig {
            name: record.name.clone(),
            epoch: record.epoch,
            first_instances: record.first_instances.clone(),
            partitions: record.partitions,
            leader_balance: true,
            ring_slots: self.spec.ring_slots,
            port: DEFAULT_PORT,
            durability: record.durability,
        };
        // It has been checked that this much is there.
        let most_bytes = self
            .hosts
            .iter()
            .map(|h| ring_memory_bytes(&h.plan.roles, cluster.partitions, cluster.ring_slots))
            .max()
            .unwrap_or(0);
        let mut limits = self.spec.limits.clone();
        limits.ring_memory_mib = limits
            .ring_memory_mib
            .max(most_bytes.div_ceil(1 << 20) as u32);
        for (host, node) in self.hosts.iter().zip(&nodes) {
            fs::create_dir_all(&host.dir).map_err(SupervisorError::file("create", &host.dir))?;
            let config = Config {
                cluster: cluster.clone(),
                host: HostConfig {
                    node: node.id,
                    state_dir: host.dir.clone(),
                    data_dirs: self.dir.data_dirs(&host.plan.dir_name()),
                    dataplane: host.dataplane,
                    interface: self.lab.as_ref().map(|_| HOST_INTERFACE.to_owned()),
                    control: host.socket(),
                    // Bound here, where clients are, and handed down.
                    metrics: None,
                    resp: Vec::new(),
                    limits: limits.clone(),
                    timing: self.spec.timing.clone(),
                },
                nodes: nodes.clone(),
            };
            let (text, path) = (config.to_toml(), host.config());
            // Held to the same rules as a hand-written one.
            Config::parse(&text, &path.display().to_string())?;
            fs::write(&path, text).map_err(SupervisorError::file("write", &path))?;
        }
        Ok(())
    }

    /// Start one host's process. Whatever ran there before has ended.
    pub(super) fn spawn(&self, index: usize) -> Result<(), SupervisorError> {
        let host = &self.hosts[index];
        let (log_path, mut slots) = (host.log(), lock(&self.slots));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(SupervisorError::file("open", &log_path))?;
        let metrics_port = match slots[index].metrics {
            Some(address) => address.port(),
            None => self.spec.metrics_port.saturating_add(index as u16),
        };
        let metrics = bind_or_any(metrics_port, "--metrics")?;
        slots[index].metrics = metrics.local_addr().ok();
        // Not kept here: when the process dies, its own ports refuse connections.
        let own_door: Option<TcpListener> = host
            .resp
            .map(|address| bind(address, "--resp"))
            .transpose()?;
        let front_door = lock(&self.front_door);
        let mut listeners = vec![(metrics.as_fd(), "metrics")];
        if let (Some(own_door), Some(front_door)) = (&own_door, front_door.as_ref()) {
            listeners.push((front_door.as_fd(), "resp"));
            listeners.push((own_door.as_fd(), "resp"));
        }
        // A stale socket would be asked instead of the new one.
        let _ = fs::remove_file(host.socket());
        let mut process = ProcessSpec::new(&self.spec.program).args([
            "run".as_ref(),
            "--config".as_ref(),
            host.config().as_os_str(),
        ]);
        process.log = Some(log);
        process.listeners = listeners;
        let child = match &self.lab {
            Some(lab) => lab.host(&host.plan.name)?.spawn(&process)?,
            None => SupervisedChild::spawn(&process, None)?,
        };
        let pid_file = host.pid_file();
        fs::write(&pid_file, child.pid().to_string())
            .map_err(SupervisorError::file("write", &pid_file))?;
        slots[index].child = Some(child);
        slots[index].state = ProcessState::Running;
        Ok(())
    }

    /// Acceptors and leaders first: until a replica runs, no client can have got an answer.
    fn start_hosts(&self) -> Result<(), SupervisorError> {
        let (replicas, others): (Vec<usize>, Vec<usize>) =
            (0..self.hosts.len()).partition(|&i| self.hosts[i].plan.has(Role::Replica));
        for group in [others, replicas] {
            group.iter().try_for_each(|&i| self.spawn(i))?;
            group
                .iter()
                .try_for_each(|&i| self.wait_until_answering(i))?;
        }
        self.wait_until_serving()
    }

    /// Wait until a host answers on its control socket.
    pub(super) fn wait_until_answering(&self, index: usize) -> Result<(), SupervisorError> {
        let host = &self.hosts[index];
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // At least a moment: a zero limit is refused by the system.
            let limit = left.max(READY_POLL_INTERVAL);
            if control::status(&host.socket(), limit).is_ok() {
                return Ok(());
            }
            self.check_alive(index)?;
            if left.is_zero() {
                return Err(self.late(format!("{} did not answer", host.plan.name)));
            }
            thread::sleep(READY_POLL_INTERVAL);
        }
    }

    fn wait_until_serving(&self) -> Result<(), SupervisorError> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let statuses = self.host_statuses();
            let votes = |status: &&HostStatus| {
                !status.acceptors.is_empty() && status.acceptors.iter().all(|a| a.voting)
            };
            let voting = statuses.iter().flatten().filter(votes).count();
            let acceptors = self
                .hosts
                .iter()
                .filter(|h| h.plan.has(Role::Acceptor))
                .count();
            let logs = self.logs();
            let led = (0..logs)
                .filter(|&log| Self::leader_among(&statuses, log).is_some())
                .count();
            if led == logs && voting == acceptors {
                return Ok(());
            }
            (0..self.hosts.len()).try_for_each(|i| self.check_alive(i))?;
            if Instant::now() >= deadline {
                return Err(self.late(format!(
                    "the cluster did not come up ({led} of {logs} logs have a leader, {voting} of \
                     {acceptors} acceptors vote)"
                )));
            }
            thread::sleep(READY_POLL_INTERVAL);
        }
    }

    fn late(&self, what: String) -> SupervisorError {
        let logs = self.dir.path().join("hosts");
        SupervisorError::Late {
            what,
            limit_s: READY_LIMIT.as_secs(),
            logs,
        }
    }

    fn check_alive(&self, index: usize) -> Result<(), SupervisorError> {
        let mut slots = lock(&self.slots);
        slots[index].refresh();
        let ProcessState::Ended { how } = &slots[index].state else {
            return Ok(());
        };
        let log = self.hosts[index].log();
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = one_line(&lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n"));
        Err(SupervisorError::HostFailed {
            host: self.hosts[index].plan.name.clone(),
            how: how.clone(),
            log,
            tail,
        })
    }

    /// After a failed start: if no replica has moved, nobody can have had an answer, and the next
    /// start need not be told to accept a loss. The epoch stays used up.
    fn take_start_back(&self) {
        let mut record = lock(&self.record);
        if record.durability == Durability::Sync {
            return; // votes may be in journals; the next start goes on in this epoch
        }
        let before: Vec<u64> = record.first_instances.iter().map(|i| i - 1).collect();
        let has_not_moved = |at: Vec<u64>| {
            at.len() == before.len() && at.iter().zip(&before).all(|(at, before)| at <= before)
        };
        let unmoved = (0..record.replicas).all(|i| {
            let data = self.dir.replica_data(i);
            !data[0].exists() || inspect(&self.spec.program, i, &data).is_ok_and(has_not_moved)
        });
        if unmoved {
            let back = ClusterRecord {
                clean_at: Some(before),
                ..record.clone()
            };
            match self.dir.write_record(&back) {
                Ok(()) => *record = back,
                Err(error) => tracing::warn!(%error, "the failed start is recorded as unclean"),
            }
        }
    }
}
