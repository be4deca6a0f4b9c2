//! The simulator's random number generator: xoshiro256++, seeded by splitmix64.
//!
//! It is implemented here because a seed must mean the same schedule for the lifetime of the project, whatever a
//! library changes.

/// A deterministic generator. Equal seeds give equal numbers forever.
#[derive(Debug, Clone)]
pub struct Rng([u64; 4]);

impl Rng {
    /// Creates a generator for one `purpose` of a seed, so that additional draws for one purpose do not change those
    /// for another.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        let mut state = seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        };
        Rng([next(), next(), next(), next()])
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `bound`, which must not be 0. The bias of at most 2^-32 does not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with this probability, in parts per million.
    pub fn chance_ppm(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.below(1_000_000) < ppm
    }

    /// Returns a waiting time with this mean: exponential in steps of an eighth of it, at most eight times the mean.
    pub fn wait(&mut self, mean: u64) -> u64 {
        let mut total = 1;
        while total < mean * 8 && !self.chance_ppm(125_000) {
            total += (mean / 8).max(1);
        }
        total + self.below((mean / 8).max(1))
    }

    /// Returns a random element; `None` if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        from.get(self.below(from.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut rng = Rng::new(1, 2);
        let drawn: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        let mut again = Rng::new(1, 2);
        assert_eq!(drawn, (0..3).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_ne!(drawn[0], Rng::new(1, 3).next_u64());
    }

    #[test]
    fn draws_stay_in_range() {
        let mut rng = Rng::new(7, 0);
        for _ in 0..10_000 {
            assert!((3..=9).contains(&rng.between(3, 9)));
            assert!(rng.wait(80) <= 80 * 9 + 1);
        }
        assert!(rng.pick::<u8>(&[]).is_none());
    }
}
