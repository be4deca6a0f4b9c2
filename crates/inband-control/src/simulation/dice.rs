//! Seeded randomness.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub(super) struct Dice(SmallRng);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(SmallRng::seed_from_u64(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0.gen()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.gen_range(0..bound)
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.gen_range(low..=high)
    }

    pub fn chance_ppm(&mut self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }

    /// Exponentially distributed with this mean, at least 1.
    pub fn wait(&mut self, mean: u64) -> u64 {
        let uniform: f64 = self.0.gen_range(f64::EPSILON..1.0);
        1 + (-uniform.ln() * mean as f64) as u64
    }

    /// Returns a random element of `from`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
