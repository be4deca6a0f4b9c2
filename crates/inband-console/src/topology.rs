//! What the statuses of all systems have in common: hosts with a name, a state, a process and a few figures.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// Figures per host that are shown.
const DETAILS_MAX: usize = 10;
/// Longest text that is shown as a figure.
const DETAIL_LEN_MAX: usize = 24;
/// Fields that are shown elsewhere, or say nothing about the state.
const NOT_DETAILS: [&str; 20] = [
    "name",
    "node",
    "version",
    "pid",
    "listen",
    "address",
    "why",
    "dataplane",
    "dataplane_why",
    "keys.active",
    "transport",
    "durability",
    "state",
    "process",
    "backend",
    "stopping",
    "clock_skew_ms",
    "draining",
    "replica.replica",
    "replica.draining",
];
/// Objects that are not searched for figures.
const NOT_SEARCHED: [&str; 6] = [
    "counters",
    "keys",
    "membership",
    "backends",
    "link",
    "digest",
];

/// A host of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Host {
    /// As the command line accepts it: `acceptor/0`, `node/2`.
    pub name: String,
    /// `running`, `paused`, `exited`, ...
    pub state: String,
    pub is_leader: bool,
    pub pid: Option<u32>,
    pub restarts: u64,
    pub address: String,
    pub dataplane: String,
    /// Share of one CPU that its process used since the last status.
    pub cpu_percent: Option<f64>,
    /// Packets per second that its link carried since the last status, where the network counts them.
    pub packets_per_s: Option<f64>,
    /// Packets that its link has carried.
    #[serde(skip)]
    pub packets: Option<u64>,
    pub details: BTreeMap<String, Value>,
}

/// A cluster, as its supervisor describes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Topology {
    pub system: String,
    pub summary: BTreeMap<String, Value>,
    pub hosts: Vec<Host>,
    /// Why there is no status.
    pub error: Option<String>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Collects the scalar fields below a value.
fn details_of(value: &Value, prefix: &str, into: &mut BTreeMap<String, Value>) {
    let Value::Object(fields) = value else {
        return;
    };
    for (name, field) in fields {
        let path = match prefix {
            "" => name.clone(),
            prefix => format!("{prefix}.{name}"),
        };
        if NOT_DETAILS.contains(&&*path) || NOT_SEARCHED.contains(&&**name) {
            continue;
        }
        match field {
            Value::Number(_) | Value::Bool(_) => {
                into.insert(path, field.clone());
            }
            Value::String(text) if text.len() <= DETAIL_LEN_MAX => {
                into.insert(path, field.clone());
            }
            Value::Object(_) => details_of(field, &path, into),
            // Of several logs, the first.
            Value::Array(items) => match items.first() {
                Some(first @ Value::Object(_)) => details_of(first, &path, into),
                Some(first @ Value::Number(_)) if items.len() <= 16 => {
                    into.insert(path, first.clone());
                }
                _ => (),
            },
            _ => (),
        }
    }
}

/// What a host says of itself, if it leads.
fn leads(said: &Value) -> bool {
    let first = &said["leaders"][0]["active"];
    let replica = &said["replica"];
    first == true
        || said["state"] == "leading"
        || (replica["leader"].is_u64() && replica["leader"] == replica["replica"])
}

impl Topology {
    /// Reads the status of a cluster of any system.
    pub fn of(system: &str, status: &Value) -> Topology {
        let of_processes = ["hosts", "processes"].map(|list| status[list].as_array());
        let processes = of_processes.into_iter().flatten().next();
        let nodes = status["nodes"].as_array();
        let leaders = status["leaders"].as_array();
        let hosts = processes.into_iter().flatten().map(|process| {
            let name = text(&process["name"]);
            let node =
                nodes.and_then(|nodes| nodes.iter().find(|node| node["name"] == process["name"]));
            let said = node.unwrap_or(&process["status"]);
            let mut details = BTreeMap::new();
            details_of(said, "", &mut details);
            while details.len() > DETAILS_MAX {
                details.pop_last();
            }
            let state = [&process["state"], &process["process"]].map(text);
            let [own, of_process] = &state;
            let packets = ["from_host", "to_host"].map(|way| process["link"][way].as_u64());
            Host {
                is_leader: leads(said)
                    || leaders.is_some_and(|leaders| leaders.contains(&process["name"])),
                pid: process["pid"]
                    .as_u64()
                    .and_then(|pid| u32::try_from(pid).ok()),
                restarts: process["restarts"].as_u64().unwrap_or(0),
                address: [&process["address"], &said["listen"]]
                    .map(text)
                    .into_iter()
                    .find(|a| !a.is_empty())
                    .unwrap_or_default(),
                dataplane: [&process["dataplane"], &said["dataplane"], &said["backend"]]
                    .map(text)
                    .into_iter()
                    .find(|d| !d.is_empty())
                    .unwrap_or_default(),
                state: if own.is_empty() {
                    of_process.clone()
                } else {
                    own.clone()
                },
                cpu_percent: None,
                packets_per_s: None,
                packets: packets[0].zip(packets[1]).map(|(from, to)| from + to),
                name,
                details,
            }
        });
        let hosts = hosts.collect();
        let mut summary = BTreeMap::new();
        for name in [
            "network",
            "durability",
            "epoch",
            "partitions",
            "dataplane",
            "notice",
            "place",
        ] {
            if !status[name].is_null() {
                summary.insert(name.to_owned(), status[name].clone());
            }
        }
        Topology {
            system: if system.is_empty() {
                "kv".into()
            } else {
                system.to_owned()
            },
            summary,
            hosts,
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_of_the_store() {
        let status = json!({"epoch": 3, "leaders": ["leader"], "hosts": [
            {"name": "leader", "state": "running", "pid": 7, "restarts": 1, "address": "10.77.0.1:7400",
             "dataplane": "xdp", "link": {"from_host": 2, "to_host": 3},
             "status": {"name": "leader", "leaders": [{"active": true, "round": 5}], "counters": {"x": 1}}},
            {"name": "acceptor/0", "state": "exited", "pid": null, "status": null}]});
        let topology = Topology::of("", &status);
        assert_eq!(
            (&topology.system[..], &topology.summary["epoch"]),
            ("kv", &json!(3))
        );
        let [leader, acceptor] = &topology.hosts[..] else {
            panic!("{topology:?}");
        };
        assert!(leader.is_leader && !acceptor.is_leader);
        assert_eq!((leader.packets, leader.pid), (Some(5), Some(7)));
        assert_eq!(leader.details["leaders.round"], 5);
        assert!(!leader.details.contains_key("counters.x"));
        assert_eq!((&acceptor.state[..], acceptor.pid), ("exited", None));
    }

    #[test]
    fn processes_of_other_systems() {
        let status = json!({
            "processes": [{"name": "node/1", "process": "running", "pid": 9, "restarts": 0}],
            "nodes": [{"name": "node/1", "listen": "10.77.0.1:7400", "dataplane": "xdp", "state": "leading", "items": 4}]});
        let topology = Topology::of("box", &status);
        let node = &topology.hosts[0];
        assert!(node.is_leader);
        assert_eq!((&node.state[..], &node.dataplane[..]), ("running", "xdp"));
        assert_eq!(node.details["items"], 4);
    }
}
