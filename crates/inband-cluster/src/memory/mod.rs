//! Clusters of replicated memory: servers and switches on this machine (docs/memory.md).

mod upkeep;

use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use clap::Args;
use inband_host::config::Dataplane;
use inband_host::program;
use inband_host::settings::{of_up, Setting, BUILT_IN};
use inband_host::size::{parse_size, size};
use inband_memory::cluster::{has_promised, Cluster, SPACE};
use inband_memory::epoch::SWITCH_FIRST;
use inband_memory::lines::{Lines, Transfer, CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::memory::{Memory as Client, MemoryConfig};
use inband_memory::plan::{Ask, Plan as MemoryPlan};
use inband_memory::server_host::COPY_BYTES_PER_S;
use inband_memory::status::{socket_of, status_at, Status};
use serde::{Deserialize, Serialize};

use crate::command::{
    counters_of, data_option, node_status_of, nodes_in_words, parse_options, NodeInWords,
    SystemCommand,
};
use crate::host_process::{HostProcess, ProcessStatus};
use crate::keys;
use crate::network::{Network, HOST_INTERFACE, NETNS_DIR};
use crate::supervisor::{host_dir, Hosts};
use crate::system::{is_spare, HostPlan, NoRequest, Plan, System};

pub use upkeep::{grow, replace, MemoryCommand};

/// The host from which clients use a cluster with its own network.
const CLIENT: &str = "client";
const SELF_CHECK_READS: usize = 1_000;

#[derive(Debug, Clone)]
pub struct Spec {
    pub data: PathBuf,
    pub options: Options,
    /// The nodes' program; by default the `inband-memory` next to this one.
    pub program: Option<PathBuf>,
    plan: MemoryPlan,
}

#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Number of servers: 3, 5 or 7, of which a minority may fail, or 1 for comparison
    #[arg(long, default_value_t = 3, value_parser = servers)]
    pub servers: u8,
    /// Number of switches, 1 to 16; one is active
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub switches: u8,
    /// Size of the memory, in bytes
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub space: u64,
    /// Lines that share a write counter
    #[arg(long, default_value_t = 16, value_name = "LINES")]
    pub block: u64,
    /// Where the roles run: udp (in processes, on loopback), or in the kernel, with every process in its own network
    /// namespace: xdp, xdp-generic, or auto, which falls back to udp
    #[arg(long, default_value_t = Dataplane::Udp)]
    pub dataplane: Dataplane,
    /// Use no key: anyone who can send packets to the cluster can read and write its memory
    #[arg(long)]
    pub no_key: bool,
    /// Start with zeros although this directory had a memory that was lost when its servers stopped
    #[arg(long)]
    pub accept_loss: bool,
}

fn servers(text: &str) -> Result<u8, String> {
    let servers = text
        .parse()
        .map_err(|_| format!("{text} is not a number"))?;
    match [1, 3, 5, 7].contains(&servers) {
        true => Ok(servers),
        false => Err(format!(
            "{servers} servers; give 3, 5 or 7, or 1 for a memory that is not replicated"
        )),
    }
}

/// Replicated memory, as a [`System`] of the supervisor.
pub struct Memory {
    spec: Spec,
    cluster: Cluster,
    notice: String,
}

/// The status of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// How to reach it.
    pub cluster: Cluster,
    /// Where its roles run, and why.
    pub notice: String,
    pub processes: Vec<ProcessStatus>,
    /// The nodes that answer.
    pub nodes: Vec<Status>,
}

impl Options {
    fn names(&self) -> (Vec<String>, Vec<String>) {
        let names = |kind: &str, count: u8| (1..=count).map(|n| format!("{kind}/{n}")).collect();
        (
            names("server", self.servers),
            names("switch", self.switches),
        )
    }

    fn is_server(&self, name: &str) -> bool {
        self.names().0.iter().any(|server| server == name)
    }
}

impl System for Memory {
    const NAME: &'static str = "replicated memory";
    const COMMAND: &'static str = "memory";
    const DEFAULT_DATA: &'static str = inband_memory::cluster::DATA;

    type Spec = Spec;
    type Status = ClusterStatus;
    type Request = NoRequest;
    type Reply = NoRequest;

    fn data(spec: &mut Spec) -> &mut PathBuf {
        &mut spec.data
    }

    fn plan(spec: Spec) -> Result<(Memory, Plan)> {
        let (servers, switches) = spec.options.names();
        let hosts = servers
            .into_iter()
            .chain(switches)
            .chain([CLIENT.to_owned()]);
        let plan = Plan {
            hosts: hosts.collect(),
            dataplane: spec.options.dataplane,
            listener_ports: Vec::new(),
        };
        let cluster = Cluster {
            switches: Vec::new(),
            servers: Vec::new(),
            chunks: spec.plan.chunks,
            block_lines: spec.options.block,
            key_file: keys::kept(&spec.data, !spec.options.no_key)?,
            namespace: None,
            sockets: Default::default(),
        };
        let memory = Memory {
            spec,
            cluster,
            notice: String::new(),
        };
        Ok((memory, plan))
    }

    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>> {
        let (servers, switches) = self.spec.options.names();
        let addresses = |names: &[String]| -> Result<Vec<SocketAddrV4>> {
            names.iter().map(|name| network.address(name)).collect()
        };
        self.cluster.servers = addresses(&servers)?;
        self.cluster.switches = addresses(&switches)?;
        let is_in_kernel = network.lab().is_some();
        if let Some(lab) = network.lab() {
            let client = lab.host(CLIENT)?;
            self.cluster.namespace = Some(Path::new(NETNS_DIR).join(client.namespace().name()));
        }
        self.notice = match is_in_kernel {
            true => format!("switches and servers in the kernel: {}", network.why()),
            false => format!("switches and servers in user space: {}", network.why()),
        };
        let program = match &self.spec.program {
            Some(program) => program.clone(),
            None => program::find("inband-memory")?,
        };
        let mut plans = Vec::new();
        let nodes = (1..).zip(&servers).chain((SWITCH_FIRST..).zip(&switches));
        for (node, name) in nodes {
            let dir = host_dir(&self.spec.data, name);
            ensure!(
                self.spec.options.accept_loss || node >= SWITCH_FIRST || !has_promised(&dir),
                "--data: the memory in {} was lost when its servers stopped (it is kept in their memory alone); give --accept-loss to begin with zeros",
                self.spec.data.display()
            );
            // Left by a memory that is lost.
            if dir.join(SPACE).exists() {
                std::fs::remove_file(dir.join(SPACE))?;
            }
            let mut plan = HostPlan::new(name.clone(), &program);
            plan.args = self.args(node, name, network.address(name)?, &dir, is_in_kernel);
            if node < SWITCH_FIRST {
                plan.first_args = vec!["--new".into()];
                if self.spec.options.accept_loss {
                    plan.first_args.push("--accept-loss".into());
                }
            }
            plan.socket = Some(socket_of(&dir));
            self.cluster.sockets.insert(name.clone(), socket_of(&dir));
            plans.push(plan);
        }
        self.cluster.store(&self.spec.data)?;
        Ok(plans)
    }

    fn is_up(&self, host: &str) -> bool {
        self.node(host).is_some()
    }

    fn ready(&self, _hosts: &Hosts) -> Result<(), String> {
        let nodes: Vec<Status> = self.nodes();
        let serving = nodes.iter().filter(|node| node.state == "serving").count();
        let servers = self.cluster.servers.len();
        match serving == servers && nodes.len() == self.cluster.sockets.len() {
            true => Ok(()),
            false => Err(format!("{serving} of {servers} servers serve")),
        }
    }

    fn status(&self, hosts: &Hosts) -> ClusterStatus {
        ClusterStatus {
            cluster: self.cluster.clone(),
            notice: self.notice.clone(),
            processes: hosts.iter().map(HostProcess::status).collect(),
            nodes: self.nodes(),
        }
    }

    /// `switch` means the active one.
    fn host_of(&self, role: &str, _hosts: &Hosts) -> Result<Option<String>> {
        if role != "switch" {
            return Ok(None);
        }
        let nodes = self.nodes();
        let active = nodes.into_iter().filter(|node| node.state == "active");
        let active = active.max_by_key(|node| node.epoch).map(|node| node.name);
        ensure!(
            active.is_some(),
            "no switch is active; the next request of a client activates one"
        );
        Ok(active)
    }

    fn roles(&self) -> &'static str {
        "switch"
    }

    /// `data` is the directory of one node.
    fn is_in_unmarked(data: &Path) -> bool {
        has_promised(data)
    }

    /// Checks that a server may stop: it loses its memory, and what no majority holds is lost.
    fn check_spare(&self, host: &str) -> Result<()> {
        let nodes = self.nodes();
        let is_server = |name: &str| self.spec.options.is_server(name);
        let servers = nodes.iter().filter(|node| is_server(&node.name));
        let answering: Vec<(&str, bool)> = servers
            .map(|node| (&node.name[..], node.state == "serving"))
            .collect();
        let serving = answering.iter().filter(|(_, serves)| *serves).count();
        let majority = self.cluster.servers.len() / 2 + 1;
        ensure!(
            !is_server(host) || is_spare(answering, host, majority),
            "the memory would be lost: {} of {} servers serve, and {majority} must without {host}; wait until `inband status` says that the others serve, or lose it with --force",
            serving,
            self.cluster.servers.len()
        );
        Ok(())
    }

    fn request(&self, request: NoRequest, _hosts: &Hosts) -> Result<NoRequest> {
        match request {}
    }
}

impl Memory {
    fn args(
        &self,
        node: u8,
        name: &str,
        listen: SocketAddrV4,
        dir: &Path,
        is_in_kernel: bool,
    ) -> Vec<OsString> {
        let options = &self.spec.options;
        let servers: Vec<String> = self
            .cluster
            .servers
            .iter()
            .map(ToString::to_string)
            .collect();
        let kind = name.split('/').next().unwrap_or(name);
        let mut args: Vec<OsString> = vec![kind.into()];
        args.push(format!("--node={node}").into());
        args.push(format!("--listen={listen}").into());
        args.push(format!("--servers={}", servers.join(",")).into());
        args.push(format!("--space={}", options.space).into());
        args.extend(["--data".into(), dir.into()]);
        if kind == "switch" {
            args.push(format!("--block={}", options.block).into());
        }
        if is_in_kernel {
            args.push(format!("--dataplane={}", options.dataplane).into());
            args.push(format!("--interface={HOST_INTERFACE}").into());
        }
        match &self.cluster.key_file {
            Some(path) => args.extend(["--key-file".into(), path.into()]),
            None => args.push("--no-key".into()),
        }
        args
    }

    fn node(&self, host: &str) -> Option<Status> {
        status_at(self.cluster.sockets.get(host)?).ok()
    }

    fn nodes(&self) -> Vec<Status> {
        self.cluster
            .sockets
            .keys()
            .filter_map(|name| self.node(name))
            .collect()
    }
}

impl NodeInWords for Status {
    fn name(&self) -> &str {
        &self.name
    }

    fn in_words(&self) -> String {
        format!(
            "{:<10} {:<12} {:<12} epoch {:<7} {:>9}  {}",
            self.state,
            self.listen.port(),
            self.dataplane.to_string(),
            self.epoch,
            size(self.memory_bytes),
            self.notes.join(", ")
        )
    }
}

impl SystemCommand for Memory {
    const ABOUT: &'static str = "Memory that outlives its servers, also for unmodified programs";
    const ABOUT_UP: &'static str =
        "Start servers and switches of replicated memory on this machine";
    const ABOUT_ROLES: &'static str = "server/1, switch/1, or switch: the active one";
    const OTHER_COMMANDS: &'static str = "Use it: `inband memory run -- PROGRAM` (its heap in the memory), read, write, top.\nSize it: plan, grow. One node on a machine of its own: server, switch. Each has its --help.";
    type Options = Options;

    fn spec(options: &Options, data: &Path) -> Result<Spec> {
        let ask = Ask {
            servers: options.servers.into(),
            block_lines: options.block,
            ..Ask::of(options.space)
        };
        Ok(Spec {
            data: data.to_owned(),
            options: options.clone(),
            program: None,
            plan: ask.plan()?,
        })
    }

    fn node_status(data: &Path, json: bool) -> Option<String> {
        node_status_of(&status_at(&socket_of(data)).ok()?, json)
    }

    fn in_words(status: &ClusterStatus) -> String {
        let mut text = nodes_in_words(&status.processes, &status.nodes);
        let servers = status.cluster.servers.len();
        let serving = status
            .nodes
            .iter()
            .filter(|node| node.state == "serving")
            .count();
        if serving <= servers / 2 {
            text += &format!(
                "only {serving} of {servers} servers serve: reads and writes wait for a majority; what a majority has lost is gone\n"
            );
        }
        text
    }

    fn counters(status: &ClusterStatus) -> Vec<(&str, &str, u64)> {
        counters_of(status.nodes.iter().map(|node| (&node.name, &node.counters)))
    }

    fn self_check(_: &Options, status: &ClusterStatus) -> Result<Option<String>> {
        let cluster = &status.cluster;
        let median = check(cluster)?;
        Ok(Some(format!(
            "{SELF_CHECK_READS} reads of a line one after another, median {:.0} us",
            median.as_nanos() as f64 / 1000.0
        )))
    }

    fn notice(status: &ClusterStatus) -> String {
        status.notice.clone()
    }

    fn next_steps(_: &Options, _: &ClusterStatus, data: &Path) -> String {
        let data = data_option(data);
        format!(
            "ready: inband memory write{data} 0 hello | inband memory read{data} 0\n       \
             inband memory run{data} -- sort FILE\n\
             try:   inband memory top{data} | inband kill{data} server/1 | inband kill{data} switch\n"
        )
    }

    fn settings(data: &Path) -> Result<Vec<Setting>> {
        let cluster = Cluster::load(data)?;
        let defaults: Options = parse_options(&[]);
        let one = |name: &str, value: u64, default: u64| {
            let from = of_up(name, value == default);
            Setting::new(format!("--{name}"), value, default, from)
        };
        let bytes = cluster.chunks * (CHUNK_LINES * LINE_LEN_BYTES) as u64;
        let mut all = vec![
            one(
                "servers",
                cluster.servers.len() as u64,
                defaults.servers.into(),
            ),
            one(
                "switches",
                cluster.switches.len() as u64,
                defaults.switches.into(),
            ),
            one("space", bytes, defaults.space),
            one("block", cluster.block_lines, defaults.block),
        ];
        let copies = COPY_BYTES_PER_S;
        all.push(Setting::new(
            "server.copy_bytes_per_s",
            copies,
            copies,
            BUILT_IN,
        ));
        // The clients' defaults.
        let client = MemoryConfig::new(Vec::new());
        let clients = [
            ("suspect_after_min_ms", client.suspect_after_min.as_millis()),
            ("suspect_after_max_ms", client.suspect_after_max.as_millis()),
            ("deadline_ms", client.deadline.as_millis()),
            ("spin_us", client.spin.as_micros()),
            ("window_requests", client.window.into()),
        ];
        all.extend(
            clients.map(|(name, value)| {
                Setting::new(format!("client.{name}"), value, value, BUILT_IN)
            }),
        );
        Ok(all)
    }

    fn what_stays(_: &ClusterStatus) -> &'static str {
        "The memory is gone then."
    }

    fn what_stayed(_: &ClusterStatus) -> &'static str {
        "the memory is gone"
    }
}

/// Reads a line repeatedly and returns the median time.
fn check(cluster: &Cluster) -> Result<Duration> {
    let mut memory = Client::connect(cluster.config()?)?;
    let mut times = Vec::with_capacity(SELF_CHECK_READS);
    for n in 0..SELF_CHECK_READS as u64 {
        let began = Instant::now();
        let mut into = [[0; LINE_LEN_BYTES]; CHUNK_LINES];
        let read = Transfer::Read {
            chunk: n % memory.chunks(),
            lines: 1,
            into: &mut into,
        };
        memory.transfer(&mut [read])?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_cluster_s_file() {
        let dir = std::env::temp_dir().join(format!("ib-memory-settings-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let address = "127.0.0.1:7".parse().unwrap();
        let cluster = Cluster {
            switches: vec![address; 2],
            servers: vec![address; 5],
            chunks: (256 << 20) / 1024,
            block_lines: 16,
            key_file: None,
            namespace: None,
            sockets: Default::default(),
        };
        cluster.store(&dir).unwrap();
        let settings = Memory::settings(&dir).unwrap();
        let of = |name: &str| {
            let setting = settings
                .iter()
                .find(|setting| setting.name == name)
                .unwrap();
            (&setting.value[..], &setting.default[..], &setting.from[..])
        };
        assert_eq!(of("--servers"), ("5", "3", "inband up"));
        assert_eq!(of("--space"), ("268435456", "268435456", "default"));
        assert_eq!(of("client.deadline_ms"), ("10000", "10000", "built in"));
        let missing = crate::command::undocumented("Replicated memory", &settings);
        assert_eq!(missing, Vec::<String>::new());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
