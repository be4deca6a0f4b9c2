//! `/metrics` for Prometheus, over HTTP.

use std::net::TcpListener;
use std::sync::atomic::Ordering;

use anyhow::{anyhow, Context, Result};
use prometheus::{Encoder, IntGaugeVec, Opts, Registry, TextEncoder};
use tiny_http::{Header, Response, Server};

use crate::serve::HostView;

fn encode(view: &HostView) -> Result<Vec<u8>> {
    let registry = Registry::new();
    let status = view.status();
    let labels = [status.name.as_str()];
    let gauge = |name: &str, help: &str, value: u64| -> Result<()> {
        let gauge = IntGaugeVec::new(Opts::new(format!("inband_{name}"), help), &["node"])?;
        gauge
            .with_label_values(&labels)
            .set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(Box::new(gauge))?;
        Ok(())
    };
    gauge("epoch", "Configuration epoch", u64::from(status.epoch))?;
    gauge(
        "memory_bytes",
        "Registers, rings and log of decided values",
        status.memory_bytes,
    )?;
    if let Some(leader) = status.leader {
        gauge(
            "leader_active",
            "1 if this host leads",
            u64::from(leader.active),
        )?;
        gauge(
            "leader_next_instance",
            "Instance of the next request",
            leader.next_instance,
        )?;
        gauge(
            "leader_floor",
            "Trim floor known to the leader",
            leader.floor,
        )?;
    }
    if let Some(acceptor) = status.acceptor {
        gauge(
            "acceptor_voting",
            "0 if recovering",
            u64::from(acceptor.voting),
        )?;
        gauge(
            "acceptor_highest_voted",
            "Highest instance voted",
            acceptor.highest_voted,
        )?;
        gauge("acceptor_floor", "Trim floor", acceptor.floor)?;
    }
    if let Some(replica) = status.replica {
        gauge("replica_applied", "Last instance applied", replica.applied)?;
        gauge("replica_keys", "Keys in the store", replica.keys)?;
        gauge("replica_clients", "Connected clients", replica.clients)?;
        gauge(
            "replica_outstanding",
            "Values submitted and undecided",
            replica.outstanding,
        )?;
    }
    let events = IntGaugeVec::new(
        Opts::new(
            "inband_events_total",
            "Packets and events by outcome, since the start",
        ),
        &["node", "event"],
    )?;
    for (name, value) in &status.counters {
        let value = i64::try_from(*value).unwrap_or(i64::MAX);
        events
            .with_label_values(&[labels[0], name.as_str()])
            .set(value);
    }
    registry.register(Box::new(events))?;
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

/// Serve on a listening socket, on a thread of its own, until the process ends.
pub fn start(listener: TcpListener, view: HostView) -> Result<()> {
    let server = Server::from_listener(listener, None).map_err(|e| anyhow!("metrics: {e}"))?;
    let serve = move || {
        for request in server.incoming_requests() {
            if view.stop.load(Ordering::Acquire) {
                return;
            }
            let response = match (request.url(), encode(&view)) {
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
