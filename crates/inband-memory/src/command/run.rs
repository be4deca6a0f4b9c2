//! `inband memory run`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use inband_memory::cluster::ClusterArgs;
use inband_memory::heap::command::{run, run_local, RunArgs};
use inband_memory::lines::{Lines, MemoryError};
use inband_memory::memory::Memory;

/// Options of run.
#[derive(Debug, Args)]
pub struct RunCommand {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    run: RunArgs,
}

impl RunCommand {
    pub fn run(&self) -> Result<()> {
        if self.run.local {
            return run_local(&self.run);
        }
        let mut config = self.cluster.config()?;
        config.deadline = config
            .deadline
            .min(Duration::from_secs(self.run.give_up_after_s));
        let connect = move || -> Result<Box<dyn Lines + Send>, MemoryError> {
            match Memory::connect(config.clone()) {
                Ok(memory) => Ok(Box::new(memory)),
                Err(error) => {
                    eprintln!("inband memory: {error}");
                    Err(MemoryError::TimedOut)
                }
            }
        };
        // A cluster that runs elsewhere has no directory here.
        let is_here = self.cluster.switches.is_empty();
        let dir = is_here.then_some(self.cluster.data.as_path());
        run(&self.run, &connect, dir)
    }
}
