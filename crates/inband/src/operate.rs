//! `inband status`, `down`, `kill`, `restart`, `pause`, `resume`: talk to a running `inband up`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use clap::Args;
use inband_lab::supervisor::remote::{self, SupervisorReply, SupervisorRequest};
use inband_lab::supervisor::ProcessState;
use inband_lab::ClusterStatus;

use crate::up::DEFAULT_DATA;

/// How long the supervisor may take to remove what it made after a stop.
const SUPERVISOR_END_LIMIT: Duration = Duration::from_secs(10);

/// Options of commands about the whole cluster.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Directory of the cluster.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
}

/// Options of `inband status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Everything, as one JSON object.
    #[arg(long)]
    json: bool,
    /// Also every counter.
    #[arg(long, conflicts_with = "json")]
    counters: bool,
}

/// Options of commands about one role.
#[derive(Debug, Args)]
pub struct RoleArgs {
    /// leader (whoever leads now), acceptor/0, replica/2, ...
    role: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Instances applied and commands applied, at the most advanced replica.
pub fn progress(status: &ClusterStatus) -> (u64, u64) {
    let hosts = status.hosts.iter().filter_map(|h| h.status.as_ref());
    hosts.fold((0, 0), |(applied, commands), host| {
        let replica = host.replica.map_or(0, |r| r.applied);
        let count = host
            .counters
            .get("kv_commands_applied")
            .copied()
            .unwrap_or(0);
        (applied.max(replica), commands.max(count))
    })
}

/// `inband status`.
pub fn status(args: &StatusArgs) -> Result<()> {
    let status = remote::status(&args.cluster.data)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    println!(
        "cluster {}  epoch {}  durability {}  network {}  clients {}",
        status.name, status.epoch, status.durability, status.network, status.resp
    );
    print_hosts(&status);
    if args.counters {
        for host in status.hosts.iter().filter_map(|h| h.status.as_ref()) {
            for (name, value) in &host.counters {
                println!("{:<12} {name:<28} {value:>14}", host.name);
            }
        }
    }
    Ok(())
}

/// A line a host.
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
        if let Some(said) = &host.status {
            if let Some(acceptor) = said.acceptor {
                let mode = if acceptor.voting {
                    "voting"
                } else {
                    "recovering, not voting"
                };
                line += &format!("  {mode}, highest vote {}", acceptor.highest_voted);
            }
            if let Some(replica) = said.replica {
                line += &format!("  applied {}, {} keys", replica.applied, replica.keys);
            }
            match said.leader {
                Some(leader) if leader.active => {
                    line += &format!(
                        "  LEADS, round {:#x}, next instance {}",
                        leader.round, leader.next_instance
                    );
                }
                Some(_) if host.roles.len() > 1 => line += "  (backup leader)",
                _ => {}
            }
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

/// `inband down`.
pub fn down(args: &ClusterArgs) -> Result<()> {
    let supervisor = remote::status(&args.data)?.supervisor_pid;
    let report = remote::down(&args.data)?;
    // Only when the supervisor is gone are namespaces and ports free for the next `up`.
    let process = PathBuf::from(format!("/proc/{supervisor}"));
    let deadline = Instant::now() + SUPERVISOR_END_LIMIT;
    while process.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    match (report.clean_at, report.unclean_because) {
        (Some(instance), _) => println!("stopped cleanly at instance {instance}"),
        (None, why) => bail!(
            "stopped, but not cleanly: {}; the next `up` will ask for --accept-loss",
            why.unwrap_or_default()
        ),
    }
    Ok(())
}

fn act(args: &RoleArgs, done: &str, request: fn(String) -> SupervisorRequest) -> Result<()> {
    match remote::ask(&args.cluster.data, &request(args.role.clone()))? {
        SupervisorReply::Done { host } => println!("{host} {done}"),
        SupervisorReply::Error { message } => bail!(message),
        SupervisorReply::Status(_) | SupervisorReply::Down(_) => {
            bail!("the supervisor answered another question; is it of the same version?")
        }
    }
    Ok(())
}

/// `inband kill`.
pub fn kill(args: &RoleArgs) -> Result<()> {
    act(args, "killed", |role| SupervisorRequest::Kill { role })
}

/// `inband restart`.
pub fn restart(args: &RoleArgs) -> Result<()> {
    act(args, "restarted", |role| SupervisorRequest::Restart {
        role,
    })?;
    if args.role.starts_with("acceptor/") {
        println!(
            "it has forgotten its votes and does not vote until the next `inband down` and `up`"
        );
    }
    Ok(())
}

/// `inband pause`.
pub fn pause(args: &RoleArgs) -> Result<()> {
    act(args, "paused: its packets are held", |role| {
        SupervisorRequest::Pause { role }
    })
}

/// `inband resume`.
pub fn resume(args: &RoleArgs) -> Result<()> {
    act(args, "resumed: its packets are released", |role| {
        SupervisorRequest::Resume { role }
    })
}
