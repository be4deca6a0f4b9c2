//! `inband top` for a box: what each node does, and how much of it in a second.

use anyhow::Result;
use clap::Args;
use inband_box::process::Status;
use inband_host::size::size;
use serde::Serialize;

use super::{BoxCluster, ClusterStatus};
use crate::host_process::ProcessStatus;
use crate::top::TopArgs;

/// Requests that the gateway took, and GETs that the packet program answered.
const REQUESTS: [&str; 3] = ["gateway_requests", "gets_hit", "gets_miss"];
/// Keys that were read.
const GETS: [&str; 3] = ["gateway_cmd_get", "gets_hit", "gets_miss"];
const SETS: [&str; 1] = ["gateway_cmd_set"];
const CLIENTS: &str = "gateway_connections";

/// Options of `inband top`.
#[derive(Args)]
pub struct BoxTopArgs {
    #[command(flatten)]
    top: TopArgs<BoxCluster>,
    /// Print each update as one line of JSON: a list of nodes
    #[arg(long)]
    json: bool,
}

impl BoxTopArgs {
    pub(super) fn run(&self) -> Result<()> {
        // Rates need an earlier status.
        let mut before = self.top.status()?;
        self.top.wait();
        self.top.run(|now| {
            let rows = rows(&before, now);
            before = now.clone();
            match self.json {
                true => serde_json::to_string(&rows).expect("plain data") + "\n",
                false => table(&rows),
            }
        })
    }
}

/// What is shown of a node.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// leading, following, electing, waiting or recovering; killed, paused or ended, if it does not answer.
    state: String,
    #[serde(flatten)]
    figures: Option<Figures>,
}

#[derive(Debug, Serialize)]
struct Figures {
    epoch: u64,
    committed: u64,
    applied: u64,
    /// Requests of all kinds; `null` if the node has just started.
    operations_per_s: Option<f64>,
    gets_per_s: Option<f64>,
    sets_per_s: Option<f64>,
    clients: u64,
    memory_used_bytes: u64,
    memory_bytes: u64,
}

fn rows(before: &ClusterStatus, now: &ClusterStatus) -> Vec<Row> {
    let find = |status: &'_ ClusterStatus, name: &str| -> Option<Status> {
        status.nodes.iter().find(|node| node.name == name).cloned()
    };
    let row = |process: &ProcessStatus| {
        let node = find(now, &process.name);
        let earlier = find(before, &process.name);
        let state = node.as_ref().map_or_else(
            || match process.in_words() {
                "" => "starting".to_owned(),
                why => why.to_owned(),
            },
            |node| node.state.clone(),
        );
        Row {
            name: process.name.clone(),
            state,
            figures: node.map(|node| figures(earlier.as_ref(), &node)),
        }
    };
    now.processes.iter().map(row).collect()
}

fn figures(before: Option<&Status>, now: &Status) -> Figures {
    let rate = |counters: &[&str]| rate(before?, now, counters);
    Figures {
        epoch: now.epoch,
        committed: now.committed,
        applied: now.applied,
        operations_per_s: rate(&REQUESTS),
        gets_per_s: rate(&GETS),
        sets_per_s: rate(&SETS),
        clients: now.counters.get(CLIENTS).copied().unwrap_or(0),
        memory_used_bytes: now.memory_used_bytes,
        memory_bytes: now.memory_bytes,
    }
}

/// By how much the sum of these counters grew in a second. `None`: it is another process, or has no newer status.
fn rate(before: &Status, now: &Status, counters: &[&str]) -> Option<f64> {
    let sum = |status: &Status| -> u64 {
        let counts = counters
            .iter()
            .filter_map(|name| status.counters.get(*name));
        counts.sum()
    };
    let grown = sum(now).checked_sub(sum(before))?;
    let passed_ms = now.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)?;
    (now.pid == before.pid).then(|| grown as f64 * 1000.0 / passed_ms as f64)
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<7} {:<10} {:>6} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7}  memory\n",
        "node", "state", "epoch", "committed", "applied", "ops/s", "GETs/s", "SETs/s", "clients"
    );
    for Row {
        name,
        state,
        figures,
    } in rows
    {
        let Some(figures) = figures else {
            text += &format!("{name:<7} {state}\n");
            continue;
        };
        let rate =
            |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
        text += &format!(
            "{name:<7} {state:<10} {:>6} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7}  {} of {}\n",
            figures.epoch,
            figures.committed,
            figures.applied,
            rate(figures.operations_per_s),
            rate(figures.gets_per_s),
            rate(figures.sets_per_s),
            figures.clients,
            size(figures.memory_used_bytes),
            size(figures.memory_bytes)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, Value};

    use super::*;

    /// A node as it reports itself, with these requests so far.
    fn status(pid: u32, at_ms: u64, sets: u64) -> Status {
        let membership = inband_box::membership::Membership::founding(3, Default::default());
        let counters = json!({
            "gateway_requests": 2 * sets, "gateway_cmd_set": sets, "gateway_cmd_get": 7,
            "gets_hit": sets, "gateway_connections": 4,
        });
        let mut node: Value = json!({
            "name": "node/1", "listen": "127.0.0.1:7001", "dataplane": "udp", "why": "", "memcached": [],
            "state": "leading", "epoch": 3, "leader": 1, "last": 12, "committed": 11, "applied": 10,
            "digest": 0, "items": 1, "memory_bytes": 1 << 20, "memory_used_bytes": 1 << 10,
            "elections": 1, "notes": [],
        });
        node["pid"] = pid.into();
        node["at_ms"] = at_ms.into();
        node["counters"] = counters;
        node["membership"] = serde_json::to_value(membership).unwrap();
        from_value(node).unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_two_statuses_of_one_process() {
        let before = status(5, 1000, 100);
        let now = figures(Some(&before), &status(5, 1500, 200));
        assert_eq!(now.sets_per_s, Some(200.0));
        // Answered by the packet program.
        assert_eq!(now.gets_per_s, Some(200.0));
        assert_eq!(now.operations_per_s, Some(600.0));
        assert_eq!((now.clients, now.memory_used_bytes), (4, 1 << 10));
        for other in [
            status(6, 1500, 200),
            status(5, 1000, 100),
            status(5, 1500, 99),
        ] {
            assert_eq!(figures(Some(&before), &other).sets_per_s, None);
        }
        assert_eq!(figures(None, &before).sets_per_s, None);
    }

    #[test]
    fn a_table_has_a_line_for_each_node() {
        let row = |figures, state: &str| Row {
            name: "node/1".to_owned(),
            state: state.to_owned(),
            figures,
        };
        let runs = figures(None, &status(5, 1000, 100));
        let text = table(&[row(Some(runs), "leading"), row(None, "killed")]);
        let words = |line: usize| -> Vec<&str> {
            text.lines().nth(line).unwrap().split_whitespace().collect()
        };
        let first = ["node/1", "leading", "3", "11", "10", "-", "-", "-", "4"];
        assert_eq!(words(1)[..9], first);
        assert_eq!(words(1)[9..], ["1", "KiB", "of", "1", "MiB"]);
        assert_eq!(words(2), ["node/1", "killed"]);
    }
}
