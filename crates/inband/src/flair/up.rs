//! `inband flair up`: a whole FLAIR cluster on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_flair::config::Balance;
use inband_kv::access::Access;
use inband_lab::signals::StopSignals;
use inband_lab::supervisor::remote::{leave_terminal, spawn_until};
use inband_paxos::config::Dataplane;

use super::cluster::{Cluster, FlairSpec};
use super::status::ClusterStatus;
use super::{operate, remote, DEFAULT_DATA};
use crate::client::{Answer, Client};

const SELF_CHECK_ROUNDS: usize = 200;
const SELF_CHECK_LIMIT: Duration = Duration::from_secs(10);
const SELF_CHECK_KEY: &str = "inband:self-check";
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Options of `inband flair up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Storage nodes, 1 to 8.
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
    /// How reads are spread over consistent replicas: random, leader-avoidance or load; with
    /// leader they are not.
    #[arg(long, default_value_t)]
    balance: Balance,
    /// Time between two heartbeats of leader and switch.
    #[arg(long, default_value_t = 10, value_name = "MS")]
    heartbeat_ms: u64,
    /// A switch that has no heartbeat for this long serves no more; the leader then takes another.
    #[arg(long, default_value_t = 50, value_name = "MS")]
    step_down_ms: u64,
    /// Directory for sockets and logs. The data are in the replicas' memory.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Where Redis clients connect.
    #[arg(long, default_value = "127.0.0.1:6479", value_name = "ADDR:PORT")]
    resp: SocketAddr,
    /// Run in the background; stop with `inband flair down`.
    #[arg(long)]
    detach: bool,
    /// Set for the background process that --detach starts.
    #[arg(long, hide = true)]
    detached: bool,
}

impl UpArgs {
    fn spec(&self) -> Result<FlairSpec> {
        Ok(FlairSpec {
            program: std::env::current_exe().context("finding this program")?,
            data: self.data.clone(),
            replicas: self.replicas,
            switches: self.switches,
            groups: self.groups,
            balance: self.balance,
            heartbeat_ms: self.heartbeat_ms,
            step_down_ms: self.step_down_ms,
            dataplane: self.dataplane,
            resp: self.resp,
        })
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
        show_start(&cluster.status())?;
        println!("Ctrl-C stops it. The data are in the replicas' memory: they survive any minority of them, not the end.");
    }
    while !signals.wait(WATCH_INTERVAL) && !cluster.wait_for_end(WATCH_INTERVAL) {}
    println!("stopped");
    Ok(())
}

fn up_detached(args: &UpArgs) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    // The same options, but in the background process.
    command
        .args(std::env::args_os().skip(1).filter(|a| a != "--detach"))
        .arg("--detached");
    let status = spawn_until(command, &args.data, |pid| {
        let status = remote::status(&args.data).ok();
        status.filter(|status| status.supervisor_pid == pid)
    })?;
    // The dataplane and why.
    let said = std::fs::read_to_string(args.data.join("up.log")).unwrap_or_default();
    said.lines().take(1).for_each(|line| println!("{line}"));
    show_start(&status)?;
    println!("It runs in the background; `inband flair down` stops it.");
    Ok(())
}

fn show_start(status: &ClusterStatus) -> Result<()> {
    operate::print(status);
    let (set, get) = self_check(status.resp).context("self-check: FLAIR does not serve")?;
    println!(
        "self-check: SET and GET agree; medians of {SELF_CHECK_ROUNDS}: SET {:.0} us, GET {:.0} us (client, gateway, switch, replica)",
        set.as_nanos() as f64 / 1000.0,
        get.as_nanos() as f64 / 1000.0
    );
    println!(
        "ready: redis-cli -h {} -p {}",
        status.resp.ip(),
        status.resp.port()
    );
    println!("try:   inband flair status | inband flair kill switch | inband flair kill leader");
    Ok(())
}

/// SET and GET over a real socket; the median times.
fn self_check(resp: SocketAddr) -> Result<(Duration, Duration)> {
    let mut client = Client::connect_with(&Access::default(), resp, SELF_CHECK_LIMIT)?;
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
