//! `inband torment`: a cluster of its own under clients that write down everything, while a nemesis
//! does to it what the world does. Then all faults end, the cluster must serve again, all replicas must
//! agree, and Porcupine must find the history linearizable.

mod checker;
mod cluster;
mod history;
mod keys;
mod liar;
mod links;
mod nemesis;
mod report;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use inband_lab::signals::StopSignals;
use inband_lab::{AcceptorChoice, ClusterSpec};
use inband_paxos::config::{Dataplane, Durability};
use indicatif::{ProgressBar, ProgressStyle};

use self::checker::Verdict;
use self::cluster::Cluster;
use self::history::{About, Clock, Outcome, Summary, Writer};
use self::nemesis::Nemesis;
use self::workload::{Shared, Workload};
use crate::bench::scratch::{free_ports, loopback, ScratchDir};

/// How often the progress is shown, and Ctrl-C looked for.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Small, so that slots are reused within seconds ...
const RING_SLOTS: u32 = 256;
/// ... and so that a replica that was away needs a checkpoint now and then.
const PEER_LOG_VALUES: u32 = 512;
/// More than a cluster grows to.
const PORTS: u16 = 64;

/// What the nemesis does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// Hosts are killed and started again; an acceptor's memory is lost.
    Kill,
    /// Processes stand still; their roles in the kernel do not.
    Freeze,
    /// The packets of a host are held and released later.
    Pause,
    /// Hosts do not hear each other, in one direction or both.
    Partition,
    /// Packets are lost.
    Loss,
    /// Packets are late, and overtake each other.
    Delay,
    /// Packets arrive twice.
    Duplicate,
    /// Hosts are added, removed and replaced.
    Member,
    /// A host loses its disk, and another takes its place.
    Wipe,
    /// Another host is made the leader.
    Leader,
    /// Everything is killed at once, and started again; only with --durability sync.
    Power,
}

impl FaultKind {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Loss => "loss",
            Self::Delay => "delay",
            Self::Duplicate => "duplicate",
            Self::Member => "member",
            Self::Wipe => "wipe",
            Self::Leader => "leader",
            Self::Power => "power",
        }
    }

    /// Or of hosts.
    fn is_of_links(self) -> bool {
        matches!(
            self,
            Self::Pause | Self::Partition | Self::Loss | Self::Delay | Self::Duplicate
        )
    }
}

/// Options of `inband torment`.
#[derive(Debug, Args)]
pub struct TormentArgs {
    /// How long faults are thrown.
    #[arg(long, default_value_t = 1.0, value_name = "M")]
    minutes: f64,
    /// What is done when is drawn from it; by default from the time. How it ends is not: processes and
    /// packets run as they like.
    #[arg(long)]
    seed: Option<u64>,
    /// Which faults; "" for none. By default all that are possible here.
    #[arg(long, value_delimiter = ',', value_name = "KIND,...")]
    faults: Option<Vec<String>>,
    /// Where history, report and pictures go.
    #[arg(long, default_value = "torment", value_name = "DIR")]
    report: PathBuf,
    /// What a vote survives: memory or sync.
    #[arg(long, default_value_t, value_name = "memory|sync")]
    durability: Durability,
    /// Where the packet roles run: auto, xdp, xdp-generic or udp.
    #[arg(long, default_value_t = Dataplane::Auto)]
    dataplane: Dataplane,
    /// Acceptors: a number, or backends with numbers, as xdp:2,udp:1.
    #[arg(long, default_value = "3", value_name = "N|BACKEND:N,...")]
    acceptors: AcceptorChoice,
    /// Replicas of the store.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Partitions of the key space.
    #[arg(long, default_value_t = 3)]
    partitions: u32,
    /// Clients, each with one operation at a time.
    #[arg(long, default_value_t = 12)]
    clients: usize,
    /// Operations a second of all clients together, at most.
    #[arg(long, default_value_t = 1500, value_name = "N")]
    rate: u64,
    /// Have a proxy answer some GETs with an older value. The run is good if that is found.
    #[arg(long)]
    control: bool,
    /// The program that is run on the hosts: another version, or one that was broken on purpose.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The checker; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    checker: Option<PathBuf>,
    /// Keep the cluster's directory, with the logs of its hosts.
    #[arg(long)]
    keep: bool,
}

/// What a run found.
pub struct Findings {
    pub about: About,
    pub summary: Summary,
    pub verdict: Verdict,
    /// How long the cluster took to serve after the last fault, or why it did not.
    pub served_after: Result<Duration>,
    /// Why replicas do not agree in the end, if they do not.
    pub agreed: Result<()>,
    /// When faults began and ended.
    pub faults_ns: (u64, u64),
}

/// Run, judge, report.
pub fn torment(args: &TormentArgs) -> Result<()> {
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
            "a proxy told old values and the checker did not find out"
        );
        println!("control: the lies were found");
        return Ok(());
    }
    conclude(findings, seed)
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_millis() as u64)
}

impl TormentArgs {
    /// The faults to throw. Says which of those asked for are not possible.
    fn kinds(&self) -> Result<Vec<FaultKind>> {
        let mut kinds = match &self.faults {
            None => FaultKind::value_variants().to_vec(),
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
        if self.durability == Durability::Memory {
            leave_out(
                &|kind| kind == FaultKind::Power,
                "with --durability memory a majority of acceptors must not be killed",
            );
        }
        if let Err(error) = inband_lab::preflight::check_lab() {
            leave_out(&FaultKind::is_of_links, &format!("{error}"));
        }
        Ok(kinds)
    }

    fn spec(&self, dir: &Path) -> Result<ClusterSpec> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("finding this program")?,
        };
        let mut spec = ClusterSpec::new(program, dir);
        spec.dataplane = self.dataplane;
        if inband_lab::preflight::check_lab().is_err() {
            spec.dataplane = Dataplane::Udp;
        } else {
            spec.network = inband_lab::NetworkChoice::Namespaces;
        }
        spec.acceptors = self.acceptors.clone();
        spec.replicas = self.replicas;
        spec.partitions = self.partitions;
        spec.durability = self.durability;
        spec.ring_slots = RING_SLOTS;
        spec.limits.peer_log_values = PEER_LOG_VALUES;
        spec.store_memory_bytes = crate::up::store_memory_bytes(self.partitions);
        spec.resp = loopback(free_ports(PORTS)?);
        spec.metrics_port = free_ports(PORTS)?;
        Ok(spec)
    }

    fn about(&self, seed: u64, kinds: &[FaultKind]) -> About {
        About {
            seed,
            version: env!("CARGO_PKG_VERSION"),
            minutes: self.minutes,
            faults: kinds.iter().map(|kind| kind.name()).collect(),
            cluster: format!(
                "{} acceptors, {} replicas, {} partitions, durability {}, dataplane {}{}",
                self.acceptors.0.len(),
                self.replicas,
                self.partitions,
                self.durability,
                self.dataplane,
                if self.control {
                    ", behind a proxy that lies"
                } else {
                    ""
                }
            ),
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
        let dir = ScratchDir::create(&std::env::temp_dir(), "torment")?;
        let cluster = Arc::new(Cluster::start(self.spec(dir.path())?)?);
        if self.control {
            let mut addresses = cluster
                .addresses
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            for address in addresses.iter_mut() {
                *address = liar::start(*address)?;
            }
        }
        let about = self.about(seed, kinds);
        let (writer, recorder) = Writer::start(history, Clock::start(), about.clone())?;
        let shared = Shared {
            addresses: Arc::clone(&cluster.addresses),
            recorder: recorder.clone(),
            partitions: self.partitions as usize,
            next_id: Arc::new(AtomicU64::new(1)),
            stop: Arc::new(AtomicBool::new(false)),
        };
        let workload = Workload::start(&shared, self.clients, self.rate, seed);
        let begun_ns = recorder.clock.now_ns();
        let nemesis = Nemesis::start(&cluster, &recorder, kinds, self.durability, seed);
        wait(
            Duration::from_secs_f64(self.minutes * 60.0),
            signals,
            &nemesis,
        );
        let faults_ended = nemesis.stop();
        let faults_ns = (begun_ns, recorder.clock.now_ns());
        let mut served_after = faults_ended.and_then(|()| heal(&cluster));
        workload.stop()?;
        if served_after.is_ok() && !self.control {
            if let Err(error) = read_everything(&cluster, &shared, self.clients) {
                served_after = Err(error.context("the last reads"));
            }
        }
        drop((shared, recorder));
        let cluster = Arc::into_inner(cluster).context("the nemesis still has the cluster")?;
        let agreed = match &served_after {
            Ok(_) => cluster.down_and_compare(),
            Err(_) => {
                drop(cluster);
                Err(anyhow!("not compared: the cluster does not serve"))
            }
        };
        let summary = writer.finish()?;
        if self.keep || served_after.is_err() || agreed.is_err() {
            println!("the cluster's directory is kept: {}", dir.path().display());
            std::mem::forget(dir);
        }
        Ok(Findings {
            about,
            summary,
            verdict: checker::judge(checker, history)?,
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

/// Until the time is over, somebody wants it to end, or it makes no sense to go on.
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

/// Everything is put right again; how long the cluster then takes to serve.
fn heal(cluster: &Cluster) -> Result<Duration> {
    let began = Instant::now();
    cluster.replace_wiped()?;
    cluster.restart_all()?;
    cluster.wait_until_it_serves()?;
    Ok(began.elapsed())
}

/// What is there in the end, at every replica and in both ways.
fn read_everything(cluster: &Cluster, shared: &Shared, client: usize) -> Result<()> {
    let groups = keys::all_until(shared.recorder.clock.now_ns(), shared.partitions);
    let addresses = cluster
        .addresses
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for address in addresses {
        workload::read_all(shared, client, address, &groups)?;
    }
    Ok(())
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
        println!("replicas: {error:#}");
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

/// The first thing that is wrong.
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
