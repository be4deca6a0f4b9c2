//! What a memory needs: equations 7.1 to 7.3 of the dissertation, and the sizes of this implementation.

use std::fmt;

use anyhow::{bail, ensure, Context, Result};
use inband_host::size::size;

use crate::c;
use crate::epoch::SERVERS_MAX;
use crate::lines::{CHUNK_LINES, LINE_LEN_BYTES};

/// The largest BPF array and the largest space: chunk numbers have 32 bits there.
const CHUNKS_MAX: u64 = u32::MAX as u64;
/// Maximum size of a server's BPF map in bytes: what the kernel allocates for one array.
const SPACE_MAX_BYTES: u64 = 1 << 40;

/// The paper's switch: a pipeline of stages with registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pipeline {
    /// Bytes of a register cell.
    pub cell_bytes: u64,
    /// Bytes of register memory per stage.
    pub stage_bytes: u64,
    pub stages: u64,
}

/// Input of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub space_bytes: u64,
    pub line_bytes: u64,
    /// Lines of a block, which share a write counter.
    pub block_lines: u64,
    pub servers: u64,
    /// Requests in flight at a switch.
    pub slots: u64,
    /// Sessions of a switch.
    pub sessions: u64,
    /// A switch like the paper's, to check whether the memory would fit in it.
    pub pipeline: Option<Pipeline>,
}

/// The resources that a memory needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Lines (equation 7.1).
    pub lines: u64,
    /// Chunks; a packet carries lines of one chunk.
    pub chunks: u64,
    /// Write counters, one per block.
    pub blocks: u64,
    /// With a pipeline: the result of equation 7.2, and the left and right side of 7.3.
    pub pipeline: Option<(u64, u64, u64)>,
    pub switch_bytes: u64,
    pub server_bytes: u64,
    /// How many servers may fail at the same time.
    pub failures: u64,
}

impl Ask {
    /// Returns the defaults for a memory of this size.
    pub fn of(space_bytes: u64) -> Ask {
        Ask {
            space_bytes,
            line_bytes: LINE_LEN_BYTES as u64,
            block_lines: CHUNK_LINES as u64,
            servers: 3,
            slots: 16_384,
            sessions: 1_024,
            pipeline: None,
        }
    }

    /// Returns what the memory needs, or an error that says what does not fit.
    pub fn plan(&self) -> Result<Plan> {
        let (line, chunk) = (LINE_LEN_BYTES as u64, CHUNK_LINES as u64);
        ensure!(
            self.line_bytes == line,
            "--line {}: lines have {line} bytes",
            self.line_bytes
        );
        let chunk_bytes = line * chunk;
        ensure!(
            self.space_bytes >= chunk_bytes && self.space_bytes % chunk_bytes == 0,
            "--space {}: it must be a multiple of {chunk_bytes} bytes, a chunk of {chunk} lines, and not 0",
            self.space_bytes
        );
        ensure!(
            self.block_lines.is_power_of_two() && self.block_lines >= chunk,
            "--block {}: a block is a power of two of at least {chunk} lines, because a packet's lines share a timestamp",
            self.block_lines
        );
        let servers = self.servers;
        ensure!(
            (1..=u64::from(SERVERS_MAX)).contains(&servers),
            "--servers {servers}: there may be 1 to {SERVERS_MAX}"
        );
        let chunks = self.space_bytes / chunk_bytes;
        ensure!(
            chunks <= CHUNKS_MAX && self.space_bytes <= SPACE_MAX_BYTES,
            "--space {}: the limit is {}",
            size(self.space_bytes),
            size(SPACE_MAX_BYTES.min(CHUNKS_MAX * chunk_bytes))
        );
        ensure!(
            self.slots >= 1 && self.slots <= 1 << 20,
            "--slots {}: there may be 1 to {}",
            self.slots,
            1 << 20
        );
        ensure!(
            (1..=1 << 16).contains(&self.sessions),
            "--sessions {}: there may be 1 to {}",
            self.sessions,
            1 << 16
        );
        let lines = chunks * chunk;
        let blocks = lines.div_ceil(self.block_lines);
        let pipeline = self
            .pipeline
            .map(|pipeline| self.fits(lines, blocks, pipeline))
            .transpose()?;
        let switch_bytes = size_of::<c::ib_memory_switch>() as u64
            + blocks * size_of::<c::ib_memory_block>() as u64
            + self.sessions * size_of::<c::ib_memory_session>() as u64
            + self.slots * size_of::<c::ib_memory_slot>() as u64;
        Ok(Plan {
            lines,
            chunks,
            blocks,
            pipeline,
            switch_bytes,
            server_bytes: size_of::<c::ib_memory_server>() as u64
                + chunks * size_of::<c::ib_memory_chunk>() as u64,
            failures: (servers - 1) / 2,
        })
    }

    /// Evaluates equations 7.2 and 7.3: whether a pipeline could hold the lines and timestamps in its registers.
    fn fits(&self, lines: u64, blocks: u64, pipeline: Pipeline) -> Result<(u64, u64, u64)> {
        let Pipeline {
            cell_bytes,
            stage_bytes,
            stages,
        } = pipeline;
        ensure!(
            cell_bytes > 0 && self.line_bytes % cell_bytes == 0,
            "--cell {cell_bytes}: a line of {} bytes is not a whole number of cells",
            self.line_bytes
        );
        let cells = self.line_bytes / cell_bytes;
        let all = lines.checked_mul(cells).and_then(|n| n.checked_add(blocks));
        let needs = all
            .and_then(|n| n.checked_mul(cell_bytes))
            .context("too much")?;
        let has = stage_bytes.saturating_mul(stages);
        if needs > has {
            bail!(
                "equation 7.3: ({lines} lines x {cells} cells + {blocks} timestamps) x {cell_bytes} bytes are {}, and {stages} stages of {} have {}",
                size(needs),
                size(stage_bytes),
                size(has)
            );
        }
        Ok((cells, needs, has))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "lines (7.1)      {}", self.lines)?;
        writeln!(
            f,
            "chunks           {} of {CHUNK_LINES} lines, a packet's unit",
            self.chunks
        )?;
        writeln!(f, "timestamps       {}, one a block", self.blocks)?;
        if let Some((cells, needs, has)) = self.pipeline {
            writeln!(f, "cells (7.2)      {cells} a line")?;
            writeln!(f, "pipeline (7.3)   {} of {}", size(needs), size(has))?;
        }
        writeln!(f, "at the switch    {}", size(self.switch_bytes))?;
        writeln!(f, "at each server   {}", size(self.server_bytes))?;
        write!(f, "may fail         {} at the same time", self.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_memory_is_planned() {
        let plan = Ask::of(4 << 30).plan().unwrap();
        assert_eq!(
            (plan.lines, plan.chunks, plan.blocks),
            (1 << 26, 1 << 22, 1 << 22)
        );
        // 72 bytes per line, and 64 for a chunk's lock.
        assert_eq!(plan.server_bytes, 64 + (1 << 22) * (64 + 16 * 72));
        assert_eq!(plan.failures, 1);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_value_and_limit() {
        let refused = |ask: Ask| ask.plan().unwrap_err().to_string();
        let ask = Ask::of(1 << 20);
        assert!(refused(Ask {
            line_bytes: 128,
            ..ask
        })
        .contains("128"));
        assert!(refused(Ask {
            space_bytes: 100,
            ..ask
        })
        .contains("1024"));
        assert!(refused(Ask {
            block_lines: 8,
            ..ask
        })
        .contains("16"));
        assert!(refused(Ask { servers: 9, ..ask }).contains("1 to 7"));
        assert!(refused(Ask::of(1 << 50)).contains("1 TiB"));
        let pipeline = Some(Pipeline {
            cell_bytes: 8,
            stage_bytes: 1 << 10,
            stages: 12,
        });
        let error = refused(Ask { pipeline, ..ask });
        assert!(
            error.contains("16384 lines x 8 cells + 1024 timestamps"),
            "{error}"
        );
        let pipeline = Some(Pipeline {
            cell_bytes: 8,
            stage_bytes: 1 << 20,
            stages: 2,
        });
        let plan = Ask { pipeline, ..ask }.plan().unwrap();
        assert_eq!(plan.pipeline, Some((8, (16384 * 8 + 1024) * 8, 2 << 20)));
    }
}
