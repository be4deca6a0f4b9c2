//! SETs over UDP that a leader's packet program proposes, beside the same SETs that its process proposes, and beside
//! memcached over UDP: the same clients, on a host of their own, reach all over the same network of namespaces.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_box::process::{socket_of, status_at, Status};
use inband_cluster::keys;
use inband_cluster::scratch::{retry, ScratchDir, Server};
use inband_host::program;
use inband_lab::lab::HOST_INTERFACE;

use super::network::{
    duration, fill_over_udp, requests, Load, Network, CLIENTS_PORT, LOST_AFTER, THREADS,
};
use super::{memcached, row, Run};
use crate::load::Operation;
use crate::row::{median, progress, Baseline, Output};

const NODES: usize = 3;
const VALUES_LEN_BYTES: [usize; 3] = [32, 128, 1024];
const NODES_PORT: u16 = 7400;
const MEMORY: &str = "64MiB";
/// Load and nodes share two processors.
const SUSPECT_AFTER_US: &str = "50000";
const WHOLE_LIMIT: Duration = Duration::from_secs(20);
/// A node renews its status within this time.
const STATUS_AFTER: Duration = Duration::from_millis(120);
const STORED: &[u8] = b"STORED\r\n";

/// A cluster with a node in each namespace.
struct Cluster {
    data: PathBuf,
    servers: Vec<Server>,
}

impl Cluster {
    fn start(network: &Network, data: &Path, run: &Run<'_>) -> Result<Cluster> {
        let program = program::find("inband-box")?;
        let key_file = keys::kept(data, run.args.secure)?;
        let names: Vec<String> = (1..=NODES).map(|node| format!("node/{node}")).collect();
        let address = |name: &String| Ok(network.address(name, NODES_PORT)?.to_string());
        let nodes = names.iter().map(address).collect::<Result<Vec<_>>>()?;
        let clients = network.address("clients", 0)?;
        let mut servers = Vec::new();
        for (node, name) in (1..).zip(&names) {
            let mut command = Command::new(&program);
            command.args(["node", "--new", "--node", &node.to_string()]);
            command.args(["--nodes", &nodes.join(",")]);
            command.args(["--dataplane", "xdp", "--interface", HOST_INTERFACE]);
            command.args(["--memcached", "127.0.0.1:11211", "--memory", MEMORY]);
            let port = network.address(name, CLIENTS_PORT)?;
            command.args(["--memcached-udp", &port.to_string()]);
            command.args(["--memcached-udp-from", &format!("{}/32", clients.ip())]);
            command.args(["--suspect-after-us", SUSPECT_AFTER_US]);
            command.arg("--data").arg(data_of(data, node));
            match &key_file {
                Some(path) => command.arg("--key-file").arg(path),
                None => command.arg("--no-key"),
            };
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let child = network.on(name, || command.spawn().context("running inband-box"))?;
            servers.push(Server::new(name, child));
        }
        Ok(Cluster {
            data: data.to_owned(),
            servers,
        })
    }

    fn status(&self, node: usize) -> Result<Status> {
        status_at(&socket_of(&data_of(&self.data, node)))
    }

    /// Waits until all nodes follow a leader, and returns that.
    fn leader(&mut self) -> Result<usize> {
        retry(WHOLE_LIMIT, || {
            for server in &mut self.servers {
                server.check()?;
            }
            let nodes = 1..=NODES;
            let statuses = nodes.map(|node| Ok((node, self.status(node)?)));
            let statuses = statuses.collect::<Result<Vec<_>>>()?;
            let are = |state| statuses.iter().filter(move |(_, s)| s.state == state);
            ensure!(are("following").count() == NODES - 1, "not all follow");
            let (leader, _) = are("leading").next().context("no node leads")?;
            Ok(*leader)
        })
    }

    fn proposed(&self, node: usize) -> Result<u64> {
        let counters = self.status(node)?.counters;
        Ok(counters.get("sets_proposed").copied().unwrap_or(0))
    }
}

fn data_of(data: &Path, node: usize) -> PathBuf {
    data.join(format!("node-{node}"))
}

/// Returns the same SETs in a form that the packet program leaves to the process, and that means the same: with two
/// spaces before the key.
fn for_the_process(requests: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let with_space = |request: &Vec<u8>| {
        let mut request = request.clone();
        let at = request.iter().position(|byte| *byte == b' ');
        request.insert(at.expect("a SET has spaces"), b' ');
        request
    };
    requests.iter().map(with_space).collect()
}

/// Whom the clients ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Program,
    Process,
    Memcached,
}

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    run.note_place("in the kernel: native XDP");
    if !nix::unistd::Uid::current().is_root() {
        output.skipped("SETs in the kernel: namespaces and XDP need root");
        return Ok(());
    }
    let dir = ScratchDir::create(&std::env::temp_dir(), "sets")?;
    let network = Network::start("sets", NODES)?;
    let mut cluster = Cluster::start(&network, dir.path(), run)?;
    let leader = cluster.leader()?;
    let to_ours = network.address(&format!("node/{leader}"), CLIENTS_PORT)?;
    let to_theirs = network.address("memcached", CLIENTS_PORT)?;
    let peer = match run.args.alone {
        true => None,
        false => Some(network.on("memcached", || {
            memcached::spawn(*to_theirs.ip(), CLIENTS_PORT)
        })?),
    };
    if peer.is_some() {
        let from = network.address("clients", 0)?;
        let socket = network.on("clients", || Ok(UdpSocket::bind(from)?))?;
        socket.set_read_timeout(Some(LOST_AFTER))?;
        fill_over_udp(&socket, to_theirs, VALUES_LEN_BYTES[0])?;
    }
    let all = match peer {
        Some(_) => &[Asked::Program, Asked::Process, Asked::Memcached][..],
        None => &[Asked::Program, Asked::Process][..],
    };
    let rounds = run.quick(1, run.args.rounds);
    for value_len_bytes in VALUES_LEN_BYTES {
        let sets = requests(Operation::Set, value_len_bytes);
        let passed = for_the_process(&sets);
        let mut samples = THREADS.map(|_| all.iter().map(|_| Vec::new()).collect::<Vec<_>>());
        let mut lost = [0; 3];
        for round in 1..=rounds {
            progress(&format!("UDP SETs, {value_len_bytes} B, round {round}"));
            for (samples, threads) in samples.iter_mut().zip(THREADS) {
                for (asked, samples) in all.iter().zip(samples) {
                    let load = Load {
                        requests: if *asked == Asked::Process {
                            &passed
                        } else {
                            &sets
                        },
                        good: STORED,
                        to: if *asked == Asked::Memcached {
                            to_theirs
                        } else {
                            to_ours
                        },
                    };
                    let before = cluster.proposed(leader)?;
                    let (rate, got) = network.rate(load, threads, run)?;
                    samples.push(rate);
                    lost[*asked as usize] += got.lost;
                    // The status is renewed now and then.
                    std::thread::sleep(STATUS_AFTER);
                    let proposed = cluster.proposed(leader)? - before;
                    let expected = match asked {
                        Asked::Program => got.good / 2..=u64::MAX,
                        Asked::Process | Asked::Memcached => 0..=0,
                    };
                    ensure!(
                        expected.contains(&proposed),
                        "the packet program of node/{leader} has proposed {proposed} of {} SETs for {asked:?}",
                        got.good
                    );
                }
            }
        }
        let medians = |asked: Asked| {
            let at = asked as usize;
            samples
                .iter()
                .map(move |samples| median(&mut samples[at].clone()))
        };
        let best = |asked| medians(asked).fold(0.0, f64::max);
        let each = |asked| {
            let thousands = medians(asked).map(|rate| format!("{:.1}", rate / 1000.0));
            thousands.collect::<Vec<_>>().join(" and ")
        };
        let conditions = |asked: Asked, what: &str| {
            format!(
                "three nodes, {what}, {} requests in flight from 1 and 2 threads ({} thousand/s), the better counts; {} lost; \
                 hosts are namespaces joined by veth and a switch in XDP; {rounds} rounds of {:?}; {}",
                run.args.clients,
                each(asked),
                lost[asked as usize],
                duration(run),
                run.conditions()
            )
        };
        let memcached = peer.as_ref().map(|_| Baseline {
            name: format!(
                "memcached, one thread, not replicated, the same clients and network ({} thousand/s)",
                each(Asked::Memcached)
            ),
            value: best(Asked::Memcached),
        });
        let process = Baseline {
            name: format!(
                "the same at the same port with two spaces, which the process proposes ({} thousand/s)",
                each(Asked::Process)
            ),
            value: best(Asked::Process),
        };
        let one = |variant: &str, asked, what| {
            row(
                "kernel_sets_per_s",
                "xdp",
                format!("{variant}, {value_len_bytes} B"),
                (best(asked), "1/s"),
                conditions(asked, what),
            )
        };
        let what = "the leader's packet program proposes";
        let ours = one("UDP SETs proposed in the kernel", Asked::Program, what);
        output.row(&ours.beside(Some(process)))?;
        if memcached.is_some() {
            let ours = one("UDP SETs proposed in the kernel", Asked::Program, what);
            output.row(&ours.beside(memcached.clone()))?;
            let what = "the leader's process proposes";
            let process = one("UDP SETs proposed by the process", Asked::Process, what);
            output.row(&process.beside(memcached))?;
        }
    }
    Ok(())
}
