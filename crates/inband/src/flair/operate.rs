//! `inband status`, `kill`, `restart`, `down`: talk to a running `inband up flair`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use inband_lab::restart;
use inband_paxos::config::Durability;

use crate::key;
use crate::operate::StatusForm;
use inband_cluster::background;
use inband_cluster::flair::remote::{self, Reply, Request};
use inband_cluster::flair::status::{ClusterStatus, HostEntry, SwitchStatus};
use inband_cluster::flair::DEFAULT_DATA;
use inband_cluster::host_process::Process;
use inband_cluster::socket::{socket_in, unexpected};

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
    #[command(flatten)]
    form: StatusForm,
}

/// Options of commands about one role.
#[derive(Debug, Args)]
pub struct RoleArgs {
    /// leader, switch (the one that serves), follower/0 (the first replica that does not lead), replica/2,
    /// switch/1, gateway. With several sets: leader/1 (of set 1), follower/1/0, replica/1/2; switch serves set 0.
    role: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// `inband status`.
pub fn status(args: &StatusArgs) -> Result<()> {
    let status = remote::status(&args.cluster.data)?;
    args.form.show(&status, print, print_counters)
}

fn print_counters(status: &ClusterStatus) {
    for host in &status.hosts {
        for (name, value) in host.status.iter().flat_map(|s| &s.counters) {
            println!("  {:<10} {name:<32} {value}", host.name);
        }
    }
}

/// A line for the cluster, one for each set if there are several, and one for each host.
pub fn print(status: &ClusterStatus) {
    let common = format!(
        "balance {}, durability {}, {}",
        status.balance, status.durability, status.network
    );
    match status.sets {
        1 => println!("{}; {} groups, {common}", serving(status, 0), status.groups),
        sets => {
            println!("{sets} sets of {} groups, {common}", status.groups);
            (0..sets as u16).for_each(|set| println!("  set {set}: {}", serving(status, set)));
        }
    }
    let said = status.hosts.iter().filter_map(|host| host.status.as_ref());
    let packets = key::summary_of(said.clone().map(|s| (s.keys.as_ref(), &s.counters)));
    let replicas = said.filter(|s| s.replica.is_some());
    let mut transports: Vec<&str> = replicas.map(|s| &s.transport[..]).collect();
    transports.dedup();
    println!("packets: {packets}; Raft: {}", transports.join(" and "));
    for host in &status.hosts {
        println!(
            "  {:<10} {:<21} {}{}",
            host.name,
            host.address.to_string(),
            in_words(host),
            restart::in_words(host.restarts, host.last_exit.as_deref())
        );
    }
}

fn serving(status: &ClusterStatus, set: u16) -> String {
    match (status.leader_of(set), status.switch_of(set)) {
        (Some((leader, replica)), Some(switch)) => format!(
            "session {} of {} on {}",
            replica.serving.map_or(0, |(session, _)| session),
            leader.name,
            switch.name
        ),
        (Some((leader, _)), None) => format!("{} leads, no session serves", leader.name),
        (None, _) => "no replica leads".into(),
    }
}

fn in_words(host: &HostEntry) -> String {
    match (host.process, &host.status) {
        (Process::Killed, _) => "killed".into(),
        (Process::Ended, _) => "ended by itself; see its log".into(),
        (Process::Running, None) => "does not answer".into(),
        (Process::Running, Some(status)) => {
            if let Some(replica) = &status.replica {
                let part = if replica.leads() { "leads" } else { "follows" };
                return format!(
                    "{part}, term {}, applied {}, {} keys",
                    replica.term, replica.applied, replica.keys
                );
            }
            match &status.sessions[..] {
                [] if host.name.starts_with("switch/") => "starting".into(),
                [] => "Redis clients".into(),
                sessions => sessions_in_words(&status.backend, sessions),
            }
        }
    }
}

fn sessions_in_words(backend: &str, sessions: &[SwitchStatus]) -> String {
    let serves = sessions.iter().any(|session| session.active);
    let part = if serves { "serves" } else { "waits" };
    let ids: Vec<String> = sessions.iter().map(|s| s.session.to_string()).collect();
    let unstable_groups: u64 = sessions.iter().map(|s| s.unstable_groups).sum();
    let session = if ids.len() == 1 {
        "session"
    } else {
        "sessions"
    };
    let ids = ids.join(" ");
    format!("{part} ({backend}), {session} {ids}, {unstable_groups} groups unstable")
}

/// `inband kill`.
pub fn kill(args: &RoleArgs) -> Result<()> {
    let role = args.role.clone();
    println!("killed {}", done(args, &Request::Kill { role })?);
    Ok(())
}

/// `inband restart`.
pub fn restart(args: &RoleArgs) -> Result<()> {
    let role = args.role.clone();
    println!("restarted {}", done(args, &Request::Restart { role })?);
    Ok(())
}

fn done(args: &RoleArgs, request: &Request) -> Result<String> {
    match remote::ask(&args.cluster.data, request)? {
        Reply::Done { host } => Ok(host),
        other => unexpected(&other),
    }
}

/// `inband down`.
pub fn down(args: &ClusterArgs) -> Result<()> {
    let durability = remote::status(&args.data)?.durability;
    remote::ask(&args.data, &Request::Down)?;
    background::wait_for_end(&args.data, &socket_in(&args.data));
    println!(
        "stopped; {}",
        match durability {
            Durability::Memory => "what it stored was in memory and is gone",
            Durability::Sync => "its data stay, and the next `inband up flair` goes on with them",
        }
    );
    Ok(())
}
