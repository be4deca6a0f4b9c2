//! Clusters of consensus in a box on this machine: nodes that serve memcached's clients (docs/box.md).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_box::durable::Durability;
use inband_box::membership::{ids, Change, Membership};
pub use inband_box::node::Quorum;
use inband_box::process::{socket_of, status_at, Status};
use inband_box::promise::majority;
use inband_box::stored::{forget, has_promised, SESSION};
use inband_box::NODES;
use inband_host::config::Dataplane;
use inband_host::program;
use serde::{Deserialize, Serialize};

use crate::host_process::{HostProcess, Process, ProcessStatus};
use crate::keys;
use crate::listeners;
use crate::network::{Lab, Network, HOST_INTERFACE};
use crate::supervisor::{finish_removal, host_dir, remove_hosts, store, Hosts};
use crate::system::{is_spare, HostPlan, Plan, System};

mod change;
mod command;
mod options;
mod spec;
mod top;

use change::membership_of;
pub use change::{add, change, needs_all, remove, BoxCommand, MemberCommand, QuorumArgs};
pub use options::Options;
use options::{MEMCACHED, MEMCACHED_LOCAL, MEMCACHED_LOCAL_UDP, MEMCACHED_UDP, MEMCACHED_UDP_FROM};
pub use spec::Spec;
use spec::{Nodes, FILE, FILES, MEMBERS_FILE};

/// The current leader, as a role's name.
const LEADER: &str = "leader";
/// States of a node, as it reports them.
const LEADING: &str = "leading";
const FOLLOWING: &str = "following";
const ELECTING: &str = "electing";
const RECOVERING: &str = "recovering";

/// The number of `node/4`.
fn node_number(name: &str) -> Option<u8> {
    let number = name.strip_prefix("node/")?.parse().ok()?;
    NODES.contains(&number).then_some(number)
}

fn name_of(node: u8) -> String {
    format!("node/{node}")
}

/// Consensus in a box, as a [`System`] of the supervisor.
pub struct BoxCluster {
    spec: Spec,
    key_file: Option<PathBuf>,
    memcached: Vec<SocketAddr>,
    memcached_local: Vec<SocketAddr>,
    /// For Prometheus, by node.
    metrics: Vec<Arc<TcpListener>>,
    place: String,
    sockets: BTreeMap<String, PathBuf>,
}

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
    /// Where Prometheus finds `/metrics`, by node.
    #[serde(default)]
    pub metrics: BTreeMap<String, SocketAddr>,
    pub key_file: Option<PathBuf>,
    pub processes: Vec<ProcessStatus>,
    /// The nodes that answer.
    pub nodes: Vec<Status>,
}

impl System for BoxCluster {
    const NAME: &'static str = "consensus in a box";
    const COMMAND: &'static str = "box";
    const DEFAULT_DATA: &'static str = ".inband-box";
    const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);

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
        spec.options.datagrams()?;
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
        let metrics = options.listen_for_metrics()?;
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
                .chain([options.metrics_port])
                .collect(),
        };
        let cluster = BoxCluster {
            key_file: keys::kept(&spec.data, !spec.options.no_key)?,
            spec,
            memcached,
            memcached_local,
            metrics,
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
        let [memcached_udp, memcached_local_udp] = self.spec.options.datagrams()?;
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
            if let Some(address) = memcached_local_udp.get(node - 1) {
                args.push(format!("{MEMCACHED_LOCAL_UDP}={address}").into());
            }
            if let Some(network) = options.memcached_udp_from {
                args.push(format!("{MEMCACHED_UDP_FROM}={network}").into());
            }
            args.push(format!("--clients-max={}", options.clients_max).into());
            args.push(format!("--suspect-after-us={}", options.suspect_after_us()).into());
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
            plan.listeners = vec![(Arc::clone(&self.metrics[node - 1]), "metrics")];
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
            metrics: (1..)
                .zip(&self.metrics)
                .take(highest)
                .filter_map(|(node, own)| Some((name_of(node), own.local_addr().ok()?)))
                .collect(),
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

    fn names(&self, hosts: &Hosts) -> Vec<String> {
        let processes = self.status(hosts).processes.into_iter();
        processes.map(|process| process.name).collect()
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

    /// A node that was stopped is not up to date either.
    fn all_take_part(&self, _hosts: &Hosts) -> Result<(), String> {
        let nodes = self.nodes();
        let leader = leader_of(&nodes).ok_or("no node leads")?;
        let follows = |id: &u8| {
            nodes.iter().any(|node| {
                let is_up_to_date = node.state == FOLLOWING && node.epoch == leader.epoch;
                node.name == name_of(*id) && (node.name == leader.name || is_up_to_date)
            })
        };
        match ids(leader.membership.members).find(|id| !follows(id)) {
            Some(id) => Err(format!("node/{id} does not follow {}", leader.name)),
            None => Ok(()),
        }
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
