//! What commands for collections may do: how much work, and how long a reply.
//!
//! Every replica executes a command in one step in which it serves nobody else, so its work must not depend on a
//! client's goodwill. One [`Work`] is for a whole command, transaction or script. The same on every replica, because it
//! depends only on the commands and the keys.

use std::cell::Cell;

use inband_resp::reply::Reply;

use super::packed::Rows;
use crate::glob;
use crate::limits::{COLLECTION_STEPS_MAX, VALUES_REPLY_BYTES_MAX};

/// Bytes that count as a step.
const BYTES_PER_STEP: usize = 8;
/// Steps for a key that is found by going through all of them, which takes several times as long as an element.
const STEPS_PER_KEY: usize = 4;

/// Counts down.
#[derive(Debug)]
pub struct Work {
    steps: Cell<u64>,
    /// What remains of the reply to the current command.
    reply_bytes: Cell<usize>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            steps: Cell::new(COLLECTION_STEPS_MAX),
            reply_bytes: Cell::new(VALUES_REPLY_BYTES_MAX),
        }
    }
}

impl Work {
    /// Begins a command with this many arguments.
    pub fn begin(&self, args: usize) -> Result<(), Reply> {
        self.reply_bytes.set(VALUES_REPLY_BYTES_MAX);
        self.steps(1 + args)
    }

    /// Uses steps. Once there are too few, there are none for what follows either.
    pub fn steps(&self, steps: usize) -> Result<(), Reply> {
        let left = self.steps.get().checked_sub(steps as u64);
        self.steps.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| {
            Reply::error(format!(
                "ERR a command, transaction or script is over the limit of {COLLECTION_STEPS_MAX} steps on \
                 collections; this command had no effect. Use fewer commands or shorter collections"
            ))
        })
    }

    /// How many steps were used.
    pub fn steps_used(&self) -> u64 {
        COLLECTION_STEPS_MAX - self.steps.get()
    }

    /// How many steps may still be used.
    pub fn steps_left(&self) -> u64 {
        self.steps.get()
    }

    /// Visits elements of this many bytes in total.
    pub fn visit(&self, elements: usize, bytes: usize) -> Result<(), Reply> {
        self.steps(elements + bytes / BYTES_PER_STEP)
    }

    /// Visits all rows.
    pub fn pass(&self, rows: Rows<'_>) -> Result<(), Reply> {
        self.visit(rows.len(), rows.len_bytes())
    }

    /// Whether a glob-style pattern matches; a byte of it that is compared is a step.
    pub fn is_match(&self, pattern: &[u8], text: &[u8]) -> Result<bool, Reply> {
        let mut outcome = Ok(());
        let is_match = glob::matches_within(pattern, text, &mut |bytes| {
            outcome = self.steps(bytes);
            outcome.is_ok()
        });
        outcome.map(|()| is_match.unwrap_or(false))
    }

    /// Whether a glob-style pattern matches a key that a command visits.
    pub fn is_key_match(&self, pattern: &[u8], key: &[u8]) -> Result<bool, Reply> {
        let (mut bytes, left) = (0, self.steps.get() as usize);
        let is_match = glob::matches_within(pattern, key, &mut |compared| {
            bytes += compared;
            bytes / BYTES_PER_STEP <= left
        });
        self.visit(STEPS_PER_KEY, bytes)?;
        Ok(is_match.unwrap_or(false))
    }

    /// Makes room in the reply for an item with this many bytes.
    pub fn reply(&self, bytes: usize) -> Result<(), Reply> {
        let left = self.reply_bytes.get();
        let left = left.checked_sub(size_of::<Reply>() + bytes);
        self.reply_bytes.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| {
            Reply::error(format!(
                "ERR the reply is over the limit of {VALUES_REPLY_BYTES_MAX} bytes; ask for less at a time"
            ))
        })
    }

    /// Returns a row as a part of the reply.
    pub fn bulk(&self, row: &[u8]) -> Result<Reply, Reply> {
        self.reply(row.len())?;
        Ok(Reply::bulk(row))
    }

    /// Returns the rows as an array.
    pub fn bulks<'r>(&self, rows: impl Iterator<Item = &'r [u8]>) -> Result<Reply, Reply> {
        let bulks = rows.map(|row| self.bulk(row));
        Ok(Reply::Array(bulks.collect::<Result<_, _>>()?))
    }
}
