//! A cluster of consensus in a box with its own directory.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_box::process::Status;
use inband_cluster::box_cluster::{BoxCluster, Options, Quorum};
use inband_cluster::command::SystemCommand;
use inband_cluster::scratch::{retry, ScratchDir};
use inband_cluster::supervisor::Supervisor;
use inband_testing::port::{free_ports, loopback};

use super::BoxArgs;

const WHOLE_LIMIT: Duration = Duration::from_secs(60);

/// A running cluster. Dropping it stops it.
pub struct Testbed {
    // Dropped first: the processes must exit before their directory is removed.
    pub supervisor: Supervisor<BoxCluster>,
    _dir: ScratchDir,
}

/// Returns the index of a node, from 0.
pub fn place_of(name: &str) -> usize {
    let number = name.rsplit('/').next().and_then(|n| n.parse().ok());
    number.map_or(0, |number: usize| number.saturating_sub(1))
}

impl Testbed {
    /// Starts a cluster and waits until all nodes follow the leader.
    pub fn start(nodes: u8, quorum: Quorum, memory: u64, args: &BoxArgs) -> Result<Testbed> {
        Testbed::with_links(nodes, quorum, memory, args, false)
    }

    /// As [`Testbed::start`]. `direct`: with a dedicated link between each two nodes.
    pub fn with_links(
        nodes: u8,
        quorum: Quorum,
        memory: u64,
        args: &BoxArgs,
        direct: bool,
    ) -> Result<Testbed> {
        let dir = ScratchDir::create(&std::env::temp_dir(), "box")?;
        let first = free_ports(3 * u16::from(nodes));
        let options = Options {
            nodes,
            quorum,
            memcached: loopback(first),
            memcached_local: Some(loopback(first + u16::from(nodes))),
            memcached_udp: Some(loopback(first + 2 * u16::from(nodes))),
            memory,
            dataplane: args.dataplane,
            no_key: !args.secure,
            direct,
            ..Options::default()
        };
        let spec = BoxCluster::spec(&options, dir.path())?;
        Ok(Testbed {
            supervisor: Supervisor::start(spec)?,
            _dir: dir,
        })
    }

    pub fn nodes(&self) -> Vec<Status> {
        self.supervisor.status().nodes
    }

    /// Waits for a leader and returns its name.
    pub fn leader(&self) -> Result<String> {
        retry(WHOLE_LIMIT, || {
            let nodes = self.nodes();
            let leading = nodes.iter().filter(|node| node.state == "leading");
            let leader = leading.max_by_key(|node| node.epoch);
            Ok(leader.context("no node leads")?.name.clone())
        })
    }

    /// Returns the address for clients of a node; their reads are linearizable.
    pub fn address(&self, node: &str) -> Result<SocketAddr> {
        let all = self.supervisor.status().memcached;
        let address = all.get(place_of(node)).copied();
        address.with_context(|| format!("there is no {node}"))
    }

    /// Returns the address for clients of a node that read its own copy.
    pub fn local(&self, node: &str) -> Result<SocketAddr> {
        let all = self.supervisor.status().memcached_local;
        let address = all.get(place_of(node)).copied();
        address.with_context(|| format!("there is no {node}"))
    }

    /// Returns the address for clients of a node that send datagrams.
    pub fn udp(&self, node: &str) -> SocketAddr {
        let first = self.supervisor.status().options.memcached_udp;
        let mut address = first.expect("start says where");
        address.set_port(address.port() + place_of(node) as u16);
        address
    }

    /// Returns where the nodes' roles run, and why.
    pub fn place(&self) -> String {
        self.supervisor.status().place
    }

    /// Waits until all nodes follow the leader.
    pub fn wait_until_whole(&self) -> Result<()> {
        let expected = usize::from(self.supervisor.status().options.nodes) - 1;
        retry(WHOLE_LIMIT, || {
            let nodes = self.nodes();
            let leader = nodes.iter().find(|node| node.state == "leading");
            let epoch = leader.context("no node leads")?.epoch;
            let follows = |node: &&Status| node.state == "following" && node.epoch == epoch;
            let following = nodes.iter().filter(follows).count();
            ensure!(
                following == expected,
                "{following} of {expected} nodes follow"
            );
            Ok(())
        })
    }
}
