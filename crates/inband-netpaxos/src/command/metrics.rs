//! `/metrics` of a process, for Prometheus: what its status says.

use std::net::TcpListener;

use anyhow::{bail, Result};
use inband_metrics::{serve, NodeGauges};
use inband_netpaxos::status::{Ask, Reply, Status};

/// Names of gauges in a status, and what they are.
const HELP: [(&str, &str); 17] = [
    (
        "unsafe_ordering",
        "1 if the learner decides by the order of arrival alone (--faithful)",
    ),
    (
        "requests_unconfirmed",
        "Requests in the minions' queues that their storage servers have not confirmed",
    ),
    (
        "numbers_without_request",
        "Confirmed numbers in the minions' queues whose request has not arrived",
    ),
    (
        "instances_undecided",
        "Instances with votes and without a decision",
    ),
    (
        "instances_in_recovery",
        "Instances that this learner recovers",
    ),
    (
        "instances_undelivered",
        "Decided instances that wait for an earlier one",
    ),
    (
        "instances_kept",
        "Delivered instances kept for other learners",
    ),
    ("instances_highest", "Highest instance that may be in use"),
    (
        "reads_waiting",
        "Reads that wait for storage servers or instances",
    ),
    (
        "instances_stored",
        "Instances with votes, promises or decisions",
    ),
    (
        "instances_without_memory",
        "Instances in which it must stay silent, because it has lost its votes",
    ),
    ("instances_floor", "Instances up to here are forgotten"),
    (
        "gaps_open",
        "Missing numbers of the minion that may still arrive",
    ),
    (
        "numbers_unreported",
        "Stored numbers that have not been reported to learners",
    ),
    ("store_keys", "Keys in the store"),
    ("store_values_in_flight", "Values submitted and undecided"),
    ("store_clients", "Connected clients"),
];

/// Serves the metrics of a process that answers requests like this.
pub fn start(
    listener: TcpListener,
    answer: impl Fn(Ask) -> Reply + Send + Sync + 'static,
) -> Result<()> {
    let encoded = move || match answer(Ask::Status) {
        Reply::Status(status) => encode(&status),
        Reply::Error(error) => bail!("{error}"),
        Reply::Log(..) => bail!("a log is not a status"),
    };
    serve(listener, || false, encoded)
}

fn encode(status: &Status) -> Result<Vec<u8>> {
    let gauges = NodeGauges::new("inband_netpaxos", &status.name);
    gauges.add_dataplane(&status.dataplane.to_string(), &status.why)?;
    gauges.add_state("1 for the state of the process", &status.state)?;
    gauges.add(
        "position",
        "Requests passed (serializer, minion), highest instance (storage), instances delivered (learner)",
        status.position,
    )?;
    for (name, value) in &status.gauges {
        let help = HELP.iter().find(|(known, _)| known == name);
        gauges.add(name, help.map_or(name, |(_, help)| help), *value)?;
    }
    gauges.add_events(
        "Packets and events by outcome, since the start",
        &status.counters,
    )?;
    gauges.text()
}
