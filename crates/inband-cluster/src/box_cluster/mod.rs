//! Clusters of consensus in a box on this machine: nodes that serve memcached's clients (docs/box.md).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_box::durable::Durability;
use inband_box::limits::{
    CLIENTS_MAX, CLIENTS_MEMORY_BYTES_MAX, DATAGRAMS_UNDER_WAY_MAX, INCOMPLETE_REQUEST_MS_MAX,
    LOG_RECORDS_DEFAULT, NODE_COUNTS, TABLE_BYTES_DEFAULT, UNANSWERED_MS_MAX, UNREAD_MS_MAX,
};
use inband_box::membership::{ids, Change, Membership};
pub use inband_box::node::Quorum;
use inband_box::process::{socket_of, status_at, Status};
use inband_box::promise::majority;
use inband_box::stored::{forget, has_log, has_promised, is_new, SESSION};
use inband_box::NODES;
use inband_host::config::Dataplane;
use inband_host::program;
use inband_host::settings::{of_up, Setting, BUILT_IN};
use inband_host::size::parse_size;
use inband_lab::lab::HOST_INTERFACE;
use inband_lab::Lab;
use serde::{Deserialize, Serialize};

use crate::command::{
    counters_of, data_option, node_status_of, nodes_in_words, parse_options, NodeInWords,
    SystemCommand,
};
use crate::host_process::{HostProcess, Process, ProcessStatus};
use crate::keys;
use crate::listeners;
use crate::network::Network;
use crate::socket;
use crate::supervisor::{finish_removal, host_dir, remove_hosts, store, Hosts};
use crate::system::{is_spare, HostPlan, Plan, System};

mod change;

use change::membership_of;
pub use change::{add, change, remove, BoxCommand, MemberCommand, QuorumArgs};

/// The options with which the cluster was started, in its directory.
const FILE: &str = "cluster.json";
/// The nodes of the cluster since then, likewise.
const MEMBERS_FILE: &str = "members.json";
/// What a cluster that begins with an empty table must not find.
const FILES: [&str; 2] = [FILE, MEMBERS_FILE];
/// The current leader, as a role's name.
const LEADER: &str = "leader";
/// States of a node, as it reports them.
const LEADING: &str = "leading";
const FOLLOWING: &str = "following";
const ELECTING: &str = "electing";
const RECOVERING: &str = "recovering";
/// Options whose ports are checked before a node starts.
const MEMCACHED: &str = "--memcached";
const MEMCACHED_LOCAL: &str = "--memcached-local";
const MEMCACHED_UDP: &str = "--memcached-udp";
const SELF_CHECK_KEY: &str = "inband-self-check";
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Spec {
    pub data: PathBuf,
    pub options: Options,
    /// The nodes' program; by default the `inband-box` next to this one.
    pub program: Option<PathBuf>,
}

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of nodes: 3, 5 or 7, of which a minority may fail; 4 tolerate one failure, like 3
    #[arg(long, default_value_t = 3, value_parser = nodes)]
    pub nodes: u8,
    /// How many nodes must have a write before it is answered; with all, no write is answered while a node is down
    #[arg(long, value_enum, default_value_t = Quorum::Majority)]
    pub quorum: Quorum,
    /// Address for memcached clients of the first node; the other nodes use the ports that follow
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:11211")]
    pub memcached: SocketAddr,
    /// Address for clients that read the first node's own copy, which may be stale; the other nodes use the ports that
    /// follow
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(default)]
    pub memcached_local: Option<SocketAddr>,
    /// Size of each node's table, in bytes
    #[arg(long, value_name = "SIZE", default_value_t = TABLE_BYTES_DEFAULT, value_parser = parse_size)]
    pub memory: u64,
    /// Log records that each node keeps, a power of two, 1.3 KB each: a node that misses more gets the whole table
    #[arg(long, value_name = "COUNT", default_value_t = LOG_RECORDS_DEFAULT)]
    pub log_records: usize,
    /// Where the nodes' roles run: udp (in processes, on loopback), or in the kernel, with every node in its own
    /// network namespace: xdp, xdp-generic, or auto, which falls back to udp
    #[arg(long, default_value_t = Dataplane::Auto)]
    #[serde(default)]
    pub dataplane: Dataplane,
    /// Give every pair of nodes a dedicated link, for frames without IP and UDP; requires network namespaces
    #[arg(long)]
    #[serde(default)]
    pub direct: bool,
    /// Address for memcached datagrams to the first node; the other nodes use the ports that follow. Off by default
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(default)]
    pub memcached_udp: Option<SocketAddr>,
    /// What survives a crash: with memory, the table is lost if all nodes stop
    #[arg(long, value_enum, default_value_t = Durability::Memory)]
    #[serde(default)]
    pub durability: Durability,
    /// Use no key: anyone who can send packets to the nodes can write to the log
    #[arg(long)]
    pub no_key: bool,
    /// Start with an empty table although this directory had one that was lost when its nodes stopped
    #[arg(long)]
    pub accept_loss: bool,
}

/// The options of `inband up box` without arguments.
impl Default for Options {
    fn default() -> Options {
        parse_options(&[])
    }
}

fn nodes(text: &str) -> Result<u8, String> {
    let nodes = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))?;
    match NODE_COUNTS.contains(&usize::from(nodes)) {
        true => Ok(nodes),
        false => Err(format!("{nodes} nodes; give 3, 4, 5 or 7")),
    }
}

impl Options {
    /// The highest id of a node: others may join up to it. Links between nodes are made at the start only.
    fn places(&self) -> u8 {
        match self.direct {
            true => self.nodes,
            false => *NODES.end(),
        }
    }

    /// Client addresses, by node.
    fn memcached(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_from(self.memcached, MEMCACHED)
    }

    /// Addresses for reads of the nodes' own copies; empty if there are none.
    fn memcached_local(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_if_given(self.memcached_local, MEMCACHED_LOCAL)
    }

    /// Addresses for datagrams; empty if there are none.
    fn memcached_udp(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_if_given(self.memcached_udp, MEMCACHED_UDP)
    }

    fn addresses_if_given(
        &self,
        first: Option<SocketAddr>,
        option: &str,
    ) -> Result<Vec<SocketAddr>> {
        let addresses = first.map(|first| self.addresses_from(first, option));
        Ok(addresses.transpose()?.unwrap_or_default())
    }

    /// Returns one address per node, with consecutive ports.
    fn addresses_from(&self, first: SocketAddr, option: &str) -> Result<Vec<SocketAddr>> {
        ensure!(
            first.ip().is_loopback(),
            "{option} {first} is beyond loopback, where anyone could read and write; give 127.0.0.1:PORT"
        );
        let places = u16::from(self.places());
        let last = first.port().checked_add(places - 1);
        let last = last.filter(|_| first.port() > 0).with_context(|| {
            format!(
                "{option} {first}: {places} nodes, with those that may join, need as many ports; give one from 1 to {}",
                u16::MAX - places + 1
            )
        })?;
        let ports = first.port()..=last;
        Ok(ports
            .map(|port| SocketAddr::new(first.ip(), port))
            .collect())
    }
}

/// The number of `node/4`.
fn node_number(name: &str) -> Option<u8> {
    let number = name.strip_prefix("node/")?.parse().ok()?;
    NODES.contains(&number).then_some(number)
}

fn name_of(node: u8) -> String {
    format!("node/{node}")
}

/// The nodes of a cluster, for its next start.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Nodes {
    /// All that are to start.
    reach: Vec<u8>,
    /// The one of them that was joining, so that it may not have a log, or have started at all; 0: none. It may have
    /// become a member since.
    joining: u8,
}

impl Nodes {
    fn of(membership: &Membership) -> Nodes {
        Nodes {
            reach: ids(membership.reach()).collect(),
            joining: membership.joining,
        }
    }

    /// Reads the file of a cluster; earlier versions stored a list without saying who was joining.
    fn read(text: &[u8]) -> Option<Nodes> {
        let list = || {
            let reach = serde_json::from_slice(text).ok()?;
            Some(Nodes { reach, joining: 0 })
        };
        serde_json::from_slice(text).ok().or_else(list)
    }
}

impl Spec {
    /// The nodes that the cluster had last, if there are any on disk; else those that begin together.
    fn nodes(&self) -> Nodes {
        let founding = || Nodes::of(&Membership::founding(self.options.nodes, Quorum::default()));
        if self.options.durability == Durability::Memory || self.options.accept_loss {
            return founding();
        }
        let text = fs::read(self.data.join(MEMBERS_FILE));
        let stored = text.ok().and_then(|text| Nodes::read(&text));
        stored.unwrap_or_else(founding)
    }

    /// The nodes that start with the cluster.
    fn members(&self) -> Vec<u8> {
        self.nodes().reach
    }

    /// The nodes of which a majority must have the log.
    fn names(&self) -> impl Iterator<Item = String> {
        let Nodes { reach, joining } = self.nodes();
        let members = reach.into_iter().filter(move |id| *id != joining);
        members.map(name_of)
    }

    fn is_there(&self, name: &str) -> bool {
        has_promised(&host_dir(&self.data, name))
    }

    /// Returns whether the cluster continues with the logs on its nodes' disks. If a first start was interrupted, there
    /// may be nodes that have not begun.
    fn goes_on(&self) -> bool {
        let options = &self.options;
        let has_begun = |name: &String| self.is_there(name) && !is_new(&host_dir(&self.data, name));
        let is_sync = options.durability == Durability::Sync;
        is_sync && !options.accept_loss && self.names().any(|name| has_begun(&name))
    }

    /// How many nodes began together, as far as the directory says.
    fn begun_with(&self) -> Option<u8> {
        let text = fs::read(self.data.join(FILE)).ok()?;
        let options: Options = serde_json::from_slice(&text).ok()?;
        Some(options.nodes)
    }

    fn check_loss(&self) -> Result<()> {
        let (options, data) = (&self.options, self.data.display());
        if options.accept_loss {
            return Ok(());
        }
        let has_log = |name: &String| has_log(&host_dir(&self.data, name));
        let members = self.names().count();
        let with_log = self.names().filter(has_log).count();
        let there = self.names().filter(|name| self.is_there(name)).count();
        if options.durability == Durability::Memory {
            ensure!(
                with_log == 0,
                "--durability memory: the table in {data} is on disk; give --durability sync to go on with it, or --accept-loss to begin with an empty one"
            );
            ensure!(
                there == 0,
                "--data: the table in {data} was lost when its nodes stopped (it is kept in their memory alone); say --accept-loss to begin with an empty one"
            );
            return Ok(());
        }
        if !self.goes_on() {
            return Ok(());
        }
        let before = self.begun_with().unwrap_or(options.nodes);
        ensure!(
            before == options.nodes,
            "--nodes {}: the cluster in {data} began with {before}; give as many as then, or say --accept-loss to begin with an empty table",
            options.nodes
        );
        ensure!(
            with_log >= majority(members as u8),
            "--durability sync: only {with_log} of {members} nodes in {data} have their log on disk; if they ran with --durability memory their table is lost: say --accept-loss to begin with an empty one"
        );
        Ok(())
    }
}

/// Consensus in a box, as a [`System`] of the supervisor.
pub struct BoxCluster {
    spec: Spec,
    key_file: Option<PathBuf>,
    memcached: Vec<SocketAddr>,
    memcached_local: Vec<SocketAddr>,
    place: String,
    sockets: BTreeMap<String, PathBuf>,
}

/// The status of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The options with which it was started.
    pub options: Options,
    /// Where the nodes' roles run, and why.
    pub place: String,
    /// Client addresses, by node, also of a node that has left.
    pub memcached: Vec<SocketAddr>,
    /// Addresses for reads of the nodes' own copies.
    #[serde(default)]
    pub memcached_local: Vec<SocketAddr>,
    pub key_file: Option<PathBuf>,
    pub processes: Vec<ProcessStatus>,
    /// The nodes that answer.
    pub nodes: Vec<Status>,
}

impl System for BoxCluster {
    const NAME: &'static str = "consensus in a box";
    const COMMAND: &'static str = "box";
    const DEFAULT_DATA: &'static str = ".inband-box";

    type Spec = Spec;
    type Status = ClusterStatus;
    type Request = Change;
    type Reply = Membership;

    fn data(spec: &mut Spec) -> &mut PathBuf {
        &mut spec.data
    }

    fn plan(spec: Spec) -> Result<(BoxCluster, Plan)> {
        finish_removal(&spec.data, &FILES)?;
        let memcached = spec.options.memcached()?;
        let memcached_local = spec.options.memcached_local()?;
        spec.options.memcached_udp()?;
        // The nodes bind the ports; here the error can name the option. All are bound together, so that no two may be
        // equal.
        let members = spec.members();
        let bind = |(addresses, option): (&Vec<SocketAddr>, _)| {
            let addresses = (1..)
                .zip(addresses)
                .filter(|(node, _)| members.contains(node));
            let addresses = addresses.map(|(_, address)| address);
            let bound = addresses.map(|address| listeners::bind(*address, option));
            bound.collect::<Result<Vec<_>, _>>()
        };
        let both = [(&memcached, MEMCACHED), (&memcached_local, MEMCACHED_LOCAL)];
        let bound = both.into_iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        drop(bound);
        spec.check_loss()?;
        let options = &spec.options;
        let choice = options.durability.choose(options.dataplane)?;
        ensure!(
            choice.is_none() || !options.direct,
            "--direct: nodes have links of their own only in namespaces, where their roles run in the kernel, and --durability sync keeps them out of it"
        );
        let plan = Plan {
            hosts: (1..=spec.options.places()).map(name_of).collect(),
            dataplane: match choice {
                Some(_) => Dataplane::Udp,
                None => options.dataplane,
            },
            listener_ports: [&memcached[..], &memcached_local]
                .concat()
                .iter()
                .map(SocketAddr::port)
                .collect(),
        };
        let cluster = BoxCluster {
            key_file: keys::kept(&spec.data, !spec.options.no_key)?,
            spec,
            memcached,
            memcached_local,
            place: String::new(),
            sockets: BTreeMap::new(),
        };
        Ok((cluster, plan))
    }

    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>> {
        if self.spec.options.direct {
            let lab = network.lab().with_context(|| {
                format!(
                    "--direct: nodes have links of their own only in namespaces, with --dataplane auto, xdp or xdp-generic; there are none: {}",
                    network.why()
                )
            })?;
            self.join_all(lab)?;
        }
        let memcached_udp = self.spec.options.memcached_udp()?;
        let program = match &self.spec.program {
            Some(program) => program.clone(),
            None => program::find("inband-box")?,
        };
        let options = &self.spec.options;
        self.place = match (options.durability.choose(options.dataplane)?, network.lab()) {
            (Some(choice), _) => format!("in user space: {}", choice.why),
            (None, Some(_)) => format!("in the kernel: {}", network.why()),
            (None, None) => format!("in user space: {}", network.why()),
        };
        let addresses = network.addresses().iter().map(ToString::to_string);
        let nodes = addresses.collect::<Vec<_>>().join(",");
        if options.accept_loss {
            remove_hosts(&self.spec.data, &FILES)?;
        }
        let goes_on = self.spec.goes_on();
        let mut plans = Vec::new();
        let members = self.spec.members();
        for place in 1..=options.places() {
            let (node, name) = (usize::from(place), name_of(place));
            let dir = host_dir(&self.spec.data, &name);
            let mut args: Vec<OsString> = vec!["node".into()];
            args.push(format!("--node={node}").into());
            args.push(format!("--nodes={nodes}").into());
            args.push(format!("--members={}", options.nodes).into());
            if place > options.nodes {
                args.push("--join".into());
            }
            args.extend(["--data".into(), dir.clone().into()]);
            args.push(format!("{MEMCACHED}={}", self.memcached[node - 1]).into());
            if let Some(address) = self.memcached_local.get(node - 1) {
                args.push(format!("{MEMCACHED_LOCAL}={address}").into());
            }
            args.push(format!("--memory={}", options.memory).into());
            args.push(format!("--log-records={}", options.log_records).into());
            args.push(format!("--quorum={}", options.quorum.name()).into());
            if network.lab().is_some() {
                args.push(format!("--dataplane={}", options.dataplane).into());
                args.push(format!("--interface={HOST_INTERFACE}").into());
                // Clients are in this process's namespace, and are refused while the node is down.
                let here = format!("/proc/{}/ns/net", std::process::id());
                args.push(format!("--memcached-namespace={here}").into());
            }
            if let Some(address) = memcached_udp.get(node - 1) {
                args.push(format!("{MEMCACHED_UDP}={address}").into());
            }
            if options.direct {
                let others = (1..=options.nodes).filter(|other| usize::from(*other) != node);
                let links = others.map(|other| format!("{other}={}", link_to(other)));
                args.push(format!("--direct={}", links.collect::<Vec<_>>().join(",")).into());
            }
            args.push(format!("--durability={}", options.durability.name()).into());
            match &self.key_file {
                Some(path) => args.extend(["--key-file".into(), path.into()]),
                None => args.push("--no-key".into()),
            }
            let mut plan = HostPlan::new(name.clone(), &program).args(args);
            plan.is_on_request = !members.contains(&place);
            if !goes_on && plan.is_on_request {
                // A former cluster may have had a node of this id, whose directory is not this one's.
                forget(&dir).with_context(|| format!("cannot clear {}", dir.display()))?;
            }
            if place <= options.nodes && !self.spec.is_there(&plan.name) {
                // If its directory was lost, the others tell it that it is not new, and it ends.
                plan.first_args = vec!["--new".into()];
            }
            // A node whose directory was lost ends, and so does one that was removed.
            plan.is_optional = goes_on;
            let socket = socket_of(&dir);
            plan.socket = Some(socket.clone());
            self.sockets.insert(name, socket);
            plans.push(plan);
        }
        store(&self.spec.data, FILE, options)?;
        self.store_nodes(&self.spec.nodes())?;
        Ok(plans)
    }

    fn is_up(&self, host: &str) -> bool {
        self.node(host).is_some()
    }

    fn ready(&self, hosts: &Hosts) -> Result<(), String> {
        let nodes = self.nodes();
        let leader = nodes.iter().find(|node| node.state == LEADING);
        let leader = leader.ok_or("no node leads")?;
        let follows = |node: &&Status| node.state == FOLLOWING && node.epoch == leader.epoch;
        let following = nodes.iter().filter(follows).count();
        let names = self.spec.members().into_iter().map(name_of);
        let runs = |name: &String| {
            hosts
                .get(name)
                .is_some_and(|h| h.state().0 != Process::Ended)
        };
        let takes_part = |name: &String| !membership_has_removed(&leader.membership, name);
        let started = names.filter(runs).filter(takes_part).count();
        let others = started.saturating_sub(1);
        match following >= others {
            true => Ok(()),
            false => Err(format!("{following} of {others} nodes follow the leader")),
        }
    }

    fn status(&self, hosts: &Hosts) -> ClusterStatus {
        let nodes = self.nodes();
        let membership = membership_of(&nodes);
        let mut known = self.spec.members();
        known.extend(ids(membership.reach()));
        let highest = known.iter().max().copied().map_or(0, usize::from);
        let of = |addresses: &[SocketAddr]| addresses.iter().take(highest).copied().collect();
        let is_shown = |host: &&HostProcess| {
            let is_known = node_number(host.name()).is_some_and(|id| known.contains(&id));
            let runs = host.state().0 != Process::Killed;
            runs || is_known && !membership_has_removed(&membership, host.name())
        };
        ClusterStatus {
            options: self.spec.options.clone(),
            place: self.place.clone(),
            memcached: of(&self.memcached),
            memcached_local: of(&self.memcached_local),
            key_file: self.key_file.clone(),
            processes: hosts
                .iter()
                .filter(is_shown)
                .map(HostProcess::status)
                .collect(),
            nodes,
        }
    }

    fn host_of(&self, role: &str, _hosts: &Hosts) -> Result<Option<String>> {
        if role != LEADER {
            return Ok(None);
        }
        let nodes = self.nodes();
        let leader = leader_of(&nodes).map(|node| node.name.clone());
        ensure!(
            leader.is_some(),
            "no node leads now; `inband status` says what the nodes do"
        );
        Ok(leader)
    }

    fn roles(&self) -> &'static str {
        LEADER
    }

    /// `data` is the directory of one node. Nodes of replicated memory have no session.
    fn is_in_unmarked(data: &Path) -> bool {
        has_promised(data) && data.join(SESSION).exists()
    }

    /// Checks that a node may stop: it loses its log, and records that no majority holds are lost.
    fn check_spare(&self, host: &str) -> Result<()> {
        if self.spec.options.durability == Durability::Sync {
            return Ok(());
        }
        let nodes = self.nodes();
        let has_log = |node: &Status| node.state != RECOVERING;
        let with_log = nodes.iter().filter(|node| has_log(node)).count();
        let members = membership_of(&nodes).count();
        let majority = majority(members);
        let answering = nodes.iter().map(|node| (&node.name[..], has_log(node)));
        ensure!(
            is_spare(answering, host, majority),
            "the table would be lost: {} of {} nodes have the log, and {majority} must without {host}; wait until `inband status` says that the others follow, or lose it with --force",
            with_log,
            members
        );
        Ok(())
    }

    fn request(&self, request: Change, _hosts: &Hosts) -> Result<Membership> {
        self.change(request)
    }
}

/// Returns the name of a node's interface on the link to another node.
fn link_to(node: u8) -> String {
    format!("direct-{node}")
}

impl BoxCluster {
    /// Creates a link between every pair of nodes.
    fn join_all(&self, lab: &Lab) -> Result<()> {
        let nodes = self.spec.options.nodes;
        let pairs = (1..=nodes).flat_map(|one| (one + 1..=nodes).map(move |other| (one, other)));
        for (one, other) in pairs {
            let ends = [(one, other), (other, one)]
                .map(|(node, other)| (format!("node/{node}"), link_to(other)));
            let [one, other] = &ends;
            lab.join((&one.0, &one.1), (&other.0, &other.1))?;
        }
        Ok(())
    }

    /// The node that leads now.
    pub fn leader(&self) -> Option<String> {
        leader_of(&self.nodes()).map(|node| node.name.clone())
    }

    fn node(&self, host: &str) -> Option<Status> {
        status_at(self.sockets.get(host)?).ok()
    }

    fn nodes(&self) -> Vec<Status> {
        let names = self.sockets.keys();
        names.filter_map(|name| self.node(name)).collect()
    }

    /// For the next start.
    fn store_nodes(&self, nodes: &Nodes) -> Result<()> {
        store(&self.spec.data, MEMBERS_FILE, nodes)
    }
}

fn membership_has_removed(membership: &Membership, host: &str) -> bool {
    node_number(host).is_some_and(|id| membership.has_removed(id))
}

/// Returns the leader: of the nodes that claim to lead, the one with the highest epoch. A node that was paused may not
/// yet know that it was deposed.
fn leader_of(nodes: &[Status]) -> Option<&Status> {
    let leading = nodes.iter().filter(|node| node.state == LEADING);
    leading.max_by_key(|node| node.epoch)
}

impl NodeInWords for Status {
    fn name(&self) -> &str {
        &self.name
    }

    fn in_words(&self) -> String {
        let memcached: Vec<String> = self.memcached.iter().map(ToString::to_string).collect();
        let state = match &self.state[..] {
            LEADING => "leader",
            FOLLOWING => "follower",
            other => other,
        };
        let zxid = match self.applied == self.committed {
            true => format!("zxid {}", self.applied),
            false => format!("zxid {} of {} applied", self.applied, self.committed),
        };
        format!(
            "{state:<10}  {:<11}  epoch {:<6}  {zxid:<12}  {:>7} items  memcached {}  {}",
            self.dataplane.to_string(),
            self.epoch,
            self.items,
            memcached.join(", local reads "),
            self.notes.join(", ")
        )
        .trim_end()
        .to_owned()
    }
}

impl SystemCommand for BoxCluster {
    const ABOUT: &'static str = "A replicated memcached: consensus in a box, by ZAB";
    const ABOUT_UP: &'static str = "Start the nodes of a replicated memcached on this machine";
    const ABOUT_ROLES: &'static str = "node/1, ..., or leader";
    const OTHER_COMMANDS: &'static str =
        "One node on a machine of its own: `inband box node`. It has its --help.";
    type Options = Options;

    fn spec(options: &Options, data: &Path) -> Result<Spec> {
        Ok(Spec {
            data: data.to_owned(),
            options: options.clone(),
            program: None,
        })
    }

    fn node_status(data: &Path, json: bool) -> Option<String> {
        node_status_of(&status_at(&socket_of(data)).ok()?, json)
    }

    fn in_words(status: &ClusterStatus) -> String {
        let mut text = nodes_in_words(&status.processes, &status.nodes);
        let serves = |node: &&Status| [LEADING, FOLLOWING].contains(&&node.state[..]);
        let is_member = |node: &&Status| {
            let id = node_number(&node.name);
            id.is_some_and(|id| membership_of(&status.nodes).is_member(id))
        };
        let serving = status.nodes.iter().filter(serves).filter(is_member).count();
        let membership = membership_of(&status.nodes);
        text += &format!("{membership}\n");
        let need = match membership.quorum {
            Quorum::Majority => membership.majority(),
            Quorum::All => membership.count().into(),
        };
        if leader_of(&status.nodes).is_none() {
            text += "no node leads: reads and writes wait\n";
        } else if serving < need {
            text += &format!(
                "{serving} of {} nodes are up to date, and a quorum of {} needs {need}: writes wait\n",
                membership.count(),
                membership.quorum.name()
            );
        }
        text
    }

    fn counters(status: &ClusterStatus) -> Vec<(&str, &str, u64)> {
        counters_of(status.nodes.iter().map(|node| (&node.name, &node.counters)))
    }

    fn self_check(_: &Options, status: &ClusterStatus) -> Result<Option<String>> {
        let members = ids(membership_of(&status.nodes).members);
        let at = |node: u8| status.memcached[usize::from(node) - 1];
        let (first, last) = (members.clone().next(), members.last());
        let (first, last) = first.zip(last).context("no node answers")?;
        let (first, last) = (at(first), at(last));
        let began = Instant::now();
        let set = format!("set {SELF_CHECK_KEY} 0 0 5\r\nhello\r\n");
        ask(first, &set, &["STORED"])?;
        let value = format!("VALUE {SELF_CHECK_KEY} 0 5");
        let get = format!("get {SELF_CHECK_KEY}\r\n");
        ask(last, &get, &[&value, "hello", "END"])?;
        let took = began.elapsed();
        ask(last, &format!("delete {SELF_CHECK_KEY}\r\n"), &["DELETED"])?;
        Ok(Some(format!(
            "a value set at {first} was read at {last}, {:.1} ms for both",
            took.as_secs_f64() * 1000.0
        )))
    }

    fn notice(status: &ClusterStatus) -> String {
        let membership = membership_of(&status.nodes);
        let keys = match status.key_file {
            Some(_) => "packets are authenticated",
            None => "packets are not authenticated",
        };
        format!(
            "{} nodes {}; quorum: {}; {keys}",
            membership.count(),
            status.place,
            membership.quorum.name()
        )
    }

    fn next_steps(_: &Options, status: &ClusterStatus, data: &Path) -> String {
        let first = status.memcached[0];
        let data = data_option::<BoxCluster>(data);
        format!(
            "ready: printf 'set k 0 0 5\\r\\nhello\\r\\nget k\\r\\nquit\\r\\n' | nc {} {}\n\
             try:   inband kill{data} leader | inband status{data} | inband restart{data} leader\n",
            first.ip(),
            first.port()
        )
    }

    fn settings(data: &Path) -> Result<Vec<Setting>> {
        let path = data.join(FILE);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let options: Options =
            serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
        let defaults = Options::default();
        let one = |name: &str, of: fn(&Options) -> String| {
            let (value, default) = (of(&options), of(&defaults));
            let from = of_up(name, value == default);
            Setting::new(format!("--{name}"), value, default, from)
        };
        let mut all = vec![
            one("nodes", |options| options.nodes.to_string()),
            one("quorum", |options| options.quorum.name().to_owned()),
            one("durability", |options| options.durability.name().to_owned()),
            one("memcached", |options| options.memcached.to_string()),
            one("memcached-local", |options| match options.memcached_local {
                Some(first) => first.to_string(),
                None => "none".to_owned(),
            }),
            one("dataplane", |options| options.dataplane.to_string()),
            one("memory", |options| options.memory.to_string()),
            one("log-records", |options| options.log_records.to_string()),
            one("memcached-udp", |options| match options.memcached_udp {
                Some(first) => first.to_string(),
                None => "none".to_owned(),
            }),
            one("direct", |options| options.direct.to_string()),
            one("no-key", |options| options.no_key.to_string()),
        ];
        let suspect_after_us = |durability: Durability| durability.suspect_after_ns() / 1000;
        let (value, default) = (options.durability, defaults.durability);
        all.push(Setting::new(
            "node.suspect_after_us",
            suspect_after_us(value),
            suspect_after_us(default),
            of_up("durability", value == default),
        ));
        let gateway = [
            ("unanswered_ms", UNANSWERED_MS_MAX),
            ("unread_ms", UNREAD_MS_MAX),
            ("incomplete_request_ms", INCOMPLETE_REQUEST_MS_MAX),
            ("clients_max", CLIENTS_MAX as u64),
            ("clients_memory_bytes", CLIENTS_MEMORY_BYTES_MAX as u64),
            ("datagrams_under_way_max", DATAGRAMS_UNDER_WAY_MAX as u64),
        ];
        all.extend(
            gateway.map(|(name, value)| {
                Setting::new(format!("gateway.{name}"), value, value, BUILT_IN)
            }),
        );
        // The operator may have changed it since the start.
        let status = socket::status::<BoxCluster>(data).ok();
        if let Some(now) = status.map(|status| membership_of(&status.nodes).quorum) {
            if now != options.quorum {
                let name = now.name();
                all[1] = Setting::new("--quorum", name, defaults.quorum.name(), "inband quorum");
            }
        }
        Ok(all)
    }

    fn what_stays(status: &ClusterStatus) -> &'static str {
        match status.options.durability {
            Durability::Memory => "The table is in memory, and gone then.",
            Durability::Sync => "The table is on disk, and stays.",
        }
    }

    fn what_stayed(status: &ClusterStatus) -> &'static str {
        match status.options.durability {
            Durability::Memory => "the table was in memory, and is gone",
            Durability::Sync => {
                "the table is on disk; `inband up box --durability sync` goes on with it"
            }
        }
    }
}

/// Sends a request to a node and compares the lines of its reply.
fn ask(address: SocketAddr, request: &str, lines: &[&str]) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, SELF_CHECK_TIMEOUT)
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(SELF_CHECK_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    for expected in lines {
        let mut line = String::new();
        let read = reader.read_line(&mut line);
        read.with_context(|| format!("{address}: no reply to {request:?}"))?;
        ensure!(
            line.trim_end() == *expected,
            "{address} replies {line:?} to {request:?}, not {expected:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Options {
        parse_options(args)
    }

    #[test]
    fn nodes_have_ports_that_follow_each_other() {
        let ports = |args: &[&str]| -> Result<Vec<u16>> {
            let addresses = options(args).memcached()?;
            Ok(addresses.iter().map(SocketAddr::port).collect())
        };
        // Those of nodes that may join are among them.
        assert_eq!(ports(&[]).unwrap(), (11211..=11217).collect::<Vec<_>>());
        let last = ports(&["--memcached=127.0.0.1:65533", "--direct"]).unwrap();
        assert_eq!(last, [65533, 65534, 65535]);
        for (address, says) in [
            ("127.0.0.1:65530", "from 1 to 65529"),
            ("127.0.0.1:0", "from 1 to 65529"),
            ("10.0.0.1:11211", "beyond loopback"),
        ] {
            let error = ports(&["--memcached", address]).unwrap_err().to_string();
            assert!(error.contains(address) && error.contains(says), "{error}");
        }
    }

    #[test]
    fn settings_are_those_of_the_cluster_s_file() {
        let dir = tempfile::tempdir().unwrap();
        let text = serde_json::to_vec(&options(&["--nodes=5", "--quorum=all"])).unwrap();
        fs::write(dir.path().join(FILE), text).unwrap();
        let settings = BoxCluster::settings(dir.path()).unwrap();
        let of = |name: &str| {
            let mut all = settings.iter();
            let setting = all.find(|setting| setting.name == name).unwrap();
            (&setting.value[..], &setting.default[..], &setting.from[..])
        };
        assert_eq!(of("--nodes"), ("5", "3", "inband up"));
        assert_eq!(of("--quorum"), ("all", "majority", "inband up"));
        assert_eq!(of("--memory"), ("67108864", "67108864", "default"));
        assert_eq!(of("node.suspect_after_us"), ("10000", "10000", "default"));
        assert_eq!(of("gateway.unanswered_ms"), ("10000", "10000", "built in"));

        let sync = serde_json::to_vec(&options(&["--durability=sync"])).unwrap();
        fs::write(dir.path().join(FILE), sync).unwrap();
        let settings = BoxCluster::settings(dir.path()).unwrap();
        let suspect = settings
            .iter()
            .find(|setting| setting.name == "node.suspect_after_us")
            .unwrap();
        assert_eq!(
            (&suspect.value[..], &suspect.default[..], &suspect.from[..]),
            ("50000", "10000", "inband up")
        );
    }
}
