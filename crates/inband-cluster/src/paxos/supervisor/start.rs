//! Starts a cluster from a specification.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use inband_host::line_json;
use inband_host::signals::SHARED_LISTENER;
use inband_paxos::config::{
    ring_memory_bytes, ClientAddress, ClusterConfig, Config, Dataplane, Durability, HostConfig,
    LogConfig, Role, TlsConfig, DEFAULT_MTU, DEFAULT_PORT,
};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde::Deserialize;

use super::keys;
use super::{control_socket, lock, HostRuntime, Shared, SupervisorError};
use crate::certificates;
use crate::disk::check_disk;
use crate::host_process::{Process, ProcessSlot};
use crate::listeners::{bind, bind_or_any, metrics_port};
use crate::loopback_ports::{free_loopback_ports, take_port, HeldPort};
use crate::network::{try_namespaces, Lab, LabError, LabSpec, FIRST_ADDRESS, HOST_INTERFACE};
use crate::paxos::cluster_dir::{ClusterDir, ClusterRecord, HostRecord, PlannedHost};
use crate::paxos::control::{self, HostStatus};
use crate::paxos::layout::{kind_of, ClusterSpec, HostPlan, NetworkChoice};
use crate::paxos::memory;
use crate::process::ProcessSpec;
use crate::socket::socket_in;
use crate::supervisor::READY_TIMEOUT;
use crate::wait_notice::WaitNotice;

pub(super) const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which the control plane is polled during the start.
const PLANE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout for hosts that a cluster can do without for a time.
const ALL_LIMIT: Duration = Duration::from_secs(10);
/// Timeout for a process of a crashed supervisor to die.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(3);
/// Lines of a log that an error message quotes.
const LOG_TAIL_LINES: usize = 4;

/// Output of `inband inspect DATA_DIR`.
#[derive(Deserialize)]
struct Inspection {
    /// By log.
    applied: Vec<u64>,
}

pub(super) fn start(
    mut spec: ClusterSpec,
    gives_up: &dyn Fn() -> bool,
) -> Result<Shared, SupervisorError> {
    spec.check().map_err(SupervisorError::BadSpec)?;
    memory::check(&spec, memory::available_bytes())?;
    // Before the directory becomes a cluster's.
    line_json::check_path(&socket_in(&spec.data))?;
    let dir = ClusterDir::open(&spec.data, &spec.more_data)?;
    dir.roots().try_for_each(check_disk)?;
    dir.all_hosts().iter().for_each(|host| kill_leftover(host));
    dir.rename_former()?;
    let plan = dir.plan(&spec, &|name, dirs| inspect(&spec.program, name, dirs))?;
    keep_network(&mut spec, &plan.hosts)?;
    for host in &plan.hosts {
        line_json::check_path(&control_socket(&dir.host(&host.plan.dir_name())))?;
    }
    // Whatever may fail for external reasons comes before the record says "running".
    let client_listener = bind(spec.resp, "--resp")?;
    for host in &plan.hosts {
        // It is bound again for each process, so that the port of a dead replica refuses connections.
        if let Some(listener) = own_listener(&spec, &host.plan) {
            bind(listener, "--resp (replicas use the ports after it)")?;
        }
    }
    let mut notices = plan.notices;
    let (dataplane, lab, why) = network(&spec, &plan.record.name, &plan.hosts)?;
    notices.insert(0, why);
    let addresses = if lab.is_some() {
        in_lab(&plan.hosts)
    } else {
        on_loopback(&spec, &plan.record.name, &plan.hosts)?
    };
    let votes_in_kernel = |host: &PlannedHost| {
        host.plan.has(Role::Acceptor) && resolve(host.plan.dataplane, dataplane) != Dataplane::Udp
    };
    if plan.record.durability == Durability::Sync && plan.hosts.iter().any(votes_in_kernel) {
        notices.push(
            "acceptors run in user space: with --durability sync a vote waits for the disk, and a program in the kernel cannot"
                .into(),
        );
    }
    let is_new = plan.record.hosts.is_empty();
    let mut record = plan.record;
    notices.push(keys::prepare(&dir, &record, spec.authenticated, is_new)?);
    for (had, has, option) in [
        (
            &mut record.had_password,
            spec.password_file.is_some(),
            "--password-file",
        ),
        (&mut record.had_resp_tls, spec.resp_tls, "--resp-tls"),
    ] {
        if std::mem::replace(had, has) && !has {
            notices.push(format!(
                "clients are served without {option}, which the last start had"
            ));
        }
    }
    let hosts: Vec<Arc<HostRuntime>> = plan
        .hosts
        .into_iter()
        .zip(addresses)
        .map(|(host, (address, held_port))| HostRuntime {
            id: host.id,
            dataplane: resolve(host.plan.dataplane, dataplane),
            address,
            _held_port: held_port,
            dir: dir.host(&host.plan.dir_name()),
            resp: own_listener(&spec, &host.plan),
            plan: host.plan,
            process: ProcessSlot::default(),
            metrics: Mutex::new(None),
        })
        .map(Arc::new)
        .collect();
    if is_new {
        for host in &hosts {
            record.add_host(host.record(false));
        }
    }
    let mut shared = Shared {
        spec,
        dataplane,
        notices,
        hosts: Mutex::new(hosts),
        operation: Mutex::default(),
        membership: Mutex::default(),
        progress: Mutex::default(),
        stopping: AtomicBool::new(false),
        meant: Mutex::default(),
        client_listener: Mutex::new(Some(client_listener)),
        record: Mutex::new(record),
        ended: Mutex::default(),
        ended_signal: Condvar::new(),
        lab,
        dir,
    };
    let hosts = shared.hosts();
    for host in &hosts {
        shared.write_config(host, &hosts)?;
    }
    shared.dir.write_record(&lock(&shared.record))?;
    match shared.start_hosts(!is_new, plan.may_begin_empty, gives_up) {
        Ok(more) => {
            shared.notices.extend(more);
            Ok(shared)
        }
        Err(error) => {
            // Clients may have been served already: replicas sync at their end, so that the record says what they have.
            shared.stop_hosts(&shared.hosts());
            shared.kill_all();
            shared.take_start_back();
            Err(error)
        }
    }
}

/// Returns where the packet roles of a host run that is configured for this dataplane. A vote must be on disk before it
/// is sent, and a packet program cannot wait for a disk.
pub(super) fn dataplane_of(
    roles: &[Role],
    configured: Dataplane,
    durability: Durability,
) -> Dataplane {
    let is_in_kernel = |role: &Role| match role {
        Role::Acceptor => durability != Durability::Sync,
        Role::Leader | Role::Replica => true,
        Role::Controller => false,
    };
    let only_votes_on_disk = roles.contains(&Role::Acceptor) && !roles.iter().any(is_in_kernel);
    match only_votes_on_disk {
        true => Dataplane::Udp,
        false => configured,
    }
}

pub(super) fn resolve(wanted: Dataplane, cluster: Dataplane) -> Dataplane {
    if wanted == Dataplane::Auto {
        cluster
    } else {
        wanted
    }
}

/// Returns the port of a replica alone: `replica/2` has the third port after that of the client address.
pub(super) fn own_listener(spec: &ClusterSpec, plan: &HostPlan) -> Option<SocketAddr> {
    let number = u16::try_from(kind_of(&plan.name).1).ok()?;
    let port = spec.resp.port().checked_add(number)?.checked_add(1)?;
    plan.has(Role::Replica)
        .then(|| SocketAddr::new(spec.resp.ip(), port))
}

/// Where clients of this machine reach a replica alone.
fn announced(spec: &ClusterSpec, plan: &HostPlan) -> Option<ClientAddress> {
    let mut address = own_listener(spec, plan)?;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Some(address.into())
}

/// Members' addresses are permanent, so the network must be of the same kind as before.
fn keep_network(spec: &mut ClusterSpec, hosts: &[PlannedHost]) -> Result<(), SupervisorError> {
    let Some(address) = hosts.first().and_then(|host| host.address) else {
        return Ok(());
    };
    if !address.ip().is_loopback() {
        spec.network = NetworkChoice::Namespaces;
        return Ok(());
    }
    spec.network = NetworkChoice::Loopback;
    if spec.demands_xdp() {
        return Err(SupervisorError::LayoutChanged(
            "the hosts of this cluster are on loopback, where there is no XDP; use --dataplane udp, \
             or export the data and import it into a cluster in another --data directory"
                .into(),
        ));
    }
    Ok(())
}

/// Returns where each host's packets go in the lab.
fn in_lab(hosts: &[PlannedHost]) -> Vec<(SocketAddrV4, Option<HeldPort>)> {
    let address = |host: &PlannedHost| host.address.unwrap_or(lab_address(host.id));
    hosts.iter().map(|host| (address(host), None)).collect()
}

/// Returns where each host's packets go on loopback.
fn on_loopback(
    spec: &ClusterSpec,
    cluster: &str,
    hosts: &[PlannedHost],
) -> Result<Vec<(SocketAddrV4, Option<HeldPort>)>, SupervisorError> {
    let new = hosts.iter().filter(|host| host.address.is_none()).count();
    let taken: Vec<SocketAddrV4> = hosts.iter().filter_map(|host| host.address).collect();
    let mut fresh = free_loopback_ports(cluster, new, &taken, &first_listeners(spec))?.into_iter();
    let take = |host: &PlannedHost| {
        let held = match host.address {
            Some(address) => take_port(&host.plan.name, address)?,
            None => fresh.next().expect("one for each new host"),
        };
        Ok((held.address, Some(held)))
    };
    hosts.iter().map(take).collect()
}

/// Returns the first ports at which hosts listen for clients and for metrics.
pub(super) fn first_listeners(spec: &ClusterSpec) -> [u16; 2] {
    [spec.resp.port(), spec.metrics_port]
}

/// Returns where the packets of a host in the lab go. Ids are never reused, and so neither are addresses.
pub(super) fn lab_address(id: u8) -> SocketAddrV4 {
    let before_first = u32::from(FIRST_ADDRESS) - 1;
    SocketAddrV4::new((before_first + u32::from(id)).into(), DEFAULT_PORT)
}

/// Chooses the dataplane and creates the network for it. Returns a line that says which, and why.
fn network(
    spec: &ClusterSpec,
    name: &str,
    plans: &[PlannedHost],
) -> Result<(Dataplane, Option<Lab>, String), SupervisorError> {
    let make_lab = || -> Result<Lab, LabError> {
        let lab_spec = LabSpec {
            name: name.to_owned(),
            hosts: plans.iter().map(|p| p.plan.name.clone()).collect(),
            seed: 1,
        };
        let addresses = plans.iter().map(|host| *lab_address(host.id).ip());
        let addresses: Vec<_> = addresses.collect();
        try_namespaces(|| Lab::create_at(&lab_spec, &addresses))
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

/// A host process whose supervisor was killed ends by itself, but possibly not yet.
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
    // The process id may have been reused; our process has its configuration on the command line.
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

/// Runs the program to get the positions of a replica that is not running.
fn inspect(program: &Path, name: &str, data_dirs: &[PathBuf]) -> Result<Vec<u64>, SupervisorError> {
    let failed = |reason: String| SupervisorError::Inspect {
        replica: name.to_owned(),
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

impl HostRuntime {
    /// Returns the host's entry in the cluster's record.
    pub(super) fn record(&self, changing: bool) -> HostRecord {
        HostRecord {
            id: self.id,
            name: self.plan.name.clone(),
            roles: self.plan.roles.clone(),
            address: self.address,
            changing,
        }
    }
}

impl Shared {
    /// Writes the configuration of a host, with these hosts as the cluster's nodes.
    pub(super) fn write_config(
        &self,
        host: &HostRuntime,
        hosts: &[Arc<HostRuntime>],
    ) -> Result<(), SupervisorError> {
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
            mtu: DEFAULT_MTU,
            key_file: record.authenticated.then(|| self.dir.key_file()),
        };
        drop(record);
        // It was checked that this much memory is available.
        let rings_bytes =
            ring_memory_bytes(&host.plan.roles, cluster.partitions, cluster.ring_slots);
        let mut limits = self.spec.limits.clone();
        limits.ring_memory_mib = limits
            .ring_memory_mib
            .max(rings_bytes.div_ceil(1 << 20) as u32);
        fs::create_dir_all(&host.dir).map_err(SupervisorError::file("create", &host.dir))?;
        let tls = self.certificate(host)?;
        let config = Config {
            cluster,
            host: HostConfig {
                node: host.id,
                state_dir: host.dir.clone(),
                data_dirs: self.dir.data_dirs(&host.plan.dir_name()),
                dataplane: host.dataplane,
                interface: self.lab.as_ref().map(|_| HOST_INTERFACE.to_owned()),
                control: host.socket(),
                // Bound by the supervisor, where clients are, and passed down.
                metrics: None,
                resp: Vec::new(),
                announce: announced(&self.spec, &host.plan),
                redis_cluster: self.spec.redis_cluster && host.plan.has(Role::Replica),
                redis_cluster_redirect: false,
                password_file: self.spec.password_file.clone(),
                // A user who chose another address with --resp wants clients on other machines.
                protected_mode: self.spec.resp.ip().is_loopback(),
                tls,
                limits,
                timing: self.spec.timing.clone(),
            },
            log: LogConfig::default(),
            nodes: hosts.iter().map(|host| host.node()).collect(),
        };
        let (text, path) = (config.to_toml(), host.config());
        // Checked by the same rules as a hand-written one.
        Config::parse(&text, &path.display().to_string())?;
        fs::write(&path, text).map_err(SupervisorError::file("write", &path))
    }

    /// Returns the host's TLS configuration; its certificate is made if missing.
    fn certificate(&self, host: &HostRuntime) -> Result<Option<TlsConfig>, SupervisorError> {
        if !self.spec.tls {
            return Ok(None);
        }
        let cluster = lock(&self.record).name.clone();
        let addresses = [(*host.address.ip()).into(), self.spec.resp.ip()];
        let files =
            certificates::ensure(self.dir.path(), &cluster, &host.dir, host.id, &addresses)?;
        Ok(Some(certificates::config(files, self.spec.resp_tls)))
    }

    /// Starts a host's process. A previous process must have ended.
    pub(super) fn spawn(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        let (log_path, mut metrics_address) = (host.log(), lock(&host.metrics));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_path)
            .map_err(SupervisorError::file("open", &log_path))?;
        let port = match *metrics_address {
            Some(address) => address.port(),
            None => metrics_port(self.spec.metrics_port, u16::from(host.id) - 1),
        };
        let metrics = bind_or_any(port, "--metrics-port")?;
        *metrics_address = metrics.local_addr().ok();
        // Not kept here: when the process dies, its own ports must refuse connections.
        let own_listener: Option<TcpListener> = host
            .resp
            .map(|address| bind(address, "--resp"))
            .transpose()?;
        let client_listener = lock(&self.client_listener);
        let mut listeners = vec![(metrics.as_fd(), "metrics")];
        if let (Some(own_listener), Some(client_listener)) =
            (&own_listener, client_listener.as_ref())
        {
            listeners.push((client_listener.as_fd(), SHARED_LISTENER));
            listeners.push((own_listener.as_fd(), "resp"));
        }
        // Otherwise a stale socket could be queried instead of the new one.
        let _ = fs::remove_file(host.socket());
        let mut process = ProcessSpec::new(&self.spec.program).args([
            "run".as_ref(),
            "--config".as_ref(),
            host.config().as_os_str(),
        ]);
        process.log = Some(log);
        process.listeners = listeners;
        let namespace = self.lab.as_ref().map(|lab| lab.host(&host.plan.name));
        let pid = host
            .process
            .start(&process, namespace.transpose()?.as_deref())?;
        let pid_file = host.pid_file();
        fs::write(&pid_file, pid.to_string()).map_err(SupervisorError::file("write", &pid_file))
    }

    /// Starts acceptors and leaders first: until a replica runs, no client can have received an answer. Returns what
    /// the user should know.
    fn start_hosts(
        &self,
        is_founded: bool,
        may_begin_empty: bool,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, SupervisorError> {
        let (replicas, others): (Vec<_>, Vec<_>) = self
            .hosts()
            .into_iter()
            .partition(|host| host.plan.has(Role::Replica));
        for group in [others, replicas] {
            group.iter().try_for_each(|host| self.spawn(host))?;
            group
                .iter()
                .try_for_each(|host| self.wait_until_answering_unless(host, gives_up))?;
        }
        self.wait_until_serving(is_founded, may_begin_empty, gives_up)
    }

    /// Waits until a host answers on its control socket.
    pub(super) fn wait_until_answering(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        self.wait_until_answering_unless(host, &|| false)
    }

    fn wait_until_answering_unless(
        &self,
        host: &HostRuntime,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<(), SupervisorError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Not zero: the system refuses a zero timeout.
            let limit = left.max(READY_POLL_INTERVAL);
            if control::status(&host.socket(), limit).is_ok() {
                return Ok(());
            }
            self.check_alive(host)?;
            if gives_up() {
                return Err(SupervisorError::Interrupted);
            }
            if left.is_zero() {
                return Err(self.late(format!("{} did not answer", host.name())));
            }
            thread::sleep(READY_POLL_INTERVAL);
        }
    }

    fn wait_until_serving(
        &self,
        is_founded: bool,
        may_begin_empty: bool,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, SupervisorError> {
        let began = Instant::now();
        let (mut is_settled, mut ask_at) = (!is_founded, began);
        let mut notice = WaitNotice::new();
        loop {
            let hosts = self.hosts();
            let statuses = self.host_statuses(&hosts);
            let not_voting = acceptors_not_voting(&hosts, &statuses);
            let catching_up = replicas_catching_up(&hosts, &statuses);
            let acceptors = hosts.iter().filter(|h| h.plan.has(Role::Acceptor)).count();
            let logs = self.logs();
            let led = (0..logs)
                .filter(|&log| Self::leader_among(&statuses, log).is_some())
                .count();
            let is_complete = not_voting.is_empty() && catching_up.is_empty();
            if led == logs && is_settled && is_complete {
                return Ok(Vec::new());
            }
            // Some may have lost what the cluster relied on them to remember. They must be replaced, and for that the
            // cluster must be up.
            let is_enough = led == logs && 2 * not_voting.len() < acceptors;
            if is_enough && began.elapsed() >= ALL_LIMIT {
                let what = match (&not_voting[..], &catching_up[..]) {
                    ([], []) => "the control plane is not ready".to_owned(),
                    ([], behind) => format!("{} catches up with the log", behind.join(", ")),
                    (not_voting, _) => format!("{} does not vote", not_voting.join(", ")),
                };
                let why = self.plane_in_words();
                let see = "see `inband status` and `inband member list`";
                return Ok(vec![format!("{what} ({why}); {see}")]);
            }
            let is_waiting = !is_settled || !not_voting.is_empty();
            if is_founded && is_waiting && Instant::now() >= ask_at {
                is_settled = self.settle(may_begin_empty)?;
                ask_at = Instant::now() + PLANE_POLL_INTERVAL;
            }
            self.hosts()
                .iter()
                .try_for_each(|host| self.check_alive(host))?;
            if gives_up() {
                return Err(SupervisorError::Interrupted);
            }
            let lack = || {
                format!(
                    "{led} of {logs} logs have a leader, {} of {acceptors} acceptors vote; {}",
                    acceptors - not_voting.len(),
                    self.plane_in_words()
                )
            };
            if began.elapsed() >= READY_TIMEOUT {
                return Err(self.late(format!("the cluster did not come up ({})", lack())));
            }
            notice.waits_for(READY_TIMEOUT, lack);
            thread::sleep(READY_POLL_INTERVAL);
        }
    }

    fn late(&self, what: String) -> SupervisorError {
        let logs = self.dir.path().join("hosts");
        SupervisorError::Late {
            what,
            limit_s: READY_TIMEOUT.as_secs(),
            logs,
        }
    }

    pub(super) fn check_alive(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        if host.process.state().0 != Process::Ended {
            return Ok(());
        }
        let (_, last_exit) = host.process.restarts();
        let how = last_exit.unwrap_or_else(|| "stopped".to_owned());
        let log = host.log();
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = one_line(&lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n"));
        Err(SupervisorError::HostFailed {
            host: host.plan.name.clone(),
            how,
            log,
            tail,
        })
    }

    /// After a failed start: if no replica has advanced, no client can have received an answer, and the next start need
    /// not be told to accept a loss. The epoch stays used.
    fn take_start_back(&self) {
        let mut record = lock(&self.record);
        if record.durability == Durability::Sync {
            return; // votes may be in journals; the next start goes on in this epoch
        }
        let before: Vec<u64> = record.first_instances.iter().map(|i| i - 1).collect();
        let has_not_moved = |at: Vec<u64>| {
            at.len() == before.len() && at.iter().zip(&before).all(|(at, before)| at <= before)
        };
        let is_replica = |host: &&HostRecord| host.roles.contains(&Role::Replica);
        let unmoved = record.hosts.iter().filter(is_replica).all(|host| {
            let data = self.dir.replica_data(&host.name);
            let at = || inspect(&self.spec.program, &host.name, &data);
            holds_nothing(&data[0]) || at().is_ok_and(has_not_moved)
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

/// The replica was stopped before it had begun its store: its directory is empty or not there.
fn holds_nothing(data: &Path) -> bool {
    match fs::read_dir(data) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Names of the acceptors that do not vote in all logs.
pub(super) fn acceptors_not_voting<'h>(
    hosts: &'h [Arc<HostRuntime>],
    statuses: &[Option<HostStatus>],
) -> Vec<&'h str> {
    let votes = |status: &HostStatus| {
        !status.acceptors.is_empty() && status.acceptors.iter().all(|a| a.voting)
    };
    names_without(hosts, statuses, Role::Acceptor, votes)
}

/// Names of the replicas that may not have applied everything that was decided.
fn replicas_catching_up<'h>(
    hosts: &'h [Arc<HostRuntime>],
    statuses: &[Option<HostStatus>],
) -> Vec<&'h str> {
    let is_up_to_date = |status: &HostStatus| {
        let replica = status.replica.as_ref();
        replica.is_some_and(|replica| !replica.catching_up)
    };
    names_without(hosts, statuses, Role::Replica, is_up_to_date)
}

/// Names of the hosts with a role that do not answer, or whose status does not satisfy a condition.
fn names_without<'h>(
    hosts: &'h [Arc<HostRuntime>],
    statuses: &[Option<HostStatus>],
    role: Role,
    is_satisfied: impl Fn(&HostStatus) -> bool,
) -> Vec<&'h str> {
    let pairs = hosts.iter().zip(statuses);
    let with_role = pairs.filter(|(host, _)| host.plan.has(role));
    let lacking = with_role.filter(|(_, status)| !status.as_ref().is_some_and(&is_satisfied));
    lacking.map(|(host, _)| host.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptors_with_a_journal_run_in_user_space() {
        let xdp = |roles: &[Role], durability| dataplane_of(roles, Dataplane::Xdp, durability);
        let acceptor = [Role::Acceptor, Role::Controller];
        assert_eq!(xdp(&acceptor, Durability::Memory), Dataplane::Xdp);
        assert_eq!(xdp(&acceptor, Durability::Sync), Dataplane::Udp);
        // The leader beside it is in the kernel.
        let both = [Role::Acceptor, Role::Leader];
        assert_eq!(xdp(&both, Durability::Sync), Dataplane::Xdp);
        assert_eq!(xdp(&[Role::Replica], Durability::Sync), Dataplane::Xdp);
        let controller = [Role::Controller];
        assert_eq!(xdp(&controller, Durability::Sync), Dataplane::Xdp);
    }
}
