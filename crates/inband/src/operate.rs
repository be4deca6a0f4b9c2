//! `inband status`, `down`, `kill`, `restart`, `pause`, `resume`: talk to a running `inband up`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use inband_cluster::background;
use inband_cluster::command::StatusForm;
use inband_cluster::link;
use inband_cluster::paxos::cluster_dir::ClusterDir;
use inband_cluster::paxos::control::{self, instances, log_label, HostRequest, HostStatus};
use inband_cluster::paxos::supervisor::remote::{self, SupervisorReply, SupervisorRequest};
use inband_cluster::paxos::supervisor::ProcessState;
use inband_cluster::paxos::ClusterStatus;
use inband_cluster::restart::in_words;
use inband_host::text::counted;
use inband_kv::limits::CLOCK_SKEW_MS_MAX;
use inband_paxos::config::{Config, Role};

use crate::key;
use crate::member;
use crate::up::DEFAULT_DATA;

/// Time limit for a host to report its status.
const HOST_STATUS_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for a host to decide what it has taken, or to sync its store.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// Options of commands about the whole cluster.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Directory of the cluster [default: of the one that runs in the default directory of its system, .inband or
    /// .inband-SYSTEM]
    #[arg(long, default_value = DEFAULT_DATA, hide_default_value = true, value_name = "DIR")]
    data: PathBuf,
}

/// Options of `inband down`.
#[derive(Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Stop also if writes are lost that clients were told are done: those that a replica cannot write, because its disk is
    /// full, and that otherwise only acceptors have, in memory.
    #[arg(long)]
    accept_loss: bool,
}

/// Options of `inband status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// A host of `inband run` on this machine, given its configuration, and the members of its cluster.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    config: Option<PathBuf>,
    #[command(flatten)]
    form: StatusForm,
}

/// Options of commands about one role.
#[derive(Debug, Args)]
pub struct RoleArgs {
    /// leader (the host that leads partition 0 now), leader:3 (of partition 3), leader:M (of the log of commands over
    /// several partitions); or a host that `inband status` shows: leader/0, acceptor/0, replica/2, ...
    role: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of `inband resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// leader (the host that was last paused under this name, whichever leads now; likewise leader:3 and leader:M), or a
    /// host that `inband status` shows: leader/0, acceptor/0, replica/2, ...
    role: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options of `inband link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[command(flatten)]
    change: link::Change,
}

/// Options of `inband restart`.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// leader (the host that was last killed or paused under this name; if there is none, the one that leads now), or a host
    /// that `inband status` shows: leader/0, acceptor/0, replica/2, ...
    #[arg(required_unless_present = "rolling")]
    role: Option<String>,
    /// Restart all hosts one after another, waiting until each takes part again, while the cluster serves: for
    /// upgrading the program.
    #[arg(long, conflicts_with = "role")]
    rolling: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Applied instances of all logs, and applied commands, at the most advanced replica.
pub fn progress(status: &ClusterStatus) -> (u64, u64) {
    let hosts = status.hosts.iter().filter_map(|h| h.status.as_ref());
    hosts.fold((0, 0), |(applied, commands), host| {
        let replica: u64 = host.replica.as_ref().map_or(0, |r| r.applied.iter().sum());
        let count = host
            .counters
            .get("kv_commands_applied")
            .copied()
            .unwrap_or(0);
        (applied.max(replica), commands.max(count))
    })
}

/// Options of `inband drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The host's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// The replica takes no more commands, and everything that it has applied is on disk.
pub fn drain(args: &DrainArgs) -> Result<()> {
    let config = Config::load(&args.config)?;
    let name = &config.this().name;
    let ask = |request| {
        control::position(&config.host.control, &request, DRAIN_LIMIT).with_context(|| {
            format!(
                "{name} is not drained ({}); run this on the host itself",
                config.host.control.display()
            )
        })
    };
    ask(HostRequest::Drain)?;
    let position = ask(HostRequest::Sync)?;
    ensure!(
        position.outstanding == 0,
        "{name} waits for {} values to be decided; run this again",
        position.outstanding
    );
    // As `inband member begin-anew --applied` takes it.
    let applied: Vec<String> = position.applied.iter().map(u64::to_string).collect();
    println!("{name}: drained and synced, applied {}", applied.join(","));
    Ok(())
}

pub fn status(args: &StatusArgs) -> Result<()> {
    if let Some(path) = &args.config {
        return host_status(path, &args.form);
    }
    let status = remote::status(&args.cluster.data)?;
    args.form.show(&status, print, print_counters)
}

/// The status of one host of `inband run`.
fn host_status(path: &Path, form: &StatusForm) -> Result<()> {
    let config = Config::load(path)?;
    let this = config.this();
    let said = control::status(&config.host.control, HOST_STATUS_LIMIT).with_context(|| {
        format!(
            "{} does not answer at {}; if it runs on this machine, its log says why: journalctl -u \
             inband",
            this.name,
            config.host.control.display()
        )
    })?;
    form.show(&said, print_host, print_counters_of)?;
    if form.json {
        return Ok(());
    }
    match member::members_in_words(&config) {
        Ok(members) => print!("{members}"),
        Err(error) => println!("members: {error:#}"),
    }
    Ok(())
}

fn print_host(said: &HostStatus) {
    let state = if said.stopping { "stopping" } else { "running" };
    println!(
        "{}  {state}  version {}  epoch {}  durability {}  TCP {}",
        said.name, said.version, said.epoch, said.durability, said.transport
    );
    let backends: Vec<String> = said
        .backends
        .iter()
        .map(|(role, backend)| format!("{role} {backend}"))
        .collect();
    println!(
        "data plane: {} ({})",
        backends.join(", "),
        said.dataplane_why
    );
    let parts = parts_played(said.backends.len(), said);
    if !parts.is_empty() {
        println!("{}", parts.trim_start());
    }
}

fn print(status: &ClusterStatus) {
    println!(
        "cluster {}  epoch {}  partitions {}  durability {}  network {}  clients {}  {}",
        status.name,
        status.epoch,
        status.partitions,
        status.durability,
        status.network,
        status.resp,
        key::summary(status)
    );
    print_hosts(status);
    print_logs(status);
}

fn print_counters(status: &ClusterStatus) {
    let hosts = status.hosts.iter().filter_map(|h| h.status.as_ref());
    hosts.for_each(print_counters_of);
}

fn print_counters_of(host: &HostStatus) {
    for (name, value) in &host.counters {
        println!("{:<12} {name:<28} {value:>14}", host.name);
    }
}

/// Prints one line per host.
pub fn print_hosts(status: &ClusterStatus) {
    for host in &status.hosts {
        let state = match (&host.process, &host.status) {
            (ProcessState::Running, Some(_)) => "running".to_owned(),
            (ProcessState::Running, None) => "silent".to_owned(),
            (ProcessState::Paused, _) => "paused".to_owned(),
            (ProcessState::Killed, _) => "killed".to_owned(),
            (ProcessState::Ended { how }, _) => format!("ended ({how})"),
        };
        let mut line = format!(
            "  {:<12} {:<8} {:<12} {}",
            host.name,
            state,
            host.dataplane.to_string(),
            host.address
        );
        line += &in_words(host.restarts, host.last_exit.as_deref());
        if let Some(said) = &host.status {
            line += &parts_played(host.roles.len(), said);
        }
        if let Some(resp) = host.resp {
            line += &format!("  resp {resp}");
        }
        if let Some(metrics) = host.metrics {
            line += &format!("  http://{metrics}/metrics");
        }
        println!("{line}");
    }
}

/// Returns what a running host reports about its roles.
fn parts_played(roles: usize, said: &HostStatus) -> String {
    if said.is_removed {
        return "  in no configuration: it was removed".into();
    }
    let mut line = String::new();
    let logs = said.acceptors.len();
    match said.acceptors.iter().filter(|a| a.voting).count() {
        _ if logs == 0 => {}
        0 if said.acceptor_disk_failure.is_some() => {
            let why = said.acceptor_disk_failure.as_deref().unwrap_or_default();
            line += &format!("  DOES NOT VOTE: {why}");
        }
        0 => line += "  recovering, does not vote",
        voting if voting == logs => line += "  votes",
        voting => line += &format!("  votes in {voting} of {logs} logs"),
    }
    if let Some(replica) = &said.replica {
        let keys = counted(replica.keys, "key");
        line += &format!("  {keys}, {}", counted(replica.clients, "client"));
        let skew_ms = replica.clock_skew_ms.unwrap_or(0);
        if skew_ms.unsigned_abs() > CLOCK_SKEW_MS_MAX {
            line += &format!("  its clock is {skew_ms} ms ahead of the others'");
        }
        if replica.catching_up {
            line += "  catching up with the log";
        }
        if let Some(why) = &replica.refuses {
            line += &format!("  REFUSES: {why}");
        }
    }
    if let Some(why) = &said.key_drops {
        line += &format!("  DROPS PACKETS: {why}");
    }
    let logs = said.leaders.len();
    let led: Vec<String> = (0..logs)
        .filter(|&log| said.leaders[log].active)
        .map(|log| log_label(log, logs))
        .collect();
    match (&led[..], logs) {
        ([], 0) => {}
        ([], _) if roles > 1 => line += "  (backup leader)",
        ([], _) => {}
        (_, 1) => line += "  LEADS",
        (led, _) => line += &format!("  LEADS {}", led.join(" ")),
    }
    line
}

/// Prints one line per log, and the memory of the rings.
pub fn print_logs(status: &ClusterStatus) {
    let logs = status.leaders.len();
    println!(
        "  {:<9} {:<12} {:>10} {:>12} {:>12}  {:<38}  applied by replicas",
        "partition", "leader", "epoch", "next", "floor", "highest vote of acceptors"
    );
    for log in 0..logs {
        let leader = status.leader(log);
        let host = status
            .hosts
            .iter()
            .find(|h| Some(h.name.as_str()) == leader);
        let said = host.and_then(|h| h.status.as_ref());
        let registers = said.and_then(|s| s.leaders.get(log));
        let or_dash = |value: Option<u64>| value.map_or("-".to_owned(), |v| v.to_string());
        println!(
            "  {:<9} {:<12} {:>10} {:>12} {:>12}  {:<38}  {}",
            log_label(log, logs),
            leader.unwrap_or("none"),
            or_dash(said.map(|s| u64::from(s.epoch))),
            or_dash(registers.map(|r| r.next_instance)),
            or_dash(registers.map(|r| r.floor)),
            each(status, Role::Acceptor, |s| Some(
                s.acceptors.get(log)?.highest_voted
            )),
            each(status, Role::Replica, |s| s
                .replica
                .as_ref()?
                .applied
                .get(log)
                .copied()),
        );
    }
    println!(
        "  rings: {:.1} MiB in each acceptor (logs: {logs}, slots of each: {})",
        status.acceptor_rings_bytes as f64 / f64::from(1 << 20),
        status.ring_slots
    );
}

/// Returns a number for each host with a role, in order.
fn each(status: &ClusterStatus, role: Role, number: impl Fn(&HostStatus) -> Option<u64>) -> String {
    let hosts = status.hosts.iter().filter(|h| h.roles.contains(&role));
    let numbers: Vec<String> = hosts
        .map(|h| h.status.as_ref().and_then(&number))
        .map(|n| n.map_or("-".to_owned(), |n| n.to_string()))
        .collect();
    numbers.join(" ")
}

pub fn down(args: &DownArgs) -> Result<()> {
    let data = &args.cluster.data;
    let supervisor = remote::status(data)?.supervisor_pid;
    let report = remote::down(data, args.accept_loss)?;
    // Only when the supervisor has exited are namespaces and ports free for the next `up`.
    let is_free = || ClusterDir::is_free(data);
    background::wait_for_end(data, supervisor, is_free)?;
    match (report.clean_at, report.unclean_because) {
        (Some(at), _) => println!("stopped cleanly at {}", instances(&at)),
        (None, why) => bail!(
            "stopped, but not cleanly: {}; the next start needs --accept-loss",
            why.unwrap_or_default()
        ),
    }
    Ok(())
}

fn act(
    args: &RoleArgs,
    done: &str,
    request: impl FnOnce(String) -> SupervisorRequest,
) -> Result<()> {
    let host = ask(&args.cluster, &request(args.role.clone()))?;
    println!("{host} {done}");
    Ok(())
}

/// Asks the supervisor to act on a host. Returns the host's name.
fn ask(cluster: &ClusterArgs, request: &SupervisorRequest) -> Result<String> {
    match remote::ask(&cluster.data, request)? {
        SupervisorReply::Done { host } => Ok(host),
        SupervisorReply::Error { message } => bail!(message),
        _ => {
            bail!(
                "the supervisor's reply is to another request; do both sides run the same version?"
            )
        }
    }
}

pub fn kill(args: &RoleArgs) -> Result<()> {
    act(args, "killed", |role| SupervisorRequest::Kill { role })
}

pub fn restart(args: &RestartArgs) -> Result<()> {
    let Some(role) = &args.role else {
        return roll(&args.cluster);
    };
    let host = ask(
        &args.cluster,
        &SupervisorRequest::Restart { role: role.clone() },
    )?;
    println!("{host} restarted");
    let status = remote::status(&args.cluster.data)?;
    let entry = status.hosts.iter().find(|entry| entry.name == host);
    let acceptors = entry.and_then(|entry| Some(&entry.status.as_ref()?.acceptors));
    if acceptors.is_some_and(|acceptors| acceptors.iter().any(|a| !a.voting)) {
        println!(
            "it does not vote yet; if its votes are lost, it first copies those of the others: see `inband \
             member list`"
        );
    }
    Ok(())
}

/// Restarts all hosts, waiting for each to take part again before the next one.
fn roll(cluster: &ClusterArgs) -> Result<()> {
    let hosts = remote::status(&cluster.data)?.hosts;
    for (i, host) in hosts.iter().enumerate() {
        let started = Instant::now();
        let host = ask(
            cluster,
            &SupervisorRequest::Roll {
                host: host.name.clone(),
            },
        )?;
        println!(
            "{} of {}: {host} restarted and back after {:.1} s",
            i + 1,
            hosts.len(),
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

pub fn pause(args: &RoleArgs) -> Result<()> {
    act(args, "paused: its packets are held", |role| {
        SupervisorRequest::Pause { role }
    })
}

pub fn link(args: &LinkArgs) -> Result<()> {
    let change = args.change.clone();
    act(&args.role, &change.in_words(), |role| {
        SupervisorRequest::Link { role, change }
    })
}

pub fn resume(args: &ResumeArgs) -> Result<()> {
    let role = args.role.clone();
    let host = ask(&args.cluster, &SupervisorRequest::Resume { role })?;
    println!("{host} resumed: its packets are released");
    Ok(())
}
