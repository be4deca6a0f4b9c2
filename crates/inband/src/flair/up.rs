//! `inband up flair`: a whole FLAIR cluster on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_flair::config::Balance;
use inband_flair::limits::SETS_MAX;
use inband_flair::reads::Reads;
use inband_host::output::quoted;
use inband_host::signals::StopSignals;
use inband_kv::access::Access;
use inband_lab::certificates::authority;
use inband_lab::supervisor::remote::{leave_terminal, spawn_until};
use inband_paxos::config::{Dataplane, Durability};
use inband_resp::password::Password;

use super::operate;
use inband_cluster::background;
use inband_cluster::client::{Answer, Client};
use inband_cluster::flair::cluster::{Cluster, FlairSpec, Security};
use inband_cluster::flair::record::Record;
use inband_cluster::flair::status::ClusterStatus;
use inband_cluster::flair::{remote, DEFAULT_DATA};

const SELF_CHECK_ROUNDS: usize = 200;
const SELF_CHECK_LIMIT: Duration = Duration::from_secs(10);
const SELF_CHECK_KEY: &str = "inband:self-check";
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
const STEP_DOWN_MS: u64 = 50;
const SYNC_STEP_DOWN_MS: u64 = 250;

/// Options of `inband up flair`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Replica sets: keys are spread over them, and each has a leader and followers of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=SETS_MAX as i64))]
    sets: u16,
    /// Storage nodes of each set, 1 to 8.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Switches; one serves, the others wait for it to fail.
    #[arg(long, default_value_t = 2)]
    switches: usize,
    /// Where the switches' role runs: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Key groups that a switch tells apart: a power of two.
    #[arg(long, default_value_t = 4096)]
    groups: u32,
    /// How reads are answered: flair, by all consistent replicas; or, to measure it against, leader
    /// (by its lease), majority (plain Raft) or follower-leases.
    #[arg(long, default_value_t)]
    reads: Reads,
    /// How reads are spread over consistent replicas: random, leader-avoidance or load.
    #[arg(long, default_value_t)]
    balance: Balance,
    /// Time between two heartbeats of leader and switch.
    #[arg(long, default_value_t = 10, value_name = "MS")]
    heartbeat_ms: u64,
    /// A switch that has no heartbeat for this long serves no more; the leader then takes another. By default 50,
    /// and 250 with durability sync: a disk may take its time.
    #[arg(long, value_name = "MS")]
    step_down_ms: Option<u64>,
    /// What an acknowledged write survives: "memory" the loss of any minority of replicas, "sync" also that of all
    /// at once: it is in synced logs. By default as the cluster in the directory was made, or memory.
    #[arg(long, value_name = "memory|sync")]
    durability: Option<Durability>,
    /// Directory for sockets and logs; with durability sync for the data, else they are in the replicas' memory.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Where Redis clients connect.
    #[arg(long, default_value = "127.0.0.1:6479", value_name = "ADDR:PORT")]
    resp: SocketAddr,
    /// Make no key: packets carry no tags, and whoever reaches the hosts can forge them.
    #[arg(long)]
    no_key: bool,
    /// Replicas talk to each other over plain TCP. Else each has a certificate, made in the cluster's directory,
    /// and listens to no others.
    #[arg(long)]
    no_tls: bool,
    /// Redis clients must say the password in this file, which only its owner may read.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Redis clients must speak TLS: redis-cli --tls --cacert DIR/authority/ca.pem
    #[arg(long, conflicts_with = "no_tls")]
    resp_tls: bool,
    /// Run in the background; stop with `inband down`.
    #[arg(long)]
    detach: bool,
    /// Set for the background process that --detach starts.
    #[arg(long, hide = true)]
    detached: bool,
}

impl UpArgs {
    fn spec(&self) -> Result<FlairSpec> {
        let absolute = |file: &PathBuf| std::path::absolute(file).context("--password-file");
        let was = Record::read(&self.data)?.map(|record| record.durability());
        let durability = self.durability.or(was).unwrap_or_default();
        Ok(FlairSpec {
            program: std::env::current_exe().context("finding this program")?,
            data: self.data.clone(),
            sets: usize::from(self.sets),
            replicas: self.replicas,
            switches: self.switches,
            groups: self.groups,
            reads: self.reads,
            balance: self.balance,
            heartbeat_ms: self.heartbeat_ms,
            step_down_ms: self.step_down_ms.unwrap_or(match durability {
                Durability::Memory => STEP_DOWN_MS,
                Durability::Sync => SYNC_STEP_DOWN_MS,
            }),
            durability,
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

    /// What Redis clients must do.
    fn access(&self) -> Result<Access> {
        let password = self.password_file.as_deref().map(Password::read);
        Ok(Access {
            password: password.transpose().context("--password-file")?,
            ca: self.resp_tls.then(|| authority(&self.data)),
        })
    }

    fn redis_cli_options(&self) -> String {
        let tls = match self.resp_tls {
            true => format!(" --tls --cacert {}", quoted(&authority(&self.data))),
            false => String::new(),
        };
        let password = match &self.password_file {
            Some(file) => format!(" -a \"$(cat {})\"", quoted(file)),
            None => String::new(),
        };
        tls + &password
    }
}

/// Start, check, show, and end at Ctrl-C.
pub fn up(args: &UpArgs) -> Result<()> {
    if args.detach {
        return up_detached(args);
    }
    if args.detached {
        leave_terminal();
    }
    let signals = StopSignals::take()?;
    let cluster = Cluster::start(args.spec()?)?;
    println!("{}", cluster.notice());
    if !args.detached {
        show_start(&cluster.status(), args)?;
        println!(
            "Ctrl-C stops it. {}",
            what_stays(cluster.status().durability)
        );
    }
    while !signals.wait(WATCH_INTERVAL) && !cluster.wait_for_end(WATCH_INTERVAL) {}
    println!("stopped");
    Ok(())
}

fn up_detached(args: &UpArgs) -> Result<()> {
    let status = spawn_until(background::this_command()?, &args.data, |pid| {
        let status = remote::status(&args.data).ok();
        status.filter(|status| status.supervisor_pid == pid)
    })?;
    // The dataplane and why.
    let said = std::fs::read_to_string(args.data.join("up.log")).unwrap_or_default();
    said.lines().take(1).for_each(|line| println!("{line}"));
    show_start(&status, args)?;
    println!(
        "It runs in the background; `inband down --data {}` stops it. {}",
        quoted(&args.data),
        what_stays(status.durability)
    );
    Ok(())
}

fn show_start(status: &ClusterStatus, args: &UpArgs) -> Result<()> {
    operate::print(status);
    let (set, get) =
        self_check(&args.access()?, status.resp).context("self-check: FLAIR does not serve")?;
    println!(
        "self-check: SET and GET agree; medians of {SELF_CHECK_ROUNDS}: SET {:.0} us, GET {:.0} us (client, gateway, switch, replica)",
        set.as_nanos() as f64 / 1000.0,
        get.as_nanos() as f64 / 1000.0
    );
    println!(
        "ready: redis-cli -h {} -p {}{}",
        status.resp.ip(),
        status.resp.port(),
        args.redis_cli_options()
    );
    let data = quoted(&args.data);
    println!("try:   inband status --data {data} | inband kill switch --data {data} | inband kill leader --data {data}");
    Ok(())
}

/// What becomes of the data when all hosts end.
pub fn what_stays(durability: Durability) -> &'static str {
    match durability {
        Durability::Memory => {
            "The data are in the replicas' memory: they survive any minority of them, not the end."
        }
        Durability::Sync => {
            "The data stay in the replicas' logs; the next `inband up flair` goes on with them."
        }
    }
}

/// SET and GET over a real socket; the median times.
fn self_check(access: &Access, resp: SocketAddr) -> Result<(Duration, Duration)> {
    let mut client = Client::connect_with(access, resp, SELF_CHECK_LIMIT)?;
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
