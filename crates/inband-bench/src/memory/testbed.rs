//! A cluster of replicated memory in a directory of its own.

use std::path::Path;

use anyhow::Result;
use inband_cluster::command::SystemCommand;
use inband_cluster::memory::{ClusterStatus, Memory, Options};
use inband_cluster::scratch::ScratchDir;
use inband_cluster::supervisor::Supervisor;
use inband_memory::heap::stats::{programs, Figures};
use inband_memory::memory::{Memory as Client, MemoryConfig};
use inband_paxos::config::Dataplane;

/// Lines that share a counter of writes: the default of `inband up memory`.
const BLOCK_LINES: u64 = 16;
/// Memories smaller than this are refused nowhere, and none needs less.
const SPACE_UNIT_BYTES: u64 = 1 << 20;

/// Which cluster.
#[derive(Debug, Clone, Copy)]
pub struct TestbedSpec {
    pub servers: u8,
    pub switches: u8,
    /// At least so many.
    pub space_bytes: u64,
    pub dataplane: Dataplane,
    /// Tags on packets.
    pub secure: bool,
}

/// A running cluster, which ends when this is dropped.
pub struct Testbed {
    // Dropped first: the processes are gone before their directory.
    supervisor: Supervisor<Memory>,
    _dir: ScratchDir,
}

impl Testbed {
    /// Start it; servers and switches run.
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

    /// How clients reach it.
    pub fn config(&self) -> Result<MemoryConfig> {
        self.status().cluster.config()
    }

    /// A client of its own.
    pub fn connect(&self) -> Result<Client> {
        Ok(Client::connect(self.config()?)?)
    }

    /// Its directory.
    pub fn data(&self) -> &Path {
        self.supervisor.hosts().data()
    }

    /// Kill the process of a host, or of the active `switch`.
    pub fn kill(&self, role: &str) -> Result<()> {
        self.supervisor.kill(role).map(drop)
    }

    /// What the pager of the only program that uses it has counted.
    pub fn pager(&self) -> Option<Figures> {
        programs(self.data()).pop().map(|program| program.figures)
    }
}
