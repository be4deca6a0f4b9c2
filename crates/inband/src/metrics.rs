//! `/metrics` for Prometheus, over HTTP.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use inband_cluster::paxos::control::{log_label, AcceptorStatus, LeaderStatus};
use inband_metrics::{add, serve, signed, text, Registry};

use crate::health;
use crate::serve::HostView;

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
        add(
            &gauges.registry,
            "inband_replica_clock_skew_ms",
            "How far the wall clock is ahead of the majority of the replicas'",
            &["node"],
            [(&[gauges.node][..], skew_ms)],
        )?;
    }
    if let Some(replica) = &status.replica {
        let refuses = u64::from(replica.refuses.is_some());
        gauges.add("replica_refuses", "1 while commands are refused", refuses)?;
    }
    let events: Vec<([&str; 2], i64)> = status
        .counters
        .iter()
        .map(|(name, value)| ([gauges.node, name.as_str()], signed(*value)))
        .collect();
    add(
        &gauges.registry,
        "inband_events_total",
        "Packets and events by outcome, since the start",
        &["node", "event"],
        events.iter().map(|(of, value)| (&of[..], *value)),
    )?;
    text(&gauges.registry)
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
