//! A byte buffer that releases unused memory.

use std::ops::{Deref, DerefMut};

use bytes::BytesMut;

use crate::limits::IDLE_BUFFER_BYTES_MAX;

/// Once a buffer has exceeded [`IDLE_BUFFER_BYTES_MAX`], its memory is at most this many times its contents.
const SLACK: usize = 4;

/// A `BytesMut` that knows how much memory it holds. (Its own capacity excludes what was read from the front.) Call
/// [`grown`](Self::grown) after appending, and [`shrunk`](Self::shrunk) after taking from the front.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: BytesMut,
    /// Longest contents since memory was last released, which approximates the allocation.
    longest_bytes: usize,
}

impl Buffer {
    /// Approximate memory held.
    pub fn memory_bytes(&self) -> usize {
        self.longest_bytes
    }

    /// Call after appending.
    pub fn grown(&mut self) {
        self.longest_bytes = self.longest_bytes.max(self.bytes.len());
    }

    /// Call after taking data out: releases memory that was for much more.
    pub fn shrunk(&mut self) {
        let len_bytes = self.bytes.len();
        if self.longest_bytes > IDLE_BUFFER_BYTES_MAX && len_bytes <= self.longest_bytes / SLACK {
            self.bytes = BytesMut::from(&self.bytes[..]);
            self.longest_bytes = len_bytes;
        }
    }
}

impl Deref for Buffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Buf;

    #[test]
    fn memory_is_given_back_however_slowly_it_is_emptied() {
        let mut buffer = Buffer::default();
        buffer.extend_from_slice(&vec![7; 32 << 20]);
        buffer.grown();
        assert_eq!(buffer.memory_bytes(), 32 << 20);
        while !buffer.is_empty() {
            let piece = buffer.len().min(10_000);
            assert!(buffer.iter().take(piece).all(|b| *b == 7));
            buffer.advance(piece);
            buffer.shrunk();
            let max = IDLE_BUFFER_BYTES_MAX.max(SLACK * (buffer.len() + 1));
            assert!(buffer.memory_bytes() <= max);
        }
        // Also where the rest of a long request follows it.
        buffer.extend_from_slice(&vec![7; 1 << 20]);
        buffer.grown();
        buffer.advance((1 << 20) - 10);
        buffer.shrunk();
        assert_eq!((buffer.len(), buffer.memory_bytes()), (10, 10));
    }
}
