//! A host with a replica: the store, its clients and the node, in one loop.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::store::Store;
use inband_paxos::config::{Config, Dataplane};
use inband_paxos::node::Node;

use crate::metrics;
use crate::published::PublishedNode;
use crate::serve::{self, HostView};

/// How soon a signal is noticed.
const STOP_POLL: Duration = Duration::from_millis(20);

/// Run until `stop` is set.
pub fn run(
    config: &Arc<Config>,
    dataplane: Dataplane,
    stop: Arc<AtomicBool>,
    resp: Vec<TcpListener>,
    metrics_listeners: Vec<TcpListener>,
) -> Result<()> {
    let this = config.this();
    let store = Store::open(&config.host.data_dir)
        .with_context(|| format!("host.data_dir {}", config.host.data_dir.display()))?;
    let before = config.cluster.first_instance - 1;
    ensure!(
        store.applied() == 0 || store.applied() >= before || config.replicas().count() > 1,
        "the store has applied instance {}, the epoch starts behind {before}, and there is no peer to copy from",
        store.applied()
    );
    let node = Node::open(config, dataplane, store.applied())?;
    let (node, state) = PublishedNode::new(node);
    // Peers fetch checkpoints over TCP at the address that also takes packets.
    let checkpoints = TcpListener::bind(this.address)
        .with_context(|| format!("TCP address {} of node {:?}", this.address, this.name))?;
    let index = config.replicas().position(|n| n.id == this.id).unwrap_or(0);
    let replica_config = ReplicaConfig {
        name: this.name.clone(),
        replica_index: index as u64,
        clients_max: config.host.limits.max_clients as usize,
        spin_us: config.host.timing.spin_us,
    };
    let mut replica = Replica::new(
        replica_config,
        store,
        Box::new(node),
        resp,
        Some(checkpoints),
    )?;
    let view = HostView {
        config: config.clone(),
        dataplane,
        state,
        replica: Some(replica.control()),
        stop: stop.clone(),
    };
    for listener in metrics_listeners {
        metrics::start(listener, view.clone())?;
    }
    let _control = serve::start(view)?;
    let control = replica.control();
    std::thread::Builder::new()
        .name("stop".into())
        .spawn(move || {
            while !stop.load(Ordering::Acquire) {
                std::thread::sleep(STOP_POLL);
            }
            control.stop();
        })?;
    replica.run()?;
    tracing::info!("{}: stopped", this.name);
    Ok(())
}
