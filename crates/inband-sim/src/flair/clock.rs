//! The clock of a host: any offset, a rate of its own, never back.

use inband_flair::timing::Nanos;

use super::limits::CLOCK_RATE_PPM;
use crate::rng::Rng;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// What it shows at true time 0.
    offset_ns: Nanos,
    /// Parts per million of true time; the exact rate is 1 000 000.
    rate_ppm: u64,
}

impl Clock {
    /// One as it comes. Its offset is far above 0, as no machine is younger than a second.
    pub fn random(rng: &mut Rng) -> Clock {
        Clock {
            offset_ns: 1_000_000_000 + rng.below(1 << 50),
            rate_ppm: 1_000_000 - CLOCK_RATE_PPM + rng.below(2 * CLOCK_RATE_PPM + 1),
        }
    }

    /// The same, but at another rate from now on.
    pub fn at_rate(self, now: Nanos, rate_ppm: u64) -> Clock {
        let passed = (u128::from(now) * u128::from(rate_ppm) / 1_000_000) as Nanos;
        Clock {
            offset_ns: self.shows(now) - passed,
            rate_ppm,
        }
    }

    pub fn shows(&self, now: Nanos) -> Nanos {
        self.offset_ns + (u128::from(now) * u128::from(self.rate_ppm) / 1_000_000) as Nanos
    }

    /// The first true time at which it shows at least this.
    pub fn when(&self, shown: Nanos) -> Nanos {
        let passed = u128::from(shown.saturating_sub(self.offset_ns)) * 1_000_000;
        (passed.div_ceil(u128::from(self.rate_ppm))).min(u128::from(u64::MAX)) as Nanos
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
