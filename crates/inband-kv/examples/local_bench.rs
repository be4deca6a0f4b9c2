//! One replica over the in-memory log: measures everything but the network and the protocol.
//!
//! `cargo run --release -p inband-kv --features testing --example local_bench [port
//! [partitions]]`, then
//! `redis-benchmark -p PORT -c 50 -P 16 -d 64 -r 100000 -t set,get -n 2000000`.

use std::error::Error;
use std::net::TcpListener;

use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::testing::MemoryCluster;

/// Number of decided values that the log keeps; no replica falls behind here.
const ENTRIES_KEPT: usize = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args()
        .nth(1)
        .map_or(Ok(6390), |port| port.parse())?;
    let dir = tempfile::tempdir()?;
    let partitions: usize = std::env::args()
        .nth(2)
        .map_or(Ok(1), |partitions| partitions.parse())?;
    let cluster = MemoryCluster::with_partitions(partitions);
    cluster.keep_entries(ENTRIES_KEPT);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!(
        "listening on {}, data in {}",
        listener.local_addr()?,
        dir.path().display()
    );
    let machine = Machine::open(MachineConfig {
        dirs: vec![dir.path().to_path_buf()],
        partitions,
        sync: false,
    })?;
    let log = cluster.join(&machine.applied())?;
    let config = ReplicaConfig::default();
    Replica::new(config, machine, Box::new(log), vec![listener], None)?.run()?;
    Ok(())
}
