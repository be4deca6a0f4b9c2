//! Memory on this machine: in this process for `--local`, or in a file for tests with several programs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::lines::{Lines, LocalLines, MemoryError, Transfer, CHUNK_LINES, LINE_LEN_BYTES};

/// Lines in this process; clones share the same lines.
#[derive(Clone)]
pub struct LocalSpace(Arc<Mutex<LocalLines>>);

impl LocalSpace {
    /// Creates a memory of `chunks` chunks of zeros.
    pub fn new(chunks: usize) -> LocalSpace {
        LocalSpace(Arc::new(Mutex::new(LocalLines::new(chunks))))
    }
}

impl Lines for LocalSpace {
    fn chunks(&self) -> u64 {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.chunks()
    }

    fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), MemoryError> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.transfer(transfers)
    }
}

/// Lines in a file, which several processes may have open.
#[derive(Clone)]
pub struct FileSpace {
    file: Arc<File>,
    chunks: u64,
}

impl FileSpace {
    /// Opens a file as memory.
    pub fn open(path: &Path) -> io::Result<FileSpace> {
        let file = File::options().read(true).write(true).open(path)?;
        let chunks = file.metadata()?.len() / (CHUNK_LINES * LINE_LEN_BYTES) as u64;
        Ok(FileSpace {
            file: Arc::new(file),
            chunks,
        })
    }
}

/// Returns the index and the file position of each selected line of a chunk.
fn positions(chunk: u64, lines: u16) -> impl Iterator<Item = (usize, u64)> {
    let asked = (0..CHUNK_LINES).filter(move |n| lines >> n & 1 == 1);
    let first = chunk * CHUNK_LINES as u64;
    asked.map(move |n| (n, (first + n as u64) * LINE_LEN_BYTES as u64))
}

impl Lines for FileSpace {
    fn chunks(&self) -> u64 {
        self.chunks
    }

    fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), MemoryError> {
        for transfer in transfers {
            let done: io::Result<()> = match transfer {
                Transfer::Read { chunk, lines, into } => positions(*chunk, *lines)
                    .try_for_each(|(n, at)| self.file.read_exact_at(&mut into[n], at)),
                Transfer::Write {
                    chunk, lines, from, ..
                } => positions(*chunk, *lines)
                    .try_for_each(|(n, at)| self.file.write_all_at(&from[n], at)),
            };
            done.map_err(|_| MemoryError::TimedOut)?;
        }
        Ok(())
    }
}
