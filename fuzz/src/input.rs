//! Reads an input as numbers and pieces. It never ends: zeroes follow the last byte.

pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most this many bytes.
    pub fn piece(&mut self, len_bytes: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(len_bytes.min(self.0.len()));
        self.0 = rest;
        piece
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn byte(&mut self) -> u8 {
        self.piece(1).first().copied().unwrap_or(0)
    }

    /// A number below `bound`, which must be at most 2^16.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = match bound {
            0..=256 => usize::from(self.byte()),
            _ => usize::from(self.byte()) << 8 | usize::from(self.byte()),
        };
        number % bound
    }

    /// A number, usually small, sometimes close to the end of its range.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=199 => u64::from(byte),
            200..=219 => u64::from(self.byte()) << 8 | u64::from(self.byte()),
            byte @ 220..=239 => u64::MAX - u64::from(byte - 220),
            240..=249 => 1 << (self.byte() % 64),
            _ => {
                let mut word = [0; 8];
                let piece = self.piece(8);
                word[..piece.len()].copy_from_slice(piece);
                u64::from_le_bytes(word)
            }
        }
    }
}
