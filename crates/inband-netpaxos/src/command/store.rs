//! A learner with a store: it serves Redis clients, and its log is applied to RocksDB.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_host::config::{Dataplane, Durability};
use inband_kv::discovery::Discovery;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_netpaxos::learner::{Config, Learner};
use inband_netpaxos::status::{Ask, Reply, Status};

use super::kept::remove_dir;
use super::learner::{counters_of, gauges_of};
use super::log::{Log, DEADLINE_MS};
use super::process::{named, Process, ProcessArgs};

/// The store in a learner's directory.
const DIR: &str = "store";
/// How often signals are checked.
const STOP_POLL: Duration = Duration::from_millis(20);
/// How long accepted commands are still answered after the process was told to stop.
const STOP_DRAIN_MAX: Duration = Duration::from_secs(1);
/// How much longer a command may take than its value in the log.
const APPLY_MS_MAX: u64 = 2_000;

/// Removes the store of a log that is gone.
pub fn remove(data: &Path) -> Result<()> {
    remove_dir(&data.join(DIR))
}

/// Returns whether there is a store.
pub fn exists(data: &Path) -> bool {
    data.join(DIR).exists()
}

/// Returns the listeners for Redis clients: those that the supervisor has opened, or else new ones at the addresses in
/// the cluster's file.
fn listeners(process: &mut Process, number: u8) -> Result<Vec<TcpListener>> {
    let inherited = process.take_listeners();
    if !inherited.is_empty() {
        return Ok(inherited);
    }
    let address = process.cluster.resp[usize::from(number) - 1];
    ensure!(
        address.ip().is_loopback(),
        "resp {address} is beyond loopback, where anybody could read and write; give a loopback address in cluster.json"
    );
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen at {address} for Redis clients"))?;
    Ok(vec![listener])
}

/// Runs the learner and its store.
pub fn run(
    args: &ProcessArgs,
    mut process: Process,
    config: Config,
    is_by_order: bool,
) -> Result<()> {
    ensure!(
        process.listen.ip().is_loopback() || process.cluster.is_isolated()?,
        "{} is beyond loopback: learners copy their stores to each other over TCP without TLS; use a log without a store there",
        process.listen
    );
    let dir = args.data.join(DIR);
    let is_sync = args.durability == Durability::Sync;
    let machine = Machine::open(MachineConfig {
        sync: is_sync,
        ..MachineConfig::single(&dir)
    })
    .with_context(|| format!("opening the store in {}", dir.display()))?;
    let resp = listeners(&mut process, config.number)?;
    let checkpoints = TcpListener::bind(process.listen)
        .with_context(|| format!("cannot listen at TCP {}", process.listen))?;
    println!(
        "{} at {}, a store that has applied {} instances",
        process.name,
        process.listen,
        machine.applied()[0]
    );
    let mut learner = Learner::under_application(config);
    if is_by_order {
        learner = learner.by_order();
    }
    let learner = Arc::new(Mutex::new(learner));
    let replica_config = ReplicaConfig {
        name: process.name.clone(),
        replica_index: u64::from(config.number) - 1,
        deadline_ms: DEADLINE_MS + APPLY_MS_MAX,
        discovery: Discovery {
            node: u64::from(config.number),
            ..Discovery::default()
        },
        ..ReplicaConfig::default()
    };
    let (name, listen) = (process.name.clone(), process.listen);
    let signals = process.take_signals();
    let control_dir = args.data.clone();
    let metrics = process.take_metrics();
    let log = Log::new(process, Arc::clone(&learner));
    let mut replica = Replica::new(
        replica_config,
        machine,
        Box::new(log),
        resp,
        Some(checkpoints),
    )?;
    let control = replica.control();
    let watched = Arc::clone(&control);
    let _control = super::process::answer_in(
        &control_dir,
        metrics,
        &learner,
        move |learner, ask| match ask {
            Ask::Status => {
                let store = watched.status();
                let mut counters = counters_of(learner);
                // The store has its own sessions, apart from the learner's.
                counters.remove("sessions");
                counters.extend(named([
                    ("store_requests", store.requests_total),
                    ("store_commands_applied", store.commands_applied_total),
                    ("store_reads", store.reads_total),
                    ("store_outcomes_unknown", store.outcomes_unknown_total),
                    ("checkpoints_installed", store.checkpoints_installed_total),
                    ("checkpoints_served", store.checkpoints_served_total),
                ]));
                let mut gauges = gauges_of(learner);
                gauges.extend(named([
                    ("store_keys", store.keys),
                    ("store_values_in_flight", store.values_in_flight),
                    ("store_clients", store.connected_clients),
                ]));
                let state = match (store.is_loading, learner.position() == learner.highest()) {
                    (true, _) => "loading",
                    (false, true) => "delivering",
                    (false, false) => "behind",
                };
                Reply::Status(Box::new(Status {
                    name: name.clone(),
                    listen,
                    dataplane: Dataplane::Udp,
                    why: "it is not a role".to_owned(),
                    pid: std::process::id(),
                    state: state.to_owned(),
                    position: learner.position(),
                    counters,
                    gauges,
                }))
            }
            Ask::Log(_) => Reply::Error(format!("{name} serves a store: use a Redis client")),
        },
    )?;
    std::thread::Builder::new()
        .name("stop".into())
        .spawn(move || {
            while !signals.wait(STOP_POLL) {}
            control.drain_and_stop(STOP_DRAIN_MAX);
        })?;
    replica.run()?;
    Ok(())
}
