//! `inband memory status`: the state that nodes report.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use inband_host::size::size;
use inband_memory::cluster::{Cluster, DATA};
use inband_memory::status::{socket_of, status_at, Status};

/// Options of status.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Directory of a cluster, or of one node
    #[arg(long, default_value = DATA, value_name = "DIR")]
    data: PathBuf,
    /// Show every node's counters
    #[arg(long)]
    counters: bool,
}

impl StatusArgs {
    pub fn run(&self) -> Result<()> {
        if let Ok(status) = status_at(&socket_of(&self.data)) {
            self.show(&status);
            return Ok(());
        }
        for (name, socket) in Cluster::load(&self.data)?.sockets {
            match status_at(&socket) {
                Ok(status) => self.show(&status),
                Err(_) => println!("{name:<10} does not answer"),
            }
        }
        Ok(())
    }

    fn show(&self, node: &Status) {
        println!(
            "{:<10} {:<11} {:<21} {:<12} epoch {:<6} {:>9}  pid {}  {}",
            node.name,
            node.state,
            node.listen.to_string(),
            node.dataplane.to_string(),
            node.epoch,
            size(node.memory_bytes),
            node.pid,
            node.notes.join(", ")
        );
        if self.counters {
            for (name, count) in &node.counters {
                println!("    {name} {count}");
            }
        }
    }
}
