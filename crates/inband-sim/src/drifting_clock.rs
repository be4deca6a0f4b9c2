//! The clock of a host of FLAIR or Falcon: an arbitrary offset, its own rate, jumps forward, never backward.

use crate::rng::Rng;

/// How much faster or slower than true time clocks run at most, in parts per million. Any two then differ by less than
/// the protocols tolerate.
pub const CLOCK_DRIFT_PPM: u64 = 4_900;
/// No machine has been up for less.
const OFFSET_MIN_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// The clock's reading at true time 0.
    offset_ns: u64,
    /// Parts per million of true time; an exact clock has 1 000 000.
    rate_ppm: u64,
}

impl Clock {
    pub fn random(rng: &mut Rng) -> Clock {
        Clock {
            offset_ns: OFFSET_MIN_NS + rng.below(1 << 50),
            rate_ppm: 1_000_000 - CLOCK_DRIFT_PPM + rng.below(2 * CLOCK_DRIFT_PPM + 1),
        }
    }

    /// Returns the same clock at another rate from now on, without a step.
    pub fn at_rate(self, now: u64, rate_ppm: u64) -> Clock {
        let passed = (u128::from(now) * u128::from(rate_ppm) / 1_000_000) as u64;
        Clock {
            offset_ns: self.shows(now) - passed,
            rate_ppm,
        }
    }

    pub fn shows(&self, now: u64) -> u64 {
        self.offset_ns + (u128::from(now) * u128::from(self.rate_ppm) / 1_000_000) as u64
    }

    /// Returns the first true time at which the clock shows at least `shown`.
    pub fn when(&self, shown: u64) -> u64 {
        let passed = u128::from(shown.saturating_sub(self.offset_ns)) * 1_000_000;
        (passed.div_ceil(u128::from(self.rate_ppm))).min(u128::from(u64::MAX)) as u64
    }

    /// Takes back the time for which the clock was suspended.
    pub fn stood_still(&mut self, ns: u64) {
        self.offset_ns -= (u128::from(ns) * u128::from(self.rate_ppm) / 1_000_000) as u64;
    }

    pub fn jump(&mut self, ahead_ns: u64) {
        self.offset_ns += ahead_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_rate_counts_from_now_on() {
        let clock = Clock::random(&mut Rng::new(2, 1));
        let now = 3_000_000_000;
        let slow = clock.at_rate(now, 990_000);
        assert_eq!(slow.shows(now), clock.shows(now));
        let passed = slow.shows(now + 1_000_000) - slow.shows(now);
        assert_eq!(passed, 990_000);
    }

    #[test]
    fn it_shows_what_it_was_waited_for() {
        let mut rng = Rng::new(1, 1);
        for _ in 0..1000 {
            let clock = Clock::random(&mut rng);
            let shown = clock.shows(rng.below(1 << 40));
            let when = clock.when(shown);
            assert!(clock.shows(when) >= shown);
            assert!(when == 0 || clock.shows(when - 1) <= shown);
        }
    }
}
