//! Commands, as encoded in the log.
//!
//! The values of a session's records, one after another, form a stream of commands: the length of each (four bytes,
//! little-endian), then the command. A record may hold several commands, and a command may span several records. The
//! records of a session are executed exactly once and in order, so nothing else is needed to reassemble the stream.

use serde::{Deserialize, Serialize};

use crate::limits::{COMMAND_LEN_BYTES_MAX, RECORD_LEN_BYTES_MAX};

/// Bytes of a length field.
const LENGTH_BYTES: usize = 4;

/// What to do if the item exists, and if it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// A command. Times are as given by clients: seconds from now up to 30 days, a date beyond that, 0 for never, negative
/// for immediately. Variants and fields are encoded by position: only append to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Command<'a> {
    /// The first command of each session. The very first one in the log decides how many chunks a table may use.
    Open {
        chunks: u64,
    },
    Store {
        mode: Mode,
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        #[serde(with = "serde_bytes", borrow)]
        value: &'a [u8],
        flags: u32,
        exptime_s: i32,
        /// 0: no condition.
        cas: u64,
        /// `ms` with `I`: an item with a lower cas is stored anyway, marked as stale.
        may_be_stale: bool,
        is_binary_key: bool,
    },
    Delete {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        cas: Option<u64>,
    },
    /// `md` with `I`.
    Invalidate {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        cas: Option<u64>,
        exptime_s: Option<i32>,
    },
    Arithmetic {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        is_increment: bool,
        delta: u64,
        /// 0: no condition.
        cas: u64,
        /// Initial value and time, to create an item that is missing.
        create: Option<(u64, i32)>,
        exptime_s: Option<i32>,
    },
    Touch {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        exptime_s: i32,
    },
    /// `mg` if it changes something, and `gat`.
    Fetch {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        create_exptime_s: Option<i32>,
        exptime_s: Option<i32>,
        /// If less time than this is left, the first client to ask is told to fetch the value anew.
        recache_s: Option<i32>,
        /// Set the time before comparing it with `recache_s`.
        touches_first: bool,
        is_binary_key: bool,
        /// The command counts as a read.
        marks_read: bool,
        /// If the item is stale, the first client to ask is told to fetch the value anew.
        takes_token: bool,
    },
    FlushAll {
        exptime_s: i32,
    },
}

impl Command<'_> {
    /// Appends the command to a stream.
    pub fn encode(&self, stream: &mut Vec<u8>) {
        let begin = stream.len();
        stream.extend_from_slice(&[0; LENGTH_BYTES]);
        let written = postcard::to_io(self, &mut *stream);
        written.expect("a command can be encoded, and a vector grows");
        let len_bytes = (stream.len() - begin - LENGTH_BYTES) as u32;
        stream[begin..begin + LENGTH_BYTES].copy_from_slice(&len_bytes.to_le_bytes());
    }
}

/// Why a stream cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A command's length exceeds the maximum.
    #[error("a command of {0} bytes; the longest has {COMMAND_LEN_BYTES_MAX}")]
    TooLong(usize),
    /// A command cannot be decoded.
    #[error("{0} bytes that are not a command")]
    Unreadable(usize),
}

/// Decodes the first complete command of a stream; also returns how many bytes it occupies.
pub fn decode(stream: &[u8]) -> Result<Option<(Command<'_>, usize)>, StreamError> {
    let Some((length, rest)) = stream.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let len_bytes = u32::from_le_bytes(*length) as usize;
    if len_bytes > COMMAND_LEN_BYTES_MAX {
        return Err(StreamError::TooLong(len_bytes));
    }
    let Some(command) = rest.get(..len_bytes) else {
        return Ok(None);
    };
    match postcard::take_from_bytes(command) {
        Ok((command, [])) => Ok(Some((command, LENGTH_BYTES + len_bytes))),
        _ => Err(StreamError::Unreadable(len_bytes)),
    }
}

/// Collects commands and splits their stream into values of records.
#[derive(Debug, Default)]
pub struct Batch {
    stream: Vec<u8>,
}

impl Batch {
    pub fn push(&mut self, command: &Command<'_>) {
        command.encode(&mut self.stream);
    }

    pub fn is_empty(&self) -> bool {
        self.stream.is_empty()
    }

    /// Returns the number of bytes collected.
    pub fn len_bytes(&self) -> usize {
        self.stream.len()
    }

    pub fn take(&mut self, mut each: impl FnMut(Vec<u8>)) {
        let stream = std::mem::take(&mut self.stream);
        stream
            .chunks(RECORD_LEN_BYTES_MAX)
            .for_each(|value| each(value.to_vec()));
    }
}
