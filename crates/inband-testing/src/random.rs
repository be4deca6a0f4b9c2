//! Random tests that a printed seed repeats.

use std::time::{SystemTime, UNIX_EPOCH};

/// Of a random test: `INBAND_SEED`, or another each time.
pub fn seed() -> u64 {
    if let Ok(seed) = std::env::var("INBAND_SEED") {
        return seed.parse().expect("INBAND_SEED is a number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_nanos() as u64 | 1
}

/// A small generator of pseudo-random numbers (xorshift*), so that a printed seed says everything.
pub struct Prng(pub u64);

impl Prng {
    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// A record of a sequence of packets.
    pub fn record(&mut self) -> [u8; 16] {
        let words = [self.next(), self.next()].map(u64::to_le_bytes);
        words.concat().try_into().expect("twice 8")
    }
}
