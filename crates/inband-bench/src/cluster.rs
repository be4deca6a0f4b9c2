//! A whole Inband cluster for one round of a benchmark.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::paxos::{ClusterSpec, Supervisor};
use inband_paxos::config::Dataplane;

use inband_cluster::client::Client;
use inband_cluster::scratch::{retry, ScratchDir};
use inband_testing::port::{free_ports, loopback};

/// How long a cluster may take until it answers a SET.
const SERVING_LIMIT: Duration = Duration::from_secs(20);
const CLIENT_LIMIT: Duration = Duration::from_secs(5);
/// Replicas of the store, and acceptors.
pub const REPLICAS: u16 = 3;

/// A running cluster with its data in a scratch directory. Dropping it kills it and removes the directory.
pub struct BenchCluster {
    // Dropped first: the processes must exit before their directory is removed.
    pub supervisor: Supervisor,
    _dir: ScratchDir,
}

impl BenchCluster {
    /// Starts a cluster with the defaults of `inband up`, except that it has no key, and waits until it serves.
    pub fn start(dataplane: Dataplane) -> Result<BenchCluster> {
        Self::start_with(dataplane, &std::env::temp_dir(), |_| ())
    }

    /// Starts a cluster with its data below a directory, and with other changes to the defaults.
    pub fn start_with(
        dataplane: Dataplane,
        parent: &Path,
        differ: impl FnOnce(&mut ClusterSpec),
    ) -> Result<BenchCluster> {
        let dir = ScratchDir::create(parent, &dataplane.to_string())?;
        let program = inband_host::program::find(inband_host::program::INBAND)?;
        let mut spec = ClusterSpec::new(program, dir.path());
        spec.dataplane = dataplane;
        spec.replicas = usize::from(REPLICAS);
        // Like the systems that it is compared with; `bench agreement --capacity` shows the cost of a key.
        spec.authenticated = false;
        // The client address, followed by one port per replica.
        spec.resp = loopback(free_ports(1 + REPLICAS));
        spec.metrics_port = free_ports(2 * REPLICAS + 1);
        differ(&mut spec);
        let supervisor = Supervisor::start(spec)?;
        let cluster = BenchCluster {
            supervisor,
            _dir: dir,
        };
        retry(SERVING_LIMIT, || {
            let mut client = Client::connect(cluster.supervisor.resp(), CLIENT_LIMIT)?;
            let reply = client.call(&["SET", "inband:bench", "ready"])?;
            ensure!(reply == "+OK", "SET answered {reply:?}");
            Ok(())
        })
        .with_context(|| format!("the cluster on {dataplane} does not serve"))?;
        Ok(cluster)
    }
}

/// Returns the backends that work here. For each of the others, passes `skipped` a line with the reason.
pub fn usable(backends: &[Dataplane], skipped: &mut dyn FnMut(String)) -> Vec<Dataplane> {
    let lab = inband_lab::preflight::check_lab();
    backends
        .iter()
        .copied()
        .filter(|backend| match &lab {
            Err(error) if *backend != Dataplane::Udp => {
                skipped(format!("the {backend} backend: {error}"));
                false
            }
            _ => true,
        })
        .collect()
}
