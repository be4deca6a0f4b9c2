//! A NetPaxos cluster with its own directory.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Result};
use inband_cluster::command::SystemCommand;
use inband_cluster::netpaxos::{NetPaxos, Options};
use inband_cluster::scratch::{retry, ScratchDir};
use inband_cluster::supervisor::Supervisor;
use inband_host::config::{Dataplane, Durability};
use inband_lab::netns::NETNS_DIR;
use inband_netpaxos::cluster::Cluster;

const WHOLE_LIMIT: Duration = Duration::from_secs(60);
/// The description of the cluster in every row.
pub const WHAT: &str = "3 serializers, 4 minions, 2 learners, votes in memory";

/// A running cluster. Dropping it stops it.
pub struct Testbed {
    // Dropped first: the processes must exit before their directory is removed.
    pub supervisor: Supervisor<NetPaxos>,
    _dir: ScratchDir,
}

impl Testbed {
    pub fn start(dataplane: Dataplane) -> Result<Testbed> {
        let dir = ScratchDir::create(&std::env::temp_dir(), "netpaxos")?;
        let options = Options {
            minions: 4,
            learners: 2,
            serializers: 3,
            dataplane,
            durability: Durability::Memory,
            no_key: true,
            accept_loss: false,
            resp: ([127, 0, 0, 1], 0).into(),
            log_only: true,
            ..Options::default()
        };
        let spec = NetPaxos::spec(&options, dir.path())?;
        let testbed = Testbed {
            supervisor: Supervisor::start(spec)?,
            _dir: dir,
        };
        testbed.wait_until_whole()?;
        Ok(testbed)
    }

    pub fn cluster(&self) -> Cluster {
        self.supervisor.status().cluster
    }

    /// Returns the cluster for a client on the first learner's host, where the proposers of our Paxos are too.
    pub fn cluster_of_learner(&self) -> Result<Cluster> {
        let mut cluster = self.cluster();
        if let Some(lab) = self.supervisor.hosts().network().lab() {
            let namespace = lab.host("learner/1")?.namespace().name().to_owned();
            let path = Path::new(NETNS_DIR).join(namespace);
            cluster.client = Some((*cluster.learners[0].ip(), path));
        }
        Ok(cluster)
    }

    /// Returns where the roles run, and why.
    pub fn place(&self) -> String {
        self.supervisor.status().notice
    }

    /// Returns a counter, summed over all processes.
    pub fn counter(&self, name: &str) -> u64 {
        let nodes = self.supervisor.status().nodes;
        nodes
            .iter()
            .filter_map(|node| node.counters.get(name))
            .sum()
    }

    /// Waits until all processes answer and all storage servers serve.
    pub fn wait_until_whole(&self) -> Result<()> {
        retry(WHOLE_LIMIT, || {
            let status = self.supervisor.status();
            let (answer, all) = (status.nodes.len(), status.cluster.sockets.len());
            ensure!(answer == all, "{answer} of {all} processes answer");
            let serving = status.nodes.iter().filter(|node| node.state == "serving");
            let (serving, all) = (serving.count(), status.cluster.storages.len());
            ensure!(serving == all, "{serving} of {all} storage servers serve");
            Ok(())
        })
    }
}
