//! Lines, the registers of 64 bytes: what a client can do with them, wherever they are stored.

use std::fmt;

pub const LINE_LEN_BYTES: usize = 64;
/// Lines of a chunk, the unit of a packet.
pub const CHUNK_LINES: usize = 16;

const CHUNK_LEN_BYTES: usize = CHUNK_LINES * LINE_LEN_BYTES;

/// The lines of a chunk.
pub type Chunk = [[u8; LINE_LEN_BYTES]; CHUNK_LINES];

/// A read or write of one packet. `lines` is a bitmap: bit n is line n of the chunk.
pub enum Transfer<'a> {
    /// Reads lines; the other lines of `into` are left unchanged.
    Read {
        chunk: u64,
        /// Bitmap of the chunk's lines.
        lines: u16,
        /// Where to store them.
        into: &'a mut Chunk,
    },
    Write {
        chunk: u64,
        /// Bitmap of the chunk's lines.
        lines: u16,
        /// The new content, each line at its own index.
        from: &'a Chunk,
        /// No other client writes these lines meanwhile, so a write whose outcome is unknown may be repeated.
        sole_writer: bool,
    },
}

/// Why a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryError {
    /// The chunk does not exist.
    OutOfRange {
        chunk: u64,
        /// The number of chunks of the memory.
        chunks: u64,
    },
    /// A write was sent, and the switch that took it is gone: the write may have been applied, or may still be.
    OutcomeUnknown,
    /// No majority of servers, or no switch, answered in time. Writes may have been applied.
    TimedOut,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::OutOfRange { chunk, chunks } => {
                write!(
                    f,
                    "chunk {chunk} is behind the end of the memory, which has {chunks}"
                )
            }
            MemoryError::OutcomeUnknown => {
                write!(f, "the switch failed during a write: it may or may not have happened; read the line to find out")
            }
            MemoryError::TimedOut => {
                write!(
                    f,
                    "no answer in time; `inband status` says which servers and switches run"
                )
            }
        }
    }
}

impl std::error::Error for MemoryError {}

/// Lines that can be read and written. Each line is a linearizable register; the transfers of one call happen in any
/// order.
pub trait Lines {
    /// Returns the number of chunks.
    fn chunks(&self) -> u64;

    /// Performs all transfers. After an error, any of them may have happened.
    fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), MemoryError>;
}

/// Lines in this process: for tests, and as the baseline of measurements.
pub struct LocalLines(Vec<u8>);

impl LocalLines {
    /// Creates a memory of `chunks` chunks of zeros.
    pub fn new(chunks: usize) -> LocalLines {
        // Bytes, because a vector of zero bytes takes no memory until it is written; a vector of chunks would be
        // written here.
        LocalLines(vec![0; chunks * CHUNK_LEN_BYTES])
    }

    fn chunk(&mut self, chunk: u64) -> Result<&mut [u8], MemoryError> {
        let chunks = self.chunks();
        let at = usize::try_from(chunk).ok().filter(|_| chunk < chunks);
        let at = at.ok_or(MemoryError::OutOfRange { chunk, chunks })? * CHUNK_LEN_BYTES;
        Ok(&mut self.0[at..at + CHUNK_LEN_BYTES])
    }
}

impl Lines for LocalLines {
    fn chunks(&self) -> u64 {
        (self.0.len() / CHUNK_LEN_BYTES) as u64
    }

    fn transfer(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), MemoryError> {
        for transfer in transfers {
            match transfer {
                Transfer::Read { chunk, lines, into } => {
                    let stored = self.chunk(*chunk)?.chunks_exact(LINE_LEN_BYTES);
                    for (n, (to, from)) in into.iter_mut().zip(stored).enumerate() {
                        if *lines >> n & 1 == 1 {
                            to.copy_from_slice(from);
                        }
                    }
                }
                Transfer::Write {
                    chunk, lines, from, ..
                } => {
                    let stored = self.chunk(*chunk)?.chunks_exact_mut(LINE_LEN_BYTES);
                    for (n, (to, from)) in stored.zip(*from).enumerate() {
                        if *lines >> n & 1 == 1 {
                            to.copy_from_slice(from);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_asked_for_are_copied() {
        let mut lines = LocalLines::new(2);
        let from = [[7; LINE_LEN_BYTES]; CHUNK_LINES];
        let write = Transfer::Write {
            chunk: 1,
            lines: 0b101,
            from: &from,
            sole_writer: false,
        };
        lines.transfer(&mut [write]).unwrap();
        let mut into = [[9; LINE_LEN_BYTES]; CHUNK_LINES];
        let read = Transfer::Read {
            chunk: 1,
            lines: 0b11,
            into: &mut into,
        };
        lines.transfer(&mut [read]).unwrap();
        assert_eq!([into[0][0], into[1][0], into[2][0]], [7, 0, 9]);
        let beyond = Transfer::Read {
            chunk: 2,
            lines: 1,
            into: &mut into,
        };
        let error = lines.transfer(&mut [beyond]).unwrap_err();
        assert_eq!(
            error,
            MemoryError::OutOfRange {
                chunk: 2,
                chunks: 2
            }
        );
    }
}
