//! What cluster-aware and Sentinel-aware clients ask: which replicas there are, and which is the master.
//!
//! Every replica takes every command, so all hash slots belong to one shard. Its master is the living replica with the
//! lowest node id, and the other living ones are its replicas. Splitting the slots between the replicas would spread
//! clients, but what they add up over all masters (`DBSIZE`, `KEYS`, `SCAN`) would count every key several times.

use std::net::IpAddr;

use inband_host::config::ClientAddress;
use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::info::Identity;
use crate::parse::{integer, unknown_subcommand, wrong_arity};
use crate::partition::{slot, SLOTS};
use crate::peer_exchange::{Announcement, View};
use crate::table::CommandId;

/// How a replica answers clients that look for replicas.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// The cluster's name: what Sentinel calls the name of the master.
    pub cluster: String,
    /// This replica's node id.
    pub node: u64,
    /// Where clients reach this replica; `None`: its first listener.
    pub announce: Option<ClientAddress>,
    /// It answers as a node of Redis Cluster.
    pub is_cluster: bool,
    /// It redirects clients of Redis Cluster to the master.
    pub redirects: bool,
}

impl Default for Discovery {
    fn default() -> Self {
        Self {
            cluster: "inband".into(),
            node: 0,
            announce: None,
            is_cluster: false,
            redirects: false,
        }
    }
}

impl Discovery {
    /// The name of a node in Redis Cluster and of a Sentinel: 40 hexadecimal digits, the same at all replicas.
    fn id_of(&self, node: u64) -> String {
        inband_lua::sha1_hex(format!("inband/{}/{node}", self.cluster).as_bytes())
    }
}

const DISABLED: &str =
    "ERR This instance has cluster support disabled; set host.redis_cluster = true";
/// Subcommands of Redis Cluster that make no sense here.
const UNSUPPORTED: [&str; 16] = [
    "ADDSLOTS",
    "ADDSLOTSRANGE",
    "BUMPEPOCH",
    "DELSLOTS",
    "DELSLOTSRANGE",
    "FAILOVER",
    "FLUSHSLOTS",
    "FORGET",
    "MEET",
    "REPLICATE",
    "RESET",
    "SAVECONFIG",
    "SET-CONFIG-EPOCH",
    "SETSLOT",
    "LINKS",
    "COUNT-FAILURE-REPORTS",
];

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Answers a question, except `READONLY` and `READWRITE` where they are valid.
pub fn answer(
    id: CommandId,
    args: Args<'_>,
    view: &View,
    identity: &Identity,
    applied_instance: u64,
) -> Reply {
    let teller = Teller {
        view,
        discovery: &identity.discovery,
        has_tls: identity.has_tls,
        applied_instance,
    };
    match id {
        CommandId::Role => Reply::Array(vec![
            Reply::bulk("master"),
            Reply::Integer(applied_instance as i64),
            Reply::Array(Vec::new()),
        ]),
        CommandId::Sentinel => teller.sentinel(args),
        _ if !identity.discovery.is_cluster => Reply::error(DISABLED),
        CommandId::Cluster => teller.cluster(args),
        // The connection has noted it.
        _ => Reply::Ok,
    }
}

struct Teller<'a> {
    view: &'a View,
    discovery: &'a Discovery,
    /// Clients must use TLS.
    has_tls: bool,
    applied_instance: u64,
}

fn text(text: &str) -> Reply {
    Reply::bulk(text)
}

/// A map of strings, as Sentinel writes all its numbers.
fn fields(pairs: Vec<(&'static str, String)>) -> Reply {
    let pairs = pairs.into_iter();
    Reply::Map(pairs.map(|(k, v)| (text(k), Reply::bulk(v))).collect())
}

impl Teller<'_> {
    fn cluster(&self, args: Args<'_>) -> Reply {
        let subcommand = args.get(1);
        let takes = |arguments: usize| args.len() == 2 + arguments;
        let arity = |name: &str| wrong_arity(&format!("cluster|{name}"));
        match subcommand {
            s if is(s, "INFO") && takes(0) => self.info(),
            s if is(s, "INFO") => arity("info"),
            s if is(s, "MYID") && takes(0) => Reply::bulk(self.discovery.id_of(self.view.own)),
            s if is(s, "MYID") => arity("myid"),
            s if is(s, "SLOTS") && takes(0) => self.slots(),
            s if is(s, "SLOTS") => arity("slots"),
            s if is(s, "SHARDS") && takes(0) => self.shards(),
            s if is(s, "SHARDS") => arity("shards"),
            s if is(s, "NODES") && takes(0) => {
                let lines = self.view.living.iter().map(|node| self.line(node));
                Reply::bulk(lines.map(|line| line + "\n").collect::<String>())
            }
            s if is(s, "NODES") => arity("nodes"),
            s if (is(s, "REPLICAS") || is(s, "SLAVES")) && takes(1) => self.replicas(args.get(2)),
            s if is(s, "REPLICAS") || is(s, "SLAVES") => {
                arity(&String::from_utf8_lossy(s).to_lowercase())
            }
            s if is(s, "KEYSLOT") && takes(1) => Reply::Integer(slot(args.get(2)) as i64),
            s if is(s, "KEYSLOT") => arity("keyslot"),
            s if is(s, "COUNTKEYSINSLOT") && takes(1) => match slot_number(args.get(2)) {
                Ok(()) => not_by_slot("COUNTKEYSINSLOT"),
                Err(reply) => reply,
            },
            s if is(s, "COUNTKEYSINSLOT") => arity("countkeysinslot"),
            s if is(s, "GETKEYSINSLOT") && takes(2) => match slot_number(args.get(2)) {
                Ok(()) => not_by_slot("GETKEYSINSLOT"),
                Err(reply) => reply,
            },
            s if is(s, "GETKEYSINSLOT") => arity("getkeysinslot"),
            s if is(s, "HELP") && takes(0) => help(
                "CLUSTER",
                "COUNTKEYSINSLOT GETKEYSINSLOT INFO KEYSLOT MYID NODES REPLICAS SHARDS SLOTS",
            ),
            s => match UNSUPPORTED.iter().find(|name| is(s, name)) {
                Some(name) => Reply::error(format!(
                    "ERR CLUSTER {name} is not supported: every replica has all slots; `inband member` \
                     changes the cluster"
                )),
                None => unknown_subcommand("CLUSTER", s),
            },
        }
    }

    fn is_master(&self, node: &Announcement) -> bool {
        self.view.master() == Some(node)
    }

    fn info(&self) -> Reply {
        let nodes = self.view.living.len();
        let (state, assigned, masters) = match nodes {
            0 => ("fail", 0, 0),
            _ => ("ok", SLOTS, 1),
        };
        Reply::bulk(format!(
            "cluster_state:{state}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{assigned}\r\n\
             cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{nodes}\r\n\
             cluster_size:{masters}\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n\
             cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n"
        ))
    }

    /// One range, or none if no replica is known to serve: clients then ask another node.
    fn slots(&self) -> Reply {
        if self.view.living.is_empty() {
            return Reply::Array(Vec::new());
        }
        let mut range = vec![Reply::Integer(0), Reply::Integer(SLOTS as i64 - 1)];
        range.extend(self.view.living.iter().map(|node| {
            Reply::Array(vec![
                text(&node.address.host),
                Reply::Integer(node.address.port.into()),
                Reply::bulk(self.discovery.id_of(node.node)),
                Reply::Map(Vec::new()),
            ])
        }));
        Reply::Array(vec![Reply::Array(range)])
    }

    fn shards(&self) -> Reply {
        if self.view.living.is_empty() {
            return Reply::Array(Vec::new());
        }
        let nodes = self.view.living.iter().map(|node| self.node_of_shard(node));
        let slots = [Reply::Integer(0), Reply::Integer(SLOTS as i64 - 1)];
        Reply::Array(vec![Reply::Map(vec![
            (text("slots"), Reply::Array(slots.to_vec())),
            (text("nodes"), Reply::Array(nodes.collect())),
        ])])
    }

    fn node_of_shard(&self, node: &Announcement) -> Reply {
        let host = &node.address.host;
        let port = if self.has_tls { "tls-port" } else { "port" };
        let mut pairs = vec![
            (text("id"), Reply::bulk(self.discovery.id_of(node.node))),
            (text(port), Reply::Integer(node.address.port.into())),
            (text("ip"), text(host)),
            (text("endpoint"), text(host)),
        ];
        if host.parse::<IpAddr>().is_err() {
            pairs.push((text("hostname"), text(host)));
        }
        let role = match self.is_master(node) {
            true => "master",
            false => "replica",
        };
        pairs.extend([
            (text("role"), text(role)),
            (
                text("replication-offset"),
                Reply::Integer(self.applied_instance as i64),
            ),
            (text("health"), text("online")),
        ]);
        Reply::Map(pairs)
    }

    /// A line of `CLUSTER NODES`. There is no cluster bus, so its port is 0.
    fn line(&self, node: &Announcement) -> String {
        let ClientAddress { host, port } = &node.address;
        let id = self.discovery.id_of(node.node);
        let myself = match node.node == self.view.own {
            true => "myself,",
            false => "",
        };
        let place = match self.view.master() {
            Some(master) if master != node => {
                format!(
                    "slave {} 0 0 1 connected",
                    self.discovery.id_of(master.node)
                )
            }
            _ => format!("master - 0 0 1 connected 0-{}", SLOTS - 1),
        };
        format!("{id} {host}:{port}@0 {myself}{place}")
    }

    fn replicas(&self, of: &[u8]) -> Reply {
        let named = |node: &&Announcement| is(of, &self.discovery.id_of(node.node));
        let mut living = self.view.living.iter();
        match living.find(named) {
            None => {
                let of = String::from_utf8_lossy(&of[..of.len().min(128)]);
                Reply::error(format!("ERR Unknown node {of}"))
            }
            Some(node) if !self.is_master(node) => {
                Reply::error("ERR The specified node is not a master")
            }
            Some(_) => {
                let replicas = self.view.living.iter().skip(1);
                let lines = replicas.map(|node| Reply::bulk(self.line(node)));
                Reply::Array(lines.collect())
            }
        }
    }

    fn sentinel(&self, args: Args<'_>) -> Reply {
        let subcommand = args.get(1);
        let takes = |arguments: usize| args.len() == 2 + arguments;
        let arity = || {
            let name = String::from_utf8_lossy(subcommand);
            wrong_arity(&format!("sentinel|{name}"))
        };
        match subcommand {
            s if is(s, "MYID") && takes(0) => {
                return Reply::bulk(self.discovery.id_of(self.view.own));
            }
            s if is(s, "MASTERS") && takes(0) => {
                return Reply::Array(
                    self.view
                        .master()
                        .map(|m| self.master(m))
                        .into_iter()
                        .collect(),
                );
            }
            s if is(s, "HELP") && takes(0) => {
                let known =
                    "CKQUORUM GET-MASTER-ADDR-BY-NAME MASTER MASTERS MYID REPLICAS SENTINELS";
                return help("SENTINEL", known);
            }
            s if is(s, "MYID") || is(s, "MASTERS") || is(s, "HELP") => return arity(),
            _ => {}
        }
        let named = [
            "CKQUORUM",
            "GET-MASTER-ADDR-BY-NAME",
            "MASTER",
            "REPLICAS",
            "SENTINELS",
            "SLAVES",
        ];
        let Some(asked) = named.iter().find(|name| is(subcommand, name)) else {
            return unknown_subcommand("SENTINEL", subcommand);
        };
        if !takes(1) {
            return arity();
        }
        let is_known = args.get(2) == self.discovery.cluster.as_bytes();
        let master = self.view.master().filter(|_| is_known);
        let Some(master) = master else {
            return match *asked {
                "GET-MASTER-ADDR-BY-NAME" => Reply::NilArray,
                _ => Reply::error("ERR No such master with that name"),
            };
        };
        let others = self.view.living.iter().skip(1);
        match *asked {
            "GET-MASTER-ADDR-BY-NAME" => {
                let port = master.address.port.to_string();
                Reply::Array(vec![text(&master.address.host), Reply::bulk(port)])
            }
            "MASTER" => self.master(master),
            "SENTINELS" => {
                let others = self.view.living.iter();
                let others = others.filter(|node| node.node != self.view.own);
                Reply::Array(others.map(|node| self.as_sentinel(node)).collect())
            }
            "CKQUORUM" => Reply::Status(
                format!(
                    "OK {} usable Sentinels. Quorum and failover authorization can be reached",
                    self.view.living.len()
                )
                .into(),
            ),
            _ => Reply::Array(others.map(|node| self.replica(node, master)).collect()),
        }
    }

    /// The fields that Sentinel reports for every instance.
    fn instance(
        &self,
        name: String,
        node: &Announcement,
        flags: &'static str,
    ) -> Vec<(&'static str, String)> {
        vec![
            ("name", name),
            ("ip", node.address.host.clone()),
            ("port", node.address.port.to_string()),
            ("runid", self.discovery.id_of(node.node)),
            ("flags", flags.into()),
            ("link-pending-commands", "0".into()),
            ("link-refcount", "1".into()),
            ("last-ping-sent", "0".into()),
            ("last-ok-ping-reply", "0".into()),
            ("last-ping-reply", "0".into()),
            ("down-after-milliseconds", "0".into()),
        ]
    }

    fn master(&self, master: &Announcement) -> Reply {
        let others = self.view.living.len().saturating_sub(1).to_string();
        let mut all = self.instance(self.discovery.cluster.clone(), master, "master");
        all.extend([
            ("info-refresh", "0".into()),
            ("role-reported", "master".into()),
            ("role-reported-time", "0".into()),
            ("config-epoch", "0".into()),
            ("num-slaves", others.clone()),
            ("num-other-sentinels", others),
            ("quorum", "1".into()),
            ("failover-timeout", "0".into()),
            ("parallel-syncs", "1".into()),
        ]);
        fields(all)
    }

    fn replica(&self, node: &Announcement, master: &Announcement) -> Reply {
        let name = format!("{}:{}", node.address.host, node.address.port);
        let mut all = self.instance(name, node, "slave");
        all.extend([
            ("info-refresh", "0".into()),
            ("role-reported", "slave".into()),
            ("role-reported-time", "0".into()),
            ("master-link-down-time", "0".into()),
            ("master-link-status", "ok".into()),
            ("master-host", master.address.host.clone()),
            ("master-port", master.address.port.to_string()),
            ("slave-priority", "100".into()),
            ("slave-repl-offset", self.applied_instance.to_string()),
            ("replica-announced", "1".into()),
        ]);
        fields(all)
    }

    fn as_sentinel(&self, node: &Announcement) -> Reply {
        let mut all = self.instance(self.discovery.id_of(node.node), node, "sentinel");
        all.extend([
            ("last-hello-message", "0".into()),
            ("voted-leader", "?".into()),
            ("voted-leader-epoch", "0".into()),
        ]);
        fields(all)
    }
}

fn slot_number(arg: &[u8]) -> Result<(), Reply> {
    match integer(arg)? {
        0..=16_383 => Ok(()),
        _ => Err(Reply::error("ERR Invalid slot")),
    }
}

fn not_by_slot(name: &str) -> Reply {
    Reply::error(format!(
        "ERR CLUSTER {name} is not supported: keys are not stored by slot; use SCAN"
    ))
}

fn help(command: &str, subcommands: &'static str) -> Reply {
    let first = format!("{command} <subcommand>:");
    Reply::Array(vec![
        Reply::Status(first.into()),
        Reply::Status(subcommands.into()),
    ])
}
