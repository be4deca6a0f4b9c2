//! Commands as they are in the log.
//!
//! The values of a session's records, one after another, are a stream of commands: the length of each (four bytes,
//! little-endian), then the command. A record may hold several commands, and a command may lie in several records. Records of
//! a session are executed exactly once and in their order, so nothing more is needed to put it together again.

use serde::{Deserialize, Serialize};

use crate::limits::{COMMAND_LEN_BYTES_MAX, RECORD_LEN_BYTES_MAX};

/// Bytes of a length.
const LENGTH_BYTES: usize = 4;

/// What becomes of an item that exists, and of one that does not.
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

/// A command. Times are as clients give them: seconds from now up to 30 days, a date beyond, 0 for never, negative for at
/// once. Their variants and fields are numbered by their order: append only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Command<'a> {
    /// The first of each session. The first of all says how many chunks a table may use.
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
        /// 0: none is asked for.
        cas: u64,
        /// `ms` with `I`: an older item may be stored, as a stale one.
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
        /// 0: none is asked for.
        cas: u64,
        /// Initial value and time of an item that is missing.
        create: Option<(u64, i32)>,
        exptime_s: Option<i32>,
    },
    Touch {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        exptime_s: i32,
    },
    /// `mg` that changes something, and `gat`.
    Fetch {
        #[serde(with = "serde_bytes", borrow)]
        key: &'a [u8],
        create_exptime_s: Option<i32>,
        exptime_s: Option<i32>,
        /// The first client that finds less time left than this is told to fetch the value again.
        recache_s: Option<i32>,
        /// The time is set before it is compared with that.
        touches_first: bool,
        is_binary_key: bool,
        /// It counts as a read.
        marks_read: bool,
        /// The first client that finds it stale is told to fetch the value again.
        takes_token: bool,
    },
    FlushAll {
        exptime_s: i32,
    },
}

impl Command<'_> {
    /// Append it to a stream.
    pub fn encode(&self, stream: &mut Vec<u8>) {
        let begin = stream.len();
        stream.extend_from_slice(&[0; LENGTH_BYTES]);
        let written = postcard::to_io(self, &mut *stream);
        written.expect("a command can be encoded, and a vector grows");
        let len_bytes = (stream.len() - begin - LENGTH_BYTES) as u32;
        stream[begin..begin + LENGTH_BYTES].copy_from_slice(&len_bytes.to_le_bytes());
    }
}

/// Why a stream is not one of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It announces too much.
    #[error("a command of {0} bytes; the longest has {COMMAND_LEN_BYTES_MAX}")]
    TooLong(usize),
    /// A command cannot be read.
    #[error("{0} bytes that are no command")]
    Unreadable(usize),
}

/// Take the first whole command off a stream; how many bytes it has there.
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

/// Collects commands and cuts their stream into values of records.
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

    /// How many bytes are in it.
    pub fn len_bytes(&self) -> usize {
        self.stream.len()
    }

    /// Take the values out.
    pub fn take(&mut self, mut each: impl FnMut(Vec<u8>)) {
        let stream = std::mem::take(&mut self.stream);
        stream
            .chunks(RECORD_LEN_BYTES_MAX)
            .for_each(|value| each(value.to_vec()));
    }
}
