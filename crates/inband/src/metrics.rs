//! `/metrics` for Prometheus, over HTTP.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use inband_cluster::paxos::control::{log_label, AcceptorStatus, LeaderStatus};
use inband_kv::latencies::{bound, Latency};
use inband_kv::store::StoreFigures;
use inband_metrics::{
    add, add_counters, add_fractions, add_histograms, serve, signed, text, Filled, Registry,
};
use nix::sys::statvfs::statvfs;

use crate::health;
use crate::published;
use crate::serve::HostView;

/// Why packets are dropped, by the packet programs and at the sockets; each is an event of the same name. Votes beyond the
/// majority, and answers to questions that were asked twice, are dropped in a healthy cluster, too, and are not among these.
const DROPS: [&str; 28] = [
    "acceptor_below_floor",
    "acceptor_beyond_ring",
    "acceptor_raced",
    "acceptor_recovering",
    "bad_checksum",
    "bad_instance",
    "bad_key",
    "bad_length",
    "bad_magic",
    "bad_node",
    "bad_partition",
    "bad_round",
    "bad_tag",
    "bad_truncated",
    "bad_type",
    "bad_version",
    "contended",
    "copy_unresolved",
    "epoch_ahead",
    "host_bad_packets",
    "host_cut_packets",
    "host_send_failures",
    "quorum_hand_off_failed",
    "quorum_lower_round",
    "quorum_not_member",
    "quorum_other_value",
    "value_io_failed",
    "wrong_epoch",
];
/// Numbers of a status that do not only grow, each with its metric, what it is, and what one of it is in the metric's unit.
const NOT_COUNTERS: [(&str, &str, &str, f64); 7] = [
    (
        "host_unresolved_peers",
        "inband_unresolved_peers",
        "Hosts whose link-layer address is not known",
        1.0,
    ),
    (
        "learner_next_instance",
        "inband_learner_next_instance",
        "Instance that is delivered next, summed over all logs",
        1.0,
    ),
    (
        "learner_known_highest",
        "inband_learner_known_highest",
        "Highest instance that is known of, summed over all logs",
        1.0,
    ),
    (
        "leader_takeover_us",
        "inband_leader_takeover_seconds",
        "Time from when this host suspected the leader until it led, at its last takeover",
        1e-6,
    ),
    (
        "leader_first_decision_us",
        "inband_leader_first_decision_seconds",
        "Time from when this host suspected the leader until its first decision, at its last takeover",
        1e-6,
    ),
    (
        "tls_certificate_days_left",
        "inband_certificate_left_seconds",
        "For how many whole days, in seconds, the host's certificate is valid; 0: it has expired",
        86_400.0,
    ),
    (
        "kv_clients_memory_bytes",
        "inband_clients_memory_bytes",
        "Memory of all clients together",
        1.0,
    ),
];
/// Those that the kernel's driver drops.
const DRIVER_DROPS: [&str; 2] = ["xdp_copies_lost", "xdp_transmits_lost"];

/// Gauges of one host, by name.
struct Gauges<'a> {
    registry: Registry,
    node: &'a str,
}

impl Gauges<'_> {
    fn add(&self, name: &str, help: &str, value: u64) -> Result<()> {
        let values = [(&[self.node][..], signed(value))];
        add(
            &self.registry,
            &format!("inband_{name}"),
            help,
            &["node"],
            values,
        )
    }

    /// One value per log; none at all if the host does not have the role.
    fn add_per_log(&self, name: &str, help: &str, values: &[u64]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let partitions: Vec<String> = (0..values.len())
            .map(|log| log_label(log, values.len()))
            .collect();
        let of: Vec<[&str; 2]> = partitions.iter().map(|p| [self.node, p]).collect();
        let values = of
            .iter()
            .map(|of| &of[..])
            .zip(values.iter().map(|v| signed(*v)));
        let labels = ["node", "partition"];
        add(
            &self.registry,
            &format!("inband_{name}"),
            help,
            &labels,
            values,
        )
    }
}

const STARTING: (&str, &str) = (
    "inband_starting",
    "1 while the host opens its store and its data plane",
);

/// All that a host can tell before it has started.
fn starting() -> Result<Vec<u8>> {
    let registry = Registry::new();
    let (name, help) = STARTING;
    add(&registry, name, help, &[], [(&[][..], 1)])?;
    text(&registry)
}

fn encode(view: &HostView) -> Result<Vec<u8>> {
    let status = view.status();
    let gauges = Gauges {
        registry: Registry::new(),
        node: &status.name,
    };
    let (name, help) = STARTING;
    add(&gauges.registry, name, help, &[], [(&[][..], 0)])?;
    gauges.add("epoch", "Configuration epoch", u64::from(status.epoch))?;
    gauges.add(
        "memory_bytes",
        "Registers, rings and log of decided values",
        status.memory_bytes,
    )?;
    let dataplane = view.choice.dataplane.to_string();
    add(
        &gauges.registry,
        "inband_dataplane",
        "1 for the data plane in force; why not a better one",
        &["node", "dataplane", "why"],
        [(&[gauges.node, &dataplane, &status.dataplane_why][..], 1)],
    )?;
    gauges.add(
        "stopping",
        "1 once it was told to end",
        u64::from(status.stopping),
    )?;
    leader_gauges(&gauges, &status.leaders)?;
    acceptor_gauges(&gauges, &status.acceptors)?;
    if !status.acceptors.is_empty() {
        let fails = u64::from(status.acceptor_disk_failure.is_some());
        gauges.add(
            "acceptor_disk_fails",
            "1 while the acceptor's disk takes no votes",
            fails,
        )?;
    }
    if let Some(replica) = &status.replica {
        gauges.add_per_log("replica_applied", "Last instance applied", &replica.applied)?;
        gauges.add("replica_keys", "Keys in the store", replica.keys)?;
        gauges.add("replica_clients", "Connected clients", replica.clients)?;
        gauges.add(
            "replica_outstanding",
            "Values submitted and undecided",
            replica.outstanding,
        )?;
    }
    if let Some(skew_ms) = status.replica.as_ref().and_then(|r| r.clock_skew_ms) {
        add_fractions(
            &gauges.registry,
            "inband_replica_clock_skew_seconds",
            "How far the wall clock is ahead of the majority of the replicas'",
            &["node"],
            [(&[gauges.node][..], skew_ms as f64 / 1e3)],
        )?;
    }
    if let Some(replica) = &status.replica {
        let refuses = u64::from(replica.refuses.is_some());
        gauges.add("replica_refuses", "1 while commands are refused", refuses)?;
    }
    for (name, metric, help, unit) in NOT_COUNTERS {
        if let Some(value) = status.counters.get(name) {
            let value = [(&[gauges.node][..], *value as f64 * unit)];
            add_fractions(&gauges.registry, metric, help, &["node"], value)?;
        }
    }
    let is_counter = |name: &str| NOT_COUNTERS.iter().all(|(other, ..)| *other != name);
    let counters = status.counters.iter().filter(|(name, _)| is_counter(name));
    let events: Vec<([&str; 2], f64)> = counters
        .map(|(name, value)| ([gauges.node, name.as_str()], *value as f64))
        .collect();
    add_counters(
        &gauges.registry,
        "inband_events_total",
        "Packets and events by outcome, since the start",
        &["node", "event"],
        events.iter().map(|(of, value)| (&of[..], *value)),
    )?;
    let drops = DROPS.iter().chain(&DRIVER_DROPS).map(|reason| {
        // Also those that are 0: otherwise the first one would not count as an increase.
        let count = status.counters.get(*reason).copied().unwrap_or(0);
        ([gauges.node, *reason], count as f64)
    });
    let drops: Vec<([&str; 2], f64)> = drops.collect();
    add_counters(
        &gauges.registry,
        "inband_dropped_packets_total",
        "Packets dropped, by reason",
        &["node", "reason"],
        drops.iter().map(|(of, count)| (&of[..], *count)),
    )?;
    let state = published::read(&view.state);
    let leaders: Vec<u64> = state.known_leaders.iter().map(|id| (*id).into()).collect();
    gauges.add_per_log(
        "leader_node",
        "Id of the node that leads, as far as this host knows; 0: none",
        &leaders,
    )?;
    gauges.add_per_log(
        "trim_floor",
        "Instance below which a majority of replicas holds everything, as far as this host knows",
        &state.floors,
    )?;
    if let Some(replica) = &view.replica {
        request_times(&gauges, &replica.latencies())?;
        database_gauges(&gauges, &replica.figures())?;
        disk_gauges(&gauges, &view.config.host.data_dirs)?;
    }
    text(&gauges.registry)
}

fn request_times(gauges: &Gauges<'_>, latencies: &[Latency]) -> Result<()> {
    let filled = latencies.iter().map(|of| {
        let (beyond, bounded) = of.buckets.split_last().unwrap_or((&0, &[]));
        let buckets = bounded.iter().enumerate();
        let buckets = buckets.map(|(at, count)| (bound(at).as_secs_f64(), *count));
        Filled {
            of: vec![gauges.node.to_owned(), of.command.to_lowercase()],
            buckets: buckets.collect(),
            beyond: *beyond,
            sum: of.sum.as_secs_f64(),
        }
    });
    add_histograms(
        &gauges.registry,
        "inband_request_duration_seconds",
        "Time from when a request of a client was read until its reply was ready, by command",
        &["node", "command"],
        filled,
    )
}

type Figure = fn(&StoreFigures) -> u64;

fn database_gauges(gauges: &Gauges<'_>, databases: &[StoreFigures]) -> Result<()> {
    let each = |of: Figure| databases.iter().map(of).collect::<Vec<u64>>();
    let all: [(&str, &str, Figure); 9] = [
        (
            "rocksdb_memtable_bytes",
            "Written, and not in files yet",
            |db| db.memtable_bytes,
        ),
        ("rocksdb_file_bytes", "Size of the files", |db| {
            db.file_bytes
        }),
        (
            "rocksdb_live_bytes",
            "Estimate of what in the files is not superseded",
            |db| db.live_bytes,
        ),
        (
            "rocksdb_level0_files",
            "Files that are not sorted into levels yet; many of them stall writes",
            |db| db.level0_files,
        ),
        (
            "rocksdb_pending_compaction_bytes",
            "Estimate of what compactions have to rewrite; too much stalls writes",
            |db| db.pending_compaction_bytes,
        ),
        (
            "rocksdb_running_compactions",
            "Compactions that run now",
            |db| db.running_compactions,
        ),
        ("rocksdb_running_flushes", "Flushes that run now", |db| {
            db.running_flushes
        }),
        (
            "rocksdb_write_stopped",
            "1 while writes wait for compactions or flushes",
            |db| u64::from(db.is_write_stopped),
        ),
        (
            "rocksdb_delayed_write_bytes_per_second",
            "Rate to which writes are slowed down now; 0: not at all",
            |db| db.delayed_write_bytes_per_s,
        ),
    ];
    for (name, help, of) in all {
        gauges.add_per_log(name, help, &each(of))?;
    }
    let logs: Vec<String> = (0..databases.len())
        .map(|log| log_label(log, databases.len()))
        .collect();
    let of: Vec<[&str; 2]> = logs.iter().map(|log| [gauges.node, log]).collect();
    let errors = databases.iter().map(|db| db.background_errors as f64);
    add_counters(
        &gauges.registry,
        "inband_rocksdb_background_errors_total",
        "Errors of flushes and compactions",
        &["node", "partition"],
        of.iter().map(|of| &of[..]).zip(errors),
    )?;
    let stalls = databases.iter().map(|db| db.stalled.as_secs_f64());
    add_counters(
        &gauges.registry,
        "inband_rocksdb_stalled_seconds_total",
        "How long writes were slowed down or stopped",
        &["node", "partition"],
        of.iter().map(|of| &of[..]).zip(stalls),
    )?;
    let cache = databases.first().map_or(0, |db| db.block_cache_bytes);
    gauges.add(
        "rocksdb_block_cache_bytes",
        "Use of the cache that the databases of all partitions share",
        cache,
    )
}

/// A disk that cannot be asked is left out.
fn disk_gauges(gauges: &Gauges<'_>, dirs: &[PathBuf]) -> Result<()> {
    let disks = dirs.iter().filter_map(|dir| {
        let disk = statvfs(dir).ok()?;
        let unit_bytes = disk.fragment_size();
        let free = signed(disk.blocks_available() * unit_bytes);
        Some((
            dir.display().to_string(),
            free,
            signed(disk.blocks() * unit_bytes),
        ))
    });
    let disks: Vec<(String, i64, i64)> = disks.collect();
    let of: Vec<[&str; 2]> = disks.iter().map(|disk| [gauges.node, &disk.0]).collect();
    let labels = ["node", "dir"];
    let of = || of.iter().map(|of| &of[..]);
    add(
        &gauges.registry,
        "inband_disk_free_bytes",
        "Free space on the disk of a data directory",
        &labels,
        of().zip(disks.iter().map(|disk| disk.1)),
    )?;
    add(
        &gauges.registry,
        "inband_disk_bytes",
        "Size of the disk of a data directory",
        &labels,
        of().zip(disks.iter().map(|disk| disk.2)),
    )
}

fn leader_gauges(gauges: &Gauges<'_>, leaders: &[LeaderStatus]) -> Result<()> {
    let each = |of: fn(&LeaderStatus) -> u64| leaders.iter().map(of).collect::<Vec<u64>>();
    gauges.add_per_log(
        "leader_active",
        "1 if this host leads",
        &each(|l| u64::from(l.active)),
    )?;
    gauges.add_per_log(
        "leader_next_instance",
        "Instance of the next request",
        &each(|l| l.next_instance),
    )?;
    gauges.add_per_log(
        "leader_floor",
        "Trim floor known to the leader",
        &each(|l| l.floor),
    )
}

fn acceptor_gauges(gauges: &Gauges<'_>, acceptors: &[AcceptorStatus]) -> Result<()> {
    let each = |of: fn(&AcceptorStatus) -> u64| acceptors.iter().map(of).collect::<Vec<u64>>();
    gauges.add_per_log(
        "acceptor_voting",
        "0 if recovering, or while its disk takes no votes",
        &each(|a| u64::from(a.voting)),
    )?;
    gauges.add_per_log(
        "acceptor_highest_voted",
        "Highest instance voted",
        &each(|a| a.highest_voted),
    )?;
    gauges.add_per_log("acceptor_floor", "Trim floor", &each(|a| a.floor))
}

/// Serves a host's metrics and health, from before the host has opened its store and its data plane.
#[derive(Clone, Default)]
pub struct Endpoint(Arc<OnceLock<HostView>>);

impl Endpoint {
    /// Starts serving on a listening socket, on a separate thread, until the process ends.
    pub fn start(&self, listener: TcpListener, stop: Arc<AtomicBool>) -> Result<()> {
        let is_over = move || stop.load(Ordering::Acquire);
        serve(listener, is_over, self.clone())
    }

    /// The host has started.
    pub fn serve(&self, view: HostView) {
        let _ = self.0.set(view);
    }
}

impl inband_metrics::Source for Endpoint {
    fn metrics(&self) -> Result<Vec<u8>> {
        match self.0.get() {
            Some(view) => encode(view),
            None => starting(),
        }
    }

    fn live(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), health::live)
    }

    fn ready(&self) -> Result<()> {
        let view = self.0.get();
        health::ready(view.context("the host is opening its store and its data plane")?)
    }
}
