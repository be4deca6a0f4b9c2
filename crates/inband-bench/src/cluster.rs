//! A whole Inband cluster for one round of a benchmark.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::paxos::{ClusterSpec, Supervisor};
use inband_paxos::config::Dataplane;

use inband_cluster::client::Client;
use inband_cluster::scratch::{free_ports, loopback, retry, ScratchDir};

/// How long a cluster may take until it answers a SET.
const SERVING_LIMIT: Duration = Duration::from_secs(20);
const CLIENT_LIMIT: Duration = Duration::from_secs(5);
/// Replicas of the store, and acceptors.
pub const REPLICAS: u16 = 3;

/// A running cluster with its data in a scratch directory. Killed and removed when dropped.
pub struct BenchCluster {
    // Dropped first: the processes are gone before their directory.
    pub supervisor: Supervisor,
    _dir: ScratchDir,
}

impl BenchCluster {
    /// Start one with the defaults of `inband up`, but without a key, and wait until it serves.
    pub fn start(dataplane: Dataplane) -> Result<BenchCluster> {
        Self::start_with(dataplane, &std::env::temp_dir(), |_| ())
    }

    /// Start one with its data below a directory and in other things different from the defaults.
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
        // As what it is compared with; `bench agreement --capacity` shows what a key costs.
        spec.authenticated = false;
        // The client address, and one port a replica behind it.
        spec.resp = loopback(free_ports(1 + REPLICAS)?);
        spec.metrics_port = free_ports(2 * REPLICAS + 1)?;
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

/// The backends that work here; for the others a line says why they are left out.
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
