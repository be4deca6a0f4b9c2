//! A program's heap in replicated memory: `inband memory run -- PROGRAM`.
//!
//! ```text
//!   PROGRAM                                        this process
//!     malloc -> jemalloc -> region (memfd) -fault-> handler threads -> Lines (read)
//!                                          <-copy-
//!                                          <-protect, copy, punch- evictor thread -> Lines (write)
//! ```
//! The library `crates/inband-memory-heap`, preloaded into PROGRAM, maps a memfd of this process, registers it with a
//! userfaultfd and passes that to this process. [`buffer`] tracks which pages are in the local buffer and in which
//! state, and does no I/O; [`pager`] has the threads that carry out what it decides; [`command`] starts and ends the
//! program.
//!
//! Of each page in the buffer there is a *twin*, what the memory held when the page was fetched. Pages are written
//! back by the lines that differ from their twin, so one client's page does not run over another's lines.
//! The twin also tells clean pages from dirty ones: comparing 4 KiB takes 0.1 us, while write-protecting every page that was
//! fetched for reading would cost a second fault when it is written.

pub mod buffer;
pub mod command;
mod diff;
mod executable;
mod guard;
mod link;
mod local;
mod pager;
mod region;
pub mod stats;
mod uffd;

pub use local::{FileSpace, LocalSpace};

use crate::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};

/// Bytes of a page, as on this machine.
pub const PAGE_LEN_BYTES: usize = 4096;
pub const PAGE_CHUNKS: usize = PAGE_LEN_BYTES / (CHUNK_LINES * LINE_LEN_BYTES);

/// The bytes of a page.
pub type Page = [Chunk; PAGE_CHUNKS];

/// A page that was never written.
pub const ZERO_PAGE: Page = [[[0; LINE_LEN_BYTES]; CHUNK_LINES]; PAGE_CHUNKS];
