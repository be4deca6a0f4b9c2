//! A value of the log. Its first byte is the type; numbers are big-endian.
//!
//! | first byte | then |
//! |---|---|
//! | 1 | commands: `time_ms u64, count u16, count x (len u16, command)` |
//! | 2 | the same, with commands that programs knowing only 1 do not understand |
//! | 3 | a *marker*: `entry u64`; see [`crate::machine`] |
//! | 5 | as 1, with commands that programs knowing only 1 to 4 do not understand |
//! | 6 | as 1, with commands that programs knowing only 1 to 5 do not understand |
//! | 7 | as 1, with commands that programs knowing only 1 to 6 do not understand |
//! | 8 | as 1, with commands that programs knowing only 1 to 7 do not understand |
//! | 10 | as 1, with commands that programs knowing only 1 to 9 do not understand |
//! | 11 | as 1, with commands that programs knowing only 1 to 10 do not understand |
//! | 12 | as 1, with commands that programs knowing only 1 to 11 do not understand |
//! | 13 | as 1, with commands that programs knowing only 1 to 12 do not understand |
//! | 14 | as 1, with commands that programs knowing only 1 to 13 do not understand |
//! | 15 | as 1, with commands that programs knowing only 1 to 14 do not understand |
//! | 4 | a *chunk* of a command that does not fit one value: `time_ms u64, transfer u64, index u16, count u16, bytes` |
//! | 9 | the same after `version u8`: the first byte that a value with the command would have |
//!
//! A value without commands is a *tick*: it only advances replicated time.

use crate::command;

/// Highest first byte that this program supports.
pub const VALUE_VERSION: u8 = 15;

/// First byte of commands that every version supports.
const COMMANDS: u8 = 1;
/// First byte of commands of which some need version 2.
const COMMANDS_2: u8 = 2;
/// First byte of commands of which some need version 5.
const COMMANDS_3: u8 = 5;
/// First byte of commands of which some need version 6.
const COMMANDS_4: u8 = 6;
/// First byte of commands of which some need version 7.
const COMMANDS_5: u8 = 7;
/// First byte of commands of which some need version 8.
const COMMANDS_6: u8 = 8;
/// First byte of commands of which some need version 10.
const COMMANDS_7: u8 = 10;
/// First byte of commands of which some need version 11.
const COMMANDS_8: u8 = 11;
/// First byte of commands of which some need version 12.
const COMMANDS_9: u8 = 12;
/// First byte of commands of which some need version 13.
const COMMANDS_10: u8 = 13;
/// First byte of commands of which some need version 14.
const COMMANDS_11: u8 = 14;
/// First byte of commands of which some need version 15.
const COMMANDS_12: u8 = 15;
/// First byte of a marker.
const MARKER: u8 = 3;

/// First byte of a chunk.
const CHUNK: u8 = 4;
/// First byte of a chunk with a version.
const CHUNK_OF_VERSION: u8 = 9;
/// Chunks of commands of later versions say so.
const VERSION_IN_CHUNK_MIN: u8 = COMMANDS_6;

/// Length of the header of a chunk after its first byte and its version.
const CHUNK_FIELDS_LEN_BYTES: usize = 20;
/// Longest header of a chunk.
pub const CHUNK_HEADER_LEN_BYTES: usize = 2 + CHUNK_FIELDS_LEN_BYTES;

/// Length of the header of a value of commands.
pub const VALUE_HEADER_LEN_BYTES: usize = 11;

pub const COMMAND_PREFIX_LEN_BYTES: usize = 2;

const TIME_AT: std::ops::Range<usize> = 1..9;
const COUNT_AT: std::ops::Range<usize> = 9..11;

/// Fills values with commands.
#[derive(Debug)]
pub struct ValueWriter {
    bytes: Vec<u8>,
    count: u16,
}

impl Default for ValueWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ValueWriter {
    /// Creates a value without commands.
    pub fn new() -> Self {
        let mut writer = Self {
            bytes: Vec::with_capacity(2048),
            count: 0,
        };
        writer.clear();
        writer
    }

    /// Starts the next value.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(VALUE_HEADER_LEN_BYTES, 0);
        self.bytes[0] = COMMANDS;
        self.count = 0;
    }

    /// Length so far.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether no command was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends one encoded command.
    pub fn push(&mut self, command: &[u8]) {
        self.bytes[0] = self.bytes[0].max(first_byte_for(command));
        self.bytes
            .extend_from_slice(&(command.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(command);
        self.count += 1;
    }

    /// Returns the finished value, stamped with the proposer's cluster time.
    pub fn finish(&mut self, time_ms: u64) -> &[u8] {
        self.bytes[TIME_AT].copy_from_slice(&time_ms.to_be_bytes());
        self.bytes[COUNT_AT].copy_from_slice(&self.count.to_be_bytes());
        &self.bytes
    }
}

/// Returns the first byte of a value that has only this command.
pub fn first_byte_for(command: &[u8]) -> u8 {
    match command::version_of(command) {
        1 => COMMANDS,
        2 => COMMANDS_2,
        3 => COMMANDS_3,
        4 => COMMANDS_4,
        5 => COMMANDS_5,
        6 => COMMANDS_6,
        7 => COMMANDS_7,
        8 => COMMANDS_8,
        9 => COMMANDS_9,
        10 => COMMANDS_10,
        11 => COMMANDS_11,
        _ => COMMANDS_12,
    }
}

/// Returns a value that means: execute everything up to this entry of the log of cross-partition commands.
pub fn marker(entry: u64) -> [u8; 9] {
    let mut value = [MARKER; 9];
    value[1..].copy_from_slice(&entry.to_be_bytes());
    value
}

/// Returns the entry of a marker; `None` if the value is not a marker.
pub fn marker_entry(value: &[u8]) -> Option<u64> {
    let (first, entry) = value.split_first()?;
    Some(u64::from_be_bytes(
        entry.try_into().ok().filter(|_| *first == MARKER)?,
    ))
}

/// A part of a command that does not fit in one value.
///
/// The first chunk (index 0) begins the transfer; it must be decided before the others are sent. `count` 0 abandons the
/// transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// See [`first_byte_for`]; programs that do not know it refuse the chunk.
    pub version: u8,
    /// Cluster time of the proposer.
    pub time_ms: u64,
    /// Number of the transfer within the proposer's session.
    pub transfer: u64,
    /// Position of the chunk, from 0.
    pub index: u16,
    /// Total number of chunks.
    pub count: u16,
    /// This chunk's part of the encoded command.
    pub bytes: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// Parses a value; `None` if it is not a chunk.
    pub fn of_value(value: &'a [u8]) -> Option<Self> {
        let (version, fields) = match value {
            [CHUNK, fields @ ..] => (COMMANDS, fields),
            [CHUNK_OF_VERSION, version @ VERSION_IN_CHUNK_MIN..=VALUE_VERSION, fields @ ..] => {
                (*version, fields)
            }
            _ => return None,
        };
        let (header, bytes) = fields.split_first_chunk::<CHUNK_FIELDS_LEN_BYTES>()?;
        let long = |at: usize| header[at..].first_chunk().map(|b| u64::from_be_bytes(*b));
        let short = |at: usize| header[at..].first_chunk().map(|b| u16::from_be_bytes(*b));
        Some(Self {
            version,
            time_ms: long(0)?,
            transfer: long(8)?,
            index: short(16)?,
            count: short(18)?,
            bytes,
        })
    }

    /// Encodes it as a value.
    pub fn write(&self, value: &mut Vec<u8>) {
        value.clear();
        if self.version >= VERSION_IN_CHUNK_MIN {
            value.extend_from_slice(&[CHUNK_OF_VERSION, self.version]);
        } else {
            value.push(CHUNK);
        }
        value.extend_from_slice(&self.time_ms.to_be_bytes());
        value.extend_from_slice(&self.transfer.to_be_bytes());
        value.extend_from_slice(&self.index.to_be_bytes());
        value.extend_from_slice(&self.count.to_be_bytes());
        value.extend_from_slice(self.bytes);
    }
}

/// Why a value cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A newer program wrote it. Skipping it would make this replica diverge from the others.
    #[error("value of version {0}; this program knows {VALUE_VERSION}: upgrade this replica")]
    Version(u8),
    /// It is malformed. Every replica detects this and skips it.
    #[error("malformed value; a proposer is broken")]
    Malformed,
}

/// Reads a value of commands.
#[derive(Debug, Clone, Copy)]
pub struct ValueReader<'a> {
    /// Cluster time of the proposer.
    pub time_ms: u64,
    /// Number of commands.
    pub count: usize,
    /// Programs that support only version 1 cannot follow it.
    pub is_version_2: bool,
    commands: &'a [u8],
}

impl<'a> ValueReader<'a> {
    /// Validates a value.
    pub fn new(value: &'a [u8]) -> Result<Self, ValueError> {
        match value.first() {
            Some(
                &(COMMANDS | COMMANDS_2 | COMMANDS_3 | COMMANDS_4 | COMMANDS_5 | COMMANDS_6
                | COMMANDS_7 | COMMANDS_8 | COMMANDS_9 | COMMANDS_10 | COMMANDS_11 | COMMANDS_12),
            ) => {}
            Some(&CHUNK_OF_VERSION) => {
                let version = value.get(1).filter(|version| **version > VALUE_VERSION);
                let malformed = ValueError::Malformed;
                return Err(version.map_or(malformed, |version| ValueError::Version(*version)));
            }
            None | Some(&(0 | MARKER | CHUNK)) => return Err(ValueError::Malformed),
            Some(&other) => return Err(ValueError::Version(other)),
        }
        let (header, commands) = value
            .split_at_checked(VALUE_HEADER_LEN_BYTES)
            .ok_or(ValueError::Malformed)?;
        let time = header[TIME_AT]
            .try_into()
            .map_err(|_| ValueError::Malformed)?;
        let count = header[COUNT_AT]
            .try_into()
            .map_err(|_| ValueError::Malformed)?;
        let reader = Self {
            time_ms: u64::from_be_bytes(time),
            count: usize::from(u16::from_be_bytes(count)),
            is_version_2: header[0] != COMMANDS,
            commands,
        };
        // All or nothing: a value with a wrong length must not be partly applied.
        let mut commands = reader.commands();
        if commands.by_ref().count() != reader.count || !commands.rest.is_empty() {
            return Err(ValueError::Malformed);
        }
        Ok(reader)
    }

    /// Returns the encoded commands in order.
    pub fn commands(&self) -> Commands<'a> {
        Commands {
            left: self.count,
            rest: self.commands,
        }
    }
}

/// Iterator over the encoded commands of a value.
#[derive(Debug, Clone)]
pub struct Commands<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for Commands<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (len, rest) = self.rest.split_first_chunk::<COMMAND_PREFIX_LEN_BYTES>()?;
        let (command, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        self.rest = rest;
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_cut() {
        let mut writer = ValueWriter::new();
        assert!(ValueReader::new(writer.finish(5))
            .unwrap()
            .commands()
            .next()
            .is_none());
        writer.push(b"one");
        writer.push(b"");
        writer.push(b"three");
        let value = writer.finish(u64::MAX).to_vec();
        let reader = ValueReader::new(&value).unwrap();
        assert_eq!((reader.time_ms, reader.count), (u64::MAX, 3));
        let commands: Vec<_> = reader.commands().collect();
        assert_eq!(commands, [&b"one"[..], b"", b"three"]);
        for len in 0..value.len() {
            assert!(ValueReader::new(&value[..len]).is_err(), "cut at {len}");
        }
        assert!(ValueReader::new(&[&value[..], b"x"].concat()).is_err());
        writer.clear();
        assert!(writer.is_empty());
        assert_eq!(writer.len_bytes(), VALUE_HEADER_LEN_BYTES);
    }

    #[test]
    fn newer_versions_are_told_apart_from_garbage() {
        assert_eq!(
            ValueReader::new(&[99; 30]).unwrap_err(),
            ValueError::Version(99)
        );
        // Also if the command is sent in parts.
        let mut chunk = [99; 30];
        chunk[0] = CHUNK_OF_VERSION;
        assert_eq!(Chunk::of_value(&chunk), None);
        assert_eq!(
            ValueReader::new(&chunk).unwrap_err(),
            ValueError::Version(99)
        );
        assert_eq!(ValueReader::new(&[]).unwrap_err(), ValueError::Malformed);
    }

    #[test]
    fn markers_are_no_commands() {
        assert_eq!(marker_entry(&marker(77)), Some(77));
        assert_eq!(marker_entry(&marker(77)[..8]), None);
        assert_eq!(marker_entry(&[]), None);
        let mut writer = ValueWriter::new();
        assert_eq!(marker_entry(writer.finish(1)), None);
        assert_eq!(
            ValueReader::new(&marker(7)).unwrap_err(),
            ValueError::Malformed
        );
    }

    #[test]
    fn chunks_and_every_cut() {
        for (version, header_len) in [(COMMANDS, 21), (COMMANDS_6, CHUNK_HEADER_LEN_BYTES)] {
            let chunk = Chunk {
                version,
                time_ms: 1 << 40,
                transfer: 1 << 50,
                index: 300,
                count: 301,
                bytes: b"part",
            };
            let mut value = vec![9; 100];
            chunk.write(&mut value);
            assert_eq!(Chunk::of_value(&value), Some(chunk));
            assert_eq!(value.len(), header_len + 4);
            for len in 0..header_len {
                assert_eq!(Chunk::of_value(&value[..len]), None, "cut at {len}");
                assert!(ValueReader::new(&value[..len]).is_err());
            }
        }
        assert_eq!(Chunk::of_value(&marker(7)), None);
    }
}
