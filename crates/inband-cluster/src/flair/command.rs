//! FLAIR on the command line.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::certificates::authority;
use crate::restart;
use anyhow::{ensure, Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::Args;
use inband_flair::config::Balance;
use inband_flair::limits::{REPLICAS_MAX, SETS_MAX, SWITCHES_MAX};
use inband_flair::reads::Reads;
use inband_flair::timing::{default_step_down_ms, HEARTBEAT_MS};
use inband_host::config::{Dataplane, Durability};
use inband_host::output::quoted;
use inband_host::settings::Setting;
use inband_host::text::counted;
use inband_kv::access::Access;
use inband_resp::password::Password;

use super::cluster::{Flair, FlairSpec, Security};
use super::record::Record;
use super::status::{ClusterStatus, HostEntry, SwitchStatus};
use crate::client::{Answer, Client};
use crate::command::{counters_of, SystemCommand};
use crate::host_process::Process;
use crate::keys;
use crate::listeners::parse_address;

/// Default number of key groups per set.
pub(super) const GROUPS: u32 = 4096;
const SELF_CHECK_ROUNDS: usize = 200;
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
const SELF_CHECK_KEY: &str = "inband:self-check";

#[derive(Debug, Args)]
pub struct Options {
    /// Replica sets: keys are spread over them, and each has its own leader and followers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=SETS_MAX as i64))]
    sets: u16,
    /// Storage nodes of each set, 1 to 8.
    #[arg(long, default_value_t = 3, value_parser = count(REPLICAS_MAX))]
    replicas: usize,
    /// Switches, 1 to 8; one serves, the others are standbys.
    #[arg(long, default_value_t = 2, value_parser = count(SWITCHES_MAX))]
    switches: usize,
    /// Where the switches' role runs: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Key groups that a switch distinguishes: 1 to 65536.
    #[arg(long, default_value_t = GROUPS)]
    groups: u32,
    /// How reads are answered: flair, by all consistent replicas; or, for comparison, leader (by its lease), majority
    /// (plain Raft) or follower-leases.
    #[arg(long, default_value_t)]
    reads: Reads,
    /// How reads are spread over consistent replicas: random, leader-avoidance or load.
    #[arg(long, default_value_t)]
    balance: Balance,
    /// Time between two heartbeats from the leader to the switch.
    #[arg(long, default_value_t = HEARTBEAT_MS, value_name = "MS")]
    heartbeat_ms: u64,
    /// A switch that gets no heartbeat for this long stops serving; the leader then uses another. The default is 50,
    /// and 250 with durability sync, because disks may be slow.
    #[arg(long, value_name = "MS")]
    step_down_ms: Option<u64>,
    /// What an acknowledged write survives: "memory" the loss of any minority of replicas, "sync" also that of all at
    /// once, because it is in synced logs. The default is that of the cluster in the directory, or memory.
    #[arg(long, value_name = "memory|sync")]
    durability: Option<Durability>,
    /// Start with an empty store although this directory had one that was lost: with memory when its replicas stopped,
    /// with sync when a majority of a set lost their logs.
    #[arg(long)]
    accept_loss: bool,
    /// Address for Redis clients.
    #[arg(long, default_value = "127.0.0.1:6479", value_name = "ADDR:PORT", value_parser = parse_address::<6479>)]
    resp: SocketAddr,
    /// Use no key: packets carry no tags, and anyone who can reach the hosts can forge them.
    #[arg(long)]
    no_key: bool,
    /// Let replicas talk to each other over plain TCP. By default each has a certificate, made in the cluster's
    /// directory, and accepts only peers that have one.
    #[arg(long)]
    no_tls: bool,
    /// Require the password in this file from Redis clients. The file must be readable only by its owner.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Require TLS from Redis clients: redis-cli --tls --cacert DIR/authority/ca.pem
    #[arg(long, conflicts_with = "no_tls")]
    resp_tls: bool,
}

fn count(max: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max as u64)
}

impl Options {
    fn spec(&self, data: &Path) -> Result<FlairSpec> {
        let absolute = |file: &PathBuf| std::path::absolute(file).context("--password-file");
        let was = Record::read(data)?.map(|record| record.durability());
        let durability = self.durability.or(was).unwrap_or_default();
        Ok(FlairSpec {
            program: std::env::current_exe().context("finding this program")?,
            data: data.to_owned(),
            sets: usize::from(self.sets),
            replicas: self.replicas,
            switches: self.switches,
            groups: self.groups,
            reads: self.reads,
            balance: self.balance,
            heartbeat_ms: self.heartbeat_ms,
            step_down_ms: self
                .step_down_ms
                .unwrap_or(default_step_down_ms(durability)),
            durability,
            accept_loss: self.accept_loss,
            dataplane: self.dataplane,
            resp: self.resp,
            security: Security {
                authenticated: !self.no_key,
                tls: !self.no_tls,
                resp_tls: self.resp_tls,
                password_file: self.password_file.as_ref().map(absolute).transpose()?,
            },
        })
    }

    /// Returns what Redis clients need to connect.
    fn access(&self, data: &Path) -> Result<Access> {
        let password = self.password_file.as_deref().map(Password::read);
        Ok(Access {
            password: password.transpose().context("--password-file")?,
            ca: self.resp_tls.then(|| authority(data)),
        })
    }

    fn redis_cli_options(&self, data: &Path) -> String {
        let tls = match self.resp_tls {
            true => format!(" --tls --cacert {}", quoted(&authority(data))),
            false => String::new(),
        };
        let password = match &self.password_file {
            Some(file) => format!(" -a \"$(cat {})\"", quoted(file)),
            None => String::new(),
        };
        tls + &password
    }
}

impl SystemCommand for Flair {
    const ABOUT: &'static str =
        "A store whose reads a switch spreads over all replicas that hold the last value (FLAIR)";
    const ABOUT_UP: &'static str =
        "Start replicas, switches and a gateway for Redis clients on this machine";
    const ABOUT_ROLES: &'static str =
        "leader (the replica that leads now), switch (the one that serves), follower/0 (the first replica that does not lead), replica/2, switch/1, gateway. \
         With several sets: leader/1 (of set 1), follower/1/0, replica/1/2; switch serves set 0. \
         For restart and resume, a role is the host that was killed or paused under this name";
    type Options = Options;

    fn spec(options: &Options, data: &Path) -> Result<FlairSpec> {
        options.spec(data)
    }

    /// Returns a line for the cluster, one for each set if there are several, and one for each host.
    fn in_words(status: &ClusterStatus) -> String {
        let mut text = String::new();
        let common = format!(
            "balance {}, durability {}, {}",
            status.balance, status.durability, status.network
        );
        text += &match status.sets {
            1 => format!(
                "{}; {} groups, {common}\n",
                serving(status, 0),
                status.groups
            ),
            sets => format!("{sets} sets of {} groups, {common}\n", status.groups),
        };
        for set in (0..status.sets as u16).filter(|_| status.sets > 1) {
            let _ = writeln!(text, "  set {set}: {}", serving(status, set));
        }
        let said = status.hosts.iter().filter_map(|host| host.status.as_ref());
        let packets = keys::summary(said.clone().map(|s| (s.keys.as_ref(), &s.counters)));
        let replicas = said.filter(|s| s.replica.is_some());
        let mut transports: Vec<&str> = replicas.map(|s| &s.transport[..]).collect();
        transports.dedup();
        let _ = writeln!(
            text,
            "packets: {packets}; Raft: {}",
            transports.join(" and ")
        );
        for host in &status.hosts {
            let _ = writeln!(
                text,
                "  {:<10} {:<21} {}{}",
                host.name,
                host.address.to_string(),
                in_words(host),
                restart::in_words(host.restarts, host.last_exit.as_deref())
            );
        }
        text
    }

    fn counters(status: &ClusterStatus) -> Vec<(&str, &str, u64)> {
        let hosts = status.hosts.iter();
        counters_of(hosts.filter_map(|host| Some((&host.name, &host.status.as_ref()?.counters))))
    }

    fn self_check(options: &Options, status: &ClusterStatus) -> Result<Option<String>> {
        let (set, get) = self_check(&options.access(&status.data)?, status.resp)?;
        Ok(Some(format!(
            "SET and GET agree; medians of {SELF_CHECK_ROUNDS}: SET {:.0} us, GET {:.0} us (client, gateway, switch, replica)",
            set.as_nanos() as f64 / 1000.0,
            get.as_nanos() as f64 / 1000.0
        )))
    }

    fn notice(status: &ClusterStatus) -> String {
        status.notice.clone()
    }

    fn next_steps(options: &Options, status: &ClusterStatus, data: &Path) -> String {
        let (data, quoted) = (data, quoted(data));
        let leader = if status.sets == 1 {
            "leader"
        } else {
            "leader/0"
        };
        format!(
            "ready: redis-cli -h {} -p {}{}\n\
             try:   inband status --data {quoted} | inband kill switch --data {quoted} | inband kill {leader} --data {quoted}\n",
            status.resp.ip(),
            status.resp.port(),
            options.redis_cli_options(data),
        )
    }

    fn settings(data: &Path) -> Result<Vec<Setting>> {
        super::settings::in_directory(data)
    }

    fn what_stays(status: &ClusterStatus) -> &'static str {
        match status.durability {
            Durability::Memory => {
                "The data is in the replicas' memory: it survives the loss of any minority of them, and is gone when the cluster stops."
            }
            Durability::Sync => {
                "The data stays in the replicas' logs; the next `inband up flair` continues with it."
            }
        }
    }

    fn what_stayed(status: &ClusterStatus) -> &'static str {
        match status.durability {
            Durability::Memory => "what it stored was in memory and is gone",
            Durability::Sync => "its data stays, and the next `inband up flair` continues with it",
        }
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
        (Process::Paused, _) => "paused".into(),
        (Process::Killed, _) => "killed".into(),
        (Process::Ended, _) => "exited unexpectedly; see its log".into(),
        (Process::Running, None) => "does not answer".into(),
        (Process::Running, Some(status)) => {
            if let Some(replica) = &status.replica {
                let part = match (replica.leads(), status.votes()) {
                    (true, _) => "leads",
                    (false, true) => "follows",
                    (false, false) => "does not vote yet",
                };
                let disk = match replica.disk_is_full {
                    true => "disk full, acknowledges nothing until there is room: ",
                    false => "",
                };
                return format!(
                    "{disk}{part}, term {}, applied {}, {}",
                    replica.term,
                    replica.applied,
                    counted(replica.keys as u64, "key")
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

/// Runs SET and GET over a real socket and returns the median times.
fn self_check(access: &Access, resp: SocketAddr) -> Result<(Duration, Duration)> {
    let mut client = Client::connect_with(access, resp, SELF_CHECK_TIMEOUT)?;
    let (mut sets, mut gets) = (Vec::new(), Vec::new());
    for i in 0..SELF_CHECK_ROUNDS {
        let value = i.to_string();
        let began = Instant::now();
        let reply = client.call(&["SET", SELF_CHECK_KEY, &value])?;
        sets.push(began.elapsed());
        ensure!(reply == "+OK", "SET answered {reply:?}");
        let began = Instant::now();
        let answer = client.ask(&["GET", SELF_CHECK_KEY])?;
        gets.push(began.elapsed());
        ensure!(
            answer == Answer::Text(value.clone()),
            "GET after SET {value} answered {answer:?}"
        );
    }
    client.call(&["DEL", SELF_CHECK_KEY])?;
    sets.sort_unstable();
    gets.sort_unstable();
    Ok((sets[sets.len() / 2], gets[gets.len() / 2]))
}
