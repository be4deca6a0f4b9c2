//! Clusters of NetPaxos on this machine: serializers, minions with their storage servers, and learners (docs/netpaxos.md).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_host::config::Durability;
use inband_host::program;
use inband_host::settings::{of_up, Setting, BUILT_IN};
use inband_netpaxos::client::Client;
use inband_netpaxos::cluster::{Cluster, DATA, FILE, OWNER};
use inband_netpaxos::learner;
use inband_netpaxos::proposer::{self, Outcome, OUTSTANDING_MAX};
use inband_netpaxos::quorum::Sizes;
use inband_netpaxos::status::{socket_of, status_at, Status};
use inband_netpaxos::{storage, VALUE_LEN_MAX_BYTES};
use serde::{Deserialize, Serialize};

use crate::client::{Answer, Client as RespClient};
use crate::command::{
    counters_of, data_option, node_status_of, nodes_in_words, NodeInWords, SystemCommand,
};
use crate::host_process::{HostProcess, ProcessStatus};
use crate::keys;
use crate::network::{Network, HOST_INTERFACE, NETNS_DIR};
use crate::supervisor::{finish_removal, host_dir, remove_hosts, store, Hosts};
use crate::system::{is_spare, HostPlan, NoRequest, Plan, System};

mod options;

use options::{former, is_new, log_of_dirs, mark_new, OPTIONS};
pub use options::{minions, Options};

/// The host from which clients use a cluster with its own network.
const CLIENT: &str = "client";
/// What a cluster that begins with an empty log must not find.
const FILES: [&str; 2] = [FILE, OPTIONS];
const SELF_CHECK_REQUESTS: usize = 100;
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// What `up` and `status` say of a cluster with `--faithful`.
const UNSAFE: &str = "WARNING: UNSAFE ORDERING: learners decide by the order of arrival alone (--faithful); where packets are lost or reordered they disagree, and acknowledged requests are lost";

/// Kinds of processes, in the order in which they start.
const KINDS: [&str; 4] = ["storage", "learner", "minion", "serializer"];

#[derive(Debug, Clone)]
pub struct Spec {
    pub data: PathBuf,
    pub options: Options,
    /// The program of the processes; by default the `inband-netpaxos` next to this one.
    pub program: Option<PathBuf>,
}

/// NetPaxos, as a [`System`] of the supervisor.
pub struct NetPaxos {
    spec: Spec,
    cluster: Cluster,
    sizes: Sizes,
    /// The cluster goes on with the log in its directory: a storage server without votes has lost them.
    is_continued: bool,
    notice: String,
    /// The listeners for Redis clients of each learner, inherited by the learners.
    listeners: Vec<Arc<TcpListener>>,
    /// The listeners for Prometheus, by process.
    metrics: BTreeMap<String, Arc<TcpListener>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// How to reach it.
    pub cluster: Cluster,
    /// Where its roles run, and why.
    pub notice: String,
    pub processes: Vec<ProcessStatus>,
    pub durability: Durability,
    /// The nodes that answer.
    pub nodes: Vec<Status>,
    /// Whether learners decide by the order of arrival alone.
    pub is_unsafe: bool,
    /// Where Prometheus finds `/metrics`, by process.
    pub metrics: BTreeMap<String, SocketAddr>,
}

impl System for NetPaxos {
    const NAME: &'static str = "NetPaxos";
    const COMMAND: &'static str = "netpaxos";
    const DEFAULT_DATA: &'static str = DATA;

    type Spec = Spec;
    type Status = ClusterStatus;
    type Request = NoRequest;
    type Reply = NoRequest;

    fn data(spec: &mut Spec) -> &mut PathBuf {
        &mut spec.data
    }

    fn plan(spec: Spec) -> Result<(NetPaxos, Plan)> {
        finish_removal(&spec.data, &FILES)?;
        let options = &spec.options;
        ensure!(
            !options.faithful || options.log_only || options.unsafe_ordering,
            "--faithful: learners of a store would disagree and lose acknowledged writes; leave it out, give --log-only, or give --unsafe-ordering if the data may be lost"
        );
        let exists = spec.data.join(FILE).exists();
        let log_of_dirs = match exists || options.accept_loss {
            true => None,
            false => log_of_dirs(&spec.data, options)?,
        };
        ensure!(
            log_of_dirs.is_none() || spec.data.join(OPTIONS).exists(),
            "--data: the log in {0} has lost both {FILE} and {OPTIONS}, which say how it must be continued; restore one of them, \
             choose another --data, or give --accept-loss to begin with an empty log",
            spec.data.display()
        );
        let has_log = exists || log_of_dirs.is_some();
        let is_continued = has_log && !options.accept_loss;
        let former = match has_log.then(|| former(&spec.data)).transpose() {
            Err(error) if is_continued => return Err(error),
            // What is lost may be damaged.
            read => read.ok().flatten(),
        };
        if let Some(former) = &former {
            ensure!(
                !is_continued || former.faithful == options.faithful,
                "--faithful: the log in {} was started {}; start it as before, or choose another --data",
                spec.data.display(),
                if former.faithful { "with it" } else { "without it" }
            );
            options.check_former(former, &spec.data)?;
        }
        if log_of_dirs.is_some() {
            options.check_storages(&spec.data)?;
        }
        let continued = match is_continued && exists {
            true => Some(Cluster::load(&spec.data)?),
            false => None,
        };
        let was_log_only = match (&continued, &former) {
            (Some(continued), _) => Some(continued.resp.is_empty()),
            (None, Some(former)) if is_continued => Some(former.log_only),
            _ => None,
        };
        if let Some(was_log_only) = was_log_only {
            ensure!(
                was_log_only == options.log_only,
                "--log-only: the log in {} is {}; start it as before, or choose another --data",
                spec.data.display(),
                if was_log_only {
                    "without a store"
                } else {
                    "a store's"
                }
            );
        }
        let listeners = options.listen()?;
        let resp = listeners.iter().map(|listener| listener.local_addr());
        let resp = resp.collect::<Result<Vec<_>, _>>()?;
        let metrics = options.listen_for_metrics()?;
        let hosts = KINDS.iter().flat_map(|kind| options.names(kind));
        let plan = Plan {
            hosts: hosts.chain([CLIENT.to_owned()]).collect(),
            dataplane: options.dataplane,
            listener_ports: resp
                .iter()
                .map(SocketAddr::port)
                .chain([options.metrics_port])
                .collect(),
        };
        let cluster = Cluster {
            serializers: Vec::new(),
            minions: Vec::new(),
            storages: Vec::new(),
            learners: Vec::new(),
            log_id: match continued {
                Some(continued) => continued.log_id,
                None => log_of_dirs.unwrap_or_else(|| rand::random::<u32>().into()),
            },
            key_file: keys::kept(&spec.data, !options.no_key)?,
            client: None,
            resp,
            sockets: Default::default(),
        };
        let cluster = NetPaxos {
            sizes: options.sizes(),
            is_continued,
            spec,
            cluster,
            notice: String::new(),
            listeners,
            metrics,
        };
        Ok((cluster, plan))
    }

    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>> {
        let options = &self.spec.options;
        let addresses = |kind: &str| -> Result<Vec<SocketAddrV4>> {
            let names = options.names(kind);
            names.iter().map(|name| network.address(name)).collect()
        };
        self.cluster.serializers = addresses("serializer")?;
        self.cluster.minions = addresses("minion")?;
        self.cluster.storages = addresses("storage")?;
        self.cluster.learners = addresses("learner")?;
        let is_in_kernel = network.lab().is_some();
        if let Some(lab) = network.lab() {
            let namespace = Path::new(NETNS_DIR).join(lab.host(CLIENT)?.namespace().name());
            self.cluster.client = Some((*network.address(CLIENT)?.ip(), namespace));
        }
        let place = if is_in_kernel {
            "the kernel"
        } else {
            "user space"
        };
        self.notice = format!("serializers and minions in {place}: {}", network.why());
        if options.faithful {
            self.notice += &format!("\n{UNSAFE}");
        }
        let program = match &self.spec.program {
            Some(program) => program.clone(),
            None => program::find("inband-netpaxos")?,
        };
        if options.accept_loss {
            // All at once: a host of the former log that this one lacks may be in it later, and none may have both.
            remove_hosts(&self.spec.data, &FILES)?;
        }
        if !self.is_continued && is_new(&self.spec.data, options) {
            mark_new(&self.spec.data, options)?;
        }
        let mut plans = Vec::new();
        for kind in KINDS {
            for (number, name) in (1u8..).zip(options.names(kind)) {
                let dir = host_dir(&self.spec.data, &name);
                let mut plan = HostPlan::new(name.clone(), &program);
                plan.args = self.args(kind, number, &dir, is_in_kernel);
                let metrics = self.metrics.get(&name).map(Arc::clone);
                plan.listeners = metrics.map(|own| (own, "metrics")).into_iter().collect();
                if kind == "learner" && options.faithful {
                    plan.args.push("--faithful".into());
                    if options.unsafe_ordering {
                        plan.args.push("--unsafe-ordering".into());
                    }
                }
                if kind == "learner" {
                    let own = self.listeners.get(usize::from(number) - 1);
                    plan.listeners
                        .extend(own.map(|own| (Arc::clone(own), "resp")));
                }
                plan.socket = Some(socket_of(&dir));
                self.cluster.sockets.insert(name, socket_of(&dir));
                plans.push(plan);
            }
        }
        // In this order: the cluster's file says that the others are there.
        store(&self.spec.data, OPTIONS, options)?;
        self.cluster.store(&self.spec.data)?;
        Ok(plans)
    }

    fn is_up(&self, host: &str) -> bool {
        self.node(host).is_some()
    }

    fn ready(&self, _hosts: &Hosts) -> Result<(), String> {
        let (up, all) = (self.nodes().len(), self.cluster.sockets.len());
        let complete = self.complete().len();
        if up < all || complete < self.cluster.storages.len() {
            return Err(format!(
                "{up} of {all} processes answer, {complete} storage servers serve"
            ));
        }
        Ok(())
    }

    fn status(&self, hosts: &Hosts) -> ClusterStatus {
        ClusterStatus {
            cluster: self.cluster.clone(),
            notice: self.notice.clone(),
            processes: hosts.iter().map(HostProcess::status).collect(),
            durability: self.spec.options.durability,
            nodes: self.nodes(),
            is_unsafe: self.spec.options.faithful,
            metrics: self
                .metrics
                .iter()
                .filter_map(|(name, own)| Some((name.clone(), own.local_addr().ok()?)))
                .collect(),
        }
    }

    /// Checks that a storage server may stop: it loses its votes; learners hold the log.
    fn check_spare(&self, host: &str) -> Result<()> {
        if self.spec.options.durability == Durability::Sync {
            return Ok(());
        }
        // Asked before the others: they have gone on since.
        let stopped_at = self.node(host).map_or(0, |node| node.position);
        let nodes = self.nodes();
        let storages = nodes.iter().filter(|node| is_of(node, "storage"));
        let answering: Vec<(&str, bool)> = storages
            .map(|node| (&node.name[..], node.state == "serving"))
            .collect();
        let complete = answering.iter().filter(|(_, serves)| *serves).count();
        let (quorum, all) = (self.sizes.quorum(), self.cluster.storages.len());
        ensure!(
            !host.starts_with("storage/") || is_spare(answering, host, quorum),
            "the log would stand still or be lost: {} of {all} storage servers have their votes, and {quorum} must without {host}; wait until `inband status` says that the others serve, or lose it with --force",
            complete,
        );
        let learners: Vec<&Status> = nodes.iter().filter(|n| is_of(n, "learner")).collect();
        let has_all = |node: &&&Status| node.position >= stopped_at && node.name != host;
        // A store is on disk, whatever the durability of the votes.
        ensure!(
            !self.spec.options.log_only || !host.starts_with("learner/") || learners.iter().any(|node| has_all(&node)),
            "the log would be lost: no other learner has all {stopped_at} instances; wait until `inband status` says so, or lose it with --force"
        );
        Ok(())
    }

    /// Returns whether it is that of a cluster, or of a process, that was started by hand.
    fn is_in_unmarked(data: &Path) -> bool {
        data.join(OWNER).exists() || Cluster::load(data).is_ok()
    }

    fn request(&self, request: NoRequest, _hosts: &Hosts) -> Result<NoRequest> {
        match request {}
    }
}

fn is_of(node: &Status, kind: &str) -> bool {
    node.name.split('/').next() == Some(kind)
}

impl NetPaxos {
    fn args(&self, kind: &str, number: u8, dir: &Path, is_in_kernel: bool) -> Vec<OsString> {
        let options = &self.spec.options;
        let mut args: Vec<OsString> = vec![kind.into()];
        args.push(format!("--number={number}").into());
        args.extend(["--cluster".into(), self.spec.data.clone().into()]);
        args.extend(["--data".into(), dir.into()]);
        args.push(format!("--durability={}", options.durability).into());
        if is_in_kernel && ["minion", "serializer"].contains(&kind) {
            args.push(format!("--dataplane={}", options.dataplane).into());
            args.push(format!("--interface={HOST_INTERFACE}").into());
        }
        args
    }

    fn node(&self, host: &str) -> Option<Status> {
        status_at(self.cluster.sockets.get(host)?).ok()
    }

    fn nodes(&self) -> Vec<Status> {
        let names = self.cluster.sockets.keys();
        names.filter_map(|name| self.node(name)).collect()
    }

    /// Storage servers that are complete.
    fn complete(&self) -> Vec<String> {
        let nodes = self.nodes().into_iter();
        let complete = nodes.filter(|node| is_of(node, "storage") && node.state == "serving");
        complete.map(|node| node.name).collect()
    }
}

impl NodeInWords for Status {
    fn name(&self) -> &str {
        &self.name
    }

    fn in_words(&self) -> String {
        let what = match self.name.split('/').next() {
            Some("storage") => "highest instance",
            Some("learner") => "delivered",
            _ => "passed",
        };
        format!(
            "{:<11} {:<6} {:<12} {what} {}",
            self.state,
            self.listen.port(),
            self.dataplane.to_string(),
            self.position
        )
    }
}

impl SystemCommand for NetPaxos {
    const ABOUT: &'static str =
        "The replicated store over NetPaxos: switches that only number requests";
    const ABOUT_UP: &'static str =
        "Start serializers, minions, storage servers and learners on this machine";
    const ABOUT_ROLES: &'static str = "serializer/1, minion/1, storage/1, learner/1, ...";
    const OTHER_COMMANDS: &'static str =
        "Use the store with a Redis client; a log (--log-only) with `inband netpaxos submit VALUE` and `deliver`. For separate machines: `inband netpaxos serializer`, `minion`, `storage` and `learner`, each with --help.";
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
        if status.is_unsafe {
            text += &format!("{UNSAFE}\n");
        }
        let serving = status.nodes.iter().filter(|node| node.state == "serving");
        let (serving, all) = (serving.count(), status.cluster.storages.len());
        let quorum = all - all / 3;
        if serving < quorum {
            text += &format!(
                "{serving} of {all} storage servers serve, and {quorum} must: requests wait\n"
            );
        } else if serving == quorum {
            text += &format!(
                "{serving} of {all} storage servers serve: if one more stops, requests wait\n"
            );
        }
        let delivering = status.nodes.iter().filter(|node| is_of(node, "learner"));
        let (delivering, learners) = (delivering.count(), status.cluster.learners.len());
        if delivering <= learners / 2 {
            text += &format!(
                "{delivering} of {learners} learners answer: without a majority, requests wait after {} more instances\n",
                storage::WINDOW
            );
        }
        if !status.cluster.resp.is_empty() {
            let addresses = status.cluster.resp.iter().map(ToString::to_string);
            let addresses = addresses.collect::<Vec<_>>().join(", ");
            text += &format!("Redis clients connect to {addresses}\n");
        }
        if let Some((process, address)) = status.metrics.first_key_value() {
            text += &format!(
                "Prometheus finds {process} at http://{address}/metrics, and the others at the addresses in `inband status --json`\n"
            );
        }
        text
    }

    fn counters(status: &ClusterStatus) -> Vec<(&str, &str, u64)> {
        let nodes = status.nodes.iter();
        counters_of(
            nodes.flat_map(|node| [(&node.name, &node.counters), (&node.name, &node.gauges)]),
        )
    }

    fn self_check(options: &Options, status: &ClusterStatus) -> Result<Option<String>> {
        let (what, median) = match options.log_only {
            true => ("requests", check_log(&status.cluster)?),
            false => ("values set and read", check_store(&status.cluster)?),
        };
        Ok(Some(format!(
            "{SELF_CHECK_REQUESTS} {what} one after another, median {:.0} us",
            median.as_nanos() as f64 / 1000.0
        )))
    }

    fn settings(data: &Path) -> Result<Vec<Setting>> {
        let options = former(data)?;
        let defaults = Options::default();
        let one = |name: &str, of: fn(&Options) -> String| {
            let (value, default) = (of(&options), of(&defaults));
            let from = of_up(name, value == default);
            Setting::new(format!("--{name}"), value, default, from)
        };
        let limit =
            |name: &str, value: u64| Setting::new(format!("limits.{name}"), value, value, BUILT_IN);
        let timing = |name: &str, ns: u64| {
            let ms = ns / 1_000_000;
            Setting::new(name, ms, ms, BUILT_IN)
        };
        Ok(vec![
            one("minions", |options| options.minions.to_string()),
            one("learners", |options| options.learners.to_string()),
            one("serializers", |options| options.serializers.to_string()),
            one("durability", |options| options.durability.to_string()),
            one("dataplane", |options| options.dataplane.to_string()),
            one("resp", |options| options.resp.to_string()),
            one("metrics-port", |options| options.metrics_port.to_string()),
            one("log-only", |options| options.log_only.to_string()),
            one("faithful", |options| options.faithful.to_string()),
            one("unsafe-ordering", |options| {
                options.unsafe_ordering.to_string()
            }),
            one("no-key", |options| options.no_key.to_string()),
            limit("value_bytes", VALUE_LEN_MAX_BYTES as u64),
            limit("storage_instances", storage::WINDOW),
            limit("learner_instances", learner::WINDOW),
            limit("learner_instances_kept", learner::KEPT_MAX as u64),
            limit("proposer_requests", OUTSTANDING_MAX as u64),
            timing("client.timeout_first_ms", proposer::FIRST_NS),
            timing("client.timeout_min_ms", proposer::MIN_NS),
            timing("client.timeout_max_ms", proposer::MAX_NS),
            timing("client.return_after_ms", proposer::BACK_AFTER_NS),
            timing("storage.retry_ms", storage::RETRY_NS),
            timing("learner.recover_after_ms", learner::RECOVER_AFTER_NS),
            timing("learner.ask_every_ms", learner::ASK_EVERY_NS),
            timing("learner.report_every_ms", learner::REPORT_EVERY_NS),
        ])
    }

    fn notice(status: &ClusterStatus) -> String {
        status.notice.clone()
    }

    fn next_steps(_: &Options, status: &ClusterStatus, data: &Path) -> String {
        let data = data_option(data);
        let use_it = match status.cluster.resp.first() {
            Some(address) => format!("redis-cli -p {} set color green", address.port()),
            None => format!("inband netpaxos submit{data} hello | inband netpaxos deliver{data}"),
        };
        format!(
            "ready: {use_it}\n\
             try:   inband kill{data} minion/1 | inband kill{data} serializer/1 | inband restart{data} storage/1 | inband status{data}\n"
        )
    }

    fn what_stays(status: &ClusterStatus) -> &'static str {
        match status.durability {
            Durability::Memory => "The log is in memory, and gone then.",
            Durability::Sync => "The log stays in the directory.",
        }
    }

    fn what_stayed(status: &ClusterStatus) -> &'static str {
        match status.durability {
            Durability::Memory => "the log was in memory, and is gone",
            Durability::Sync => "the log is in the directory",
        }
    }
}

/// Lets the first learner's client set a value that the last learner's client reads, many times. Returns the median
/// time of both.
fn check_store(cluster: &Cluster) -> Result<Duration> {
    const KEY: &str = "inband-self-check";
    let connect = |address: Option<&SocketAddr>| {
        let address = address.context("the cluster has no learner")?;
        RespClient::connect(*address, SELF_CHECK_TIMEOUT)
    };
    let mut writer = connect(cluster.resp.first())?;
    let mut reader = connect(cluster.resp.last())?;
    let mut took = Vec::new();
    for number in 0..SELF_CHECK_REQUESTS {
        let value = number.to_string();
        let began = Instant::now();
        let set = writer.ask(&["SET", KEY, &value])?;
        let read = reader.ask(&["GET", KEY])?;
        took.push(began.elapsed());
        ensure!(
            set == Answer::Status("OK".to_owned()) && read == Answer::Text(value),
            "SET was answered with {set:?}, GET at another learner with {read:?}"
        );
    }
    writer.ask(&["DEL", KEY])?;
    took.sort();
    Ok(took[took.len() / 2])
}

fn check_log(cluster: &Cluster) -> Result<Duration> {
    let cluster = cluster.clone();
    // In a thread, because it may enter another network namespace.
    let check = std::thread::spawn(move || -> Result<Duration> {
        let mut client = Client::connect(&cluster, SELF_CHECK_TIMEOUT)?;
        let mut took = Vec::new();
        for _ in 0..SELF_CHECK_REQUESTS {
            let began = Instant::now();
            let outcome = client.submit_all([&b"self-check"[..]], SELF_CHECK_TIMEOUT)?;
            ensure!(
                outcome != [Outcome::Unknown],
                "a request was not answered within {} s",
                SELF_CHECK_TIMEOUT.as_secs()
            );
            took.push(began.elapsed());
        }
        took.sort();
        Ok(took[took.len() / 2])
    });
    check.join().expect("it does not panic")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::command::undocumented;

    #[test]
    fn settings_are_those_of_the_cluster_s_file() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            minions: 7,
            ..Options::default()
        };
        let text = serde_json::to_vec(&options).unwrap();
        fs::write(dir.path().join(OPTIONS), text).unwrap();
        let settings = NetPaxos::settings(dir.path()).unwrap();
        let of = |name: &str| {
            let mut all = settings.iter();
            let setting = all.find(|setting| setting.name == name).unwrap();
            (&setting.value[..], &setting.default[..], &setting.from[..])
        };
        assert_eq!(of("--minions"), ("7", "4", "inband up"));
        assert_eq!(
            of("--resp"),
            ("127.0.0.1:6379", "127.0.0.1:6379", "default")
        );
        assert_eq!(of("limits.value_bytes").0, VALUE_LEN_MAX_BYTES.to_string());
        for name in [
            "client.timeout_first_ms",
            "client.timeout_min_ms",
            "client.timeout_max_ms",
            "client.return_after_ms",
            "storage.retry_ms",
            "learner.recover_after_ms",
            "learner.ask_every_ms",
            "learner.report_every_ms",
        ] {
            assert!(of(name).0.parse::<u64>().unwrap() > 0, "{name}");
        }
        assert_eq!(undocumented("NetPaxos", &settings), Vec::<String>::new());
    }
}
