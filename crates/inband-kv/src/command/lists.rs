//! The strings, watched keys and queued commands of a command, as arguments of a request or in their encoded form.

use bytes::BytesMut;
use inband_resp::request::Args;

use super::encoding::{put_string, put_varint, version_of, Reader, OP_EXEC, STAMPED};
use super::Command;

/// Several strings: the arguments of a request, or their encoded form.
#[derive(Debug, Clone, Copy)]
pub enum Strings<'a> {
    /// Arguments from this index on.
    Args(Args<'a>, usize),
    /// This many length-prefixed strings, known to be well-formed.
    Encoded(usize, &'a [u8]),
}

impl<'a> Strings<'a> {
    pub fn len(&self) -> usize {
        match self {
            Strings::Args(args, first) => args.len().saturating_sub(*first),
            Strings::Encoded(count, _) => *count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let this = *self;
        let mut reader = Reader(if let Strings::Encoded(_, bytes) = this {
            bytes
        } else {
            &[]
        });
        (0..self.len()).map_while(move |i| match this {
            Strings::Args(args, first) => Some(args.get(first + i)),
            Strings::Encoded(..) => reader.string(),
        })
    }
}

impl PartialEq for Strings<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The keys that a transaction watches, with their versions.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    count: usize,
    /// `count` pairs of a string and a number, known to be well-formed.
    bytes: &'a [u8],
}

impl<'a> Watched<'a> {
    /// `bytes` holds `count` keys appended by [`push`](Self::push).
    pub fn new(count: usize, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    pub fn push(bytes: &mut BytesMut, key: &[u8], version: u64) {
        put_string(bytes, key);
        put_varint(bytes, version);
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the keys with their versions.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], u64)> + use<'a> {
        let mut reader = Reader(self.bytes);
        (0..self.count).map_while(move |_| Some((reader.string()?, reader.varint()?)))
    }
}

impl PartialEq for Watched<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The commands of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct Queue<'a> {
    count: usize,
    /// `count` length-prefixed encoded commands, known to be well-formed.
    bytes: &'a [u8],
}

impl<'a> Queue<'a> {
    /// `bytes` holds `count` commands appended by [`push`](Self::push).
    pub fn new(count: usize, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    pub fn push(bytes: &mut BytesMut, command: &Command<'_>) {
        let mut encoded = BytesMut::new();
        command.encode(None, &mut encoded);
        put_string(bytes, &encoded);
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// See [`version_of`]; a transaction itself has version 2.
    pub(super) fn version(&self) -> u8 {
        let mut reader = Reader(self.bytes);
        let encoded = (0..self.count).map_while(|_| reader.string());
        encoded.map(version_of).max().unwrap_or(0).max(2)
    }

    pub fn iter(&self) -> impl Iterator<Item = Command<'a>> + use<'a> {
        let mut reader = Reader(self.bytes);
        (0..self.count).map_while(move |_| queued(reader.string()?))
    }
}

impl PartialEq for Queue<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Returns a command that is allowed in a transaction.
pub(super) fn queued(encoded: &[u8]) -> Option<Command<'_>> {
    // Checked first: otherwise nested transactions would be decoded recursively without a limit on the depth.
    if encoded.first().is_none_or(|op| op & !STAMPED == OP_EXEC) {
        return None;
    }
    match Command::decode(encoded)? {
        (Command::Watch(_) | Command::SessionNew { .. }, _) | (_, Some(_)) => None,
        (command, None) => Some(command),
    }
}
