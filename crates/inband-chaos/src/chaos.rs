//! A run starts its own cluster. Clients record every operation while a nemesis injects faults. After all faults end,
//! the cluster must serve again, all replicas must agree, and Porcupine must find the history linearizable.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use inband_box::durable::Durability as BoxDurability;
use inband_box::limits::NODE_COUNTS;
use inband_box::NODES;
use inband_cluster::paxos::{AcceptorChoice, ClusterSpec};
use inband_flair::config::Balance;
use inband_flair::reads::Reads;
use inband_host::program;
use inband_host::signals::StopSignals;
use inband_netpaxos::cluster::LEARNERS_MAX;
use inband_paxos::config::{Dataplane, Durability};
use indicatif::{ProgressBar, ProgressStyle};

use crate::checker::{self, Verdict};
use crate::fault_kind::FaultKind;
use crate::history::{About, Clock, Outcome, Summary, Writer};
use crate::nemesis::Nemesis;
use crate::subject::Subject;
use crate::workload::{Shared, Workload};
use crate::{box_cluster, flair, memory, netpaxos, paxos, report};
use inband_cluster::box_cluster::{BoxCluster, Options as BoxOptions, Spec as BoxSpec};
use inband_cluster::command::SystemCommand;
use inband_cluster::flair::cluster::{FlairSpec, Security};
use inband_cluster::memory::{Memory, Options as MemoryOptions, Spec as MemorySpec};
use inband_cluster::netpaxos::{NetPaxos, Options as NetPaxosOptions, Spec as NetPaxosSpec};
use inband_cluster::scratch::ScratchDir;
use inband_flair::timing;
use inband_testing::port::{free_ports, loopback};

/// How often to update the progress bar and check for Ctrl-C.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Small, so that slots are reused within seconds ...
const RING_SLOTS: u32 = 256;
/// ... and so that a replica that was down occasionally needs a checkpoint.
const PEER_LOG_VALUES: u32 = 512;
/// More than a cluster ever needs.
const PORTS: u16 = 64;

/// Options of `inband chaos`.
#[derive(Debug, Args)]
pub struct ChaosArgs {
    /// The kind of cluster to test.
    #[arg(value_enum, default_value_t = System::Kv)]
    system: System,
    /// How long to inject faults, in minutes.
    #[arg(long, default_value_t = 1.0, value_name = "M")]
    minutes: f64,
    /// Seed for the schedule of operations and faults; by default the current time. It does not make a run
    /// reproducible: the scheduling of processes and packets is not controlled.
    #[arg(long)]
    seed: Option<u64>,
    /// Faults to inject; "" for none. By default all that this machine and cluster support.
    #[arg(long, value_delimiter = ',', value_name = "KIND,...")]
    faults: Option<Vec<String>>,
    /// Where to write the history, the report and the pictures.
    #[arg(long, default_value = "chaos", value_name = "DIR")]
    report: PathBuf,
    /// Deprecated form of `inband chaos flair`.
    #[arg(long, hide = true)]
    flair: bool,
    /// Durability of votes, or of writes that a FLAIR replica acknowledged: memory or sync.
    #[arg(long, default_value_t, value_name = "memory|sync")]
    durability: Durability,
    /// Where the packet roles run: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Acceptors: a number, or a number per backend, as in xdp:2,udp:1.
    #[arg(long, default_value = "3", value_name = "N|BACKEND:N,...")]
    acceptors: AcceptorChoice,
    /// Number of store replicas, memory servers, box nodes or NetPaxos learners.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Number of NetPaxos' minions, each with a storage server: 4 or 7.
    #[arg(long, default_value_t = 4, value_parser = inband_cluster::netpaxos::minions, value_name = "4|7")]
    minions: u8,
    /// Number of FLAIR or memory switches.
    #[arg(long, default_value_t = 2)]
    switches: usize,
    /// How FLAIR answers reads: flair, leader, majority or follower-leases.
    #[arg(long, default_value_t)]
    reads: Reads,
    /// How FLAIR spreads reads: random, leader-avoidance or load.
    #[arg(long, default_value_t)]
    balance: Balance,
    /// Partitions of the key space.
    #[arg(long, default_value_t = 3)]
    partitions: u32,
    /// Worker threads of each replica of the store; they take part only where there are enough clients [default: 0].
    #[arg(long, value_name = "N")]
    worker_threads: Option<u32>,
    /// Clients, each with one operation at a time.
    #[arg(long, default_value_t = 12)]
    clients: usize,
    /// Maximum operations per second, all clients together.
    #[arg(long, default_value_t = 1500, value_name = "N")]
    rate: u64,
    /// Answer some reads with an older value. The run succeeds if the checker detects it.
    #[arg(long)]
    control: bool,
    /// The program to run on the hosts, such as another version or a deliberately broken one.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The checker; by default the one in the same directory as this program.
    #[arg(long, value_name = "FILE")]
    checker: Option<PathBuf>,
    /// Keep the cluster's directory, which has the logs of its hosts.
    #[arg(long)]
    keep: bool,
}

/// A kind of cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    /// The key-value store on Paxos: `inband up`.
    Kv,
    /// FLAIR replicas, switches and a gateway: `inband up flair`.
    Flair,
    /// Replicated memory, servers and switches: `inband up memory`.
    Memory,
    /// Consensus in a box: `inband up box`.
    Box,
    /// The key-value store on NetPaxos: `inband up netpaxos`.
    Netpaxos,
}

impl System {
    /// Returns the faults that it supports.
    fn faults(self) -> &'static [FaultKind] {
        match self {
            System::Kv => FaultKind::value_variants(),
            System::Flair => &flair::FAULTS,
            System::Memory => &memory::FAULTS,
            System::Box => &box_cluster::FAULTS,
            System::Netpaxos => &netpaxos::FAULTS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            System::Kv => "the store",
            System::Flair => "FLAIR",
            System::Memory => "replicated memory",
            System::Box => "consensus in a box",
            System::Netpaxos => "NetPaxos",
        }
    }
}

/// What a run found.
pub struct Findings {
    pub about: About,
    pub summary: Summary,
    pub verdict: Verdict,
    /// How long the cluster took to serve again after the last fault, or why it did not.
    pub served_after: Result<Duration>,
    /// An error says why the replicas do not agree at the end of the run.
    pub agreed: Result<()>,
    /// When fault injection began and ended.
    pub faults_ns: (u64, u64),
}

pub fn chaos(args: &ChaosArgs) -> Result<()> {
    if args.flair {
        eprintln!("note: `inband chaos --flair` is now `inband chaos flair`; the old form goes away with the next version");
    }
    let signals = StopSignals::take()?;
    let checker = checker::find(args.checker.as_deref())?;
    let seed = args.seed.unwrap_or_else(seed_of_now);
    let kinds = args.kinds()?;
    std::fs::create_dir_all(&args.report)
        .with_context(|| format!("creating {}", args.report.display()))?;
    let history = args.report.join("history.jsonl");
    println!(
        "seed {seed}; history and report in {}",
        args.report.display()
    );
    let findings = args.run(seed, &kinds, &signals, &checker, &history)?;
    let page = args.report.join("index.html");
    report::write(&findings, &page)?;
    show(&findings);
    println!("report: {}", page.display());
    if args.control {
        ensure!(
            findings.verdict.is_violation(),
            "there were stale answers and the checker did not notice"
        );
        println!("control: the stale answers were found");
        return Ok(());
    }
    conclude(findings, seed)
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_millis() as u64)
}

impl ChaosArgs {
    fn system(&self) -> System {
        match self.flair {
            true => System::Flair,
            false => self.system,
        }
    }

    /// Returns the faults to inject. Prints which of the requested ones are not possible and why.
    fn kinds(&self) -> Result<Vec<FaultKind>> {
        let mut kinds = match &self.faults {
            None => self.system().faults().to_vec(),
            Some(names) => names
                .iter()
                .filter(|name| !name.is_empty())
                .map(|name| FaultKind::from_str(name, true).map_err(|_| unknown_fault(name)))
                .collect::<Result<_>>()?,
        };
        let mut leave_out = |is_out: &dyn Fn(FaultKind) -> bool, why: &str| {
            let (out, left) = kinds.iter().partition(|kind| is_out(**kind));
            kinds = left;
            let out: Vec<FaultKind> = out;
            if !out.is_empty() {
                let names: Vec<&str> = out.iter().map(|kind| kind.name()).collect();
                println!("without {}: {why}", names.join(", "));
            }
        };
        let system = self.system();
        leave_out(
            &|kind| !system.faults().contains(&kind),
            &format!("{} has no such thing", system.name()),
        );
        if self.durability == Durability::Memory {
            leave_out(
                &|kind| kind == FaultKind::Power,
                "with --durability memory a majority must not be killed",
            );
        }
        if let Err(error) = inband_lab::preflight::check_lab() {
            leave_out(&FaultKind::is_of_links, &format!("{error}"));
        } else if [System::Memory, System::Box, System::Netpaxos].contains(&system)
            && self.dataplane == Dataplane::Udp
        {
            leave_out(
                &FaultKind::is_of_links,
                "with --dataplane udp it is on loopback",
            );
        } else if system == System::Box && self.durability == Durability::Sync {
            leave_out(
                &FaultKind::is_of_links,
                "with --durability sync its nodes are on loopback",
            );
        }
        Ok(kinds)
    }

    fn program(&self) -> Result<PathBuf> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => program::find(program::INBAND),
        }
    }

    fn paxos_spec(&self, dir: &Path) -> Result<ClusterSpec> {
        let mut spec = ClusterSpec::new(self.program()?, dir);
        spec.dataplane = self.dataplane;
        if inband_lab::preflight::check_lab().is_err() {
            spec.dataplane = Dataplane::Udp;
        } else {
            spec.network = inband_cluster::paxos::NetworkChoice::Namespaces;
        }
        spec.acceptors = self.acceptors.clone();
        spec.replicas = self.replicas;
        spec.partitions = self.partitions;
        spec.durability = self.durability;
        spec.ring_slots = RING_SLOTS;
        spec.limits.peer_log_values = PEER_LOG_VALUES;
        if let Some(threads) = self.worker_threads {
            spec.limits.worker_threads = threads;
        }
        spec.store_memory_bytes = inband_cluster::kv::store_memory_bytes(self.partitions);
        spec.resp = loopback(free_ports(PORTS));
        spec.metrics_port = free_ports(PORTS);
        Ok(spec)
    }

    fn flair_spec(&self, dir: &Path) -> Result<FlairSpec> {
        Ok(FlairSpec {
            sets: 1,
            program: self.program()?,
            data: dir.to_owned(),
            replicas: self.replicas,
            switches: self.switches,
            groups: flair::GROUPS,
            reads: self.reads,
            balance: self.balance,
            heartbeat_ms: timing::HEARTBEAT_MS,
            step_down_ms: timing::STEP_DOWN_MS,
            durability: self.durability,
            accept_loss: false,
            dataplane: self.dataplane,
            resp: loopback(0),
            security: Security {
                authenticated: true,
                tls: true,
                ..Security::default()
            },
        })
    }

    fn box_spec(&self, dir: &Path) -> Result<BoxSpec> {
        let nodes = u8::try_from(self.replicas)
            .ok()
            .filter(|nodes| NODE_COUNTS.contains(&usize::from(*nodes)))
            .with_context(|| format!("--replicas {}: give 3, 4, 5 or 7 nodes", self.replicas))?;
        let first = free_ports(PORTS);
        let options = BoxOptions {
            nodes,
            memcached: loopback(first),
            memcached_local: Some(loopback(first + u16::from(*NODES.end()))),
            memory: box_cluster::TABLE_BYTES,
            dataplane: self.dataplane,
            durability: match self.durability {
                Durability::Memory => BoxDurability::Memory,
                Durability::Sync => BoxDurability::Sync,
            },
            log_records: box_cluster::LOG_RECORDS,
            ..BoxOptions::default()
        };
        let mut spec = BoxCluster::spec(&options, dir)?;
        spec.program.clone_from(&self.program);
        Ok(spec)
    }

    fn netpaxos_spec(&self, dir: &Path) -> Result<NetPaxosSpec> {
        let learners = u8::try_from(self.replicas).ok();
        let learners = learners.filter(|learners| (1..=LEARNERS_MAX).contains(learners));
        let options = NetPaxosOptions {
            minions: self.minions,
            learners: learners.with_context(|| {
                format!(
                    "--replicas {}: give 1 to {LEARNERS_MAX} learners",
                    self.replicas
                )
            })?,
            dataplane: self.dataplane,
            durability: self.durability,
            resp: loopback(free_ports(PORTS)),
            ..NetPaxosOptions::default()
        };
        let mut spec = NetPaxos::spec(&options, dir)?;
        spec.program.clone_from(&self.program);
        Ok(spec)
    }

    fn memory_spec(&self, dir: &Path) -> Result<MemorySpec> {
        let few = |what: &str, count: usize| {
            u8::try_from(count).map_err(|_| anyhow!("{what} {count}: that is too many"))
        };
        let options = MemoryOptions {
            servers: few("--replicas", self.replicas)?,
            switches: few("--switches", self.switches)?,
            space: memory::SPACE_BYTES,
            block: memory::BLOCK_LINES,
            dataplane: self.dataplane,
            no_key: false,
            accept_loss: false,
        };
        let mut spec = Memory::spec(&options, dir)?;
        spec.program.clone_from(&self.program);
        Ok(spec)
    }

    fn about(&self, seed: u64, kinds: &[FaultKind], cluster: String) -> About {
        let behind = if self.control {
            ", with stale answers now and then"
        } else {
            ""
        };
        About {
            seed,
            version: env!("CARGO_PKG_VERSION"),
            minutes: self.minutes,
            faults: kinds.iter().map(|kind| kind.name()).collect(),
            cluster: cluster + behind,
            clients: self.clients,
            operations_per_s: self.rate,
        }
    }

    fn run(
        &self,
        seed: u64,
        kinds: &[FaultKind],
        signals: &StopSignals,
        checker: &Path,
        history: &Path,
    ) -> Result<Findings> {
        let dir = ScratchDir::create(&std::env::temp_dir(), "chaos")?;
        let run = Run {
            args: self,
            seed,
            kinds,
            signals,
            checker,
            history,
        };
        let dir_path = dir.path();
        let findings = match self.system() {
            System::Kv => run.on(paxos::Cluster::start(self.paxos_spec(dir_path)?)?),
            System::Flair => run.on(flair::Cluster::start(self.flair_spec(dir_path)?)?),
            System::Memory => run.on(memory::Cluster::start(self.memory_spec(dir_path)?)?),
            System::Box => run.on(box_cluster::Cluster::start(self.box_spec(dir_path)?)?),
            System::Netpaxos => run.on(netpaxos::Cluster::start(self.netpaxos_spec(dir_path)?)?),
        };
        let is_well = |found: &Findings| found.served_after.is_ok() && found.agreed.is_ok();
        if self.keep || !findings.as_ref().is_ok_and(is_well) {
            println!("the cluster's directory is kept: {}", dir.path().display());
            std::mem::forget(dir);
        }
        findings
    }
}

struct Run<'a> {
    args: &'a ChaosArgs,
    seed: u64,
    kinds: &'a [FaultKind],
    signals: &'a StopSignals,
    checker: &'a Path,
    history: &'a Path,
}

impl Run<'_> {
    fn on<S: Subject>(&self, cluster: S) -> Result<Findings> {
        let Run { args, seed, .. } = *self;
        let cluster = Arc::new(cluster);
        if args.control {
            cluster.answer_with_stale_values()?;
        }
        let about = args.about(seed, self.kinds, cluster.describe());
        let (writer, recorder) = Writer::start(self.history, Clock::start(), about.clone())?;
        let shared = Shared {
            recorder: recorder.clone(),
            next_id: Arc::new(AtomicU64::new(1)),
            stop: Arc::new(AtomicBool::new(false)),
        };
        let mut workload = Workload::start(&cluster, &shared, args.clients, args.rate, seed)?;
        // The proxy of the control run passes on one reply per request and nothing else.
        if !args.control {
            workload.add(cluster.companions(&shared, seed), seed);
        }
        let begun_ns = recorder.clock.now_ns();
        let nemesis = Nemesis::start(&cluster, &recorder, self.kinds, seed);
        let duration = Duration::from_secs_f64(args.minutes * 60.0);
        wait(duration, self.signals, &nemesis);
        let faults_ended = nemesis.stop();
        let faults_ns = (begun_ns, recorder.clock.now_ns());
        let mut served_after = faults_ended.and_then(|()| cluster.heal());
        workload.stop()?;
        if served_after.is_ok() && !args.control {
            if let Err(error) = cluster.read_everything(&shared, args.clients) {
                served_after = Err(error.context("the last reads"));
            }
        }
        drop((shared, recorder));
        let cluster = Arc::into_inner(cluster).context("the nemesis still has the cluster")?;
        let agreed = match &served_after {
            Ok(_) => cluster.into_agreed(),
            Err(_) => {
                drop(cluster);
                Err(anyhow!("not compared: the cluster does not serve"))
            }
        };
        let summary = writer.finish()?;
        Ok(Findings {
            about,
            summary,
            verdict: checker::judge(self.checker, self.history)?,
            served_after,
            agreed,
            faults_ns,
        })
    }
}

fn unknown_fault(name: &str) -> anyhow::Error {
    let all: Vec<&str> = FaultKind::value_variants()
        .iter()
        .map(|k| k.name())
        .collect();
    anyhow!(
        "--faults {name}: there is no such fault; choose of {}",
        all.join(",")
    )
}

/// Returns when the time is up, on a stop signal, or when the nemesis has failed.
fn wait(duration: Duration, signals: &StopSignals, nemesis: &Nemesis) {
    let bar = ProgressBar::new(duration.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {eta} left") {
        bar.set_style(style);
    }
    let began = Instant::now();
    while began.elapsed() < duration && !nemesis.has_ended() {
        if signals.wait(PROGRESS_INTERVAL.min(duration.saturating_sub(began.elapsed()))) {
            break;
        }
        bar.set_position(began.elapsed().as_secs());
    }
    bar.finish_and_clear();
}

fn show(findings: &Findings) {
    let Findings {
        summary, verdict, ..
    } = findings;
    println!(
        "{} operations ok, {} failed, {} of unknown outcome, under {} faults",
        summary.count(Outcome::Ok),
        summary.count(Outcome::Failed),
        summary.count(Outcome::Unknown),
        summary.faults.len()
    );
    for (error, count) in &summary.errors {
        println!("  {count:>7}  {error}");
    }
    for fault in summary.faults.iter().filter(|fault| fault.note.is_some()) {
        println!(
            "  {} was not possible: {}",
            fault.fault,
            fault.note.as_deref().unwrap_or("")
        );
    }
    match &findings.served_after {
        Ok(time) => println!(
            "served again {:.1} s after the last fault",
            time.as_secs_f64()
        ),
        Err(error) => println!("DOES NOT SERVE after the last fault: {error:#}"),
    }
    if let Err(error) = &findings.agreed {
        println!("{error:#}");
    }
    println!(
        "{}: {} groups of keys, the largest of {} operations, checked in {:.1} s",
        verdict.verdict,
        verdict.groups,
        verdict.largest_group,
        verdict.duration_ms as f64 / 1000.0
    );
    for violation in &verdict.violations {
        println!(
            "  violation of {} ({}):",
            violation.group, violation.picture
        );
        violation
            .words
            .iter()
            .for_each(|words| println!("    {words}"));
    }
}

/// Fails with the most serious finding, if any.
fn conclude(findings: Findings, seed: u64) -> Result<()> {
    let verdict = &findings.verdict;
    if verdict.is_violation() {
        bail!(
            "seed {seed}: not linearizable: {}",
            verdict.violating.join(", ")
        );
    }
    findings
        .served_after
        .with_context(|| format!("seed {seed}"))?;
    findings.agreed.with_context(|| format!("seed {seed}"))?;
    ensure!(
        verdict.is_linearizable(),
        "seed {seed}: not decided in time: {}",
        verdict.undecided.join(", ")
    );
    Ok(())
}
