//! `inband up`: a whole cluster on this machine.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::Args;
use inband_cluster::paxos::control::instances;
use inband_cluster::paxos::supervisor::remote;
use inband_cluster::paxos::{
    AcceptorChoice, ClusterSpec, ClusterStatus, DownReport, LeaderLayout, Supervisor,
};
use inband_host::output::quoted;
use inband_host::program;
use inband_host::signals::StopSignals;
use inband_paxos::config::{bounds, Dataplane, Durability, Role, DEFAULT_RING_SLOTS};

use inband_cluster::certificates::authority;
use inband_kv::access::Access;
use inband_resp::password::Password;

use crate::{grammar, operate};
use inband_cluster::background;
use inband_cluster::client::Client;
use inband_cluster::console::{Console, ConsoleArgs};
use inband_cluster::listeners::parse_address;

/// Default directory of a cluster.
pub const DEFAULT_DATA: &str = ".inband";
/// If a stop is refused because it would lose writes, another signal within this time stops the cluster in any case.
const AGAIN_LIMIT: Duration = Duration::from_secs(30);
const SELF_CHECK_SETS: usize = 200;
/// Keys of the command over several partitions.
const SELF_CHECK_KEYS: usize = 16;
const SELF_CHECK_LIMIT: Duration = Duration::from_secs(10);
const SELF_CHECK_KEY: &str = "inband:self-check";

/// Options of `inband up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Acceptors: a number, or backends with numbers, such as xdp:2,udp:1.
    #[arg(long, default_value = "3", value_name = "N|BACKEND:N,...")]
    acceptors: AcceptorChoice,
    /// Replicas of the store. Each is also a backup leader.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Where the packet roles run: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Partitions of the key space, each with its own log, leader and store. Keys are distributed by their Redis
    /// Cluster hash slot modulo this number. It is fixed at the first start.
    #[arg(long, default_value_t = 1, value_name = "P")]
    partitions: u32,
    /// Hosts that only lead. The leaders of the partitions are distributed over them and the replicas.
    #[arg(long, default_value_t = 1, value_name = "N")]
    leaders: usize,
    /// Put the first leader on the host of acceptor/0 instead of a separate host.
    #[arg(long, conflicts_with = "leaders")]
    leader_with_acceptor: bool,
    /// Hosts that only store the cluster's configuration. By default the hosts of up to five acceptors do so.
    #[arg(long, default_value_t = 0, value_name = "N")]
    controllers: usize,
    /// Directory of the cluster; its data survives `inband down` and `inband up`. Additional directories, for example
    /// on other disks, hold a share of the partitions.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR[,DIR...]", value_delimiter = ',')]
    data: Vec<PathBuf>,
    /// Client address (RESP). Replica i is also reachable individually, at the port plus 1 plus i.
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "ADDR:PORT", value_parser = parse_address::<6379>)]
    resp: SocketAddr,
    /// Answer cluster-aware Redis clients (CLUSTER SLOTS and the like). They connect to the replicas' own ports.
    #[arg(long)]
    redis_cluster: bool,
    /// First port of /metrics on loopback: one per host, and any free port where one is in use; 0: any free ports.
    #[arg(long, default_value_t = 9464)]
    metrics_port: u16,
    /// Slots of each acceptor's ring: a power of two, 64 to 65536.
    #[arg(long, default_value_t = DEFAULT_RING_SLOTS)]
    ring_slots: u32,
    /// Additional threads of each replica, which share its work on sockets, partitions and writes, for machines with
    /// cores to spare: 0 to 64 [default: 0].
    #[arg(long, value_name = "N", value_parser = worker_threads())]
    worker_threads: Option<u32>,
    /// What votes survive: "memory" the loss of any minority of acceptors, "sync" also a power failure of all hosts.
    #[arg(long, default_value_t, value_name = "memory|sync")]
    durability: Durability,
    /// Create no key: packets of a new cluster carry no tags, and anyone who can reach its hosts can forge them.
    #[arg(long)]
    no_key: bool,
    /// Use plain TCP for checkpoints and the control plane. By default every host gets a certificate, stored in the
    /// cluster's directory, and accepts only hosts that have one.
    #[arg(long)]
    no_tls: bool,
    /// Require Redis clients to send the password in this file, which only its owner may read.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Require Redis clients to use TLS: redis-cli --tls --cacert DIR/authority/ca.pem
    #[arg(long, conflicts_with = "no_tls")]
    resp_tls: bool,
    /// Run in the background; stop with `inband down`.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    console: ConsoleArgs,
    /// Continue after an unclean stop from the most advanced replica; what only the lost acceptors knew is gone.
    #[arg(long)]
    accept_loss: bool,
    /// With --accept-loss: also when a replica's data is missing.
    #[arg(long, requires = "accept_loss")]
    accept_missing_replicas: bool,
    /// Set for the background process that --detach starts.
    #[arg(long, hide = true)]
    detached: bool,
}

/// Accepts what `host.limits.worker_threads` accepts.
fn worker_threads() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(bounds::WORKER_THREADS)
}

impl UpArgs {
    /// Requirements for Redis clients.
    fn access(&self) -> Result<Access> {
        let password = self.password_file.as_deref().map(Password::read);
        Ok(Access {
            password: password.transpose().context("--password-file")?,
            ca: self.resp_tls.then(|| authority(self.directory())),
        })
    }

    /// The console is a client, too.
    fn with_access(&self, mut console: Console) -> Console {
        if let Some(file) = &self.password_file {
            console = console.with("--password-file", file);
        }
        if self.resp_tls {
            console = console.with("--tls-ca", &authority(self.directory()));
        }
        console
    }

    /// Returns the --data option for commands for this cluster.
    fn data_option(&self) -> String {
        match self.directory().to_str() {
            // Where clusters of other systems run, commands are refused without it.
            Some(DEFAULT_DATA) if grammar::systems_that_run().len() < 2 => String::new(),
            _ => format!(" --data {}", quoted(self.directory())),
        }
    }

    fn redis_cli_options(&self) -> String {
        let tls = match self.resp_tls {
            true => format!(" --tls --cacert {}", quoted(&authority(self.directory()))),
            false => String::new(),
        };
        let password = match &self.password_file {
            Some(file) => format!(" -a \"$(cat {})\"", quoted(file)),
            None => String::new(),
        };
        tls + &password
    }

    fn spec(&self) -> Result<ClusterSpec> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut spec = ClusterSpec::new(program, self.directory());
        spec.more_data = self.data[1..].to_vec();
        spec.partitions = self.partitions;
        spec.store_memory_bytes = inband_cluster::kv::store_memory_bytes(self.partitions);
        spec.acceptors = self.acceptors.clone();
        spec.replicas = self.replicas;
        spec.dataplane = self.dataplane;
        spec.controllers = self.controllers;
        spec.resp = self.resp;
        spec.redis_cluster = self.redis_cluster;
        spec.metrics_port = self.metrics_port;
        spec.ring_slots = self.ring_slots;
        if let Some(threads) = self.worker_threads {
            spec.limits.worker_threads = threads;
        }
        spec.durability = self.durability;
        spec.authenticated = !self.no_key;
        spec.tls = !self.no_tls;
        spec.resp_tls = self.resp_tls;
        let absolute = |file: &PathBuf| std::path::absolute(file).context("--password-file");
        spec.password_file = self.password_file.as_ref().map(absolute).transpose()?;
        spec.accept_loss = self.accept_loss;
        spec.accept_missing_replicas = self.accept_missing_replicas;
        spec.leader = if self.leader_with_acceptor {
            LeaderLayout::WithAcceptor
        } else {
            LeaderLayout::OwnHosts(vec![Dataplane::Auto; self.leaders])
        };
        Ok(spec)
    }

    /// Returns the cluster's own directory.
    fn directory(&self) -> &Path {
        &self.data[0]
    }
}

/// Start, check and show a cluster, and stop it cleanly on Ctrl-C.
pub fn up(args: &UpArgs) -> Result<()> {
    // Before anything is started: the layout of a cluster is fixed by its first start.
    args.access()?;
    if args.detach {
        return up_detached(args);
    }
    if args.detached {
        inband_cluster::background::leave_terminal();
    }
    let signals = StopSignals::take()?;
    let console = args.console.find()?;
    let supervisor = Supervisor::start_unless(args.spec()?, &|| signals.wait(Duration::ZERO))?;
    for notice in supervisor.notices() {
        println!("{notice}");
    }
    let mut running = None;
    if !args.detached {
        show_start(&supervisor.status(), args)?;
        running = console.and_then(|console| args.with_access(console).start(args.directory()));
        println!("Ctrl-C stops it cleanly; the data stays.");
    }
    let report = watch(&supervisor, &signals, args);
    drop(running);
    show_end(&report)
}

fn up_detached(args: &UpArgs) -> Result<()> {
    let started = remote::spawn_detached(background::this_command()?, args.directory())?;
    started.show(|status| {
        for line in std::fs::read_to_string(args.directory().join("up.log"))
            .unwrap_or_default()
            .lines()
        {
            println!("{line}");
        }
        show_start(status, args)?;
        println!(
            "It runs in the background; `inband down{}` stops it cleanly, and the data stays.",
            args.data_option()
        );
        Ok(())
    })
}

fn show_start(status: &ClusterStatus, args: &UpArgs) -> Result<()> {
    operate::print_hosts(status);
    operate::print_logs(status);
    let median = self_check(&args.access()?, status.resp, status.partitions)
        .context("self-check: the cluster does not serve")?;
    // Those of now: members may have been added or removed since the first start.
    let replicas = status
        .hosts
        .iter()
        .filter(|host| host.roles.contains(&Role::Replica));
    println!(
        "self-check: SET and GET agree; median of {SELF_CHECK_SETS} SETs {:.0} us (client, agreement, {} stores)",
        median.as_nanos() as f64 / 1000.0,
        replicas.count()
    );
    println!(
        "ready: redis-cli -h {} -p {}{}",
        status.resp.ip(),
        status.resp.port(),
        args.redis_cli_options()
    );
    let data = args.data_option();
    // `make up` does not build it.
    let bench = match program::find("inband-bench") {
        Ok(_) => " | inband bench kv",
        Err(_) => "",
    };
    println!("try:   inband status{data} | inband kill{data} leader | inband kill{data} acceptor/1{bench}");
    Ok(())
}

fn show_end(report: &DownReport) -> Result<()> {
    match (&report.clean_at, &report.unclean_because) {
        (Some(at), _) => {
            println!("stopped cleanly at {}", instances(at));
            Ok(())
        }
        (None, why) => bail!(
            "stopped, but not cleanly: {}; the next start needs --accept-loss",
            why.as_deref().unwrap_or("no reason given")
        ),
    }
}

/// Shows live throughput until the cluster is stopped.
fn watch(supervisor: &Supervisor, signals: &StopSignals, args: &UpArgs) -> DownReport {
    let terminal = std::io::stdout().is_terminal() && !args.detached;
    let mut last = (Instant::now(), 0u64, 0u64);
    let mut refused: Option<Instant> = None;
    loop {
        if signals.wait(Duration::from_millis(500)) {
            println!("{}stopping", if terminal { "\r" } else { "" });
            let is_again = refused.is_some_and(|at| at.elapsed() < AGAIN_LIMIT);
            let stopped = match is_again {
                false => supervisor.down(),
                true => supervisor.down_with_loss(),
            };
            match stopped {
                Ok(report) => return report,
                Err(error) => {
                    let limit_s = AGAIN_LIMIT.as_secs();
                    eprintln!("inband: {error}, or with another Ctrl-C within {limit_s} s");
                    refused = Some(Instant::now());
                }
            }
        }
        if let Some(report) = supervisor.wait_for_end(Duration::from_millis(500)) {
            return report;
        }
        if args.detached {
            continue;
        }
        let status = supervisor.status();
        let (applied, commands) = operate::progress(&status);
        let seconds = last.0.elapsed().as_secs_f64();
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let line = format!(
            "{}  {applied} instances  {:.0} values/s  {:.0} commands/s",
            leaders_in_words(&status),
            rate(applied, last.1),
            rate(commands, last.2)
        );
        let idle = applied == last.1;
        last = (Instant::now(), applied, commands);
        if terminal {
            print!("\r{line}\x1b[K");
            let _ = std::io::stdout().flush();
        } else if !idle {
            println!("{line}");
        }
    }
}

fn leaders_in_words(status: &ClusterStatus) -> String {
    match &status.leaders[..] {
        [leader] => format!("leader {}", leader.as_deref().unwrap_or("none")),
        several => format!(
            "{} of {} logs have a leader",
            several.iter().flatten().count(),
            several.len()
        ),
    }
}

/// SET, GET and compare over a real socket. Returns the median time of a SET.
fn self_check(access: &Access, resp: SocketAddr, partitions: u32) -> Result<Duration> {
    let deadline = Instant::now() + SELF_CHECK_LIMIT;
    let mut client = Client::connect_with(access, resp, SELF_CHECK_LIMIT)?;
    // A cluster that has just started may still be electing its leader.
    loop {
        let reply = client.call(&["SET", SELF_CHECK_KEY, "0"])?;
        if reply == "+OK" {
            break;
        }
        ensure!(Instant::now() < deadline, "SET answered {reply:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut times = Vec::with_capacity(SELF_CHECK_SETS);
    for i in 0..SELF_CHECK_SETS {
        let value = i.to_string();
        let start = Instant::now();
        let reply = client.call(&["SET", SELF_CHECK_KEY, &value])?;
        times.push(start.elapsed());
        ensure!(reply == "+OK", "SET answered {reply:?}");
    }
    let last = (SELF_CHECK_SETS - 1).to_string();
    expect_value(&mut client, SELF_CHECK_KEY, &last)?;
    client.call(&["DEL", SELF_CHECK_KEY])?;
    if partitions > 1 {
        check_several_partitions(&mut client)?;
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// One command that writes keys in several partitions, then a read of each key.
fn check_several_partitions(client: &mut Client) -> Result<()> {
    let keys: Vec<String> = (0..SELF_CHECK_KEYS)
        .map(|i| format!("{SELF_CHECK_KEY}:{i}"))
        .collect();
    let pairs = keys.iter().flat_map(|key| [key.as_str(), "set"]);
    let reply = client.call(&["MSET"].into_iter().chain(pairs).collect::<Vec<_>>())?;
    ensure!(reply == "+OK", "MSET answered {reply:?}");
    for key in &keys {
        expect_value(client, key, "set")?;
    }
    let keys = keys.iter().map(String::as_str);
    let reply = client.call(&["DEL"].into_iter().chain(keys).collect::<Vec<_>>())?;
    let expected = format!(":{SELF_CHECK_KEYS}");
    ensure!(reply == expected, "DEL answered {reply:?}");
    Ok(())
}

fn expect_value(client: &mut Client, key: &str, expected: &str) -> Result<()> {
    let reply = client.call(&["GET", key])?;
    let length = format!("${}", expected.len());
    ensure!(reply == length, "GET {key} answered {reply:?}");
    let value = client.line()?;
    ensure!(
        value == expected,
        "GET {key} answered {value:?}, {expected:?} was set"
    );
    Ok(())
}
