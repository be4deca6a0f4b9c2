//! `/metrics` for Prometheus, over HTTP.

use std::net::TcpListener;
use std::sync::atomic::Ordering;

use anyhow::{anyhow, Context, Result};
use inband_cluster::paxos::control::{log_label, AcceptorStatus, LeaderStatus};
use prometheus::{Encoder, IntGaugeVec, Opts, Registry, TextEncoder};
use tiny_http::{Header, Response, Server};

use crate::serve::HostView;

/// Gauges of one host, by name.
struct Gauges<'a> {
    registry: Registry,
    node: &'a str,
}

impl Gauges<'_> {
    fn add(&self, name: &str, help: &str, value: u64) -> Result<()> {
        let gauge = IntGaugeVec::new(Opts::new(format!("inband_{name}"), help), &["node"])?;
        gauge.with_label_values(&[self.node]).set(signed(value));
        self.registry.register(Box::new(gauge))?;
        Ok(())
    }

    /// One value per log; none at all if the host does not have the role.
    fn add_per_log(&self, name: &str, help: &str, values: &[u64]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let gauge = IntGaugeVec::new(
            Opts::new(format!("inband_{name}"), help),
            &["node", "partition"],
        )?;
        for (log, value) in values.iter().enumerate() {
            let partition = log_label(log, values.len());
            gauge
                .with_label_values(&[self.node, &partition])
                .set(signed(*value));
        }
        self.registry.register(Box::new(gauge))?;
        Ok(())
    }
}

fn encode(view: &HostView) -> Result<Vec<u8>> {
    let status = view.status();
    let gauges = Gauges {
        registry: Registry::new(),
        node: &status.name,
    };
    gauges.add("epoch", "Configuration epoch", u64::from(status.epoch))?;
    gauges.add(
        "memory_bytes",
        "Registers, rings and log of decided values",
        status.memory_bytes,
    )?;
    let dataplane = IntGaugeVec::new(
        Opts::new(
            "inband_dataplane",
            "1 for the data plane in force; why not a better one",
        ),
        &["node", "dataplane", "why"],
    )?;
    let labels = [
        gauges.node,
        &view.choice.dataplane.to_string(),
        &status.dataplane_why,
    ];
    dataplane.with_label_values(&labels).set(1);
    gauges.registry.register(Box::new(dataplane))?;
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
        let gauge = IntGaugeVec::new(
            Opts::new(
                "inband_replica_clock_skew_ms",
                "How far the wall clock is ahead of the majority of the replicas'",
            ),
            &["node"],
        )?;
        gauge.with_label_values(&[gauges.node]).set(skew_ms);
        gauges.registry.register(Box::new(gauge))?;
    }
    if let Some(replica) = &status.replica {
        let refuses = u64::from(replica.refuses.is_some());
        gauges.add("replica_refuses", "1 while commands are refused", refuses)?;
    }
    let events = IntGaugeVec::new(
        Opts::new(
            "inband_events_total",
            "Packets and events by outcome, since the start",
        ),
        &["node", "event"],
    )?;
    for (name, value) in &status.counters {
        events
            .with_label_values(&[gauges.node, name.as_str()])
            .set(signed(*value));
    }
    gauges.registry.register(Box::new(events))?;
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

/// Serves a host's metrics on a listening socket, on a separate thread, until the process ends.
pub fn start(listener: TcpListener, view: HostView) -> Result<()> {
    let stop = std::sync::Arc::clone(&view.stop);
    let is_over = move || stop.load(Ordering::Acquire);
    serve(listener, is_over, move || encode(&view))
}

/// Serves the output of `encode` at `/metrics`, on a separate thread, until it is stopped or the process ends.
pub fn serve(
    listener: TcpListener,
    is_over: impl Fn() -> bool + Send + 'static,
    encode: impl Fn() -> Result<Vec<u8>> + Send + 'static,
) -> Result<()> {
    let server = Server::from_listener(listener, None).map_err(|e| anyhow!("metrics: {e}"))?;
    let serve = move || {
        for request in server.incoming_requests() {
            if is_over() {
                return;
            }
            let response = match (request.url(), encode()) {
                ("/metrics", Ok(text)) => Response::from_data(text),
                ("/metrics", Err(error)) => {
                    Response::from_string(error.to_string()).with_status_code(500)
                }
                _ => Response::from_string("see /metrics\n").with_status_code(404),
            };
            let kind = Header::from_bytes("Content-Type", "text/plain; version=0.0.4");
            let response = kind.into_iter().fold(response, Response::with_header);
            if let Err(error) = request.respond(response) {
                tracing::debug!("metrics: {error}");
            }
        }
    };
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(serve)
        .context("metrics thread")?;
    Ok(())
}

/// Returns the text form of everything registered.
pub fn text(registry: &Registry) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

/// Gauges take signed numbers.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
