//! `inband memory plan`.

use anyhow::Result;
use clap::Args;
use inband_host::size::parse_size;
use inband_memory::plan::{Ask, Pipeline};

/// Options of plan.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Bytes of the memory
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    space: u64,
    /// Bytes of a line
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = parse_size)]
    line: u64,
    /// Lines that share a write counter
    #[arg(long, value_name = "LINES", default_value_t = 16)]
    block: u64,
    /// Servers
    #[arg(long, default_value_t = 3)]
    servers: u64,
    /// Requests in flight at a switch
    #[arg(long, default_value_t = 16_384)]
    slots: u64,
    /// Concurrent client sessions
    #[arg(long, default_value_t = 1_024)]
    sessions: u64,
    /// Also check whether a programmable switch could hold the lines in its registers: bytes per register cell
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires_all = ["stage_memory", "stages"])]
    cell: Option<u64>,
    /// Bytes of register memory per pipeline stage
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "cell")]
    stage_memory: Option<u64>,
    /// Pipeline stages
    #[arg(long, requires = "cell")]
    stages: Option<u64>,
}

impl PlanArgs {
    pub fn run(&self) -> Result<()> {
        let pipeline = self.cell.zip(self.stage_memory).zip(self.stages);
        let ask = Ask {
            space_bytes: self.space,
            line_bytes: self.line,
            block_lines: self.block,
            servers: self.servers,
            slots: self.slots,
            sessions: self.sessions,
            pipeline: pipeline.map(|((cell_bytes, stage_bytes), stages)| Pipeline {
                cell_bytes,
                stage_bytes,
                stages,
            }),
        };
        println!("{}", ask.plan()?);
        Ok(())
    }
}
