//! Clusters of consensus in a box for tests, and memcached requests to them.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_box::durable::Durability;
use inband_box::process::Status;
use inband_cluster::box_cluster::{BoxCluster, Options};
use inband_cluster::command::SystemCommand;
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Dataplane;
use inband_testing::port::{free_ports, loopback};

/// Generous: other programs may use the machine.
pub const LIMIT: Duration = Duration::from_secs(60);
pub const KEYS: usize = 30;

pub fn program() -> PathBuf {
    inband_testing::build("inband-box")
}

/// The first of three ports in a row that nobody uses now.
pub fn ports() -> SocketAddr {
    loopback(free_ports(3))
}

pub fn options() -> Options {
    Options {
        memcached: ports(),
        memory: 16 << 20,
        log_records: 1024,
        dataplane: Dataplane::Udp,
        // Other tests take the CPUs at the same time.
        suspect_after_us: Some(250_000),
        ..Options::default()
    }
}

pub fn start(dir: &Path, options: Options) -> Result<Supervisor<BoxCluster>> {
    let mut spec = BoxCluster::spec(&options, dir)?;
    spec.program = Some(program());
    Supervisor::start(spec)
}

/// Waits until a node leads. On a busy machine the leader may change at any time.
pub fn leader(cluster: &Supervisor<BoxCluster>) -> String {
    let leads = || cluster.system().leader().context("nobody leads");
    retry(LIMIT, leads).expect("somebody leads")
}

pub fn ask(address: SocketAddr, request: &str, lines: usize) -> Result<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(request.as_bytes())?;
    let replies = BufReader::new(stream).lines().take(lines);
    replies
        .collect::<Result<_, _>>()
        .with_context(|| format!("{address}: {request:?}"))
}

pub fn set(address: SocketAddr, key: &str, value: &str) -> Result<()> {
    let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
    let reply = ask(address, &request, 1)?;
    ensure!(reply == ["STORED"], "{reply:?}");
    Ok(())
}

pub fn get(address: SocketAddr, key: &str) -> Result<String> {
    let mut reply = ask(address, &format!("get {key}\r\n"), 3)?;
    ensure!(reply.len() == 3, "{key}: {reply:?}");
    Ok(reply.swap_remove(1))
}

pub fn states(cluster: &Supervisor<BoxCluster>) -> Vec<String> {
    let mut states: Vec<String> = cluster
        .status()
        .nodes
        .into_iter()
        .map(|n| n.state)
        .collect();
    states.sort_unstable();
    states
}

pub fn until_states_are(cluster: &Supervisor<BoxCluster>, expected: &[&str]) {
    let are = retry(LIMIT, || {
        let states = states(cluster);
        ensure!(states == expected, "{states:?}");
        Ok(())
    });
    are.expect("states of the nodes");
}

pub fn sync() -> Options {
    Options {
        durability: Durability::Sync,
        memcached: loopback(free_ports(7)),
        ..options()
    }
}

/// These are the members, and all of them follow one of them.
pub fn until_states_are_of(cluster: &Supervisor<BoxCluster>, members: &[u8]) {
    let are = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let serves = |node: &&Status| ["leading", "following"].contains(&&node.state[..]);
        let serving: Vec<&str> = nodes.iter().filter(serves).map(|n| &n.name[..]).collect();
        let expected: Vec<String> = members.iter().map(|id| format!("node/{id}")).collect();
        let leads = nodes.iter().filter(|node| node.state == "leading").count();
        ensure!(serving == expected && leads == 1, "{nodes:?}");
        Ok(())
    });
    are.expect("members");
}
