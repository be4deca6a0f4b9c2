//! Seeds and random numbers for tests that a printed seed can repeat.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of a random test: `INBAND_SEED`, or a new one each time.
pub fn seed() -> u64 {
    if let Ok(seed) = std::env::var("INBAND_SEED") {
        return seed.parse().expect("INBAND_SEED is a number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_nanos() as u64 | 1
}

/// A small pseudo-random number generator (xorshift*), so that a printed seed determines everything.
pub struct Prng(pub u64);

impl Prng {
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Returns a random record of a sequence of packets.
    pub fn record(&mut self) -> [u8; 16] {
        let words = [self.next(), self.next()].map(u64::to_le_bytes);
        words.concat().try_into().expect("twice 8")
    }
}

/// Random numbers below a bound, from a seed: splitmix64, whose seeds may be 0, 1, 2 and so on.
pub fn chooser(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}
