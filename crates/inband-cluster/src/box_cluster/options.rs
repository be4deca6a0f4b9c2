//! The options of `inband up box`.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{bail, ensure, Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::Args;
use inband_box::durable::Durability;
use inband_box::limits::{
    CLIENTS_MAX, CLIENTS_MAX_RANGE, LOG_RECORDS_DEFAULT, NODE_COUNTS, TABLE_BYTES_DEFAULT,
};
use inband_box::network::Network;
use inband_box::node::{Quorum, SUSPECT_AFTER_US};
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
pub(super) const MEMCACHED_LOCAL_UDP: &str = "--memcached-local-udp";
pub(super) const MEMCACHED_UDP_FROM: &str = "--memcached-udp-from";

/// The default of `--metrics-port`, that of the other systems.
const METRICS_PORT: u16 = 9464;

fn metrics_port() -> u16 {
    METRICS_PORT
}

fn clients_max() -> usize {
    CLIENTS_MAX
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
    #[arg(long, value_name = "ADDR:PORT", value_parser = listeners::parse_address::<11211>, default_value = "127.0.0.1:11211")]
    pub memcached: SocketAddr,
    /// Address for clients that read the first node's own copy, which may be stale; the other nodes use the ports that
    /// follow
    #[arg(long, value_name = "ADDR:PORT", value_parser = listeners::parse_address::<11311>)]
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
    #[arg(long, value_name = "ADDR:PORT", value_parser = listeners::parse_address::<11211>)]
    #[serde(default)]
    pub memcached_udp: Option<SocketAddr>,
    /// Address for memcached datagrams that read the first node's own copy, which may be stale; the other nodes use the
    /// ports that follow. Where nodes are in namespaces, the port is in the node's own, so only clients there and at the
    /// other nodes reach it: give 0.0.0.0:PORT with --memcached-udp-from 10.77.0.0/24. Off by default
    #[arg(long, value_name = "ADDR:PORT", value_parser = listeners::parse_address::<11311>)]
    #[serde(default)]
    pub memcached_local_udp: Option<SocketAddr>,
    /// Network whose datagrams are answered at --memcached-udp and --memcached-local-udp, which may then be beyond
    /// loopback; others are ignored. By default loopback only
    #[arg(long, value_name = "ADDR/BITS")]
    #[serde(default)]
    pub memcached_udp_from: Option<Network>,
    /// Maximum number of concurrent clients of each node, 1 to 100000
    #[arg(long, default_value_t = CLIENTS_MAX, value_name = "COUNT",
        value_parser = RangedU64ValueParser::<usize>::new().range(CLIENTS_MAX_RANGE))]
    #[serde(default = "clients_max")]
    pub clients_max: usize,
    /// Microseconds of silence after which a leader is suspected, 50 to 500000; by default 10000, and 50000 with
    /// --durability sync
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(SUSPECT_AFTER_US))]
    #[serde(default)]
    pub suspect_after_us: Option<u64>,
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
        check_loopback(self.memcached, MEMCACHED)?;
        self.addresses_from(self.memcached, MEMCACHED)
    }

    /// Addresses for reads of the nodes' own copies; empty if there are none.
    pub(super) fn memcached_local(&self) -> Result<Vec<SocketAddr>> {
        let Some(first) = self.memcached_local else {
            return Ok(Vec::new());
        };
        check_loopback(first, MEMCACHED_LOCAL)?;
        self.addresses_from(first, MEMCACHED_LOCAL)
    }

    /// Addresses for datagrams, and for those that read the nodes' own copies; empty if there are none.
    pub(super) fn datagrams(&self) -> Result<[Vec<SocketAddr>; 2]> {
        let (strong, local) = (self.memcached_udp, self.memcached_local_udp);
        ensure!(
            self.memcached_udp_from.is_none() || strong.or(local).is_some(),
            "{MEMCACHED_UDP_FROM} is for {MEMCACHED_UDP} and {MEMCACHED_LOCAL_UDP}; give one of them"
        );
        let all = [
            self.datagrams_from(strong, MEMCACHED_UDP)?,
            self.datagrams_from(local, MEMCACHED_LOCAL_UDP)?,
        ];
        if let Some(both) = all[0].iter().find(|address| all[1].contains(address)) {
            bail!("{MEMCACHED_UDP} and {MEMCACHED_LOCAL_UDP} both need {both}; leave {} ports between them", self.places());
        }
        Ok(all)
    }

    fn datagrams_from(&self, first: Option<SocketAddr>, option: &str) -> Result<Vec<SocketAddr>> {
        let Some(first) = first else {
            return Ok(Vec::new());
        };
        ensure!(
            first.ip().is_loopback() || self.memcached_udp_from.is_some(),
            "{option} {first} is beyond loopback, where senders can be forged; name the network that is answered with {MEMCACHED_UDP_FROM} ADDR/BITS"
        );
        self.addresses_from(first, option)
    }

    /// Microseconds of silence after which a leader is suspected.
    pub(super) fn suspect_after_us(&self) -> u64 {
        let default = self.durability.suspect_after_ns() / 1000;
        self.suspect_after_us.unwrap_or(default)
    }

    /// Returns a listener for Prometheus for each node.
    pub(super) fn listen_for_metrics(&self) -> Result<Vec<Arc<TcpListener>>> {
        let listener = |offset: u8| {
            let port = listeners::metrics_port(self.metrics_port, offset.into());
            Ok(Arc::new(listeners::bind_or_any(port, "--metrics-port")?))
        };
        (0..self.places()).map(listener).collect()
    }

    /// Returns one address per node, with consecutive ports.
    fn addresses_from(&self, first: SocketAddr, option: &str) -> Result<Vec<SocketAddr>> {
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

fn check_loopback(first: SocketAddr, option: &str) -> Result<()> {
    ensure!(
        first.ip().is_loopback(),
        "{option} {first} is beyond loopback, where anyone could read and write; give 127.0.0.1:PORT"
    );
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
    fn datagrams_from_beyond_loopback_need_a_network() {
        let local = "--memcached-local-udp=0.0.0.0:11311";
        let from = "--memcached-udp-from=10.77.0.0/24";
        let [strong, all] = options(&[local, from]).datagrams().unwrap();
        assert!(strong.is_empty());
        let ports: Vec<u16> = all.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, (11311..=11317).collect::<Vec<_>>());
        let near = "--memcached-local-udp=127.0.0.1:11217";
        for (args, says) in [
            (
                &[local][..],
                "--memcached-local-udp 0.0.0.0:11311 is beyond loopback",
            ),
            (
                &["--memcached-udp=10.0.0.1:1"],
                "--memcached-udp 10.0.0.1:1 is beyond loopback",
            ),
            (&[from], "give one of them"),
            (
                &["--memcached-local-udp=127.0.0.1:65530"],
                "from 1 to 65529",
            ),
            (
                &["--memcached-udp=127.0.0.1:11211", near],
                "both need 127.0.0.1:11217",
            ),
        ] {
            let error = options(args).datagrams().unwrap_err().to_string();
            assert!(error.contains(says), "{args:?}: {error}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        use clap::Command;
        for (arg, value, range) in [
            ("--clients-max=0", "0", "1..=100000"),
            ("--clients-max=100001", "100001", "1..=100000"),
            ("--suspect-after-us=49", "49", "50..=500000"),
            ("--suspect-after-us=500001", "500001", "50..=500000"),
        ] {
            let command = Options::augment_args(Command::new("up").no_binary_name(true));
            let error = command.try_get_matches_from([arg]).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{value} is not in {range}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read() {
        let mut stored = serde_json::to_value(options(&[])).unwrap();
        let fields = stored.as_object_mut().unwrap();
        for new in [
            "memcached_local_udp",
            "memcached_udp_from",
            "clients_max",
            "suspect_after_us",
        ] {
            assert!(fields.remove(new).is_some(), "{new}");
        }
        let read: Options = serde_json::from_value(stored).unwrap();
        assert_eq!(
            (read.clients_max, read.suspect_after_us()),
            (CLIENTS_MAX, 10_000)
        );
    }
}
