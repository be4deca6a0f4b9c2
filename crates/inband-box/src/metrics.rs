//! `/metrics` of a node, for Prometheus: what its status says.

use std::net::TcpListener;

use anyhow::{Context, Result};
use inband_metrics::{serve, NodeGauges, Source};

use crate::node::Quorum;
use crate::status::Status;

/// Reads the status of a node; `None`: it is starting.
struct StatusSource<S>(S);

impl<S: Fn() -> Option<Status> + Send + Sync + 'static> StatusSource<S> {
    fn status(&self) -> Result<Status> {
        (self.0)().context("the node is starting")
    }
}

impl<S: Fn() -> Option<Status> + Send + Sync + 'static> Source for StatusSource<S> {
    fn metrics(&self) -> Result<Vec<u8>> {
        encode(&self.status()?)
    }

    /// A starting node is live.
    fn live(&self) -> Result<()> {
        Ok(())
    }

    fn ready(&self) -> Result<()> {
        Ok(self.status()?.check_ready()?)
    }
}

/// Serves the metrics of a node with this status; `None`: it is starting.
pub fn start(
    listener: TcpListener,
    status: impl Fn() -> Option<Status> + Send + Sync + 'static,
) -> Result<()> {
    serve(listener, || false, StatusSource(status))
}

fn encode(status: &Status) -> Result<Vec<u8>> {
    let gauges = NodeGauges::new("inband_box", &status.name);
    gauges.add_dataplane(&status.dataplane.to_string(), &status.why)?;
    gauges.add_state(
        "1 for the state of the node: leading, following, electing, waiting or recovering",
        &status.state,
    )?;
    let membership = &status.membership;
    let is_all = membership.quorum == Quorum::All;
    for (name, help, value) in [
        (
            "leading",
            "1 if the node leads",
            u64::from(status.state == "leading"),
        ),
        (
            "epoch",
            "Highest epoch that the node has proposed or promised",
            status.epoch,
        ),
        ("zxid_last", "Last record of the log", status.last),
        ("zxid_committed", "Last committed record", status.committed),
        (
            "zxid_applied",
            "Last record executed at this node",
            status.applied,
        ),
        ("items", "Items in the table", status.items),
        ("memory_bytes", "Size of the table", status.memory_bytes),
        (
            "memory_used_bytes",
            "Part of the table that items take",
            status.memory_used_bytes,
        ),
        ("members", "Members", membership.count().into()),
        (
            "joining",
            "Id of the node that is joining; 0: none",
            membership.joining.into(),
        ),
        (
            "quorum_all",
            "1 if every member must have a write, 0 if a majority suffices",
            is_all.into(),
        ),
    ] {
        gauges.add(name, help, value)?;
    }
    gauges.add_counter(
        "elections_total",
        "Elections that the node has begun",
        status.elections,
    )?;
    gauges.add_events(
        "Packets, requests and events by outcome, since the start",
        &status.counters,
    )?;
    gauges.text()
}
