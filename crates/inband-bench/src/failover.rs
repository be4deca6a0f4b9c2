//! `inband bench failover`: kills the leader under load, and measures what clients notice and how long the take-over
//! takes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::Args;
use inband_cluster::paxos::ClusterStatus;
use inband_paxos::config::{Dataplane, Timing};

use super::cluster::{self, BenchCluster};
use super::row::{machine, median, progress, Baseline, Output, Row};
use inband_cluster::client::Client;
use inband_cluster::scratch::retry;

/// Options of `inband bench failover`.
#[derive(Debug, Args)]
pub struct FailoverArgs {
    /// Leaders killed on each backend, each in a fresh cluster; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Clients, each with one command at a time.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Time watched before and after the kill, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Backends to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [Dataplane::Xdp, Dataplane::Udp])]
    backends: Vec<Dataplane>,
}

/// How long a client waits for an answer: longer than a submission's deadline.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_millis(300);
const TAKEOVER_LIMIT: Duration = Duration::from_secs(10);

/// The phase to which a pause is attributed.
const WARMING: u8 = 0;
const UNDISTURBED: u8 = 1;
const KILLED: u8 = 2;
const OVER: u8 = 3;

/// The results of one client.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    /// Longest time between two answers, before the kill and after it.
    longest: [Duration; 2],
    /// Commands after the kill that returned an error.
    failed: u64,
}

/// The results of one round.
struct Outcome {
    pause_ms: f64,
    undisturbed_ms: f64,
    activation_ms: f64,
    first_decision_ms: Option<f64>,
    failed: u64,
}

struct Clients {
    phase: Arc<AtomicU8>,
    threads: Vec<JoinHandle<Result<Seen>>>,
}

impl Clients {
    fn start(address: SocketAddr, count: usize) -> Clients {
        let phase = Arc::new(AtomicU8::new(WARMING));
        let threads = (0..count)
            .map(|number| {
                let phase = phase.clone();
                thread::spawn(move || set_until_over(address, number, &phase))
            })
            .collect();
        Clients { phase, threads }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Release);
    }

    fn end(mut self) -> Result<Vec<Seen>> {
        self.enter(OVER);
        let ended = self.threads.drain(..).map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a client panicked")))
        });
        ended.collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // Also if a round fails midway.
        self.enter(OVER);
    }
}

fn set_until_over(address: SocketAddr, number: usize, phase: &AtomicU8) -> Result<Seen> {
    let mut client = Client::connect(address, CLIENT_LIMIT)?;
    let mut seen = Seen::default();
    let mut last = Instant::now();
    for count in 0u64.. {
        let key = format!("client{number}:{}", count % 1000);
        let reply = client.call(&["SET", &key, "value"])?;
        let now = Instant::now();
        // A pause counts for the phase in which it ends.
        let phase = phase.load(Ordering::Acquire);
        if phase == OVER {
            break;
        }
        if reply != "+OK" {
            ensure!(
                phase == KILLED,
                "SET answered {reply:?} before anything was killed"
            );
            seen.failed += 1;
            continue; // the pause lasts until the next success
        }
        if phase == UNDISTURBED || phase == KILLED {
            let longest = &mut seen.longest[usize::from(phase - UNDISTURBED)];
            *longest = (*longest).max(now - last);
        }
        last = now;
    }
    Ok(seen)
}

/// Starts a cluster and kills its leader.
fn round(dataplane: Dataplane, args: &FailoverArgs) -> Result<Outcome> {
    let cluster = BenchCluster::start(dataplane)?;
    let clients = Clients::start(cluster.supervisor.resp(), args.clients);
    thread::sleep(WARM_UP);
    let watched = Duration::from_millis(args.duration_ms);
    clients.enter(UNDISTURBED);
    thread::sleep(watched);
    // Looked up in advance, so that nothing delays the kill after the phase has begun.
    let leader = cluster.supervisor.host_of("leader")?;
    clients.enter(KILLED);
    cluster.supervisor.kill(&leader)?;
    thread::sleep(watched);
    // Waits longer if necessary: the end of the take-over is what is measured.
    let status = retry(TAKEOVER_LIMIT, || {
        let status = cluster.supervisor.status();
        match status.leader(0) {
            Some(leads) if leads != leader => Ok(status),
            _ => bail!("no other host has taken over from {leader}"),
        }
    })?;
    let seen = clients.end()?;
    let longest = |phase: usize| {
        let longest = seen
            .iter()
            .map(|s| s.longest[phase])
            .max()
            .unwrap_or_default();
        longest.as_secs_f64() * 1000.0
    };
    let takeover_us = |name: &str| counter_of_leader(&status, name);
    Ok(Outcome {
        pause_ms: longest(1),
        undisturbed_ms: longest(0),
        activation_ms: takeover_us("leader_takeover_us").context("no take-over is counted")? as f64
            / 1000.0,
        first_decision_ms: takeover_us("leader_first_decision_us").map(|us| us as f64 / 1000.0),
        failed: seen.iter().map(|s| s.failed).sum(),
    })
}

fn counter_of_leader(status: &ClusterStatus, name: &str) -> Option<u64> {
    let leader = status.leader(0)?;
    let host = status.hosts.iter().find(|host| host.name == leader)?;
    host.status.as_ref()?.counters.get(name).copied()
}

/// Runs the benchmark and prints its rows.
pub fn run(args: &FailoverArgs, output: &mut Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(args.clients >= 1, "--clients {}: at least 1", args.clients);
    let machine = machine();
    let backends = cluster::usable(&args.backends, &mut |what| output.skipped(&what));
    ensure!(!backends.is_empty(), "no backend of --backends works here");
    let mut outcomes: Vec<Vec<Outcome>> = backends.iter().map(|_| Vec::new()).collect();
    for number in 1..=args.rounds {
        for (backend, outcomes) in backends.iter().zip(&mut outcomes) {
            progress(&format!("round {number}/{}: {backend}", args.rounds));
            outcomes.push(round(*backend, args)?);
        }
    }
    progress("");
    for (backend, outcomes) in backends.iter().zip(&outcomes) {
        print_rows(args, *backend, outcomes, &machine, output)?;
    }
    Ok(())
}

fn print_rows(
    args: &FailoverArgs,
    backend: Dataplane,
    outcomes: &[Outcome],
    machine: &str,
    output: &mut Output,
) -> Result<()> {
    let failed: u64 = outcomes.iter().map(|o| o.failed).sum();
    let conditions = format!(
        "leader killed, {} clients with one SET each, 3 replicas, a leader is suspected after {} ms \
         of silence per rank, {failed} commands failed; {machine}, median of {}",
        args.clients,
        Timing::default().suspect_after_ms,
        args.rounds
    );
    let median_of = |pick: &dyn Fn(&Outcome) -> Option<f64>| {
        let mut values: Vec<f64> = outcomes.iter().filter_map(pick).collect();
        (!values.is_empty()).then(|| median(&mut values))
    };
    let undisturbed_ms = median_of(&|o| Some(o.undisturbed_ms)).unwrap_or(f64::NAN);
    let pause_ms = median_of(&|o| Some(o.pause_ms)).unwrap_or(f64::NAN);
    let of_pause = Baseline {
        name: "the clients' longest pause".into(),
        value: pause_ms,
    };
    let figures = [
        (
            "failover_pause_ms",
            Some(pause_ms),
            "longest pause of a client",
            Baseline {
                name: "the longest in as much time before".into(),
                value: undisturbed_ms,
            },
        ),
        (
            "failover_takeover_ms",
            median_of(&|o| o.first_decision_ms),
            "from the suspicion (a majority of acceptors has just been heard) to the first new decision, at the new leader",
            of_pause.clone(),
        ),
        (
            "failover_phase1_ms",
            median_of(&|o| Some(o.activation_ms)),
            "from suspicion to the end of phase 1, at the new leader",
            of_pause,
        ),
    ];
    for (metric, value, what, baseline) in figures {
        let Some(value) = value else {
            output.skipped(&format!(
                "{metric} on {backend}: the new leaders hold no replica"
            ));
            continue;
        };
        let row = Row {
            bench: "failover",
            metric,
            backend: backend.to_string(),
            variant: String::new(),
            value,
            unit: "ms",
            baseline: None,
            ratio: None,
            paper: None,
            conditions: format!("{what}; {conditions}"),
        };
        output.row(&row.beside(Some(baseline)))?;
    }
    Ok(())
}
