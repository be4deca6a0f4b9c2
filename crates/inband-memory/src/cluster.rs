//! What clients must know to reach a cluster, as a file and as command-line options.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_host::key_file::KeyFile;
use inband_host::output::quoted;
use serde::{Deserialize, Serialize};

use crate::memory::{Memory, MemoryConfig};

/// The cluster's file in the directory of `inband up memory`.
pub const FILE: &str = "cluster.json";
/// The default directory of `inband up memory`.
pub const DATA: &str = ".inband-memory";

/// The file in a node's directory that holds the node's promise.
pub const PROMISED: &str = "promised";

/// The file in a node's directory that records the size in bytes of a memory that has grown.
pub const SPACE: &str = "space";
/// The file in a server's directory that marks it as the replacement of a lost server.
pub const REPLACES: &str = "replaces";

/// Returns whether a node has run in this directory before.
pub fn has_promised(dir: &Path) -> bool {
    dir.join(PROMISED).exists()
}

/// A cluster, as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Switches: nodes 16, 17 and so on.
    pub switches: Vec<SocketAddrV4>,
    /// Servers: nodes 1, 2 and so on.
    pub servers: Vec<SocketAddrV4>,
    /// Chunks of the memory.
    pub chunks: u64,
    /// Lines that share a write counter.
    pub block_lines: u64,
    /// The file with the cluster's key.
    pub key_file: Option<PathBuf>,
    /// The network namespace of its clients, if the cluster has its own network.
    pub namespace: Option<PathBuf>,
    /// The nodes' control sockets, by node name.
    pub sockets: BTreeMap<String, PathBuf>,
}

impl Cluster {
    /// Reads the cluster's file from a directory.
    pub fn load(dir: &Path) -> Result<Cluster> {
        let path = dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => anyhow::bail!(
                "there is no {}: name the directory of a cluster, start one there with `inband up memory --data {}`, or name the switches of one elsewhere",
                path.display(),
                quoted(dir)
            ),
            other => other.with_context(|| format!("{}", path.display()))?,
        };
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Returns the configuration for its clients.
    pub fn config(&self) -> Result<MemoryConfig> {
        let mut config = config_of(&self.switches, self.key_file.as_deref())?;
        config.namespace = self.namespace.clone();
        Ok(config)
    }

    /// Writes the cluster's file to a directory.
    pub fn store(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self)?;
        let new = dir.join("cluster.json.new");
        let replace = || std::fs::write(&new, &text).and_then(|()| std::fs::rename(&new, &path));
        replace().with_context(|| format!("{}", path.display()))
    }
}

/// Returns the configuration for a cluster with these switches and this key.
pub fn config_of(switches: &[SocketAddrV4], key_file: Option<&Path>) -> Result<MemoryConfig> {
    ensure!(!switches.is_empty(), "the cluster has no switches");
    let mut config = MemoryConfig::new(switches.to_vec());
    let file = key_file.map(KeyFile::load).transpose()?;
    config.keys = file.map(|file| file.keys());
    Ok(config)
}

/// Options of commands that use replicated memory.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// Directory of `inband up memory`
    #[arg(long, default_value = DATA, value_name = "DIR")]
    pub data: PathBuf,
    /// The switches, of a cluster that runs elsewhere
    #[arg(long, value_name = "ADDR:PORT,...", value_delimiter = ',')]
    pub switches: Vec<SocketAddrV4>,
    /// File with the cluster's key
    #[arg(long, value_name = "FILE", requires = "switches")]
    pub key_file: Option<PathBuf>,
}

impl ClusterArgs {
    /// Returns the configuration for the cluster's clients.
    pub fn config(&self) -> Result<MemoryConfig> {
        match self.switches.is_empty() {
            true => Cluster::load(&self.data)?.config(),
            false => config_of(&self.switches, self.key_file.as_deref()),
        }
    }

    /// Connects to the cluster.
    pub fn connect(&self) -> Result<Memory> {
        Ok(Memory::connect(self.config()?)?)
    }
}
