//! One replica over the in-memory log: measures everything but the network and the protocol.
//!
//! `cargo run --release -p inband-kv --features testing --example local_bench [port]`, then
//! `redis-benchmark -p PORT -c 50 -P 16 -d 64 -r 100000 -t set,get -n 2000000`.

use std::error::Error;
use std::net::TcpListener;

use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::store::Store;
use inband_kv::testing::MemoryCluster;

/// Decided values that the log keeps; nobody is behind here.
const ENTRIES_KEPT: usize = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args()
        .nth(1)
        .map_or(Ok(6390), |port| port.parse())?;
    let dir = tempfile::tempdir()?;
    let cluster = MemoryCluster::new();
    cluster.keep_entries(ENTRIES_KEPT);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!(
        "listening on {}, data in {}",
        listener.local_addr()?,
        dir.path().display()
    );
    let store = Store::open(dir.path())?;
    let log = cluster.join(store.applied())?;
    let config = ReplicaConfig::default();
    Replica::new(config, store, Box::new(log), vec![listener], None)?.run()?;
    Ok(())
}
