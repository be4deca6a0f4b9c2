//! A cluster of replicated memory with its own directory.

use std::path::Path;

use anyhow::Result;
use inband_cluster::command::SystemCommand;
use inband_cluster::memory::{ClusterStatus, Memory, Options};
use inband_cluster::scratch::ScratchDir;
use inband_cluster::supervisor::Supervisor;
use inband_memory::heap::stats::{programs, Figures};
use inband_memory::memory::{Memory as Client, MemoryConfig};
use inband_paxos::config::Dataplane;

/// Lines that share a write counter: the default of `inband up memory`.
const BLOCK_LINES: u64 = 16;
/// The memory's size is rounded up to a multiple of this.
const SPACE_UNIT_BYTES: u64 = 1 << 20;

/// The cluster to start.
#[derive(Debug, Clone, Copy)]
pub struct TestbedSpec {
    pub servers: u8,
    pub switches: u8,
    /// Minimum size.
    pub space_bytes: u64,
    pub dataplane: Dataplane,
    /// Use tags on packets.
    pub secure: bool,
}

/// A running cluster. Dropping it stops it.
pub struct Testbed {
    // Dropped first: the processes must exit before their directory is removed.
    supervisor: Supervisor<Memory>,
    _dir: ScratchDir,
}

impl Testbed {
    /// Starts a cluster and waits until its servers and switches run.
    pub fn start(spec: TestbedSpec) -> Result<Testbed> {
        let dir = ScratchDir::create(&std::env::temp_dir(), "memory")?;
        let options = Options {
            servers: spec.servers,
            switches: spec.switches,
            space: spec.space_bytes.next_multiple_of(SPACE_UNIT_BYTES),
            block: BLOCK_LINES,
            dataplane: spec.dataplane,
            no_key: !spec.secure,
            accept_loss: false,
        };
        let spec = Memory::spec(&options, &dir.path().join("cluster"))?;
        Ok(Testbed {
            supervisor: Supervisor::start(spec)?,
            _dir: dir,
        })
    }

    pub fn status(&self) -> ClusterStatus {
        self.supervisor.status()
    }

    /// Returns the configuration for clients.
    pub fn config(&self) -> Result<MemoryConfig> {
        self.status().cluster.config()
    }

    pub fn connect(&self) -> Result<Client> {
        Ok(Client::connect(self.config()?)?)
    }

    pub fn data(&self) -> &Path {
        self.supervisor.hosts().data()
    }

    /// Kills the process of a host; `switch` is the active one.
    pub fn kill(&self, role: &str) -> Result<()> {
        self.supervisor.kill(role).map(drop)
    }

    /// Returns the counters of the pager of the only program that uses the cluster.
    pub fn pager(&self) -> Option<Figures> {
        programs(self.data()).pop().map(|program| program.figures)
    }
}
