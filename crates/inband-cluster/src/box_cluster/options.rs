//! The options of `inband up box`.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_box::durable::Durability;
use inband_box::limits::{LOG_RECORDS_DEFAULT, NODE_COUNTS, TABLE_BYTES_DEFAULT};
use inband_box::node::Quorum;
use inband_box::NODES;
use inband_host::config::Dataplane;
use inband_host::size::parse_size;
use serde::{Deserialize, Serialize};

use crate::command::parse_options;
use crate::listeners;

/// Options whose ports are checked before a node starts.
pub(super) const MEMCACHED: &str = "--memcached";
pub(super) const MEMCACHED_LOCAL: &str = "--memcached-local";
pub(super) const MEMCACHED_UDP: &str = "--memcached-udp";

/// The default of `--metrics-port`, that of the other systems.
const METRICS_PORT: u16 = 9464;

fn metrics_port() -> u16 {
    METRICS_PORT
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
    /// First port of /metrics for Prometheus, on loopback: one per node, and any free port where one is in use; 0: any
    /// free ports
    #[arg(long, default_value_t = METRICS_PORT, value_name = "PORT")]
    #[serde(default = "metrics_port")]
    pub metrics_port: u16,
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
    pub(super) fn places(&self) -> u8 {
        match self.direct {
            true => self.nodes,
            false => *NODES.end(),
        }
    }

    /// Client addresses, by node.
    pub(super) fn memcached(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_from(self.memcached, MEMCACHED)
    }

    /// Addresses for reads of the nodes' own copies; empty if there are none.
    pub(super) fn memcached_local(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_if_given(self.memcached_local, MEMCACHED_LOCAL)
    }

    /// Addresses for datagrams; empty if there are none.
    pub(super) fn memcached_udp(&self) -> Result<Vec<SocketAddr>> {
        self.addresses_if_given(self.memcached_udp, MEMCACHED_UDP)
    }

    /// Returns a listener for Prometheus for each node.
    pub(super) fn listen_for_metrics(&self) -> Result<Vec<Arc<TcpListener>>> {
        let listener = |offset: u8| {
            let port = match self.metrics_port {
                0 => 0,
                first => first.checked_add(offset.into()).unwrap_or(0),
            };
            Ok(Arc::new(listeners::bind_or_any(port, "--metrics-port")?))
        };
        (0..self.places()).map(listener).collect()
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
}
