//! Where a cluster is: what clients must know, as a file and as options of the command line.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_host::key_file::KeyFile;
use serde::{Deserialize, Serialize};

use crate::memory::{Memory, MemoryConfig};

/// The file in the directory of `inband up memory`.
pub const FILE: &str = "cluster.json";
/// The default directory of `inband up memory`.
pub const DATA: &str = ".inband-memory";

/// The file in a node's directory with what the node has promised.
pub const PROMISED: &str = "promised";

/// The file in a node's directory with the bytes of a memory that has grown.
pub const SPACE: &str = "space";
/// The file in a server's directory that says that it takes the place of one that is lost.
pub const REPLACES: &str = "replaces";

/// Was there a node in this directory?
pub fn has_promised(dir: &Path) -> bool {
    dir.join(PROMISED).exists()
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Switches: nodes 16, 17 and so on.
    pub switches: Vec<SocketAddrV4>,
    /// Servers: nodes 1, 2 and so on.
    pub servers: Vec<SocketAddrV4>,
    /// Chunks of the memory.
    pub chunks: u64,
    /// Lines that share a counter of writes.
    pub block_lines: u64,
    /// The cluster's key.
    pub key_file: Option<PathBuf>,
    /// The network namespace of its clients, if it has a network of its own.
    pub namespace: Option<PathBuf>,
    /// Control sockets of its nodes, by name.
    pub sockets: BTreeMap<String, PathBuf>,
}

impl Cluster {
    /// Read the file of a directory.
    pub fn load(dir: &Path) -> Result<Cluster> {
        let path = dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => anyhow::bail!(
                "there is no {}: start a cluster with `inband up memory`, or name its switches with --switches",
                path.display()
            ),
            other => other.with_context(|| format!("{}", path.display()))?,
        };
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// How its clients reach it.
    pub fn config(&self) -> Result<MemoryConfig> {
        let mut config = config_of(&self.switches, self.key_file.as_deref())?;
        config.namespace = self.namespace.clone();
        Ok(config)
    }

    /// Write the file of a directory.
    pub fn store(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self)?;
        let new = dir.join("cluster.json.new");
        let replace = || std::fs::write(&new, &text).and_then(|()| std::fs::rename(&new, &path));
        replace().with_context(|| format!("{}", path.display()))
    }
}

/// How to reach the cluster with these switches and this key.
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
    /// The switches, of a cluster elsewhere
    #[arg(long, value_name = "ADDR:PORT,...", value_delimiter = ',')]
    pub switches: Vec<SocketAddrV4>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "switches")]
    pub key_file: Option<PathBuf>,
}

impl ClusterArgs {
    /// How to reach it.
    pub fn config(&self) -> Result<MemoryConfig> {
        match self.switches.is_empty() {
            true => Cluster::load(&self.data)?.config(),
            false => config_of(&self.switches, self.key_file.as_deref()),
        }
    }

    /// Connect to it.
    pub fn connect(&self) -> Result<Memory> {
        Ok(Memory::connect(self.config()?)?)
    }
}
